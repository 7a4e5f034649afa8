#include "planner/frameworks/megatron/bridge_set.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace qplan {
namespace {

std::string as_python(const Json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return '"' + value.get<std::string>() + '"';
  return text_of(value);
}

// "torch.bfloat16" of it, or of "bf16"; empty: it is no format (megatron/bridge/utils/
// activation_map.py, str_to_dtype).
std::string dtype_of(const std::string& field, const Json& value) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kShort{
      {{"bf16", "bfloat16"},
       {"bfloat16", "bfloat16"},
       {"fp16", "float16"},
       {"float16", "float16"},
       {"fp32", "float32"},
       {"float32", "float32"}}};
  if (!value.is_string()) return "";
  auto text = value.get<std::string>();
  if (text.starts_with("torch.")) return text;
  if (!field.ends_with("_dtype")) return "";
  for (const auto& [written, name] : kShort) {
    if (text == written) return fmt::format("torch.{}", name);
  }
  return "";
}

}  // namespace

PythonArgument bridge_argument(const std::string& field, const Setting& setting) {
  PythonArgument argument;
  argument.value = setting.value;
  argument.text = as_python(setting.value);
  argument.place = setting.place;
  argument.span = setting.text;
  argument.name_span = setting.name;
  argument.resolved = setting.resolved && argument.text.find("${") == std::string::npos;
  if (std::string dtype = dtype_of(field, setting.value); !dtype.empty()) {
    argument.value = nullptr;
    argument.text = std::move(dtype);
    argument.resolved = false;
  }
  return argument;
}

void set_bridge_field(const std::string& field, PythonArgument value, PythonText& text) {
  text.assignments.push_back({std::string(kBridgeRoot) + field, std::move(value)});
}

std::string bridge_section(const std::string& key) {
  return key.substr(0, key.find('.'));
}

}  // namespace qplan
