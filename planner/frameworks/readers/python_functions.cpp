#include "planner/frameworks/readers/python_functions.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "planner/frameworks/shell/text.h"

namespace qplan {
namespace {

std::string_view name_at(std::string_view line) {
  std::size_t end = 0;
  while (end < line.size() && is_shell_name(line[end])) ++end;
  return line.substr(0, end);
}

// Whether a function is called in a body, or handed on.
bool is_used(const std::string& body, const std::string& name) {
  for (std::size_t at = body.find(name); at != std::string::npos; at = body.find(name, at + 1)) {
    const bool begins = at == 0 || !is_shell_name(body[at - 1]);
    const std::size_t end = at + name.size();
    if (begins && end < body.size() && std::string_view("(,)").find(body[end]) != std::string::npos)
      return true;
  }
  return false;
}

// "model.x" of "cfg.model.x", whatever the configuration is called.
std::string field_of(const std::string& target) {
  const std::size_t dot = target.find('.');
  return dot == std::string::npos ? "" : target.substr(dot + 1);
}

}  // namespace

PythonFunctions::PythonFunctions(std::string_view file) {
  std::size_t current = 0;
  while (!file.empty()) {
    const std::size_t end = std::min(file.find('\n'), file.size() - 1) + 1;
    const std::string_view line = file.substr(0, end);
    const bool first_column = line.find_first_not_of(" \t\r\n") == 0;
    const bool closes =
        first_column && std::string_view("#)]}").find(line.front()) != std::string_view::npos;
    if (first_column && !closes) current = 0;
    if (line.starts_with("def ")) {
      functions_.push_back({std::string(name_at(line.substr(4))), "", {}});
      current = functions_.size() - 1;
    } else {
      functions_[current].body += line;
    }
    of_line_.push_back(current);
    file.remove_prefix(end);
  }
  for (Function& caller : functions_) {
    for (std::size_t i = 1; i < functions_.size(); ++i) {
      if (is_used(caller.body, functions_[i].name)) caller.calls.insert(i);
    }
  }
  for (std::size_t from = 0; from < functions_.size(); ++from) {
    const std::vector<std::size_t> all = in_order(from);
    reached_.emplace_back(all.begin(), all.end());
  }
}

std::size_t PythonFunctions::named(std::string_view name) const {
  // Of two of one name the later one is it.
  for (std::size_t i = functions_.size() - 1; i > 0; --i) {
    if (functions_[i].name == name) return i;
  }
  return 0;
}

std::size_t PythonFunctions::of_line(int line) const {
  const auto at = static_cast<std::size_t>(std::max(line, 0));
  return at < of_line_.size() ? of_line_[at] : 0;
}

std::vector<std::size_t> PythonFunctions::in_order(std::size_t from) const {
  std::vector<std::size_t> order;
  // What calls itself, by others too, has a place already.
  std::set<std::size_t> begun{from};
  struct Open {
    std::size_t function;
    std::set<std::size_t>::const_iterator next;
  };
  std::vector<Open> open{{from, functions_[from].calls.begin()}};
  while (!open.empty()) {
    Open& top = open.back();
    if (top.next == functions_[top.function].calls.end()) {
      order.push_back(top.function);
      open.pop_back();
    } else if (const std::size_t called = *top.next++; begun.insert(called).second) {
      open.push_back({called, functions_[called].calls.begin()});
    }
  }
  return order;
}

std::string one_of_several(std::string_view file, PythonText& text) {
  const PythonFunctions functions(file);
  const auto owner = [&](const PythonAssignment& assignment) {
    return functions.of_line(assignment.value.place.line);
  };
  std::map<std::string, std::map<std::size_t, std::string>> said;  // field, function: the value
  for (const PythonAssignment& assignment : text.assignments) {
    const std::string field = field_of(assignment.target);
    if (!field.empty() && owner(assignment) != 0)
      said[field][owner(assignment)] = assignment.value.text;
  }
  std::set<std::size_t> makers;
  for (const auto& [field, by_function] : said) {
    for (const auto& [a, of_a] : by_function) {
      for (const auto& [b, of_b] : by_function) {
        if (a >= b || of_a == of_b) continue;
        if (functions.reached(a).contains(b) || functions.reached(b).contains(a)) continue;
        makers.insert({a, b});
      }
    }
  }
  if (makers.empty()) return "";
  const std::set<std::size_t>& of_file = functions.reached(0);
  const auto called = std::find_if(makers.begin(), makers.end(),
                                   [&](std::size_t maker) { return of_file.contains(maker); });
  const std::size_t chosen = called == makers.end() ? *makers.begin() : *called;
  std::set<std::size_t> kept = functions.reached(chosen);
  kept.insert(0);
  // Who calls it goes on with what it made.
  for (std::size_t i = 1; i < functions.count(); ++i) {
    if (!makers.contains(i) && functions.reached(i).contains(chosen)) kept.insert(i);
  }
  std::erase_if(text.assignments, [&](const PythonAssignment& assignment) {
    return !kept.contains(owner(assignment));
  });
  for (PythonCall& call : text.calls) {
    call.judged = call.judged && kept.contains(functions.of_line(call.place.line));
  }
  return functions.name(chosen);
}

}  // namespace qplan
