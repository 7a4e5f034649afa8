#include "planner/frameworks/torch/python_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "models/ascii.h"
#include "planner/frameworks/readers/formats.h"

namespace qplan {
namespace {

struct Import {
  std::size_t begin = 0, end = 0;  // from the line's begin, to the end of the statement's last line
  std::string indent;
  std::string module;  // of "from module import names"; empty: "import names"
  std::string names;
};

// Whether names ("a, b as c") bind this one.
bool binds(const std::string& names, std::string_view name) {
  for (std::size_t at = names.find(name); at != std::string::npos; at = names.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    const bool begins = at == 0 || (!is_name(names[at - 1]) && names[at - 1] != '.');
    const bool ends = end == names.size() || (!is_name(names[end]) && names[end] != '.');
    const std::size_t next = std::min(names.find_first_not_of(" \t", end), names.size());
    if (begins && ends && names.compare(next, 3, "as ") != 0) return true;
  }
  return false;
}

// The end of a line, without it.
std::size_t line_end(const std::string& text, std::size_t at) {
  const std::size_t end = std::min(text.find('\n', at), text.size());
  return end > at && text[end - 1] == '\r' ? end - 1 : end;
}

std::optional<Import> import_at(const std::string& text, std::size_t begin) {
  Import read;
  read.begin = begin;
  const std::size_t word = std::min(text.find_first_not_of(" \t", begin), text.size());
  read.indent = text.substr(begin, word - begin);
  std::size_t names = word;
  if (text.compare(word, 5, "from ") == 0) {
    const std::size_t import = text.find(" import", word);
    if (import == std::string::npos || import > line_end(text, word)) return std::nullopt;
    read.module = text.substr(word + 5, import - word - 5);
    names = import + 7;
  } else if (text.compare(word, 7, "import ") == 0) {
    names = word + 7;
  } else {
    return std::nullopt;
  }
  const std::size_t first = std::min(text.find_first_not_of(" \t", names), text.size());
  const bool brackets = first < text.size() && text[first] == '(';
  std::size_t last = brackets ? std::min(text.find(')', first), text.size()) : first;
  read.end = line_end(text, last);
  while (!brackets && read.end > first && text[read.end - 1] == '\\' && read.end < text.size()) {
    read.end = line_end(text, std::min(text.find('\n', read.end) + 1, text.size()));
  }
  read.names = text.substr(first, read.end - first);
  read.names = read.names.substr(0, brackets ? std::string::npos : read.names.find('#'));
  return read;
}

// Statements of the file: text in triple quotes is passed over.
std::vector<Import> imports_of(const std::string& text) {
  std::vector<Import> imports;
  std::string open;  // the quotes that are open
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (open.empty()) {
      if (auto import = import_at(text, at)) {
        at = std::min(text.find('\n', import->end), text.size() - 1) + 1;
        imports.push_back(std::move(*import));
        continue;
      }
    }
    for (std::size_t i = at; i + 2 < end; ++i) {
      const std::string three = text.substr(i, 3);
      const bool quotes = three == "\"\"\"" || three == "'''";
      if (!quotes || (!open.empty() && three != open)) continue;
      open = open.empty() ? three : "";
      i += 2;
    }
    at = end + 1;
  }
  return imports;
}

std::string_view break_before(const std::string& text, std::size_t end) {
  return end < text.size() && text[end] == '\r' ? "\r\n" : "\n";
}

}  // namespace

ImportEdits import_of_fsdp(const std::string& text, const std::string& file,
                           std::string_view name) {
  constexpr std::string_view kModule = "torch.distributed.fsdp";
  const std::vector<Import> imports = imports_of(text);
  const Import* beside = nullptr;
  for (const Import& import : imports) {
    if (!import.module.starts_with(kModule)) continue;
    if (binds(import.names, name) || import.names.starts_with('*')) return {true, {}};
    if (beside == nullptr && binds(import.names, "FullyShardedDataParallel")) beside = &import;
    const bool renamed = import.names.find("FullyShardedDataParallel as") != std::string::npos;
    if (beside == nullptr && renamed) beside = &import;
  }
  if (beside == nullptr) return {};
  const std::string line = fmt::format("{}{}from {} import {}", break_before(text, beside->end),
                                       beside->indent, kModule, name);
  return {true, {{file, beside->end, beside->end, line}}};
}

ImportEdits import_module(const std::string& text, const std::string& file,
                          std::string_view module) {
  return import_lines(text, file, {{"", module}});
}

ImportEdits import_lines(const std::string& text, const std::string& file,
                         const std::vector<WantedImport>& wanted) {
  const std::vector<Import> imports = imports_of(text);
  const Import* first = nullptr;
  for (const Import& import : imports) {
    if (!import.indent.empty()) continue;
    if (first == nullptr && import.module != "__future__") first = &import;
  }
  std::string lines;
  for (const auto& [module, names] : wanted) {
    const bool known = std::any_of(imports.begin(), imports.end(), [&](const Import& import) {
      return import.indent.empty() && import.module == module &&
             binds(import.names, names.substr(0, names.find(',')));
    });
    if (known) continue;
    if (first == nullptr) return {};
    const std::string_view end = break_before(text, line_end(text, first->begin));
    lines += module.empty() ? fmt::format("import {}{}", names, end)
                            : fmt::format("from {} import {}{}", module, names, end);
  }
  if (lines.empty()) return {true, {}};
  return {true, {{file, first->begin, first->begin, lines}}};
}

}  // namespace qplan
