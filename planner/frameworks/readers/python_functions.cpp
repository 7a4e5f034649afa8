#include "planner/frameworks/readers/python_functions.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "planner/frameworks/shell/text.h"

namespace qplan {
namespace {

struct Function {
  std::string name;  // empty: what stands outside of all
  std::string body;
};

std::string_view name_at(std::string_view line) {
  std::size_t end = 0;
  while (end < line.size() && is_shell_name(line[end])) ++end;
  return line.substr(0, end);
}

// The functions that begin in the first column; `of_line` says whose each line is, from 1.
std::vector<Function> functions_of(std::string_view file, std::vector<std::size_t>& of_line) {
  std::vector<Function> functions{{}};
  std::size_t current = 0;
  of_line.assign(1, 0);
  while (!file.empty()) {
    const std::size_t end = std::min(file.find('\n'), file.size() - 1) + 1;
    const std::string_view line = file.substr(0, end);
    const bool first_column = line.find_first_not_of(" \t\r\n") == 0;
    const bool closes =
        first_column && std::string_view("#)]}").find(line.front()) != std::string_view::npos;
    if (first_column && !closes) current = 0;
    if (line.starts_with("def ")) {
      functions.push_back({std::string(name_at(line.substr(4))), ""});
      current = functions.size() - 1;
    } else {
      functions[current].body += line;
    }
    of_line.push_back(current);
    file.remove_prefix(end);
  }
  return functions;
}

bool calls(const Function& caller, const Function& called) {
  const std::string& body = caller.body;
  for (std::size_t at = body.find(called.name); at != std::string::npos;
       at = body.find(called.name, at + 1)) {
    const bool begins = at == 0 || !is_shell_name(body[at - 1]);
    const std::size_t end = at + called.name.size();
    const bool used =
        end < body.size() && std::string_view("(,)").find(body[end]) != std::string_view::npos;
    if (begins && used) return true;  // called, or handed on
  }
  return false;
}

// All that one calls, directly or not, and itself.
std::set<std::size_t> reached(const std::vector<Function>& functions, std::size_t from) {
  std::set<std::size_t> found{from};
  std::vector<std::size_t> todo{from};
  while (!todo.empty()) {
    const Function& caller = functions[todo.back()];
    todo.pop_back();
    for (std::size_t i = 1; i < functions.size(); ++i) {
      if (calls(caller, functions[i]) && found.insert(i).second) todo.push_back(i);
    }
  }
  return found;
}

// "model.x" of "cfg.model.x", whatever the configuration is called.
std::string field_of(const std::string& target) {
  const std::size_t dot = target.find('.');
  return dot == std::string::npos ? "" : target.substr(dot + 1);
}

}  // namespace

std::string one_of_several(std::string_view file, PythonText& text) {
  std::vector<std::size_t> of_line;
  const std::vector<Function> functions = functions_of(file, of_line);
  const auto owner = [&](const PythonAssignment& assignment) {
    const auto line = static_cast<std::size_t>(std::max(assignment.value.place.line, 0));
    return line < of_line.size() ? of_line[line] : 0;
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
        if (reached(functions, a).contains(b) || reached(functions, b).contains(a)) continue;
        makers.insert({a, b});
      }
    }
  }
  if (makers.empty()) return "";
  const std::set<std::size_t> of_file = reached(functions, 0);
  const auto called = std::find_if(makers.begin(), makers.end(),
                                   [&](std::size_t maker) { return of_file.contains(maker); });
  const std::size_t chosen = called == makers.end() ? *makers.begin() : *called;
  std::set<std::size_t> kept = reached(functions, chosen);
  kept.insert(0);
  // Who calls it goes on with what it made.
  for (std::size_t i = 1; i < functions.size(); ++i) {
    if (!makers.contains(i) && reached(functions, i).contains(chosen)) kept.insert(i);
  }
  std::erase_if(text.assignments, [&](const PythonAssignment& assignment) {
    return !kept.contains(owner(assignment));
  });
  return functions[chosen].name;
}

}  // namespace qplan
