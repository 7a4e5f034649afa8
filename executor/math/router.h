#pragma once
// Which experts a token visits, and with what weight: Mixtral, Qwen, gpt-oss (softmax scores),
// DeepSeek-V2 and V3 (groups; sigmoid scores with a correction).
//
// Scores of all experts and the chosen experts say everything: weights are computed from them, and
// so is the gradient, hence these two are what forward keeps.

#include "executor/math/matrix.h"

namespace qplan::math {

struct RouterShape {
  std::int64_t experts = 0, top_k = 0;
  bool sigmoid_scores = false;                  // else softmax over all experts
  std::int64_t num_groups = 1, topk_group = 1;  // experts are chosen within the best groups
  bool norm_topk_prob = true;                   // the chosen weights are scaled to sum to 1
  double routed_scaling_factor = 1;             // and then by this
};

using ExpertIds = std::span<std::int32_t>;  // (tokens, top_k), row-major
using ConstExpertIds = std::span<const std::int32_t>;

// scores (tokens, experts) of logits (tokens, experts).
void router_scores(ConstMatrix logits, const RouterShape& shape, Matrix scores);

// The top_k experts of each token by score + correction (empty: 0), best first, equal ones by
// index. With groups, only the topk_group best groups count: a group is as good as its best expert
// (softmax, DeepSeek-V2) or its two best together (sigmoid, DeepSeek-V3).
void choose_experts(ConstMatrix scores, ConstFloats correction, const RouterShape& shape,
                    ExpertIds chosen);

// weights (tokens, top_k): the chosen scores, without the correction, normalised and scaled.
void router_weights(ConstMatrix scores, ConstExpertIds chosen, const RouterShape& shape,
                    Matrix weights);

// What the auxiliary loss needs to know of one sequence; sums over its tokens, so that ranks which
// hold parts of a sequence can add theirs.
struct BalanceSums {
  std::span<double> visits;  // (experts) token copies each expert gets
  std::span<double> scores;  // (experts) scores, each token's scaled to sum to 1
};
void add_to_balance(ConstMatrix scores, ConstExpertIds chosen, const RouterShape& shape,
                    BalanceSums sums);

// DeepSeek-V3's sequence-wise balance loss (arXiv 2412.19437, equations 17 to 20), of a sequence of
// `tokens`: sum over experts of f P, f = experts / (top_k tokens) visits, P = scores / tokens. With
// softmax scores it is the Switch loss of that sequence.
double balance_loss(BalanceSums sums, const RouterShape& shape, std::int64_t tokens);

// dlogits (tokens, experts) from dweights (tokens, top_k), plus coefficient times the gradient of
// the balance loss of the sequence that these tokens belong to (its `visits`; empty: none).
struct BalanceGradient {
  double coefficient = 0;
  std::span<const double> visits;
  std::int64_t tokens = 0;  // of the whole sequence
};
void router_backward(ConstMatrix scores, ConstExpertIds chosen, ConstMatrix dweights,
                     const BalanceGradient& balance, const RouterShape& shape, Matrix dlogits);

}  // namespace qplan::math
