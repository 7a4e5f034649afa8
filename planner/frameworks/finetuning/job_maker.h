#pragma once
// How keys of a file become the job of another's words. Private to this folder and to pretraining/.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "models/lora.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/option.h"

namespace qplan {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Layers that a pattern names ("...layers.[\d]+.(mlp|self_attn).(up|down|q|k)_proj"): the words of
// the group before "_proj", or of the whole.
inline Json layers_of_pattern(const std::string& pattern) {
  Json names = Json::array();
  for (const auto& [target, word] : Words<LoraTarget>::table) {
    bool named = contains(pattern, word);
    constexpr std::string_view kEnd = "_proj";
    const std::size_t close = pattern.find(")_proj");
    const std::size_t open = close == std::string::npos ? close : pattern.rfind('(', close);
    if (!named && open != std::string::npos && word.ends_with(kEnd)) {
      const std::string group = "|" + pattern.substr(open + 1, close - open - 1) + "|";
      named = contains(group, fmt::format("|{}|", word.substr(0, word.size() - kEnd.size())));
    }
    if (named) names.push_back(std::string(word));
  }
  return names;
}

// Names of a list, or of words with commas between.
inline Json names_in(const Json& value) {
  if (value.is_array()) return value;
  Json names = Json::array();
  std::string name;
  for (const char c : text_of(value) + ",") {
    if (c == ' ') continue;
    if (c != ',') {
      name += c;
    } else if (!name.empty()) {
      names.push_back(std::exchange(name, ""));
    }
  }
  return names;
}

class JobMaker {
 public:
  JobMaker(const Settings& yaml, const Place& place) : yaml_(yaml), place_(place) {}

 protected:
  // A key of the YAML under another name; nothing where it is not said.
  void hand(Settings& to, std::string_view key, std::string name) const {
    const Setting* const found = yaml_.find(key);
    if (found == nullptr) return;
    Setting setting = *found;
    setting.key = std::move(name);
    to.add(std::move(setting));
  }

  // What stands nowhere, or follows; it has the place of `key`.
  void say(Settings& to, std::string name, Json value, std::string_view key = "") const {
    const Setting* const found = yaml_.find(key);
    to.add({std::move(name), std::move(value), found != nullptr ? found->place : place_});
  }

  void hand_or(Settings& to, std::string_view key, std::string name, Json otherwise) const {
    if (yaml_.has(key)) return hand(to, key, std::move(name));
    say(to, std::move(name), std::move(otherwise));
  }

  // A block of ds_config.json's keys in place of a path.
  void hand_deepspeed() {
    constexpr std::string_view kBlock = "deepspeed.";
    for (Setting setting : yaml_) {
      if (!setting.key.starts_with(kBlock)) continue;
      setting.key = setting.key.substr(kBlock.size());
      job_.ds_config.add(std::move(setting));
    }
    if (!job_.ds_config.empty()) say(job_.trainer, "--deepspeed", "a block of this file");
  }

  // Adapters of these layers: all linear ones, or those of a list ("q_proj,v_proj").
  void target(std::string_view key) {
    const Setting* const found = yaml_.find(key);
    if (found == nullptr) return;
    Json names = Json::array();
    if (found->value.is_array()) {
      names = found->value;
    } else if (contains(text_of(found->value), "(") || contains(text_of(found->value), ".*")) {
      names = layers_of_pattern(text_of(found->value));
    } else {
      names = names_in(found->value);
    }
    const bool all =
        names.size() == 1 && (text_of(names[0]) == "all" || text_of(names[0]) == "all-linear");
    say(job_.own_script, "lora.target_modules", all ? Json("all-linear") : std::move(names), key);
  }

  // Modules that are trained whole beside adapters.
  void save_modules(std::string_view key) {
    const Setting* const found = yaml_.find(key);
    if (found == nullptr || found->value.is_null()) return;
    say(job_.own_script, "lora.modules_to_save", names_in(found->value), key);
  }

  void assume_less(std::string sentence) {
    job_.assumed.push_back(std::move(sentence));
    job_.takes_less = true;
  }

  void read_optimizer(const std::string& name) {
    if (name.empty()) return;
    say(job_.own_script, "optimizer", name, yaml_.has("optim") ? "optim" : "optimizer");
  }

  void assume_length(std::string_view key, bool packs, std::int64_t length) {
    if (packs) return;
    job_.shorter = true;
    job_.assumed.push_back(fmt::format(
        "every sequence has {} {}, the most: without packing one has its own tokens alone", key,
        length));
  }

  const Settings& yaml_;
  const Place& place_;
  TrainerJob job_;
};

}  // namespace qplan
