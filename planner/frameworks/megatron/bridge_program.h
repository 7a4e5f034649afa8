#pragma once
// A Megatron-Bridge program put together without running it: what its recipe sets by itself
// (options/bridge_recipes.tsv), and on top of that what the program sets.

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/formats.h"

namespace qplan {

struct BridgeProgram {
  // The last value of each field, in the order they are set: "model.x", "mixed_precision".
  std::vector<PythonAssignment> fields;
  std::vector<std::string> open;  // what sets more that is not known, in sentences
  std::set<std::string, std::less<>> open_sections;  // that it may set more of: "ddp"
};
BridgeProgram bridge_program(const PythonText& text);

// A value that only a recipe's own code could tell, and one that is set, or not, elsewhere.
inline constexpr std::string_view kByRecipe = "by_the_recipe", kElsewhere = "set_elsewhere";

// A recipe by the name that it is called by, of recipes or of perf_recipes, whose names may be the
// same; null: it is none that is known.
inline constexpr std::string_view kPerfRecipes = "perf_recipes.";
const KnownOption* known_bridge_recipe(std::string_view callee);

// Arguments of a recipe's function that it does not take. Earlier releases took a plan's words so,
// and they are read as if it did.
std::vector<const PythonArgument*> refused_arguments(const PythonCall& recipe);

}  // namespace qplan
