// Scores and values, on one rank's tokens or on those of a context-parallel group.

#include <algorithm>
#include <vector>

#include "models/program/attention_part.h"

namespace qplan {

Heads heads_of(const LayerContext& c) {
  const auto& m = c.model;
  if (m.mla) {
    const std::int64_t q = m.num_attention_heads / c.shape.tp;
    return {q, q, m.mla->qk_nope_head_dim + m.mla->qk_rope_head_dim, m.mla->v_head_dim};
  }
  return {m.num_attention_heads / c.shape.tp,
          std::max<std::int64_t>(m.num_key_value_heads / c.shape.tp, 1), m.head_dim, m.head_dim};
}

namespace {

// A window's length; 0: every query sees all keys before it. Keys that an indexer chose cost what
// as many neighbours do: reading them here and there is not priced.
std::int64_t seen_keys(const LayerContext& c, std::int64_t q_len) {
  if (!c.model.indexer) return c.shape.layer.window;
  return c.model.indexer->top_k < q_len ? c.model.indexer->top_k : 0;
}

}  // namespace

// gpt-oss's learned logits. Where they are only priced they are left out of what attention reads
// and writes.
AttentionPart::Sinks AttentionPart::learned_sinks(Pass pass) const {
  if (!c_.model.attention_sinks || !c_.recipe.form.sinks) return {};
  const std::int16_t parameter = c_.b.parameter(ParameterRole::sinks);
  if (pass == Pass::forward) return {c_.weights, kNoSlot, parameter};
  return {c_.weights_backward, c_.gradients, parameter};
}

// Packed sequences are so many shorter ones, each split over a context-parallel group on its own
// (Transformer Engine's `thd` layout, context_parallel.py).
// Context parallelism (docs/reference/physics.md 3.2): ring of c equal steps on a balanced zig-zag
// split; gathered keys and values; or heads exchanged for sequence (Ulysses).
void AttentionPart::core(Pass pass) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const Heads heads = heads_of(c_);
  const bool forward = pass == Pass::forward;
  const std::int64_t q_len = s.seq_len / s.cp / s.documents;
  Attention work{.batch = s.micro_batch_size * s.documents,
                 .heads = heads.q,
                 .kv_heads = heads.kv,
                 .q_len = q_len,
                 .kv_len = q_len + s.cached,
                 .head_dim = heads.qk_dim,
                 .v_head_dim = heads.v_dim,
                 .window = seen_keys(c_, q_len + s.cached),
                 .causal = c_.model.causal,
                 .pass = pass,
                 .kernel = c_.attention_kernel(),
                 .deterministic = !forward && s.deterministic,
                 .dropout = c_.drops(),
                 .sinks = c_.model.attention_sinks && !c_.recipe.form.sinks,
                 .products = products_beside_attention(c_.model, s.seq_len / s.documents)};
  // A cache of latent attention holds the latent and the rotary key, which all heads share: scores
  // and values are made of those, the up-projections being part of queries and outputs
  // (arXiv 2405.04434, section 2.1.2).
  if (s.cached > 0 && c_.model.mla) {
    work.kv_heads = 1;
    work.head_dim = c_.model.mla->kv_lora_rank + c_.model.mla->qk_rope_head_dim;
    work.v_head_dim = c_.model.mla->kv_lora_rank;
    work.latent = true;
  }
  const Sinks sinks = learned_sinks(pass);
  const auto attend = [&](const Attention& step, SlotId k, SlotId v) {
    Op& op = forward
                 ? b.compute(step, {q_, k, v, sinks.weights, packed_}, {out_, lse_, scores_, mask_})
                 : b.compute(step, {q_, k, v, out_, lse_, scores_, mask_, dout_, sinks.weights},
                             {dq_, dk_, dv_, sinks.gradients});
    op.parameter = sinks.parameter;
  };
  if (s.cp == 1) {
    for (const Attention& part : in_chunks(work)) {
      attend(part, k_, v_);
      eager_scores(part);
    }
    return;
  }
  switch (s.cp_comm) {
    case CpComm::p2p:
      c_.recipe.form.context_parts ? ring(pass, work) : priced_ring(pass, work);
      break;
    case CpComm::all_gather:
      c_.recipe.form.context_parts&& work.window == 0 ? gathered(pass, work)
                                                      : gathered_at_once(pass, work);
      break;
    case CpComm::a2a:
      by_heads(pass, work);
      break;
  }
}

