// Adapters that a file's Python makes, as settings: "peft.dim" of LoRA(...), of a recipe's name and
// of assignments, with the values that they leave out.

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "planner/frameworks/megatron/bridge_adapters.h"
#include "planner/frameworks/megatron/bridge_modules.h"
#include "planner/frameworks/megatron/bridge_program.h"

namespace qplan {
namespace {

constexpr std::string_view kFour = "linear_qkv linear_proj linear_fc1 linear_fc2";
constexpr std::string_view kAttentionAlone = "linear_qkv linear_proj";
constexpr std::string_view kWithMamba =
    "linear_qkv linear_proj linear_fc1 linear_fc2 in_proj out_proj";

struct AdapterDefaults {
  std::string_view recipe;  // how its name begins
  int dim, alpha;
  std::string_view modules;
};
// Recipes whose adapters are not LoRA()'s own (src/megatron/bridge/recipes/*/h100).
constexpr auto kOfRecipes = std::to_array<AdapterDefaults>({
    {"exaone_moe_", 8, 16, kAttentionAlone},
    {"gemma3_1b_", 8, 16, kFour},
    {"llama31_405b_", 16, 32, "linear_qkv"},
    {"llama31_70b_", 16, 32, kFour},
    {"llama31_8b_", 8, 16, kFour},
    {"llama3_70b_", 16, 32, kFour},
    {"llama3_8b_", 8, 16, kFour},
    {"moonlight_16b_peft_4gpu", 8, 16,
     "linear_q_proj linear_kv_down_proj linear_kv_up_proj linear_proj"},
    {"nemotron_3_nano_4b_", 8, 16, kAttentionAlone},
    {"nemotron_3_nano_", 32, 32, kWithMamba},
    {"nemotron_3_super_", 32, 32, kWithMamba},
    {"nemotron_nano_12b_v2_", 32, 32, kWithMamba},
    {"nemotron_nano_9b_v2_", 32, 32, kWithMamba},
    {"nemotronh_", 32, 32, kWithMamba},
    {"qwen3_235b_a22b_", 8, 16, kAttentionAlone},
    {"qwen3_30b_a3b_", 8, 16, kAttentionAlone},
    {"qwen3_8b_", 8, 16, kAttentionAlone},
});
constexpr AdapterDefaults kOfClass{"", 32, 32, kFour};
constexpr std::string_view kCanonicalModules =
    "linear_q linear_k linear_v linear_proj linear_fc1_up linear_fc1_gate linear_fc2";

Json words_of(std::string_view text) {
  Json list = Json::array();
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    list.push_back(std::string(text.substr(0, space)));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return list;
}

bool is_class(std::string_view name) {
  return name == "LoRA" || name == "VLMLoRA" || name == "CanonicalLoRA" || name == "DoRA";
}

class AdapterReader {
 public:
  explicit AdapterReader(Settings& settings) : settings_(settings) {}

  void read(const PythonText& text) {
    for (const PythonCall& call : text.calls) read_call(call);
    for (const PythonAssignment& assignment : text.assignments) read_assignment(assignment);
    for (const Setting& setting : found_) settings_.add(setting);
  }

 private:
  void add(std::string_view key, Json value, const Place& place, bool resolved = true) {
    found_.push_back({std::string(key), std::move(value), place, {}, {}, resolved});
  }

  void take(const AdapterDefaults& defaults, const std::string& of_class, const Place& place) {
    found_.clear();
    add("peft", of_class, place);
    add("peft.dim", defaults.dim, place);
    // DoRA() has another (peft/dora.py).
    const bool of_dora = of_class == "DoRA" && defaults.recipe.empty();
    add("peft.alpha", of_dora ? 64 : defaults.alpha, place);
    add("peft.dropout", 0.0, place);
    const bool canonical = of_class == "CanonicalLoRA";
    add("peft.target_modules", words_of(canonical ? kCanonicalModules : defaults.modules), place);
  }

  // "lora", "dora" or None.
  void take_scheme(const AdapterDefaults& defaults, const PythonArgument* scheme,
                   const Place& place) {
    const std::string word = scheme == nullptr || !scheme->resolved ? "lora"
                             : scheme->value.is_null()              ? "none"
                                                                    : text_of(scheme->value);
    if (word == "none") return found_.clear();
    take(defaults, word == "dora" ? "DoRA" : "LoRA", place);
  }

  void read_call(const PythonCall& call) {
    const std::string name = last_name(call.callee);
    if (is_class(name)) {
      take(kOfClass, name, call.place);
      return read_keywords(call);
    }
    if (name == "default_peft_config") {
      const bool positional = !call.arguments.empty() && call.arguments.front().name.empty();
      take_scheme(kOfClass, positional ? &call.arguments.front() : call.find("peft_scheme"),
                  call.place);
      return read_keywords(call);
    }
    if (name.find("_peft_") == std::string::npos || !name.ends_with("config") ||
        known_bridge_recipe(name) == nullptr) {
      return;
    }
    const auto* const own =
        std::find_if(kOfRecipes.begin(), kOfRecipes.end(),
                     [&](const AdapterDefaults& entry) { return name.starts_with(entry.recipe); });
    take_scheme(own == kOfRecipes.end() ? kOfClass : *own, call.find("peft_scheme"), call.place);
  }

  void read_keywords(const PythonCall& call) {
    if (found_.empty()) return;
    for (const PythonArgument& argument : call.arguments) {
      if (argument.name.empty() || argument.name == "peft_scheme") continue;
      add("peft." + argument.name, argument.value, argument.place, argument.resolved);
    }
  }

  // cfg.peft.dim = 8, peft_cfg.dim = 8; cfg.peft = None.
  void read_assignment(const PythonAssignment& assignment) {
    const std::size_t dot = assignment.target.rfind('.');
    if (dot == std::string::npos) return;
    const std::string field = assignment.target.substr(dot + 1);
    const std::string holder = last_name(assignment.target.substr(0, dot));
    const PythonArgument& value = assignment.value;
    if (field == "peft" && value.resolved && value.value.is_null()) return found_.clear();
    if (found_.empty() || (holder != "peft" && holder.find("peft_c") != 0 && holder != "lora")) {
      return;
    }
    add("peft." + field, value.value, value.place, value.resolved);
  }

  Settings& settings_;
  std::vector<Setting> found_;
};

}  // namespace

void add_adapter_settings(const PythonText& text, Settings& settings) {
  AdapterReader(settings).read(text);
}

}  // namespace qplan
