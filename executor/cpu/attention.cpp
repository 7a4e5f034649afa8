// Attention and what prepares it: heads taken out of packed q|k|v, their norms, rotary embedding.

#include "executor/math/attention.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "executor/cpu/ops.h"
#include "executor/io/weights.h"
#include "executor/math/embedding.h"
#include "executor/math/norm.h"
#include "executor/math/rope.h"
#include "models/error.h"

namespace qplan {
namespace {

using math::Matrix;

struct Heads {
  std::int64_t q = 0, kv = 0, dim = 0, v_dim = 0;
};

Heads heads_of(const CpuRank& rank, const Command& c) {
  const ModelSpec& m = rank.spec(c);
  const std::int64_t q = m.num_attention_heads / rank.job.plan.tp;
  if (m.mla) return {q, q, m.mla->qk_nope_head_dim + m.mla->qk_rope_head_dim, m.mla->v_head_dim};
  return {q, std::max<std::int64_t>(m.num_key_value_heads / rank.job.plan.tp, 1), m.head_dim,
          m.head_dim};
}

void turn(const CpuRank& rank, const Command& c, Matrix x, std::int64_t heads, bool back) {
  const ModelSpec& m = rank.spec(c);
  math::RopeShape shape{
      .heads = heads, .head_dim = m.head_dim, .magnitude = rope_magnitude(m.rope_scaling)};
  auto dims =
      static_cast<std::int64_t>(std::llround(static_cast<double>(m.head_dim) * m.rotary_fraction));
  if (m.rotary_interleaved) shape.pairs = math::RopePairs::neighbours;
  if (m.mla) {
    shape.head_dim = m.mla->qk_nope_head_dim + m.mla->qk_rope_head_dim;
    shape.first = m.mla->qk_nope_head_dim;
    shape.pairs = math::RopePairs::neighbours;
    dims = m.mla->qk_rope_head_dim;
  }
  const std::vector<double> angles = rope_angles(rank, c, dims);
  back ? math::rope_backward(x, shape, angles) : math::rope(x, shape, angles);
}

bool is_backward(const Command& c) {
  return c.action.kind != ActionKind::forward && !c.op->recomputed;
}

// {latent expanded, latent and rotary key} -> {k, v}: each head's key is its own part and then the
// one rotary key of all.
void expand_latent(CpuRank& rank, const Command& c) {
  const MlaSpec& a = *rank.spec(c).mla;
  const Heads h = heads_of(rank, c);
  Values up(rank.tensor(c, c.reads[0])), latent(rank.tensor(c, c.reads[1]));
  Values k(rank.tensor(c, c.writes[0]), false), v(rank.tensor(c, c.writes[1]), false);
  const std::int64_t nope = a.qk_nope_head_dim, one = nope + a.v_head_dim;
  for (std::int64_t head = 0; head < h.q; ++head) {
    take({{head * one, head * h.dim, nope}}, up.matrix(), k.matrix());
    take({{a.kv_lora_rank, head * h.dim + nope, a.qk_rope_head_dim}}, latent.matrix(), k.matrix());
    take({{head * one + nope, head * h.v_dim, h.v_dim}}, up.matrix(), v.matrix());
  }
  turn(rank, c, k.matrix(), h.q, false);
  k.commit();
  v.commit();
}

// {dk, dv} -> {d latent expanded, d rotary key behind a latent that is yet to be made}.
void expand_latent_backward(CpuRank& rank, const Command& c) {
  const MlaSpec& a = *rank.spec(c).mla;
  const Heads h = heads_of(rank, c);
  Values dk(rank.tensor(c, c.reads[0])), dv(rank.tensor(c, c.reads[1]));
  Values dup(rank.tensor(c, c.writes[0]), false), dlatent(rank.tensor(c, c.writes[1]), false);
  std::vector<float> turned(dk.all().begin(), dk.all().end());
  const Matrix key(turned, dk.matrix().rows, dk.matrix().cols);
  turn(rank, c, key, h.q, true);
  std::ranges::fill(dlatent.all(), 0.0F);
  const std::int64_t nope = a.qk_nope_head_dim, one = nope + a.v_head_dim;
  for (std::int64_t head = 0; head < h.q; ++head) {
    put({{head * one, head * h.dim, nope}}, key, dup.matrix());
    put({{head * one + nope, head * h.v_dim, h.v_dim}}, dv.matrix(), dup.matrix());
    math::add(key.columns(head * h.dim + nope, a.qk_rope_head_dim),
              dlatent.matrix().columns(a.kv_lora_rank, a.qk_rope_head_dim));
  }
  dup.commit();
  dlatent.commit();
}

void raise_temperature(const CpuRank& rank, const Command& c, Matrix q) {
  const ModelSpec& m = rank.spec(c);
  if (m.temperature_step == 0 || rank.shape(c.instance).layer.rotates) return;
  const std::vector<std::int64_t> positions = rank.positions();
  for (std::int64_t r = 0; r < q.rows; ++r) {
    const double factor =
        math::query_temperature(positions[math::at(r)], m.temperature_step, m.temperature_scale);
    for (float& x : q.row(r)) x = static_cast<float>(factor * static_cast<double>(x));
  }
}

// The shape of norms of heads.
math::NormShape qk_norm_shape(const CpuRank& rank, const Command& c) {
  return {.epsilon = rank.spec(c).norm_epsilon,
          .weight_around_zero = norm_around_zero(rank.spec(c))};
}

}  // namespace

void take(const std::vector<ColumnRun>& runs, Matrix packed, Matrix own) {
  for (std::int64_t r = 0; r < own.rows; ++r) {
    for (const ColumnRun& run : runs) {
      std::copy_n(&packed.at(r, run.packed), run.count, &own.at(r, run.own));
    }
  }
}

void put(const std::vector<ColumnRun>& runs, Matrix own, Matrix packed) {
  for (std::int64_t r = 0; r < own.rows; ++r) {
    for (const ColumnRun& run : runs) {
      std::copy_n(&own.at(r, run.own), run.count, &packed.at(r, run.packed));
    }
  }
}

HeadColumns head_columns(const CpuRank& rank, const Command& c, std::int64_t packed_cols) {
  const ModelSpec& m = rank.spec(c);
  const Heads h = heads_of(rank, c);
  const std::int64_t d = h.dim, tp = rank.job.plan.tp;
  const std::int64_t q_width = m.num_attention_heads * d / tp,
                     kv_width = m.num_key_value_heads * d / tp;
  // With a gate of the output, each head's beside its query.
  const bool gated = m.attention_output_gate;
  const std::int64_t queries = gated ? 2 * q_width : q_width, width = queries + 2 * kv_width;
  const bool own_rows = packed_cols == width;
  const std::int64_t first = own_rows ? 0 : rank.at.tp * width;
  HeadColumns columns;
  if (!gated) columns.q = {{first, 0, q_width}};
  for (std::int64_t head = 0; gated && head < h.q; ++head) {
    columns.q.push_back({first + 2 * head * d, head * d, d});
    columns.gate.push_back({first + (2 * head + 1) * d, head * d, d});
  }
  if (own_rows) {
    columns.k = {{queries, 0, kv_width}};
    columns.v = {{queries + kv_width, 0, kv_width}};
    return columns;
  }
  QPLAN_CHECK(packed_cols == width * tp, "packed q|k|v are of one rank or of all");
  // The one key-value head of this rank, and the ranks that hold pieces of it.
  const std::int64_t head = rank.at.tp * h.q / (m.num_attention_heads / m.num_key_value_heads);
  for (std::int64_t own = 0; own < d; own += kv_width) {
    const std::int64_t holder = (head * d + own) / kv_width;
    const std::int64_t begin = holder * width + queries;
    columns.k.push_back({begin, own, kv_width});
    columns.v.push_back({begin + kv_width, own, kv_width});
  }
  return columns;
}

// {q|k|v, weights} -> {q, k, v}; {dq, dk, dv, q|k|v, weights} -> {dq|dk|dv, gradients}: norms of
// the heads of queries and keys, then turned.
static void run_normed_rope(CpuRank& rank, const Command& c) {
  const Heads h = heads_of(rank, c);
  const math::NormShape shape = qk_norm_shape(rank, c);
  const auto& table = rank.block(c).parameters;
  const auto id = static_cast<std::size_t>(c.op->parameter);
  QPLAN_CHECK(table[id + 1].whole.role == ParameterRole::k_norm, "k_norm is packed behind q_norm");
  const bool backward = c.reads.count > 2;
  Values packed(rank.tensor(c, c.reads[backward ? 3 : 0]));
  const Tensor weights = rank.tensor(c, c.reads[backward ? 4 : 1]);
  const HeadColumns columns = head_columns(rank, c, packed.matrix().cols);
  const std::int64_t rows = packed.matrix().rows;
  const auto by_head = [&](std::span<float> x) {
    return Matrix(x, static_cast<std::int64_t>(x.size()) / h.dim, h.dim);
  };
  Values dpacked(rank.tensor(c, c.writes[0]), false);  // of backward
  const Operands& apart = backward ? c.reads : c.writes;
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    const std::int64_t heads = i == 0 ? h.q : h.kv;
    const auto& runs = i == 0 ? columns.q : columns.k;
    std::vector<float> raw(static_cast<std::size_t>(rows * heads * h.dim)), made(raw.size());
    take(runs, packed.matrix(), Matrix(raw, rows, heads * h.dim));
    Values weight(parameter_in(weights, table[id + i]));
    Values own(rank.tensor(c, apart[i]), backward);
    if (!backward) {
      math::rms_norm(by_head(raw), weight.all(), shape, by_head(made));
      turn(rank, c, Matrix(made, rows, heads * h.dim), heads, false);
      std::ranges::copy(made, own.all().begin());
      own.commit();
      continue;
    }
    std::vector<float> turned(own.all().begin(), own.all().end());
    turn(rank, c, Matrix(turned, rows, heads * h.dim), heads, true);
    NormGradient dweight(rank, c, table[id + i]);
    math::rms_norm_backward(by_head(raw), weight.all(), shape, by_head(turned), by_head(made),
                            dweight.all());
    dweight.commit();
    put(runs, Matrix(made, rows, heads * h.dim), dpacked.matrix());
  }
  Values v(rank.tensor(c, apart[2]), backward);
  if (backward) {
    put(columns.v, v.matrix(), dpacked.matrix());
    dpacked.commit();
  } else {
    take(columns.v, packed.matrix(), v.matrix());
    v.commit();
  }
}

