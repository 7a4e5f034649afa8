#include "planner/frameworks/readers/program_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "models/error.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/arguments.h"
#include "planner/frameworks/readers/formats.h"
#include "planner/frameworks/readers/recognise.h"
#include "planner/frameworks/spelled_values.h"

namespace qplan {
namespace {

// Python's argparse takes the beginning of a name that no other has for the whole.
std::string whole_name(const std::string& key, std::span<const OptionList* const> lists) {
  std::string found;
  for (const OptionList* const list : lists) {
    if (list->find(key) != nullptr) return key;
    for (const std::string& name : list->names()) {
      if (!key.starts_with("--") || key.size() < 5 || !name.starts_with(key)) continue;
      if (!found.empty()) return key;
      found = name;
    }
  }
  return found.empty() ? key : found;
}

// Arguments of transformers' parser, whose names may have either sign and be cut short.
Settings underscored(std::span<const ShellWord> words, std::span<const OptionList* const> lists) {
  Settings settings;
  for (Setting setting : read_arguments(words, lists)) {
    setting.key = whole_name(setting.key, lists);
    if (setting.key.starts_with("--") && setting.key.size() > 2) {
      std::replace(setting.key.begin() + 2, setting.key.end(), '-', '_');
    }
    settings.add(std::move(setting));
  }
  return settings;
}

const KnownOption* known_flag(const std::string& flag) {
  for (const std::string_view list : {"megatron", "slime", "megatron_deepspeed"}) {
    if (const KnownOption* const known = known_options(list).find(flag)) return known;
  }
  return nullptr;
}

// Whether a flag takes no value.
bool is_switch(const std::string& flag) {
  const KnownOption* const known = known_flag(flag);
  return known != nullptr && known->arity == "0";
}

// Whether a word stands among the numbers of a list ("--profile-ranks 0 1 $(...)"), and so is no
// option. Of a flag that is not listed two numbers tell that it takes several.
bool is_in_list_of_numbers(std::span<const ShellWord> words, std::size_t at) {
  std::size_t numbers = 0;
  while (at > 0 && is_number(words[at - 1].text)) --at, ++numbers;
  if (at == 0 || !words[at - 1].text.starts_with("--")) return false;
  const KnownOption* const known = known_flag(words[at - 1].text);
  if (known == nullptr) return numbers > 1;
  return (known->arity == "+" || known->arity == "*") &&
         (known->type == "int" || known->type == "float");
}

}  // namespace

Settings read_flags(std::span<const ShellWord> words, const std::string& script) {
  static const std::array<const OptionList*, 3> kLists{
      &known_options("megatron"), &known_options("slime"), &known_options("megatron_deepspeed")};
  Settings settings = read_arguments(words, kLists);
  if (dialect_of(settings, script) != Dialect::megatron_deepspeed) return settings;
  // Two flags take several values in the one and one in the other.
  static const std::array<const OptionList*, 1> kFork{&known_options("megatron_deepspeed")};
  return read_arguments(words, kFork);
}

Settings read_trainer_flags(std::span<const ShellWord> words) {
  static const std::array<const OptionList*, 2> kLists{&known_options("trainer"),
                                                       &known_options("run_clm")};
  Settings settings;
  for (Setting setting : read_arguments(words, kLists)) {
    setting.key = whole_name(setting.key, kLists);
    if (kLists.front()->find(setting.key) != nullptr && setting.key.size() > 2) {
      std::replace(setting.key.begin() + 2, setting.key.end(), '-', '_');
    }
    settings.add(std::move(setting));
  }
  return settings;
}

Settings read_trl_arguments(std::span<const ShellWord> words) {
  static const std::array<const OptionList*, 2> kLists{&known_options("trl"),
                                                       &known_options("trainer")};
  return underscored(words, kLists);
}

Settings read_openrlhf_arguments(std::span<const ShellWord> words) {
  static const std::array<const OptionList*, 1> kLists{&known_options("openrlhf")};
  Settings settings;
  for (Setting setting : read_arguments(words, kLists)) {
    setting.key = whole_name(setting.key, kLists);
    settings.add(std::move(setting));
  }
  return settings;
}

Settings read_swift_arguments(std::span<const ShellWord> words, bool megatron) {
  static const std::array<const OptionList*, 1> kMegatron{&known_options("ms_swift_megatron")};
  static const std::array<const OptionList*, 2> kPlain{&known_options("ms_swift"),
                                                       &known_options("trainer")};
  return megatron ? underscored(words, kMegatron) : underscored(words, kPlain);
}

Settings words_of_command(std::span<const ShellWord> words) {
  Settings settings;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string key = words[i].text, value;
    const std::size_t equals = key.find('=');
    if (equals != std::string::npos) {
      value = key.substr(equals + 1);
      key.resize(equals);
    } else if (key.starts_with("--") && i + 1 < words.size() &&
               !words[i + 1].text.starts_with("--")) {
      value = words[i + 1].text;
    } else {
      value = "true";
    }
    const bool dashes = key.starts_with("--");
    if (dashes) key.erase(0, 2);
    if (!dashes && equals == std::string::npos) continue;
    if (dashes) std::replace(key.begin(), key.end(), '-', '_');
    try {
      const std::string line = fmt::format("{}: {}", key, value);
      for (const Setting& setting : read_yaml_settings(line, "", YamlLoader::omegaconf).settings) {
        settings.add({setting.key, setting.value, words[i].place, {}, {}, words[i].resolved});
      }
    } catch (const Error&) {
      settings.add({key, value, words[i].place, {}, {}, words[i].resolved});
    }
  }
  return settings;
}

