// Attention over sequences that lie on one rank or are split over several (context parallelism).
//
// A rank holds rows of micro_batch_size sequences, of each the same positions. Gathered keys and
// values: the ranks' rows one rank after the other, keys and values side by side. By heads: whole
// sequences in order, of each operand a share of its heads, side by side.

#include <algorithm>
#include <cmath>

#include "executor/cpu_ops.h"
#include "executor/math/attention.h"
#include "executor/math/rope.h"
#include "models/error.h"

namespace qplan {
namespace {

using math::Matrix;
using Positions = std::vector<std::int64_t>;

math::AttentionShape shape_of(const CpuRank& rank, const Command& c, const Attention& work) {
  const ModelSpec& m = rank.spec(c);
  const double stretched = m.mla ? math::latent_score_scale(m.rope_scaling) : 1;
  return {.heads = work.heads,
          .kv_heads = work.kv_heads,
          .head_dim = work.head_dim,
          .v_head_dim = work.v_head_dim,
          .scale = stretched / std::sqrt(static_cast<double>(work.head_dim)),
          .causal = m.causal,  // positions say what a part of a ring may see
          .window = work.window};
}

// Keys and values that some sequences see, and where their gradients go. Rows of sequence b begin
// at b * length.
struct KeyValues {
  Matrix k, v;
  std::int64_t length = 0;
  Positions positions;
};

// Attention of each sequence in turn.
class Sequences {
 public:
  Sequences(const CpuRank& rank, const Command& c, const Attention& work, Positions q_positions)
      : shape_(shape_of(rank, c, work)), batch_(work.batch), positions_(std::move(q_positions)) {}

  void forward(Matrix q, const KeyValues& kv, Matrix out, Matrix lse) const {
    for (std::int64_t b = 0; b < batch_; ++b) {
      math::attention(input(q, kv, b), shape_, rows(out, b), rows(lse, b));
    }
  }
  // Merges what these keys give with what (out, lse) hold.
  void merge(Matrix q, const KeyValues& kv, Matrix out, Matrix lse) const {
    std::vector<float> o(static_cast<std::size_t>(out.rows * out.cols));
    std::vector<float> l(static_cast<std::size_t>(lse.rows * lse.cols));
    const Matrix part_out(o, out.rows, out.cols), part_lse(l, lse.rows, lse.cols);
    forward(q, kv, part_out, part_lse);
    math::merge_attention(part_out, part_lse, shape_, out, lse);
  }
  void backward(Matrix q, const KeyValues& kv, Matrix out, Matrix lse, Matrix dout, Matrix dq,
                Matrix dk, Matrix dv) const {
    for (std::int64_t b = 0; b < batch_; ++b) {
      math::attention_backward(input(q, kv, b), shape_, rows(out, b), rows(lse, b), rows(dout, b),
                               rows(dq, b), dk.row_range(b * kv.length, kv.length),
                               dv.row_range(b * kv.length, kv.length));
    }
  }

 private:
  [[nodiscard]] Matrix rows(Matrix m, std::int64_t b) const {
    const std::int64_t n = std::ssize(positions_);
    return m.row_range(b * n, n);
  }
  [[nodiscard]] math::AttentionInput input(Matrix q, const KeyValues& kv, std::int64_t b) const {
    return {rows(q, b), kv.k.row_range(b * kv.length, kv.length),
            kv.v.row_range(b * kv.length, kv.length), positions_, kv.positions};
  }