// {q|k|v} -> {q, k, v}, {q|k normed} -> {q, k}, and the gradients back.
void run_rope(CpuRank& rank, const Command& c, const Rowwise& work) {
  if (c.op->parameter != kNoParameter) return run_normed_rope(rank, c);
  const Heads h = heads_of(rank, c);
  const bool back = work.kind == RowwiseKind::rope_backward;
  if (rank.spec(c).mla) {  // the queries alone
    Values from(rank.tensor(c, c.reads[0])), to(rank.tensor(c, c.writes[0]), false);
    std::ranges::copy(from.all(), to.all().begin());
    turn(rank, c, to.matrix(), h.q, back);
    to.commit();
    return;
  }
  const std::int64_t q_width = h.q * h.dim, k_width = h.kv * h.dim;
  const HeadColumns normed{{{0, 0, q_width}}, {{q_width, 0, k_width}}, {}, {}};
  if (!back) {
    Values packed(rank.tensor(c, c.reads[0]));
    Values q(rank.tensor(c, c.writes[0]), false), k(rank.tensor(c, c.writes[1]), false);
    const bool with_v = c.writes.count > 2;
    const HeadColumns columns = with_v ? head_columns(rank, c, packed.matrix().cols) : normed;
    take(columns.q, packed.matrix(), q.matrix());
    take(columns.k, packed.matrix(), k.matrix());
    turn(rank, c, q.matrix(), h.q, false);
    turn(rank, c, k.matrix(), h.kv, false);
    q.commit();
    k.commit();
    if (!with_v) return;
    Values v(rank.tensor(c, c.writes[2]), false);
    take(columns.v, packed.matrix(), v.matrix());
    v.commit();
    return;
  }
  Values dq(rank.tensor(c, c.reads[0])), dk(rank.tensor(c, c.reads[1]));
  Values packed(rank.tensor(c, c.writes[0]), false);
  std::ranges::fill(packed.all(), 0.0F);
  const bool with_v = c.reads.count > 2;
  const HeadColumns columns = with_v ? head_columns(rank, c, packed.matrix().cols) : normed;
  std::vector<float> q_copy(dq.all().begin(), dq.all().end());
  std::vector<float> k_copy(dk.all().begin(), dk.all().end());
  const Matrix q(q_copy, dq.matrix().rows, q_width), k(k_copy, dk.matrix().rows, k_width);
  turn(rank, c, q, h.q, true);
  turn(rank, c, k, h.kv, true);
  put(columns.q, q, packed.matrix());
  put(columns.k, k, packed.matrix());
  if (with_v) {
    Values dv(rank.tensor(c, c.reads[2]));
    put(columns.v, dv.matrix(), packed.matrix());
  }
  packed.commit();
}

