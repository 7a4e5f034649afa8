// Megatron-Bridge's scripts/performance: a recipe by model, GPUs and format, and Megatron-FSDP.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/frameworks/megatron/bridge_program.h"
#include "planner/frameworks/model_of_files.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kCommand =
    "python3 scripts/performance/setup_experiment.py --account a --partition p \\\n"
    "  --model_family_name llama --model_recipe_name llama3_8b --gpu h100 \\\n"
    "  --num_gpus 8 --gpus_per_node 8 --compute_dtype bf16 --max_steps 50\n";

Checked ask(const std::string& text, std::int64_t gpus = 8) {
  return ask_text("launch.sh", text, "llama3-8b", gpus);
}

std::string errors(const Checked& checked) {
  std::string all;
  for (const Finding& found : checked.findings) {
    if (found.severity == Severity::error) all += found.rule + " ";
  }
  return all;
}

TEST_SUITE("Megatron-Bridge's performance scripts") {
  TEST_CASE("the recipe is that of the model, the GPUs and the format") {
    const Checked job = ask(kCommand);
    CHECK_MESSAGE(errors(job).empty(), findings_text(job));
    CHECK(job.framework == Framework::megatron_bridge);
    CHECK(job.says_plan);
    CHECK_FALSE(job.takes_less);
    CHECK(job.plan.cp == 2);  // perf_recipes/llama/h100/llama3.py
    CHECK(job.plan.tp == 1);
    CHECK(job.plan.global_batch_size == 128);
    CHECK(job.plan.seq_len == 8192);
    CHECK(job.plan.zero == 1);
    CHECK(job.plan.grad_dtype == DType::bf16);
    const Checked fp8 = ask(with_words(kCommand, "bf16", "fp8_cs"));
    CHECK(fp8.plan.precision == Precision::fp8);
    CHECK(fp8.plan.cp == 1);
    CHECK(fp8.plan.recompute.layers == 5);
    const std::vector<ConfigText> files{{"launch.sh", kCommand}};
    CHECK(model_id_of_files(read_job_files(files)) == "llama3-8b");
  }

  TEST_CASE("words stand on top of it, whatever the script is called") {
    const std::string own = with_words(
        with_words(kCommand, "setup_experiment.py", "custom_setup_experiment.py"), "--max_steps 50",
        "-tp 2 -pp 2 -cp 1 -mb 2 -gb 64 --recompute_modules core_attn,mlp -sl 4096");
    const Checked job = ask(own);
    CHECK_MESSAGE(errors(job).empty(), findings_text(job));
    CHECK(job.plan.tp == 2);
    CHECK(job.plan.sequence_parallel);  // as the script sets it beside tp
    CHECK(job.plan.pp == 2);
    CHECK(job.plan.cp == 1);
    CHECK(job.plan.micro_batch_size == 2);
    CHECK(job.plan.global_batch_size == 64);
    CHECK(job.plan.seq_len == 4096);
    CHECK(job.plan.recompute.kind == RecomputeKind::selective);
  }

  TEST_CASE("beginnings of names, names of 2025 and words for true are taken") {
    const std::string brief = with_words(kCommand, "--max_steps 50", "--max_step 50 --micro_b 2");
    CHECK_MESSAGE(errors(ask(brief)).empty(), findings_text(ask(brief)));
    CHECK(ask(brief).plan.micro_batch_size == 2);
    const std::string older =
        with_words(with_words(kCommand, "--model_family_name llama ", ""),
                   "--model_recipe_name llama3_8b", "--model_name llama3 --model_size 8b");
    CHECK(ask(older).plan.cp == 2);
    CHECK(ask(with_words(kCommand, "--max_steps 50", "--use_megatron_fsdp 1")).plan.zero == 3);
    CHECK(ask(with_words(kCommand, "--max_steps 50", "--use_megatron_fsdp 0")).plan.zero == 1);
  }

  TEST_CASE("a layout of the recipe's stages is none of others, and another GPU is said") {
    const std::string deep =
        "python scripts/performance/setup_experiment.py -m deepseek -mr deepseek_v3 -g gb300 "
        "-ng 256 -gn 4 -c fp8_mx ";
    const Checked stages = ask_text("launch.sh", deep + "-pp 8 -vp 2\n", "deepseek-v3", 256);
    CHECK(find(stages, "pipeline_layout") == nullptr);
    CHECK(stages.plan.pp == 8);
    const Finding* const other = find(stages, "other_gpu");
    REQUIRE_MESSAGE(other != nullptr, findings_text(stages));
    CHECK(other->message.find("gb300") != std::string::npos);
    const Finding* const format = find(stages, "precision_gpu");
    if (format != nullptr) CHECK(format->severity == Severity::note);
  }

  TEST_CASE("for another number of GPUs the batch grows with the ranks") {
    const Checked job = ask(with_words(kCommand, "--num_gpus 8", "--num_gpus 64"), 64);
    CHECK_MESSAGE(errors(job).empty(), findings_text(job));
    CHECK(job.plan.global_batch_size == 1024);
    CHECK(job.plan.dp == 32);
    const Checked other = ask(kCommand, 64);
    CHECK(find(other, "launched_world") != nullptr);
  }

  TEST_CASE("what the parser refuses is found at its word") {
    for (const auto& [from, to, rule] :
         {std::array<std::string, 3>{"--gpu h100", "--gpu a100", "refused_value"},
          {"bf16", "fp8", "refused_value"},
          {"--num_gpus 8", "--num_gpus 8 --context-parallel-size 2", "unknown_option"},
          {"--max_steps 50", "-tp 3", "kv_heads_divide"}}) {
      CAPTURE(to);
      const Checked checked = ask(with_words(kCommand, from, to));
      CHECK_MESSAGE(checked.has(Severity::error), findings_text(checked));
      if (rule != "kv_heads_divide") CHECK(find(checked, rule) != nullptr);
    }
  }

  TEST_CASE("Megatron-FSDP is read of a command, a program and a YAML") {
    const Checked command = ask(with_words(kCommand, "--max_steps 50", "--use_megatron_fsdp true"));
    CHECK(command.plan.zero == 3);
    CHECK(command.recipe == RecipeKind::megatron_fsdp);
    CHECK_MESSAGE(errors(command).empty(), findings_text(command));
    const std::string yaml =
        "model:\n  tensor_model_parallel_size: 1\n  seq_length: 4096\n"
        "train:\n  global_batch_size: 64\n  micro_batch_size: 1\n"
        "dataset:\n  seq_length: 4096\nddp:\n  use_megatron_fsdp: true\n";
    CHECK(ask_text("over.yaml", yaml, "llama3-8b", 8).plan.zero == 3);
    CHECK(ask_text("over.yaml", yaml + "  data_parallel_sharding_strategy: optim_grads\n",
                   "llama3-8b", 8)
              .plan.zero == 2);
    // Made whole, the section shards nothing unless it says so.
    const std::string program =
        "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\n"
        "cfg = llama3_8b_pretrain_config()\n"
        "cfg.ddp = DistributedDataParallelConfig(use_megatron_fsdp=True)\n";
    CHECK(ask_text("job.py", program, "llama3-8b", 8).plan.zero == 0);
  }

  TEST_CASE("a name that recipes and performance recipes have is two of them") {
    const KnownOption* const fast =
        known_bridge_recipe("perf_recipes.llama3_8b_pretrain_8gpu_h100_bf16_config");
    REQUIRE(fast != nullptr);
    CHECK(fast->otherwise.find("context_parallel_size=2") != std::string::npos);
    CHECK(known_bridge_recipe("llama3_8b_pretrain_config") != nullptr);
    CHECK(known_bridge_recipe("perf_recipes.llama3_8b_pretrain_config") == nullptr);
  }
}

}  // namespace
}  // namespace qplan
