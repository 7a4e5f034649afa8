// Keys that verl's configuration has not, or not where they stand: Hydra stops at them.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/text.h"
#include "planner/frameworks/rl/omega_checks.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/rl/verl_keys.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"

namespace qplan::verl {
namespace {

using enum Severity;

class KeyCheck {
 public:
  KeyCheck(const Scene& scene, const ConfigPart& part, Findings& out)
      : scene_(scene), part_(part), out_(out), c_(part.settings, defaults_of(part.settings)) {}

  void run() {
    if (!has_listed_keys(part_.settings)) return note_recipe();
    if (program_of(part_.settings) == "verl.trainer.main_ppo") check_config_name();
    check_distributed_weights();
    const OptionList& list = *defaults_of(part_.settings);
    for (const Setting& setting : part_.settings) {
      if (setting.syntax != Syntax::words || setting.key.starts_with('-') ||
          setting.key == kProgram || setting.key == kStrayWord ||
          setting.key.find_first_of("@/") != std::string::npos) {
        continue;
      }
      check_key(setting, list);
    }
  }

 private:
  void find(Severity severity, std::string_view rule, Place place, std::string message,
            std::string instead, std::string_view source, Correction fix = {}) {
    out_.push_back({severity, std::string(rule), std::move(place), std::move(message),
                    std::move(instead), std::string(source), std::move(fix)});
  }

  // Of a recipe that adds to verl's configuration what is not known here.
  void note_recipe() {
    if (!is_recipe(part_.settings)) return;
    const std::string program = program_of(part_.settings);
    find(note, "keys_unchecked", part_.place,
         fmt::format("keys of {} are not held against a list: what the recipe adds to verl's "
                     "configuration is not known here",
                     shown(program)),
         "", "qplan: planner/frameworks/options has no list of the recipe's keys");
  }

  // "tensor_parallel_size", which others call it, of "tensor_model_parallel_size" and the reverse.
  static std::string with_model_in_degree(const std::string& name, const OptionList& list) {
    constexpr std::string_view kDegree = "_parallel_size", kModels = "_model_parallel_size";
    if (!name.ends_with(kDegree)) return "";
    const bool has = name.ends_with(kModels);
    const std::string other = name.substr(0, name.size() - (has ? kModels : kDegree).size()) +
                              std::string(has ? kDegree : kModels);
    return list.find(other) != nullptr ? other : "";
  }

  // "gpu_mem_utilization", "optimizer.lr": words that are cut short, or written out, of one key
  // alone. Empty: of none, or of several.
  static std::string with_short_words(const std::string& name, const OptionList& list) {
    const auto words_of = [](const std::string& text) {
      std::vector<std::string> words(1);
      for (const char c : text) {
        if (c == '.') words.emplace_back(".");
        if (c == '_' || c == '.') {
          words.emplace_back();
        } else {
          words.back() += c;
        }
      }
      return words;
    };
    const std::vector<std::string> written = words_of(name);
    std::string found;
    for (const std::string& other : list.names()) {
      const std::vector<std::string> real = words_of(other);
      if (real.size() != written.size()) continue;
      bool alike = true;
      for (std::size_t i = 0; i < real.size() && alike; ++i) {
        const bool begins = real[i].starts_with(written[i]) || written[i].starts_with(real[i]);
        const bool short_enough = std::min(real[i].size(), written[i].size()) >= 3;
        alike = real[i] == written[i] || (begins && short_enough);
      }
      if (!alike) continue;
      if (!found.empty()) return "";
      found = other;
    }
    return found;
  }

  // Megatron's section under the configuration of the other trainers, which has none: Hydra stops
  // at its first key.
  void check_config_name() {
    if (part_.settings.find("--config-name") != nullptr && config_of() != "ppo_trainer") return;
    const std::string actor = key(kActor, "megatron.");
    const Setting* first = nullptr;
    for (const Setting& setting : part_.settings) {
      if (setting.syntax != Syntax::words) continue;
      const bool other = setting.key.find_first_of("@/") != std::string::npos ||
                         setting.key == "model_engine" || setting.key == key(kActor, "strategy");
      if (other) return;  // groups that may bring it
      if (first == nullptr && setting.key.starts_with(actor) && mark_of(setting).empty()) {
        first = &setting;
      }
    }
    if (first == nullptr) return;
    const Setting* const said = part_.settings.find("--config-name");
    find(error, "config_name", first->place,
         fmt::format("{}: the configuration ppo_trainer has no section megatron, and Hydra stops",
                     first->key),
         "--config-name=ppo_megatron_trainer.yaml",
         "verl b178a3cd, verl/trainer/main_ppo.py (hydra.main, whose configuration has dp_actor)",
         said == nullptr ? Correction{} : with_value(scene_, *said, "ppo_megatron_trainer.yaml"));
  }