// Packed columns apart: {q|k|v} -> {q, k, v}; together: {dq, dk, dv} -> {dq|dk|dv}. One to one: a
// plain copy.
void run_copy(CpuRank& rank, const Command& c) {
  if (rank.spec(c).mla && c.reads.count == 2 && c.writes.count == 2) {
    return is_backward(c) ? expand_latent_backward(rank, c) : expand_latent(rank, c);
  }
  if (c.op->role == Role::gate) {
    Values packed(rank.tensor(c, c.reads[0])), own(rank.tensor(c, c.writes[0]), false);
    take(head_columns(rank, c, packed.matrix().cols).gate, packed.matrix(), own.matrix());
    own.commit();
    return;
  }
  if (c.reads.count == 1 && c.writes.count == 3) {
    Values packed(rank.tensor(c, c.reads[0]));
    const HeadColumns columns = head_columns(rank, c, packed.matrix().cols);
    const std::vector<ColumnRun>* parts[] = {&columns.q, &columns.k, &columns.v};
    for (std::size_t i = 0; i < 3; ++i) {
      Values own(rank.tensor(c, c.writes[i]), false);
      take(*parts[i], packed.matrix(), own.matrix());
      if (i == 0) raise_temperature(rank, c, own.matrix());
      own.commit();
    }
    return;
  }
  if (c.reads.count == 3 && c.writes.count == 1) {
    Values packed(rank.tensor(c, c.writes[0]), false);
    std::ranges::fill(packed.all(), 0.0F);
    const HeadColumns columns = head_columns(rank, c, packed.matrix().cols);
    const std::vector<ColumnRun>* parts[] = {&columns.q, &columns.k, &columns.v};
    for (std::size_t i = 0; i < 3; ++i) {
      Values own(rank.tensor(c, c.reads[i]));
      std::vector<float> copy(own.all().begin(), own.all().end());
      const Matrix gradient(copy, own.matrix().rows, own.matrix().cols);
      if (i == 0) raise_temperature(rank, c, gradient);
      put(*parts[i], gradient, packed.matrix());
    }
    packed.commit();
    return;
  }
  QPLAN_CHECK(c.reads.count == 1 && c.writes.count == 1, "a plain copy has one source");
  const Tensor from = rank.tensor(c, c.reads[0]), to = rank.tensor(c, c.writes[0]);
  std::copy_n(from.data, from.bytes(), to.data);
}

