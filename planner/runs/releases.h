#pragma once
// Of which month a run's framework was (releases.tsv).

#include <string_view>
#include <vector>

#include "planner/runs/clue.h"

namespace qplan {

struct Release : Clue {
  int month = 0;  // 0: the one that the pattern finds
};

struct RunDates {
  int month = 0;    // 202412; 0: today's
  int release = 0;  // ... where the row itself names it; 0: it does not
  bool operator==(const RunDates&) const = default;
};

class ReleaseTable {
 public:
  // Throws Error with file and line for a row that is none.
  ReleaseTable(std::string_view tsv, std::string_view where);

  [[nodiscard]] const std::vector<Release>& releases() const { return releases_; }
  // By the first row that holds. Of `in`, the recipe is set.
  [[nodiscard]] RunDates dates_of(const RunRow& row, const RunInputs& in) const;

 private:
  std::vector<Release> releases_;
};

const ReleaseTable& known_releases();  // the built-in table

}  // namespace qplan