  [[nodiscard]] std::string config_of() const {
    const Setting* const said = part_.settings.find("--config-name");
    if (said == nullptr || !said->resolved) return "";
    const std::string name = text_of(said->value);
    return name.substr(0, name.rfind('.'));  // npos: the whole of it
  }

  // Weights of Megatron's own format that nobody says where to read.
  void check_distributed_weights() {
    const std::string use = key(kActor, "megatron.use_dist_checkpointing");
    const std::string path = key(kActor, "megatron.dist_checkpointing_path");
    if (!is_megatron(part_.settings) || c_.said(use) == nullptr || !c_.on(use) ||
        c_.said(path) != nullptr)
      return;
    if (!has_listed_keys(part_.settings) || is_recipe(part_.settings)) return;
    find(error, "option_needs", c_.said(use)->place,
         fmt::format("{} needs {}: no weights are found without it", use, path),
         fmt::format("{}=FOLDER, or leave {} out", path, use),
         "verl b178a3cd, verl/workers/megatron_workers.py:424");
  }

  void check_key(const Setting& setting, const OptionList& list) {
    const std::string& name = setting.key;
    const KnownOption* const known = list.find(name);
    const bool section =
        std::any_of(list.names().begin(), list.names().end(),
                    [&](const std::string& other) { return other.starts_with(name + "."); });
    const std::string_view mark = mark_of(setting);
    if (known != nullptr || section) {
      const bool something = known != nullptr && !known->otherwise.empty() &&
                             known->otherwise != "{}" && known->otherwise != "[]";
      const bool list_or_section = setting.value.is_array() || section;
      if (mark == "+" && something && !list_or_section) {
        // A key that came later is added to the configuration of a release before it.
        const bool always = known_options("verl_first").find(name) != nullptr;
        find(always ? error : warning, "key_is_there", setting.place,
             fmt::format("+{} adds a key that the configuration has: Hydra stops{}", name,
                         always ? "" : ", unless it is that of a release before the key"),
             fmt::format("{}=..., without the +", name), kHydra);
      }
      return;
    }
    if (is_added_key(part_.settings, name)) return;
    std::string whole = with_model_in_degree(name, list);
    if (whole.empty() && mark.empty()) whole = with_short_words(name, list);
    const std::string near = whole.empty() ? slip_of_key(name, list) : whole;
    const std::string certain = whole.empty() ? certain_key(name, list) : whole;
    const Correction renamed =
        certain.empty() ? Correction{} : with_key(scene_, part_, setting, certain);
    if (mark.empty() && !near.empty()) {
      find(error, "unknown_option", setting.place,
           fmt::format("{}: verl's configuration has no such key, and Hydra stops", name),
           fmt::format("did you mean {}?", near), kHydra, renamed);
    } else if (mark.empty()) {
      find(in_open_section(list, name) ? error : warning, "unknown_option", setting.place,
           fmt::format("{}: the configuration of verl b178a3cd has no such key, and Hydra stops "
                       "where the one that runs has none either",
                       name),
           fmt::format("+{} where verl reads it all the same", name), kHydra);
    } else if (!near.empty()) {
      find(warning, "unknown_option", setting.place,
           fmt::format("{}{} adds a key that nobody reads", mark, name),
           fmt::format("did you mean {}?", near), kHydra, renamed);
    }
  }

  const Scene& scene_;
  const ConfigPart& part_;
  Findings& out_;
  OmegaConfig c_;
};

}  // namespace

void check_verl_keys(const Scene& scene, const ConfigPart& part, Findings& out) {
  KeyCheck(scene, part, out).run();
}

}  // namespace qplan::verl