// The weights of norms of queries and keys, and their gradients; without weights, ones.
class QkNorms {
 public:
  QkNorms(const CpuRank& rank, const Command& c, bool backward, std::size_t weights_at,
          std::int64_t width)
      : ones_(static_cast<std::size_t>(width), 1.0F), nowhere_(ones_.size()) {
    if (c.op->parameter == kNoParameter) return;
    const auto& table = rank.block(c).parameters;
    const Tensor slot = rank.tensor(c, c.reads[weights_at]);
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      const PackedParameter& p = table[static_cast<std::size_t>(c.op->parameter) + i];
      QPLAN_CHECK(i == 0 || p.whole.role == ParameterRole::k_norm, "k_norm is behind q_norm");
      weights_[i].emplace(parameter_in(slot, p));
      if (backward) gradients_[i].emplace(rank, c, p);
    }
  }
  [[nodiscard]] std::span<float> weight(std::size_t i) {
    return weights_[i] ? weights_[i]->all() : std::span(ones_);
  }
  [[nodiscard]] std::span<float> gradient(std::size_t i) {
    return gradients_[i] ? gradients_[i]->all() : std::span(nowhere_);
  }
  void commit() {
    for (auto& gradient : gradients_) {
      if (gradient) gradient->commit();
    }
  }

 private:
  std::vector<float> ones_, nowhere_;
  std::optional<Values> weights_[2];
  std::optional<NormGradient> gradients_[2];
};