// Hugging Face's eager attention writes the scores out as Megatron's does, and what Megatron's
// kernel does at once is a kernel each (eager_attention_forward in models/*/modeling_*.py,
// transformers 5.17): scale, mask, and a cast behind softmax in fp32. With learned logits
// (models/gpt_oss) these are put beside the scores, and their maximum is taken off: half as much
// again. An H200's step of gpt-oss (docs/evidence/archive/huggingface-2026-12-01.md).
void AttentionPart::eager_scores(const Attention& work) {
  if (work.kernel != AttentionKernel::unfused || !kHuggingFace.has(c_.recipe.kind)) return;
  const bool forward = work.pass == Pass::forward;
  const auto pass_over = [&](RowwiseKind kind) {
    c_.rowwise(kind, work.batch * work.heads * work.q_len, work.kv_len, {scores_},
               {forward ? scores_ : kNoSlot});
  };
  pass_over(RowwiseKind::scale);
  pass_over(RowwiseKind::cast);
  if (forward) pass_over(RowwiseKind::masked_fill);
  if (!work.sinks) return;
  pass_over(RowwiseKind::chunk_cat);
  pass_over(forward ? RowwiseKind::add : RowwiseKind::scale);
  pass_over(RowwiseKind::sum_of_squares);
}

// Chunks are sequences of their own to the kernel, what is left over behind whole ones a shorter
// one (chunkify in Megatron-Bridge 067f987d, which pads that; its copies are not priced).
std::vector<Attention> AttentionPart::in_chunks(const Attention& work) const {
  const std::int64_t chunk = c_.shape.layer.chunk;
  if (chunk == 0 || chunk >= work.q_len) return {work};
  Attention whole = work, rest = work;
  whole.batch = work.batch * (work.q_len / chunk);
  whole.q_len = whole.kv_len = chunk;
  rest.q_len = rest.kv_len = work.q_len % chunk;
  if (rest.q_len == 0) return {whole};
  return {whole, rest};
}

// Each rank keeps heads/c of the whole sequence; key-value heads fewer than c are replicated.
// Attention keeps its own operands, split by heads; nothing is sent twice in backward.
void AttentionPart::by_heads(Pass pass, Attention work) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const Heads heads = heads_of(c_);
  const std::int64_t rows = c_.tokens * s.cp;
  const std::int64_t q = heads.q * heads.qk_dim, k = heads.kv * heads.qk_dim;
  const std::int64_t v = heads.kv * heads.v_dim, out = heads.q * heads.v_dim;
  work.q_len = work.kv_len = s.seq_len / s.documents;
  work.heads = heads.q / s.cp;
  work.kv_heads = std::max<std::int64_t>(heads.kv / s.cp, 1);
  const Sinks sinks = learned_sinks(pass);
  const auto share = [&](std::string_view name, std::int64_t width) {
    return b.slot(name, c_.activation_dtype(), rows, width / s.cp);
  };
  const auto operand = [&](std::string_view name, std::int64_t width) {
    return b.slot(name, operand_dtype(), rows, width / s.cp);
  };
  if (pass == Pass::forward) {
    q_by_heads_ = operand("q by heads", q);
    k_by_heads_ = operand("k by heads", k);
    v_by_heads_ = operand("v by heads", v);
    out_by_heads_ = share("out by heads", out);
    exchange_heads(Role::dispatch, q + k + v, {q_, k_, v_},
                   {q_by_heads_, k_by_heads_, v_by_heads_});
    for (const Attention& part : in_chunks(work)) {
      b.compute(part, {q_by_heads_, k_by_heads_, v_by_heads_, sinks.weights}, {out_by_heads_, lse_})
          .parameter = sinks.parameter;
    }
    exchange_heads(Role::combine, out, {out_by_heads_}, {out_});
    return;
  }
  const SlotId dout = operand("dout by heads", out);
  const SlotId dq = share("dq by heads", q), dk = share("dk by heads", k);
  const SlotId dv = share("dv by heads", v);
  exchange_heads(Role::dispatch, out, {dout_}, {dout});
  for (const Attention& part : in_chunks(work)) {
    b.compute(part,
              {q_by_heads_, k_by_heads_, v_by_heads_, out_by_heads_, lse_, dout, sinks.weights},
              {dq, dk, dv, sinks.gradients})
        .parameter = sinks.parameter;
  }
  exchange_heads(Role::combine, q + k + v, {dq, dk, dv}, {dq_, dk_, dv_});
}

