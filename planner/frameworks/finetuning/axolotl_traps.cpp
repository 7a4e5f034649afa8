// What axolotl refuses of its own YAML.

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

constexpr std::string_view kValidation =
    "axolotl 067b021c, src/axolotl/utils/schemas/validation.py";
constexpr std::string_view kPeft = "axolotl 067b021c, src/axolotl/utils/schemas/peft.py";

// Its own (src/axolotl/utils/schemas/enums.py, CustomSupportedOptimizers), and transformers'.
bool is_optimizer_of_axolotl(const Case& c) {
  constexpr std::array<std::string_view, 15> kOwn{
      "optimi_adamw", "ao_adamw_4bit", "ao_adamw_8bit", "ao_adamw_fp8", "adopt_adamw",
      "came_pytorch", "muon",          "dion",          "sinkgd",       "flash_adamw",
      "flash_adam",   "flash_sgd",     "flash_sgdw",    "flash_lion",   "q_galore_adamw8bit"};
  const std::string name = c.word("optimizer");
  const auto& theirs = known_options("trainer").find("--optim")->choices;
  return name.empty() || std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end() ||
         std::find(theirs.begin(), theirs.end(), name) != theirs.end();
}

constexpr auto kAxolotlTraps = std::to_array<Trap>({
    {"quantized_full", error, "load_in_4bit",
     [](const Case& c) { return c.on("load_in_4bit") && !c.has("adapter"); },
     "weights of 4 bits cannot be trained: axolotl wants an adapter beside them",
     "adapter: qlora, or load_in_4bit: false", kPeft},
    {"quantized_full", error, "load_in_8bit",
     [](const Case& c) { return c.on("load_in_8bit") && !c.has("adapter"); },
     "weights of 8 bits cannot be trained: axolotl wants an adapter beside them",
     "adapter: lora, or load_in_8bit: false", kPeft},
    {"quantized_bits", error, "adapter",
     [](const Case& c) { return c.is("adapter", "qlora") && c.on("load_in_8bit"); },
     "adapter qlora takes weights of 4 bits, not of 8", "adapter: lora", kPeft},
    {"quantized_bits", error, "adapter",
     [](const Case& c) { return c.is("adapter", "qlora") && c.on("gptq"); },
     "adapter qlora takes weights of bitsandbytes, not of GPTQ", "adapter: lora", kPeft},
    {"quantized_bits", error, "adapter",
     [](const Case& c) {
       return c.is("adapter", "qlora") && !c.on("load_in_4bit") && !c.on("load_in_8bit") &&
              !c.on("gptq") && !c.on("merge_lora");
     },
     "adapter qlora needs load_in_4bit", "load_in_4bit: true, or adapter: lora", kPeft},
    {"options_exclude", error, "deepspeed",
     [](const Case& c) { return c.on("deepspeed") && c.on("fsdp"); },
     "deepspeed and fsdp exclude each other", "keep one of them", kValidation},
    {"packing_stage", error, "sample_packing",
     [](const Case& c) { return c.on("sample_packing") && c.on("rl"); },
     "sample_packing does not go with rl", "sample_packing: false", kValidation},
    {"option_needs", error, "rl",
     [](const Case& c) {
       return c.is("rl", "kto") &&
              (!c.has("remove_unused_columns") || c.on("remove_unused_columns"));
     },
     "kto needs remove_unused_columns: false", "remove_unused_columns: false", kValidation},
    {"batch_left_open", error, "base_model",
     [](const Case& c) {
       return c.on("micro_batch_size") + c.on("gradient_accumulation_steps") + c.on("batch_size") <
              2;
     },
     "axolotl wants two of micro_batch_size, gradient_accumulation_steps and batch_size",
     "micro_batch_size and gradient_accumulation_steps", kValidation},
    {"options_exclude", error, "batch_size",
     [](const Case& c) { return c.on("batch_size") && c.on("gradient_accumulation_steps"); },
     "batch_size and gradient_accumulation_steps exclude each other", "leave batch_size out",
     kValidation},
    {"options_exclude", error, "warmup_ratio",
     [](const Case& c) { return c.on("warmup_steps") && c.figure("warmup_ratio", 0) > 0; },
     "warmup_ratio and warmup_steps exclude each other", "keep one of them", kValidation},
    {"options_exclude", error, "saves_per_epoch",
     [](const Case& c) { return c.on("saves_per_epoch") && c.on("save_steps"); },
     "saves_per_epoch and save_steps exclude each other", "keep one of them", kValidation},
    {"options_exclude", error, "evals_per_epoch",
     [](const Case& c) { return c.on("evals_per_epoch") && c.on("eval_steps"); },
     "evals_per_epoch and eval_steps exclude each other", "keep one of them", kValidation},
    {"options_exclude", error, "val_set_size",
     [](const Case& c) {
       return c.figure("val_set_size", 0) > 0 &&
              (c.has("test_datasets") || c.part.settings.has_section("test_datasets."));
     },
     "val_set_size and test_datasets exclude each other", "val_set_size: 0", kValidation},
    {"narrow_optimizer", error, "optimizer",
     [](const Case& c) {
       const bool second = c.is("fsdp_version", "2") || c.is("fsdp_config.fsdp_version", "2") ||
                           c.is("fsdp_config.version", "2");
       return c.part.settings.has_section("fsdp_config.") && second &&
              (c.is("optimizer", "adamw_8bit") || c.is("optimizer", "adamw_bnb_8bit"));
     },
     "bitsandbytes' 8-bit Adam does not run under FSDP2", "optimizer: adamw_torch_8bit",
     kValidation},
    {"narrow_optimizer", error, "optimizer",
     [](const Case& c) {
       const bool offloads =
           c.on("fsdp_config.offload_params") || c.on("fsdp_config.fsdp_offload_params");
       const bool second = c.is("fsdp_version", "2") || c.is("fsdp_config.fsdp_version", "2") ||
                           c.is("fsdp_config.version", "2");
       return offloads && !second && c.word("optimizer").find("8bit") != std::string::npos;
     },
     "an 8-bit optimizer does not run where FSDP1 offloads parameters", "optimizer: adamw_torch",
     kValidation},
    {"option_needs", error, "pretraining_dataset", [](const Case& c) { return !c.on("max_steps"); },
     "pretraining_dataset needs max_steps: nobody knows how long the data is",
     "max_steps: a number", kValidation},
    {"option_needs", error, "activation_offloading",
     [](const Case& c) { return c.on("activation_offloading") && !c.on("gradient_checkpointing"); },
     "activation_offloading needs gradient_checkpointing", "gradient_checkpointing: true",
     kValidation},
    {"option_needs", error, "context_parallel_size",
     [](const Case& c) {
       return c.figure("context_parallel_size", 1) > 1 && c.on("sample_packing") &&
              c.figure("micro_batch_size", 1) > 1;
     },
     "context parallelism of packed samples takes one of them at a time", "micro_batch_size: 1",
     kValidation},
    {"options_exclude", error, "batch_flattening",
     [](const Case& c) { return c.on("batch_flattening") && c.on("sample_packing"); },
     "batch_flattening and sample_packing exclude each other", "keep one of them", kValidation},
    {"refused_value", error, "optimizer", [](const Case& c) { return !is_optimizer_of_axolotl(c); },
     "optimizer is neither transformers' nor one of axolotl's own", "adamw_torch_fused",
     "axolotl 067b021c, src/axolotl/core/builders/base.py:458"},
    {"two_precisions", warning, "fp16",
     [](const Case& c) { return c.is("bf16", "true") && c.on("fp16"); },
     "bf16 counts, and fp16 beside it is switched off", "keep one of them",
     "axolotl 067b021c, src/axolotl/utils/config/__init__.py:188"},
    {"options_exclude", warning, "flash_attention",
     [](const Case& c) {
       return c.on("flash_attention") && (c.on("xformers_attention") || c.on("sage_attention") ||
                                          c.on("flex_attention"));
     },
     "another attention is asked for beside flash_attention, and that counts", "keep one of them",
     "axolotl 067b021c, src/axolotl/utils/schemas/config.py:1557"},
    {"options_exclude", error, "attn_implementation",
     [](const Case& c) {
       return c.on("flash_attention") || c.on("xformers_attention") || c.on("sage_attention") ||
              c.on("flex_attention") || c.on("sdp_attention") || c.on("eager_attention");
     },
     "attn_implementation excludes the older words for it (flash_attention, ...)",
     "keep attn_implementation", "axolotl 067b021c, src/axolotl/utils/schemas/config.py:1550"},
    {"option_needs", error, "chat_template",
     [](const Case& c) { return c.is("chat_template", "jinja") && !c.has("chat_template_jinja"); },
     "chat_template jinja needs chat_template_jinja", "chat_template_jinja: the template",
     kValidation},
});

}  // namespace

std::span<const Trap> axolotl_traps() {
  return kAxolotlTraps;
}

}  // namespace qplan
