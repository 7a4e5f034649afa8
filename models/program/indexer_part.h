#pragma once
// A part of a decoder layer (layer_context.h): DeepSeek-V3.2's indexer, which scores all keys
// before a query and chooses those that attention sees (IndexerSpec).

#include "models/program/layer_context.h"

namespace qplan {

class IndexerPart {
 public:
  explicit IndexerPart(LayerContext& context) : c_(context) {}
  // `normed`: the layer's normed input; `queries`: the compressed queries, normed.
  void forward(SlotId normed, SlotId queries);
  // Of its own loss: no gradient leaves it (arXiv 2512.02556, section 2.1: its input is detached).
  void backward();

 private:
  [[nodiscard]] Attention scores(Pass pass) const;

  LayerContext& c_;
  SlotId normed_ = kNoSlot, queries_ = kNoSlot;  // shares of a sequence, where tokens are split
  SlotId q_ = kNoSlot, k_raw_ = kNoSlot, k_ = kNoSlot, weights_ = kNoSlot, chosen_ = kNoSlot;
};

}  // namespace qplan