  math::AttentionShape shape_;
  std::int64_t batch_;
  Positions positions_;
};

void apply_sinks(CpuRank& rank, const Command& c, const Attention& work, Matrix out, Matrix lse) {
  if (!has_sinks(c)) return;
  const Tensor weights = rank.tensor(c, c.reads[c.reads.count - 1U]);
  Values sinks(sinks_in(rank, c, weights, work.heads));
  math::apply_sinks(sinks.all(), shape_of(rank, c, work), out, lse);
}

void sinks_gradient(CpuRank& rank, const Command& c, const Attention& work, Matrix out, Matrix lse,
                    Matrix dout) {
  if (!has_sinks(c)) return;
  const Tensor weights = rank.tensor(c, c.reads[c.reads.count - 1U]);
  const Tensor gradients = rank.tensor(c, c.writes[c.writes.count - 1U]);
  Values sinks(sinks_in(rank, c, weights, work.heads));
  Values dsinks(sinks_in(rank, c, gradients, work.heads));
  math::sinks_backward(sinks.all(), shape_of(rank, c, work), out, lse, dout, dsinks.all());
  dsinks.commit();
}

void clear(Values& values) {
  std::ranges::fill(values.all(), 0.0F);
}

// {q, k, v} -> {out, lse}; {q, k, v, out, lse, dout} -> {dq, dk, dv}: on one rank, and a ring's
// first step.
void own_keys(CpuRank& rank, const Command& c, const Attention& work) {
  // An image's patches all see each other.
  const Positions positions = rank.spec(c).causal ? positions_of(rank.job.plan, rank.at.cp)
                                                  : Positions(math::at(work.q_len));
  const Sequences sequences(rank, c, work, positions);
  Values q(rank.tensor(c, c.reads[0])), k(rank.tensor(c, c.reads[1])),
      v(rank.tensor(c, c.reads[2]));
  const KeyValues kv{k.matrix(), v.matrix(), std::ssize(positions), positions};
  if (work.pass == Pass::forward) {
    Values out(rank.tensor(c, c.writes[0]), false), lse(rank.tensor(c, c.writes[1]), false);
    sequences.forward(q.matrix(), kv, out.matrix(), lse.matrix());
    apply_sinks(rank, c, work, out.matrix(), lse.matrix());
    out.commit();
    lse.commit();
    return;
  }
  Values out(rank.tensor(c, c.reads[3])), lse(rank.tensor(c, c.reads[4])),
      dout(rank.tensor(c, c.reads[5]));
  Values dq(rank.tensor(c, c.writes[0]), false), dk(rank.tensor(c, c.writes[1]), false),
      dv(rank.tensor(c, c.writes[2]), false);
  for (Values* gradient : {&dq, &dk, &dv}) clear(*gradient);
  sequences.backward(q.matrix(), kv, out.matrix(), lse.matrix(), dout.matrix(), dq.matrix(),
                     dk.matrix(), dv.matrix());
  sinks_gradient(rank, c, work, out.matrix(), lse.matrix(), dout.matrix());
  for (Values* gradient : {&dq, &dk, &dv}) gradient->commit();
}

// {q, k|v} -> {out, lse}; {q, k|v, out, lse, dout} -> {dq, dk|dv}: keys of another rank of the
// ring, added to what the steps before gave; or those of all ranks.
void packed_keys(CpuRank& rank, const Command& c, const Attention& work) {
  const ParallelPlan& p = rank.job.plan;
  const bool ring = c.op->pieces > 1;
  const std::int64_t ranks = ring ? 1 : p.cp, local = p.seq_len / p.cp;
  const Sequences sequences(rank, c, work, positions_of(p, rank.at.cp));
  Values q(rank.tensor(c, c.reads[0])), packed(rank.tensor(c, c.reads[1]));
  const std::int64_t k_width = work.kv_heads * work.head_dim;
  const std::int64_t v_width = work.kv_heads * work.v_head_dim;
  // Rows by rank and sequence become rows by sequence and rank.
  const std::int64_t rows = packed.matrix().rows;
  std::vector<float> ks(static_cast<std::size_t>(rows * k_width)),
      vs(static_cast<std::size_t>(rows * v_width));
  const Matrix k(ks, rows, k_width), v(vs, rows, v_width);
  KeyValues kv{k, v, ranks * local, {}};
  const auto each_row = [&](auto visit) {
    for (std::int64_t r = 0; r < ranks; ++r) {
      for (std::int64_t b = 0; b < work.batch; ++b) {
        for (std::int64_t i = 0; i < local; ++i) {
          visit((r * work.batch + b) * local + i, (b * ranks + r) * local + i);
        }
      }
    }
  };
  each_row([&](std::int64_t from, std::int64_t to) {
    std::copy_n(&packed.matrix().at(from, 0), k_width, &k.at(to, 0));
    std::copy_n(&packed.matrix().at(from, k_width), v_width, &v.at(to, 0));
  });
  for (std::int64_t r = 0; r < ranks; ++r) {
    const std::int64_t holder = ring ? (rank.at.cp + p.cp - c.op->piece) % p.cp : r;
    const Positions positions = positions_of(p, holder);
    kv.positions.insert(kv.positions.end(), positions.begin(), positions.end());
  }
  if (work.pass == Pass::forward) {
    Values out(rank.tensor(c, c.writes[0])), lse(rank.tensor(c, c.writes[1]));
    if (ring) {
      sequences.merge(q.matrix(), kv, out.matrix(), lse.matrix());
    } else {
      sequences.forward(q.matrix(), kv, out.matrix(), lse.matrix());
    }
    apply_sinks(rank, c, work, out.matrix(), lse.matrix());
    out.commit();
    lse.commit();
    return;
  }
  Values out(rank.tensor(c, c.reads[2])), lse(rank.tensor(c, c.reads[3])),
      dout(rank.tensor(c, c.reads[4]));
  Values dq(rank.tensor(c, c.writes[0])), dpacked(rank.tensor(c, c.writes[1]));
  if (!ring) clear(dq);
  // The second step of a ring is the first with other ranks' keys.
  if (!ring || c.op->piece == 1) clear(dpacked);
  std::vector<float> dks(ks.size()), dvs(vs.size());
  const Matrix dk(dks, rows, k_width), dv(dvs, rows, v_width);
  sequences.backward(q.matrix(), kv, out.matrix(), lse.matrix(), dout.matrix(), dq.matrix(), dk,
                     dv);
  each_row([&](std::int64_t to, std::int64_t from) {
    for (std::int64_t j = 0; j < k_width; ++j) dpacked.matrix().at(to, j) += dk.at(from, j);
    for (std::int64_t j = 0; j < v_width; ++j)
      dpacked.matrix().at(to, k_width + j) += dv.at(from, j);
  });
  sinks_gradient(rank, c, work, out.matrix(), lse.matrix(), dout.matrix());
  dq.commit();
  dpacked.commit();
}

// {q|k|v by heads} -> {out by heads, lse}; {q|k|v, dout, out, lse} -> {dq|dk|dv}: whole sequences.
void by_heads(CpuRank& rank, const Command& c, const Attention& work) {
  Positions positions(static_cast<std::size_t>(work.q_len));
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int64_t>(i);
  const Sequences sequences(rank, c, work, positions);
  const std::int64_t rows = work.batch * work.q_len;
  const auto view = [rows](Values& values) {
    return Matrix(values.all(), rows, std::ssize(values.all()) / rows);
  };
  const std::int64_t q_width = work.heads * work.head_dim, k_width = work.kv_heads * work.head_dim;
  const std::int64_t v_width = work.kv_heads * work.v_head_dim;
  Values qkv(rank.tensor(c, c.reads[0]));
  const Matrix all = view(qkv), q = all.columns(0, q_width);
  const KeyValues kv{all.columns(q_width, k_width), all.columns(q_width + k_width, v_width),
                     work.q_len, positions};
  if (work.pass == Pass::forward) {
    Values out(rank.tensor(c, c.writes[0]), false), lse(rank.tensor(c, c.writes[1]), false);
    sequences.forward(q, kv, view(out), view(lse));
    apply_sinks(rank, c, work, view(out), view(lse));
    out.commit();
    lse.commit();
    return;
  }
  Values dout(rank.tensor(c, c.reads[1])), out(rank.tensor(c, c.reads[2])),
      lse(rank.tensor(c, c.reads[3]));
  Values dall(rank.tensor(c, c.writes[0]), false);
  clear(dall);
  const Matrix d = view(dall);
  sequences.backward(q, kv, view(out), view(lse), view(dout), d.columns(0, q_width),
                     d.columns(q_width, k_width), d.columns(q_width + k_width, v_width));
  sinks_gradient(rank, c, work, view(out), view(lse), view(dout));
  dall.commit();
}

// Heads for sequence: operands side by side on the `wide` end, each its own on the other.
void exchange_heads(const Parties& parties, bool to_heads) {
  const ParallelPlan& p = parties.front().rank.job.plan;
  const std::int64_t cp = p.cp, local = p.seq_len / cp;
  for (std::int64_t j = 0; j < cp; ++j) {  // who has the heads
    const Party& holder = parties[static_cast<std::size_t>(j)];
    const Operands& wide_operands = to_heads ? holder.command.writes : holder.command.reads;
    Values wide(holder.rank.tensor(holder.command, wide_operands[0]));
    const std::int64_t rows = p.micro_batch_size * p.seq_len;
    const Matrix heads(wide.all(), rows, std::ssize(wide.all()) / rows);
    for (std::int64_t i = 0; i < cp; ++i) {  // who has the positions
      const Party& other = parties[static_cast<std::size_t>(i)];
      const Positions positions = positions_of(p, i);
      std::int64_t first = 0;
      for (const Operand& operand : to_heads ? other.command.reads : other.command.writes) {
        Values own(other.rank.tensor(other.command, operand));
        const std::int64_t share = own.matrix().cols / cp;
        for (std::int64_t r = 0; r < own.matrix().rows; ++r) {
          const std::int64_t row =
              r / local * p.seq_len + positions[static_cast<std::size_t>(r % local)];
          float* const here = &own.matrix().at(r, j * share);
          float* const there = &heads.at(row, first);
          to_heads ? std::copy_n(here, share, there) : std::copy_n(there, share, here);
        }
        first += share;
        if (!to_heads) own.commit();
      }
    }
    if (to_heads) wide.commit();
  }
}

// Keys and values of all ranks side by side.
void gather_keys(const Parties& parties) {
  for (const Party& to : parties) {
    Values whole(to.rank.tensor(to.command, to.command.writes[0]), false);
    std::int64_t row = 0;
    for (const Party& from : parties) {
      Values k(from.rank.tensor(from.command, from.command.reads[0]));
      Values v(from.rank.tensor(from.command, from.command.reads[1]));
      for (std::int64_t r = 0; r < k.matrix().rows; ++r, ++row) {
        std::ranges::copy(k.matrix().row(r), &whole.matrix().at(row, 0));
        std::ranges::copy(v.matrix().row(r), &whole.matrix().at(row, k.matrix().cols));
      }
    }
    whole.commit();
  }
}

void reduce_keys(const Parties& parties) {
  std::vector<Values> wholes;
  for (const Party& p : parties) wholes.emplace_back(p.rank.tensor(p.command, p.command.reads[0]));
  for (std::size_t i = 0; i < parties.size(); ++i) {
    const Party& to = parties[i];
    std::int64_t first = 0;
    for (const Operand& operand : to.command.writes) {
      Values own(to.rank.tensor(to.command, operand), false);
      const Matrix m = own.matrix();
      for (std::int64_t r = 0; r < m.rows; ++r) {
        for (std::int64_t col = 0; col < m.cols; ++col) {
          double sum = 0;
          const std::int64_t row = static_cast<std::int64_t>(i) * m.rows + r;
          for (Values& whole : wholes)
            sum += static_cast<double>(whole.matrix().at(row, first + col));
          m.at(r, col) = static_cast<float>(sum);
        }
      }
      own.commit();
      first += m.cols;
    }
  }
}

}  // namespace

void run_attention(CpuRank& rank, const Command& c, const Attention& work) {
  const bool forward = work.pass == Pass::forward;
  const std::size_t operands = c.reads.count - (has_sinks(c) ? 1U : 0U);
  if (operands == (forward ? 3 : 6)) return own_keys(rank, c, work);
  if (operands == (forward ? 2 : 5)) return packed_keys(rank, c, work);
  QPLAN_CHECK(operands == (forward ? 1 : 4), "attention reads q, k and v in one of three ways");
  by_heads(rank, c, work);
}

void exchange_context(const Parties& parties, const Collective& work) {
  switch (work.kind) {
    case CollectiveKind::all_gather:
      return gather_keys(parties);
    case CollectiveKind::reduce_scatter:
      return reduce_keys(parties);
    case CollectiveKind::all_to_all:
      return exchange_heads(parties, parties.front().command.op->role == Role::dispatch);
    case CollectiveKind::all_reduce:
    case CollectiveKind::broadcast:
      break;
  }
  QPLAN_CHECK(false, "context parallelism gathers, reduces and exchanges");
}

}  // namespace qplan
