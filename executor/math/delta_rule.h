#pragma once
// The gated delta rule (arXiv 2412.06464, equation 10) token by token, of one sequence. With a
// state S of key_dim x value_dim a value head, which begins as 0:
//
//   S = exp(decay) S;   S += strength k (v - S^T k)^T;   out = S^T q / sqrt(key_dim)

#include "executor/math/matrix.h"

namespace qplan::math {

struct DeltaRuleShape {
  std::int64_t key_heads = 0, value_heads = 0;  // a key head serves neighbouring value heads
  std::int64_t key_dim = 0, value_dim = 0;
};

// q and k (tokens, key_heads * key_dim), v and out (tokens, value_heads * value_dim), decay, a
// logarithm, and strength (tokens, value_heads).
struct DeltaRuleInput {
  ConstMatrix q, k, v, decay, strength;
};
void delta_rule(const DeltaRuleInput& in, const DeltaRuleShape& shape, Matrix out);

struct DeltaRuleGradient {
  Matrix dq, dk, dv, ddecay, dstrength;
};
void delta_rule_backward(const DeltaRuleInput& in, const DeltaRuleShape& shape, ConstMatrix dout,
                         const DeltaRuleGradient& out);

// What its queries and keys are made of, row by row of one head each: y = x r with
// r = 1 / sqrt(sum(x^2) + 1e-6) (l2norm in fla and transformers 5.23).
void l2_norm(ConstMatrix x, Matrix y, Floats r);
// dx = r (dy - y (y . dy)).
void l2_norm_backward(ConstMatrix y, ConstFloats r, ConstMatrix dy, Matrix dx);

// decay = -exp(a_log) softplus(a + dt_bias), strength = sigmoid(b), head by head.
struct DecayInput {
  ConstMatrix a, b;  // (tokens, value_heads)
  ConstFloats dt_bias, a_log;
};
void decay_gates(const DecayInput& in, Matrix decay, Matrix strength);
void decay_gates_backward(const DecayInput& in, ConstMatrix ddecay, ConstMatrix dstrength,
                          Matrix da, Matrix db, Floats d_dt_bias, Floats d_a_log);

}  // namespace qplan::math
