// verl's command lines: which they are, and Hydra's overrides among their words as settings.

#include <algorithm>
#include <array>

#include "planner/frameworks/rl/omega_checks.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/rl/verl_keys.h"

namespace qplan {
namespace {

using namespace verl;

// Keys of its two trainers for supervised fine-tuning, under the actor's.
constexpr auto kSftKeys = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"model.partial_pretrain", "actor_rollout_ref.model.path"},
    {"model.strategy", "actor_rollout_ref.actor.strategy"},
    {"model.fsdp_config.offload_params", "actor_rollout_ref.actor.fsdp_config.offload_policy"},
    {"model.fsdp_config.cpu_offload", "actor_rollout_ref.actor.fsdp_config.offload_policy"},
    {"model.fsdp_config.model_dtype", "actor_rollout_ref.actor.fsdp_config.model_dtype"},
    {"ulysses_sequence_parallel_size", "actor_rollout_ref.actor.ulysses_sequence_parallel_size"},
    {"use_remove_padding", "actor_rollout_ref.model.use_remove_padding"},
    {"data.micro_batch_size_per_gpu", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"},
    {"data.micro_batch_size", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"},
    {"data.use_dynamic_bsz", "actor_rollout_ref.actor.use_dynamic_bsz"},
    {"data.max_token_len_per_gpu", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"},
    {"engine.strategy", "actor_rollout_ref.actor.strategy"},
});

std::string sft_key(const std::string& given) {
  for (const auto& [own, actors] : kSftKeys) {
    if (given == own) return std::string(actors);
  }
  if (given.starts_with("model.")) return "actor_rollout_ref." + given;
  if (!given.starts_with("engine.")) return given;
  const std::string name = given.substr(7);
  constexpr std::array<std::string_view, 7> kShards{"fsdp_size",
                                                    "reshard_after_forward",
                                                    "param_offload",
                                                    "optimizer_offload",
                                                    "offload_policy",
                                                    "model_dtype",
                                                    "ulysses_sequence_parallel_size"};
  const bool shards = std::find(kShards.begin(), kShards.end(), name) != kShards.end();
  return key(kActor, shards ? "fsdp_config." : "megatron.") + name;
}

std::vector<std::string_view> programs() {
  return {"verl.trainer.", "verl.experimental.", "recipe.dapo",
          "main_ppo",      "sft_trainer",        "main_generation"};
}

bool is_flag(std::string_view text) {
  return text.size() > 1 && text.front() == '-' && !(text[1] >= '0' && text[1] <= '9');
}

// Neither "key=value" nor "~key", which takes a key out; what a shell puts in may be anything.
bool is_stray(std::string_view text) {
  const std::size_t equals = text.find('=');
  const bool override_of = equals != std::string_view::npos && equals > 0;
  return !text.empty() && !override_of && text.front() != '~' &&
         text.find('$') == std::string_view::npos;
}

// Whether the word behind it is its value. A flag that Hydra has not takes what is no override.
bool add_flag(Settings& settings, const ShellWord& word, const ShellWord* next) {
  const std::size_t equals = word.text.find('=');
  const std::string name = word.text.substr(0, equals);
  const KnownOption* const known = hydra_flag(name);
  const bool alone = known != nullptr && known->arity == "0";
  const bool to_come = next != nullptr && !is_flag(next->text) &&
                       (known != nullptr || next->text.find('=') == std::string::npos);
  const bool apart = equals == std::string::npos && !alone && to_come;
  Setting flag;
  flag.key = hydra_name(name);
  flag.value = apart ? next->text : equals != std::string::npos ? word.text.substr(equals + 1) : "";
  flag.place = word.place;
  flag.resolved = word.resolved && (!apart || next->resolved);
  if (word.span.end - word.span.begin == word.text.size()) {
    flag.name = {word.span.begin, word.span.begin + name.size()};
  }
  settings.add(std::move(flag));
  return apart;
}

}  // namespace

bool is_verl(const std::vector<ShellWord>& words, const std::string& script) {
  const bool named = std::any_of(words.begin(), words.end(), [](const ShellWord& word) {
    const std::size_t begin = word.text.find_first_not_of('+');
    if (begin == std::string::npos) return false;
    const std::string_view text = std::string_view(word.text).substr(begin);
    return text.starts_with("actor_rollout_ref.") || text.starts_with("algorithm.adv_estimator=");
  });
  if (named) return true;
  return is_verl_program(script) &&
         std::any_of(words.begin(), words.end(), [](const ShellWord& word) {
           return !word.text.starts_with('-') && word.text.find('=') != std::string::npos;
         });
}

bool is_verl_yaml(const Settings& yaml) {
  return yaml.has_section("actor_rollout_ref.");
}

bool trains_by_verl(const std::string& script) {
  return script.find("main_generation") == std::string::npos &&
         script.find("main_eval") == std::string::npos;
}

Settings verl_settings(const std::vector<ShellWord>& words, const std::string& script) {
  Settings settings;
  const bool sft = is_sft_program(script);
  if (!script.empty() && !words.empty()) {
    settings.add({std::string(kProgram), script, words.front().place});
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const ShellWord& word = words[i];
    std::string text = word.text;
    const std::size_t equals = text.find('=');
    if (is_flag(text)) {
      if (add_flag(settings, word, i + 1 < words.size() ? &words[i + 1] : nullptr)) ++i;
      continue;
    }
    if (is_stray(text)) {
      settings.add({std::string(kStrayWord), text, word.place, {}, {}, word.resolved});
    }
    if (equals == std::string::npos) continue;
    const std::size_t begin = text.find_first_not_of("+~");
    if (begin == std::string::npos || begin >= equals) continue;
    const std::string name = text.substr(begin, equals - begin);
    if (name.find('$') != std::string::npos) continue;
    Setting setting;
    setting.key = sft ? sft_key(name) : name;
    setting.value = hydra_value(std::string_view(text).substr(equals + 1));
    setting.place = word.place;
    setting.resolved = word.resolved;
    setting.extra = text.substr(0, begin);
    // Where the word stands in the file as it is, without quotes.
    if (word.span.end - word.span.begin == text.size()) {
      setting.whole = word.span;
      setting.name = {word.span.begin + begin, word.span.begin + equals};
      setting.text = {setting.name.end + 1, word.span.end};
    }
    settings.add(std::move(setting));
  }
  return settings;
}

bool is_verl_program(std::string_view program) {
  const auto names = programs();
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    return program.find(name) != std::string_view::npos;
  });
}

}  // namespace qplan
