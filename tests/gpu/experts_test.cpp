// Routers and the order of token copies against the reference mathematics.

#include <doctest/doctest.h>

#include <numeric>

#include "executor/cuda/expert_load.h"
#include "executor/math/permute.h"
#include "executor/math/router.h"
#include "kernels/kernels.h"
#include "tests/gpu/device_array.h"

using namespace qplan;
using namespace qplan::test;
using math::ConstMatrix;
using math::Matrix;

namespace {

constexpr cudaStream_t kStream = nullptr;

}  // namespace

TEST_CASE("a step's expert load is the mean share of experts with rows, and of the busiest rank") {
  // Two products, two senders, four experts on two ranks.
  const std::vector<std::int32_t> counts{4, 0, 0, 0, 0, 4, 0, 0,   // all on the first rank
                                         1, 1, 1, 1, 1, 1, 1, 1};  // even
  const auto load = expert_load(counts, 2, 4, 2);
  REQUIRE(load.has_value());
  CHECK(load->active == doctest::Approx((0.5 + 1) / 2));
  CHECK(load->busiest == doctest::Approx((2.0 + 1) / 2));
  CHECK_FALSE(expert_load({}, 2, 4, 2).has_value());
}

TEST_CASE("sigmoid routers choose among the best groups, with a correction") {
  constexpr std::int64_t tokens = 300, experts = 48, k = 4, length = 100;
  const auto logits = random_bf16(tokens * experts, 1), correction = random_bf16(experts, 2, 0.1F),
             dweights = random_bf16(tokens * k, 3);
  const math::RouterShape shape{.experts = experts,
                                .top_k = k,
                                .sigmoid_scores = true,
                                .num_groups = 6,
                                .topk_group = 2,
                                .norm_topk_prob = true,
                                .routed_scaling_factor = 2.5};
  std::vector<float> scores(logits.size()), dlogits(logits.size());
  std::vector<std::int32_t> chosen(dweights.size());
  math::router_scores(ConstMatrix(logits, tokens, experts), shape, Matrix(scores, tokens, experts));
  math::choose_experts(ConstMatrix(scores, tokens, experts), correction, shape, chosen);

  const Bf16Array dev_correction(correction);
  const kernels::Router router{experts, k, true, 2.5F, true, 6, 2, dev_correction.get()};
  const kernels::Sequences sequences{0, length};
  const FloatArray dev_logits(logits), dev_scores(tokens * experts), dev_dweights(dweights),
      dev_dlogits(tokens * experts);
  const DeviceArray<std::int32_t> row_map(tokens * 2 * k), counts(experts), visits(3 * experts),
      scratch(tokens * experts);
  kernels::route(dev_scores.get(), row_map.get(), counts.get(), visits.get(), dev_logits.get(),
                 router, sequences, 3, {}, tokens, scratch.get(), kStream);
  CHECK(distance(dev_scores.read(), scores) < kFloatRounding);
  const auto map = row_map.read(), visited = visits.read();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < k; ++j) {
      CHECK(map[math::at(t * 2 * k + j)] == static_cast<float>(chosen[math::at(t * k + j)]));
    }
  }
  constexpr double coefficient = 0.01;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto first = visited.begin() + t / length * experts;
    const std::vector<double> of_sequence(first, first + experts);
    math::router_backward(ConstMatrix(scores, tokens, experts).row_range(t, 1),
                          math::ConstExpertIds(chosen).subspan(math::at(t * k), math::at(k)),
                          ConstMatrix(dweights, tokens, k).row_range(t, 1),
                          {.coefficient = coefficient, .visits = of_sequence, .tokens = length},
                          shape, Matrix(dlogits, tokens, experts).row_range(t, 1));
  }
  const double balance = coefficient * experts / (k * double{length} * length);
  kernels::route_backward(dev_dlogits.get(), dev_scores.get(), dev_dweights.get(), row_map.get(),
                          visits.get(), static_cast<float>(balance), router, sequences, tokens,
                          kStream);
  CHECK(distance(dev_dlogits.read(), dlogits) < 10 * kFloatRounding);
}

