// Files of other programs, which no plan is made of; numbers as each reader takes them.

#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "planner/frameworks/fix.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/relations.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

// What is said of a file that is not read; empty: it is.
std::string unread(const std::string& name, const std::string& text) {
  const Checked checked = ask_text(name, text, "qwen3-4b", 8);
  const Finding* const found = find(checked, "unknown_file");
  if (found == nullptr) return "";
  CHECK_FALSE(checked.says_plan);
  CHECK_MESSAGE(checked.count(Severity::error) == 1, findings_text(checked));
  return found->message;
}

std::string fixed(const std::string& name, const std::string& text) {
  const ModelSpec model = load_model("qwen3-4b");
  const Json config = model_config("qwen3-4b");
  const std::vector<ConfigText> files{{name, text}};
  const auto judge = [&](std::span<const ConfigText> texts) {
    return check_cited(texts, question_of(model, config, 8));
  };
  return fix(files, judge).files[0].text;
}

}  // namespace

TEST_SUITE("files of other programs") {
  TEST_CASE("that have names of Megatron's are not its arguments") {
    // FlagOpen/FlagScale, examples/aquila/conf/train/7b.yaml
    CHECK(unread("7b.yaml",
                 "system:\n  tensor_model_parallel_size: 1\n  precision:\n    bf16: true\n"
                 "model:\n  num_layers: 32\n  hidden_size: 4096\ndata:\n  data_path: x\n")
              .find("FlagScale") != std::string::npos);
    // alibaba/ChatLearn's, AMD-AGI/Primus's, volcengine/verl's engine, NeMo's tests in Megatron-LM
    CHECK(unread("grpo.yaml",
                 "runtime_args:\n  exp_name: x\nmodels:\n  policy_trainer:\n"
                 "    tensor_model_parallel_size: 2\n")
              .find("ChatLearn") != std::string::npos);
    CHECK(unread("llama.yaml",
                 "modules:\n  pre_trainer:\n    framework: megatron\n    overrides:\n"
                 "      tensor_model_parallel_size: 2\n")
              .find("Primus") != std::string::npos);
    CHECK(!unread("deepseek_v3.yaml",
                  "extends:\n  - base.yaml\nnum_layers: 61\nhidden_size: 7168\nnum_experts: 256\n")
               .empty());
    CHECK(unread("megatron.yaml",
                 "_target_: verl.workers.config.McoreEngineConfig\n"
                 "tensor_model_parallel_size: 1\npipeline_model_parallel_size: 1\nseed: 42\n")
              .find("verl") != std::string::npos);
    CHECK(
        unread("model_config.yaml",
               "ENV_VARS:\n  A: 1\nMODEL_ARGS:\n  trainer.num_nodes: 1\n"
               "  trainer.strategy.tensor_model_parallel_size: 2\n  model.config.num_layers: 12\n")
            .find("NeMo") != std::string::npos);
    // InternLM/xtuner b934f4620, examples/v1/config/sft_qwen3p5.py
    CHECK(unread("sft.py",
                 "from xtuner.v1.config import FSDPConfig\n"
                 "from xtuner.v1.train import TrainerConfig\n"
                 "fsdp_cfg = FSDPConfig(recompute_ratio=1.0, ep_size=1)\n"
                 "trainer = TrainerConfig(fsdp_cfg=fsdp_cfg, global_batch_size=16)\n")
              .find("xtuner") != std::string::npos);
    // A card, and whatever is in sections of its own.
    CHECK(!unread("card.yaml",
                  "title: t\nsummary: s\nevidence:\n  tensor_model_parallel_size: 2\n"
                  "known_constraints:\n  - c\nrecommended_path: p\nvalidation_status: ok\n")
               .empty());
    CHECK(!unread("mine.yaml",
                  "parallel:\n  tensor_model_parallel_size: 2\nshape:\n  num_layers: 36\n")
               .empty());
  }

  TEST_CASE("Megatron's own keys are read, flat, in one section or in those of its YAML") {
    const std::string keys =
        "num_layers: 36\nhidden_size: 2560\nnum_attention_heads: 32\nseq_length: 4096\n"
        "tensor_model_parallel_size: 2\nmicro_batch_size: 1\nglobal_batch_size: 64\nbf16: true\n";
    std::string section = "model:\n";
    for (std::size_t at = 0; at < keys.size();) {
      const std::size_t end = keys.find('\n', at) + 1;
      section += "  " + keys.substr(at, end - at);
      at = end;
    }
    const std::string own =
        "bf16: true\nmicro_batch_size: 1\nmodel_parallel:\n"
        "  tensor_model_parallel_size: 2\nlanguage_model:\n  num_layers: 36\n"
        "  hidden_size: 2560\n";
    for (const std::string& text : {keys, section, own}) {
      CAPTURE(text);
      const Checked checked = ask_text("config.yaml", text, "qwen3-4b", 8);
      CHECK(checked.framework == Framework::megatron);
      CHECK(checked.plan.tp == 2);
      CHECK(find(checked, "yaml_is_not_read") != nullptr);
    }
    const Checked test = ask_text("model_config.yaml",
                                  "MODEL_ARGS:\n  --num-layers: 36\n  --hidden-size: 2560\n"
                                  "  --tensor-model-parallel-size: 2\nTEST_TYPE: regular\n",
                                  "qwen3-4b", 8);
    CHECK(test.plan.tp == 2);
  }

  TEST_CASE("that have a section of accelerate's are not its yaml") {
    // volcengine/verl b178a3cd, verl/trainer/config/ref/dp_ref.yaml
    CHECK(unread("dp_ref.yaml",
                 "defaults:\n  - ref\n  - ../engine@fsdp_config: fsdp\n"
                 "_target_: verl.workers.config.FSDPActorConfig\nfsdp_config:\n"
                 "  forward_only: True\nulysses_sequence_parallel_size: "
                 "${oc.select:actor_rollout_ref.actor.ulysses_sequence_parallel_size,1}\n")
              .find("verl") != std::string::npos);
    CHECK(
        !unread("own.yaml", "strategy: fsdp\nfsdp_config:\n  fsdp_version: 2\nseed: 1\nmodel: x\n")
             .empty());
  }

  TEST_CASE("that have a Trainer's names are not TRL's where the most are others") {
    const std::string shared =
        "model_name_or_path: a\ndataset_mixer:\n  x: 1.0\noutput_dir: o\nlearning_rate: 5.0e-7\n"
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 16\nlogging_steps: 1\n"
        "max_seq_length: 2048\n";
    // allenai/open-instruct, configs/train_configs/tulu3/tulu3_dpo_8b.yaml
    CHECK(!unread("tulu3_dpo_8b.yaml",
                  shared + "tokenizer_name: a\nuse_slow_tokenizer: true\nwith_tracking: true\n"
                           "preprocessing_num_workers: 16\nuse_lora: false\nnum_epochs: 1\n"
                           "checkpointing_steps: 1000\n")
               .empty());
    // huggingface/alignment-handbook's recipes have a few of their own.
    CHECK(unread("config.yaml", shared + "torch_dtype: bfloat16\nchat_template: t\n").empty());
  }

  TEST_CASE("that ms-swift wrote of a run are no job") {
    CHECK(unread("args.json",
                 R"({"model": "Qwen/Qwen3-4B", "dataset": ["x"], "tuner_type": "lora",
                     "per_device_train_batch_size": 1, "swift_version": "4.0", "rank": 0,
                     "global_world_size": 8, "model_meta": "m"})")
              .find("ms-swift wrote") != std::string::npos);
    CHECK(unread("sft.json",
                 R"({"model": "Qwen/Qwen3-4B", "dataset": ["x"], "tuner_type": "lora",
                     "per_device_train_batch_size": 1})")
              .empty());
  }
}

