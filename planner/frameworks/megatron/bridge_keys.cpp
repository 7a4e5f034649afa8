#include "planner/frameworks/megatron/bridge_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "models/text.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/bridge_modules.h"
#include "planner/frameworks/megatron/bridge_set.h"

namespace qplan {
namespace {

// What older releases of its performance scripts put around all sections.
constexpr std::string_view kWrapper = "ConfigContainer.";
constexpr std::string_view kTarget = "_target_";

bool ends_with_config(std::string_view name) {
  return name.ends_with("_config");
}

PythonArgument none_at(const Place& place, std::string text) {
  PythonArgument argument;
  argument.text = std::move(text);
  argument.place = place;
  return argument;
}

// The preset that a section of mixed_precision says (training/mixed_precision.py); empty: none.
std::string preset_of(const Settings& yaml) {
  const auto word = [&](std::string_view name) {
    const Setting* const found = yaml.find(fmt::format("mixed_precision.{}", name));
    return found == nullptr || found->value.is_null() ? std::string() : text_of(found->value);
  };
  if (!word("fp4").empty()) return "bf16_with_nvfp4_mixed";
  const std::string begin = word("fp16") == "true" ? "fp16" : "bf16";
  if (word("fp8").empty()) return begin + "_mixed";
  const std::string recipe = word("fp8_recipe");
  return fmt::format("{}_with_{}_mixed", begin,
                     recipe == "mxfp8"       ? "mxfp8"
                     : recipe == "delayed"   ? "fp8_delayed_scaling"
                     : recipe == "blockwise" ? "fp8_subchannel_scaling"
                                             : "fp8_current_scaling");
}

// The adapters' class, as its call: "peft._target_", or "peft.type" of NVIDIA's Nemotron recipes.
void add_adapters(const Settings& yaml, PythonText& text) {
  constexpr std::string_view begin = "peft.";
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kTypes{
      {{"lora", "LoRA"}, {"dora", "DoRA"}, {"canonical_lora", "CanonicalLoRA"}}};
  const Setting* target = yaml.find("peft._target_");
  if (target == nullptr) target = yaml.find("peft.type");
  if (target == nullptr || !target->value.is_string()) return;
  std::string maker = last_name(text_of(target->value));
  for (const auto& [type, made] : kTypes) {
    if (maker == type) maker = made;
  }
  PythonCall call{std::move(maker), {}, target->place};
  for (const Setting& setting : yaml) {
    if (!setting.key.starts_with(begin) || setting.key == target->key) continue;
    const std::string name = setting.key.substr(begin.size());
    if (name.find('.') != std::string::npos) continue;
    PythonArgument argument = bridge_argument(setting.key, setting);
    argument.name = name;
    call.arguments.push_back(std::move(argument));
  }
  text.calls.push_back(std::move(call));
}

// ---- a YAML ----

const Setting* recipe_of(const Settings& yaml) {
  for (const std::string_view key : {"recipe._target_", "recipe.name"}) {
    const Setting* const found = yaml.find(key);
    if (found == nullptr || !found->value.is_string()) continue;
    const std::string name = text_of(found->value);
    const bool of_bridge = name.starts_with("megatron.bridge.recipes.") ||
                           (key == "recipe.name" && ends_with_config(name));
    if (of_bridge) return found;
  }
  return nullptr;
}

Settings unwrapped(const Settings& yaml) {
  if (!yaml.has_section(std::string(kWrapper))) return yaml;
  Settings bare;
  for (Setting setting : yaml) {
    if (!setting.key.starts_with(kWrapper)) continue;
    setting.key.erase(0, kWrapper.size());
    bare.add(std::move(setting));
  }
  return bare;
}

// By the sections and their fields: most of both are its own, whatever is misspelt.
bool has_fields_of_bridge(const Settings& yaml) {
  const OptionList& fields = known_options("bridge_fields");
  std::set<std::string> sections, known;
  std::size_t all = 0, own = 0;
  for (const Setting& setting : yaml) {
    const std::string section = bridge_section(setting.key);
    sections.insert(section);
    if (section == setting.key) continue;
    if (fields.find(section) != nullptr) known.insert(section);
    if (setting.key.find('.', section.size() + 1) != std::string::npos) continue;  // nested
    ++all;
    if (fields.find(setting.key) != nullptr) ++own;
  }
  const bool trains = known.contains("train") || known.contains("model");
  return trains && known.size() >= 2 && known.size() * 3 >= sections.size() * 2 &&
         own * 3 >= all * 2;
}

// Of a whole configuration what says nothing of the run, or is said by another field.
bool is_idle(const Settings& yaml, const std::string& key) {
  if (key.starts_with("comm_overlap.overlap_")) return true;
  constexpr std::string_view kGranularity = "model.recompute_granularity";
  const Setting* const granularity = yaml.find(kGranularity);
  const bool selective = granularity != nullptr && text_of(granularity->value) == "selective";
  if (key.starts_with("model.recompute_modules")) return !selective;
  const Setting* const experts = yaml.find("model.num_moe_experts");
  return key.starts_with("model.moe_") && (experts == nullptr || experts->value.is_null());
}

// All that a run had: of the exchanges' overlaps what ddp says counts (training/comm_overlap.py
// has set it), and null is nothing that the file says.
void add_whole(const Settings& yaml, PythonText& text) {
  PythonCall container{"ConfigContainer", {}, yaml.begin()->place};
  text.calls.push_back(std::move(container));
  for (const std::string name : {"overlap_grad_reduce", "overlap_param_gather"}) {
    const Setting* const said = yaml.find("ddp." + name);
    if (said != nullptr)
      set_bridge_field("comm_overlap." + name, bridge_argument(said->key, *said), text);
  }
}

}  // namespace

BridgeYaml bridge_yaml_of(const Settings& yaml) {
  const Setting* const target = yaml.find(kTarget);
  if (target != nullptr &&
      text_of(target->value).ends_with("bridge.training.config.ConfigContainer")) {
    return BridgeYaml::whole;
  }
  if (recipe_of(yaml) != nullptr) return BridgeYaml::recipe;
  // A program of NVIDIA's Nemotron recipes reads the section run, and begins from one of its own.
  if (has_fields_of_bridge(unwrapped(yaml))) {
    return yaml.has_section("run.") ? BridgeYaml::recipe : BridgeYaml::overrides;
  }
  return BridgeYaml::none;
}

void add_bridge_keys(BridgeYaml kind, const Settings& file, PythonText& text) {
  const Settings yaml = unwrapped(file);
  if (yaml.empty()) return;
  const OptionList& fields = known_options("bridge_fields");
  if (const Setting* const recipe = recipe_of(yaml)) {
    text.calls.push_back({last_name(text_of(recipe->value)), {}, recipe->place});
  }
  if (yaml.has_section("mixed_precision.") &&
      (kind == BridgeYaml::whole || yaml.has("mixed_precision.fp8") ||
       yaml.has("mixed_precision.fp4"))) {
    const auto first = std::find_if(yaml.begin(), yaml.end(), [](const Setting& setting) {
      return setting.key.starts_with("mixed_precision.");
    });
    set_bridge_field("mixed_precision", none_at(first->place, preset_of(yaml) + "()"), text);
  }
  if (kind == BridgeYaml::whole) add_whole(yaml, text);
  add_adapters(yaml, text);
  for (const Setting& setting : yaml) {
    std::string field = setting.key;
    const std::string section = bridge_section(field);
    // Of a file that names its recipe, sections that are its program's own.
    if (kind == BridgeYaml::recipe && fields.find(section) == nullptr) continue;
    if (kind == BridgeYaml::whole && is_idle(yaml, field)) continue;
    if (field.ends_with("._target_")) {
      const bool format =
          text_of(setting.value).starts_with("torch.") && field.find("dtype") != std::string::npos;
      if (!format) continue;
      field.resize(field.size() - std::string_view("._target_").size());
    }
    if (field == kTarget || field.ends_with("._call_")) continue;
    set_bridge_field(field, bridge_argument(field, setting), text);
  }
}

// ---- the model ----

std::string model_of_bridge(const PythonText& text) {
  for (const PythonCall& call : text.calls) {
    std::string model = built_in_of_bridge_recipe(last_name(call.callee));
    if (!model.empty()) return model;
  }
  return "";
}

Settings bridge_shapes(const PythonText& text) {
  using Names = std::pair<std::string_view, std::string_view>;
  constexpr auto kSizes = std::to_array<Names>({
      {"num_layers", "--num-layers"},
      {"hidden_size", "--hidden-size"},
      {"ffn_hidden_size", "--ffn-hidden-size"},
      {"num_attention_heads", "--num-attention-heads"},
      {"num_query_groups", "--num-query-groups"},
      {"kv_channels", "--kv-channels"},
      {"vocab_size", "--vocab-size"},
      {"max_position_embeddings", "--max-position-embeddings"},
      {"num_moe_experts", "--num-experts"},
      {"moe_ffn_hidden_size", "--moe-ffn-hidden-size"},
      {"moe_router_topk", "--moe-router-topk"},
      {"moe_shared_expert_intermediate_size", "--moe-shared-expert-intermediate-size"},
      {"position_embedding_type", "--position-embedding-type"},
      {"normalization", "--normalization"},
      {"hybrid_layer_pattern", "--hybrid-layer-pattern"},
      {"hybrid_override_pattern", "--hybrid-override-pattern"},
      {"experimental_attention_variant", "--experimental-attention-variant"},
  });
  constexpr auto kSwitches = std::to_array<Names>({
      {"gated_linear_unit", "--swiglu"},
      {"qk_layernorm", "--qk-layernorm"},
      {"add_qkv_bias", "--add-qkv-bias"},
      {"multi_latent_attention", "--multi-latent-attention"},
      {"is_hybrid_model", "--is-hybrid-model"},
  });
  constexpr auto kUnless = std::to_array<Names>({
      {"share_embeddings_and_output_weights", "--untie-embeddings-and-output-weights"},
      {"add_bias_linear", "--disable-bias-linear"},
  });
  Settings shapes;
  const auto find = [&](std::string_view name) -> const PythonArgument* {
    const std::string target = fmt::format("{}model.{}", kBridgeRoot, name);
    const auto found = std::find_if(text.assignments.rbegin(), text.assignments.rend(),
                                    [&](const PythonAssignment& a) { return a.target == target; });
    return found == text.assignments.rend() ? nullptr : &found->value;
  };
  if (find("num_layers") == nullptr || find("hidden_size") == nullptr) return shapes;
  const auto add = [&](std::string_view flag, Json value, const PythonArgument& from) {
    shapes.add({std::string(flag), std::move(value), from.place, {}, {}, from.resolved});
  };
  for (const auto& [name, flag] : kSizes) {
    const PythonArgument* const said = find(name);
    if (said != nullptr && !said->value.is_null()) add(flag, said->value, *said);
  }
  if (const PythonArgument* const groups = find("num_query_groups");
      groups != nullptr && !groups->value.is_null()) {
    add("--group-query-attention", true, *groups);
  }
  for (const auto& [name, flag] : kSwitches) {
    const PythonArgument* const said = find(name);
    if (said != nullptr && same_value(said->value, Json(true))) add(flag, true, *said);
  }
  for (const auto& [name, flag] : kUnless) {
    const PythonArgument* const said = find(name);
    if (said != nullptr && same_value(said->value, Json(false))) add(flag, true, *said);
  }
  return shapes;
}

}  // namespace qplan
