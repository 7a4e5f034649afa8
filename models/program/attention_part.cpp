// Attention of a decoder layer: norm, projections, rotary embedding, core (attention_core.cpp),
// output projection, residual. Kept for backward: docs/reference/physics.md 5.2,
// docs/reference/frameworks.md 2.4.

#include "models/program/attention_part.h"

namespace qplan {

SlotId AttentionPart::forward(SlotId x) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const Heads heads = heads_of(c_);
  const DType act = c_.activation_dtype();
  x_ = x;
  const bool apart = !c_.recipe.kernels.norms_in_linears || c_.model.mla;
  if (apart) b.begin_module(RecomputeModule::layernorm);
  SlotId normed = x;
  if (norms_before(c_)) {
    normed = b.slot("normed", c_.hidden_dtype(), c_.local_tokens, c_.hidden);
    eager_norm_ = c_.eager_norm_copy();
    c_.norm_forward(ParameterRole::input_norm, x, normed, c_.local_tokens, c_.hidden, eager_norm_);
  }
  const bool cast = !c_.model.mla || c_.recipe.kernels.narrow_experts;
  normed_ = cast ? c_.linear_input(normed, c_.local_tokens, c_.hidden) : normed;
  if (apart) b.end_module(RecomputeModule::layernorm);
  if (s.fpdt_chunk > 0) {
    turned_ = out_ = fpdt_.attention_forward(normed_);
  } else {
    attend(normed_);
  }

  // Cast, but kept as it came, for attention's backward reads it, too: Megatron has the product of
  // fp8 keep its original input here (set_save_original_input in core's attention.py; delayed
  // scaling alone has a cast copy as well).
  gated_ = turned_;
  if (c_.model.attention_output_gate) {
    gated_ = b.slot("attention gated", act, c_.tokens, heads.q * heads.v_dim);
    c_.rowwise(RowwiseKind::swiglu, c_.tokens, heads.q * heads.v_dim, {turned_, gate_}, {gated_})
        .role = Role::gate;
  }
  const SlotId projected_in = c_.linear_input(gated_, c_.tokens, heads.q * heads.v_dim);
  const SlotId sum = behind_.forward(c_.linear_reduced(
      ParameterRole::o_proj, projected_in, c_.hidden, heads.q * heads.v_dim, "attention sum"));
  const SlotId y = b.slot("x2", c_.hidden_dtype(), c_.local_tokens, c_.hidden);
  if (c_.drops()) {
    drop_ = b.slot("dropout mask", DType::boolean, c_.local_tokens, c_.hidden);
    c_.rowwise(RowwiseKind::dropout_add, c_.local_tokens, c_.hidden, {sum, x}, {y, drop_});
  } else {
    c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {sum, x}, {y});
  }
  return y;
}

void AttentionPart::attend(SlotId normed) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const Heads heads = heads_of(c_);
  const DType act = c_.activation_dtype();
  q_ = b.slot("q", act, c_.tokens, heads.q * heads.qk_dim);
  k_ = b.slot("k", act, c_.tokens, heads.kv * heads.qk_dim);
  v_ = b.slot("v", act, c_.tokens, heads.kv * heads.v_dim);
  out_ = b.slot("attention out", act, c_.tokens, heads.q * heads.v_dim);
  // Where heads are exchanged for sequence, of whole sequences.
  const int share = s.cp_comm == CpComm::a2a ? s.cp : 1;
  lse_ = b.slot("log-sum-exp", DType::fp32, c_.tokens * share, heads.q / share);
  if (c_.attention_kernel() == AttentionKernel::unfused) {
    // Probabilities, their dropout mask and the dropped result: 5 bytes a score (Korthikanti, 5as).
    const std::int64_t rows = c_.tokens * heads.q;
    scores_ = b.slot("softmax", act, rows, s.seq_len);
    if (c_.drops()) mask_ = b.slot("softmax mask and dropout", DType::boolean, rows, 3 * s.seq_len);
  }
  if (c_.model.mla) {
    mla_project_forward(normed);
    if (c_.model.indexer) indexer_.forward(normed, q_normed_);
  } else {
    project_forward(normed);
  }
  b.begin_module(RecomputeModule::core_attn);
  if (s.fp8_dot_product_attention) quantize_operands();
  core(Pass::forward);
  turned_ = turned_out();
  b.end_module(RecomputeModule::core_attn);
}

