#include "cli/page.h"

#include <algorithm>

#include "models/text.h"

namespace qplan {
namespace {

Page present;  // NOLINT: set once a command, before anything is printed

}  // namespace

const Page& page() {
  return present;
}

std::string fitted(std::string line) {
  const bool fits = page().table == 0 || display_width(line) <= page().table + 1;  // its newline
  if (fits) return line;
  if (line.ends_with('\n')) line.pop_back();
  return wrapped(line, page().table, 2);
}

PageOf::PageOf(int columns) : before_(present) {
  present = {};
  if (columns <= 0) return;
  present.table = static_cast<std::size_t>(columns);
  present.text = std::min(present.text, present.table);
}

PageOf::~PageOf() {
  present = before_;
}

}  // namespace qplan
