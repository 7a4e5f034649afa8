// Words of a command that starts Megatron-Bridge's runner of recipes, or a program around one.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "models/ascii.h"
#include "models/edit_distance.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/bridge_keys.h"
#include "planner/frameworks/megatron/bridge_performance.h"
#include "planner/frameworks/megatron/bridge_program.h"
#include "planner/frameworks/megatron/bridge_set.h"
#include "planner/frameworks/readers/recognise.h"
#include "planner/frameworks/rl/omega_config.h"

namespace qplan {
namespace {

// scripts/training/run_recipe.py, COMMON_OVERRIDE_FIELDS, and the same of scripts/performance.
struct RunnerOption {
  std::string_view brief, name, field;
};
constexpr auto kRunnerOptions = std::to_array<RunnerOption>({
    {"-ms", "--max_steps", "train.train_iters"},
    {"-gb", "--global_batch_size", "train.global_batch_size"},
    {"-mb", "--micro_batch_size", "train.micro_batch_size"},
    {"-sl", "--seq_length", "dataset.seq_length"},
    {"-tp", "--tensor_model_parallel_size", "model.tensor_model_parallel_size"},
    {"-pp", "--pipeline_model_parallel_size", "model.pipeline_model_parallel_size"},
    {"-cp", "--context_parallel_size", "model.context_parallel_size"},
    {"-vp", "--virtual_pipeline_model_parallel_size", "model.virtual_pipeline_model_parallel_size"},
    {"-ep", "--expert_model_parallel_size", "model.expert_model_parallel_size"},
    {"-etp", "--expert_tensor_parallel_size", "model.expert_tensor_parallel_size"},
    {"", "--lr", "optimizer.lr"},
    {"", "--min_lr", "optimizer.min_lr"},
    {"", "--warmup_iters", "scheduler.lr_warmup_iters"},
});

const RunnerOption* runner_option(std::string_view word) {
  const auto* const found =
      std::find_if(kRunnerOptions.begin(), kRunnerOptions.end(), [&](const RunnerOption& option) {
        return word == option.name || (!option.brief.empty() && word == option.brief);
      });
  return found == kRunnerOptions.end() ? nullptr : found;
}

bool is_runner(std::string_view script) {
  return base_name(std::string(script)) == "run_recipe.py";
}

// "a.b" of "a.b=c", "++a.b=c"; empty: it is no such word.
std::string key_of_word(std::string_view word) {
  const std::size_t begin = word.find_first_not_of("+~"), equals = word.find('=');
  if (word.starts_with('-') || begin == std::string_view::npos ||
      equals == std::string_view::npos || begin >= equals) {
    return "";
  }
  const std::string key(word.substr(begin, equals - begin));
  return key.find('.') == std::string::npos || key.find('$') != std::string::npos ? "" : key;
}

// The option of the runner's that is meant: dashes for underscores, or a letter away; empty: it has
// this one, or another release or a copy of it may.
std::string meant_option(const std::string& written) {
  constexpr std::array<std::string_view, 5> kOthers{"--recipe", "--model", "--mode", "--dataset",
                                                    "--step_func"};
  std::string name = written;
  std::replace(name.begin() + 2, name.end(), '-', '_');
  std::vector<std::string> known(kOthers.begin(), kOthers.end());
  for (const RunnerOption& option : kRunnerOptions) known.emplace_back(option.name);
  if (written == "--step-func" || std::find(known.begin(), known.end(), written) != known.end()) {
    return "";
  }
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  const std::string near = nearest_name(name, known);
  return !near.empty() && edit_distance(name, near) <= 1 ? near : "";
}

std::string stage_of_mode(std::string_view mode) {
  if (mode == "lora" || mode == "dora") return "peft";
  return std::string(mode);
}

class WordReader {
 public:
  WordReader(std::span<const ShellWord> words, std::string_view script)
      : words_(words), runs_recipes_(is_runner(script)) {}

  BridgeWords read() {
    for (at_ = 0; at_ < words_.size(); ++at_) read_word(words_[at_]);
    check_mode();
    name_recipe();
    return std::move(result_);
  }

