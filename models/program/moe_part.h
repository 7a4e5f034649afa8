#pragma once
// A part of a decoder layer (layer_context.h): router, experts and what carries tokens between
// them.

#include <cstdint>
#include <string_view>

#include "models/program/layer_context.h"

namespace qplan {

class MoePart {
 public:
  explicit MoePart(LayerContext& context) : c_(context) {}
  SlotId forward(SlotId x);
  SlotId backward(SlotId dy);

 private:
  struct Rows {
    std::int64_t sent = 0;      // token copies this rank sends
    std::int64_t received = 0;  // token copies its experts receive, after the etp gather
  };
  // Rows on their way through the experts, and one number with each of them: the router's
  // probability in forward, its gradient in backward. kNoSlot: without.
  struct Carried {
    SlotId rows = kNoSlot, numbers = kNoSlot;
  };
  // Of the routed experts on this rank: token copies that they receive, columns of a row, of the
  // activation and of the up projection (and gate), and experts.
  struct ExpertSizes {
    std::int64_t received = 0, width = 0, fe = 0, up_fe = 0, groups = 0;
  };
  // Gradients of the normed tokens that the shared expert and its gate give; kNoSlot: none.
  struct SharedGradients {
    SlotId normed = kNoSlot, gate = kNoSlot;
  };
  [[nodiscard]] Rows rows() const;
  [[nodiscard]] ExpertSizes expert_sizes() const;
  [[nodiscard]] DType router_dtype() const;
  SlotId experts_forward();
  SlotId shared_forward();
  SharedGradients shared_backward(SlotId dy);
  Carried experts_backward(SlotId dy);
  SlotId router_backward(SlotId dprobs);
  [[nodiscard]] std::int64_t rows_dealt_out() const;
  [[nodiscard]] Collective exchange(bool narrow = false) const;
  void route(SlotId logits);
  void tell_routing();  // what ranks learn of it before tokens move
  void page();          // copies what backward reads of the experts' rows
  // Columns of the rows that experts take, and of an up projection (and gate) to `f` columns.
  [[nodiscard]] std::int64_t width() const { return c_.model.moe->expert_width(c_.hidden); }
  [[nodiscard]] std::int64_t up_columns(std::int64_t f) const { return gated() ? 2 * f : f; }
  [[nodiscard]] bool gated() const { return c_.model.mlp == MlpKind::swiglu; }
  [[nodiscard]] ParameterRole first_up(ParameterRole gate) const;
  [[nodiscard]] RowwiseKind activation(Pass pass) const;
  // The normed tokens as experts take them, and what experts give as the layer adds it.
  SlotId to_latent();
  SlotId from_latent(SlotId sum);
  SlotId from_latent_backward(SlotId dsum);
  SlotId to_latent_backward(SlotId drows);
  // The activation of the experts' up projection, weighted by the router's probabilities.
  void activate_experts(std::int64_t rows, std::int64_t width);
  SlotId experts_input(SlotId x, std::int64_t rows, std::int64_t cols);
  // Llama 4: tokens times the router's probabilities, before experts read them.
  [[nodiscard]] bool scales_inputs() const;
  [[nodiscard]] bool scales_activation() const;
  SlotId scale_inputs(SlotId rows);
  Carried scale_inputs_backward(Carried gradients);
  SlotId shared_input(SlotId x, std::int64_t rows, std::int64_t cols, Pass pass);
  [[nodiscard]] bool eager_experts() const;
  [[nodiscard]] bool weighs_rows() const { return eager_experts() && !scales_inputs(); }
  [[nodiscard]] SlotId masked(SlotId x, std::int64_t rows, std::int64_t cols);
  void mask(SlotId x, std::int64_t rows, std::int64_t cols);
  // Eager experts weigh their rows behind the second product.
  SlotId weighed(SlotId out, std::int64_t rows);
  SlotId weighed_backward(SlotId dsum, SlotId dprobs, std::int64_t rows);
  // The kind that moves rows by index: its gradient adds rows.
  [[nodiscard]] RowwiseKind moves_rows(RowwiseKind forward, Pass pass) const;
  [[nodiscard]] bool apart_bias() const;
  SlotId add_bias(SlotId out, std::int64_t rows);
  SlotId take_bias(SlotId dsum, std::int64_t rows);
  // gpt-oss by Hugging Face's modules: biases by index, and the gate operation by operation.
  [[nodiscard]] bool gates_by_parts() const;
  void add_indexed_bias(SlotId out, std::int64_t rows, std::int64_t cols);
  void sum_indexed_bias(SlotId dout, std::int64_t rows, std::int64_t cols);
  void gate_parts(std::int64_t rows, std::int64_t width);
  void gate_parts_backward(SlotId dact, SlotId dclamped, std::int64_t rows, std::int64_t width);
  // Backward's dispatch takes gradients the way of forward's combine, and the other way round.
  Carried dispatch(Carried tokens, Pass pass);
  Carried combine(Carried rows, Pass pass);
  void exchange_probs();
  // A slot for the numbers of `like`'s rows, where it has any.
  SlotId numbers(std::string_view name, SlotId like, std::int64_t rows);

  LayerContext& c_;
  SlotId x_ = kNoSlot, normed_ = kNoSlot, probs_ = kNoSlot, row_map_ = kNoSlot;
  SlotId counts_ = kNoSlot;   // tokens per expert, of every rank that exchanges them
  SlotId balance_ = kNoSlot;  // tokens per sequence and expert, for the auxiliary loss
  SlotId expert_in_ = kNoSlot, up_ = kNoSlot, act_ = kNoSlot, row_probs_ = kNoSlot;
  SlotId clamped_ = kNoSlot;   // the input of the activation, where that is not up_
  SlotId parts_ = kNoSlot;     // what the eager gate keeps beside it
  SlotId unscaled_ = kNoSlot;  // what experts read before it was scaled
  SlotId silu_ = kNoSlot, unweighed_ = kNoSlot;  // what eager experts keep
  SlotId shared_up_ = kNoSlot, shared_act_ = kNoSlot, shared_silu_ = kNoSlot;
  SlotId shared_gate_ = kNoSlot, ungated_ = kNoSlot;   // Qwen2-MoE
  SlotId latent_in_ = kNoSlot, latent_out_ = kNoSlot;  // what latent projections take
  SlotId mask_ = kNoSlot;                              // of dropout
  SlotId eager_norm_ = kNoSlot;                        // what unfused kernels keep
};

}  // namespace qplan
