#pragma once
// Between the numbers of a whole model and what one rank keeps of them.

#include <span>
#include <vector>

#include "executor/io/weights.h"
#include "executor/rank.h"
#include "executor/weights.h"

namespace qplan {

// Numbers of the whole model, by the index of model_parameters(): row-major, empty where unknown.
using ModelTensors = std::vector<std::vector<float>>;
ModelTensors empty_tensors(const ParameterIndex& index);

// Every matrix of a block's packed parameters, and where in the model it lies.
std::vector<ParameterPiece> pieces_of(const Rank& rank, const ParameterIndex& index, int instance);

// A block's packed parameters on this rank.
std::vector<float> packed_weights(const Rank& rank, const ParameterIndex& index, int instance,
                                  const WeightSource& weights_of);

// The elements of this rank's shard out of the packed ones, and `shard`'s numbers into the whole
// model's.
std::vector<float> shard_of(const Rank& rank, int instance, std::span<const float> packed);
void put_shard(const Rank& rank, const ParameterIndex& index, int instance,
               std::span<const float> shard, ModelTensors& tensors);

}  // namespace qplan