 private:
  // The word's value: behind its '=', or the next word; null: there is none.
  const ShellWord* value_of(const ShellWord& word) {
    const std::size_t equals = word.text.find('=');
    if (equals != std::string::npos) {
      apart_ = word;
      apart_.text.erase(0, equals + 1);
      if (word.span.end - word.span.begin == word.text.size()) apart_.span.begin += equals + 1;
      return &apart_;
    }
    if (at_ + 1 >= words_.size()) return nullptr;
    return &words_[++at_];
  }

  void read_word(const ShellWord& word) {
    const std::string name = word.text.substr(0, word.text.find('='));
    if (!word.text.starts_with('-')) return read_override(word);
    std::string flag = name;
    std::replace(flag.begin(), flag.end(), '-', '_');
    if (flag == "__recipe" || flag == "__model" || flag == "__mode") {
      if (const ShellWord* const value = value_of(word)) {
        (flag == "__recipe" ? recipe_ : flag == "__model" ? model_ : mode_) = *value;
      }
      return;
    }
    if (flag == "__config_file") {
      if (const ShellWord* const value = value_of(word)) result_.yaml = *value;
      return;
    }
    if (runs_recipes_ && word.text.starts_with("--")) refuse_slip(word, name);
    if (const RunnerOption* const option = runs_recipes_ ? runner_option(name) : nullptr) {
      if (const ShellWord* const value = value_of(word)) {
        Setting setting{name, hydra_value(value->text), value->place, {}, value->span};
        setting.resolved = value->resolved;
        common_.emplace_back(option->field, setting);
      }
    }
  }

  void refuse(std::string rule, const ShellWord& at, std::string message, std::string instead,
              Correction fix = {}) {
    result_.findings.push_back(
        {Severity::error, std::move(rule), at.place, std::move(message), std::move(instead),
         "Megatron-Bridge 067f987d, scripts/training/run_recipe.py:129", std::move(fix)});
  }

  void refuse_slip(const ShellWord& word, const std::string& name) {
    const std::string meant = meant_option(name);
    if (meant.empty()) return;
    Correction fix;
    if (word.span.end - word.span.begin == word.text.size()) {
      fix = Correction{{word.place.file, word.span.begin, word.span.begin + name.size(), meant}};
      fix.renames = true;
    }
    refuse("unknown_option", word,
           fmt::format("run_recipe.py has no option \"{}\" and stops", name),
           fmt::format("did you mean {}?", meant), std::move(fix));
  }

  // What is trained, and that the recipe that is named is for it.
  void check_mode() {
    constexpr std::array<std::string_view, 4> kModes{"pretrain", "sft", "lora", "dora"};
    if (!runs_recipes_ || mode_.text.empty() || !mode_.resolved) return;
    const std::string& mode = mode_.text;
    if (std::find(kModes.begin(), kModes.end(), mode) == kModes.end()) {
      return refuse(
          "refused_value", mode_,
          fmt::format("--mode must be one of pretrain, sft, lora, dora, not {}", shown(mode)), "");
    }
    for (const std::string_view stage : {"pretrain", "sft", "peft"}) {
      const bool named = recipe_.text.find(fmt::format("_{}_", stage)) != std::string::npos;
      if (!named || !recipe_.resolved || stage == stage_of_mode(mode)) continue;
      refuse("options_exclude", mode_,
             fmt::format("--mode {} does not go with a recipe that is for {}, and run_recipe.py "
                         "stops",
                         mode, stage),
             fmt::format("--mode {}", stage == "peft" ? "lora" : stage));
    }
  }

  // Those behind the runner's own options, whichever come first.
  void read_override(const ShellWord& word) {
    const std::string key = key_of_word(word.text);
    if (key.empty()) return;
    const std::size_t begin = word.text.find_first_not_of("+~"), equals = word.text.find('=');
    Setting setting{key, hydra_value(std::string_view(word.text).substr(equals + 1)), word.place};
    setting.resolved = word.resolved;
    if (word.span.end - word.span.begin == word.text.size()) {
      const std::size_t last = key.rfind('.') + 1;
      setting.name = {word.span.begin + begin + last, word.span.begin + equals};
      setting.text = {word.span.begin + equals + 1, word.span.end};
    }
    overrides_.emplace_back(key, setting);
  }

