// Files in a copy of a framework: what the copy's parser has is no fault. And jobs of other
// releases and programs that share a framework's arguments.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kYaml =
    "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: sft\ndo_train: true\n"
    "finetuning_type: lora\ndataset: d\ntemplate: llama3\ncutoff_len: 2048\noutput_dir: o\n"
    "per_device_train_batch_size: 1\nbf16: true\n";

Checked ask_yaml(const std::string& more, const std::string& parser) {
  std::vector<ConfigText> texts{{"sft.yaml", kYaml + more}};
  if (!parser.empty()) texts.push_back({"src/llamafactory/hparams/x_args.py", parser});
  return ask_texts(texts, "llama3-8b", 8);
}

TEST_SUITE("A framework's copy") {
  TEST_CASE("has arguments of its own, which are one note") {
    const std::string own = "reasoning_loss_weight: 0.5\nnum_latent_token: 4\n";
    const Checked alone = ask_yaml(own, "");
    REQUIRE(find(alone, "unknown_option") != nullptr);
    CHECK(find(alone, "unknown_option")->severity == Severity::error);

    const Checked there = ask_yaml(
        own, "class A:\n    reasoning_loss_weight: float = 1.0\n    num_latent_token: int = 0\n");
    CHECK_MESSAGE(!there.has(Severity::error), findings_text(there));
    CHECK(find(there, "unknown_option") == nullptr);
    const Finding* const note = find(there, "own_copy");
    REQUIRE(note != nullptr);
    CHECK(note->severity == Severity::note);
    CHECK(note->message.starts_with("reasoning_loss_weight, num_latent_token: the copy"));
    CHECK(there.takes_less);
  }

  TEST_CASE("says nothing for a slip that it has not, nor for a name within another") {
    const std::string parser =
        "class A:\n    cutoff_len: int = 8\n    my_cutoff_lenn: int = 8\n"
        "    help: str = 'cutoff_lenn: how long'\n";
    const Checked checked = ask_yaml("cutoff_lenn: 4096\n", parser);
    REQUIRE(find(checked, "unknown_option") != nullptr);
    CHECK(find(checked, "unknown_option")->severity == Severity::error);
    CHECK(find(checked, "own_copy") == nullptr);
  }

  TEST_CASE("has words of its own for an option") {
    const std::string four = "quantization_bit: 4\nquantization_method: bitsandbytes\n";
    REQUIRE(find(ask_yaml(four, ""), "refused_value") != nullptr);
    const Checked there = ask_yaml(four, "class Q(Enum):\n    BNB = \"bitsandbytes\"\n");
    CHECK(find(there, "refused_value") == nullptr);
    CHECK(find(there, "own_copy") != nullptr);
  }

  TEST_CASE("has arguments of a command") {
    const std::string run =
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
        "--micro-batch-size 1 --global-batch-size 64 --bf16 --trigger-path /x\n";
    const Checked checked = ask_texts(
        {{"run.sh", run},
         {"megatron/training/arguments.py", "group.add_argument('--trigger-path', type=str)\n"}},
        "llama3-8b", 8);
    CHECK(find(checked, "unknown_option") == nullptr);
    CHECK(find(checked, "own_copy") != nullptr);
  }
}

