// What transformers does not have, multi-token prediction and experts of limited capacity: the
// executor against the plain model, and that against finite differences.

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "executor/io/tokens.h"
#include "executor/run.h"
#include "planner/rules/feasible.h"
#include "tests/executor/plain/model.h"
#include "tests/tiny_models.h"

using namespace qplan;

namespace {

constexpr std::int64_t kSeqLen = 16, kSequences = 2;

std::vector<std::int32_t> batch_of(const ModelSpec& model) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kSequences * (kSeqLen + 1)));
  const TokenSource tokens = seeded_tokens(1, model.vocab_size);
  for (std::int64_t j = 0; j < kSequences; ++j) {
    tokens(j, std::span(ids).subspan(static_cast<std::size_t>(j * (kSeqLen + 1)),
                                     static_cast<std::size_t>(kSeqLen + 1)));
  }
  return ids;
}

double norm_of(const std::vector<float>& values) {
  double squares = 0;
  for (const float v : values) squares += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(squares);
}

}  // namespace

namespace {

// One rank, a sequence at a time, as the plain model.
void check_against_plain(const ModelSpec& model, plain::Capacity capacity) {
  CAPTURE(capacity.factor);
  CAPTURE(capacity.keeps_first);
  PlainModel plain(model, seeded_weights(model, 1), capacity);
  const double loss = plain.step(batch_of(model), kSeqLen);
  ParallelPlan plan;
  plan.precision = Precision::fp32;
  plan.routing = Routing::natural;
  plan.global_batch_size = kSequences;
  plan.seq_len = kSeqLen;
  plan.moe_capacity_factor = capacity.factor;
  if (capacity.keeps_first) plan.moe_token_drop_policy = TokenDropPolicy::position;
  RunOptions options;
  options.weights = seeded_weights(model, 1);
  options.tokens = seeded_tokens(1, model.vocab_size);
  options.keep_gradients = true;
  const RunResult run = qplan::run(model, plan, {.moe_imbalance = 8}, options);
  CHECK(run.loss[0] == doctest::Approx(loss).epsilon(1e-6));
  REQUIRE(std::ssize(run.mtp_loss) == model.num_mtp_layers);
  if (!run.mtp_loss.empty()) {
    CHECK(run.mtp_loss[0] == doctest::Approx(plain.mtp_loss()).epsilon(1e-6));
  }
  REQUIRE(run.gradients.size() == plain.gradients().size());
  for (std::size_t i = 0; i < run.gradients.size(); ++i) {
    CAPTURE(std::string(to_word(plain.parameters()[i].parameter.role)));
    const std::vector<float>& expected = plain.gradients()[i];
    std::vector<float> difference = run.gradients[i];
    for (std::size_t k = 0; k < difference.size(); ++k) difference[k] -= expected[k];
    CHECK(norm_of(difference) <= 1e-5 * std::max(norm_of(expected), 1e-3));
  }
}

}  // namespace

TEST_CASE("the executor's multi-token prediction is the plain model's: losses and gradients") {
  check_against_plain(predicting_model(), {});
}

TEST_CASE("the executor drops what the plain model drops: losses and gradients") {
  for (const double factor : {0.5, 1.0, 1.5}) {
    for (const bool keeps_first : {false, true}) {
      check_against_plain(load_model("tiny-moe"), {factor, keeps_first});
    }
  }
}

// Along a gradient g of length |g| the loss grows by |g| a unit.
TEST_CASE("the plain model's gradients with multi-token prediction are finite differences") {
  const ModelSpec model = predicting_model();
  PlainModel plain(model, seeded_weights(model, 1));
  const std::vector<std::int32_t> ids = batch_of(model);
  plain.step(ids, kSeqLen);
  const std::vector<std::vector<float>> gradients = plain.gradients();
  int compared = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const ModelParameter& parameter = plain.parameters()[i];
    const double slope = norm_of(gradients[i]);
    // Experts that saw no token, and what is not trained by its gradient.
    if (slope == 0) continue;
    CAPTURE(std::string(to_word(parameter.parameter.role)));
    CAPTURE(parameter.layer);
    const std::vector<float> weights = plain.weights()[i];
    const double step = 2e-4 * std::max(norm_of(weights), 0.5);
    const auto loss_at = [&](double distance) {
      for (std::size_t k = 0; k < weights.size(); ++k) {
        plain.weights()[i][k] =
            weights[k] +
            static_cast<float>(distance / slope * static_cast<double>(gradients[i][k]));
      }
      const double loss = plain.step(ids, kSeqLen);
      return loss + model.mtp_loss_weight * plain.mtp_loss();
    };
    const double difference = (loss_at(step) - loss_at(-step)) / (2 * step);
    plain.weights()[i] = weights;
    // fp32 losses of about 7 have noise of 1e-7, here divided by a step of 1e-4 at least; larger
    // steps change who is routed where.
    CHECK(std::abs(difference - slope) < 0.01 * slope + 1e-3);
    ++compared;
  }
  CHECK(compared > 60);
}