// Heads for sequence (dispatch) or back (combine); `width`: columns of all operands together. Our
// executor sends every rank its share in one message: a copy puts the shares side by side, and
// another one what has come into the order of the sequence, or back among the other heads. Results
// travel in 16 bits, operands as attention reads them.
void AttentionPart::exchange_heads(Role role, std::int64_t width, BlockBuilder::Slots reads,
                                   BlockBuilder::Slots writes) {
  auto& b = c_.b;
  const bool to_heads = role == Role::dispatch;
  const DType act = c_.activation_dtype();
  const DType sent = to_heads ? operand_dtype() : act;
  const Collective exchange{CollectiveKind::all_to_all, Axis::cp,
                            Bytes(static_cast<double>(c_.tokens * width) * size_of(sent))};
  const auto send = [&](BlockBuilder::Slots from, BlockBuilder::Slots to) {
    b.aside(Stream::model_comm, exchange, from, to).role = role;
    b.wait_for(Stream::model_comm);
  };
  if (!c_.recipe.form.context_parts) return send(reads, writes);
  const SlotId leaving = b.slot("shares that leave", act, c_.tokens, width);
  const SlotId arriving = b.slot("shares that arrive", act, c_.tokens, width);
  c_.rowwise(RowwiseKind::copy, c_.tokens, width, reads, {leaving}).role =
      to_heads ? Role::dispatch : Role::ungroup_rows;
  send({leaving}, {arriving});
  c_.rowwise(RowwiseKind::copy, c_.tokens, width, {arriving}, writes).role =
      to_heads ? Role::group_rows : Role::combine;
}

// Keys and values of all ranks in one buffer, and one attention over them. A rank's queries lie
// half early, half late: on the average they see half of the keys, those of a window all in it.
void AttentionPart::gathered_at_once(Pass pass, const Attention& own) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype(), read = operand_dtype();
  const Heads heads = heads_of(c_);
  const int ranks = c_.shape.cp;
  const std::int64_t width = heads.kv * (heads.qk_dim + heads.v_dim);
  const double elements = static_cast<double>(c_.tokens * width * ranks);
  const SlotId whole = b.slot("kv of all", read, c_.tokens * ranks, width);
  const Bytes operands(elements * size_of(read)), bytes(elements * size_of(act));
  b.exposed(Collective{CollectiveKind::all_gather, Axis::cp, operands}, {k_, v_}, {whole});
  const std::int64_t document = c_.shape.seq_len / c_.shape.documents;
  Attention work = own;
  work.kv_len = document;
  if (own.causal && own.window == 0 && own.kernel != AttentionKernel::unfused) {
    work.causal = false;
    work.kv_len = std::max<std::int64_t>(document / 2, 1);
  }
  const Sinks sinks = learned_sinks(pass);
  if (pass == Pass::forward) {
    b.compute(work, {q_, whole, sinks.weights}, {out_, lse_, scores_, mask_}).parameter =
        sinks.parameter;
    return;
  }
  const SlotId dwhole = b.slot("dkv of all", act, c_.tokens * ranks, width);
  b.compute(work, {q_, whole, out_, lse_, scores_, mask_, dout_, sinks.weights},
            {dq_, dwhole, sinks.gradients})
      .parameter = sinks.parameter;
  b.exposed(Collective{CollectiveKind::reduce_scatter, Axis::cp, bytes}, {dwhole}, {dk_, dv_});
}

