// NeMo AutoModel's YAML, and TRL's commands.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/frameworks/model_of_files.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

Checked ask(const std::vector<ConfigText>& texts, const std::string& model_name = "llama3-8b",
            std::int64_t gpus = 8) {
  return ask_texts(texts, model_name, gpus);
}

const std::string kRecipe =
    "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
    "step_scheduler:\n  global_batch_size: 64\n  local_batch_size: 2\n"
    "model:\n  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained\n"
    "  pretrained_model_name_or_path: meta-llama/Meta-Llama-3-8B\n  torch_dtype: float32\n"
    "dataset:\n  _target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset\n"
    "packed_sequence:\n  packed_sequence_size: 4096\n"
    "distributed:\n  strategy: fsdp2\n  dp_size: none\n  tp_size: 1\n  cp_size: 1\n"
    "  activation_checkpointing: true\n";

Checked ask_nemo(const std::string& more = "", const std::string& from = "",
                 const std::string& to = "", const std::string& model = "llama3-8b") {
  const std::string text = from.empty() ? kRecipe : with_words(kRecipe, from, to);
  return ask({{"job.yaml", text + more}}, model);
}

void rule_is_absent(const Checked& checked) {
  CHECK_MESSAGE(find(checked, "unknown_option") == nullptr, findings_text(checked));
}

TEST_SUITE("NeMo AutoModel's YAML") {
  TEST_CASE("is FSDP2 of Hugging Face's modules") {
    const Checked checked = ask_nemo();
    CHECK(checked.framework == Framework::automodel);
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
    CHECK_MESSAGE(!checked.has(Severity::warning), findings_text(checked));
    CHECK(checked.recipe == RecipeKind::fsdp2);
    const ParallelPlan& plan = checked.plan;
    CHECK(plan.dp == 8);
    CHECK(plan.zero == 3);
    CHECK(plan.micro_batch_size == 2);
    CHECK(plan.global_batch_size == 64);
    CHECK(plan.seq_len == 4096);
    CHECK(plan.recompute.kind == RecomputeKind::full);
    CHECK(plan.main_params_dtype == DType::fp32);
  }

  TEST_CASE("a pattern of modules that is a slip matches none") {
    const auto refused = [](const std::string& patterns) {
      const Checked checked = ask_nemo(
          "peft:\n  _target_: nemo_automodel.components._peft.lora.PeftConfig\n"
          "  dim: 16\n  target_modules: " +
          patterns + "\n");
      const Finding* const found = find(checked, "unknown_target");
      return found != nullptr && found->severity == Severity::error;
    };
    for (const std::string slip : {"[\"*_porj\"]", "\"*_porj\"", "[\"*.q_prj\", \"*v_proj\"]",
                                   "[\"model.layers.0.*.gate_porj\"]"}) {
      CAPTURE(slip);
      CHECK(refused(slip));
    }
    for (const std::string fine : {"\"*_proj\"", "[\"*q_proj\", \"*.v_proj\"]", "[q_proj, k_proj]",
                                   "[\"*.linear_qkv\"]", "[query_key_value]", "\"*\""}) {
      CAPTURE(fine);
      CHECK_FALSE(refused(fine));
    }
  }

  TEST_CASE("a block that was misspelt is an error, once") {
    for (const auto& [from, to] : {std::pair{"distributed:", "distriubted:"},
                                   {"packed_sequence:", "packed_seqeunce:"},
                                   {"step_scheduler:", "step_schedulr:"},
                                   {"dataset:", "datasset:"}}) {
      CAPTURE(to);
      const Checked checked = ask_nemo("", from, to);
      const Finding* const found = find(checked, "unknown_option");
      REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
      CHECK(found->severity == Severity::error);
      CHECK(found->message.starts_with(std::string(to).substr(0, found->message.find(':'))));
      CHECK(std::count_if(checked.findings.begin(), checked.findings.end(),
                          [](const Finding& f) { return f.rule == "unknown_option"; }) == 1);
    }
    rule_is_absent(ask_nemo("optimizer:\n  lr: 1e-5\nmine:\n  a: 1\nmodels:\n  a: 1\n"));
    rule_is_absent(ask_nemo("validation_dataset:\n  split: x\nclip_grad_norm: 1.0\n"));
  }

  TEST_CASE("states are as narrow as the weights") {
    const Checked checked = ask_nemo("optimizer:\n  _target_: torch.optim.AdamW\n",
                                     "torch_dtype: float32", "torch_dtype: bf16");
    CHECK(checked.plan.moment_dtype == DType::bf16);
    CHECK(find(checked, "half_states") != nullptr);
  }

  TEST_CASE("has adapters, and weights of 4 bits") {
    const std::string peft =
        "peft:\n  _target_: nemo_automodel.components._peft.lora.PeftConfig\n  dim: 16\n"
        "  target_modules: \"*_proj\"\n";
    const Checked all = ask_nemo(peft);
    CHECK(all.plan.lora_rank == 16);
    CHECK(all.plan.lora_alpha == 32);
    CHECK(all.plan.lora_targets.empty());
    const Checked some = ask_nemo(
        "peft:\n  target_modules: [\"*q_proj\", \"*.v_proj\"]\n"
        "quantization:\n  load_in_4bit: true\n");
    CHECK(some.plan.lora_targets == set_of(LoraTarget::q_proj, LoraTarget::v_proj));
    CHECK(some.plan.frozen_weights == FrozenFormat::nf4);
  }

  TEST_CASE("stages and experts are torchtitan's degrees") {
    const Checked checked = ask_nemo(
        "  pp_size: 2\n  ep_size: 4\n  pipeline:\n    pp_schedule: interleaved1f1b\n"
        "    pp_microbatch_size: 1\n    layers_per_stage: 4\n",
        "", "", "qwen3-30b-a3b");
    CHECK(checked.framework == Framework::automodel);
    CHECK(checked.recipe == RecipeKind::fsdp2_compile);
    CHECK(checked.plan.pp == 2);
    CHECK(checked.plan.ep == 4);
    CHECK(checked.plan.dp == 4);
    CHECK(checked.plan.micro_batch_size == 1);
    CHECK(checked.plan.global_batch_size == 64);
    CHECK(checked.plan.schedule == ScheduleKind::interleaved);
  }

  TEST_CASE("is read by its command, with what that says on top") {
    const Checked checked = ask(
        {{"run.sh", "automodel job.yaml --nproc-per-node 8 --step_scheduler.local_batch_size 1\n"},
         {"job.yaml", kRecipe}});
    CHECK(checked.plan.micro_batch_size == 1);
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
  }

  TEST_CASE("what NeMo AutoModel refuses") {
    struct Wrong {
      std::string more, rule;
    };
    const std::vector<Wrong> all{
        {"  pp_size: 2\n", "option_needs"},
        {"  tensor_parallel: 2\n", "unknown_option"},
        {"  dp_replicate_size: 8\n  dp_size: 8\n", "replicas"},
        {"  pp_size: 2\n  pipeline:\n    pp_microbatch_size: 3\n", "pipeline_batch"},
        {"peft:\n  match_all_linear: true\n  target_modules: [a]\n", "options_exclude"},
        {"peft:\n  exclude_modules: [b]\n  target_modules: [a]\n", "options_exclude"},
        {"loss_fn:\n  _target_: nemo_automodel.components.loss.linear_ce.FusedLinearCrossEntropy\n",
         "option_needs"},
        {"peft:\n  rank: 8\n", "unknown_option"},
    };
    for (const Wrong& wrong : all) {
      CAPTURE(wrong.more);
      const Checked checked = ask_nemo(wrong.more);
      CHECK_MESSAGE(find(checked, wrong.rule) != nullptr, findings_text(checked));
    }
    CHECK(find(ask_nemo("", "strategy: fsdp2", "strategy: ddp\n  pp_size: 2"),
               "strategy_degrees") != nullptr);
    CHECK(find(ask_nemo("", "global_batch_size: 64", "global_batch_size: 24"),
               "batch_divisibility") != nullptr);
  }

  TEST_CASE("recipes of other models are told to be such") {
    const Checked checked =
        ask({{"job.yaml", "recipe: TrainEagle3Recipe\nstep_scheduler:\n  local_batch_size: 2\n"}});
    CHECK(checked.framework == std::nullopt);
    REQUIRE(find(checked, "unknown_file") != nullptr);
  }
}

