#include "models/program/fpdt_part.h"

#include <algorithm>
#include <array>
#include <utility>

namespace qplan {
namespace {

constexpr double kWide = 4;  // bytes of a number in fp32

}  // namespace

FpdtPart::Sizes FpdtPart::sizes() const {
  const Heads heads = heads_of(c_);
  const std::int64_t cp = c_.shape.cp;
  Sizes s;
  s.chunks = c_.shape.seq_len / c_.shape.fpdt_chunk;
  s.tokens = c_.tokens / s.chunks;
  s.rows = s.tokens * cp;
  s.heads = heads.q / cp;
  s.kv_heads = std::max<std::int64_t>(heads.kv / cp, 1);
  s.q = heads.q * heads.qk_dim / cp;
  s.k = heads.kv * heads.qk_dim / cp;
  s.v = heads.kv * heads.v_dim / cp;
  s.out = heads.q * heads.v_dim / cp;
  s.projected = heads.q * heads.qk_dim + heads.kv * (heads.qk_dim + heads.v_dim);
  return s;
}

// A chunk of queries with one of keys: its own, or an earlier one, all of which it sees.
Attention FpdtPart::pair(const Sizes& s, Pass pass, bool own) const {
  const Heads heads = heads_of(c_);
  return {.batch = c_.shape.micro_batch_size,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .q_len = c_.shape.fpdt_chunk,
          .kv_len = c_.shape.fpdt_chunk,
          .head_dim = heads.qk_dim,
          .v_head_dim = heads.v_dim,
          .causal = own && c_.model.causal,
          .pass = pass,
          .kernel = AttentionKernel::flash2,  // it calls that library's kernels itself
          .products = products_beside_attention(c_.model, c_.shape.seq_len)};
}

void FpdtPart::leave(std::int64_t rows, double bytes, BlockBuilder::Slots from) {
  const HostCopy copy{Bytes(static_cast<double>(rows) * bytes), true};
  c_.b.aside(Stream::d2h, copy, from, {}).role = Role::chunk_copy;
}

void FpdtPart::come(std::int64_t rows, double bytes, BlockBuilder::Slots to) {
  const HostCopy copy{Bytes(static_cast<double>(rows) * bytes), false};
  c_.b.aside(Stream::h2d, copy, {}, to).role = Role::chunk_copy;
}

// `width`: columns of all arrays together, of all heads.
void FpdtPart::exchange(Role role, std::int64_t tokens, std::int64_t width, int arrays,
                        BlockBuilder::Slots from, BlockBuilder::Slots to) {
  if (c_.shape.cp == 1) {
    c_.rowwise(RowwiseKind::copy, tokens, width, from, to);
    return;
  }
  const Collective all_to_all{
      .kind = CollectiveKind::all_to_all,
      .axis = Axis::cp,
      .bytes = Bytes(static_cast<double>(tokens * width) * size_of(c_.activation_dtype())),
      .calls = static_cast<double>(arrays)};
  c_.b.aside(Stream::model_comm, all_to_all, from, to).role = role;
  c_.b.wait_for(Stream::model_comm);
}

void FpdtPart::in_fp32(RowwiseKind kind, std::int64_t rows, std::int64_t cols,
                       BlockBuilder::Slots from, BlockBuilder::Slots to) {
  c_.b.compute(Rowwise{.kind = kind, .rows = rows, .cols = cols, .dtype = DType::fp32}, from, to);
}

SlotId FpdtPart::attention_forward(SlotId normed) {
  auto& b = c_.b;
  const Sizes s = sizes();
  const DType act = c_.activation_dtype();
  const double element = size_of(act);
  const bool rotates = c_.model.position == PositionEmbedding::rope && c_.shape.layer.rotates;
  const SlotId whole = b.slot("attention out", act, c_.tokens, s.out * c_.shape.cp);
  // Keys and values of one chunk come while those of another are attended to.
  const std::array<SlotId, 2> arrived{b.slot("keys and values that came", act, s.rows, s.k + s.v),
                                      b.slot("keys and values that came", act, s.rows, s.k + s.v)};
  std::size_t next = 0;
  const auto fetch = [&] {
    const SlotId buffer = arrived[next];
    next = 1 - next;
    come(s.rows, element * static_cast<double>(s.k + s.v), {buffer});
    return buffer;
  };
  SlotId first_k = kNoSlot, first_v = kNoSlot, coming = kNoSlot;
  for (std::int64_t i = 0; i < s.chunks; ++i) {
    const SlotId projected = b.slot("qkv of a chunk", act, s.tokens, s.projected);
    c_.linear(ParameterRole::q_proj, normed, projected, s.tokens, s.projected, c_.hidden);
    leave(s.tokens, element * static_cast<double>(c_.hidden), {normed});
    const SlotId q = b.slot("q of a chunk", act, s.rows, s.q);
    const SlotId k = b.slot("k of a chunk", act, s.rows, s.k);
    const SlotId v = b.slot("v of a chunk", act, s.rows, s.v);
    exchange(Role::dispatch, s.tokens, s.projected, 3, {projected}, {q, k, v});
    if (rotates) c_.rowwise(RowwiseKind::rope, s.rows, s.q + s.k, {q, k}, {q, k});
    leave(s.rows, element * static_cast<double>(s.q + s.k + s.v), {q, k, v});
    const SlotId sum = b.slot("output of a chunk in fp32", DType::fp32, s.rows, s.out);
    const SlotId lse = b.slot("log-sum-exp of a chunk", DType::fp32, s.rows, s.heads);
    const SlotId part = b.slot("output of a pair", act, s.rows, s.out);
    const SlotId part_lse = b.slot("log-sum-exp of a pair", DType::fp32, s.rows, s.heads);
    for (std::int64_t j = 0; j <= i; ++j) {
      const bool own = j == i;
      const SlotId held = coming;
      coming = kNoSlot;
      // The next of this chunk's, or the first for the next chunk's queries. The first two chunks
      // find it there.
      if (i > 1 && j + 1 < i) coming = fetch();
      if (own && i > 0 && i + 1 < s.chunks) coming = fetch();
      if (own) {
        b.compute(pair(s, Pass::forward, own), {q, k, v}, {part, part_lse});
      } else if (i == 1) {
        b.compute(pair(s, Pass::forward, own), {q, first_k, first_v}, {part, part_lse});
      } else {
        b.compute(pair(s, Pass::forward, own), {q, held}, {part, part_lse});
      }
      if (j == 0) {
        in_fp32(RowwiseKind::cast, s.rows, s.out, {part, part_lse}, {sum, lse});
      } else {
        in_fp32(RowwiseKind::add, s.rows, s.out, {part, part_lse, sum, lse}, {sum, lse});
      }
      b.wait_for(Stream::h2d);
      b.wait_for(Stream::d2h);
    }
    if (i == 0) {
      first_k = k;
      first_v = v;
    }
    const SlotId out = b.slot("output of a chunk", act, s.rows, s.out);
    in_fp32(RowwiseKind::cast, s.rows, s.out, {sum}, {out});
    exchange(Role::combine, s.tokens, s.out * c_.shape.cp, 1, {out}, {whole});
    leave(s.rows, element * static_cast<double>(s.out) + kWide * static_cast<double>(s.heads),
          {out, lse});
  }
  b.wait_for(Stream::d2h);
  b.flush();
  return whole;
}

// Keys and values in turn, and to each the queries that saw them: what a chunk of queries has comes
// from the host each time, the sum of its gradients with it.
SlotId FpdtPart::attention_backward(SlotId dout) {
  auto& b = c_.b;
  const Sizes s = sizes();
  const DType act = c_.activation_dtype();
  const double element = size_of(act);
  const auto columns = [](std::int64_t count) { return static_cast<double>(count); };
  const bool rotates = c_.model.position == PositionEmbedding::rope && c_.shape.layer.rotates;
  const SlotId dnormed = b.slot("dnormed", act, c_.tokens, c_.hidden);
  // Queries, outputs with their log-sum-exp, gradients of outputs; and, in fp32, of queries.
  const double of_queries =
      element * columns(s.q + s.out) + kWide * columns(s.heads) + kWide * columns(s.q);
  const double of_outputs = element * columns(s.out);
  const auto side = [&] {
    return b.slot("what a chunk of queries has", DType::boolean, s.rows,
                  static_cast<std::int64_t>(of_queries + of_outputs));
  };
  const std::array<SlotId, 2> sides{side(), side()};
  std::size_t at = 0;
  // Gradients of outputs are exchanged for heads when their queries come for the first time.
  const auto fetch = [&](bool first) {
    come(s.rows, of_queries + (first ? 0 : of_outputs), {sides[at]});
    if (!first) return;
    exchange(Role::dispatch, s.tokens, s.out * c_.shape.cp, 1, {dout}, {sides[at]});
    leave(s.rows, of_outputs, {sides[at]});
  };
  const auto keys_of_chunk = [&] {
    const SlotId keys = b.slot("keys and values of a chunk", act, s.rows, s.k + s.v);
    come(s.rows, element * columns(s.k + s.v), {keys});
    return keys;
  };
  const auto input_of_chunk = [&] {
    const SlotId input = b.slot("input of a chunk", act, s.tokens, c_.hidden);
    come(s.tokens, element * columns(c_.hidden), {input});
    return input;
  };
  fetch(/*first=*/true);
  SlotId keys = keys_of_chunk(), input = input_of_chunk();
  b.wait_for(Stream::h2d);
  const std::int64_t all = s.q + s.k + s.v;
  for (std::int64_t i = 0; i < s.chunks; ++i) {
    const SlotId dkv = b.slot("dkv of a chunk in fp32", DType::fp32, s.rows, s.k + s.v);
    in_fp32(RowwiseKind::zero_fill, s.rows, s.k + s.v, {}, {dkv});
    const SlotId part = b.slot("gradients of a pair", act, s.rows, all);
    const SlotId dq = b.slot("dq of a chunk", act, s.rows, s.q);
    for (std::int64_t j = i; j < s.chunks; ++j) {
      const SlotId present = sides[at];
      // Another chunk of queries, or the first for the next keys, unless it is the same.
      const std::int64_t next = j + 1 < s.chunks ? j + 1 : i + 1;
      if (i + 1 < s.chunks && next != j) {
        at = 1 - at;
        fetch(i == 0 && j + 1 < s.chunks);
      }
      c_.rowwise(RowwiseKind::zero_fill, s.rows, all, {}, {part});
      b.compute(pair(s, Pass::backward, i == j), {present, keys}, {part});
      in_fp32(RowwiseKind::accumulate, s.rows, all, {part, present, dkv}, {present, dkv});
      leave(s.rows, kWide * columns(s.q), {present});
      // What no later keys add to.
      if (j == i) in_fp32(RowwiseKind::cast, s.rows, s.q, {present}, {dq});
      b.wait_for(Stream::h2d);
      b.wait_for(Stream::d2h);
    }
    const SlotId narrow = b.slot("dkv of a chunk", act, s.rows, s.k + s.v);
    in_fp32(RowwiseKind::cast, s.rows, s.k + s.v, {dkv}, {narrow});
    if (rotates) {
      c_.rowwise(RowwiseKind::rope_backward, s.rows, s.q + s.k, {dq, narrow}, {dq, narrow});
    }
    const SlotId dqkv = b.slot("dqkv of a chunk", act, s.tokens, s.projected);
    exchange(Role::combine, s.tokens, s.projected, 3, {dq, narrow}, {dqkv});
    const SlotId own_input = input;
    if (i + 1 < s.chunks) {
      keys = keys_of_chunk();
      input = input_of_chunk();
    }
    const LayerContext::Widths widths{s.projected};
    c_.packed_wgrad(ParameterRole::q_proj, dqkv, own_input, s.tokens, widths, c_.hidden);
    c_.packed_dgrad(ParameterRole::q_proj, dqkv, dnormed, s.tokens, widths, c_.hidden);
    b.wait_for(Stream::h2d);
  }
  b.flush();
  return dnormed;
}

SlotId FpdtPart::mlp_forward(SlotId normed) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  const std::int64_t parts = kMlpPartsOfChunk * (c_.shape.seq_len / c_.shape.fpdt_chunk);
  const std::int64_t rows = c_.tokens / parts, f = c_.model.intermediate_size;
  const SlotId sum = b.slot("mlp sum", act, c_.tokens, c_.hidden);
  for (std::int64_t i = 0; i < parts; ++i) {
    const SlotId up = b.slot("mlp up", act, rows, f);
    c_.linear(ParameterRole::up_proj, normed, up, rows, f, c_.hidden);
    const SlotId activated = b.slot("mlp act", act, rows, f);
    c_.rowwise(RowwiseKind::gelu, rows, f, {up}, {activated});
    c_.linear(ParameterRole::down_proj, activated, sum, rows, c_.hidden, f);
  }
  return sum;
}

