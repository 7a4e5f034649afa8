#pragma once
// Megatron-Bridge (067f987d): a recipe's ConfigContainer with Megatron's words set on it. What a
// word is called there, and nothing else, stands here; values come from Megatron's own table.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/emit.h"
#include "planner/frameworks/readers/formats.h"

namespace qplan {

// The recipe function that a built-in model's job starts from; null: there is none.
struct BridgeRecipe {
  std::string_view model, function;
  std::string_view provider{};  // of the model, in Python, where the recipe is a relative's
};
const BridgeRecipe* bridge_recipe(std::string_view model);
// The model that a recipe's function makes, by its name ("qwen3_8b_sft_config"); empty: it is none
// of these.
std::string built_in_of_bridge_recipe(std::string_view function);

struct BridgeAssignment {
  std::string target;  // "model.tensor_model_parallel_size"
  std::string value;   // as Python spells it
};
std::vector<BridgeAssignment> bridge_assignments(const Subject& subject);

// What a program's configuration holds ("cfg.model.x = 2") as Megatron's flags, with the two
// lengths by their own names; other fields are left out.
Settings bridge_settings(const PythonText& text);

// Fields by their own name without the section: "seq_length" is the model's and the data's.
std::vector<std::string> bridge_fields_called(std::string_view name);

// A sentence with Megatron's flags in it, in the words that a program has; of advice with their
// values: "--recompute-method uniform" is "cfg.model.recompute_method = \"uniform\"".
std::string bridge_spelled(const std::string& sentence);
std::string bridge_advice(const std::string& sentence);

// The same of files that are no Python: "cfg.model.x = True" is "model.x=true".
std::string bridge_as_key(const std::string& sentence);

// Whether a program merges a YAML and words of its command into its configuration
// (src/megatron/bridge/training/utils/omegaconf_utils.py): what they say may be anything.
bool merges_overrides(std::string_view program);

std::span<const Limit> bridge_limits();

}  // namespace qplan
