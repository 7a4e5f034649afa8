#include "costmodel/measured.h"

#include <algorithm>

#include "models/csv.h"
#include "models/embedded.h"
#include "models/error.h"

namespace qplan {

extern const EmbeddedFile measured_files[];
extern const std::size_t measured_files_count;

namespace {

std::vector<MeasuredOn> read_measured() {
  QPLAN_CHECK(measured_files_count == 1, "one table says what was measured");
  std::vector<MeasuredOn> found;
  for (const CsvTable::Row& row : parse_tsv(measured_files[0].text(), "measured.tsv").rows) {
    found.push_back({from_word<RecipeKind>(row.cells[0]), row.cells[1], row.cells[2]});
  }
  return found;
}

}  // namespace

const std::vector<MeasuredOn>& measured_on() {
  static const std::vector<MeasuredOn> all = read_measured();
  return all;
}

bool was_measured_on(RecipeKind recipe, const std::string& gpu) {
  return std::any_of(measured_on().begin(), measured_on().end(), [&](const MeasuredOn& known) {
    return known.recipe == recipe && known.gpu == gpu;
  });
}

}  // namespace qplan
