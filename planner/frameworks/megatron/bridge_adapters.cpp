#include "planner/frameworks/megatron/bridge_adapters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "models/edit_distance.h"
#include "models/parameters.h"
#include "models/plan/words.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using enum LoraTarget;
using enum Severity;

constexpr std::string_view kSource = "Megatron-Bridge 067f987d, src/megatron/bridge/peft/lora.py";
constexpr std::string_view kMatcher =
    "Megatron-Bridge 067f987d, src/megatron/bridge/peft/module_matcher.py";
constexpr std::string_view kPeft =
    "peft 0.19, src/peft/tuners/tuners_utils.py (check_target_module_exists)";
constexpr std::string_view kCanonical =
    "Megatron-Bridge 067f987d, src/megatron/bridge/peft/canonical_lora.py";

// Where models have linear layers: in attention, a dense MLP, ... The names are Megatron-LM's.
enum class Part : std::uint8_t { attention, latent, dense, shared, routed, delta_net, mamba };

struct Module {
  std::string_view name;
  Part part;
  LoraTargets targets;      // of what one LoRA adapter stands beside
  std::string_view inside;  // which module of a layer
};

constexpr auto kModules = std::to_array<Module>({
    {"linear_qkv", Part::attention, set_of(q_proj, k_proj, v_proj), "self_attention"},
    {"linear_proj", Part::attention, set_of(o_proj), "self_attention"},
    {"linear_q_proj", Part::latent, set_of(q_proj), "self_attention"},
    {"linear_q_down_proj", Part::latent, set_of(q_a_proj), "self_attention"},
    {"linear_q_up_proj", Part::latent, set_of(q_b_proj), "self_attention"},
    {"linear_kv_down_proj", Part::latent, set_of(kv_a_proj), "self_attention"},
    {"linear_kv_up_proj", Part::latent, set_of(kv_b_proj), "self_attention"},
    {"linear_proj", Part::latent, set_of(o_proj), "self_attention"},
    {"linear_fc1", Part::dense, set_of(gate_proj, up_proj), "mlp"},
    {"linear_fc2", Part::dense, set_of(down_proj), "mlp"},
    {"linear_fc1", Part::shared, set_of(gate_proj, up_proj), "mlp.shared_experts"},
    {"linear_fc2", Part::shared, set_of(down_proj), "mlp.shared_experts"},
    {"linear_fc1", Part::routed, set_of(experts), "mlp.experts"},
    {"linear_fc2", Part::routed, set_of(experts), "mlp.experts"},
    {"in_proj", Part::delta_net, set_of(in_proj), "self_attention"},
    {"out_proj", Part::delta_net, set_of(out_proj), "self_attention"},
    {"in_proj", Part::mamba, set_of(in_proj), "mixer"},
    {"out_proj", Part::mamba, set_of(out_proj), "mixer"},
});

// CanonicalLoRA's names of parts of a module.
struct Fraction {
  std::string_view name, module;
  LoraTarget target;
};
constexpr auto kFractions = std::to_array<Fraction>({
    {"linear_q", "linear_qkv", q_proj},
    {"linear_k", "linear_qkv", k_proj},
    {"linear_v", "linear_qkv", v_proj},
    {"linear_fc1_gate", "linear_fc1", gate_proj},
    {"linear_fc1_up", "linear_fc1", up_proj},
});

std::vector<std::string> all_names(bool canonical) {
  std::vector<std::string> names;
  for (const Module& module : kModules) {
    const bool split = module.name == "linear_qkv" || module.name == "linear_fc1";
    const std::string name(module.name);
    const bool there = std::find(names.begin(), names.end(), name) != names.end();
    if (!there && !(canonical && split)) names.push_back(name);
  }
  if (!canonical) return names;
  for (const Fraction& part : kFractions) names.emplace_back(part.name);
  return names;
}

