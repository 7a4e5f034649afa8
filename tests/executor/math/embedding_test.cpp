#include "executor/math/embedding.h"

#include "tests/executor/math/gradient.h"

using namespace qplan::math;

TEST_CASE("the shards of a table add up to the whole table's rows") {
  const std::vector<float> table{1, 2, 3, 4, 5, 6, 7, 8};  // (4, 2)
  const std::vector<std::int32_t> ids{3, 0, 1};
  const ConstMatrix whole(table, 4, 2);
  std::vector<float> sum(6), part(6);
  for (const std::int64_t first : {0, 2}) {
    embed(whole.row_range(first, 2), first, ids, {part, 3, 2});
    add({part, 3, 2}, {sum, 3, 2});
  }
  CHECK(sum == std::vector<float>{7, 8, 1, 2, 3, 4});
}

TEST_CASE("a row used twice gets both gradients, another rank's row none") {
  const std::vector<float> dy{1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> ids{2, 9, 2};
  std::vector<float> dtable(4);
  embed_backward({dy, 3, 2}, 2, ids, {dtable, 2, 2});
  CHECK(dtable == std::vector<float>{6, 8, 0, 0});
}

TEST_CASE("a square table of positions is seen from another grid, corner on corner") {
  // 3 x 3 places seen from 4 x 4: the second is two thirds of the way to the second place.
  const auto inner = interpolate_grid(1, 2, 4, 3);
  double sum = 0, row = 0, col = 0;
  for (const GridPoint& point : inner) {
    sum += point.share;
    row += point.share * static_cast<double>(point.place / 3);
    col += point.share * static_cast<double>(point.place % 3);
  }
  CHECK(sum == doctest::Approx(1));
  CHECK(row == doctest::Approx(2.0 / 3));
  CHECK(col == doctest::Approx(4.0 / 3));
  const auto corner = interpolate_grid(3, 3, 4, 3);
  CHECK(corner[0].place == 8);
  CHECK(corner[0].share == 1);
}
