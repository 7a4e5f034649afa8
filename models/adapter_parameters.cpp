// LoRA's parameters: which weights have adapters beside them, and of which shapes.

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "models/parameters.h"

namespace qplan {
namespace {

using enum ParameterRole;

// Every layer that a target names: shared experts' are matched by the same names as a dense MLP's.
constexpr auto kTargets = std::to_array<std::pair<ParameterRole, LoraTarget>>({
    {q_proj, LoraTarget::q_proj},
    {k_proj, LoraTarget::k_proj},
    {v_proj, LoraTarget::v_proj},
    {o_proj, LoraTarget::o_proj},
    {gate_proj, LoraTarget::gate_proj},
    {shared_gate_proj, LoraTarget::gate_proj},
    {up_proj, LoraTarget::up_proj},
    {shared_up_proj, LoraTarget::up_proj},
    {down_proj, LoraTarget::down_proj},
    {shared_down_proj, LoraTarget::down_proj},
    {expert_gate_proj, LoraTarget::experts},
    {expert_up_proj, LoraTarget::experts},
    {expert_down_proj, LoraTarget::experts},
    {q_a_proj, LoraTarget::q_a_proj},
    {q_b_proj, LoraTarget::q_b_proj},
    {kv_a_proj, LoraTarget::kv_a_proj},
    {kv_b_proj, LoraTarget::kv_b_proj},
    {linear_qkvz_proj, LoraTarget::in_proj},
    {linear_ba_proj, LoraTarget::in_proj},
    {linear_qkv_proj, LoraTarget::in_proj},
    {linear_z_proj, LoraTarget::in_proj},
    {linear_b_proj, LoraTarget::in_proj},
    {linear_a_proj, LoraTarget::in_proj},
    {mamba_in_proj, LoraTarget::in_proj},
    {linear_out_proj, LoraTarget::out_proj},
});

std::optional<LoraTarget> target_of(ParameterRole role) {
  const auto* const found = std::find_if(kTargets.begin(), kTargets.end(),
                                         [role](const auto& entry) { return entry.first == role; });
  return found == kTargets.end() ? std::nullopt : std::optional(found->second);
}

// The same, where the first is in the block.
ParameterRole layer_of(ParameterRole role, const std::vector<Parameter>& table) {
  const ParameterRole first = pack_begin(role);
  const bool there =
      std::any_of(table.begin(), table.end(), [first](const auto& p) { return p.role == first; });
  return there ? first : role;
}

// Rows of the weights that are one layer with this one, if all of them have adapters; else 0.
std::int64_t adapted_rows(const std::vector<Parameter>& table, const Parameter& weight,
                          const Lora& lora) {
  std::int64_t rows = 0;
  for (const Parameter& p : table) {
    if (p.bias || layer_of(p.role, table) != layer_of(weight.role, table)) continue;
    const auto target = target_of(p.role);
    if (!target || !lora.has(*target)) return 0;
    rows += p.rows;
  }
  return rows;
}

}  // namespace

ParameterRole pack_begin(ParameterRole role) {
  constexpr auto kBehind = std::to_array<std::pair<ParameterRole, ParameterRole>>({
      {k_proj, q_proj},
      {v_proj, q_proj},
      {up_proj, gate_proj},
      {shared_up_proj, shared_gate_proj},
      {expert_up_proj, expert_gate_proj},
      {linear_ba_proj, linear_qkvz_proj},
      {linear_z_proj, linear_qkv_proj},
      {linear_b_proj, linear_qkv_proj},
      {linear_a_proj, linear_qkv_proj},
  });
  const auto* const found = std::find_if(kBehind.begin(), kBehind.end(),
                                         [role](const auto& entry) { return entry.first == role; });
  return found == kBehind.end() ? role : found->second;
}

std::vector<Parameter> adapters_of(const std::vector<Parameter>& table, const Lora& lora) {
  std::vector<Parameter> adapters;
  if (lora.rank == 0) return adapters;
  for (const Adapter kind : {Adapter::lora_a, Adapter::lora_b, Adapter::magnitude}) {
    if (kind == Adapter::magnitude && !lora.magnitudes) continue;
    for (const Parameter& weight : table) {
      const auto target = target_of(weight.role);
      if (weight.bias || !target || !lora.has(*target)) continue;
      Parameter p = weight;
      p.adapter = kind;
      const bool in_side = kind == Adapter::lora_a;
      if (lora.parallel) {
        const std::int64_t rows = adapted_rows(table, weight, lora);
        if (rows > 0 && layer_of(weight.role, table) != weight.role) continue;
        if (rows > 0) {
          p.rows = rows;
          p.parts = {};
        }
        if (kind == Adapter::magnitude) {
          if (weight.split == Split::cols) p.split = Split::none;
        } else if (!in_side || weight.split != Split::cols) {
          p.split = Split::rows;
        }
        if (lora.expert_copies > 0 && is_expert(weight.role)) p.copies = lora.expert_copies;
      } else if (weight.split != (in_side ? Split::cols : Split::rows)) {
        p.split = Split::none;
      }
      if (kind == Adapter::magnitude) {
        p.cols = 1;
      } else {
        (in_side ? p.rows : p.cols) = lora.rank;
        if (in_side) p.parts = {};
      }
      adapters.push_back(p);
    }
  }
  return adapters;
}

LoraTargets targets_of(const ModelSpec& model) {
  LoraTargets targets;
  for (const LayerKind& kind : model.layers) {
    for (const Parameter& weight : parameters_of(model, ModelPart::decoder, kind)) {
      if (const auto target = target_of(weight.role)) targets.add(*target);
    }
  }
  return targets;
}

}  // namespace qplan