// Transformer Engine makes fp8 copies of queries, keys and values, which backward keeps in their
// stead, and has the kernel write its output in 16 bits (FusedAttnFunc in d0067d0d,
// backends.py, with NVTE_DPA_FP8CS_O_in_F16, on unless said).
void AttentionPart::quantize_operands() {
  const Heads heads = heads_of(c_);
  const auto quantized = [&](std::string_view name, std::int64_t width, SlotId& operand) {
    const SlotId copy = c_.b.slot(name, DType::fp8, c_.tokens, width);
    c_.rowwise(RowwiseKind::quantize, c_.tokens, width, {operand}, {copy});
    operand = copy;
  };
  quantized("q in fp8", heads.q * heads.qk_dim, q_);
  quantized("k in fp8", heads.kv * heads.qk_dim, k_);
  quantized("v in fp8", heads.kv * heads.v_dim, v_);
}

// What attention reads of queries, keys and values, and of its output's gradient.
DType AttentionPart::operand_dtype() const {
  return c_.shape.fp8_dot_product_attention ? DType::fp8 : c_.activation_dtype();
}

// Norms of queries and keys keep fp32 copies as others do. Eager rotation keeps nothing: cosines
// and sines need no gradient, so autograd stores those alone.
SlotId AttentionPart::eager_qk_norm_copy() {
  if (c_.shape.module_kernels != ModuleKernels::eager) return kNoSlot;
  const Heads heads = heads_of(c_);
  return c_.eager_copy("qk norm in fp32", DType::fp32, c_.tokens,
                       (heads.q + heads.kv) * heads.qk_dim);
}

// A rank's sums over its own heads become those over all: a number a token for queries, one for
// keys.
void AttentionPart::sum_qk_norm(SlotId of) {
  if (!c_.model.qk_norm_whole || c_.shape.tp == 1) return;
  const Bytes bytes(static_cast<double>(2 * c_.tokens) * size_of(DType::fp32));
  c_.b.exposed(Collective{CollectiveKind::all_reduce, Axis::tp, bytes}, {of}, {of});
}

// Columns that the query projection makes, in queries' widths: a gate beside the queries.
std::int64_t AttentionPart::query_widths() const {
  return c_.model.attention_output_gate ? 2 : 1;
}

// The gate of the output, out of what the projection made: each head's beside its query.
void AttentionPart::take_gate(SlotId projected) {
  if (!c_.model.attention_output_gate) return;
  const std::int64_t width = heads_of(c_).q * heads_of(c_).qk_dim;
  gate_ = c_.b.slot("attention gate", c_.activation_dtype(), c_.tokens, width);
  c_.rowwise(RowwiseKind::copy, c_.tokens, width, {projected}, {gate_}).role = Role::gate;
}

bool AttentionPart::rotates() const {
  return c_.model.position == PositionEmbedding::rope && c_.shape.layer.rotates;
}

bool AttentionPart::norms_qk() const {
  return c_.model.qk_norm || (c_.model.qk_l2_norm && rotates());
}

RowwiseKind AttentionPart::qk_norm_kind(Pass pass) const {
  const bool forward = pass == Pass::forward;
  if (c_.model.qk_norm) return forward ? RowwiseKind::rms_norm : RowwiseKind::rms_norm_backward;
  return forward ? RowwiseKind::l2_norm : RowwiseKind::l2_norm_backward;
}

// Norms of queries and keys run with the rotation that follows them, where one rank's heads are
// packed side by side.
bool AttentionPart::fuses_qk_norm() const {
  return c_.recipe.kernels.fused_qk_norm && c_.model.qk_norm && !c_.model.qk_norm_whole &&
         !c_.model.qk_norm_each && !c_.model.attention_output_gate && rotates() &&
         c_.model.num_key_value_heads >= c_.shape.tp && c_.model.head_dim <= 256;
}

