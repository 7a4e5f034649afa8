#include "planner/frameworks/readers/own_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/python_settings.h"

namespace qplan {
namespace {

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The words by which a file calls a class or a function: its own, and what an import renames it to.
std::vector<std::string> names_of(const std::string& text, std::string_view name) {
  std::vector<std::string> names{std::string(name)};
  const std::string renamed = fmt::format("{} as ", name);
  for (std::size_t at = 0; (at = text.find(renamed, at)) != std::string::npos;) {
    at += renamed.size();
    std::size_t end = at;
    while (end < text.size() && is_name(text[end])) ++end;
    names.push_back(text.substr(at, end - at));
  }
  return names;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Without the blanks that indent it, and what ends it.
std::string_view stripped(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = std::min(line.find_first_not_of(kBlanks), line.size());
  line.remove_prefix(begin);
  return line.substr(0, line.find_last_not_of(kBlanks) + 1);  // npos + 1: none is left
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (;;) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

class OwnScript {
 public:
  OwnScript(const PythonText& text, const ConfigText& file)
      : text_(text),
        file_(file),
        lines_(lines_of(file.text)),
        fsdp_(names_of(file.text, "FullyShardedDataParallel")) {
    fsdp_.emplace_back("FSDP");
  }

  Settings read() {
    for (const PythonCall& call : text_.calls) {
      if (is_definition(call)) continue;
      const std::string callee = callee_of(call);
      if (has(fsdp_, callee)) read_fsdp(call);
      read_recompute(call, callee);
    }
    for (const PythonAssignment& assignment : text_.assignments) read_recompute(assignment);
    if (settings_.has("FSDP")) read_keyword_dictionary();
    return std::move(settings_);
  }

 private:
  [[nodiscard]] std::string_view line(int number) const {
    const auto index = static_cast<std::size_t>(number) - 1;
    return index < lines_.size() ? lines_[index] : std::string_view();
  }

  // "def checkpoint_wrapper(...):" reads like a call.
  [[nodiscard]] bool is_definition(const PythonCall& call) const {
    std::string_view words = stripped(line(call.place.line));
    if (words.starts_with("async ")) words = stripped(words.substr(6));
    return (words.starts_with("def ") && stripped(words.substr(4)).starts_with(call.callee)) ||
           (words.starts_with("class ") && stripped(words.substr(6)).starts_with(call.callee));
  }

  void said(std::string key, Json value, const Place& place, bool resolved = true) {
    settings_.add({std::move(key), std::move(value), place, {}, {}, resolved});
  }

  // The condition of the innermost `if` around a line; empty: it stands under none.
  [[nodiscard]] std::string condition_of(int number) const {
    const auto depth_of = [](std::string_view words) {
      return std::min(words.find_first_not_of(" \t"), words.size());
    };
    std::size_t depth = depth_of(line(number));
    for (int above = number - 1; above > 0 && depth > 0; --above) {
      const std::string_view words = stripped(line(above));
      if (words.empty() || words.starts_with('#') || depth_of(line(above)) >= depth) continue;
      depth = depth_of(line(above));
      const bool branch = words.starts_with("if ") || words.starts_with("elif ");
      if (!branch && !words.starts_with("else:")) continue;
      if (words.find("__name__") != std::string_view::npos) continue;
      if (!branch) return "else";
      const std::string_view condition = words.substr(words.find(' ') + 1);
      return std::string(condition.substr(0, condition.rfind(':')));
    }
    return "";
  }

  // ---- FSDP ----

  // Of its signature, in order: what is given without a keyword.
  static constexpr std::array<std::string_view, 7> kParameters{
      "module",           "process_group",     "sharding_strategy", "cpu_offload",
      "auto_wrap_policy", "backward_prefetch", "mixed_precision"};

  void read_fsdp(const PythonCall& call) {
    said("FSDP", call.callee, call.place);
    std::size_t position = 0;
    for (const PythonArgument& a : call.arguments) {
      std::string name = a.name;
      if (name.empty() && !a.text.starts_with('*') && position < kParameters.size()) {
        name = kParameters.at(position++);
      }
      if (name.empty() || name == "module") continue;
      Setting setting = setting_of("FSDP." + name, a);
      if (!a.resolved) setting.value = a.text;
      setting.resolved = true;
      settings_.add(std::move(setting));
    }
  }

  // `"name": value` lines of a script that calls FSDP(model, **kwargs).
  void read_keyword_dictionary() {
    for (const std::string_view key :
         {"sharding_strategy", "auto_wrap_policy", "cpu_offload", "mixed_precision"}) {
      const std::string quoted = fmt::format("\"{}\":", key);
      const std::size_t at = file_.text.find(quoted);
      if (at == std::string::npos) continue;
      std::size_t from = at + quoted.size();
      while (from < file_.text.size() && file_.text[from] == ' ') ++from;
      const std::size_t end = std::min(file_.text.find('\n', from), file_.text.size());
      std::string value = file_.text.substr(from, end - from);
      value = value.substr(0, value.find('#'));
      while (!value.empty() && (value.back() == ' ' || value.back() == ',')) value.pop_back();
      const Span span{from, from + value.size()};
      const Span name{at + 1, at + 1 + key.size()};
      const Place place{file_.name, line_of(file_.text, at)};
      settings_.add({"FSDP." + std::string(key),
                     value,
                     place,
                     {at, span.end},
                     span,
                     true,
                     name,
                     Syntax::python});
    }
  }

  // ---- activations that are recomputed ----

  void recompute(Json value, const Place& place, bool resolved = true) {
    const std::string condition = condition_of(place.line);
    said("recompute", std::move(value), place, resolved);
    if (!condition.empty()) said("recompute.if", condition, place);
  }

  // Whole layers, or what a policy of operators chooses (torch's selective checkpoints).
  [[nodiscard]] Json whole_or_selective() const {
    const bool chooses =
        file_.text.find("create_selective_checkpoint_contexts") != std::string::npos;
    return chooses ? Json("selective") : Json(true);
  }

  [[nodiscard]] bool is_checkpoint(const PythonCall& call, const std::string& callee) const {
    if (callee != "checkpoint" && callee != "checkpoint_sequential") return false;
    if (call.callee.find("checkpoint") < call.callee.rfind('.')) return true;  // utils.checkpoint.x
    return call.callee == callee &&
           file_.text.find("torch.utils.checkpoint import") != std::string::npos;
  }

  void read_recompute(const PythonCall& call, const std::string& callee) {
    if (callee == "gradient_checkpointing_enable") return recompute(true, call.place);
    if (callee == "gradient_checkpointing_disable") return recompute(false, call.place);
    const bool wraps = callee == "apply_activation_checkpointing" ||
                       callee == "checkpoint_wrapper" || callee == "ptd_checkpoint_wrapper";
    if (wraps || is_checkpoint(call, callee)) recompute(whole_or_selective(), call.place);
    if (is_training_arguments(call)) return;
    for (const std::string_view name :
         {"gradient_checkpointing", "use_gradient_checkpointing", "activation_checkpointing"}) {
      if (const PythonArgument* const a = call.find(name)) read_switch(*a);
    }
  }

  void read_recompute(const PythonAssignment& assignment) {
    const std::string name = assignment.target.substr(assignment.target.rfind('.') + 1);
    const bool is_field = assignment.target.find('.') != std::string::npos;
    if (is_field && name == "gradient_checkpointing") read_switch(assignment.value);
  }

  void read_switch(const PythonArgument& a) {
    if (a.resolved && a.value.is_null()) return;
    const bool on = a.value.is_boolean() ? a.value.get<bool>() : a.value.is_string();
    recompute(a.resolved ? Json(on) : Json(a.text), a.place, a.resolved);
  }

 public:
  // TrainingArguments, Seq2SeqTrainingArguments, and trl's SFTConfig and its like, which have a
  // folder or a batch as it does.
  static bool is_training_arguments(const PythonCall& call) {
    const std::string callee = callee_of(call);
    if (callee.ends_with("TrainingArguments")) return true;
    return callee.ends_with("Config") && (call.find("output_dir") != nullptr ||
                                          call.find("per_device_train_batch_size") != nullptr);
  }

 private:
  const PythonText& text_;
  const ConfigText& file_;
  std::vector<std::string_view> lines_;
  std::vector<std::string> fsdp_;
  Settings settings_;
};

}  // namespace

Settings own_script_settings(const PythonText& text, const ConfigText& file) {
  return OwnScript(text, file).read();
}

bool wraps_model(const Settings& own_script) {
  return own_script.has("FSDP");
}

Settings training_arguments(const PythonText& text) {
  Settings arguments;
  for (const PythonCall& call : text.calls) {
    if (!OwnScript::is_training_arguments(call)) continue;
    for (const PythonArgument& a : call.arguments) {
      if (a.name.empty() || (a.resolved && a.value.is_null())) continue;
      arguments.add(setting_of("--" + a.name, a));
    }
  }
  return arguments;
}

}  // namespace qplan
