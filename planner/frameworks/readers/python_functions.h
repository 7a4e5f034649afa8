#pragma once
// Functions of a Python file, and which of them make one configuration together.

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/readers/formats.h"

namespace qplan {

// The functions that begin in the first column, by numbers from 1; 0 is what stands outside of all.
class PythonFunctions {
 public:
  explicit PythonFunctions(std::string_view file);

  [[nodiscard]] std::size_t count() const { return functions_.size(); }
  [[nodiscard]] const std::string& name(std::size_t function) const {
    return functions_[function].name;
  }
  [[nodiscard]] std::size_t named(std::string_view name) const;  // 0: none is called so
  [[nodiscard]] std::size_t of_line(int line) const;
  // All that one calls or hands on, directly or not, and itself.
  [[nodiscard]] const std::set<std::size_t>& reached(std::size_t from) const {
    return reached_[from];
  }
  // The same, each behind those that it calls.
  [[nodiscard]] std::vector<std::size_t> in_order(std::size_t from) const;

 private:
  struct Function {
    std::string name, body;
    std::set<std::size_t> calls;
  };

  std::vector<Function> functions_{{}};
  std::vector<std::size_t> of_line_{0};
  std::vector<std::set<std::size_t>> reached_;
};

// Where functions of a file assign different values to one field, and neither calls the other, they
// make configurations of their own: the assignments of one stay in `text`, with those of the
// functions that it calls and those outside of any. It is the one that the file itself calls, else
// the first of them. Returns its name; empty: there is one configuration, and nothing was taken
// away.
std::string one_of_several(std::string_view file, PythonText& text);

}  // namespace qplan