// Three products, as the recipe has them, or each is kept or made again on its own.
void AttentionPart::project_apart(SlotId normed) {
  auto& b = c_.b;
  const Heads heads = heads_of(c_);
  const DType act = c_.activation_dtype();
  const std::int64_t q_width = heads.q * heads.qk_dim, k_width = heads.kv * heads.qk_dim;
  const std::int64_t projected = query_widths() * q_width;
  // What nothing is done to is what attention reads.
  const bool as_they_are = !rotates() && !norms_qk();
  SlotId q = as_they_are ? q_ : b.slot("q projected", act, c_.tokens, projected);
  SlotId k = as_they_are ? k_ : b.slot("k projected", act, c_.tokens, k_width);
  const SlotId whole = c_.gathered_linear(ParameterRole::q_proj, normed, q, projected, c_.hidden);
  take_gate(q);
  c_.linear(ParameterRole::k_proj, whole, k, c_.tokens, k_width, c_.hidden);
  c_.linear(ParameterRole::v_proj, whole, v_, c_.tokens, heads.kv * heads.v_dim, c_.hidden);
  if (norms_qk()) {
    eager_qk_norm_ = eager_qk_norm_copy();
    q_raw_ = q;
    k_raw_ = k;
    q = b.slot("q normed", act, c_.tokens, q_width);
    k = b.slot("k normed", act, c_.tokens, k_width);
    sum_qk_norm(q_raw_);
    c_.rowwise(qk_norm_kind(Pass::forward), c_.tokens * (heads.q + heads.kv), heads.qk_dim,
               {q_raw_, k_raw_, c_.model.qk_norm ? c_.weights : kNoSlot}, {q, k, eager_qk_norm_});
  }
  if (rotates()) c_.rowwise(RowwiseKind::rope, c_.tokens, q_width + k_width, {q, k}, {q_, k_});
}

void AttentionPart::project_forward(SlotId normed) {
  if ((c_.shape.recomputes_operators || c_.projects_apart()) && !c_.recipe.kernels.fused_qkv &&
      c_.model.position == PositionEmbedding::rope && c_.model.num_key_value_heads >= c_.shape.tp) {
    project_apart(normed);
    return;
  }
  auto& b = c_.b;
  const Heads heads = heads_of(c_);
  const DType act = c_.activation_dtype();
  const std::int64_t d = heads.qk_dim;
  // The product's width is the weight's share; with tp > kv heads its output is gathered over tp.
  const std::int64_t width =
      (query_widths() * c_.model.num_attention_heads + 2 * c_.model.num_key_value_heads) * d /
      c_.shape.tp;
  SlotId qkv = b.slot("qkv", act, c_.tokens, width);
  c_.gathered_linear(ParameterRole::q_proj, normed, qkv, width, c_.hidden);
  if (c_.model.num_key_value_heads < c_.shape.tp) {
    const std::int64_t whole = width * c_.shape.tp;
    const SlotId gathered = b.slot("qkv of all", act, c_.tokens, whole);
    const Bytes bytes(static_cast<double>(c_.tokens * whole) * size_of(act));
    b.exposed(Collective{CollectiveKind::all_gather, Axis::tp, bytes}, {qkv}, {gathered});
    qkv = gathered;
  }
  take_gate(qkv);
  if (fuses_qk_norm()) {
    // q and k are normed and turned, v is copied, in one pass; backward reads them as they came.
    qkv_ = qkv;
    c_.rowwise(RowwiseKind::rope, c_.tokens, (heads.q + 2 * heads.kv) * d, {qkv, c_.weights},
               {q_, k_, v_})
        .parameter = b.parameter(ParameterRole::q_norm);
  } else if (norms_qk()) {
    eager_qk_norm_ = eager_qk_norm_copy();
    q_raw_ = b.slot("q before norm", act, c_.tokens, heads.q * d);
    k_raw_ = b.slot("k before norm", act, c_.tokens, heads.kv * d);
    c_.rowwise(RowwiseKind::copy, c_.tokens, (heads.q + heads.kv) * d, {qkv}, {q_raw_, k_raw_, v_});
    sum_qk_norm(q_raw_);
    const bool learned = c_.model.qk_norm;
    const SlotId normed_qk = b.slot("qk normed", act, c_.tokens, (heads.q + heads.kv) * d);
    Op& norm =
        c_.rowwise(qk_norm_kind(Pass::forward), c_.tokens * (heads.q + heads.kv), d,
                   {q_raw_, k_raw_, learned ? c_.weights : kNoSlot}, {normed_qk, eager_qk_norm_});
    if (learned) norm.parameter = b.parameter(ParameterRole::q_norm);
    c_.rowwise(RowwiseKind::rope, c_.tokens, (heads.q + heads.kv) * d, {normed_qk}, {q_, k_});
  } else if (rotates()) {
    hold_packed(heads);
    c_.rowwise(RowwiseKind::rope, c_.tokens, (heads.q + heads.kv) * d, {qkv},
               {q_, k_, v_, packed_});
  } else {
    hold_packed(heads);
    c_.rowwise(RowwiseKind::copy, c_.tokens, (heads.q + 2 * heads.kv) * d, {qkv},
               {q_, k_, v_, packed_});
  }
}

