#include "planner/frameworks/readers/python_settings.h"

#include <array>
#include <string_view>
#include <utility>

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

Settings torchtitan_settings(const PythonText& text) {
  Settings titan;
  for (const PythonCall& call : text.calls) {
    for (const auto& [config, section] : kTitanSections) {
      if (callee_of(call) != config) continue;
      for (const PythonArgument& a : call.arguments) {
        if (!a.name.empty()) titan.add(setting_of(std::string(section) + a.name, a));
      }
    }
  }
  for (const PythonCall& call : text.calls) {
    for (const PythonArgument& a : call.arguments) {
      if (titan.empty()) continue;
      if (a.name == "activation_checkpoint" || a.name == "loss") {
        const std::string name = a.text.substr(0, a.text.find('.'));
        titan.add({a.name, name, a.place, {}, {}, true});  // a part of the value
      }
      if (a.name == "moe_comm_backend" && a.resolved) titan.add(setting_of(a.name, a));
    }
  }
  for (const PythonAssignment& assignment : text.assignments) {
    for (const std::string_view section : {".parallelism.", ".training.", ".compile."}) {
      const std::size_t at = assignment.target.find(section);
      if (at == std::string::npos) continue;
      titan.add(setting_of(assignment.target.substr(at + 1), assignment.value));
    }
  }
  return titan;
}

}  // namespace qplan
