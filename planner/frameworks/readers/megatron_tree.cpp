#include "planner/frameworks/readers/megatron_tree.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "planner/frameworks/aliases.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

// Fields of TransformerConfig by the arguments that set them (megatron/training/arguments.py,
// core_transformer_config_from_args).
struct Renamed {
  std::string_view field, argument;
};
constexpr auto kRenamed = std::to_array<Renamed>({
    {"layernorm_epsilon", "norm_epsilon"},
    {"layernorm_zero_centered_gamma", "apply_layernorm_1p"},
    {"gated_linear_unit", "swiglu"},
    {"num_moe_experts", "num_experts"},
    {"fp8", "fp8_format"},
});

std::string argument_of(const std::string& field) {
  const auto* const found = std::find_if(kRenamed.begin(), kRenamed.end(),
                                         [&](const Renamed& r) { return r.field == field; });
  return std::string(found == kRenamed.end() ? std::string_view(field) : found->argument);
}

// An argument, a slip of one, or what people write for one. Other names are fields of classes, or
// what switches off: no parser asks for them (yaml_arguments.py makes a SimpleNamespace of the
// file).
bool is_argument(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  const OptionList& list = known_options("megatron");
  if (list.find("--" + name) != nullptr) return true;
  if (alias_of(Dialect::megatron, "--" + name) != nullptr) return true;
  if (list.find("--no-" + name) != nullptr) return false;
  std::string field = name;
  std::replace(field.begin(), field.end(), '-', '_');
  if (known_options("bridge_fields").find("model." + field) != nullptr) return false;
  const std::array<const OptionList*, 1> lists{&list};
  const std::string meant = certain_name("--" + name, lists);
  return !meant.empty() && is_slip("--" + name, meant);
}

}  // namespace

bool is_tree_of_megatron(const Settings& yaml) {
  return yaml.has_section("language_model.") && yaml.has_section("model_parallel.");
}

Settings arguments_of_tree(const Settings& yaml) {
  Settings arguments;
  const auto add = [&](Setting setting, const std::string& name, Json value) {
    const std::size_t dot = setting.key.rfind('.');
    setting.key = setting.key.substr(0, dot == std::string::npos ? 0 : dot + 1) + name;
    setting.value = std::move(value);
    arguments.add(std::move(setting));
  };
  for (const Setting& setting : yaml) {
    const std::string field = setting.key.substr(setting.key.rfind('.') + 1);
    const bool off = setting.value == Json(false);
    if (field == "add_bias_linear" && off) add(setting, "disable_bias_linear", true);
    if (setting.value.is_null() || off) continue;
    if (field == "activation_func" && text_of(setting.value) == "swiglu") {
      add(setting, "swiglu", true);
    } else if (const std::string name = argument_of(field); is_argument(name)) {
      add(setting, name, setting.value);
    }
    if (field == "num_query_groups") add(setting, "group_query_attention", true);
  }
  return arguments;
}

}  // namespace qplan