// A checkpoint around Transformer Engine's attention keeps its arguments, of which the values are a
// part of what the first product made: queries and keys stay with them as they came, beside those
// that were turned. A layer of Llama-3 8B keeps 1225 MB, where it has 1142 without the checkpoint.
void AttentionPart::hold_packed(const Heads& heads) {
  if (!c_.recipe.kernels.norms_in_linears ||
      !c_.shape.recompute_modules.has(RecomputeModule::core_attn)) {
    return;
  }
  packed_ = c_.b.slot("q and k as they came", c_.activation_dtype(), c_.tokens,
                      (heads.q + heads.kv) * heads.qk_dim);
}

// DeepSeek-V2 (arXiv 2405.04434): low-rank queries and keys-values; the down projections work on
// the sequence shard and are not split over tp.
void AttentionPart::mla_project_forward(SlotId normed) {
  auto& b = c_.b;
  const MlaSpec& mla = *c_.model.mla;
  const Heads heads = heads_of(c_);
  const DType act = c_.activation_dtype();
  const std::int64_t rows = c_.local_tokens;
  SlotId q_in = normed;
  std::int64_t q_rank = c_.hidden;
  const bool low_rank = mla.q_lora_rank > 0;
  if (low_rank) {
    q_rank = mla.q_lora_rank;
    q_down_ = b.slot("q down", act, rows, q_rank);
    q_normed_ = b.slot("q down normed", act, rows, q_rank);
    c_.linear(ParameterRole::q_a_proj, normed, q_down_, rows, q_rank, c_.hidden);
    if (c_.recipe.kernels.norms_in_linears) b.begin_module(RecomputeModule::mla_up_proj);
    c_.norm_forward(ParameterRole::q_a_norm, q_down_, q_normed_, rows, q_rank);
    b.end_module(RecomputeModule::mla_up_proj);
    q_in = q_normed_;
  }
  const bool beside = c_.recipe.form.rotary_key;
  const std::int64_t kv_width = mla.kv_lora_rank + mla.qk_rope_head_dim;
  kv_down_ = b.slot("kv down", act, rows, kv_width);
  // The rotary key goes the way of the normed latent: to every rank of the tensor-parallel group.
  kv_normed_ = b.slot("kv down normed", act, rows, beside ? kv_width : mla.kv_lora_rank);
  c_.linear(ParameterRole::kv_a_proj, normed, kv_down_, rows, kv_width, c_.hidden);
  if (c_.recipe.kernels.norms_in_linears) b.begin_module(RecomputeModule::mla_up_proj);
  c_.norm_forward(ParameterRole::kv_a_norm, kv_down_, kv_normed_, rows, mla.kv_lora_rank);

  b.begin_module(RecomputeModule::mla_up_proj);
  const SlotId q_up = b.slot("q up", act, c_.tokens, heads.q * heads.qk_dim);
  c_.gathered_linear(low_rank ? ParameterRole::q_b_proj : ParameterRole::q_proj, q_in, q_up,
                     heads.q * heads.qk_dim, q_rank);
  const std::int64_t kv_up_width = heads.q * (mla.qk_nope_head_dim + mla.v_head_dim);
  const SlotId kv_up = b.slot("kv up", act, c_.tokens, kv_up_width);
  const SlotId latent = c_.gathered_linear(ParameterRole::kv_b_proj, kv_normed_, kv_up, kv_up_width,
                                           mla.kv_lora_rank);
  const SlotId rotary_key = beside ? latent : kv_down_;
  c_.rowwise(RowwiseKind::rope, c_.tokens, heads.q * mla.qk_rope_head_dim, {q_up, rotary_key},
             {q_});
  c_.rowwise(RowwiseKind::copy, c_.tokens, kv_up_width, {kv_up, rotary_key}, {k_, v_});
  b.end_module(RecomputeModule::mla_up_proj);
}

