#pragma once
// Scaled dot-product attention of one sequence, in blocks of keys: a whole sequence is one block,
// a context-parallel ring visits one block after the other and merges by log-sum-exp.

#include "executor/math/matrix.h"

namespace qplan::math {

// Grouped queries: heads / kv_heads query heads share a key-value head.
struct AttentionShape {
  std::int64_t heads = 1, kv_heads = 1;
  std::int64_t head_dim = 0, v_head_dim = 0;  // differ in MLA
  double scale = 1;                           // of the scores; 1/sqrt(head_dim) as a rule
  bool causal = true;                         // a query sees keys at its position and before
  std::int64_t window = 0;                    // > 0: only the last `window` of them
};

// One sequence's operands. Positions are global, so a mask is right on any shard of a sequence.
struct AttentionInput {
  ConstMatrix q;  // (queries, heads * head_dim)
  ConstMatrix k;  // (keys, kv_heads * head_dim)
  ConstMatrix v;  // (keys, kv_heads * v_head_dim)
  std::span<const std::int64_t> q_positions, k_positions;
};

// out (queries, heads * v_head_dim) = softmax(scale q k^T) v and lse (queries, heads), the
// logarithm of each softmax's denominator. A query that sees no key gets 0 and -infinity.
void attention(const AttentionInput& in, const AttentionShape& shape, Matrix out, Matrix lse);

// Llama 4: what queries of layers that do not rotate are multiplied by, which grows with every
// `step` positions (Llama4TextAttention in transformers 5.23).
double query_temperature(std::int64_t position, std::int64_t step, double scale);

// Makes (out, lse) the result over the keys of both parts.
void merge_attention(ConstMatrix part_out, ConstMatrix part_lse, const AttentionShape& shape,
                     Matrix out, Matrix lse);

// A learned logit a head that takes its share of the softmax and has no value (gpt-oss): applied
// once, after the last merge.
void apply_sinks(ConstFloats sinks, const AttentionShape& shape, Matrix out, Matrix lse);

// Adds to dq, dk, dv what this block of keys contributes; out and lse are the final ones, over all
// blocks (and sinks). With p = exp(score - lse): dv += p^T dout, ds = p (dout v^T - dout . out).
void attention_backward(const AttentionInput& in, const AttentionShape& shape, ConstMatrix out,
                        ConstMatrix lse, ConstMatrix dout, Matrix dq, Matrix dk, Matrix dv);

// dsinks += - sum over queries of exp(sink - lse) (dout . out).
void sinks_backward(ConstFloats sinks, const AttentionShape& shape, ConstMatrix out,
                    ConstMatrix lse, ConstMatrix dout, Floats dsinks);

}  // namespace qplan::math
