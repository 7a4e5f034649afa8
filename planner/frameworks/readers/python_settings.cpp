#include "planner/frameworks/readers/python_settings.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/frameworks/readers/python_functions.h"

namespace qplan {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kTitanSections{
    {{"TrainingConfig", "training."},
     {"ParallelismConfig", "parallelism."},
     {"CompileConfig", "compile."}}};

}  // namespace

std::string callee_of(const PythonCall& call) {
  return call.callee.substr(call.callee.rfind('.') + 1);
}

Setting setting_of(std::string key, const PythonArgument& a) {
  const bool named = a.name_span.end > a.name_span.begin;
  const Span whole{named ? a.name_span.begin : a.span.begin, a.span.end};
  return {std::move(key), a.value, a.place, whole, a.span, a.resolved, a.name_span, Syntax::python};
}

namespace {

void add_sections(const PythonText& text, Settings& titan) {
  for (const PythonCall& call : text.calls) {
    for (const auto& [config, section] : kTitanSections) {
      if (callee_of(call) != config) continue;
      for (const PythonArgument& a : call.arguments) {
        if (!a.name.empty()) titan.add(setting_of(std::string(section) + a.name, a));
      }
    }
  }
}

// A part of the value: the class of "FullAC.Config()".
Setting class_of(const std::string& key, const PythonArgument& a) {
  return {key, a.text.substr(0, a.text.find('.')), a.place, {}, {}, true};
}

void add_rest(const PythonText& text, Settings& titan) {
  for (const PythonCall& call : text.calls) {
    for (const PythonArgument& a : call.arguments) {
      if (a.name == "activation_checkpoint" || a.name == "loss") titan.add(class_of(a.name, a));
      if (a.name == "moe_comm_backend" && a.resolved) titan.add(setting_of(a.name, a));
    }
  }
  for (const PythonAssignment& assignment : text.assignments) {
    for (const std::string_view key : {"activation_checkpoint", "loss"}) {
      const bool whole = assignment.target.ends_with("." + std::string(key));
      const bool single = assignment.target.find('.') == assignment.target.rfind('.');
      if (whole && single) titan.add(class_of(std::string(key), assignment.value));
    }
    for (const std::string_view section : {".parallelism.", ".training.", ".compile."}) {
      const std::size_t at = assignment.target.find(section);
      if (at == std::string::npos) continue;
      titan.add(setting_of(assignment.target.substr(at + 1), assignment.value));
    }
  }
}

bool says_sections(const PythonText& text) {
  Settings sections;
  add_sections(text, sections);
  const bool assigns =
      std::any_of(text.assignments.begin(), text.assignments.end(), [](const PythonAssignment& a) {
        return a.target.find(".parallelism.") != std::string::npos ||
               a.target.find(".training.") != std::string::npos ||
               a.target.find(".compile.") != std::string::npos;
      });
  return assigns || !sections.empty();
}

// What of a text stands in each function.
std::vector<PythonText> by_function(const PythonFunctions& functions, const PythonText& text) {
  std::vector<PythonText> parts(functions.count());
  for (const PythonCall& call : text.calls) {
    parts[functions.of_line(call.place.line)].calls.push_back(call);
  }
  for (const PythonAssignment& assignment : text.assignments) {
    parts[functions.of_line(assignment.value.place.line)].assignments.push_back(assignment);
  }
  return parts;
}

// One that nobody else calls, or that says a whole configuration; others say parts of it.
bool makes_configuration(const PythonFunctions& functions, const std::vector<PythonText>& parts,
                         std::size_t function) {
  const auto& calls = parts[function].calls;
  const bool whole = std::any_of(calls.begin(), calls.end(), [](const PythonCall& call) {
    return call.callee.ends_with("Trainer.Config");
  });
  if (whole) return true;
  for (std::size_t i = 1; i < functions.count(); ++i) {
    if (i != function && functions.reached(i).contains(function)) return false;
  }
  return true;
}

std::string words_of(const Settings& settings) {
  std::map<std::string, std::string> last;
  for (const Setting& s : settings) last[s.key] = s.resolved ? text_of(s.value) : "?";
  std::string text;
  for (const auto& [key, value] : last) text += key + "=" + value + "\n";
  return text;
}

}  // namespace

Settings torchtitan_settings(const PythonText& text) {
  Settings titan;
  if (!says_sections(text)) return titan;
  add_sections(text, titan);
  add_rest(text, titan);
  return titan;
}

TitanFunction torchtitan_function(std::string_view file, PythonText& text, std::string_view named) {
  const PythonFunctions functions(file);
  const std::vector<PythonText> parts = by_function(functions, text);
  // What a function makes: what it calls says first.
  const auto made_by = [&](std::size_t function) {
    Settings titan;
    add_sections(parts[0], titan);
    add_rest(parts[0], titan);
    for (const std::size_t part : functions.in_order(function)) {
      add_sections(parts[part], titan);
      add_rest(parts[part], titan);
    }
    return titan;
  };
  TitanFunction found;
  std::size_t chosen = functions.named(named);
  if (chosen == 0) {
    std::set<std::string> kinds;
    for (std::size_t i = 1; i < functions.count(); ++i) {
      const auto& all = functions.reached(i);
      const bool says = std::any_of(all.begin(), all.end(),
                                    [&](std::size_t part) { return says_sections(parts[part]); });
      if (!says || !makes_configuration(functions, parts, i)) continue;
      if (chosen == 0 ||
          (functions.reached(0).contains(i) && !functions.reached(0).contains(chosen)))
        chosen = i;
      kinds.insert(words_of(made_by(i)));
    }
    found.several = kinds.size() > 1;
    if (!found.several) {
      found.settings = torchtitan_settings(text);
      return found;
    }
  }
  found.name = functions.name(chosen);
  found.settings = made_by(chosen);
  // Of several model_registry(...) the last one counts.
  const std::set<std::size_t>& kept = functions.reached(chosen);
  std::size_t registry = 0;
  for (const std::size_t part : functions.in_order(chosen)) {
    for (const PythonCall& call : parts[part].calls) {
      if (callee_of(call) == "model_registry") registry = part;
    }
  }
  for (PythonCall& call : text.calls) {
    const std::size_t owner = functions.of_line(call.place.line);
    const bool replaced = callee_of(call) == "model_registry" && registry != 0 && owner != registry;
    call.judged = (owner == 0 || kept.contains(owner)) && !replaced;
  }
  return found;
}

}  // namespace qplan