// Norms of the heads of queries and keys: {q, k, weights?} -> {q|k}; {d q|k, q, k, dv, d gate?,
// weights?} -> {dq|dk|dv, gradients?}.
void run_qk_norm(CpuRank& rank, const Command& c, bool backward) {
  const Heads h = heads_of(rank, c);
  const std::int64_t q_width = h.q * h.dim, k_width = h.kv * h.dim;
  const bool gated = rank.spec(c).attention_output_gate;
  math::NormShape shape = qk_norm_shape(rank, c);
  if (c.op->parameter == kNoParameter) shape.weight_around_zero = false;
  QkNorms norms(rank, c, backward, !backward ? 2 : gated ? 5 : 4, h.dim);
  const auto by_head = [&](std::span<float> x) {
    return Matrix(x, static_cast<std::int64_t>(x.size()) / h.dim, h.dim);
  };
  const std::size_t base = backward ? 1 : 0;
  Values q(rank.tensor(c, c.reads[base])), k(rank.tensor(c, c.reads[base + 1]));
  std::vector<float> q_out(q.all().size()), k_out(k.all().size());
  if (!backward) {
    Values packed(rank.tensor(c, c.writes[0]), false);
    math::rms_norm(by_head(q.all()), norms.weight(0), shape, by_head(q_out));
    math::rms_norm(by_head(k.all()), norms.weight(1), shape, by_head(k_out));
    put({{0, 0, q_width}}, Matrix(q_out, q.matrix().rows, q_width), packed.matrix());
    put({{q_width, 0, k_width}}, Matrix(k_out, k.matrix().rows, k_width), packed.matrix());
    packed.commit();
    return;
  }
  Values dqk(rank.tensor(c, c.reads[0])), dv(rank.tensor(c, c.reads[3]));
  std::vector<float> dq(q_out.size()), dk(k_out.size());
  take({{0, 0, q_width}}, dqk.matrix(), Matrix(dq, q.matrix().rows, q_width));
  take({{q_width, 0, k_width}}, dqk.matrix(), Matrix(dk, k.matrix().rows, k_width));
  math::rms_norm_backward(by_head(q.all()), norms.weight(0), shape, by_head(dq), by_head(q_out),
                          norms.gradient(0));
  math::rms_norm_backward(by_head(k.all()), norms.weight(1), shape, by_head(dk), by_head(k_out),
                          norms.gradient(1));
  norms.commit();
  Values packed(rank.tensor(c, c.writes[0]), false);
  std::ranges::fill(packed.all(), 0.0F);
  const HeadColumns columns = head_columns(rank, c, packed.matrix().cols);
  put(columns.q, Matrix(q_out, q.matrix().rows, q_width), packed.matrix());
  put(columns.k, Matrix(k_out, k.matrix().rows, k_width), packed.matrix());
  put(columns.v, dv.matrix(), packed.matrix());
  if (gated) {
    Values dgate(rank.tensor(c, c.reads[4]));
    put(columns.gate, dgate.matrix(), packed.matrix());
  }
  packed.commit();
}

}  // namespace qplan
