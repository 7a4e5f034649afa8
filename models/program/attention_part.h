#pragma once
// A part of a decoder layer (layer_context.h): attention with its norm, projections and residual.

#include <cstdint>
#include <vector>

#include "models/program/fpdt_part.h"
#include "models/program/indexer_part.h"
#include "models/program/layer_context.h"
#include "models/program/norm_behind.h"

namespace qplan {

class AttentionPart {
 public:
  explicit AttentionPart(LayerContext& context)
      : c_(context),
        indexer_(context),
        fpdt_(context),
        behind_(context, ParameterRole::attention_out_norm) {}
  // x[local_tokens, hidden] -> x + attention(norm(x)).
  SlotId forward(SlotId x);
  // Gradient of the output -> gradient of x. `also`: another gradient of the normed input, of an
  // MLP beside attention.
  SlotId backward(SlotId dy, SlotId also = kNoSlot);
  [[nodiscard]] SlotId normed() const { return normed_; }  // the input as products take it

 private:
  [[nodiscard]] bool rotates() const;
  [[nodiscard]] bool norms_qk() const;
  [[nodiscard]] RowwiseKind qk_norm_kind(Pass pass) const;
  [[nodiscard]] bool fuses_qk_norm() const;
  void attend(SlotId normed);  // the normed input -> `out_`
  void project_forward(SlotId normed);
  void project_apart(SlotId normed);
  void mla_project_forward(SlotId normed);
  SlotId attend_backward();  // `dout_` -> the normed input's gradient
  SlotId project_backward();
  SlotId mla_project_backward();
  void core(Pass pass);
  void quantize_operands();
  [[nodiscard]] DType operand_dtype() const;
  SlotId turned_out();
  SlotId eager_qk_norm_copy();
  void sum_qk_norm(SlotId of);
  [[nodiscard]] std::int64_t query_widths() const;
  void take_gate(SlotId projected);
  // What attention reads and writes besides, where a model has learned sinks.
  struct Sinks {
    SlotId weights = kNoSlot, gradients = kNoSlot;
    std::int16_t parameter = kNoParameter;
  };
  void hold_packed(const Heads& heads);
  [[nodiscard]] Sinks learned_sinks(Pass pass) const;
  // Kernels over the scores beside what Attention is.
  void eager_scores(const Attention& work);
  [[nodiscard]] std::vector<Attention> in_chunks(const Attention& work) const;
  void by_heads(Pass pass, Attention work);
  void exchange_heads(Role role, std::int64_t width, BlockBuilder::Slots reads,
                      BlockBuilder::Slots writes);
  void gathered(Pass pass, const Attention& own);
  void gathered_at_once(Pass pass, const Attention& own);
  static Attention of_other_keys(Attention work);
  void ring(Pass pass, const Attention& whole);
  void priced_ring(Pass pass, const Attention& whole);

  LayerContext& c_;
  IndexerPart indexer_;
  FpdtPart fpdt_;
  NormBehind behind_;
  SlotId x_ = kNoSlot, normed_ = kNoSlot, q_raw_ = kNoSlot, k_raw_ = kNoSlot;
  SlotId qkv_ = kNoSlot;     // packed, before norm and rotation
  SlotId packed_ = kNoSlot;  // queries and keys of it, held by a checkpoint around attention
  SlotId q_ = kNoSlot, k_ = kNoSlot, v_ = kNoSlot, out_ = kNoSlot, lse_ = kNoSlot;
  SlotId turned_ = kNoSlot;                                    // the output by token, then sequence
  SlotId gate_ = kNoSlot, gated_ = kNoSlot, dgate_ = kNoSlot;  // of the output
  SlotId scores_ = kNoSlot, mask_ = kNoSlot, drop_ = kNoSlot;
  // Ulysses: of whole sequences, a share of the heads.
  SlotId q_by_heads_ = kNoSlot, k_by_heads_ = kNoSlot, v_by_heads_ = kNoSlot;
  SlotId out_by_heads_ = kNoSlot;
  SlotId eager_norm_ = kNoSlot, eager_qk_norm_ = kNoSlot;  // what unfused kernels keep
  SlotId q_down_ = kNoSlot, q_normed_ = kNoSlot, kv_down_ = kNoSlot, kv_normed_ = kNoSlot;
  SlotId dq_ = kNoSlot, dk_ = kNoSlot, dv_ = kNoSlot, dout_ = kNoSlot;
  SlotId dx_normed_partial_ = kNoSlot;
};

}  // namespace qplan