SlotId FpdtPart::mlp_backward(SlotId dout, SlotId normed) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  const std::int64_t parts = kMlpPartsOfChunk * (c_.shape.seq_len / c_.shape.fpdt_chunk);
  const std::int64_t rows = c_.tokens / parts, f = c_.model.intermediate_size;
  for (std::int64_t i = 0; i < parts; ++i) {
    const SlotId up = b.slot("mlp up", act, rows, f);
    const SlotId of_forward = std::exchange(c_.weights, c_.weights_backward);
    c_.linear(ParameterRole::up_proj, normed, up, rows, f, c_.hidden);
    c_.weights = of_forward;
    // What the slope is made of stands in arrays of its own, one operation after the other.
    const SlotId slope = b.slot("slope of gelu", act, rows, 3 * f);
    const SlotId activated = b.slot("mlp act", act, rows, f);
    c_.rowwise(RowwiseKind::gelu, rows, f, {up}, {activated, slope});
    c_.linear_wgrad(ParameterRole::down_proj, dout, activated, rows, c_.hidden, f);
    const SlotId dact = b.slot("d mlp act", act, rows, f);
    c_.linear_dgrad(ParameterRole::down_proj, dout, dact, rows, c_.hidden, f);
    const SlotId dup = b.slot("d mlp up", act, rows, f);
    c_.rowwise(RowwiseKind::gelu_backward, rows, f, {slope, dact}, {dup});
    c_.linear_wgrad(ParameterRole::up_proj, dup, normed, rows, f, c_.hidden);
    c_.linear_dgrad(ParameterRole::up_proj, dup, normed, rows, f, c_.hidden);
  }
  return normed;
}

}  // namespace qplan
