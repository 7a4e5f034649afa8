#pragma once
// Between the numbers of a whole model and what one rank keeps of them.

#include <functional>
#include <span>
#include <vector>

#include "executor/io/weights.h"
#include "executor/rank.h"
#include "executor/weights.h"

namespace qplan {

// How a backend gets numbers out of its ranks' arenas and into them.
struct ArrayAccess {
  std::function<void(const Tensor& from, std::span<float> out)> read;
  std::function<void(std::span<const float> values, const Tensor& to)> write;
};
// Of this process's own memory.
const ArrayAccess& host_arrays();

// Numbers of the whole model, by the index of model_parameters(): row-major, empty where unknown.
using ModelTensors = std::vector<std::vector<float>>;
ModelTensors empty_tensors(const ParameterIndex& index);

// Every matrix of a block's packed parameters, trained or frozen, and where in the model it lies.
std::vector<ParameterPiece> pieces_of(const Rank& rank, const ParameterIndex& index, int instance,
                                      bool frozen = false);

// Fills a block's main parameters and working copies.
void load_weights(Rank& rank, const ParameterIndex& index, int instance,
                  const WeightSource& weights_of, const ArrayAccess& arrays);

// Adds what this rank knows of a whole: gradients or main parameters of its shards.
enum class Collected { gradients, main_params };
void collect(Rank& rank, const ParameterIndex& index, Collected what, const ArrayAccess& arrays,
             ModelTensors& tensors);

}  // namespace qplan
