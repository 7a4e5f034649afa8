#pragma once
// LoRA in Megatron-Bridge's words (067f987d, src/megatron/bridge/peft): cfg.peft = LoRA(...), whose
// targets are patterns over Megatron's module names.

#include <span>
#include <string>
#include <vector>

#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/formats.h"

namespace qplan {

// A field that Megatron-LM makes no flag of. The model has one of that name, too, which this one
// overwrites (update_config_with_precision_overrides in its training/mixed_precision.py).
inline constexpr const char* kFp8Attention = "mixed_precision.fp8_dot_product_attention";

// Megatron's options, and behind them those that no flag of Megatron-LM's says ("peft.dim").
std::span<const Option> bridge_options();

// Whether one LoRA(...) says which layers have adapters: it has one adapter for q, k and v.
bool bridge_says_targets(const ModelSpec& model, const Lora& lora);

// Names of the modules that adapters may stand beside, each once.
std::vector<std::string> adaptable_modules();

// Patterns of those that the plan's adapters stand beside.
Json target_modules(const Subject& subject);

// The call that makes the plan's adapters: "LoRA(\n        target_modules=[...], ...)".
std::string bridge_adapters(const Subject& subject);

// What a file's LoRA(...), the recipe that it starts from, and assignments to the result say.
void add_adapter_settings(const PythonText& text, Settings& settings);

// The plan's targets: those that the modules' patterns name in every layer of the model.
void settle_adapters(Draft& draft, const ModelSpec& model);

}  // namespace qplan