bool is_in(Part part, const ModelSpec& model) {
  const auto any = [&](auto&& holds) {
    return std::any_of(model.layers.begin(), model.layers.end(), holds);
  };
  switch (part) {
    case Part::attention:
    case Part::latent:
      return model.mla.has_value() == (part == Part::latent) &&
             any([](const LayerKind& layer) { return layer.mixer == Mixer::attention; });
    case Part::dense:
      return any([](const LayerKind& layer) { return layer.dense_mlp(); });
    case Part::shared:
      return model.moe && model.moe->shared_expert_intermediate_size > 0;
    case Part::routed:
      return model.moe.has_value();
    case Part::delta_net:
      return model.delta_net.has_value();
    case Part::mamba:
      return model.mamba.has_value();
  }
  return false;
}

// What adapters beside the module would be, of what this model has.
LoraTargets targets_in(const Module& module, const ModelSpec& model) {
  return is_in(module.part, model) ? module.targets & targets_of(model) : LoraTargets{};
}

LoraTargets wanted_of(const Lora& lora, LoraTargets among) {
  return (lora.targets.empty() ? all_linear() : lora.targets) & among;
}

// ---- reading ----

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

enum class Reach : std::uint8_t { none, some, all };

// In how many layers a pattern names a module.
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

// A pattern as it is looked up: CanonicalLoRA finds "linear_q" by "linear_qkv".
struct Target {
  std::string pattern;
  std::optional<LoraTarget> fraction;
};

Target target_of(const std::string& written) {
  for (const Fraction& part : kFractions) {
    if (!written.ends_with(part.name)) continue;
    const std::string stem = written.substr(0, written.size() - part.name.size());
    if (!stem.empty() && stem.back() != '.' && stem.back() != '*') continue;
    return {stem + std::string(part.module), part.target};
  }
  return {written, {}};
}

// What of a module patterns name, in all of the model's layers.
LoraTargets targets_named(const Module& module, const std::vector<std::string>& patterns) {
  LoraTargets found;
  for (const std::string& written : patterns) {
    const Target target = target_of(written);
    if (reach_of(target.pattern, module.inside, module.name) != Reach::all) continue;
    // Experts' first layer is one to CanonicalLoRA, too.
    const bool part = target.fraction && module.targets.has(*target.fraction);
    found = found | (part ? set_of(*target.fraction) : module.targets);
  }
  return found;
}

constexpr auto kFlaglessOptions = std::to_array<Option>({
    {"peft", "dora", [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) { d.plan.dora = text_of(v) == "DoRA"; }},
    {"peft.dim", "lora_rank",
     [](const Subject& s) { return if_true(s.plan.lora_rank > 0, s.plan.lora_rank); },
     set_degree<&ParallelPlan::lora_rank>},
    {"peft.alpha", "lora_alpha",
     [](const Subject& s) { return if_true(s.plan.lora_rank > 0, s.plan.lora_alpha); },
     [](Draft& d, const Json& v) {
       d.plan.lora_alpha = static_cast<int>(whole_of(v, 1, kMaxCount));
     }},
    {"peft.dropout", "lora_dropout",
     [](const Subject& s) { return if_true(s.plan.lora_rank > 0, s.plan.lora_dropout); },
     [](Draft& d, const Json& v) { d.plan.lora_dropout = number_of(v); }},
    {"peft.a2a_experimental", "lora_a2a",
     [](const Subject& s) { return if_true(s.plan.lora_rank > 0 && s.plan.lora_a2a, true); },
     [](Draft& d, const Json& v) { d.plan.lora_a2a = truth_of(v); }},
    {"peft.target_modules", "lora_targets", target_modules,
     [](Draft& d, const Json& v) { d.adapted_modules = list_of(v); }},
    {kFp8Attention, "fp8_dot_product_attention",
     [](const Subject& s) { return if_true(s.plan.fp8_dot_product_attention, true); },
     [](Draft& d, const Json& v) { d.plan.fp8_dot_product_attention = truth_of(v); }},
});

// ---- the values that a file's Python leaves out ----

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

