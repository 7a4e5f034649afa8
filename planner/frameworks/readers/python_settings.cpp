#include "planner/frameworks/readers/python_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace qplan {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kTitanSections{
    {{"TrainingConfig", "training."},
     {"ParallelismConfig", "parallelism."},
     {"CompileConfig", "compile."}}};

// "a.b.C" is C.
std::string callee_of(const PythonCall& call) {
  return call.callee.substr(call.callee.rfind('.') + 1);
}

Setting setting_of(std::string key, const PythonArgument& a) {
  const bool named = a.name_span.end > a.name_span.begin;
  const Span whole{named ? a.name_span.begin : a.span.begin, a.span.end};
  return {std::move(key), a.value, a.place, whole, a.span, a.resolved, a.name_span, Syntax::python};
}

// `"name": value` lines of a script that calls FSDP(model, **kwargs).
void read_keyword_dictionary(const ConfigText& file, Settings& fsdp) {
  for (const std::string_view key :
       {"sharding_strategy", "auto_wrap_policy", "cpu_offload", "mixed_precision"}) {
    const std::string quoted = fmt::format("\"{}\":", key);
    const std::size_t at = file.text.find(quoted);
    if (at == std::string::npos) continue;
    std::size_t from = at + quoted.size();
    while (from < file.text.size() && file.text[from] == ' ') ++from;
    const std::size_t end = std::min(file.text.find('\n', from), file.text.size());
    std::string value = file.text.substr(from, end - from);
    value = value.substr(0, value.find('#'));
    while (!value.empty() && (value.back() == ' ' || value.back() == ',')) value.pop_back();
    const Span span{from, from + value.size()};
    const Span name{at + 1, at + 1 + key.size()};
    const Place place{file.name, line_of(file.text, at)};
    fsdp.add({"FSDP." + std::string(key),
              value,
              place,
              {at, span.end},
              span,
              true,
              name,
              Syntax::python});
  }
}

}  // namespace

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

Settings fsdp_settings(const PythonText& text, const ConfigText& file) {
  Settings fsdp;
  for (const PythonCall& call : text.calls) {
    const std::string callee = callee_of(call);
    if (callee == "gradient_checkpointing_enable" && !fsdp.empty()) {
      fsdp.add({"FSDP.gradient_checkpointing", true, call.place, {}, {}, true});
    }
    if (callee != "FSDP" && callee != "FullyShardedDataParallel") continue;
    fsdp.add({"FSDP", call.callee, call.place, {}, {}, true});
    for (const PythonArgument& a : call.arguments) {
      if (a.name.empty()) continue;
      Setting setting = setting_of("FSDP." + a.name, a);
      if (!a.resolved) setting.value = a.text;
      setting.resolved = true;
      fsdp.add(std::move(setting));
    }
  }
  if (!fsdp.empty()) read_keyword_dictionary(file, fsdp);
  return fsdp;
}

}  // namespace qplan
