#pragma once
// Commands of Megatron-Bridge's scripts/performance (067f987d): a recipe of perf_recipes by model,
// GPUs and format ("-mr llama3_8b -ng 8 -g h100 -c fp8_cs"), with words on top of it.

#include <span>

#include "planner/frameworks/megatron/bridge_keys.h"

namespace qplan {

// Whatever script they are handed to: launchers of others are copies of setup_experiment.py.
bool is_of_performance(std::span<const ShellWord> words);
BridgeWords performance_words(std::span<const ShellWord> words);

}  // namespace qplan
