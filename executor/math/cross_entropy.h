#pragma once
// Cross-entropy of logits that are split by vocabulary over tensor-parallel ranks, in two phases
// with a reduction behind each (Megatron, tensor_parallel/cross_entropy.py): the maximum, then the
// denominator and the target's logit.

#include "executor/math/matrix.h"

namespace qplan::math {

// This rank's columns are tokens first .. first + cols - 1 of a vocabulary of `vocabulary` words;
// columns beyond it are padding, which no probability goes to.
struct VocabularyShard {
  std::int64_t first = 0, vocabulary = 0;
};

// maxima[t] of this rank's columns, -infinity if all are padding. Ranks take the maximum.
void logits_max(ConstMatrix logits, const VocabularyShard& shard, Floats maxima);

// sums[t] = sum of exp(logit - maxima[t]), targets' logits minus maxima[t], 0 where the target is
// another rank's. Ranks add both.
void logits_sums(ConstMatrix logits, const VocabularyShard& shard,
                 std::span<const std::int32_t> targets, ConstFloats maxima, Floats sums,
                 Floats target_logits);

// loss[t] = log(sums[t]) - target_logits[t].
void cross_entropy(ConstFloats sums, ConstFloats target_logits, Floats losses);

// dlogits = scale (softmax - [column is the target]), 0 in padding; scale is that of the loss:
// 1/tokens for a mean. dlogits may be logits.
void cross_entropy_backward(ConstMatrix logits, const VocabularyShard& shard,
                            std::span<const std::int32_t> targets, ConstFloats maxima,
                            ConstFloats sums, double scale, Matrix dlogits);

}  // namespace qplan::math
