#pragma once
// What the parts of a layer share while it is being built: sizes, precision, and the
// sequence-parallel, gather and weight-gradient idioms. Private to the builders.

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "models/program/block_builder.h"
#include "models/program/blocks.h"
#include "models/program/loss.h"

namespace qplan {

struct LayerContext {
  const ModelSpec& model;
  const Recipe& recipe;
  const BlockShape& shape;
  BlockBuilder& b;

  using Widths = std::vector<std::int64_t>;  // columns of layers that lie side by side

  // Sizes. `tokens`: of one microbatch in one tp group; `local_tokens`: of one rank between the
  // tensor-parallel regions (1/tp of them under sequence parallelism).
  std::int64_t tokens = 0, local_tokens = 0, hidden = 0;

  // What forward and backward products read as weights, and what weight gradients are written to.
  SlotId weights = kNoSlot, weights_backward = kNoSlot, gradients = kNoSlot;
  SlotId expert_weights = kNoSlot, expert_weights_backward = kNoSlot, expert_gradients = kNoSlot;

  LayerContext(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape,
               BlockBuilder& builder);

  // Format of a linear layer's operands: fp8 halves the stored input and doubles the rate. Our
  // executor's products run in the format of what they are given.
  [[nodiscard]] DType linear_dtype() const;
  // ... and of products whose operands nobody cast.
  [[nodiscard]] DType product_dtype() const;
  [[nodiscard]] DType activation_dtype() const;

  // The input of a linear layer, or the gradient of its output, as it is stored: cast to fp8 where
  // the recipe runs in fp8, its maximum found before where that is how it scales. `groups`: experts
  // whose rows are cast one after the other.
  SlotId linear_input(SlotId x, std::int64_t rows, std::int64_t cols, Pass pass = Pass::forward,
                      std::int64_t groups = 1);

  // Sequence shard -> whole sequence, before a column-parallel product; returns the slot to read.
  // Without sequence parallelism (or tp 1) it is `x` itself.
  SlotId gather_sequence(SlotId x, bool wait = true);
  // Partial sums -> this rank's shard (reduce-scatter), or everybody's sum (all-reduce).
  SlotId reduce_partial(SlotId x, std::string_view name, bool wait = true);
  // The same for the gradient of a column-parallel layer's input, which runs beside the product of
  // its weight gradient: the caller waits behind that.
  SlotId reduce_input_gradient(SlotId x, std::string_view name);
  // Whole heads of a share of the sequence become a share of the heads of whole sequences, or back:
  // Megatron puts heads (or the halves of a balanced causal mask) in order before and after,
  // whatever cp_comm its attention has (a2a_cp_to_hp, a2a_hp_to_cp). `width`: of all heads;
  // `arrays`: side by side, of which each is exchanged on its own.
  SlotId exchange_heads(SlotId x, std::int64_t width, Pass to_heads, std::string_view name,
                        int arrays = 1);

