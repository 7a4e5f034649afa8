#include "executor/math/router.h"

#include <algorithm>

#include "tests/executor/math/gradient.h"

using namespace qplan::math;

namespace {

struct Routed {
  std::vector<float> scores, weights;
  std::vector<std::int32_t> chosen;
};

Routed route(const std::vector<float>& logits, const RouterShape& s,
             const std::vector<float>& correction = {}) {
  const std::int64_t tokens = std::ssize(logits) / s.experts;
  Routed r{std::vector<float>(logits.size()), std::vector<float>(at(tokens * s.top_k)),
           std::vector<std::int32_t>(at(tokens * s.top_k))};
  const Matrix scores(r.scores, tokens, s.experts);
  router_scores({logits, tokens, s.experts}, s, scores);
  choose_experts(scores, correction, s, r.chosen);
  router_weights(scores, r.chosen, s, {r.weights, tokens, s.top_k});
  return r;
}

// Kinds of routers in the zoo.
const std::vector<RouterShape> kRouters{
    {.experts = 6, .top_k = 2},                           // Mixtral, Qwen3-MoE
    {.experts = 6, .top_k = 2, .norm_topk_prob = false},  // Qwen2-MoE
    {.experts = 6,
     .top_k = 2,
     .num_groups = 3,
     .topk_group = 2,
     .norm_topk_prob = false,
     .routed_scaling_factor = 2},  // DeepSeek-V2
    {.experts = 6,
     .top_k = 2,
     .sigmoid_scores = true,
     .num_groups = 2,
     .topk_group = 1,
     .routed_scaling_factor = 2.5}};  // DeepSeek-V3

}  // namespace

TEST_CASE("softmax, top-2, renormalised: weights are in the ratio of exponentials") {
  const Routed r = route({0, 2, 1, 0}, {.experts = 4, .top_k = 2});
  CHECK(r.chosen == std::vector<std::int32_t>{1, 2});
  CHECK(r.weights[0] / r.weights[1] == doctest::Approx(std::exp(1.0)));
  CHECK(r.weights[0] + r.weights[1] == doctest::Approx(1));
}

TEST_CASE("without renormalisation weights are the probabilities") {
  const Routed r = route({0, 0, 0, 0}, {.experts = 4, .top_k = 2, .norm_topk_prob = false});
  CHECK(r.chosen == std::vector<std::int32_t>{0, 1});  // equal: by index
  CHECK(r.weights[1] == doctest::Approx(0.25));
}

TEST_CASE("a correction changes the choice and not the weight") {
  const RouterShape v3{.experts = 3, .top_k = 1, .sigmoid_scores = true, .norm_topk_prob = false};
  const Routed r = route({2, 0, 0}, v3, {0, 5, 0});
  CHECK(r.chosen == std::vector<std::int32_t>{1});
  CHECK(r.weights[0] == doctest::Approx(0.5));
}

TEST_CASE("groups: DeepSeek-V2 takes the best expert's, V3 the best pair's") {
  // Group 0 has the best expert, group 1 the best pair.
  const std::vector<float> logits{3, -3, 2, 2};
  RouterShape shape{.experts = 4, .top_k = 2, .num_groups = 2, .topk_group = 1};
  CHECK(route(logits, shape).chosen == std::vector<std::int32_t>{0, 1});
  shape.sigmoid_scores = true;
  CHECK(route(logits, shape).chosen == std::vector<std::int32_t>{2, 3});
}

TEST_CASE("experts that all get as much have a balance loss of 1") {
  const RouterShape shape{.experts = 4, .top_k = 1};
  const std::vector<float> even(16, 0.25F);
  std::vector<double> visits(4), scores(4);
  const std::vector<std::int32_t> chosen{0, 1, 2, 3};
  add_to_balance({even, 4, 4}, chosen, shape, {visits, scores});
  CHECK(balance_loss({visits, scores}, shape, 4) == doctest::Approx(1));
}

TEST_CASE("all tokens to one expert, with certainty, have a balance loss of E / k") {
  const RouterShape shape{.experts = 4, .top_k = 1};
  const std::vector<float> certain{1, 0, 0, 0, 1, 0, 0, 0};
  std::vector<double> visits(4), scores(4);
  const std::vector<std::int32_t> chosen{0, 0};
  add_to_balance({certain, 2, 4}, chosen, shape, {visits, scores});
  CHECK(balance_loss({visits, scores}, shape, 2) == doctest::Approx(4));
}

TEST_CASE("a router's gradient is the slope of its weights and of the balance loss") {
  for (std::size_t i = 0; i < kRouters.size(); ++i) {
    CAPTURE(i);
    const RouterShape& s = kRouters[i];
    constexpr std::int64_t tokens = 3;
    // Far enough from each other that no difference changes a choice.
    auto logits = random_floats(tokens * s.experts, 17, 0.05F);
    for (std::size_t j = 0; j < logits.size(); ++j) {
      logits[j] += 0.4F * static_cast<float>((5 * j + j / 6) % 6);
    }
    const auto dweights = random_floats(tokens * s.top_k, 3);
    const auto sums = [&](const Routed& r, std::vector<double>& visits) {
      std::vector<double> scores(at(s.experts));
      visits.assign(at(s.experts), 0);
      add_to_balance({r.scores, tokens, s.experts}, r.chosen, s, {visits, scores});
      return balance_loss({visits, scores}, s, tokens);
    };
    const Routed now = route(logits, s);
    std::vector<double> visits;
    sums(now, visits);
    const auto loss = [&] {
      const Routed r = route(logits, s);
      REQUIRE(r.chosen == now.chosen);  // differences within one choice
      std::vector<double> ignored;
      return dot(r.weights, dweights) + 0.7 * sums(r, ignored);
    };
    std::vector<float> dlogits(logits.size());
    router_backward({now.scores, tokens, s.experts}, now.chosen, {dweights, tokens, s.top_k},
                    {0.7, visits, tokens}, s, {dlogits, tokens, s.experts});
    check_gradient(loss, logits, dlogits);
  }
}