  void name_recipe() {
    ShellWord named = recipe_;
    if (named.text.empty() && !model_.text.empty() && runs_recipes_) {
      const std::string stage = stage_of_mode(mode_.text.empty() ? "pretrain" : mode_.text);
      named = model_;
      named.text = fmt::format("{}_{}_config", model_.text, stage);
      named.resolved = model_.resolved && (mode_.text.empty() || mode_.resolved);
      named.span = {};
    }
    // A name that is whole is one, whatever else of its command only a run can tell.
    const bool whole = known_bridge_recipe(named.text) != nullptr;
    if (!named.text.empty() && (named.resolved || whole)) {
      result_.recipe = named.text;
      PythonCall call{named.text, {}, named.place, named.span};
      result_.text.calls.push_back(std::move(call));
    }
    for (const auto& [field, setting] : common_) {
      set_bridge_field(field, bridge_argument(field, setting), result_.text);
      // The runner hands the data's length to the model (sync_model_dataset_sequence_length).
      if (field == "dataset.seq_length") {
        set_bridge_field("model.seq_length", bridge_argument(field, setting), result_.text);
      }
    }
    for (const auto& [field, setting] : overrides_) {
      set_bridge_field(field, bridge_argument(field, setting), result_.text);
      if (runs_recipes_ && field == "dataset.seq_length") {
        set_bridge_field("model.seq_length", bridge_argument(field, setting), result_.text);
      }
    }
  }

  std::span<const ShellWord> words_;
  bool runs_recipes_;
  std::size_t at_ = 0;
  ShellWord apart_, recipe_, model_, mode_;
  std::vector<std::pair<std::string, Setting>> common_, overrides_;
  BridgeWords result_;
};

}  // namespace

bool is_of_bridge(std::span<const ShellWord> words, std::string_view script) {
  if (is_of_performance(words)) return true;
  const OptionList& fields = known_options("bridge_fields");
  bool own = false, names = false;
  for (const ShellWord& word : words) {
    const std::string key = key_of_word(word.text);
    if (word.text == "--recipe" || word.text == "--model") names = true;
    if (word.text.starts_with("--recipe=") || word.text.starts_with("--model=")) names = true;
    if (key.empty()) continue;
    const std::string section = bridge_section(key);
    if (fields.find(section) == nullptr) return false;  // NeMo's, say: "trainer.devices"
    own = own || fields.find(key) != nullptr;
  }
  return own || (names && is_runner(script));
}

BridgeWords bridge_words(std::span<const ShellWord> words, std::string_view script) {
  if (is_of_performance(words)) return performance_words(words);
  return WordReader(words, script).read();
}

std::string bridge_as_key(const std::string& sentence) {
  constexpr std::string_view kRoot = "cfg.", kEquals = " = ";
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kWords{
      {{"True", "true"}, {"False", "false"}, {"None", "null"}}};
  std::string text;
  for (std::size_t at = 0; at < sentence.size();) {
    const std::string_view rest = std::string_view(sentence).substr(at);
    const bool begins = at == 0 || !is_name(sentence[at - 1]);
    if (!begins || !rest.starts_with(kRoot)) {
      text += sentence[at++];
      continue;
    }
    std::size_t end = kRoot.size();
    while (end < rest.size() && (is_name(rest[end]) || rest[end] == '.')) ++end;
    text += rest.substr(kRoot.size(), end - kRoot.size());
    at += end;
    if (!rest.substr(end).starts_with(kEquals)) continue;
    text += '=';
    at += kEquals.size();
    for (const auto& [python, word] : kWords) {
      if (!std::string_view(sentence).substr(at).starts_with(python)) continue;
      text += word;
      at += python.size();
    }
  }
  return text;
}

}  // namespace qplan
