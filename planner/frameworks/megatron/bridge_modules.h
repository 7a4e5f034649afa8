#pragma once
// Modules of Megatron's that LoRA adapters stand beside, and the patterns that name them: which
// modules does a pattern reach, in how many layers? Private to Megatron-Bridge's adapters.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "models/parameters.h"

namespace qplan {

// Where models have linear layers: in attention, a dense MLP, ... The names are Megatron-LM's.
enum class ModulePart : std::uint8_t { attention, latent, dense, shared, routed, delta_net, mamba };

struct AdaptedModule {
  std::string_view name;
  ModulePart part;
  LoraTargets targets;      // of what one LoRA adapter stands beside
  std::string_view inside;  // which module of a layer
};
std::span<const AdaptedModule> megatron_modules();

// CanonicalLoRA's names of parts of a module.
struct ModuleFraction {
  std::string_view name, module;
  LoraTarget target;
};
std::span<const ModuleFraction> module_fractions();

// Names of modules, each once; to CanonicalLoRA, those of their parts.
std::vector<std::string> module_names(bool canonical);

// What adapters beside the module would be, of what this model has.
LoraTargets targets_in(const AdaptedModule& module, const ModelSpec& model);

// In how many layers a pattern names a module.
enum class Reach : std::uint8_t { none, some, all };
Reach reach_of(std::string_view pattern, std::string_view inside, std::string_view name);

// A pattern as it is looked up: CanonicalLoRA finds "linear_q" by "linear_qkv".
struct ModulePattern {
  std::string pattern;
  std::optional<LoraTarget> fraction;
};
ModulePattern pattern_of(const std::string& written);

// What of a module patterns name, in all of the model's layers.
LoraTargets targets_named(const AdaptedModule& module, const std::vector<std::string>& patterns);

// "linear_qkv" of "*.self_attention.linear_qkv".
std::string last_name(const std::string& dotted);

}  // namespace qplan
