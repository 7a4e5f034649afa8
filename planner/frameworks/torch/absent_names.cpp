#include "planner/frameworks/torch/absent_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/ascii.h"
#include "planner/frameworks/readers/python_syntax.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {
namespace {

using enum Severity;

bool has_part(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Where a word stands as a name of its own, outside of texts and remarks.
template <class Use>
void for_each_name(std::string_view text, const Use& use) {
  std::size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
    } else if (c == '"' || c == '\'') {
      const std::string three(3, c);
      const bool block = text.compare(at, 3, three) == 0;
      const std::size_t begin = at + (block ? 3 : 1);
      std::size_t end = begin;
      while (end < text.size() && (block ? text.compare(end, 3, three) != 0 : text[end] != c)) {
        if (!block && text[end] == '\n') break;
        end += text[end] == '\\' ? std::size_t{2} : std::size_t{1};
      }
      at = std::min(end + (block ? 3 : 1), text.size());
    } else if (is_name(c)) {
      std::size_t end = at;
      while (end < text.size() && (is_name(text[end]) || text[end] == '.')) ++end;
      use(at, text.substr(at, end - at));
      at = end;
    } else {
      ++at;
    }
  }
}

constexpr auto kNoNames = std::to_array<std::array<std::string_view, 2>>({
    {"true", "True"},
    {"false", "False"},
    {"null", "None"},
    {"torch.bf16", "torch.bfloat16"},
    {"torch.fp16", "torch.float16"},
    {"torch.fp32", "torch.float32"},
    {"torch.Bfloat16", "torch.bfloat16"},
    {"torch.bloat16", "torch.bfloat16"},
    {"torch.bfloat", "torch.bfloat16"},
});

// Names of torch's FSDP that are used, and neither imported nor made: Python stops at them.
void check_unimported(const ConfigText& file, Findings& out) {
  constexpr std::array<std::string_view, 6> kNames{"ShardingStrategy",     "BackwardPrefetch",
                                                   "MixedPrecision",       "CPUOffload",
                                                   "MixedPrecisionPolicy", "CPUOffloadPolicy"};
  const std::vector<PythonImport> imports = python_imports(file.text);
  std::vector<std::string> made;
  for (const PythonImport& import : imports) {
    made.insert(made.end(), import.names.begin(), import.names.end());
  }
  // A part of a program, pasted without its imports, tells nothing.
  const bool whole = std::any_of(imports.begin(), imports.end(), [](const PythonImport& import) {
    return import.module.starts_with("torch.distributed.fsdp");
  });
  if (!whole || std::find(made.begin(), made.end(), "*") != made.end()) return;
  std::vector<std::string> told;
  for_each_name(file.text, [&](std::size_t at, std::string_view name) {
    const std::string_view first = name.substr(0, name.find('.'));
    const bool of_torch = std::find(kNames.begin(), kNames.end(), first) != kNames.end();
    const std::size_t end = at + name.size();
    const bool used =
        name.size() > first.size() || (end < file.text.size() && file.text[end] == '(');
    const bool there = std::find(made.begin(), made.end(), first) != made.end() ||
                       has_part(file.text, fmt::format("class {}", first)) ||
                       has_part(file.text, fmt::format("import {}", first)) ||
                       has_part(file.text, fmt::format("as {}", first)) ||
                       has_part(file.text, fmt::format("{} =", first));
    if (!of_torch || !used || there || std::find(told.begin(), told.end(), first) != told.end()) {
      return;
    }
    told.emplace_back(first);
    out.push_back({error,
                   "undefined_name",
                   {file.name, line_of(file.text, at)},
                   fmt::format("{} is used and nothing here imports it", first),
                   fmt::format("from torch.distributed.fsdp import {}", first),
                   "Python 3, Lib/ast.py",
                   {}});
  });
}

// Whether a value stands there: behind what a value stands behind, and set nowhere.
bool is_value_at(std::string_view text, std::size_t at) {
  std::size_t before = at;
  while (before > 0 && (text[before - 1] == ' ' || text[before - 1] == '\n')) --before;
  return before > 0 && std::string_view("=(,[:{").find(text[before - 1]) != std::string_view::npos;
}

void check_no_names(const ConfigText& file, Findings& out) {
  const std::string_view text = file.text;
  for (const std::string_view name : {"true", "false", "null"}) {
    for (const std::string_view set : {" =", "=", ",", " import "}) {
      // "true = True", "for true, x in"; "import true".
      const std::string made =
          set == " import " ? fmt::format("import {}", name) : fmt::format("\n{}{}", name, set);
      if (has_part(text, made)) return;
    }
  }
  for_each_name(text, [&](std::size_t at, std::string_view name) {
    const auto* const row = std::find_if(kNoNames.begin(), kNoNames.end(),
                                         [&](const auto& known) { return known[0] == name; });
    const std::size_t end = at + name.size();
    const bool key = end < text.size() && text[end] == '=' && text.substr(end, 2) != "==";
    if (row == kNoNames.end() || !is_value_at(text, at) || key) return;
    out.push_back(
        {error,
         "undefined_name",
         {file.name, line_of(text, at)},
         name.starts_with("torch.")
             ? fmt::format("torch has no {}, and Python stops", name.substr(6))
             : fmt::format("{} is no name of Python's, which stops at it", name),
         std::string((*row)[1]),
         name.starts_with("torch.") ? "PyTorch 2.11, torch/__init__.py" : "Python 3, Lib/ast.py",
         {{file.name, at, end, std::string((*row)[1])}}});
  });
}

}  // namespace

void check_absent_names(const Scene& scene, Findings& out) {
  for (const ConfigText& file : scene.files.texts) {
    if (file_kind_of(file) != FileKind::python) continue;
    check_no_names(file, out);
    check_unimported(file, out);
  }
}

}  // namespace qplan
