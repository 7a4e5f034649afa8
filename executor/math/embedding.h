#pragma once
// Table lookup, whole or one tensor-parallel rank's rows of it.

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

}  // namespace qplan::math