std::string last_name(const std::string& dotted) {
  return dotted.substr(dotted.rfind('.') + 1);
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
        known_options("bridge_recipes").find(name) == nullptr) {
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

std::span<const Option> bridge_options() {
  static const auto* const options = [] {
    auto* all = new std::vector<Option>;
    for (const Option& option : megatron_options()) all->push_back(option);
    for (const Option& option : kFlaglessOptions) all->push_back(option);
    return all;
  }();
  return *options;
}

// ---- writing ----

// A module's name reaches all of that name, in a vision tower and among experts, too; a pattern
// reaches those whose full names it matches. One name for all, where all are meant.
Json target_modules(const Subject& s) {
  if (s.plan.lora_rank == 0) return nullptr;
  const Lora lora = s.plan.lora();
  const std::string_view root = s.model.vision ? "*language_model.*" : "*";
  Json list = Json::array();
  const auto add = [&](const std::string& pattern) {
    if (std::find(list.begin(), list.end(), pattern) == list.end()) list.push_back(pattern);
  };
  for (const Module& module : kModules) {
    if (wanted_of(lora, targets_in(module, s.model)).empty()) continue;
    const bool all = std::all_of(kModules.begin(), kModules.end(), [&](const Module& other) {
      const LoraTargets present = targets_in(other, s.model);
      return other.name != module.name || present.empty() || !wanted_of(lora, present).empty();
    });
    if (all && !s.model.vision) {
      add(std::string(module.name));
    } else if (all) {
      add(fmt::format("{}.{}", root, module.name));
    } else {
      add(fmt::format("{}.{}.{}", root, module.inside, module.name));
    }
  }
  return list;
}

bool bridge_says_targets(const ModelSpec& model, const Lora& lora) {
  return lora.rank == 0 || std::all_of(kModules.begin(), kModules.end(), [&](const Module& module) {
           const LoraTargets present = targets_in(module, model);
           const LoraTargets wanted = wanted_of(lora, present);
           return wanted.empty() || wanted == present;
         });
}

std::vector<std::string> adaptable_modules() {
  return all_names(/*canonical=*/false);
}

std::string bridge_adapters(const Subject& s) {
  std::vector<std::string> quoted;
  for (const Json& name : target_modules(s)) quoted.push_back('"' + name.get<std::string>() + '"');
  const double dropout = s.plan.lora_dropout;
  return fmt::format(
      "{}(\n        target_modules=[{}],\n        dim={},\n        alpha={},\n"
      "        dropout={},\n{}    )",
      s.plan.dora ? "DoRA" : "LoRA", fmt::join(quoted, ", "), s.plan.lora_rank, s.plan.lora_alpha,
      dropout == 0 ? "0.0" : fmt::format("{}", dropout),
      s.plan.lora_a2a ? "        a2a_experimental=True,\n" : "");
}

void add_adapter_settings(const PythonText& text, Settings& settings) {
  AdapterReader(settings).read(text);
}

void settle_adapters(Draft& draft, const ModelSpec& model) {
  ParallelPlan& plan = draft.plan;
  if (plan.lora_rank == 0) {
    plan.dora = false;
    return;
  }
  if (plan.dora) plan.lora_dropout = 0;  // said by dora_dropout, below
  LoraTargets wanted, partly;
  for (const Module& module : kModules) {
    const LoraTargets present = targets_in(module, model);
    const LoraTargets taken = targets_named(module, draft.adapted_modules) & present;
    wanted = wanted | taken;
    partly = partly | (present - taken);
  }
  // What one module of several of a kind has no adapters of, the plan has none of.
  wanted = wanted - partly;
  if (wanted.empty()) plan.lora_rank = 0, plan.dora = false;
  plan.lora_targets = wanted == (all_linear() & targets_of(model)) ? LoraTargets{} : wanted;
}

// ---- findings ----

namespace {

// Modules that Megatron-Bridge adapts, too, or that stand in a tower.
bool is_elsewhere(const std::string& pattern) {
  constexpr std::array<std::string_view, 5> kElsewhere{"router", "output_layer", "vision", "audio",
                                                       "eh_proj"};
  return std::any_of(kElsewhere.begin(), kElsewhere.end(), [&](std::string_view word) {
    return pattern.find(word) != std::string::npos;
  });
}

class AdapterCheck {
 public:
  AdapterCheck(const Scene& scene, const Settings& settings, Findings& out,
               std::string_view matcher)
      : scene_(scene), settings_(settings), out_(out), matcher_(matcher) {}

  void run() {
    const Setting* const peft = settings_.find("peft");
    if (peft == nullptr) return;
    class_ = text_of(peft->value);
    const Setting* const dropout = settings_.find("peft.dropout");
    if (class_ == "DoRA" && dropout != nullptr && dropout->resolved &&
        number_of(dropout->value) > 0) {
      say(note, "dora_dropout", dropout->place,
          "DoRA is predicted without dropout, for which it takes a layer's product twice", "",
          "Megatron-Bridge 067f987d, src/megatron/bridge/peft/dora_layers.py");
    }
    check_checkpoint(peft->place);
    for (const std::string_view option :
         {"share_expert_adapters", "experts_shared_outer_loras", "normalize_moe_lora",
          "sequence_parallel_input_regather"}) {
      check_unpriced(option);
    }
    check_names();
  }

  void check_names() {
    if (const Setting* const modules = settings_.find("peft.target_modules")) {
      if (modules->resolved) check_modules(*modules);
    }
  }

 private:
  void say(Severity severity, std::string_view rule, const Place& place, std::string message,
           std::string instead, std::string_view source) {
    out_.push_back({severity,
                    std::string(rule),
                    place,
                    std::move(message),
                    std::move(instead),
                    std::string(source),
                    {}});
  }

  // Whoever starts the job may say it as well, so any mention counts.
  void check_checkpoint(const Place& place) {
    const auto& texts = scene_.files.texts;
    if (std::any_of(texts.begin(), texts.end(), [](const ConfigText& file) {
          return file.text.find("pretrained_checkpoint") != std::string::npos;
        })) {
      return;
    }
    say(error, "peft_without_weights", place,
        "adapters stand beside weights that nothing loads, and Megatron-Bridge stops",
        "cfg.checkpoint.pretrained_checkpoint = \"/path/to/checkpoint\"",
        "Megatron-Bridge 067f987d, src/megatron/bridge/training/config.py:1627");
  }

  void check_unpriced(std::string_view option) {
    const Setting* const said = settings_.find("peft." + std::string(option));
    if (said == nullptr || !said->resolved || !said->value.is_boolean()) return;
    const bool usual = option == "share_expert_adapters";
    if (said->value.get<bool>() == usual) return;
    say(note, "adapters_unpriced", said->place,
        fmt::format("{} is not part of the prediction, which has it {}", option,
                    usual ? "True" : "False"),
        "", kSource);
  }

  void check_modules(const Setting& setting) {
    const bool canonical = class_ == "CanonicalLoRA";
    const std::vector<std::string> patterns = list_of(setting.value);
    for (const std::string& written : patterns) check_pattern(setting, written, canonical);
    if (canonical) check_whole(setting, patterns);
    check_kinds(setting, patterns);
  }

  void check_pattern(const Setting& setting, const std::string& written, bool canonical) {
    const Target target = target_of(written);
    const std::string name = last_name(written);
    if (canonical && (written.ends_with("linear_qkv") || written.ends_with("linear_fc1"))) {
      return say(error, "canonical_target", setting.place,
                 fmt::format("CanonicalLoRA refuses the target {}", shown(written)),
                 written.ends_with("linear_qkv") ? "linear_q, linear_k and linear_v, or LoRA"
                                                 : "linear_fc1_gate and linear_fc1_up, or LoRA",
                 kCanonical);
    }
    if (!canonical && target.fraction) {
      return say(error, "unknown_target", setting.place,
                 fmt::format("LoRA finds no module by {}: it is a name of CanonicalLoRA's",
                             shown(written)),
                 target.pattern, matcher_);
    }
    Reach best = Reach::none;
    bool present = false;
    for (const Module& module : kModules) {
      const Reach reach = reach_of(target.pattern, module.inside, module.name);
      best = std::max(best, reach);
      present =
          present || (reach != Reach::none && !targets_in(module, scene_.question.model).empty());
    }
    if (best == Reach::none && is_elsewhere(written)) {
      return say(note, "adapters_unpriced", setting.place,
                 fmt::format("adapters of {} are not part of the prediction", shown(written)), "",
                 matcher_);
    }
    if (best == Reach::none) {
      const auto names = all_names(canonical);
      const std::string near = nearest_name(name, names);
      const bool slip = !near.empty() && is_slip(name, near);
      return say(error, "unknown_target", setting.place,
                 fmt::format("no module of Megatron's is named {}, and nothing is adapted by it",
                             shown(written)),
                 slip ? fmt::format("did you mean {}?", near)
                      : fmt::format("one of {}", fmt::join(names, ", ")),
                 matcher_);
    }
    if (best == Reach::some) {
      return say(warning, "adapters_of_some_layers", setting.place,
                 fmt::format("{} names modules of some layers alone, which are predicted without "
                             "adapters",
                             shown(written)),
                 "", matcher_);
    }
    if (!present) {
      say(note, "absent_target", setting.place,
          fmt::format("{} has no {}, and nothing is adapted by it", scene_.question.model.name,
                      shown(written)),
          "", matcher_);
    }
  }

  // A module with adapters for a part of what it makes: the others are None, and are called.
  void check_whole(const Setting& setting, const std::vector<std::string>& patterns) {
    bool whole = false;
    for (const std::string_view name : {"linear_qkv", "linear_fc1"}) {
      std::vector<std::string_view> there, missing;
      for (const Fraction& part : kFractions) {
        if (part.module != name) continue;
        const bool said = std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
          return target_of(p).fraction == part.target;
        });
        (said ? there : missing).push_back(part.name);
      }
      if (there.empty()) continue;
      if (missing.empty()) {
        whole = true;
        continue;
      }
      say(error, "canonical_part", setting.place,
          fmt::format("CanonicalLoRA adapts {} and not {}, whose adapters are None and are called "
                      "all the same: the first forward pass stops",
                      fmt::join(there, ", "), fmt::join(missing, ", ")),
          fmt::format("{} too, or LoRA with {}", fmt::join(missing, ", "), name), kCanonical);
    }
    if (!whole) return;
    say(note, "canonical_as_lora", setting.place,
        "CanonicalLoRA is predicted as LoRA is, with one adapter for q, k and v, and one for gate "
        "and up: it has one each",
        "", kCanonical);
  }

  // gate_proj of a plan is that of dense MLPs and of shared experts; experts are both their layers.
  void check_kinds(const Setting& setting, const std::vector<std::string>& patterns) {
    const ModelSpec& model = scene_.question.model;
    LoraTargets taken, missing;
    for (const Module& module : kModules) {
      const LoraTargets present = targets_in(module, model);
      const LoraTargets found = targets_named(module, patterns) & present;
      taken = taken | found;
      missing = missing | (present - found);
    }
    const LoraTargets both = taken & missing;
    if (both.empty()) return;
    std::vector<std::string_view> words;
    for (const auto& [target, word] : Words<LoraTarget>::table) {
      if (both.has(target)) words.push_back(word);
    }
    say(warning, "adapters_of_some_layers", setting.place,
        fmt::format("of {} some have adapters and some have not; they are predicted without",
                    fmt::join(words, ", ")),
        "", matcher_);
  }

  const Scene& scene_;
  const Settings& settings_;
  Findings& out_;
  std::string_view matcher_;  // who finds modules by their names
  std::string class_;
};

}  // namespace

void check_bridge_adapters(const Scene& scene, Findings& out) {
  if (const ConfigPart* const swift = scene.files.find(Dialect::ms_swift_megatron)) {
    const Setting* const said = swift->settings.find("--target_modules");
    const bool by_name = said != nullptr && text_of(said->value).find("all-") == std::string::npos;
    const ConfigPart* const flags = scene.files.find(Dialect::megatron);
    if (by_name) AdapterCheck(scene, flags->settings, out, kPeft).check_names();
    return;
  }
  if (const ConfigPart* const part = scene.files.find(Dialect::bridge)) {
    AdapterCheck(scene, part->settings, out, kMatcher).run();
  }
}

}  // namespace qplan
