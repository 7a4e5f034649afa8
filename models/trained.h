#pragma once
// What of a model is trained: all of it, or adapters alone, or embedding and head beside them.

#include "models/parameters.h"

namespace qplan {

// A table of the vocabulary.
inline bool is_table(const Parameter& p) {
  return p.role == ParameterRole::embed_tokens || p.role == ParameterRole::lm_head;
}

struct Trained {
  Lora lora;                // rank 0: every weight is trained
  bool embeddings = false;  // ... and, beside adapters, embedding and head
  [[nodiscard]] bool leaves_frozen(const Parameter& p) const {
    return lora.rank > 0 && p.adapter == Adapter::none && !(embeddings && is_table(p));
  }
};

}  // namespace qplan
