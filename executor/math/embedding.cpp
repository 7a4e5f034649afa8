#include "executor/math/embedding.h"

#include <algorithm>

namespace qplan::math {
namespace {

void add_row(ConstFloats x, Floats y) {
  for (std::size_t c = 0; c < y.size(); ++c) y[c] += x[c];
}

}  // namespace

void embed(ConstMatrix table, std::int64_t first_row, std::span<const std::int32_t> ids, Matrix y) {
  QPLAN_CHECK(std::ssize(ids) == y.rows && table.cols == y.cols, "one row of the table an id");
  for (std::int64_t i = 0; i < y.rows; ++i) {
    const std::int64_t row = ids[at(i)] - first_row;
    const Floats target = y.row(i);
    if (row < 0 || row >= table.rows) {
      std::fill(target.begin(), target.end(), 0.0F);
    } else {
      std::copy_n(table.row(row).begin(), target.size(), target.begin());
    }
  }
}

void embed_backward(ConstMatrix dy, std::int64_t first_row, std::span<const std::int32_t> ids,
                    Matrix dtable) {
  QPLAN_CHECK(std::ssize(ids) == dy.rows && dtable.cols == dy.cols, "one row of the table an id");
  for (std::int64_t i = 0; i < dy.rows; ++i) {
    const std::int64_t row = ids[at(i)] - first_row;
    if (row >= 0 && row < dtable.rows) add_row(dy.row(i), dtable.row(row));
  }
}

void add(ConstMatrix x, Matrix y) {
  QPLAN_CHECK(x.rows == y.rows && x.cols == y.cols, "addends have one shape");
  for (std::int64_t r = 0; r < y.rows; ++r) add_row(x.row(r), y.row(r));
}

std::array<GridPoint, 4> interpolate_grid(std::int64_t row, std::int64_t col, std::int64_t grid,
                                          std::int64_t side) {
  struct Along {
    std::int64_t below, above;
    double share;  // of the one above
  };
  const auto along = [&](std::int64_t i) -> Along {
    const double place = static_cast<double>(i * (side - 1)) /
                         static_cast<double>(std::max<std::int64_t>(grid - 1, 1));
    const auto below = static_cast<std::int64_t>(place);
    return {below, std::min(below + 1, side - 1), place - static_cast<double>(below)};
  };
  const Along r = along(row), c = along(col);
  return {{{r.below * side + c.below, (1 - r.share) * (1 - c.share)},
           {r.below * side + c.above, (1 - r.share) * c.share},
           {r.above * side + c.below, r.share * (1 - c.share)},
           {r.above * side + c.above, r.share * c.share}}};
}

}  // namespace qplan::math
