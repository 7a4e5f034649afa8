// What other programs, forks and releases may read otherwise is no error of this one's.

#include <doctest/doctest.h>

#include <string>

#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const Finding* error_of(const Checked& checked, const std::string& rule) {
  const Finding* const found = find(checked, rule);
  return found != nullptr && found->severity == Severity::error ? found : nullptr;
}

TEST_SUITE("other programs' words") {
  TEST_CASE("--zero-stage of a program that has none of Megatron's is its own") {
    const std::string own =
        "python train_math.py --gpus 8 --bf16 --zero-stage 2 --pretrain x --learning_rate 1e-6\n";
    const Checked checked = ask_text("run.sh", own, "llama3-8b", 8);
    CHECK_MESSAGE(find(checked, "pipeline_module") == nullptr, findings_text(checked));
    const std::string fork =
        "deepspeed pretrain_gpt.py --zero-stage 2 --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --micro-batch-size 1 --global-batch-size 8 --seq-length 4096 "
        "--max-position-embeddings 4096 --deepspeed\n";
    CHECK(find(ask_text("run.sh", fork, "llama2-7b", 8), "pipeline_module") != nullptr);
  }

  TEST_CASE("one name that one fork of Megatron's has is a warning") {
    const std::string job =
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --ffn-hidden-size 11008 --swiglu --micro-batch-size 1 "
        "--global-batch-size 8 --seq-length 4096 --max-position-embeddings 4096 --bf16 "
        "--train-iters 10 --lr 1e-4 ";
    const Checked fork = ask_text("run.sh", job + "--use-mpi\n", "llama2-7b", 8);
    const Finding* const found = find(fork, "unknown_option");
    REQUIRE_MESSAGE(found != nullptr, findings_text(fork));
    CHECK(found->severity == Severity::warning);
    CHECK(found->message.find("llm-jp") != std::string::npos);
    // What two forks kept of Megatron's first years stops today's.
    CHECK(error_of(ask_text("run.sh", job + "--data-impl mmap\n", "llama2-7b", 8),
                   "unknown_option") != nullptr);
    // A slip of a name of Megatron's stays one, though a fork has it.
    CHECK(error_of(ask_text("run.sh", job + "--save-dir /x\n", "llama2-7b", 8), "unknown_option") !=
          nullptr);
  }

  TEST_CASE("names that all have underscores are Megatron-LLM's") {
    const std::string job =
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num_layers 32 --hidden_size 4096 "
        "--num_attention_heads 32 --micro_batch_size 1 --global_batch_size 8 --seq_length 4096 "
        "--max_position_embeddings 4096 --tensor_model_parallel_size 2 --bf16\n";
    const Checked fork = ask_text("run.sh", job, "llama2-7b", 8);
    CHECK_MESSAGE(error_of(fork, "unknown_option") == nullptr, findings_text(fork));
    const std::string one = with_words(job, "--num_layers", "--num-layers");
    CHECK(error_of(ask_text("run.sh", one, "llama2-7b", 8), "unknown_option") != nullptr);
  }

  TEST_CASE("a key that verl got later may be added with + before it") {
    const std::string job =
        "python3 -m verl.trainer.main_ppo data.train_batch_size=256 "
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.n_gpus_per_node=8 trainer.nnodes=1 ";
    const Checked later =
        ask_text("run.sh", job + "+trainer.val_before_train=False\n", "qwen3-8b", 8);
    const Finding* const found = find(later, "key_is_there");
    REQUIRE_MESSAGE(found != nullptr, findings_text(later));
    CHECK(found->severity == Severity::warning);
    CHECK(error_of(ask_text("run.sh", job + "+trainer.total_epochs=3\n", "qwen3-8b", 8),
                   "key_is_there") != nullptr);
  }

  TEST_CASE("a script that is called as TRL's and stands in a package of its own is another") {
    const std::string words =
        " --model_name_or_path Qwen/Qwen3-8B --max_prompt_length 512 --num_generations 8 "
        "--per_device_train_batch_size 1 --output_dir x\n";
    const Checked own = ask_text(
        "run.sh", "torchrun --nproc_per_node 8 src/open_r1/grpo.py" + words, "qwen3-8b", 8);
    CHECK_MESSAGE(error_of(own, "unknown_option") == nullptr, findings_text(own));
    CHECK(error_of(ask_text("run.sh", "torchrun --nproc_per_node 8 grpo.py" + words, "qwen3-8b", 8),
                   "unknown_option") != nullptr);
  }

  TEST_CASE("blocks of ds_config.json that are models stop at unknown keys") {
    const Checked checked =
        ask_text("ds.json",
                 "{\"zero_optimization\": {\"stage\": 2}, \"train_micro_batch_size_per_gpu\": 1,\n"
                 "\"fp16\": {\"enabled\": true, \"opt_level\": \"O2\"}}\n",
                 "llama3-8b", 8);
    const Finding* const found = find(checked, "unknown_option");
    REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
    CHECK(found->message.find("refuses") != std::string::npos);
  }

  TEST_CASE("what the command says counts, and the accelerate yaml's own is not looked at") {
    const std::string yaml =
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
        "deepspeed_config:\n  zero_stage: 3\nmixed_precision: no\nnum_machines: 1\n"
        "num_processes: 8\n";
    const auto asked = [&](const std::string& option) {
      return ask_texts(
          {{"zero3.yaml", yaml},
           {"run.sh", "accelerate launch --config_file zero3.yaml " + option +
                          "train.py --per_device_train_batch_size 1 --output_dir x\n"}},
          "llama3-8b", 8);
    };
    CHECK(error_of(asked(""), "refused_value") != nullptr);
    CHECK_MESSAGE(error_of(asked("--mixed_precision bf16 "), "refused_value") == nullptr,
                  findings_text(asked("--mixed_precision bf16 ")));
  }

  TEST_CASE("arguments of miles are notes of slime's jobs") {
    const std::string job =
        "ray job submit -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 "
        "--colocate --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 "
        "--num-layers 36 --hidden-size 4096 --num-attention-heads 32 --tensor-model-parallel-size "
        "2 "
        "--hf-checkpoint x --micro-batch-size 1 ";
    const Checked checked = ask_text("run.sh", job + "--lora-rank 32\n", "qwen3-8b", 8);
    const Finding* const found = find(checked, "unknown_option");
    REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
    CHECK(found->severity == Severity::note);
    CHECK(find(ask_text("run.sh", job + "--lora-ranks 32\n", "qwen3-8b", 8), "unknown_option") !=
          nullptr);
  }

  TEST_CASE("Megatron's tree of fields is read as its arguments") {
    const std::string tree =
        "language_model:\n  num_layers: 24\n  hidden_size: 1024\n  num_attention_heads: 16\n"
        "  num_query_groups: null\n  layernorm_epsilon: 1.e-5\n  add_bias_linear: False\n"
        "  activation_func: swiglu\n  recompute_granularity: null\n  kv_channels: null\n"
        "model_parallel:\n  tensor_model_parallel_size: 2\n  pipeline_model_parallel_size: 1\n"
        "  fp16: False\n  bf16: True\n  sequence_parallel: True\n"
        "micro_batch_size: 2\nglobal_batch_size: 128\nseq_length: 4096\n"
        "max_position_embeddings: 4096\nnum_layers_per_virtual_pipeline_stage: null\n";
    const Checked checked = ask_text("gpt_config.yaml", tree, "llama3-8b", 8);
    CHECK_MESSAGE(find(checked, "unknown_option") == nullptr, findings_text(checked));
    CHECK_MESSAGE(find(checked, "two_precisions") == nullptr, findings_text(checked));
    CHECK_MESSAGE(find(checked, "bad_value") == nullptr, findings_text(checked));
    CHECK(checked.plan.tp == 2);
    CHECK(checked.plan.sequence_parallel);
    const Checked slip =
        ask_text("gpt_config.yaml", with_words(tree, "global_batch_size", "global_bach_size"),
                 "llama3-8b", 8);
    CHECK(error_of(slip, "unknown_option") != nullptr);
  }

  TEST_CASE("one word of Megatron's among a Trainer's is told, and makes it no job of Megatron's") {
    const std::string job =
        "deepspeed train.py --deepspeed z.json --tensor-model-parallel-size 2 --bf16 True "
        "--model_name_or_path x --per_device_train_batch_size 1 --gradient_accumulation_steps 2 "
        "--output_dir x --num_train_epochs 1 --learning_rate 1e-5 --weight_decay 0.1 "
        "--lr_scheduler_type cosine --logging_steps 1 --gradient_checkpointing True\n";
    const Checked checked = ask_text("run.sh", job, "llama3-8b", 8);
    CHECK_MESSAGE(find(checked, "pipeline_module") == nullptr, findings_text(checked));
    const Finding* const found = find(checked, "unknown_option");
    REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
    CHECK(found->severity == Severity::warning);
  }

  TEST_CASE("uv starts Python") {
    const Checked module = ask_text(
        "run.sh",
        "uv run --isolated --extra vllm -m verl.trainer.main_ppo data.train_batch_size=256 "
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.n_gpus_per_node=8 trainer.nnodes=1 "
        "trainer.nnnodes=1\n",
        "qwen3-8b", 8);
    CHECK(module.framework == Framework::verl);
    CHECK(error_of(module, "unknown_option") != nullptr);
  }

  TEST_CASE("arguments of run_clm.py are of other types in another script") {
    const auto asked = [](const std::string& script) {
      return ask_text("run.sh",
                      "torchrun --nproc_per_node 8 " + script +
                          " --model_name_or_path x --per_device_train_batch_size 1 --output_dir x "
                          "--validation_split_percentage 0.001\n",
                      "llama3-8b", 8);
    };
    CHECK(error_of(asked("run_clm.py"), "refused_value") != nullptr);
    CHECK(error_of(asked("run_clm_pt_with_peft.py"), "refused_value") == nullptr);
  }

  TEST_CASE("a script that a variable fills is read where it is handed over") {
    const Checked checked =
        ask_text("launch.sh",
                 "worker_command=$(cat <<- EOM\n  nice -10 \\\n  python "
                 "scripts/custom_setup_experiment.py \\\n"
                 "    --gpu h100 --model_family_name llama --model_recipe_name llama3_8b \\\n"
                 "    --num_gpus 16 --compute_dtype bf16 -tp 2\nEOM\n)\n"
                 "echo \"$worker_command\" > worker_command.sh\n"
                 "torchrun --nproc-per-node=8 --nnodes=2 --no-python bash worker_command.sh\n",
                 "llama3-8b", 16);
    CHECK_MESSAGE(find(checked, "nothing_to_check") == nullptr, findings_text(checked));
    CHECK(checked.framework == Framework::megatron_bridge);
    CHECK(checked.plan.tp == 2);
  }

  TEST_CASE("a launcher's option is wrong whatever its value is") {
    const Checked checked =
        ask_text("run.sh",
                 "N=$(nvidia-smi -L | wc -l)\ntorchrun --nproc_per_nodes=${N} train.py "
                 "--model_name_or_path x --per_device_train_batch_size 1 --output_dir x\n",
                 "llama3-8b", 8);
    CHECK_MESSAGE(error_of(checked, "unknown_option") != nullptr, findings_text(checked));
  }

  TEST_CASE("configurations of others have their name") {
    const auto message = [](const std::string& text) {
      const Checked checked = ask_text("x.yaml", text, "llama3-8b", 8);
      const Finding* const found = find(checked, "unknown_file");
      return found == nullptr ? std::string() : found->message;
    };
    CHECK(message("trainer:\n  devices: 8\n  num_nodes: 2\nexp_manager:\n  name: x\n"
                  "model:\n  tensor_model_parallel_size: 2\n  hidden_size: 4096\n")
              .find("NeMo") != std::string::npos);
    CHECK(message("trainer:\n  nnodes: 1\ndata:\n  n_samples: 5\nrollout:\n  temperature: 1.0\n"
                  "  tensor_model_parallel_size: 2\n")
              .find("verl") != std::string::npos);
  }
}

}  // namespace
}  // namespace qplan
