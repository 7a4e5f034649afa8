// nanotron's YAML.

#include "planner/frameworks/pretraining/nanotron.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/frameworks/model_of_files.h"
#include "tests/planner/frameworks/fixed.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kNanoJob =
    "checkpoints:\n  checkpoint_interval: 100\n  checkpoints_path: /ckpt\n"
    "data_stages:\n- data:\n    dataset: null\n    seed: 42\n  name: Stable\n"
    "  start_training_step: 1\n"
    "general:\n  project: debug\n"
    "model:\n  dtype: bfloat16\n  init_method:\n    std: 0.025\n  model_config:\n"
    "    hidden_size: 4096\n    intermediate_size: 14336\n    is_llama_config: true\n"
    "    max_position_embeddings: 8192\n    num_attention_heads: 32\n    num_hidden_layers: 32\n"
    "    num_key_value_heads: 8\n    rope_theta: 500000.0\n    tie_word_embeddings: false\n"
    "    vocab_size: 128256\n"
    "optimizer:\n  accumulate_grad_in_fp32: true\n  clip_grad: 1.0\n"
    "  learning_rate_scheduler:\n    learning_rate: 0.0003\n    lr_decay_style: cosine\n"
    "    lr_warmup_style: linear\n"
    "  optimizer_factory:\n    adam_beta1: 0.9\n    adam_beta2: 0.95\n    adam_eps: 1.0e-08\n"
    "    name: adamW\n    torch_adam_is_fused: true\n  weight_decay: 0.01\n  zero_stage: 1\n"
    "parallelism:\n  dp: 2\n  pp: 2\n  pp_engine: 1f1b\n  tp: 4\n"
    "  tp_linear_async_communication: true\n  tp_mode: REDUCE_SCATTER\n  recompute_layer: true\n"
    "tokens:\n  batch_accumulation_per_replica: 8\n  micro_batch_size: 2\n"
    "  sequence_length: 4096\n  train_steps: 1000\n";

int line_of_words(const std::string& words) {
  return line_of(kNanoJob, kNanoJob.find(words));
}

Checked ask_nano(const std::string& from = "", const std::string& to = "", std::int64_t gpus = 16) {
  return ask_text("job.yaml", from.empty() ? kNanoJob : with_words(kNanoJob, from, to), "llama3-8b",
                  gpus);
}

void refuses_words(std::string_view rule, const std::string& from, const std::string& to) {
  const Checked checked = ask_nano(from, to);
  const Finding* const found = find(checked, std::string(rule));
  REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
  CHECK(found->severity == Severity::error);
  CHECK_MESSAGE(found->place.line == line_of_words(from), findings_text(checked));
}

