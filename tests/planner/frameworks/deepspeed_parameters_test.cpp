// "params" of ds_config.json's optimizer and schedule, which go to constructors as they are.

#include <doctest/doctest.h>

#include <string>

#include "tests/planner/frameworks/fixed.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

std::string with_blocks(const std::string& blocks, int stage = 2) {
  return "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, "
         "\"zero_optimization\": {\"stage\": " +
         std::to_string(stage) + "}, " + blocks + "}";
}

std::string optimizer(const std::string& type, const std::string& params) {
  return "\"optimizer\": {\"type\": \"" + type + "\", \"params\": {" + params + "}}";
}

std::string schedule(const std::string& type, const std::string& params) {
  return "\"scheduler\": {\"type\": \"" + type + "\", \"params\": {" + params + "}}";
}

Checked ask(const std::string& blocks, int stage = 2) {
  return ask_text("ds_config.json", with_blocks(blocks, stage), "llama3-8b", 8);
}

}  // namespace

TEST_SUITE("ds_config.json's params") {
  TEST_CASE("parameters stay on the GPU below stage 3, which is a warning and no error") {
    for (const std::string device : {"cpu", "nvme"}) {
      const std::string text = with_words(with_blocks("\"steps_per_print\": 10"), "\"stage\": 2",
                                          "\"stage\": 2, \"offload_param\": {\"device\": \"" +
                                              device + "\", \"nvme_path\": \"/x\"}");
      const Checked checked = ask_text("ds_config.json", text, "llama3-8b", 8);
      CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
      REQUIRE(find(checked, "offload_below_stage") != nullptr);
      CHECK_FALSE(checked.plan.offload.params);
      CHECK_FALSE(checked.plan.offload.nvme);
    }
  }

  TEST_CASE("an optimizer's parameters are those of the class that DeepSpeed makes") {
    const Checked other = ask(optimizer("AdamW", "\"learning_rate\": 1e-5, \"weight_decy\": 0.1"));
    REQUIRE(find(other, "unknown_parameter") != nullptr);
    CHECK(find(other, "unknown_parameter")->severity == Severity::error);
    CHECK(find(other, "unknown_parameter")->message ==
          "AdamW takes no learning_rate, and Python stops");
    const std::string wrong = with_blocks(optimizer("AdamW", "\"learning_rate\": 1e-5"));
    CHECK(fixed_text("ds_config.json", wrong, "llama3-8b", 8) ==
          with_blocks(optimizer("AdamW", "\"lr\": 1e-5")));
    for (const std::string& right :
         {optimizer("AdamW", "\"lr\": \"auto\", \"betas\": [0.9, 0.95], \"eps\": 1e-8"),
          optimizer("Adam", "\"lr\": 1e-5, \"torch_adam\": true, \"adam_w_mode\": true"),
          optimizer("Lion", "\"lr\": 1e-5, \"weight_decay\": 0.1"),
          optimizer("Adagrad", "\"lr\": 1e-5, \"eps\": 1e-8")}) {
      CAPTURE(right);
      CHECK(find(ask(right), "unknown_parameter") == nullptr);
    }
    CHECK(find(ask(optimizer("Lion", "\"eps\": 1e-8")), "unknown_parameter") != nullptr);
    // Of classes of torch's, and of Muon, which takes what it knows.
    CHECK(find(ask(optimizer("NAdam", "\"momentum_decay\": 0.1")), "unknown_parameter") == nullptr);
    REQUIRE(find(ask(optimizer("Muon", "\"nesterov\": true")), "unknown_parameter") != nullptr);
    CHECK(find(ask(optimizer("Muon", "\"nesterov\": true")), "unknown_parameter")->severity ==
          Severity::warning);
  }

  TEST_CASE(
      "a schedule's parameters are those of its constructor, and none without a default is "
      "missing") {
    const Checked extra =
        ask(schedule("WarmupLR", "\"warmup_num_steps\": 10, \"total_num_steps\": 100"));
    REQUIRE(find(extra, "unknown_parameter") != nullptr);
    CHECK(find(extra, "unknown_parameter")->message ==
          "WarmupLR takes no total_num_steps, and Python stops");
    for (const std::string type : {"OneCycle", "LRRangeTest", "WarmupCosineLR"}) {
      CAPTURE(type);
      CHECK(find(ask(schedule(type, "\"warmup_max_lr\": 1e-4, \"total_num_steps\": 9")),
                 "unknown_parameter") != nullptr);
    }
    for (const std::string type : {"WarmupDecayLR", "WarmupCosineLR"}) {
      CAPTURE(type);
      REQUIRE(find(ask(schedule(type, "\"warmup_num_steps\": 10")), "option_needs") != nullptr);
      CHECK(find(ask(schedule(type, "\"warmup_num_steps\": 10")), "option_needs")->message ==
            type + " has no default of total_num_steps, and Python stops without it");
      CHECK(find(ask(schedule(type, "\"total_num_steps\": \"auto\"")), "option_needs") == nullptr);
    }
    CHECK(find(ask(schedule("OneCycle", "\"cycle_min_lr\": 1e-5")), "option_needs") != nullptr);
    for (const std::string& right :
         {schedule("WarmupDecayLR",
                   "\"total_num_steps\": \"auto\", \"warmup_min_lr\": \"auto\", \"warmup_max_lr\": "
                   "\"auto\", \"warmup_num_steps\": \"auto\""),
          schedule("OneCycle", "\"cycle_min_lr\": 1e-5, \"cycle_max_lr\": 1e-4"),
          schedule("StepLR", "\"step_size\": 5")}) {
      CAPTURE(right);
      CHECK(find(ask(right), "option_needs") == nullptr);
      CHECK(find(ask(right), "unknown_parameter") == nullptr);
    }
  }

  TEST_CASE("what DeepSpeed warns of and goes on is a warning") {
    const Checked form = ask(schedule("WarmupLR", "\"warmup_type\": \"cosine\""));
    REQUIRE(find(form, "warmup_type") != nullptr);
    CHECK(find(form, "warmup_type")->severity == Severity::warning);
    CHECK(find(ask(schedule("WarmupLR", "\"warmup_type\": \"linear\"")), "warmup_type") == nullptr);
    const Checked early = ask(schedule("WarmupDecayLR", "\"total_num_steps\": 100"));
    REQUIRE(find(early, "warmup_beyond_end") != nullptr);
    CHECK(find(early, "warmup_beyond_end")->severity == Severity::warning);
    CHECK(
        find(ask(schedule("WarmupDecayLR", "\"total_num_steps\": 100, \"warmup_num_steps\": 100")),
             "warmup_beyond_end") == nullptr);
  }

  TEST_CASE("ZeRO refuses an optimizer that it was not tested with, unless it is told") {
    for (const std::string type : {"Lamb", "SGD", "Adafactor", "RMSprop", "musgd"}) {
      CAPTURE(type);
      const std::string block = optimizer(type, "\"lr\": 1e-5");
      REQUIRE(find(ask(block), "untested_optimizer") != nullptr);
      CHECK(find(ask(block), "untested_optimizer")->severity == Severity::error);
      CHECK(find(ask(block, 0), "untested_optimizer") == nullptr);
      CHECK(find(ask(block + ", \"zero_allow_untested_optimizer\": true"), "untested_optimizer") ==
            nullptr);
    }
    for (const std::string type : {"Adam", "AdamW", "Adagrad", "Lion", "Muon", "muadam"}) {
      CAPTURE(type);
      CHECK(find(ask(optimizer(type, "\"lr\": 1e-5")), "untested_optimizer") == nullptr);
      CHECK(find(ask(optimizer(type, "\"lr\": 1e-5")), "unknown_optimizer") == nullptr);
    }
  }
}

}  // namespace qplan