TEST_SUITE("numbers") {
  TEST_CASE("in quotes are texts to the keys that DeepSpeed hands on, and numbers to its models") {
    const std::string rest = R"(, "bf16": {"enabled": true}})";
    const auto quoted = [&](const std::string& key) {
      const Checked checked = ask_text("ds.json", "{" + key + rest, "qwen3-4b", 8);
      return find(checked, "quoted_number") != nullptr;
    };
    const std::string micro = R"("train_micro_batch_size_per_gpu": 2, )";
    CHECK(quoted(R"("train_batch_size": "64")"));
    CHECK(quoted(R"("train_micro_batch_size_per_gpu": "2")"));
    CHECK(quoted(micro + R"("gradient_accumulation_steps": "4")"));
    CHECK(quoted(micro + R"("steps_per_print": "10")"));
    CHECK(quoted(micro + R"("gradient_clipping": "1.0")"));
    CHECK(quoted(micro + R"("optimizer": {"type": "AdamW", "params": {"lr": "1e-5"}})"));
    CHECK(quoted(micro +
                 R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "10"}})"));
    CHECK_FALSE(quoted(micro + R"("zero_optimization": {"stage": "3"})"));
    CHECK_FALSE(quoted(micro + R"("zero_optimization": {"reduce_bucket_size": "5e8"})"));
    CHECK_FALSE(quoted(micro + R"("fp16": {"enabled": false, "loss_scale": "0"})"));
    CHECK_FALSE(quoted(micro + R"("gradient_clipping": "auto")"));
    CHECK_FALSE(quoted(micro + R"("communication_data_type": "fp32")"));
    CHECK(fixed("ds.json", R"({"train_batch_size": "64", "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})")
              .starts_with(R"({"train_batch_size": 64, )"));
  }

  TEST_CASE("of DeepSpeed's gradients have long names too") {
    const auto format = [](const std::string& name) {
      return ask_text("ds.json",
                      R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
                          "data_types": {"grad_accum_dtype": ")" +
                          name + "\"}}",
                      "qwen3-4b", 8);
    };
    CHECK(format("float32").plan.grad_dtype == DType::fp32);
    CHECK(format("float32").count(Severity::error) == 0);
    CHECK(format("bfloat16").plan.grad_dtype == DType::bf16);
    const Checked fp8 = format("fp8");
    const Finding* const other = find(fp8, "bad_value");
    REQUIRE(other != nullptr);
    CHECK(other->message.find("int64") == std::string::npos);
  }

  TEST_CASE("of arguments are Python's") {
    const auto asked = [](const std::string& number) {
      return ask_text("train.sh",
                      "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 36 --hidden-size "
                      "2560 --num-attention-heads 32 --micro-batch-size 1 --seq-length " +
                          number + " --max-position-embeddings 40960\n",
                      "qwen3-4b", 8);
    };
    for (const std::string number : {"32_000", "+32000", "3_2_0_0_0", "032000"}) {
      CAPTURE(number);
      const Checked checked = asked(number);
      CHECK_MESSAGE(find(checked, "bad_value") == nullptr, findings_text(checked));
      CHECK(find(checked, "refused_value") == nullptr);
      CHECK(checked.plan.seq_len == 32000);
    }
    for (const std::string number : {"32__000", "_32000", "32000_", "32_k", "+-8"}) {
      CAPTURE(number);
      const Checked checked = asked(number);
      CHECK((find(checked, "bad_value") != nullptr || find(checked, "refused_value") != nullptr));
    }
  }

  TEST_CASE("of a YAML are YAML 1.1's") {
    const auto length = [](const std::string& number) {
      return ask_text("sft.yaml",
                      "model_name_or_path: m\ndataset_name: d\nmax_length: " + number + "\n",
                      "qwen3-4b", 8)
          .plan.seq_len;
    };
    CHECK(length("4_096") == 4096);
    CHECK(length("+4096") == 4096);
    CHECK(length("0x1000") == 4096);
    CHECK(length("010000") == 4096);
    CHECK(length("0b1000000000000") == 4096);
    CHECK(length("4_096.0") == 4096);
  }
}