// Megatron's rows go by token, then sequence, FlashAttention's by sequence: Transformer Engine
// turns what it returns into an array of its own, and both stay, this one for the projection's
// backward (FlashAttention.forward in Transformer Engine d0067d0d, backends.py).
SlotId AttentionPart::turned_out() {
  const bool flash = c_.attention_kernel() == AttentionKernel::flash2;
  if (!c_.recipe.has_engine_layers() || !flash || c_.shape.micro_batch_size == 1) return out_;
  const Heads heads = heads_of(c_);
  const std::int64_t width = heads.q * heads.v_dim;
  const SlotId result =
      c_.b.slot("attention out by token", c_.activation_dtype(), c_.tokens, width);
  c_.rowwise(RowwiseKind::copy, c_.tokens, width, {out_}, {result});
  return result;
}

SlotId AttentionPart::backward(SlotId dy, SlotId also) {
  auto& b = c_.b;
  const Heads heads = heads_of(c_);
  const DType act = c_.activation_dtype();
  const std::int64_t width = heads.q * heads.v_dim;

  // Output projection: gather dy, product with the weight, product with the kept input.
  dout_ = b.slot("dout", act, c_.tokens, width);
  SlotId dsum = dy;
  if (c_.drops()) {
    dsum = b.slot("d attention sum", act, c_.local_tokens, c_.hidden);
    c_.rowwise(RowwiseKind::dropout_add_backward, c_.local_tokens, c_.hidden, {dy, drop_}, {dsum});
  }
  dsum = behind_.backward(dsum);
  const SlotId dy_in = c_.linear_input(dsum, c_.local_tokens, c_.hidden, Pass::backward);
  const SlotId dy_whole = c_.gather_sequence(dy_in);
  const bool gates = c_.model.attention_output_gate;
  const bool turned = turned_ != out_;
  const SlotId dturned = turned ? b.slot("dout by token", act, c_.tokens, width) : dout_;
  const SlotId dgated = gates ? b.slot("d attention gated", act, c_.tokens, width) : dturned;
  c_.linear_dgrad(ParameterRole::o_proj, dy_whole, dgated, c_.tokens, c_.hidden, width);
  c_.linear_wgrad(ParameterRole::o_proj, dy_whole, gated_, c_.tokens, c_.hidden, width);
  if (gates) {
    dgate_ = b.slot("d attention gate", act, c_.tokens, width);
    c_.rowwise(RowwiseKind::swiglu_backward, c_.tokens, width, {dgated, turned_, gate_},
               {dturned, dgate_})
        .role = Role::gate_backward;
  }
  if (turned) c_.rowwise(RowwiseKind::copy, c_.tokens, width, {dturned}, {dout_});

  SlotId dnormed = c_.shape.fpdt_chunk > 0 ? fpdt_.attention_backward(dout_) : attend_backward();
  if (also != kNoSlot) {
    const SlotId both = b.slot("dnormed of both", act, c_.local_tokens, c_.hidden);
    c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {dnormed, also}, {both});
    dnormed = both;
  }
  const SlotId dx = b.slot("dx", c_.hidden_dtype(), c_.local_tokens, c_.hidden, Storage::wire);
  if (!norms_before(c_)) {
    c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {dnormed, dy}, {dx});
    return dx;
  }
  c_.norm_backward(ParameterRole::input_norm, x_, dnormed, dy, dx, c_.local_tokens, c_.hidden,
                   eager_norm_);
  return dx;
}

SlotId AttentionPart::attend_backward() {
  auto& b = c_.b;
  const Heads heads = heads_of(c_);
  const DType act = c_.activation_dtype();
  if (c_.shape.fp8_dot_product_attention) {
    const SlotId copy = b.slot("dout in fp8", DType::fp8, c_.tokens, heads.q * heads.v_dim);
    c_.rowwise(RowwiseKind::quantize, c_.tokens, heads.q * heads.v_dim, {dout_}, {copy});
    dout_ = copy;
  }
  dq_ = b.slot("dq", act, c_.tokens, heads.q * heads.qk_dim);
  dk_ = b.slot("dk", act, c_.tokens, heads.kv * heads.qk_dim);
  dv_ = b.slot("dv", act, c_.tokens, heads.kv * heads.v_dim);
  core(Pass::backward);
  if (c_.model.indexer) indexer_.backward();
  return c_.model.mla ? mla_project_backward() : project_backward();
}

