// What TRL refuses of its arguments.

#include <array>

#include "planner/frameworks/finetuning/trap.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;
using Trap = FineTuningTrap;

constexpr std::string_view kTrlSft = "TRL f2cd5771, trl/trainer/sft_trainer.py";
constexpr std::string_view kTrlGrpo = "TRL f2cd5771, trl/trainer/grpo_config.py";

constexpr auto kTrlTraps = std::to_array<Trap>({
    {"option_needs", error, "--padding_free",
     [](const Case& c) {
       return c.on("--padding_free") && !c.on("--packing") && c.is("verb", "sft", "sft") &&
              !c.is("--max_length", "none", "1024");
     },
     "padding_free without packing does not cut samples to max_length, whose default is 1024",
     "--packing true", kTrlSft},
    {"packing_attention", warning, "--packing",
     [](const Case& c) {
       const std::string kernels = c.word("--attn_implementation");
       return c.on("--packing") && kernels.find("flash") == std::string::npos &&
              c.is("--packing_strategy", "bfd", "bfd");
     },
     "samples that are packed attend to each other without FlashAttention",
     "--attn_implementation flash_attention_2", kTrlSft},
    {"options_exclude", error, "--auto_find_batch_size",
     [](const Case& c) { return c.on("--auto_find_batch_size") && c.is("verb", "grpo"); },
     "grpo's batch holds whole groups of answers, which auto_find_batch_size would split",
     "--per_device_train_batch_size, smaller", kTrlGrpo},
    {"option_needs", error, "--log_completions_hub_repo",
     [](const Case& c) { return !c.on("--log_completions"); },
     "log_completions_hub_repo needs log_completions", "--log_completions true", kTrlGrpo},
});

}  // namespace

std::span<const Trap> trl_traps() {
  return kTrlTraps;
}

}  // namespace qplan
