#pragma once
// Table lookup, whole or one tensor-parallel rank's rows of it.

#include <array>
#include <cstdint>

#include "executor/math/matrix.h"

namespace qplan::math {

// y[i, :] = table[ids[i] - first_row, :], 0 where another rank has that row: the ranks' sum is the
// lookup. ids are token ids or positions.
void embed(ConstMatrix table, std::int64_t first_row, std::span<const std::int32_t> ids, Matrix y);
// dtable[ids[i] - first_row, :] += dy[i, :].
void embed_backward(ConstMatrix dy, std::int64_t first_row, std::span<const std::int32_t> ids,
                    Matrix dtable);

// y += x, element by element: residuals, learned positions.
void add(ConstMatrix x, Matrix y);

// Learned positions of a square table, `side` rows and columns of places, seen from a square grid
// of another size whose corners are the table's: the four places around (row, col) and the share of
// each (bilinear interpolation with align_corners, torch.nn.functional.interpolate).
struct GridPoint {
  std::int64_t place = 0;
  double share = 0;
};
std::array<GridPoint, 4> interpolate_grid(std::int64_t row, std::int64_t col, std::int64_t grid,
                                          std::int64_t side);

}  // namespace qplan::math