// More than 128 experts, and so many choices that a block routes fewer tokens; as scores say and
// as forced routing does.
TEST_CASE("copies of tokens lie by expert and token, however many are chosen") {
  constexpr std::int64_t tokens = 333, experts = 200, k = 40, length = 111;
  const auto logits = random_bf16(tokens * experts, 1);
  const kernels::Router router{experts, k};
  std::vector<float> where(tokens);
  for (std::size_t t = 0; t < where.size(); ++t) where[t] = static_cast<float>(t % length);
  const DeviceArray<std::int32_t> positions(where);
  for (const std::int64_t first_sequence : {-1, 5}) {
    CAPTURE(first_sequence);
    const FloatArray dev_logits(logits), dev_scores(tokens * experts);
    const DeviceArray<std::int32_t> row_map(tokens * 2 * k), counts(experts), visits(3 * experts),
        scratch(tokens * experts);
    kernels::route(dev_scores.get(), row_map.get(), counts.get(), visits.get(), dev_logits.get(),
                   router, {0, length}, 3, {first_sequence, length, positions.get()}, tokens,
                   scratch.get(), kStream);
    const auto map = row_map.read(), count = counts.read(), visited = visits.read();
    std::vector<std::vector<std::size_t>> copies(experts);  // in the order of tokens
    std::vector<float> expected_visits(3 * experts, 0);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t j = 0; j < k; ++j) {
        const auto at = math::at(t * 2 * k + j);
        const auto chosen = static_cast<std::size_t>(map[at]);
        if (first_sequence >= 0)
          CHECK(map[at] == ((first_sequence * length + t) * k + j) % experts);
        REQUIRE(chosen < experts);
        copies[chosen].push_back(at + k);
        ++expected_visits[math::at(t / length * experts) + chosen];
      }
    }
    CHECK(visited == expected_visits);
    float place = 0;
    for (std::size_t e = 0; e < copies.size(); ++e) {
      CHECK(count[e] == static_cast<float>(copies[e].size()));
      for (const std::size_t at : copies[e]) CHECK(map[at] == place++);
    }
  }
}

TEST_CASE("tokens are routed, sorted by expert and summed as the reference does") {
  // More tokens than a block routes.
  constexpr std::int64_t tokens = 701, experts = 40, k = 3, cols = 72, length = 256, first = 64;
  const auto logits = random_bf16(tokens * experts, 1), x = random_bf16(tokens * cols, 2),
             dweights = random_bf16(tokens * k, 3);
  const math::RouterShape shape{
      .experts = experts, .top_k = k, .norm_topk_prob = true, .routed_scaling_factor = 2.5};
  std::vector<float> scores(logits.size()), weights(dweights.size()), dlogits(logits.size());
  std::vector<std::int32_t> chosen(dweights.size());
  math::router_scores(ConstMatrix(logits, tokens, experts), shape, Matrix(scores, tokens, experts));
  math::choose_experts(ConstMatrix(scores, tokens, experts), {}, shape, chosen);
  math::router_weights(ConstMatrix(scores, tokens, experts), chosen, shape,
                       Matrix(weights, tokens, k));
  const math::ExpertOrder order = math::order_by_expert(chosen, experts);

  const kernels::Router router{experts, k, true, 2.5F};
  const kernels::Sequences sequences{first, length};
  constexpr std::int64_t num_sequences = 3;
  const FloatArray dev_logits(logits), dev_scores(tokens * experts), dev_weights(tokens * k),
      dev_dweights(dweights), dev_dlogits(tokens * experts), by_choice(tokens * k);
  const DeviceArray<std::int32_t> row_map(tokens * 2 * k), counts(experts),
      visits(num_sequences * experts), scratch(tokens * experts);
  const Bf16Array dev_x(x), sorted(tokens * k * cols), sums(tokens * cols);
  kernels::route(dev_scores.get(), row_map.get(), counts.get(), visits.get(), dev_logits.get(),
                 router, sequences, num_sequences, {}, tokens, scratch.get(), kStream);
  kernels::sort_tokens(sorted.get(), dev_weights.get(), dev_x.get(), row_map.get(),
                       dev_scores.get(), router, tokens, cols, kStream);
  kernels::sum_copies(sums.get(), by_choice.get(), sorted.get(), row_map.get(), dev_weights.get(),
                      k, tokens, cols, kStream);
  CHECK(distance(dev_scores.read(), scores) < kFloatRounding);
  const auto map = row_map.read(), count = counts.read(), copies = sorted.read(),
             sorted_weights = dev_weights.read();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < k; ++j) {
      CHECK(map[math::at(t * 2 * k + j)] == static_cast<float>(chosen[math::at(t * k + j)]));
    }
  }
  for (std::int64_t e = 0; e < experts; ++e) {
    CHECK(count[math::at(e)] ==
          static_cast<float>(order.offsets[math::at(e + 1)] - order.offsets[math::at(e)]));
  }
  for (std::size_t i = 0; i < order.copies.size(); ++i) {
    const std::int64_t copy = order.copies[i];
    CHECK(copies[i * cols] == x[math::at(copy / k * cols)]);
    CHECK(sorted_weights[i] == doctest::Approx(weights[math::at(copy)]).epsilon(1e-5));
  }
  CHECK(distance(by_choice.read(), weights) < kFloatRounding);
  std::vector<float> thrice = x;
  for (float& value : thrice) value *= k;
  CHECK(distance(sums.read(), thrice) < kBf16Rounding);

  kernels::route_backward(dev_dlogits.get(), dev_scores.get(), dev_dweights.get(), row_map.get(),
                          visits.get(), 1e-3F, router, sequences, tokens, kStream);
  const auto visited = visits.read();
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t sequence = (first + t) / length;
    const std::vector<double> own(visited.begin() + sequence * experts,
                                  visited.begin() + (sequence + 1) * experts);
    // What the kernel takes as one factor: coefficient experts / (top_k tokens^2).
    const math::BalanceGradient balance{1e-3 * k * length * length / experts, own, length};
    math::router_backward(ConstMatrix(scores, tokens, experts).row_range(t, 1),
                          std::span(chosen).subspan(math::at(t * k), k),
                          ConstMatrix(dweights, tokens, k).row_range(t, 1), balance, shape,
                          Matrix(dlogits, tokens, experts).row_range(t, 1));
  }
  CHECK(distance(dev_dlogits.read(), dlogits) < 1e-4);
}

