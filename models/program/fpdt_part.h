#pragma once
// A decoder layer's attention and MLP chunk by chunk (FPDT, arXiv 2408.16978), as DeepSpeed has
// them: a chunk of the sequence is projected, exchanged for heads and attended to after the other,
// and what waits is on the host (DeepSpeed 4a21e491, deepspeed/sequence/fpdt_layer.py).

#include <cstdint>

#include "models/program/layer_context.h"

namespace qplan {

// Parts of a rank's tokens that the loss runs in, one after the other, for each chunk
// (Megatron-DeepSpeed 4efb479d, megatron/model/gpt_model.py:47), and that the MLP does
// (megatron/model/transformer.py:164).
inline constexpr std::int64_t kLossPartsOfChunk = 32, kMlpPartsOfChunk = 2;

class FpdtPart {
 public:
  explicit FpdtPart(LayerContext& context) : c_(context) {}

  // The normed input -> what attention makes of it, before its output projection.
  SlotId attention_forward(SlotId normed);
  // The gradient of that -> the normed input's. Whatever else it takes comes from the host.
  SlotId attention_backward(SlotId dout);
  // The normed input -> the down projection's result, which is all that is kept.
  SlotId mlp_forward(SlotId normed);
  // Makes each part's activations again; the normed input's gradient takes its place.
  SlotId mlp_backward(SlotId dout, SlotId normed);

 private:
  // Sizes of a chunk: tokens of this rank, rows once they are exchanged for heads, and columns of
  // queries, keys, values and outputs that a rank then has.
  struct Sizes {
    std::int64_t chunks = 1, tokens = 0, rows = 0;
    std::int64_t q = 0, k = 0, v = 0, out = 0, heads = 0, kv_heads = 0;
    std::int64_t projected = 0;  // columns of a rank's own projections
  };
  [[nodiscard]] Sizes sizes() const;
  [[nodiscard]] Attention pair(const Sizes& s, Pass pass, bool own) const;
  void leave(std::int64_t rows, double bytes, BlockBuilder::Slots from);
  void come(std::int64_t rows, double bytes, BlockBuilder::Slots to);
  void exchange(Role role, std::int64_t tokens, std::int64_t width, int arrays,
                BlockBuilder::Slots from, BlockBuilder::Slots to);
  void in_fp32(RowwiseKind kind, std::int64_t rows, std::int64_t cols, BlockBuilder::Slots from,
               BlockBuilder::Slots to);

  LayerContext& c_;
};

}  // namespace qplan
