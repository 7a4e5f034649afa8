#pragma once
// Builders of blocks: one function a kind of layer, each reading like the figure in its paper.

#include <cstdint>

#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "models/program/block.h"
#include "models/program/block_shape.h"
#include "models/program/recipe.h"

namespace qplan {

// The part of the model that a block with parameters is.
ModelPart model_part(BlockKind kind);

// Whether the block works with the states of its rank's embedding, and has none of its own. A tied
// head's norm is then packed with the embedding.
bool shares_embedding(const ModelSpec& model, const BlockShape& shape);
// Whether it holds the embedding's table where another pipeline rank does as well.
bool copies_embedding(const ModelSpec& model, const BlockShape& shape);

// What one rank works with in this block, and its sum; vocabulary padded to 128*tp (Megatron,
// vocab_utils.py).
std::vector<PackedParameter> packed_parameters(const ModelSpec& model, const BlockShape& shape);
RankParameters sum_of(const std::vector<PackedParameter>& parameters);
RankParameters rank_parameters(const ModelSpec& model, const BlockShape& shape);

// An adapter of one of several weights packed side by side: its matrices (and magnitudes, if it has
// such) in the block's table, and its columns of what the weights' product makes.
struct AdaptedPart {
  std::int16_t a = kNoParameter, b = kNoParameter, magnitude = kNoParameter;
  std::int16_t weight = kNoParameter;  // what it stands beside
  std::int64_t column = 0, width = 0;
};
// Those beside the weights from `first` on that make so many columns together.
std::vector<AdaptedPart> adapted_parts(const std::vector<PackedParameter>& table,
                                       ParameterRole first, std::int64_t columns);

// The first of the weights that are packed with this one: q_proj of k_proj and v_proj, gate of up.
ParameterRole pack_begin(const std::vector<PackedParameter>& table, ParameterRole role);

// Of so many elements with an optimizer's states, those whose states and step are the host's.
std::int64_t offloaded_elements(const BlockShape& shape, std::int64_t elements);

// The step of so many of them, in the formats that the recipe has there.
HostAdam host_step(const Recipe& recipe, const BlockShape& shape, std::int64_t elements);

// Copies that an expert takes of the `copies` that one rank sends (Megatron's get_capacity()).
std::int64_t expert_capacity(std::int64_t copies, const MoeSpec& moe, double factor);

// The ZeRO stage that forward and backward go by.
int sharding_in_blocks(const ParallelPlan& plan, const Recipe& recipe);

// True when parameters are gathered layer by layer (ZeRO-3, FSDP).
bool gathers_parameters(const Recipe& recipe, int zero);

// Each microbatch's gradients are made fp32 before they are added
// (Recipe::states.widens_gradients).
bool widens_gradients(const Recipe& recipe, const BlockShape& shape);

Block build_block(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape);

// The block of state_shape(): its states and gather, reduce, norm and update lists only.
Block build_states(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape);

}  // namespace qplan