TEST_SUITE("what options ask of each other") {
  TEST_CASE("nothing that has a default is missing") {
    const auto list_of_parser = [](Dialect dialect) {
      return dialect == Dialect::megatron             ? "megatron"
             : dialect == Dialect::slime              ? "slime"
             : dialect == Dialect::megatron_deepspeed ? "megatron_deepspeed"
                                                      : "trainer";
    };
    for (const Dialect dialect :
         {Dialect::megatron, Dialect::slime, Dialect::megatron_deepspeed, Dialect::trainer}) {
      for (const Relation& relation : relations_of(dialect)) {
        // A flag alone; what is asked of its value is asked of the default.
        const std::string must(relation.must);
        CAPTURE(must);
        if (must.find_first_of("=<>!| ") != std::string::npos) continue;
        const KnownOption* const known = known_options(list_of_parser(dialect)).find(must);
        if (known == nullptr || known->arity == "0") continue;
        CHECK((known->otherwise.empty() || known->otherwise == "None" || known->otherwise == "[]"));
      }
    }
    const Checked fim = ask_text("train.sh",
                                 "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 36 "
                                 "--hidden-size 2560 --num-attention-heads 32 --seq-length 4096 "
                                 "--max-position-embeddings 4096 --micro-batch-size 1 --fim-data\n",
                                 "qwen3-4b", 8);
    CHECK_MESSAGE(find(fim, "option_needs") == nullptr, findings_text(fim));
  }

  TEST_CASE("Ray's form of ms-swift's command takes a YAML, and no other does so by that name") {
    const std::string yaml =
        "rlhf_type: grpo\nmodel: Qwen/Qwen3-4B\ndataset: x\nmicro_batch_size: 1\n"
        "global_batch_size: 64\nnum_generations: 8\nmax_length: 4096\npadding_free: true\n";
    const auto command = [&](const std::string& words) {
      const std::vector<ConfigText> files{{"run.sh", "megatron rlhf " + words + "\n"},
                                          {"x.yaml", yaml}};
      const ModelSpec model = load_model("qwen3-4b");
      return check_cited(files, question_of(model, model_config("qwen3-4b"), 8));
    };
    const Checked ray = command("--use_ray --config x.yaml");
    CHECK_MESSAGE(find(ray, "unknown_option") == nullptr, findings_text(ray));
    CHECK(ray.plan.seq_len == 4096);
    CHECK(find(command("--config x.yaml"), "unknown_option") != nullptr);
    const Checked none = ask_text("run.sh",
                                  "megatron rlhf --use_ray --rlhf_type grpo --model Qwen/Qwen3-4B "
                                  "--dataset x --micro_batch_size 1 --global_batch_size 64\n",
                                  "qwen3-4b", 8);
    const auto needs = std::count_if(
        none.findings.begin(), none.findings.end(),
        [](const Finding& f) { return f.message.find("takes all of it") != std::string::npos; });
    CHECK(needs == 1);
  }

  TEST_CASE("a Megatron-Bridge program that merges what is not given leaves its weights open") {
    const auto says = [](const std::string& more) {
      return find(ask_text("finetune.py",
                           "from megatron.bridge.recipes.qwen import qwen3_4b_peft_config\n"
                           "from megatron.bridge.training.finetune import finetune\n"
                           "cfg = qwen3_4b_peft_config(peft_scheme='lora')\n"
                           "cfg.peft.dim = 8\n" +
                               more + "finetune(cfg, forward_step)\n",
                           "qwen3-4b", 8),
                  "peft_without_weights") != nullptr;
    };
    CHECK(says(""));
    CHECK_FALSE(says("cfg = process_config_with_overrides(cfg, config_filepath=args.config)\n"));
  }
}

