#pragma once
// Where a model's weights come from: a seed, or a checkpoint in Hugging Face's naming. Either gives
// any part of any parameter, so a rank reads its shard and nothing else.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "executor/math/matrix.h"
#include "models/parameters.h"

namespace qplan {

// Fills `out` with rows [first_row, first_row + out.rows) and columns [first_col, ...) of a
// parameter. Safe from several threads.
using WeightSource = std::function<void(const ModelParameter& parameter, std::int64_t first_row,
                                        std::int64_t first_col, math::Matrix out)>;

// Weights drawn from a seed by global parameter index and element: normal with the deviation 0.02
// that is Hugging Face's default initializer_range, around 1 for the scales of norms and around 0
// for all others. Norms and biases vary too: a start that is symmetric in them would hide mistakes.
// A source that holds one of these may be drawn elsewhere as well (kernels.h's draw_weights).
struct SeededWeights {
  std::uint64_t seed = 0;
  float norm_centre = 1;

  [[nodiscard]] float centre(const Parameter& parameter) const;
  void operator()(const ModelParameter& parameter, std::int64_t first_row, std::int64_t first_col,
                  math::Matrix out) const;
};
WeightSource seeded_weights(const ModelSpec& model, std::uint64_t seed);

// Weights of a safetensors file or folder; adapters are not in it, and start with B at 0. All names
// and shapes are checked before anything is read: throws Error for missing tensors, wrong shapes,
// and tensors the model has no parameter for (other than the copies and buffers that checkpoints of
// its class may hold).
WeightSource checkpoint_weights(const ModelSpec& model, const std::string& path);

// Whether the norms' scales are 1 + weight (Nemotron, Qwen3-Next), in which case they start at 0.
bool norm_around_zero(const ModelSpec& model);

}  // namespace qplan
