#pragma once
// What has been measured: predictions of another recipe, or on another GPU, were never held against
// a run; those of these were, and their intervals learn from how far off they turned out
// (measured.tsv).

#include <string>
#include <vector>

#include "models/plan/recipe_kind.h"

namespace qplan {

struct MeasuredOn {
  RecipeKind recipe = RecipeKind::megatron;
  std::string gpu;        // as profiles name it
  bool adapters = false;  // on frozen weights, else whole models
  int runs = 0;           // whose step times were looked at; 0: not counted
  double reach = 1;   // four in five lay within so many half widths of the interval without this
  std::string where;  // file of tests/data/runs, or a source
  // What their interval is widened by: `reach`, the closer the more runs there are.
  [[nodiscard]] double widening() const;
};

const std::vector<MeasuredOn>& measured_on();

// Null where the recipe never trained whole models, or adapters, on the GPU while someone measured.
const MeasuredOn* find_measured_on(RecipeKind recipe, const std::string& gpu, bool adapters);

}  // namespace qplan