  // y[rows, n] = x[rows, k] W, and dx[rows, k] = dy[rows, n] W^T.
  // `role`: the weight, or the first of those that are packed as one (q, k, v; gate, up).
  Op& linear(ParameterRole role, SlotId x, SlotId y, std::int64_t rows, std::int64_t n,
             std::int64_t k);
  void linear_dgrad(ParameterRole role, SlotId dy, SlotId dx, std::int64_t rows, std::int64_t n,
                    std::int64_t k);
  // gather_sequence(x), then a product of it with the weights: y[tokens, n]. With tensor-parallel
  // overlap the two run in pieces, each product beside the next piece's gather. Returns the whole
  // x.
  SlotId gathered_linear(ParameterRole role, SlotId x, SlotId y, std::int64_t n, std::int64_t k);
  // A product y[tokens, n] = x[tokens, k] W, then reduce_partial(y), in pieces when overlapped.
  SlotId linear_reduced(ParameterRole role, SlotId x, std::int64_t n, std::int64_t k,
                        std::string_view name);
  // dW[n, k] += dy[rows, n]^T x[rows, k].
  void linear_wgrad(ParameterRole role, SlotId dy, SlotId x, std::int64_t rows, std::int64_t n,
                    std::int64_t k);
  // The same of several layers with one input, `role` and those packed with it: one product of all,
  // or one each (projects_apart()), whose input gradients are then added up.
  void packed_dgrad(ParameterRole role, SlotId dy, SlotId dx, std::int64_t rows, const Widths& n,
                    std::int64_t k);
  void packed_wgrad(ParameterRole role, SlotId dy, SlotId x, std::int64_t rows, const Widths& n,
                    std::int64_t k);
  // The next product by `role` is another of those layers', whose weight is cast on its own.
  void next_layer(ParameterRole role);
  [[nodiscard]] bool drops() const { return recipe.kernels.dropout || shape.dropout; }
  [[nodiscard]] AttentionKernel attention_kernel() const;
  [[nodiscard]] LossKind loss_kind() const {
    return loss_of(shape.loss, shape.deterministic, recipe);
  }
  [[nodiscard]] LossTraits loss() const { return traits_of(loss_kind(), recipe); }
  [[nodiscard]] std::int64_t loss_chunks() const {
    return shape.kind == BlockKind::head ? qplan::loss_chunks(model, loss(), tokens) : 1;
  }
  [[nodiscard]] bool projects_apart() const {
    return recipe.kernels.separate_projections && model.mlp == MlpKind::swiglu;
  }
  // The product of a weight gradient, m x n of `parameter`, in whatever format the sum is kept.
  void weight_gradient(std::int16_t parameter, Gemm product, SlotId dy, SlotId x);
  // The gradient of rows x cols parameters, `fresh` from a microbatch, is added to the sum.
  void accumulate(SlotId fresh, SlotId sum, std::int64_t rows, std::int64_t cols);
  // ... that a product has left in `sum`, where products do not add to it themselves.
  void accumulate_apart(SlotId sum, std::int64_t rows, std::int64_t cols);
  // Microbatches' gradients are summed in fp32; by the products of weight gradients.
  [[nodiscard]] bool sums_in_fp32() const;
  [[nodiscard]] bool products_sum() const;

  [[nodiscard]] bool overlaps_tp() const {
    return shape.tp > 1 && shape.sequence_parallel && shape.overlap.has(OverlapKind::tp);
  }

  // `kept`: unfused norms keep fp32 copies beside their input (eager_copy()).
  void norm_forward(ParameterRole role, SlotId x, SlotId y, std::int64_t rows, std::int64_t cols,
                    SlotId kept = kNoSlot);
  void norm_backward(ParameterRole role, SlotId x, SlotId dy, SlotId residual, SlotId dx,
                     std::int64_t rows, std::int64_t cols, SlotId kept = kNoSlot);
  // A slot that only unfused kernels need between forward and backward; kNoSlot when fused.
  SlotId eager_copy(std::string_view name, DType dtype, std::int64_t rows, std::int64_t cols);
  SlotId eager_norm_copy();

  Op& rowwise(RowwiseKind kind, std::int64_t rows, std::int64_t cols, BlockBuilder::Slots reads,
              BlockBuilder::Slots writes);

 private:
  // ---- fp8 as our executor runs it (fp8_linear.cpp) ----

  // Weights in fp8, (n, k) with k beside each other, and their scale.
  struct NarrowWeight {
    ParameterRole role;
    SlotId narrow = kNoSlot, scale = kNoSlot;
  };
  SlotId quantized_input(SlotId x, std::int64_t rows, std::int64_t cols, Pass pass);
  [[nodiscard]] bool is_quantized(SlotId x);
  // Of an fp8 slot, or of what one was made of.
  [[nodiscard]] SlotId scale_of(SlotId x) const;
  // `to` holds the same numbers as x, of more ranks.
  void share_scale(SlotId x, SlotId to);
  NarrowWeight narrow_weight(ParameterRole role, std::int64_t n, std::int64_t k);
  SlotId transposed(SlotId x, DType format, std::int64_t rows, std::int64_t cols);
  Op& quantized_linear(ParameterRole role, SlotId x, SlotId y, std::int64_t rows, std::int64_t n,
                       std::int64_t k);
  void quantized_dgrad(ParameterRole role, SlotId dy, SlotId dx, std::int64_t rows, std::int64_t n,
                       std::int64_t k);
  void quantized_wgrad(ParameterRole role, SlotId dy, SlotId x, std::int64_t rows, std::int64_t n,
                       std::int64_t k);