TEST_SUITE("files of other programs by name") {
  TEST_CASE("are said to be theirs") {
    const auto says = [](const std::string& text, const std::string& name) {
      CAPTURE(name);
      const std::string said = unread("job.yaml", text);
      CHECK_MESSAGE(said.find(name) != std::string::npos, said);
    };
    says("model:\n  model_path: x\ndata:\n  train_path: y\ntrain:\n  micro_batch_size: 1\n",
         "VeOmni");
    says("checkpoint_dir: x\ndata:\n  class_path: litgpt.data.Alpaca2k\ntrain:\n  epochs: 1\n",
         "litgpt");
    says("experiment_name: x\ncluster:\n  n_nodes: 1\n  n_gpus_per_node: 8\nactor:\n  path: y\n",
         "AReaL");
    says("num_gpus_per_node: 8\nactor_train:\n  model_args:\n    dtype: bf16\n", "ROLL");
    says("worker:\n  actor:\n    a: 1\n  rollout:\n    n: 5\ntrainer:\n  nnodes: 1\n", "EasyR1");
    says(
        "model_name_or_path: meta-llama/Llama-2-7b-hf\nuse_slow_tokenizer: true\n"
        "per_device_train_batch_size: 1\n",
        "open-instruct");
    says("model:\n  model_id: x\ndata:\n  cutoff_len: 8\nparallel:\n  fsdp_modules: y\n",
         "MindSpeed-LLM");
  }

  TEST_CASE("a program whose arguments are not read is named") {
    const Checked checked =
        ask_text("run.sh", "deepspeed --module trainers.cli.train_sft --train.batch_size 256\n",
                 "llama3-8b", 8);
    const Finding* const found = find(checked, "nothing_to_check");
    REQUIRE(found != nullptr);
    CHECK(found->place.line == 1);
    CHECK_MESSAGE(found->message.find("trainers.cli.train_sft") != std::string::npos,
                  found->message);
  }
}

}  // namespace qplan
