#pragma once
// A part of a decoder layer (layer_context.h): Gated DeltaNet in attention's place.

#include <cstdint>

#include "models/program/layer_context.h"

namespace qplan {

// Gated DeltaNet in attention's place (delta_net_part.cpp): one projection to queries, keys,
// values, gate, strengths and decays; a convolution of the first three over the last tokens; the
// gated delta rule; a gated norm of each head; output projection, residual.
class DeltaNetPart {
 public:
  explicit DeltaNetPart(LayerContext& context) : c_(context) {}
  SlotId forward(SlotId x);
  SlotId backward(SlotId dy);

 private:
  // Columns of one rank's heads, those of a share of them where sequence is exchanged for heads.
  struct Widths {
    std::int64_t rows, key, value, heads;  // tokens; of all key heads, value heads; value heads
    [[nodiscard]] std::int64_t conv() const { return 2 * key + value; }
  };
  [[nodiscard]] const DeltaNetSpec& spec() const { return *c_.model.delta_net; }
  [[nodiscard]] Widths widths(int sequence_ranks) const;
  [[nodiscard]] LayerContext::Widths projections() const;
  [[nodiscard]] std::int64_t projected_width() const;
  [[nodiscard]] ParameterRole projection() const;
  [[nodiscard]] GatedDeltaRule rule(Pass pass) const;
  void project(SlotId normed);
  void prepare();
  void prepare_backward(bool apart);
  SlotId project_backward();

  LayerContext& c_;
  SlotId x_ = kNoSlot, normed_ = kNoSlot, eager_norm_ = kNoSlot;
  // What the convolution reads, the gate of the norm, strengths and decays: of one array, or each.
  SlotId conv_in_ = kNoSlot, gate_in_ = kNoSlot, strengths_in_ = kNoSlot;
  SlotId normed_qk_ = kNoSlot, qk_scale_ = kNoSlot, gate_ = kNoSlot;
  SlotId q_ = kNoSlot, k_ = kNoSlot, v_ = kNoSlot, decay_ = kNoSlot, strength_ = kNoSlot;
  SlotId inverse_ = kNoSlot, out_ = kNoSlot, normed_out_ = kNoSlot, eager_gate_ = kNoSlot;
  SlotId gated_ = kNoSlot;
  SlotId dout_ = kNoSlot, dgate_ = kNoSlot, dq_ = kNoSlot, dk_ = kNoSlot, dv_ = kNoSlot;
  SlotId ddecay_ = kNoSlot, dstrength_ = kNoSlot, dprojected_ = kNoSlot;
};

}  // namespace qplan