SlotId AttentionPart::project_backward() {
  auto& b = c_.b;
  const Heads heads = heads_of(c_);
  const DType act = c_.activation_dtype();
  const std::int64_t d = heads.qk_dim;
  const std::int64_t width =
      (query_widths() * c_.model.num_attention_heads + 2 * c_.model.num_key_value_heads) * d /
      c_.shape.tp;
  // With tp > kv heads every rank makes the gradients of its own heads among those of all.
  const bool shared_heads = c_.model.num_key_value_heads < c_.shape.tp;
  SlotId dqkv = b.slot("dqkv", act, c_.tokens, shared_heads ? width * c_.shape.tp : width);
  if (fuses_qk_norm()) {
    // Reads q|k|v twice and once more q|k: columns of a kernel that reads and writes once.
    c_.rowwise(RowwiseKind::rope_backward, c_.tokens, (3 * heads.q + 5 * heads.kv) * d / 2,
               {dq_, dk_, dv_, qkv_, c_.weights_backward}, {dqkv, c_.gradients})
        .parameter = b.parameter(ParameterRole::q_norm);
  } else if (rotates()) {
    if (norms_qk()) {
      const SlotId dqk = b.slot("dqk", act, c_.tokens, (heads.q + heads.kv) * d);
      c_.rowwise(RowwiseKind::rope_backward, c_.tokens, (heads.q + heads.kv) * d, {dq_, dk_},
                 {dqk});
      sum_qk_norm(dqk);
      const bool learned = c_.model.qk_norm;
      Op& norm = c_.rowwise(
          qk_norm_kind(Pass::backward), c_.tokens * (heads.q + heads.kv), d,
          {dqk, c_.input_of_norm(q_raw_, eager_qk_norm_), c_.input_of_norm(k_raw_, eager_qk_norm_),
           dv_, dgate_, learned ? c_.weights_backward : kNoSlot, eager_qk_norm_},
          {dqkv, learned ? c_.gradients : kNoSlot});
      if (learned) norm.parameter = b.parameter(ParameterRole::q_norm);
    } else {
      c_.rowwise(RowwiseKind::rope_backward, c_.tokens, (heads.q + heads.kv) * d,
                 {dq_, dk_, dv_, dgate_}, {dqkv});
    }
  } else {
    c_.rowwise(RowwiseKind::copy, c_.tokens, (heads.q + 2 * heads.kv) * d, {dq_, dk_, dv_, dgate_},
               {dqkv});
  }
  if (shared_heads) {
    const Bytes bytes(static_cast<double>(c_.tokens * width * c_.shape.tp) * size_of(act));
    const SlotId mine = b.slot("dqkv share", act, c_.tokens, width);
    b.exposed(Collective{CollectiveKind::reduce_scatter, Axis::tp, bytes}, {dqkv}, {mine});
    dqkv = mine;
  }
  dqkv = c_.linear_input(dqkv, c_.tokens, width, Pass::backward);
  // The re-gather of the input hides under dgrad, the reduce-scatter of dx under wgrad.
  const SlotId normed_whole = c_.gather_sequence_again(normed_, /*wait=*/false);
  const SlotId partial = b.slot("dnormed partial", act, c_.tokens, c_.hidden);
  const LayerContext::Widths widths =
      shared_heads || c_.recipe.kernels.fused_qkv
          ? LayerContext::Widths{width}
          : LayerContext::Widths{query_widths() * heads.q * d, heads.kv * d, heads.kv * d};
  c_.packed_dgrad(ParameterRole::q_proj, dqkv, partial, c_.tokens, widths, c_.hidden);
  if (normed_whole != normed_) {
    b.wait_for(Stream::model_comm);
    b.flush();
  }
  const SlotId dnormed = c_.reduce_input_gradient(partial, "dnormed");
  c_.packed_wgrad(ParameterRole::q_proj, dqkv, normed_whole, c_.tokens, widths, c_.hidden);
  if (c_.shape.tp > 1) b.wait_for(Stream::model_comm);
  return dnormed;
}

