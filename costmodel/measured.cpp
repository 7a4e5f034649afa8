#include "costmodel/measured.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "models/csv.h"
#include "models/embedded.h"
#include "models/error.h"
#include "models/plan/plan_text.h"
#include "models/portable_math.h"

namespace qplan {

extern const EmbeddedFile measured_files[];
extern const std::size_t measured_files_count;

namespace {

std::vector<MeasuredOn> read_measured() {
  QPLAN_CHECK(measured_files_count == 1, "one table says what was measured");
  std::vector<MeasuredOn> found;
  for (const CsvTable::Row& row : parse_tsv(measured_files[0].text(), "measured.tsv").rows) {
    const auto& cells = row.cells;
    MeasuredOn one{.recipe = from_word<RecipeKind>(cells[0]),
                   .gpu = cells[1],
                   .adapters = cells[2] == "adapters",
                   .where = cells[5]};
    if (!cells[3].empty()) {
      constexpr std::int64_t kMost = 100'000;
      one.runs = static_cast<int>(parse_count("runs", cells[3], 1, kMost));
      one.reach = static_cast<double>(parse_count("reach_percent", cells[4], 1, kMost)) / 100;
    }
    found.push_back(std::move(one));
  }
  return found;
}

}  // namespace

const std::vector<MeasuredOn>& measured_on() {
  static const std::vector<MeasuredOn> all = read_measured();
  return all;
}

const MeasuredOn* find_measured_on(RecipeKind recipe, const std::string& gpu, bool adapters) {
  const auto it =
      std::find_if(measured_on().begin(), measured_on().end(), [&](const MeasuredOn& known) {
        return known.recipe == recipe && known.gpu == gpu && known.adapters == adapters;
      });
  return it == measured_on().end() ? nullptr : &*it;
}

double MeasuredOn::widening() const {
  // As many runs as count half. With 20, what one source's runs say of another's is right for 82 in
  // a hundred; 10 and 60 differ by a hundredth
  // (docs/evidence/archive/accuracy-intervals-2026-11-27.md).
  constexpr double kHalf = 20;
  return portable::pow(reach, runs / (runs + kHalf));
}

}  // namespace qplan