TEST_CASE("rows that arrived by rank are grouped by expert, and go back") {
  constexpr std::int64_t ranks = 3, experts = 12, first = 4, local = 4, cols = 24, room = 500;
  std::mt19937 generator(7);
  std::vector<std::int32_t> counts(ranks * experts);
  for (auto& c : counts) c = static_cast<std::int32_t>(generator() % 60);
  counts[first] = 0;
  const auto count = [&](std::int64_t source, std::int64_t expert) {
    return counts[math::at(source * experts + first + expert)];
  };
  // Every row's number says where it is from: source, expert, and which of theirs.
  std::vector<float> arrived, grouped;
  for (std::int64_t s = 0; s < ranks; ++s) {
    for (std::int64_t e = 0; e < local; ++e) {
      for (int i = 0; i < count(s, e); ++i) {
        arrived.push_back(static_cast<float>(s * 10000 + e * 1000 + i));
      }
    }
  }
  for (std::int64_t e = 0; e < local; ++e) {
    for (std::int64_t s = 0; s < ranks; ++s) {
      for (int i = 0; i < count(s, e); ++i) {
        grouped.push_back(static_cast<float>(s * 10000 + e * 1000 + i));
      }
    }
  }
  const std::size_t rows = arrived.size();
  REQUIRE(rows < room);
  arrived.resize(room, -1);
  auto x = random_bf16(room * cols, 1);
  const Bf16Array from(x), to(room * cols), again(room * cols);
  const FloatArray numbers(arrived), sorted(room), back(room);
  const DeviceArray<std::int32_t> dev_counts(ids_as_floats(counts));
  const kernels::Arrivals arrivals{dev_counts.get(), ranks, experts, first, local};
  kernels::group_rows(to.get(), sorted.get(), from.get(), numbers.get(), arrivals, true, room, cols,
                      kStream);
  kernels::group_rows(again.get(), back.get(), to.get(), sorted.get(), arrivals, false, room, cols,
                      kStream);
  auto found = sorted.read(), returned = back.read(), values = again.read();
  found.resize(rows);
  returned.resize(rows);
  values.resize(rows * cols);
  x.resize(rows * cols);
  arrived.resize(rows);
  CHECK(found == grouped);
  CHECK(returned == arrived);
  CHECK(values == x);
}

TEST_CASE("rows are scaled by their numbers, which get their gradients") {
  for (const std::int64_t cols : {8, 264, 1280}) {
    CAPTURE(cols);
    constexpr std::int64_t rows = 27;
    const auto x = random_bf16(rows * cols, 1), numbers = random_bf16(rows, 2),
               dy = random_bf16(rows * cols, 3);
    const Bf16Array dev_x(x), dev_dy(dy), y(rows * cols), dx(rows * cols);
    const FloatArray dev_numbers(numbers), dnumbers(rows);
    kernels::scale_rows(y.get(), dev_x.get(), dev_numbers.get(), rows, cols, kStream);
    kernels::scale_rows_backward(dx.get(), dnumbers.get(), dev_dy.get(), dev_x.get(),
                                 dev_numbers.get(), rows, cols, kStream);
    std::vector<float> scaled, back, dots;
    for (std::int64_t r = 0; r < rows; ++r) {
      double dot = 0;
      for (std::int64_t i = r * cols; i < (r + 1) * cols; ++i) {
        scaled.push_back(numbers[math::at(r)] * x[math::at(i)]);
        back.push_back(numbers[math::at(r)] * dy[math::at(i)]);
        dot += static_cast<double>(x[math::at(i)]) * static_cast<double>(dy[math::at(i)]);
      }
      dots.push_back(static_cast<float>(dot));
    }
    CHECK(distance(y.read(), scaled) < kBf16Rounding);
    CHECK(distance(dx.read(), back) < kBf16Rounding);
    CHECK(distance(dnumbers.read(), dots) < kFloatRounding);
  }
}