TEST_SUITE("Other releases and programs") {
  TEST_CASE("ms-swift 3 is read in release 4's words") {
    const std::string job = "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --dataset d ";
    const Checked older =
        ask_text("a.sh", job + "--train_type full --num_infer_workers 2\n", "qwen3-8b", 8);
    const Finding* const found = find(older, "older_release");
    REQUIRE_MESSAGE(found != nullptr, findings_text(older));
    CHECK(found->severity == Severity::warning);
    CHECK(found->message.starts_with("--train_type, --num_infer_workers: names of ms-swift 3"));
    CHECK(find(older, "unknown_option") == nullptr);
    CHECK(older.plan.lora_rank == 0);  // full, and not the default
    CHECK(ask_text("a.sh", job + "--train_type lora\n", "qwen3-8b", 8).plan.lora_rank > 0);

    // Beside a name of release 4's it is one that nobody takes.
    const Checked mixed =
        ask_text("a.sh", job + "--tuner_type lora --train_type lora\n", "qwen3-8b", 8);
    REQUIRE(find(mixed, "unknown_option") != nullptr);
    CHECK(find(mixed, "unknown_option")->severity == Severity::error);
    CHECK(find(mixed, "older_release") == nullptr);
  }

  TEST_CASE("programs that take Megatron's arguments and train nothing are none of its jobs") {
    const std::string arguments =
        " --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 "
        "--max-position-embeddings 4096 --micro-batch-size 1 --tensor-model-parallel-size 8 "
        "--num-experts 16 --bf16\n";
    for (const char* const program :
         {"examples/inference/gpt/gpt_static_inference.py", "tools/run_text_generation_server.py",
          "text_generation_ptq.py", "tools/preprocess_data.py"}) {
      CAPTURE(program);
      const Checked checked =
          ask_text("a.sh", "torchrun --nproc_per_node 8 " + std::string(program) + arguments,
                   "llama3-8b", 8);
      REQUIRE(find(checked, "unknown_file") != nullptr);
      CHECK(find(checked, "unknown_file")->message.find("trains nothing") != std::string::npos);
      CHECK(!checked.says_plan);
    }
    const Checked train = ask_text(
        "a.sh", "torchrun --nproc_per_node 8 train_generation.py" + arguments, "llama3-8b", 8);
    CHECK(find(train, "unknown_file") == nullptr);
  }

  TEST_CASE("EasyR1 is not verl, whose package's name it has") {
    const Checked checked = ask_text("a.sh",
                                     "python3 -m verl.trainer.main data.image_dir=x "
                                     "config=a.yaml worker.actor.model.model_path=m\n",
                                     "qwen3-8b", 8);
    REQUIRE(find(checked, "unknown_file") != nullptr);
    CHECK(find(checked, "unknown_file")->message.find("EasyR1") != std::string::npos);
  }

  TEST_CASE("a launcher's module needs no dot in its name, and llamafactory.cli is its command") {
    const std::string words =
        " --model_name_or_path x --per_device_train_batch_size 1 --output_dir o --bf16 --do_train "
        "--learning_rate 1e-5 --gradient_accumulation_steps 4\n";
    CHECK(ask_text("a.sh", "torchrun --nproc_per_node 8 -m mixtral-lora" + words, "llama3-8b", 8)
              .says_plan);
    const Checked cli =
        ask_texts({{"a.sh", "NPROC_PER_NODE=8 python -m llamafactory.cli train sft.yaml\n"},
                   {"sft.yaml", kYaml}},
                  "llama3-8b", 8);
    CHECK_MESSAGE(cli.says_plan, findings_text(cli));
  }

  TEST_CASE("YAML's NO starts one process") {
    const Checked checked = ask_text("a.yaml",
                                     "compute_environment: LOCAL_MACHINE\ndistributed_type: NO\n"
                                     "num_machines: 1\nnum_processes: 1\nmixed_precision: bf16\n",
                                     "qwen3-8b", 1);
    CHECK_MESSAGE(find(checked, "refused_value") == nullptr, findings_text(checked));
  }

  TEST_CASE("an argument that slime has not is an error where it is a slip") {
    const std::string job =
        "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate "
        "--rollout-batch-size 32 --n-samples-per-prompt 8 --num-rollout 10 ";
    const auto severity = [&](const std::string& word) {
      const Checked checked = ask_text("run.sh", job + word + "\n", "qwen3-8b", 8);
      const Finding* const found = find(checked, "unknown_option");
      REQUIRE(found != nullptr);
      return found->severity;
    };
    CHECK(severity("--kernel-env-url http://x") == Severity::warning);
    CHECK(severity("--rollout-max-respones-len 8192") == Severity::error);
  }
}

