#include "executor/math/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace qplan::math {
namespace {

constexpr double kTiny = 1e-20;  // added to sums that divide (DeepseekV3TopkRouter)

double sum_of(ConstFloats x) {
  return std::accumulate(x.begin(), x.end(), 0.0);
}

ConstExpertIds chosen_of(ConstExpertIds chosen, std::int64_t token, const RouterShape& shape) {
  return chosen.subspan(at(token * shape.top_k), at(shape.top_k));
}

// The `count` largest, best first; equal ones by index.
std::vector<std::int32_t> largest(const std::vector<double>& values, std::int64_t count) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return values[at(a)] > values[at(b)]; });
  order.resize(at(count));
  return order;
}

// Scores of experts outside the best groups become -infinity.
void keep_best_groups(std::vector<double>& scores, const RouterShape& shape) {
  const std::int64_t size = shape.experts / shape.num_groups;
  std::vector<double> groups;
  for (std::int64_t g = 0; g < shape.num_groups; ++g) {
    std::vector<double> own(scores.begin() + g * size, scores.begin() + (g + 1) * size);
    std::sort(own.begin(), own.end(), std::greater<>());
    const bool two = shape.sigmoid_scores && size > 1;
    groups.push_back(two ? own[0] + own[1] : own[0]);
  }
  const auto best = largest(groups, shape.topk_group);
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    const auto group = static_cast<std::int32_t>(e / size);
    if (std::find(best.begin(), best.end(), group) == best.end()) scores[at(e)] = -INFINITY;
  }
}

// What a token's chosen scores are divided by.
double divisor(ConstFloats scores, ConstExpertIds chosen, const RouterShape& shape) {
  if (!shape.norm_topk_prob) return 1;
  double sum = shape.sigmoid_scores ? kTiny : 0;
  for (const std::int32_t e : chosen) sum += scores[at(e)];
  return sum;
}

// Adds to dscores what the weights hand back.
void weights_backward(ConstFloats scores, ConstExpertIds chosen, ConstFloats dweights,
                      const RouterShape& shape, std::vector<double>& dscores) {
  const double sum = divisor(scores, chosen, shape);
  double weighted = 0;  // what the common divisor hands back
  for (std::size_t j = 0; j < chosen.size(); ++j) {
    weighted += static_cast<double>(dweights[j]) * scores[at(chosen[j])] / (sum * sum);
  }
  if (!shape.norm_topk_prob) weighted = 0;
  for (std::size_t j = 0; j < chosen.size(); ++j) {
    dscores[at(chosen[j])] += shape.routed_scaling_factor * (dweights[j] / sum - weighted);
  }
}

// Adds the gradient of the sequence's balance loss: visits are counts and hand nothing back.
void balance_backward(ConstFloats scores, const BalanceGradient& balance, const RouterShape& shape,
                      std::vector<double>& dscores) {
  if (balance.visits.empty()) return;
  const auto tokens = static_cast<double>(balance.tokens);
  const double total = sum_of(scores) + (shape.sigmoid_scores ? kTiny : 0);
  const double factor = balance.coefficient * static_cast<double>(shape.experts) /
                        (static_cast<double>(shape.top_k) * tokens * tokens);
  double mean = 0;  // sum of visits times the scaled scores
  for (std::size_t e = 0; e < scores.size(); ++e) mean += balance.visits[e] * scores[e] / total;
  // A softmax sums to 1 whatever the logits: dividing by the sum changes neither value nor
  // gradient.
  for (std::size_t e = 0; e < scores.size(); ++e) {
    dscores[e] += factor * (balance.visits[e] - mean) / total;
  }
}

}  // namespace

void router_scores(ConstMatrix logits, const RouterShape& shape, Matrix scores) {
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    const ConstFloats row = logits.row(t);
    const double top = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float logit : row) sum += std::exp(logit - top);
    for (std::int64_t e = 0; e < logits.cols; ++e) {
      const double logit = logits.at(t, e);
      scores.at(t, e) = static_cast<float>(shape.sigmoid_scores ? 1 / (1 + std::exp(-logit))
                                                                : std::exp(logit - top) / sum);
    }
  }
}

void choose_experts(ConstMatrix scores, ConstFloats correction, const RouterShape& shape,
                    ExpertIds chosen) {
  QPLAN_CHECK(std::ssize(chosen) == scores.rows * shape.top_k && scores.cols == shape.experts,
              "a router chooses top_k of its experts a token");
  std::vector<double> values(at(shape.experts));
  for (std::int64_t t = 0; t < scores.rows; ++t) {
    for (std::size_t e = 0; e < values.size(); ++e) {
      values[e] = static_cast<double>(scores.row(t)[e]) + (correction.empty() ? 0 : correction[e]);
    }
    if (shape.num_groups > 1) keep_best_groups(values, shape);
    const auto best = largest(values, shape.top_k);
    std::copy(best.begin(), best.end(), chosen.begin() + t * shape.top_k);
  }
}

void router_weights(ConstMatrix scores, ConstExpertIds chosen, const RouterShape& shape,
                    Matrix weights) {
  for (std::int64_t t = 0; t < scores.rows; ++t) {
    const ConstExpertIds mine = chosen_of(chosen, t, shape);
    const double sum = divisor(scores.row(t), mine, shape);
    for (std::size_t j = 0; j < mine.size(); ++j) {
      weights.row(t)[j] =
          static_cast<float>(shape.routed_scaling_factor * scores.row(t)[at(mine[j])] / sum);
    }
  }
}

void add_to_balance(ConstMatrix scores, ConstExpertIds chosen, const RouterShape& shape,
                    BalanceSums sums) {
  for (const std::int32_t e : chosen) sums.visits[at(e)] += 1;
  for (std::int64_t t = 0; t < scores.rows; ++t) {
    const ConstFloats row = scores.row(t);
    const double total = sum_of(row) + (shape.sigmoid_scores ? kTiny : 0);
    for (std::size_t e = 0; e < row.size(); ++e) sums.scores[e] += row[e] / total;
  }
}

double balance_loss(BalanceSums sums, const RouterShape& shape, std::int64_t tokens) {
  double loss = 0;
  for (std::size_t e = 0; e < sums.visits.size(); ++e) loss += sums.visits[e] * sums.scores[e];
  const auto n = static_cast<double>(tokens);
  return loss * static_cast<double>(shape.experts) / (static_cast<double>(shape.top_k) * n * n);
}

void router_backward(ConstMatrix scores, ConstExpertIds chosen, ConstMatrix dweights,
                     const BalanceGradient& balance, const RouterShape& shape, Matrix dlogits) {
  std::vector<double> dscores(at(shape.experts));
  for (std::int64_t t = 0; t < scores.rows; ++t) {
    std::fill(dscores.begin(), dscores.end(), 0.0);
    const ConstFloats row = scores.row(t);
    weights_backward(row, chosen_of(chosen, t, shape), dweights.row(t), shape, dscores);
    balance_backward(row, balance, shape, dscores);
    double mean = 0;
    for (std::size_t e = 0; e < row.size(); ++e) mean += dscores[e] * row[e];
    for (std::size_t e = 0; e < row.size(); ++e) {
      const double s = row[e];
      dlogits.row(t)[e] = static_cast<float>(shape.sigmoid_scores ? dscores[e] * s * (1 - s)
                                                                  : s * (dscores[e] - mean));
    }
  }
}

}  // namespace qplan::math
