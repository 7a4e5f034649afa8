#pragma once
// Rules about what an implementation offers. The step program exists whatever they say, so a run
// that somebody made is priced, and a plan is not called infeasible for them alone.

#include <cstddef>
#include <string_view>

#include "models/program/recipe.h"

namespace qplan {

bool is_soft_rule(std::string_view rule, RecipeKind recipe);

std::size_t soft_rule_count();  // of those for every recipe

}  // namespace qplan
