// Attention and what prepares it: heads taken out of packed q|k|v, their norms, rotary embedding.

#include <algorithm>
#include <cmath>

#include "executor/cpu_ops.h"
#include "executor/math/attention.h"
#include "executor/math/norm.h"
#include "executor/math/rope.h"
#include "models/error.h"

namespace qplan {
namespace {

using math::Matrix;

struct Heads {
  std::int64_t q = 0, kv = 0, dim = 0, v_dim = 0;
};

Heads heads_of(const CpuRank& rank) {
  const ModelSpec& m = rank.job.model;
  const std::int64_t q = m.num_attention_heads / rank.job.plan.tp;
  if (m.mla) return {q, q, m.mla->qk_nope_head_dim + m.mla->qk_rope_head_dim, m.mla->v_head_dim};
  return {q, std::max<std::int64_t>(m.num_key_value_heads / rank.job.plan.tp, 1), m.head_dim,
          m.head_dim};
}

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

void turn(const CpuRank& rank, Matrix x, std::int64_t heads, bool back) {
  const ModelSpec& m = rank.job.model;
  const auto dims =
      static_cast<std::int64_t>(std::llround(static_cast<double>(m.head_dim) * m.rotary_fraction));
  const math::RopeShape shape{.heads = heads, .head_dim = m.head_dim};
  const auto frequencies = math::rope_frequencies(m.rope_theta, dims);
  (back ? math::rope_backward : math::rope)(x, shape, rank.positions(), frequencies);
}

}  // namespace

HeadColumns head_columns(const CpuRank& rank, std::int64_t packed_cols) {
  const ModelSpec& m = rank.job.model;
  const Heads h = heads_of(rank);
  const std::int64_t d = h.dim, tp = rank.job.plan.tp;
  const std::int64_t q_width = m.num_attention_heads * d / tp,
                     kv_width = m.num_key_value_heads * d / tp;
  const std::int64_t width = q_width + 2 * kv_width;
  if (packed_cols == width) {
    return {{{0, 0, q_width}}, {{q_width, 0, kv_width}}, {{q_width + kv_width, 0, kv_width}}};
  }
  QPLAN_CHECK(packed_cols == width * tp, "packed q|k|v are of one rank or of all");
  HeadColumns columns;
  columns.q = {{rank.at.tp * width, 0, q_width}};
  // The one key-value head of this rank, and the ranks that hold pieces of it.
  const std::int64_t head = rank.at.tp * h.q / (m.num_attention_heads / m.num_key_value_heads);
  for (std::int64_t own = 0; own < d; own += kv_width) {
    const std::int64_t holder = (head * d + own) / kv_width;
    const std::int64_t begin = holder * width + q_width;
    columns.k.push_back({begin, own, kv_width});
    columns.v.push_back({begin + kv_width, own, kv_width});
  }
  return columns;
}

// {q|k|v} -> {q, k, v}, {q|k normed} -> {q, k}, and the gradients back.
void run_rope(CpuRank& rank, const Command& c, const Rowwise& work) {
  const Heads h = heads_of(rank);
  const bool back = work.kind == RowwiseKind::rope_backward;
  const std::int64_t q_width = h.q * h.dim, k_width = h.kv * h.dim;
  const HeadColumns normed{{{0, 0, q_width}}, {{q_width, 0, k_width}}, {}};
  if (!back) {
    Values packed(rank.tensor(c, c.reads[0]));
    Values q(rank.tensor(c, c.writes[0]), false), k(rank.tensor(c, c.writes[1]), false);
    const bool with_v = c.writes.count > 2;
    const HeadColumns columns = with_v ? head_columns(rank, packed.matrix().cols) : normed;
    take(columns.q, packed.matrix(), q.matrix());
    take(columns.k, packed.matrix(), k.matrix());
    turn(rank, q.matrix(), h.q, false);
    turn(rank, k.matrix(), h.kv, false);
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
  const HeadColumns columns = with_v ? head_columns(rank, packed.matrix().cols) : normed;
  std::vector<float> q_copy(dq.all().begin(), dq.all().end());
  std::vector<float> k_copy(dk.all().begin(), dk.all().end());
  const Matrix q(q_copy, dq.matrix().rows, q_width), k(k_copy, dk.matrix().rows, k_width);
  turn(rank, q, h.q, true);
  turn(rank, k, h.kv, true);
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
  if (c.reads.count == 1 && c.writes.count == 3) {
    Values packed(rank.tensor(c, c.reads[0]));
    const HeadColumns columns = head_columns(rank, packed.matrix().cols);
    const std::vector<ColumnRun>* parts[] = {&columns.q, &columns.k, &columns.v};
    for (std::size_t i = 0; i < 3; ++i) {
      Values own(rank.tensor(c, c.writes[i]), false);
      take(*parts[i], packed.matrix(), own.matrix());
      own.commit();
    }
    return;
  }
  if (c.reads.count == 3 && c.writes.count == 1) {
    Values packed(rank.tensor(c, c.writes[0]), false);
    std::ranges::fill(packed.all(), 0.0F);
    const HeadColumns columns = head_columns(rank, packed.matrix().cols);
    const std::vector<ColumnRun>* parts[] = {&columns.q, &columns.k, &columns.v};
    for (std::size_t i = 0; i < 3; ++i) {
      Values own(rank.tensor(c, c.reads[i]));
      put(*parts[i], own.matrix(), packed.matrix());
    }
    packed.commit();
    return;
  }
  QPLAN_CHECK(c.reads.count == 1 && c.writes.count == 1, "a plain copy has one source");
  const Tensor from = rank.tensor(c, c.reads[0]), to = rank.tensor(c, c.writes[0]);
  std::copy_n(from.data, from.bytes(), to.data);
}

// Norms of the heads of queries and keys: {q, k, weights} -> {q|k}; {d q|k, q, k, dv, weights} ->
// {dq|dk|dv, gradients}.
void run_qk_norm(CpuRank& rank, const Command& c, bool backward) {
  const Heads h = heads_of(rank);
  const std::int64_t q_width = h.q * h.dim, k_width = h.kv * h.dim;
  const math::NormShape shape{.epsilon = rank.job.model.norm_epsilon};
  const auto& table = rank.block(c).parameters;
  const auto& q_norm = table[static_cast<std::size_t>(c.op->parameter)];
  const auto& k_norm = table[static_cast<std::size_t>(c.op->parameter) + 1];
  QPLAN_CHECK(k_norm.whole.role == ParameterRole::k_norm, "k_norm is packed behind q_norm");
  const auto by_head = [&](std::span<float> x) {
    return Matrix(x, static_cast<std::int64_t>(x.size()) / h.dim, h.dim);
  };
  const std::size_t base = backward ? 1 : 0;
  Values q(rank.tensor(c, c.reads[base])), k(rank.tensor(c, c.reads[base + 1]));
  const Tensor weights = rank.tensor(c, c.reads[backward ? 4 : 2]);
  Values q_weight(parameter_in(weights, q_norm)), k_weight(parameter_in(weights, k_norm));
  std::vector<float> q_out(q.all().size()), k_out(k.all().size());
  if (!backward) {
    Values packed(rank.tensor(c, c.writes[0]), false);
    math::rms_norm(by_head(q.all()), q_weight.all(), shape, by_head(q_out));
    math::rms_norm(by_head(k.all()), k_weight.all(), shape, by_head(k_out));
    put({{0, 0, q_width}}, Matrix(q_out, q.matrix().rows, q_width), packed.matrix());
    put({{q_width, 0, k_width}}, Matrix(k_out, k.matrix().rows, k_width), packed.matrix());
    packed.commit();
    return;
  }
  Values dqk(rank.tensor(c, c.reads[0])), dv(rank.tensor(c, c.reads[3]));
  const Tensor gradients = rank.tensor(c, c.writes[1]);
  Values dq_weight(parameter_in(gradients, q_norm)), dk_weight(parameter_in(gradients, k_norm));
  std::vector<float> dq(q_out.size()), dk(k_out.size());
  take({{0, 0, q_width}}, dqk.matrix(), Matrix(dq, q.matrix().rows, q_width));
  take({{q_width, 0, k_width}}, dqk.matrix(), Matrix(dk, k.matrix().rows, k_width));
  math::rms_norm_backward(by_head(q.all()), q_weight.all(), shape, by_head(dq), by_head(q_out),
                          dq_weight.all());
  math::rms_norm_backward(by_head(k.all()), k_weight.all(), shape, by_head(dk), by_head(k_out),
                          dk_weight.all());
  dq_weight.commit();
  dk_weight.commit();
  Values packed(rank.tensor(c, c.writes[0]), false);
  std::ranges::fill(packed.all(), 0.0F);
  const HeadColumns columns = head_columns(rank, packed.matrix().cols);
  put(columns.q, Matrix(q_out, q.matrix().rows, q_width), packed.matrix());
  put(columns.k, Matrix(k_out, k.matrix().rows, k_width), packed.matrix());
  put(columns.v, dv.matrix(), packed.matrix());
  packed.commit();
}

// reads q, k, v -> out, log-sum-exp; reads q, k, v, out, log-sum-exp, dout -> dq, dk, dv. Sequence
// by sequence.
void run_attention(CpuRank& rank, const Command& c, const Attention& work) {
  QPLAN_CHECK(rank.job.plan.cp == 1, "context parallelism is not executed");
  const math::AttentionShape shape{.heads = work.heads,
                                   .kv_heads = work.kv_heads,
                                   .head_dim = work.head_dim,
                                   .v_head_dim = work.v_head_dim,
                                   .scale = 1 / std::sqrt(static_cast<double>(work.head_dim)),
                                   .causal = work.causal,
                                   .window = work.window};
  Values q(rank.tensor(c, c.reads[0])), k(rank.tensor(c, c.reads[1])),
      v(rank.tensor(c, c.reads[2]));
  const std::vector<std::int64_t> all = rank.positions();
  const std::span<const std::int64_t> positions(all.data(), static_cast<std::size_t>(work.q_len));
  const auto input = [&](std::int64_t b) {
    const std::int64_t first = b * work.q_len;
    return math::AttentionInput{q.matrix().row_range(first, work.q_len),
                                k.matrix().row_range(first, work.kv_len),
                                v.matrix().row_range(first, work.kv_len), positions, positions};
  };
  if (work.pass == Pass::forward) {
    Values out(rank.tensor(c, c.writes[0]), false), lse(rank.tensor(c, c.writes[1]), false);
    for (std::int64_t b = 0; b < work.batch; ++b) {
      math::attention(input(b), shape, out.matrix().row_range(b * work.q_len, work.q_len),
                      lse.matrix().row_range(b * work.q_len, work.q_len));
    }
    out.commit();
    lse.commit();
    return;
  }
  Values out(rank.tensor(c, c.reads[3])), lse(rank.tensor(c, c.reads[4])),
      dout(rank.tensor(c, c.reads[5]));
  Values dq(rank.tensor(c, c.writes[0]), false), dk(rank.tensor(c, c.writes[1]), false),
      dv(rank.tensor(c, c.writes[2]), false);
  for (Values* gradient : {&dq, &dk, &dv}) std::ranges::fill(gradient->all(), 0.0F);
  for (std::int64_t b = 0; b < work.batch; ++b) {
    const std::int64_t first = b * work.q_len;
    math::attention_backward(
        input(b), shape, out.matrix().row_range(first, work.q_len),
        lse.matrix().row_range(first, work.q_len), dout.matrix().row_range(first, work.q_len),
        dq.matrix().row_range(first, work.q_len), dk.matrix().row_range(first, work.kv_len),
        dv.matrix().row_range(first, work.kv_len));
  }
  for (Values* gradient : {&dq, &dk, &dv}) gradient->commit();
}

}  // namespace qplan
