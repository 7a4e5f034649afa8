// What TRL refuses of its arguments.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "planner/frameworks/finetuning/trap.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;
using Trap = FineTuningTrap;

constexpr std::string_view kTrlSft = "TRL f2cd5771, trl/trainer/sft_trainer.py";
constexpr std::string_view kQuantizedAlone =
    "transformers 5.23.0, src/transformers/trainer_utils.py:131";
constexpr std::string_view kTrlGrpo = "TRL f2cd5771, trl/trainer/grpo_config.py";

constexpr std::string_view kTrlTrainer = "TRL f2cd5771, trl/trainer/grpo_trainer.py:786";

constexpr auto kTrlTraps = std::to_array<Trap>({
    {"option_needs", error, "--padding_free",
     [](const Case& c) {
       return c.on("--padding_free") && !c.on("--packing") && c.is("verb", "sft", "sft") &&
              !c.is("--max_length", "none", "1024");
     },
     "padding_free without packing does not cut samples to max_length, whose default is 1024",
     "--packing true", kTrlSft},
    {"options_exclude", error, "--fp16",
     [](const Case& c) { return c.on("--fp16") && c.on("--bf16"); },
     "--fp16 and --bf16 exclude each other", "keep one of them",
     "transformers 5.23.0, src/transformers/training_args.py (__post_init__)"},
    {"packing_attention", warning, "--packing",
     [](const Case& c) {
       const std::string kernels = c.word("--attn_implementation");
       return c.on("--packing") && kernels.find("flash") == std::string::npos &&
              c.is("--packing_strategy", "bfd", "bfd");
     },
     "samples that are packed attend to each other without FlashAttention",
     "--attn_implementation flash_attention_2", kTrlSft},
    {"quantized_full", error, "--load_in_4bit",
     [](const Case& c) { return c.on("--load_in_4bit") && !c.on("--use_peft"); },
     "weights of 4 bits cannot be trained: the Trainer stops without adapters beside them",
     "--use_peft true", kQuantizedAlone},
    {"quantized_full", error, "--load_in_8bit",
     [](const Case& c) { return c.on("--load_in_8bit") && !c.on("--use_peft"); },
     "weights of 8 bits cannot be trained: the Trainer stops without adapters beside them",
     "--use_peft true", kQuantizedAlone},
    {"options_exclude", error, "--load_in_8bit",
     [](const Case& c) { return c.on("--load_in_8bit") && c.on("--load_in_4bit"); },
     "weights of 4 bits and of 8 exclude each other", "keep one of them",
     "TRL f2cd5771, trl/trainer/model_config.py:174"},
    {"refused_value", error, "--packing_strategy",
     [](const Case& c) {
       const std::string way = c.word("--packing_strategy");
       return !way.empty() && way.find('$') == std::string::npos && way != "bfd" &&
              way != "bfd_split" && way != "wrapped" &&
              way != "bfd-requeue" &&                    // of older releases, and taken
              (way != "ffd" || c.part.script == "trl");  // bfd's name in 0.18
     },
     "--packing_strategy must be one of bfd, bfd_split, wrapped", "",
     "TRL f2cd5771, trl/trainer/sft_config.py:238"},
    {"options_exclude", error, "--auto_find_batch_size",
     [](const Case& c) { return c.on("--auto_find_batch_size") && c.is("verb", "grpo"); },
     "grpo's batch holds whole groups of answers, which auto_find_batch_size would split",
     "--per_device_train_batch_size, smaller", kTrlGrpo},
    {"options_exclude", error, "--off_policy_mask_threshold",
     [](const Case& c) { return c.on("--use_liger_kernel") && c.is("verb", "grpo"); },
     "Liger's loss has no off-policy masking, and TRL stops", "--use_liger_kernel false",
     kTrlTrainer},
    {"options_exclude", error, "--top_entropy_quantile",
     [](const Case& c) {
       return c.on("--use_liger_kernel") && c.is("verb", "grpo") &&
              c.figure("--top_entropy_quantile", 1) < 1;
     },
     "Liger's loss leaves out no tokens by their entropy, and TRL stops",
     "--use_liger_kernel false", kTrlTrainer},
    {"options_exclude", error, "--entropy_coef",
     [](const Case& c) {
       return c.on("--use_liger_kernel") && c.is("verb", "grpo") &&
              c.figure("--entropy_coef", 0) != 0;
     },
     "Liger's loss has no bonus of entropy, and TRL stops", "--use_liger_kernel false",
     kTrlTrainer},
    {"option_needs", error, "--log_completions_hub_repo",
     [](const Case& c) { return !c.on("--log_completions"); },
     "log_completions_hub_repo needs log_completions", "--log_completions true", kTrlGrpo},
});

}  // namespace

std::span<const Trap> trl_traps() {
  return kTrlTraps;
}

}  // namespace qplan