TEST_SUITE("What frameworks refuse") {
  TEST_CASE("DeepSpeed's schedules have a step, and ZeRO-3 reduces by the mean") {
    const auto ask = [](const std::string& more) {
      return ask_text("ds.json",
                      "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, "
                      "\"zero_optimization\": {\"stage\": 3}, " +
                          more + "}",
                      "qwen3-8b", 8);
    };
    const std::string schedule =
        "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": ";
    CHECK(find(ask(schedule + "0}}"), "refused_value") != nullptr);
    CHECK(find(ask(schedule + "1}}"), "refused_value") == nullptr);
    CHECK(find(ask("\"gradient_allreduce_op\": \"sum\""), "options_exclude") != nullptr);
    CHECK(find(ask("\"gradient_allreduce_op\": \"avg\""), "options_exclude") == nullptr);
  }

  TEST_CASE("schedules of torch's have no warm-up of DeepSpeed's, and machines have ranks") {
    const Checked torch =
        ask_text("ds.json",
                 "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 2}, "
                 "\"scheduler\": {\"type\": \"CosineAnnealingLR\", \"params\": {\"T_max\": 9, "
                 "\"warmup_num_steps\": 5}}}",
                 "qwen3-8b", 8);
    CHECK(find(torch, "unknown_parameter") != nullptr);
    const auto rank = [](const char* of) {
      return ask_text("a.yaml",
                      "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n"
                      "num_machines: 2\nnum_processes: 16\nmain_process_ip: 10.0.0.1\n"
                      "mixed_precision: bf16\nmachine_rank: " +
                          std::string(of) + "\n",
                      "qwen3-8b", 16);
    };
    CHECK(find(rank("2"), "machine_rank") != nullptr);
    CHECK(find(rank("1"), "machine_rank") == nullptr);
  }

  TEST_CASE("TRL's own module stops at what it does not know, and Liger has no masking") {
    const std::string words =
        "accelerate launch --num_processes 8 -m trl.scripts.grpo --config grpo.yaml\n";
    const auto ask = [&](const std::string& more) {
      return ask_texts({{"run.sh", words},
                        {"grpo.yaml",
                         "model_name_or_path: Qwen/Qwen3-8B\ndataset_name: d\noutput_dir: o\n"
                         "per_device_train_batch_size: 8\nnum_generations: 8\n" +
                             more}},
                       "qwen3-8b", 8);
    };
    const Checked slip = ask("max_completion_lenght: 512\n");
    REQUIRE(find(slip, "unknown_option") != nullptr);
    CHECK(find(slip, "unknown_option")->severity == Severity::error);
    CHECK(find(ask("off_policy_mask_threshold: 0.5\nuse_liger_kernel: true\n"),
               "options_exclude") != nullptr);
    CHECK(find(ask("off_policy_mask_threshold: 0.5\n"), "options_exclude") == nullptr);
  }

  TEST_CASE("what ms-swift says on top of a ds_config.json that is missing is no whole one") {
    const Checked checked = ask_text(
        "a.sh",
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --dataset d --tuner_type full "
        "--per_device_train_batch_size 1 --deepspeed $OUT/z.json --sequence_parallel_size 2\n",
        "qwen3-8b", 8);
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
  }

  TEST_CASE("data that ms-swift streams needs a number of steps") {
    const std::string plain = "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --dataset d ";
    CHECK(find(ask_text("a.sh", plain + "--streaming true\n", "qwen3-8b", 8), "option_needs") !=
          nullptr);
    CHECK(find(ask_text("a.sh", plain + "--streaming true --max_steps 9\n", "qwen3-8b", 8),
               "option_needs") == nullptr);
  }

  TEST_CASE("verl divides by a temperature and cuts prompts by four words") {
    const auto ask = [](const std::string& more) {
      return ask_text("a.sh",
                      "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B "
                      "actor_rollout_ref.actor.use_dynamic_bsz=True "
                      "trainer.n_gpus_per_node=8 trainer.nnodes=1 " +
                          more + "\n",
                      "qwen3-8b", 8);
    };
    CHECK(find(ask("actor_rollout_ref.rollout.temperature=0"), "refused_value") != nullptr);
    CHECK(find(ask("actor_rollout_ref.rollout.temperature=0.7"), "refused_value") == nullptr);
    CHECK(find(ask("data.truncation=cut"), "refused_value") != nullptr);
    CHECK(find(ask("data.truncation=left"), "refused_value") == nullptr);
  }

  TEST_CASE("NeMo-RL has one trainer, whatever its parent says") {
    const Checked checked =
        ask_text("grpo.yaml",
                 "defaults: grpo_math_1B.yaml\npolicy:\n  model_name: Qwen/Qwen3-8B\n"
                 "  dtensor_cfg:\n    enabled: true\n  megatron_cfg:\n    enabled: true\n",
                 "qwen3-8b", 8);
    CHECK_MESSAGE(find(checked, "two_trainers") != nullptr, findings_text(checked));
  }
}

}  // namespace
}  // namespace qplan
