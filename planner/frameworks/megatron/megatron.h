#pragma once
// Megatron-LM's arguments (d98e8a64, core 0.20.0), which slime and Megatron-Bridge share.

#include <span>
#include <vector>

#include "planner/frameworks/option.h"

namespace qplan {

std::span<const Option> megatron_options();
std::span<const Fact> megatron_facts();
std::span<const Limit> megatron_limits();

// States below fp32, and offload, come with the precision-aware optimizer (arguments.py:1885).
bool megatron_precision_aware(const Subject& s);

// What several flags say together: virtual stages, uneven stages, expert tensor parallelism.
void settle_megatron(Draft& draft, const ModelSpec& model);

// Layers as they are divided among stages: embedding and loss may count as one each.
int counted_layers(const Draft& draft, const ModelSpec& model);

// Layers of each virtual stage, in the order of the layers, where the first or the last stage has a
// count of its own (transformer_config.py:2304) or where embedding or loss count as a layer
// (transformer_config.py:2409). Empty where what they leave does not divide into the other stages
// and their chunks.
std::vector<int> uneven_stages(const Draft& draft, const ModelSpec& model);

// "Ett|ttt|ttL" for decoder layers a stage: --pipeline-model-parallel-layout.
std::string megatron_layout(const ParallelPlan& plan, std::int64_t mtp_layers);

// Which of `layers` layers hold experts, of "2" (every second) or "([0]*3+[1]*58)".
std::vector<bool> moe_layers(std::string_view text, std::size_t layers);

}  // namespace qplan
