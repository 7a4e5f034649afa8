#include "executor/math/permute.h"

#include "tests/executor/math/gradient.h"

using namespace qplan::math;

TEST_CASE("copies are sorted by expert and then by token") {
  const std::vector<std::int32_t> chosen{2, 0, 0, 1, 2, 0};  // three tokens, two choices
  const ExpertOrder order = order_by_expert(chosen, 3);
  CHECK(order.copies == std::vector<std::int64_t>{1, 2, 5, 3, 0, 4});
  CHECK(order.offsets == std::vector<std::int64_t>{0, 3, 4, 6});
}

TEST_CASE(
    "beyond an expert's capacity the least probable copies are dropped, of equal ones the last") {
  std::vector<std::int32_t> chosen{0, 0, 1, 0, 0};
  drop_over_capacity(chosen, std::vector<float>{0.5F, 0.25F, 0.1F, 0.5F, 0.75F}, 2, 2);
  CHECK(chosen == std::vector<std::int32_t>{0, -1, 1, -1, 0});
  CHECK(order_by_expert(chosen, 2).copies == std::vector<std::int64_t>{0, 4, 2});
}

TEST_CASE("permuted rows come back as the weighted sum of their copies") {
  const std::vector<float> x{1, 2, 3, 4};  // two tokens
  const std::vector<float> weights{0.25, 0.75, 0.5, 0.5};
  const std::vector<std::int64_t> copies{1, 3, 0, 2};
  std::vector<float> sorted(8), back(4);
  permute({x, 2, 2}, copies, 2, {sorted, 4, 2});
  CHECK(sorted == std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4});
  unpermute({sorted, 4, 2}, copies, 2, weights, {back, 2, 2});
  CHECK(back == x);
}

TEST_CASE("gradients of the way out and back are slopes, with a copy dropped") {
  const std::vector<std::int64_t> copies{1, 2, 0};  // of copies 0..3 the last is dropped
  auto x = random_floats(9, 1), weights = random_floats(4, 2);
  const auto dy = random_floats(6, 3);
  const auto loss = [&] {
    std::vector<float> y(6);
    unpermute({x, 3, 3}, copies, 2, weights, {y, 2, 3});
    return dot(y, dy);
  };
  std::vector<float> dx(9), dweights(4);
  unpermute_backward({x, 3, 3}, copies, 2, weights, {dy, 2, 3}, {dx, 3, 3}, dweights);
  check_gradient(loss, x, dx);
  check_gradient(loss, weights, dweights);

  auto tokens = random_floats(6, 4);
  const auto dsorted = random_floats(9, 5);
  const auto out = [&] {
    std::vector<float> y(9);
    permute({tokens, 2, 3}, copies, 2, {y, 3, 3});
    return dot(y, dsorted);
  };
  std::vector<float> dtokens(6);
  unpermute({dsorted, 3, 3}, copies, 2, {}, {dtokens, 2, 3});
  check_gradient(out, tokens, dtokens);
}