Settings keys_as_arguments(const Settings& yaml) {
  constexpr std::string_view kTraining = "train.";
  Settings arguments;
  for (Setting setting : yaml) {
    if (setting.key.starts_with(kTraining)) setting.key.erase(0, kTraining.size());
    if (setting.key.find('.') != std::string::npos || setting.key == "gpus") continue;
    if (setting.key == "colocate_groups") continue;
    if (setting.value.is_object() || setting.key == "ENV" || setting.value.is_null()) continue;
    setting.key.insert(0, "--");
    arguments.add(std::move(setting));
  }
  return arguments;
}

// They go back among the words of a command, where either sign is right
// (ms-swift 3602360a, swift/cli/main.py:38).
Settings swift_arguments(const Settings& yaml) {
  Settings arguments;
  for (Setting setting : keys_as_arguments(yaml)) {
    std::replace(setting.key.begin() + 2, setting.key.end(), '-', '_');
    arguments.add(std::move(setting));
  }
  return arguments;
}

Settings torchtitan_keys(const Settings& arguments) {
  Settings keys;
  for (Setting setting : arguments) {
    if (!setting.key.starts_with("--")) continue;
    setting.key = setting.key.substr(2);
    if (setting.key.find('.') != std::string::npos) keys.add(std::move(setting));
  }
  return keys;
}

Settings titan_toml_keys(const Settings& arguments) {
  Settings keys;
  for (Setting setting : torchtitan_keys(arguments)) {
    std::replace(setting.key.begin(), setting.key.end(), '-', '_');
    if (setting.key == "job.config_file") continue;
    const std::size_t name = setting.key.rfind('.') + 1;
    if (setting.key.compare(name, 3, "no_") == 0 && setting.value.is_boolean()) {
      setting.key.erase(name, 3);
      setting.value = false;
    }
    keys.add(std::move(setting));
  }
  return keys;
}

Settings shared_with_trainers(const Settings& arguments) {
  Settings result;
  for (const Setting& setting : arguments) {
    if (setting.key.starts_with("--deepspeed") || setting.key == "--megatron_config") {
      result.add(setting);
    }
  }
  return result;
}

std::string open_word(std::span<const ShellWord> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& text = words[i].text;
    if (words[i].resolved || text.starts_with("--")) continue;
    if (text.find_first_of("$`") == std::string::npos) continue;  // of a branch, and spelled out
    const bool value = i > 0 && words[i - 1].text.starts_with("-") &&
                       words[i - 1].text.find('=') == std::string::npos &&
                       !is_switch(words[i - 1].text);
    if (!value && !is_in_list_of_numbers(words, i)) return text;
  }
  return "";
}

bool is_yaml_name(std::string_view word) {
  return word.ends_with(".yaml") || word.ends_with(".yml");
}

bool names_yaml(std::span<const ShellWord> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i].text;
    if (!is_yaml_name(word)) continue;
    if (i == 0 || words[i - 1].text == "--config") return true;
  }
  return false;
}

}  // namespace qplan