  std::vector<std::pair<SlotId, SlotId>> scales_;
  std::vector<NarrowWeight> narrow_weights_;
};

// Heads of one rank. With fewer key-value heads than tp ranks, each keeps one
// (docs/reference/frameworks.md 1.8).
struct Heads {
  std::int64_t q, kv, qk_dim, v_dim;
};
Heads heads_of(const LayerContext& context);

// The parts of a decoder layer. Forward takes the layer's input and gives its output slot; each
// keeps what its backward needs in members.
class AttentionPart {
 public:
  explicit AttentionPart(LayerContext& context) : c_(context) {}
  // x[local_tokens, hidden] -> x + attention(norm(x)).
  SlotId forward(SlotId x);
  // Gradient of the output -> gradient of x.
  SlotId backward(SlotId dy);

 private:
  [[nodiscard]] bool rotates() const;
  [[nodiscard]] bool norms_qk() const;
  [[nodiscard]] RowwiseKind qk_norm_kind(Pass pass) const;
  [[nodiscard]] bool fuses_qk_norm() const;
  void project_forward(SlotId normed);
  void project_apart(SlotId normed);
  void mla_project_forward(SlotId normed);
  SlotId project_backward();
  SlotId mla_project_backward();
  void core(Pass pass);
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
  SlotId x_ = kNoSlot, normed_ = kNoSlot, q_raw_ = kNoSlot, k_raw_ = kNoSlot;
  SlotId qkv_ = kNoSlot;     // packed, before norm and rotation
  SlotId packed_ = kNoSlot;  // queries and keys of it, held by a checkpoint around attention
  SlotId q_ = kNoSlot, k_ = kNoSlot, v_ = kNoSlot, out_ = kNoSlot, lse_ = kNoSlot;
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

class MlpPart {
 public:
  explicit MlpPart(LayerContext& context) : c_(context) {}
  SlotId forward(SlotId x);
  SlotId backward(SlotId dy);

 private:
  LayerContext& c_;
  SlotId x_ = kNoSlot, normed_ = kNoSlot, up_ = kNoSlot, act_ = kNoSlot, mask_ = kNoSlot;
  SlotId gate_ = kNoSlot;  // of its own where products are recomputed one by one
  SlotId eager_norm_ = kNoSlot, eager_silu_ = kNoSlot;  // what unfused kernels keep
};

// A wire between a vision tower's taps, their mergers and the decoder layers that add their tokens.
SlotId tap_wire(LayerContext& context, std::string_view name, std::int64_t rows, std::int64_t cols,
                std::int64_t channel);

// Where the text takes visual tokens in: in the embedding their rows replace those of placeholders,
// in the first decoder layers the deepstack tokens are added (vision_blocks.cpp). Under sequence
// parallelism a rank makes a share of the tokens and needs those that stand in its share of the
// sequence, so they are gathered first, and their gradients scattered.
class ImagePart {
 public:
  explicit ImagePart(LayerContext& context);
  // Writes the visual tokens' rows over the text's.
  void put(SlotId text);
  // The layer's result y becomes y + tokens; returns its slot.
  SlotId add(SlotId y);
  // The gradient of the tokens, out of that of the rows they were put in or added to.
  void take(SlotId dy);

 private:
  SlotId whole(SlotId tokens);
  [[nodiscard]] Bytes bytes() const;

  LayerContext& c_;
  std::int64_t whole_rows_ = 0, rows_ = 0;  // visual tokens of a microbatch; of this rank
};

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
  [[nodiscard]] Rows rows() const;
  [[nodiscard]] std::int64_t rows_dealt_out() const;
  [[nodiscard]] Collective exchange() const;
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
  SlotId scale_inputs(SlotId rows);
  Carried scale_inputs_backward(Carried gradients);
  SlotId shared_input(SlotId x, std::int64_t rows, std::int64_t cols, Pass pass);
  [[nodiscard]] bool apart_bias() const;
  SlotId add_bias(SlotId out, std::int64_t rows);
  SlotId take_bias(SlotId dsum, std::int64_t rows);
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
  SlotId unscaled_ = kNoSlot;  // what experts read before it was scaled
  SlotId shared_up_ = kNoSlot, shared_act_ = kNoSlot;
  SlotId shared_gate_ = kNoSlot, ungated_ = kNoSlot;   // Qwen2-MoE
  SlotId latent_in_ = kNoSlot, latent_out_ = kNoSlot;  // what latent projections take
  SlotId mask_ = kNoSlot;                              // of dropout
  SlotId eager_norm_ = kNoSlot;                        // what unfused kernels keep
};

}  // namespace qplan
