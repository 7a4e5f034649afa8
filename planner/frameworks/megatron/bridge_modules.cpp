#include "planner/frameworks/megatron/bridge_modules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace qplan {
namespace {

using enum LoraTarget;

constexpr auto kModules = std::to_array<AdaptedModule>({
    {"linear_qkv", ModulePart::attention, set_of(q_proj, k_proj, v_proj), "self_attention"},
    {"linear_proj", ModulePart::attention, set_of(o_proj), "self_attention"},
    {"linear_q_proj", ModulePart::latent, set_of(q_proj), "self_attention"},
    {"linear_q_down_proj", ModulePart::latent, set_of(q_a_proj), "self_attention"},
    {"linear_q_up_proj", ModulePart::latent, set_of(q_b_proj), "self_attention"},
    {"linear_kv_down_proj", ModulePart::latent, set_of(kv_a_proj), "self_attention"},
    {"linear_kv_up_proj", ModulePart::latent, set_of(kv_b_proj), "self_attention"},
    {"linear_proj", ModulePart::latent, set_of(o_proj), "self_attention"},
    {"linear_fc1", ModulePart::dense, set_of(gate_proj, up_proj), "mlp"},
    {"linear_fc2", ModulePart::dense, set_of(down_proj), "mlp"},
    {"linear_fc1", ModulePart::shared, set_of(gate_proj, up_proj), "mlp.shared_experts"},
    {"linear_fc2", ModulePart::shared, set_of(down_proj), "mlp.shared_experts"},
    {"linear_fc1", ModulePart::routed, set_of(experts), "mlp.experts"},
    {"linear_fc2", ModulePart::routed, set_of(experts), "mlp.experts"},
    {"in_proj", ModulePart::delta_net, set_of(in_proj), "self_attention"},
    {"out_proj", ModulePart::delta_net, set_of(out_proj), "self_attention"},
    {"in_proj", ModulePart::mamba, set_of(in_proj), "mixer"},
    {"out_proj", ModulePart::mamba, set_of(out_proj), "mixer"},
});

constexpr auto kFractions = std::to_array<ModuleFraction>({
    {"linear_q", "linear_qkv", q_proj},
    {"linear_k", "linear_qkv", k_proj},
    {"linear_v", "linear_qkv", v_proj},
    {"linear_fc1_gate", "linear_fc1", gate_proj},
    {"linear_fc1_up", "linear_fc1", up_proj},
});

bool is_in(ModulePart part, const ModelSpec& model) {
  const auto any = [&](auto&& holds) {
    return std::any_of(model.layers.begin(), model.layers.end(), holds);
  };
  switch (part) {
    case ModulePart::attention:
    case ModulePart::latent:
      return model.mla.has_value() == (part == ModulePart::latent) &&
             any([](const LayerKind& layer) { return layer.mixer == Mixer::attention; });
    case ModulePart::dense:
      return any([](const LayerKind& layer) { return layer.dense_mlp(); });
    case ModulePart::shared:
      return model.moe && model.moe->shared_expert_intermediate_size > 0;
    case ModulePart::routed:
      return model.moe.has_value();
    case ModulePart::delta_net:
      return model.delta_net.has_value();
    case ModulePart::mamba:
      return model.mamba.has_value();
  }
  return false;
}

// Megatron-Bridge's wildcard_match: '*' is any text.
bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  pattern.remove_prefix(star + 1);
  name.remove_prefix(star);
  if (pattern.find('*') == std::string_view::npos) return name.ends_with(pattern);
  for (std::size_t from = 0; from <= name.size(); ++from) {
    if (matches(pattern, name.substr(from))) return true;
  }
  return false;
}

// Where layers stand in a GPT model, and in one of text and images.
constexpr std::array<std::string_view, 2> kRoots{"decoder", "language_model.decoder"};
constexpr int kSampledLayers = 128;  // no model has more

}  // namespace

std::span<const AdaptedModule> megatron_modules() {
  return kModules;
}

std::span<const ModuleFraction> module_fractions() {
  return kFractions;
}

std::vector<std::string> module_names(bool canonical) {
  std::vector<std::string> names;
  for (const AdaptedModule& module : kModules) {
    const bool split = module.name == "linear_qkv" || module.name == "linear_fc1";
    const std::string name(module.name);
    const bool there = std::find(names.begin(), names.end(), name) != names.end();
    if (!there && !(canonical && split)) names.push_back(name);
  }
  if (!canonical) return names;
  for (const ModuleFraction& part : kFractions) names.emplace_back(part.name);
  return names;
}

LoraTargets targets_in(const AdaptedModule& module, const ModelSpec& model) {
  return is_in(module.part, model) ? module.targets & targets_of(model) : LoraTargets{};
}

Reach reach_of(std::string_view pattern, std::string_view inside, std::string_view name) {
  if (pattern == name) return Reach::all;
  bool some = false;
  for (const std::string_view root : kRoots) {
    int layers = 0;
    for (int i = 0; i < kSampledLayers; ++i) {
      if (matches(pattern, fmt::format("{}.layers.{}.{}.{}", root, i, inside, name))) ++layers;
    }
    if (layers == kSampledLayers) return Reach::all;
    some = some || layers > 0;
  }
  return some ? Reach::some : Reach::none;
}

ModulePattern pattern_of(const std::string& written) {
  for (const ModuleFraction& part : kFractions) {
    if (!written.ends_with(part.name)) continue;
    const std::string stem = written.substr(0, written.size() - part.name.size());
    if (!stem.empty() && stem.back() != '.' && stem.back() != '*') continue;
    return {stem + std::string(part.module), part.target};
  }
  return {written, {}};
}

LoraTargets targets_named(const AdaptedModule& module, const std::vector<std::string>& patterns) {
  LoraTargets found;
  for (const std::string& written : patterns) {
    const ModulePattern target = pattern_of(written);
    if (reach_of(target.pattern, module.inside, module.name) != Reach::all) continue;
    // Experts' first layer is one to CanonicalLoRA, too.
    const bool part = target.fraction && module.targets.has(*target.fraction);
    found = found | (part ? set_of(*target.fraction) : module.targets);
  }
  return found;
}

std::string last_name(const std::string& dotted) {
  return dotted.substr(dotted.rfind('.') + 1);
}

}  // namespace qplan
