#pragma once
// A part of a decoder layer (layer_context.h): Mamba-2 in attention's place.

#include <cstdint>
#include <string_view>

#include "models/program/layer_context.h"

namespace qplan {

// Mamba-2 in attention's place (mamba_part.cpp): one projection to a gate, what the convolution
// takes (x, B, C) and step sizes; convolution, scan and gate; a norm of each group; output
// projection, residual.
class MambaPart {
 public:
  explicit MambaPart(LayerContext& context) : c_(context) {}
  SlotId forward(SlotId x);
  SlotId backward(SlotId dy);

 private:
  // Of one rank's heads, or of a share of them where sequence is exchanged for heads.
  struct Widths {
    std::int64_t rows, inner, heads, groups, shared;  // tokens; columns of x, y; ...; of B, or C
    [[nodiscard]] std::int64_t conv() const { return inner + 2 * shared; }
    [[nodiscard]] std::int64_t projected() const { return inner + conv() + heads; }
  };
  static constexpr int kExchanged = 5;  // arrays that are exchanged each: gate, x, B, C, step sizes
  [[nodiscard]] const MambaSpec& spec() const { return *c_.model.mamba; }
  [[nodiscard]] Widths widths(int sequence_ranks) const;
  [[nodiscard]] StateSpaceScan scan(Pass pass) const;
  SlotId turned(SlotId x, std::int64_t rows, std::int64_t cols, std::string_view name);
  SlotId convolved();
  SlotId scratch(const StateSpaceScan& work);
  SlotId norm_forward();
  SlotId project_backward();

  LayerContext& c_;
  SlotId x_ = kNoSlot, normed_ = kNoSlot, eager_norm_ = kNoSlot;
  SlotId projected_ = kNoSlot, out_ = kNoSlot;  // what the scan's function keeps
  SlotId gated_ = kNoSlot, normed_out_ = kNoSlot;
  SlotId dprojected_ = kNoSlot;
};

}  // namespace qplan