TEST_SUITE("nanotron's YAML") {
  TEST_CASE("is a plan of its recipe") {
    const Checked checked = ask_nano();
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
    CHECK_MESSAGE(!checked.has(Severity::warning), findings_text(checked));
    CHECK(checked.framework == Framework::nanotron);
    CHECK(checked.recipe == RecipeKind::nanotron);
    const ParallelPlan& plan = checked.plan;
    CHECK(plan.dp == 2);
    CHECK(plan.pp == 2);
    CHECK(plan.tp == 4);
    CHECK(plan.sequence_parallel);
    CHECK(plan.overlap.has(OverlapKind::tp));
    CHECK(plan.schedule == ScheduleKind::one_f_one_b);
    CHECK(plan.recompute.kind == RecomputeKind::full);
    CHECK(plan.zero == 1);
    CHECK(plan.grad_dtype == DType::fp32);
    CHECK(plan.micro_batch_size == 2);
    CHECK(plan.global_batch_size == 32);
    CHECK(plan.seq_len == 4096);
    CHECK(ask_nano("  pp_engine: 1f1b\n", "").plan.schedule == ScheduleKind::gpipe);
  }

  TEST_CASE("describes its model and its GPUs") {
    const auto files = read_job_files(std::vector<ConfigText>{{"job.yaml", kNanoJob}});
    const auto model = model_of_files(files);
    REQUIRE(model.has_value());
    const ModelSpec spec = read_model(model->config, "the file's");
    CHECK(count_parameters(spec).total() == count_parameters(load_model("llama3-8b")).total());
    CHECK(ranks_of_nanotron(files.parts.front().settings) == 16);
    // Of experts and of classes that a program brings the shapes are not read.
    const auto config = [](const std::string& to) {
      const auto other = read_job_files(
          std::vector<ConfigText>{{"job.yaml", with_words(kNanoJob, "is_llama_config", to)}});
      return config_of_nanotron(other.parts.front().settings);
    };
    CHECK(config("is_mamba_config").is_null());
    CHECK(!config("is_qwen2_config").is_null());
  }

  TEST_CASE("is held against the keys and types of its classes") {
    refuses_words("unknown_option", "micro_batch_size", "micro_batch_sizes");
    refuses_words("unknown_option", "parallelism:", "paralelism:");
    refuses_words("unknown_option", "start_training_step", "start_trainig_step");
    refuses_words("refused_value", "tp: 4", "tp: \"4\"");
    refuses_words("refused_value", "learning_rate: 0.0003", "learning_rate: 3e-4");
    refuses_words("bad_value", "micro_batch_size: 2", "micro_batch_size: 0");
    refuses_words("refused_value", "accumulate_grad_in_fp32: true", "accumulate_grad_in_fp32: 1");
    refuses_words("refused_value", "lr_warmup_style: linear", "lr_warmup_style: cosine");
    refuses_words("bad_value", "pp_engine: 1f1b", "pp_engine: 1f2b");
    refuses_words("bad_value", "dtype: bfloat16", "dtype: bf16");
    const Checked other = ask_nano("general:", "doremi:\n  x: 1\ngeneral:");
    CHECK(find(other, "unknown_option")->severity == Severity::warning);
  }

  TEST_CASE("stops without what has no default") {
    const auto missing = [](const std::string& words) {
      const Checked checked = ask_nano(words, "");
      return find(checked, "missing_option") != nullptr;
    };
    CHECK(missing("  dp: 2\n"));
    CHECK(missing("  micro_batch_size: 2\n"));
    CHECK(missing("  zero_stage: 1\n"));
    CHECK(missing("  project: debug\n"));
    CHECK_FALSE(missing("  recompute_layer: true\n"));
  }

  TEST_CASE("what it refuses of several keys") {
    refuses_words("option_needs", "tp_linear_async_communication: true\n  tp_mode: REDUCE_SCATTER",
                  "tp_linear_async_communication: true\n  tp_mode: ALL_REDUCE");
    refuses_words("expert_parallel_mesh", "  recompute_layer: true", "  expert_parallel_size: 2");
    refuses_words("shape_heads", "num_key_value_heads: 8", "num_key_value_heads: 6");
    refuses_words("shape_heads", "num_attention_heads: 32", "num_attention_heads: 2");
    refuses_words("data_stages", "start_training_step: 1", "start_training_step: 5");
    refuses_words("other_model", "num_hidden_layers: 32", "num_hidden_layers: 16");
    refuses_words("zero_above_one", "zero_stage: 1", "zero_stage: 2");
    CHECK(find(ask_nano("", "", 8), "world_size") != nullptr);
  }

  TEST_CASE("keys of older releases are a note") {
    const Checked checked = ask_nano("  recompute_layer: true", "  recompute_granularity: null");
    REQUIRE(find(checked, "dropped_option") != nullptr);
    CHECK(find(checked, "dropped_option")->severity == Severity::note);
  }

  TEST_CASE("is corrected in place") {
    const auto fixed = [](const std::string& from, const std::string& to) {
      return fixed_text("job.yaml", with_words(kNanoJob, from, to), "llama3-8b", 16);
    };
    CHECK(fixed("micro_batch_size", "micro_bath_size") == kNanoJob);
    CHECK(fixed("parallelism:", "paralelism:") == kNanoJob);
    CHECK(fixed("tp: 4", "tp: \"4\"") == kNanoJob);
    CHECK(fixed("lr_decay_style: cosine", "lr_decay_style: cosin") == kNanoJob);
    CHECK(fixed("learning_rate: 0.0003", "learning_rate: 3e-4") ==
          with_words(kNanoJob, "0.0003", "3.0e-4"));
  }
}

}  // namespace
}  // namespace qplan
