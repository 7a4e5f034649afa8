#pragma once
// How wide text is written.

#include <algorithm>
#include <cstddef>
#include <string>

namespace qplan {

// Sentences are broken at `text` columns. Tables wider than `table` are stacked; 0: never, as in a
// file or a pipe, where text looks the same everywhere.
struct Page {
  std::size_t text = 116, table = 0;
};

// Of the command that runs; what is printed to is a fact of the whole process.
const Page& page();

// A line as it is, or broken where the terminal is narrower.
std::string fitted(std::string line);

// A terminal of so many columns while this lives; 0: none.
class PageOf {
 public:
  explicit PageOf(int columns);
  ~PageOf();
  PageOf(const PageOf&) = delete;
  PageOf& operator=(const PageOf&) = delete;

 private:
  Page before_;
};

}  // namespace qplan