// As our executor runs it: the own keys beside the gather, then the other ranks', a part each. A
// part is what a ring's step is: queries of one half see all keys, or all queries keys of one half.
void AttentionPart::gathered(Pass pass, const Attention& own) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  const Heads heads = heads_of(c_);
  const int ranks = c_.shape.cp;
  const std::int64_t k_width = heads.kv * heads.qk_dim, v_width = heads.kv * heads.v_dim;
  const std::int64_t width = k_width + v_width;
  const Bytes bytes(static_cast<double>(c_.tokens * width * ranks) * size_of(act));
  const bool forward = pass == Pass::forward;
  const SlotId whole = b.slot("kv of all", act, c_.tokens * ranks, width);
  const SlotId own_dk = forward ? kNoSlot : b.slot("own dk", act, c_.tokens, k_width);
  const SlotId own_dv = forward ? kNoSlot : b.slot("own dv", act, c_.tokens, v_width);
  const SlotId dwhole = forward ? kNoSlot : b.slot("dkv of all", act, c_.tokens * ranks, width);
  b.aside(Stream::model_comm, Collective{CollectiveKind::all_gather, Axis::cp, bytes}, {k_, v_},
          {whole});
  for (int part = 0; part < ranks; ++part) {
    // Sinks take their share after the last merge; their gradient needs no keys.
    const Sinks sinks = part == (forward ? ranks - 1 : 0) ? learned_sinks(pass) : Sinks{};
    const Attention work = part == 0 ? own : of_other_keys(own);
    Op& op = forward && part == 0 ? b.compute(work, {q_, k_, v_, sinks.weights}, {out_, lse_})
             : forward            ? b.compute(work, {q_, whole, sinks.weights}, {out_, lse_})
             : part == 0          ? b.compute(work, {q_, k_, v_, out_, lse_, dout_, sinks.weights},
                                              {dq_, own_dk, own_dv, sinks.gradients})
                                  : b.compute(work, {q_, whole, out_, lse_, dout_}, {dq_, dwhole});
    op.parameter = sinks.parameter;
    op.piece = static_cast<std::uint8_t>(part);
    op.pieces = static_cast<std::uint8_t>(ranks);
    if (part == 0) b.wait_for(Stream::model_comm);
  }
  if (forward) return;
  // What other ranks give to the own keys and values comes home.
  const SlotId home_k = b.slot("dk from others", act, c_.tokens, k_width);
  const SlotId home_v = b.slot("dv from others", act, c_.tokens, v_width);
  b.exposed(Collective{CollectiveKind::reduce_scatter, Axis::cp, bytes}, {dwhole},
            {home_k, home_v});
  c_.rowwise(RowwiseKind::add, c_.tokens, k_width, {home_k, own_dk}, {dk_});
  c_.rowwise(RowwiseKind::add, c_.tokens, v_width, {home_v, own_dv}, {dv_});
}

// Another rank's keys: its early half before ours, for all queries, or all of them for the late
// half of the queries (zig-zag).
Attention AttentionPart::of_other_keys(Attention work) {
  work.causal = false;
  work.kv_len = std::max<std::int64_t>(work.q_len / 2, 1);
  return work;
}

// Keys and values of one rank after the other. The gradients of a rank's keys and values follow one
// step behind, each rank adding its own, and come home in the end.
void AttentionPart::ring(Pass pass, const Attention& whole) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  const Heads heads = heads_of(c_);
  const std::int64_t width = heads.kv * (heads.qk_dim + heads.v_dim);
  const Bytes bytes(static_cast<double>(c_.tokens * width) * size_of(act));
  const bool forward = pass == Pass::forward;
  const int steps = c_.shape.cp;
  const auto pass_on = [&](BlockBuilder::Slots reads, std::string_view name) {
    const SlotId arriving = b.slot(name, act, c_.tokens, width);
    b.aside(Stream::model_comm, SendRecv{Axis::cp, bytes}, reads, {arriving});
    return arriving;
  };
  SlotId held = kNoSlot, gradient = kNoSlot;
  for (int step = 0; step < steps; ++step) {
    SlotId arriving = kNoSlot;
    // This step's attention waits for what has come, not for what is sent on beside it.
    b.flush();
    if (step + 1 < steps) {
      arriving = step == 0 ? pass_on({k_, v_}, "ring buffer") : pass_on({held}, "ring buffer");
    }
    const Attention part = step == 0 ? whole : of_other_keys(whole);
    if (step > 0 && gradient == kNoSlot) gradient = b.slot("ring gradient", act, c_.tokens, width);
    // Sinks take their share after the last merge; their gradient needs no keys.
    const Sinks sinks = step == (forward ? steps - 1 : 0) ? learned_sinks(pass) : Sinks{};
    const auto attend = [&]() -> Op& {
      if (forward && step == 0) return b.compute(part, {q_, k_, v_, sinks.weights}, {out_, lse_});
      if (forward) return b.compute(part, {q_, held, sinks.weights}, {out_, lse_});
      if (step > 0) return b.compute(part, {q_, held, out_, lse_, dout_}, {dq_, gradient});
      return b.compute(part, {q_, k_, v_, out_, lse_, dout_, sinks.weights},
                       {dq_, dk_, dv_, sinks.gradients});
    };
    Op& op = attend();
    op.parameter = sinks.parameter;
    op.piece = static_cast<std::uint8_t>(step);
    op.pieces = static_cast<std::uint8_t>(steps);
    if (!forward && step > 0) gradient = pass_on({gradient}, "ring gradient");
    if (step + 1 < steps || !forward) b.wait_for(Stream::model_comm);
    held = arriving;
  }
  if (!forward) {
    c_.rowwise(RowwiseKind::add, c_.tokens, width, {gradient, dk_, dv_}, {dk_, dv_});
  }
}

