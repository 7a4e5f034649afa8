#pragma once
// Attention that stays within chunks of a sequence (Llama 4).

#include <algorithm>
#include <cstdint>

#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"

namespace qplan {

// The longest chunk, in tokens, that a plan's sequences, or the documents in them, go beyond; 0:
// there is none.
inline std::int64_t chunk_within(const ModelSpec& model, const ParallelPlan& plan) {
  const std::int64_t length = plan.document_len > 0 ? plan.document_len : plan.seq_len;
  std::int64_t longest = 0;
  for (const LayerKind& layer : model.layers) {
    if (layer.chunk < length) longest = std::max(longest, layer.chunk);
  }
  return longest;
}

}  // namespace qplan
