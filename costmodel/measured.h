#pragma once
// What has been measured: predictions of another recipe, or on another GPU, were never held against
// a run (measured.tsv).

#include <string>
#include <vector>

#include "models/plan/recipe_kind.h"

namespace qplan {

struct MeasuredOn {
  RecipeKind recipe = RecipeKind::megatron;
  std::string gpu;  // as profiles name it
  std::string where;
};

const std::vector<MeasuredOn>& measured_on();

bool was_measured_on(RecipeKind recipe, const std::string& gpu);

}  // namespace qplan
