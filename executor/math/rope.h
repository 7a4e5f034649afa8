#pragma once
// Rotary position embedding (arXiv 2104.09864).

#include <optional>
#include <vector>

#include "executor/math/matrix.h"
#include "models/model_spec.h"

namespace qplan::math {

// Which two numbers of a head turn together: i and i + half (Llama and most others), or 2i and
// 2i + 1 (DeepSeek's MLA; transformers reorders them for its kernel, which changes no score).
enum class RopePairs : std::uint8_t { halves, neighbours };

// Where the rotated numbers are in a row of `heads` heads of head_dim each.
struct RopeShape {
  std::int64_t heads = 1, head_dim = 0;
  std::int64_t first = 0;  // first rotated number of a head (MLA: after the unrotated part)
  RopePairs pairs = RopePairs::halves;
  double magnitude = 1;  // of what is rotated, afterwards (YaRN's attention factor)
};

// Angle per position of each pair: theta^(-2i/dim), dim the rotated numbers of a head.
std::vector<double> rope_frequencies(double theta, std::int64_t dim,
                                     const std::optional<RopeScaling>& scaling = {});
// What a scaling multiplies MLA's scores by, besides cosines and sines (rope_magnitude()).
double latent_score_scale(const std::optional<RopeScaling>& scaling);

// Turns each row of x by its position, in place; 2 * frequencies.size() numbers of each head.
void rope(Matrix x, const RopeShape& shape, std::span<const std::int64_t> positions,
          std::span<const double> frequencies);
// The same with an angle for each row and pair, row-major, where pairs turn by different positions
// (rows and columns of an image, time, height and width).
void rope(Matrix x, const RopeShape& shape, std::span<const double> angles);
void rope_backward(Matrix dx, const RopeShape& shape, std::span<const double> angles);
// A rotation's gradient turns back, with the same magnitude.
void rope_backward(Matrix dx, const RopeShape& shape, std::span<const std::int64_t> positions,
                   std::span<const double> frequencies);

}  // namespace qplan::math