// The same as other implementations run it: keys, values and gradients in one buffer. Transformer
// Engine (AttnFuncWithCPAndKVP2P in its context_parallel.py, v2.5) copies what it sends into that
// buffer and the half of it that a step sees out of it, keeps the steps' outputs until each can be
// scaled by what all of them sum to, and adds up gradients step by step.
void AttentionPart::priced_ring(Pass pass, const Attention& whole) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const DType act = c_.activation_dtype();
  const Heads heads = heads_of(c_);
  const bool forward = pass == Pass::forward;
  const std::int64_t kv_width = heads.kv * (heads.qk_dim + heads.v_dim);
  const std::int64_t out_width = heads.q * heads.v_dim, q_width = heads.q * heads.qk_dim;
  const std::int64_t half = std::max<std::int64_t>(c_.tokens / 2, 1);
  // Backward carries the gradients of the keys and values along, in 16 bits.
  const std::int64_t width = kv_width * (forward ? 1 : 2);
  const DType read = operand_dtype(), buffer = forward ? read : act;
  const Bytes bytes(static_cast<double>(c_.tokens * kv_width) *
                    (size_of(read) + (forward ? 0 : size_of(act))));
  SlotId held = b.slot("ring buffer", buffer, c_.tokens, width);
  c_.rowwise(RowwiseKind::copy, c_.tokens, kv_width, {k_, v_}, {held});
  std::vector<SlotId> outs;
  for (int step = 0; step < s.cp; ++step) {
    SlotId arriving = kNoSlot;
    if (step + 1 < s.cp) {
      arriving = b.slot("ring buffer", buffer, c_.tokens, width);
      b.aside(Stream::model_comm, SendRecv{Axis::cp, bytes}, {held}, {arriving});
    }
    const bool own = step == 0;
    const Attention part = own ? whole : of_other_keys(whole);
    SlotId kv = held;
    if (!own) {
      kv = b.slot("half of the keys and values", read, half, kv_width);
      c_.rowwise(RowwiseKind::copy, half, kv_width, {held}, {kv});
    }
    if (forward) {
      outs.push_back(b.slot("output of a step", act, c_.tokens, out_width));
      b.compute(part, {q_, kv}, {outs.back(), lse_, scores_, mask_});
    } else {
      const RowwiseKind kind = own ? RowwiseKind::copy : RowwiseKind::add;
      const std::int64_t rows = own ? c_.tokens : half;
      const SlotId dq = b.slot("dq of a step", act, c_.tokens, q_width);
      const SlotId dkv = b.slot("dkv of a step", act, rows, kv_width);
      b.compute(part, {q_, kv, out_, lse_, scores_, mask_, dout_}, {dq, dkv});
      c_.rowwise(kind, c_.tokens, q_width, {dq, own ? kNoSlot : dq_}, {dq_});
      c_.rowwise(kind, rows, kv_width, {dkv, own ? kNoSlot : dk_, own ? kNoSlot : dv_}, {dk_, dv_});
    }
    if (arriving != kNoSlot) b.wait_for(Stream::model_comm);
    held = arriving;
  }
  for (std::size_t i = 0; i < outs.size(); ++i) {
    const RowwiseKind kind = i == 0 ? RowwiseKind::scale : RowwiseKind::add;
    c_.rowwise(kind, c_.tokens, out_width, {outs[i], lse_, i == 0 ? kNoSlot : out_}, {out_});
  }
}

}  // namespace qplan
