#pragma once
// What the parts of a layer share while it is being built: sizes, precision, and the
// sequence-parallel, gather and weight-gradient idioms. Private to the builders.
//
// A part (attention_part.h, mlp_part.h, ...) is a class: forward takes the layer's input and gives
// its output slot, backward the gradients; what backward needs is kept in members.

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "models/program/block_builder.h"
#include "models/program/blocks.h"
#include "models/program/loss.h"

namespace qplan {

// Products of each of so many experts, whose rows `counts` tells; none: of a layer that all rows
// pass.
struct Experts {
  std::int64_t groups = 0;
  SlotId counts = kNoSlot;
};

// Packed as bitsandbytes packs them, in its layers.
constexpr bool lies_by_bitsandbytes(FrozenFormat format) {
  return format == FrozenFormat::int8 || format == FrozenFormat::nf4 ||
         format == FrozenFormat::nf4_double;
}

// Format of hidden states between layers, and between stages: that of activations, or fp32 where
// norms beside bitsandbytes' layers are (ParallelPlan::fp32_norms).
DType hidden_dtype_of(const ModelSpec& model, const BlockShape& shape);
// Of activations in its precision; what products take may be narrower.
DType activation_dtype_of(const BlockShape& shape);

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
  // The same of adapters; then there are no gradients above, for those weights are frozen.
  SlotId adapters = kNoSlot, adapters_backward = kNoSlot, adapter_gradients = kNoSlot;

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
  // The same in backward, for the weight's gradient: frozen weights have none, and parallel
  // adapters keep what forward gathered.
  SlotId gather_sequence_again(SlotId x, bool wait = true) {
    return shape.parallel_adapters ? x : gather_sequence(x, wait);
  }
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
  // With adapters beside the weight, theirs follow, and the weight has no gradient (adapters.cpp).
  void linear(ParameterRole role, SlotId x, SlotId y, std::int64_t rows, std::int64_t n,
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
  // The i-th of the layers that are packed from `first` on.
  [[nodiscard]] ParameterRole packed_role(ParameterRole first, std::size_t i) const;
  // What adapters add to a product that stands already, and to its two of backward.
  // What a product of `n` by `k` numbers, of each of so many experts, reads as its weight:
  // `weights` themselves, or, where frozen ones are quantised, what is made of them.
  SlotId product_weight(SlotId packed, std::int64_t n, std::int64_t k, std::int64_t groups = 1);
  void adapt(ParameterRole role, SlotId x, SlotId y, std::int64_t rows, std::int64_t n,
             std::int64_t k, const Experts& experts = {});
  void adapt_dgrad(ParameterRole role, SlotId dy, SlotId dx, std::int64_t rows, std::int64_t n,
                   std::int64_t k, const Experts& experts = {});
  void adapt_wgrad(ParameterRole role, SlotId dy, SlotId x, std::int64_t rows, std::int64_t n,
                   std::int64_t k, const Experts& experts = {});
  // What products with the tables of the vocabulary read and write: trained beside adapters, or
  // handled as all other weights.
  [[nodiscard]] bool trains_tables() const { return shape.frozen && shape.lora_embeddings; }
  [[nodiscard]] SlotId table_weights() const { return trains_tables() ? adapters : weights; }
  [[nodiscard]] SlotId table_weights_backward() const {
    return trains_tables() ? adapters_backward : weights_backward;
  }
  [[nodiscard]] SlotId table_gradients() const {
    return trains_tables() ? adapter_gradients : gradients;
  }
  // Whether adapters lie in a wider format than that of products.
  [[nodiscard]] bool wide_adapters() const {
    return shape.frozen && shape.lora_dtype == AdapterFormat::fp32 &&
           activation_dtype() != DType::fp32 && has_adapters(model_part(shape.kind));
  }
  // Frozen weights lie as bitsandbytes packs them, in its layers.
  [[nodiscard]] bool by_bitsandbytes() const { return lies_by_bitsandbytes(shape.frozen_weights); }
  // (FPDT's layers leave dropout out: Megatron-DeepSpeed 4efb479d, transformer.py:1356.)
  [[nodiscard]] bool drops() const {
    return (recipe.kernels.dropout || shape.dropout) && shape.fpdt_chunk == 0;
  }
  [[nodiscard]] AttentionKernel attention_kernel() const;
  [[nodiscard]] LossKind loss_kind() const {
    return loss_of(shape.loss, shape.deterministic, recipe);
  }
  [[nodiscard]] LossTraits loss() const { return traits_of(loss_kind(), recipe); }
  [[nodiscard]] LossParts loss_parts() const;
  [[nodiscard]] bool projects_apart() const {
    return recipe.kernels.separate_projections && model.mlp == MlpKind::swiglu;
  }
  // The product of a weight gradient, m x n of `parameter`, in whatever format the sum is kept.
  void weight_gradient(std::int16_t parameter, Gemm product, SlotId dy, SlotId x);
  void weight_gradient(std::int16_t parameter, Gemm product, SlotId dy, SlotId x, SlotId sum);
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
  // What backward of a norm reads of its input beside `kept`.
  [[nodiscard]] SlotId input_of_norm(SlotId x, SlotId kept) const;
  // Whether Hugging Face's norms and rotary embeddings, its SwiGLU, are one kernel each.
  [[nodiscard]] bool fuses_norms() const {
    return recipe.kernels.fused_norms || shape.module_kernels != ModuleKernels::eager;
  }
  [[nodiscard]] bool fuses_swiglu() const {
    return recipe.kernels.fused || shape.module_kernels == ModuleKernels::all;
  }
  // Of hidden states between the parts of a layer, and of what bitsandbytes' layers make of them: a
  // layer's result has the format of its input (Linear4bit.forward in bitsandbytes' nn/modules.py),
  // and norms of fp32 weights give fp32.
  [[nodiscard]] DType hidden_dtype() const;
  // A slot that only unfused kernels need between forward and backward; kNoSlot when fused.
  SlotId eager_copy(std::string_view name, DType dtype, std::int64_t rows, std::int64_t cols);
  SlotId eager_norm_copy();

  // Of a product whose operand or result is a hidden state in fp32: what it reads, what it writes,
  // and the copy of that in the format asked for.
  SlotId narrowed(SlotId x, std::int64_t rows, std::int64_t cols);
  SlotId product_result(SlotId y, std::int64_t rows, std::int64_t cols);
  void widen(SlotId result, SlotId y, std::int64_t rows, std::int64_t cols);

  Op& rowwise(RowwiseKind kind, std::int64_t rows, std::int64_t cols, BlockBuilder::Slots reads,
              BlockBuilder::Slots writes);

 private:
  // The product alone, of a weight or of those packed with it.
  Op& product(ParameterRole role, SlotId x, SlotId y, std::int64_t rows, std::int64_t n,
              std::int64_t k);

  // ---- frozen weights and adapters (adapters.cpp) ----

  // Adapters whose A are packed and multiplied as one, what those products make of the layer's
  // input, and the gradient of that.
  struct AdapterRun {
    std::vector<AdaptedPart> parts;
    SlotId read = kNoSlot, mask = kNoSlot;  // the layer's input; what of it is dropped
    bool converts = false;                  // `read` is a copy in another format
    SlotId inner = kNoSlot, d_inner = kNoSlot;
    std::vector<SlotId> d_outer;      // of each part: the gradient of what its B makes
    SlotId a = kNoSlot, b = kNoSlot;  // of wide adapters: both matrices as products read them
    // DoRA: what is scaled, by its norms; the adapter's own share of it, where that is apart, and
    // the gradient of the layer's.
    SlotId base = kNoSlot, outer = kNoSlot, norms = kNoSlot, d_base = kNoSlot;
  };
  std::vector<std::vector<AdaptedPart>> runs_of(ParameterRole role, std::int64_t n) const;
  AdapterRun& run_of(const AdaptedPart& first);
  // Parallel adapters of one layer.
  enum class AdapterKind : std::uint8_t { column, row, whole };  // as the layer beside them
  [[nodiscard]] AdapterKind kind_of(const AdaptedPart& part) const;
  SlotId over_tp(CollectiveKind kind, SlotId x, std::string_view name, std::int64_t rows,
                 std::int64_t cols);
  SlotId exchanged(SlotId x, std::string_view name, std::int64_t numbers, std::int64_t rows,
                   std::int64_t cols);
  void adapt_parallel(const AdaptedPart& part, SlotId x, SlotId y, std::int64_t rows,
                      std::int64_t n, std::int64_t k);
  void adapt_parallel_dgrad(const AdaptedPart& part, SlotId dy, SlotId dx, std::int64_t rows,
                            std::int64_t n, std::int64_t k);
  void adapt_parallel_wgrad(const AdaptedPart& part, std::int64_t rows, std::int64_t k,
                            bool of_experts);
  [[nodiscard]] bool converts_adapter_input(SlotId x) const;
  SlotId drop(SlotId x, SlotId& mask, std::int64_t rows, std::int64_t k);
  Op& in_format(RowwiseKind kind, DType dtype, std::int64_t rows, std::int64_t cols,
                BlockBuilder::Slots reads, BlockBuilder::Slots writes);
  // A wide adapter's matrix in the format of products.
  SlotId narrow_adapter(std::int16_t parameter, std::int64_t rows, std::int64_t cols);

  // ---- DoRA (magnitudes.cpp) ----

  // Whether this layer's output, its adapters' in it, is scaled by one kernel.
  [[nodiscard]] bool magnifies(ParameterRole role, std::int64_t n) const;
  // The norms of the n rows of W + scale B A (n, k) of `part` come to stand in `norms`. What was
  // made for them and lives on beside them.
  struct Merged {
    SlotId identity = kNoSlot, change = kNoSlot, weight = kNoSlot;
  };
  Merged merge(const AdaptedPart& part, std::int64_t n, std::int64_t k, SlotId norms);
  // before[rows, n] -> y by one kernel. Backward: magnitudes' gradients, and what takes the place
  // of dy in the layer's own product.
  void magnify(ParameterRole role, SlotId before, SlotId y, std::int64_t rows, std::int64_t n,
               std::int64_t k);
  SlotId magnify_backward(ParameterRole role, SlotId dy, std::int64_t rows, std::int64_t n);
  // As PEFT has it: {y} becomes y + (m/norm - 1) base + m/norm outer.
  void add_magnified(AdapterRun& run, SlotId y, SlotId outer, std::int64_t rows, std::int64_t k,
                     const Merged& merged);
  struct Magnified {
    std::int16_t first = kNoParameter;  // of the packed weights
    SlotId before = kNoSlot, norms = kNoSlot;
  };
  std::vector<Magnified> magnified_;
  Op& adapter_product(std::int64_t rows, std::int64_t n, std::int64_t k, const Experts& experts,
                      SlotId x, SlotId weight, SlotId y, bool adds = false);
  void adapter_gradient(std::int16_t parameter, std::int64_t rows, std::int64_t n, std::int64_t k,
                        const Experts& experts, SlotId dy, SlotId x);
  std::vector<AdapterRun> adapter_runs_;

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

}  // namespace qplan
