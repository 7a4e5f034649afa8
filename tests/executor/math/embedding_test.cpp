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
