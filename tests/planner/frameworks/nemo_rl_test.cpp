// NeMo-RL's YAML: the plan, the job and the engines that it asks for, and what goes wrong with it.

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/rl/rl_step.h"
#include "tests/planner/frameworks/jobs.h"
#include "tests/planner/frameworks/rl_jobs.h"

namespace qplan {
namespace {

Checked ask_nemo(const std::string& from = "", const std::string& to = "", std::int64_t gpus = 32) {
  const std::string text = rl_fixture("nemo_async.yaml");
  return ask_texts({{"configs/nemo_async.yaml", from.empty() ? text : with_words(text, from, to)},
                    {"configs/nemo_base.yaml", rl_fixture("nemo_base.yaml")}},
                   "qwen3-30b-a3b", gpus);
}

TEST_SUITE("NeMo-RL") {
  TEST_CASE("a YAML is read on top of its parents") {
    const Checked checked = ask_nemo();
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    CHECK(checked.framework == Framework::nemo_rl);
    CHECK(checked.recipe == RecipeKind::megatron);
    const ParallelPlan& plan = checked.plan;
    CHECK(plan.dp == 16);
    CHECK(plan.ep == 8);
    CHECK(plan.zero == 1);
    CHECK(plan.grad_dtype == DType::bf16);
    CHECK(plan.overlap.has(OverlapKind::grad));
    CHECK(plan.recompute.kind == RecomputeKind::none);
    CHECK(plan.seq_len == 4096);  // "${mul:...}" of the child's micro-batch
    REQUIRE(checked.step.has_value());
    const RlJob& job = checked.step->job;
    CHECK(job.prompts == 64);
    CHECK(job.samples == 16);
    CHECK(job.rollout_gpus == 16);
    CHECK(job.staleness == 1);
    CHECK(job.packed);
    CHECK(checked.step->layout.tp == 2);
  }

  TEST_CASE("the parent alone is DTensor's job") {
    const Checked checked =
        ask_texts({{"nemo_base.yaml", rl_fixture("nemo_base.yaml")}}, "qwen3-8b", 8);
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    CHECK(checked.recipe == RecipeKind::fsdp2);
    CHECK(checked.plan.dp == 8);
    CHECK(checked.plan.recompute.kind == RecomputeKind::full);
    CHECK(checked.plan.seq_len == 8192);
  }

  TEST_CASE("engines have stages, and log-probabilities their logits") {
    const Checked checked = ask_nemo("tensor_parallel_size: 2",
                                     "tensor_parallel_size: 2\n      pipeline_parallel_size: 4");
    REQUIRE(checked.step.has_value());
    CHECK(checked.step->layout.pp == 4);
    CHECK(checked.step->layout.gpus() == 4 * ask_nemo().step->layout.gpus());
    CHECK(checked.step->job.logit_bytes == 10);
    CHECK(checked.step->job.pass_tokens > 0);
    const Checked chunked = ask_nemo("  train_global_batch_size: 1024",
                                     "  logprob_chunk_size: 512\n  train_global_batch_size: 1024");
    CHECK(chunked.step->job.logit_bytes == (chunked.recipe == RecipeKind::megatron ? 2 : 10));
  }

  TEST_CASE("what it asserts is found") {
    has_rule("two_trainers", ask_nemo("  dtensor_cfg:\n    enabled: false\n", ""));
    has_rule("async_colocated",
             ask_nemo("colocated:\n      enabled: false", "colocated:\n      enabled: true"));
    has_rule("no_engines", ask_nemo("num_nodes: 2", "num_nodes: 0"));
    has_rule("rollout_divisibility",
             ask_nemo("tensor_parallel_size: 2", "tensor_parallel_size: 3"));
    has_rule("rollout_experts", ask_nemo("tensor_parallel_size: 2",
                                         "tensor_parallel_size: 2\n      expert_parallel_size: 3"));
    has_rule("batch_arithmetic",
             ask_nemo("train_global_batch_size: 1024", "train_global_batch_size: 1000"));
    has_rule("launched_world", ask_nemo("num_nodes: 4", "num_nodes: 3"), "24");
    has_rule("unknown_option",
             ask_nemo("train_global_batch_size: 1024", "train_global_batch_sizes: 1024"),
             "policy.train_global_batch_sizes");
    has_rule("two_batchings",
             ask_nemo("  dtensor_cfg:", "  dynamic_batching:\n    enabled: true\n  dtensor_cfg:"));
    has_rule("unknown_option", ask_nemo("cluster:", "clusetr:"), "clusetr");
    const std::vector<ConfigText> alone{
        {"child.yaml", "defaults: ./parent.yaml\ngrpo:\n  seed: 1\n"}};
    has_rule("config_missing", ask_texts(alone, "qwen3-8b", 8), "parent.yaml");
  }

  TEST_CASE("a parent that is missing leaves no plan, unless nothing hangs on it") {
    const auto ask = [](const std::string& from, const std::string& to) {
      const std::string text = with_words(rl_fixture("nemo_base.yaml"), from, to);
      return ask_texts({{"child.yaml", "defaults: parent.yaml\n" + text}}, "qwen3-8b", 8);
    };
    const Checked whole = ask("cpu_offload: false", "cpu_offload: false");
    CHECK_MESSAGE(whole.findings.empty(), findings_text(whole));
    CHECK(whole.says_plan);
    for (const std::string part : {"  train_micro_batch_size: 2\n", "    cpu_offload: false\n",
                                   "  dynamic_batching:\n    enabled: false\n"}) {
      CAPTURE(part);
      const Checked open = ask(part, "");
      has_rule("config_missing", open, "parent.yaml");
      CHECK(open.findings.size() == 1);
      CHECK_FALSE(open.says_plan);
      CHECK_FALSE(open.step.has_value());
    }
  }
}

TEST_SUITE("NeMo-RL's names and values") {
  Checked base(const std::string& from, const std::string& to) {
    return ask_texts({{"nemo_base.yaml", with_words(rl_fixture("nemo_base.yaml"), from, to)}},
                     "qwen3-8b", 8);
  }

  TEST_CASE("a section that was misspelt is an error, once, whatever stands in it") {
    for (const auto& [from, to] : {std::pair{"cluster:", "clusetr:"},
                                   {"  generation:", "  gneeration:"},
                                   {"  sequence_packing:", "  sequence_pakcing:"},
                                   {"    vllm_cfg:", "    vlm_cfg:"}}) {
      CAPTURE(to);
      const Checked checked = base(from, to);
      const auto errors =
          std::count_if(checked.findings.begin(), checked.findings.end(), [](const Finding& f) {
            return f.rule == "unknown_option" && f.severity == Severity::error;
          });
      CHECK_MESSAGE(errors == 1, findings_text(checked));
    }
    // A section that nobody has is one of the user's own; a child's may be its parent's again.
    CHECK(find(base("cluster:", "mine:\n  a: 1\ncluster:"), "unknown_option") == nullptr);
  }

  TEST_CASE("values are of the types that it holds them against") {
    const auto refused = [](const std::string& from, const std::string& to,
                            const std::string& words) {
      CAPTURE(to);
      has_rule("refused_value", base(from, to), words);
    };
    refused("max_total_sequence_length: 4096", "max_total_sequence_length: abc", "a whole number");
    refused("num_prompts_per_step: 32", "num_prompts_per_step: 32.5", "a whole number");
    refused("train_micro_batch_size: 2", "train_micro_batch_size: abc", "a whole number");
    refused("train_micro_batch_size: 2", "train_micro_batch_size: 2\n  precision: bf61",
            "float32, bfloat16, float16");
    refused("gpu_memory_utilization: 0.6", "gpu_memory_utilization: 60", "from 0 to 1");
    refused("cpu_offload: false", "cpu_offload: flase", "true or false");
    refused("gpus_per_node: 8", "gpus_per_node: eight", "a whole number");
    CHECK(find(base("max_total_sequence_length: 4096",
                    "max_total_sequence_length: ${grpo.num_prompts_per_step}"),
               "refused_value") == nullptr);
  }
}

}  // namespace
}  // namespace qplan
