// What Megatron-Bridge's adapters refuse, and what of them is not predicted. (ms-swift's Megatron
// form finds modules by name, too.)

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "models/plan/words.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/bridge_modules.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using enum Severity;

constexpr std::string_view kSource = "Megatron-Bridge 067f987d, src/megatron/bridge/peft/lora.py";
constexpr std::string_view kMatcher =
    "Megatron-Bridge 067f987d, src/megatron/bridge/peft/module_matcher.py";
constexpr std::string_view kPeft =
    "peft 0.19, src/peft/tuners/tuners_utils.py (check_target_module_exists)";
constexpr std::string_view kCanonical =
    "Megatron-Bridge 067f987d, src/megatron/bridge/peft/canonical_lora.py";

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

  // Whoever starts the job may say it as well, so any mention counts; and so may what the program
  // merges.
  void check_checkpoint(const Place& place) {
    const auto& texts = scene_.files.texts;
    if (std::any_of(texts.begin(), texts.end(), [](const ConfigText& file) {
          return file.text.find("pretrained_checkpoint") != std::string::npos ||
                 merges_overrides(file.text);
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
    const ModulePattern target = pattern_of(written);
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
    for (const AdaptedModule& module : megatron_modules()) {
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
      const auto names = module_names(canonical);
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
      for (const ModuleFraction& part : module_fractions()) {
        if (part.module != name) continue;
        const bool said = std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
          return pattern_of(p).fraction == part.target;
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
    for (const AdaptedModule& module : megatron_modules()) {
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
