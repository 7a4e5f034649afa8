#pragma once
// Megatron-Bridge's configuration without a program (067f987d): a YAML on top of a recipe, one that
// names its recipe, the run_config.yaml that a run writes of itself, and words of a command
// ("run_recipe.py --recipe x -tp 2 train.micro_batch_size=1"). Each is put as the program that
// would set the same.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/formats.h"
#include "planner/frameworks/setting.h"
#include "planner/frameworks/shell/shell.h"

namespace qplan {

enum class BridgeYaml : std::uint8_t {
  none,
  overrides,  // on top of what a command or a program begins with
  recipe,     // that it names ("recipe._target_", as NVIDIA's Nemotron recipes do)
  whole       // all that a run had
};
BridgeYaml bridge_yaml_of(const Settings& yaml);

// As assignments to "cfg", at their places in the file, behind what the text holds.
void add_bridge_keys(BridgeYaml kind, const Settings& yaml, PythonText& text);

// What a command hands to a Bridge program.
struct BridgeWords {
  std::string recipe;                // that it names; empty: the program has its own
  PythonText text;                   // the recipe's call, and what stands on top of it
  ShellWord yaml;                    // that it merges before its words; empty: none
  std::vector<Finding> findings;     // what the runner's own parser refuses
  std::optional<std::int64_t> gpus;  // that it starts, where it says so
  ShellWord gpu{};                   // that it is for, likewise
};
// Whether these are such words: of Bridge's own runner, or keys of its sections.
bool is_of_bridge(std::span<const ShellWord> words, std::string_view script);
BridgeWords bridge_words(std::span<const ShellWord> words, std::string_view script);

// What a file of Bridge's says that is no Python: wrong names and values of it, and its recipe.
// Lenient: the file is another release's, or read by a program with sections of its own.
void check_bridge_keys(const PythonText& text, bool lenient, std::vector<Finding>& out);

// A built-in model by the recipe that the text calls; empty: it calls none, or that of another.
std::string model_of_bridge(const PythonText& text);
// Shapes that a whole configuration says, as Megatron's arguments; empty: it says none.
Settings bridge_shapes(const PythonText& text);

}  // namespace qplan