TEST_SUITE("TRL's commands") {
  const std::string kSft =
      "trl sft --model_name_or_path meta-llama/Meta-Llama-3-8B --dataset_name d --max_length 4096 "
      "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 ";

  TEST_CASE("are a Trainer's job") {
    const Checked checked = ask({{"run.sh", kSft + "--use_peft --lora_r 32 --load_in_4bit "
                                                   "--lora_target_modules all-linear\n"}});
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
    CHECK(checked.plan.lora_rank == 32);
    CHECK(checked.plan.frozen_weights == FrozenFormat::nf4);
    CHECK(checked.plan.global_batch_size == 64);
    CHECK(checked.plan.seq_len == 4096);
    CHECK(checked.plan.recompute.kind == RecomputeKind::full);
    const Checked shorter =
        ask({{"run.sh", with_words(kSft, "--max_length 4096", "--max_length 512")}});
    CHECK(shorter.plan.seq_len == 512);  // none of qplan's own defaults
  }

  TEST_CASE("bring configurations of accelerate's") {
    const Checked zero = ask({{"run.sh", kSft + "--accelerate_config zero3\n"}});
    CHECK(zero.recipe == RecipeKind::deepspeed);
    CHECK(zero.plan.zero == 3);
    const Checked fsdp = ask({{"run.sh", kSft + "--accelerate_config fsdp2\n"}});
    CHECK(fsdp.recipe == RecipeKind::fsdp2);
  }

  TEST_CASE("are read of YAML") {
    const Checked checked =
        ask({{"run.sh", "trl dpo --config dpo.yaml --per_device_train_batch_size 4\n"},
             {"dpo.yaml",
              "model_name_or_path: m\ndataset_name: d\nuse_peft: true\nlora_r: 8\n"
              "gradient_accumulation_steps: 2\n"}});
    CHECK(checked.plan.lora_rank == 8);
    CHECK(checked.plan.micro_batch_size == 8);  // pairs
  }

  // alignment-handbook's and open-r1's shape: a program around TRL, its YAML and accelerate's.
  TEST_CASE("are read of a program around it, which may have arguments of its own") {
    const std::string yaml =
        "model_name_or_path: m\ntorch_dtype: bfloat16\ndataset_mixture:\n  datasets:\n    - id: d\n"
        "use_peft: true\nlora_r: 8\nmax_seq_length: 2048\nper_device_train_batch_size: 4\n"
        "scale_rewards: false\nsystem_prompt: p\n";
    const ConfigText accelerate{"zero3.yaml",
                                "distributed_type: DEEPSPEED\nnum_processes: 8\n"
                                "deepspeed_config:\n  zero_stage: 3\n"};
    for (const std::string words : {"--config config.yaml", "config.yaml"}) {
      const Checked checked = ask(
          {{"run.sh", "accelerate launch --config_file zero3.yaml scripts/dpo.py " + words + "\n"},
           {"config.yaml", yaml},
           accelerate});
      CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
      CHECK(checked.plan.zero == 3);
      CHECK(checked.plan.lora_rank == 8);
      CHECK(checked.plan.seq_len == 2048);
      CHECK(checked.plan.micro_batch_size == 8);  // pairs
      REQUIRE(find(checked, "unknown_option") != nullptr);
      CHECK(find(checked, "unknown_option")->severity == Severity::note);
    }
    const Checked own = ask({{"run.sh", "trl dpo --config config.yaml\n"}, {"config.yaml", yaml}});
    REQUIRE(find(own, "unknown_option") != nullptr);
    CHECK(find(own, "unknown_option")->severity == Severity::error);  // TRL's own stops
    const Checked slip = ask({{"config.yaml", yaml + "gradient_accumulation_step: 2\n"}});
    CHECK(slip.has(Severity::error));
  }

  TEST_CASE("are read of its own scripts, with their adapters") {
    const Checked checked =
        ask({{"run.sh",
              "python trl/scripts/reward_modeling.py --model_name_or_path m --dataset_name d "
              "--per_device_train_batch_size 8 --max_length 2048 --use_peft --lora_r 32\n"}},
            "llama3-8b", 1);
    CHECK(checked.plan.lora_rank == 32);
    CHECK(checked.plan.seq_len == 2048);
    CHECK(checked.plan.micro_batch_size == 16);  // pairs
  }

  TEST_CASE("GRPO's arithmetic, and vLLM's share of a GPU") {
    const std::string grpo =
        "trl grpo --model_name_or_path m --dataset_name d --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 2 ";
    const Checked wrong = ask({{"run.sh", grpo + "--num_generations 12\n"}});
    REQUIRE(find(wrong, "generation_batch") != nullptr);
    CHECK(find(wrong, "generation_batch")->message ==
          "a batch of 32 answers = per_device_train_batch_size 2 x 8 GPUs x 2 steps is no whole "
          "number of groups of num_generations 12");
    CHECK(find(ask({{"run.sh", grpo + "\n"}}), "generation_batch") == nullptr);
    const Checked both = ask({{"run.sh", grpo + "--generation_batch_size 32 "
                                                "--steps_per_generation 2\n"}});
    CHECK(find(both, "generation_batch") != nullptr);
    const Checked shared =
        ask({{"run.sh", grpo + "--use_vllm --vllm_gpu_memory_utilization 0.9\n"}});
    REQUIRE(find(shared, "vllm_share") != nullptr);
    CHECK(find(shared, "vllm_share")->severity == Severity::warning);
    const Checked sleeping = ask(
        {{"run.sh",
          grpo + "--use_vllm --vllm_gpu_memory_utilization 0.9 --vllm_enable_sleep_mode true\n"}});
    CHECK(find(sleeping, "vllm_share")->severity == Severity::note);
  }

  TEST_CASE("what TRL refuses") {
    CHECK(find(ask({{"run.sh", kSft + "--padding_free true\n"}}), "option_needs") != nullptr);
    CHECK(find(ask({{"run.sh", kSft + "--packing\n"}}), "packing_attention") != nullptr);
    CHECK(find(ask({{"run.sh", kSft + "--max_seq_lenght 100\n"}}), "unknown_option") != nullptr);
  }
}

}  // namespace
}  // namespace qplan