SlotId AttentionPart::mla_project_backward() {
  auto& b = c_.b;
  const MlaSpec& mla = *c_.model.mla;
  const Heads heads = heads_of(c_);
  const DType act = c_.activation_dtype();
  const std::int64_t rows = c_.local_tokens;
  const std::int64_t q_width = heads.q * heads.qk_dim;
  const std::int64_t kv_up_width = heads.q * (mla.qk_nope_head_dim + mla.v_head_dim);
  const std::int64_t kv_width = mla.kv_lora_rank + mla.qk_rope_head_dim;

  const SlotId dq_up = b.slot("dq up", act, c_.tokens, q_width);
  c_.rowwise(RowwiseKind::rope_backward, c_.tokens, heads.q * mla.qk_rope_head_dim, {dq_}, {dq_up});
  const SlotId dkv_up = b.slot("dkv up", act, c_.tokens, kv_up_width);
  // The gradient of the rotary key is every head's, and reduced beside the latent's.
  const bool beside = c_.recipe.form.rotary_key;
  const SlotId dlatent = beside ? b.slot("d latent partial", act, c_.tokens, kv_width) : kNoSlot;
  c_.rowwise(RowwiseKind::copy, c_.tokens, kv_up_width, {dk_, dv_}, {dkv_up, dlatent});

  // Up projections: as any column-parallel product.
  const auto up_backward = [&](ParameterRole role, SlotId dy, SlotId input, std::int64_t n,
                               std::int64_t k, std::string_view name, SlotId wide) {
    const SlotId whole = c_.gather_sequence_again(input, /*wait=*/false);
    const SlotId partial = wide != kNoSlot ? wide : b.slot("up partial", act, c_.tokens, k);
    c_.linear_dgrad(role, dy, partial, c_.tokens, n, k);
    if (whole != input) {
      b.wait_for(Stream::model_comm);
      b.flush();
    }
    const SlotId sum = c_.reduce_input_gradient(partial, name);
    c_.linear_wgrad(role, dy, whole, c_.tokens, n, k);
    if (c_.shape.tp > 1) b.wait_for(Stream::model_comm);
    return sum;
  };
  const bool low_rank_q = mla.q_lora_rank > 0;
  const std::int64_t q_rank = low_rank_q ? mla.q_lora_rank : c_.hidden;
  SlotId dq_in =
      up_backward(low_rank_q ? ParameterRole::q_b_proj : ParameterRole::q_proj, dq_up,
                  low_rank_q ? q_normed_ : normed_, q_width, q_rank, "dq low rank", kNoSlot);
  const SlotId dkv_normed = up_backward(ParameterRole::kv_b_proj, dkv_up, kv_normed_, kv_up_width,
                                        mla.kv_lora_rank, "dkv low rank", dlatent);

  const SlotId dkv_down = b.slot("dkv down", act, rows, kv_width);
  c_.norm_backward(ParameterRole::kv_a_norm, kv_down_, dkv_normed, kNoSlot, dkv_down, rows,
                   mla.kv_lora_rank);
  const SlotId dnormed = b.slot("dnormed", act, rows, c_.hidden);
  c_.linear_dgrad(ParameterRole::kv_a_proj, dkv_down, dnormed, rows, kv_width, c_.hidden);
  c_.linear_wgrad(ParameterRole::kv_a_proj, dkv_down, normed_, rows, kv_width, c_.hidden);
  if (low_rank_q) {
    const SlotId dq_down = b.slot("dq down", act, rows, q_rank);
    c_.norm_backward(ParameterRole::q_a_norm, q_down_, dq_in, kNoSlot, dq_down, rows, q_rank);
    const SlotId from_q = b.slot("dnormed of q", act, rows, c_.hidden);
    c_.linear_dgrad(ParameterRole::q_a_proj, dq_down, from_q, rows, q_rank, c_.hidden);
    c_.linear_wgrad(ParameterRole::q_a_proj, dq_down, normed_, rows, q_rank, c_.hidden);
    dq_in = from_q;
  }
  const SlotId sum = b.slot("dnormed sum", act, rows, c_.hidden);
  c_.rowwise(RowwiseKind::add, rows, c_.hidden, {dnormed, dq_in}, {sum});
  return sum;
}

}  // namespace qplan
