// What Megatron-Bridge's configurations hold, in Python: names, types, presets, and several recipes
// in a file.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kHead =
    "from megatron.bridge.recipes.qwen import qwen3_8b_pretrain_config\n"
    "from megatron.bridge.training.pretrain import pretrain\n";

Checked ask(const std::string& text) {
  const ModelSpec model = load_model("qwen3-8b");
  const Json config = model_config("qwen3-8b");
  const std::vector<ConfigText> files{{"job.py", text}};
  return check_cited(files, question_of(model, config, 8));
}

// Of a configuration that is right but for these lines.
Checked ask_lines(const std::string& lines) {
  return ask(kHead +
             "cfg = qwen3_8b_pretrain_config()\ncfg.model.tensor_model_parallel_size = 2\n" +
             lines + "pretrain(cfg)\n");
}

bool says(const Checked& checked, const std::string& rule, const std::string& part) {
  for (const Finding& f : checked.findings) {
    const std::string text = f.message + "; " + f.instead;
    if (f.rule == rule && text.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST_SUITE("Megatron-Bridge's configurations in Python") {
  TEST_CASE("values of another type, and words that are none, are told") {
    CHECK(says(ask_lines("cfg.train.global_batch_size = \"256\"\n"), "refused_value",
               "a whole number"));
    CHECK(says(ask_lines("cfg.model.sequence_parallel = \"yes\"\n"), "refused_value",
               "true or false"));
    CHECK(says(ask_lines("cfg.mixed_precision = \"bf16_mixd\"\n"), "refused_value",
               "did you mean bf16_mixed?"));
    CHECK(says(ask_lines("cfg.mixed_precision = \"bf16_with_fp8_curent_scaling_mixed\"\n"),
               "refused_value", "bf16_with_fp8_current_scaling_mixed"));
    for (const char* fine :
         {"cfg.mixed_precision = \"bf16-mixed\"\n",
          "cfg.mixed_precision = \"bf16_with_fp8_subchannel_scaling_mixed\"\n",
          "cfg.train.global_batch_size = 256\n", "cfg.optimizer.lr = 1e-4\n",
          "cfg.model.sequence_parallel = True\n", "cfg.model.seq_length = N\n"}) {
      const Checked checked = ask_lines(fine);
      CAPTURE(fine);
      CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
    }
  }

  TEST_CASE("a field that no section has is a warning, for a later release may have it") {
    for (const std::string field : {"model.tensor_parallel_size = 4", "optimizer.learning_rate = 1",
                                    "train.save_interval = 100"}) {
      CAPTURE(field);
      const Checked checked = ask_lines("cfg." + field + "\n");
      REQUIRE(find(checked, "unknown_option") != nullptr);
      CHECK(find(checked, "unknown_option")->severity == Severity::warning);
    }
    CHECK(says(ask_lines("cfg.model.tensor_parallel_size = 4\n"), "unknown_option",
               "did you mean tensor_model_parallel_size?"));
    for (const std::string field : {"model.use_fused_mhc = True", "model._builder = f",
                                    "model.expert_model_parallel_size = 1"}) {
      CAPTURE(field);
      CHECK(find(ask_lines("cfg." + field + "\n"), "unknown_option") == nullptr);
    }
  }

  TEST_CASE("a section that is a slip away is told, and another object's is not") {
    CHECK(says(ask_lines("cfg.optimzer.lr = 1e-4\n"), "unknown_option",
               "did you mean optimizer.lr?"));
    CHECK(!says(ask_lines("other.optimzer.lr = 1e-4\n"), "unknown_option", "optimizer"));
  }

  TEST_CASE("of several recipes in a file one is judged, and which is said") {
    const std::string two =
        kHead +
        "def a():\n  cfg = qwen3_8b_pretrain_config()\n"
        "  cfg.mixed_precision = \"bf16_with_fp8_current_scaling_mixed\"\n"
        "  cfg.model.tensor_model_parallel_size = 4\n  return cfg\n\n"
        "def b():\n  cfg = qwen3_8b_pretrain_config()\n  cfg.mixed_precision = \"bf16_mixed\"\n"
        "  cfg.model.tensor_model_parallel_size = 2\n  return cfg\n";
    const Checked first = ask(two);
    CHECK(says(first, "several_configurations", "a's is judged"));
    CHECK(first.plan.tp == 4);
    CHECK(first.plan.precision == Precision::fp8);
    const Checked called = ask(two + "\npretrain(b())\n");
    CHECK(says(called, "several_configurations", "b's is judged"));
    CHECK(called.plan.tp == 2);
    CHECK(called.plan.precision == Precision::bf16);
    // What one function calls goes on with its configuration.
    const Checked helped = ask(kHead +
                               "def common(cfg):\n  cfg.model.tensor_model_parallel_size = 4\n\n"
                               "def a():\n  cfg = qwen3_8b_pretrain_config()\n  common(cfg)\n"
                               "  cfg.model.tensor_model_parallel_size = 2\n  return cfg\n");
    CHECK(!says(helped, "several_configurations", ""));
    CHECK(helped.plan.tp == 2);
  }
}

}  // namespace
}  // namespace qplan
