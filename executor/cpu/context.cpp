// Attention over sequences that lie on one rank or are split over several (context parallelism).
//
// A rank holds rows of micro_batch_size sequences, of each the same positions. Gathered keys and
// values: the ranks' rows one rank after the other, keys and values side by side. By heads: whole
// sequences in order, of each operand a share of its heads. Shares that are exchanged: a rank's
// rows after the other's, of all operands side by side.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "executor/cpu/ops.h"
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
  // `begins`: the first row of each, where they do not follow each other.
  Sequences(const CpuRank& rank, const Command& c, const Attention& work, Positions q_positions,
            Positions begins = {})
      : shape_(shape_of(rank, c, work)),
        batch_(work.batch),
        positions_(std::move(q_positions)),
        begins_(std::move(begins)) {}

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
                               rows(dq, b), dk.row_range(begin(b, kv.length), kv.length),
                               dv.row_range(begin(b, kv.length), kv.length));
    }
  }

 private:
  [[nodiscard]] std::int64_t begin(std::int64_t b, std::int64_t length) const {
    return begins_.empty() ? b * length : begins_[math::at(b)];
  }
  [[nodiscard]] Matrix rows(Matrix m, std::int64_t b) const {
    const std::int64_t n = std::ssize(positions_);
    return m.row_range(begin(b, n), n);
  }
  [[nodiscard]] math::AttentionInput input(Matrix q, const KeyValues& kv, std::int64_t b) const {
    return {rows(q, b), kv.k.row_range(begin(b, kv.length), kv.length),
            kv.v.row_range(begin(b, kv.length), kv.length), positions_, kv.positions};
  }

  math::AttentionShape shape_;
  std::int64_t batch_;
  Positions positions_, begins_;
};

void apply_sinks(CpuRank& rank, const Command& c, const Attention& work, Matrix out, Matrix lse) {
  if (!has_sinks(c)) return;
  const Tensor weights = rank.tensor(c, c.reads[c.reads.count - 1U]);
  Values sinks(sinks_in(rank, c, weights, work.heads));
  math::apply_sinks(sinks.all(), shape_of(rank, c, work), out, lse);
}

void sinks_gradient(CpuRank& rank, const Command& c, const Attention& work, Matrix out, Matrix lse,
                    Matrix dout) {
  if (!has_sinks(c) || rank.shape(c.instance).frozen) return;
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

Positions whole_sequence(std::int64_t length) {
  Positions positions(math::at(length));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

// Where the chunks begin that attend to themselves alone (Llama 4): those of a chunk's length, or
// what is left of each sequence behind them. Empty: sequences attend whole.
Positions chunks_of(const CpuRank& rank, const Command& c, const Attention& work) {
  const std::int64_t chunk = rank.shape(c.instance).layer.chunk, length = rank.job.plan.seq_len;
  Positions begins;
  if (chunk == 0 || chunk >= length) return begins;
  const bool rest = work.q_len < chunk;
  for (std::int64_t b = 0; b < rank.job.plan.micro_batch_size; ++b) {
    const std::int64_t whole = length / chunk, first = b * length;
    for (std::int64_t i = rest ? whole : 0; i < whole + (rest ? 1 : 0); ++i) {
      begins.push_back(first + i * chunk);
    }
  }
  QPLAN_CHECK(std::ssize(begins) == work.batch, "attention is over every chunk of this length");
  return begins;
}

// {q, k, v} -> {out, lse}; {q, k, v, out, lse, dout} -> {dq, dk, dv}: on one rank, the first part
// of keys on several, and whole sequences of some of the heads.
void own_keys(CpuRank& rank, const Command& c, const Attention& work) {
  const ParallelPlan& plan = rank.job.plan;
  const Positions chunks = chunks_of(rank, c, work);
  const bool chunked = !chunks.empty();
  // An image's patches all see each other.
  const Positions positions = !rank.spec(c).causal ? Positions(math::at(work.q_len))
                              : chunked || work.q_len == plan.seq_len
                                  ? whole_sequence(work.q_len)
                                  : positions_of(plan, rank.at.cp);
  const Sequences sequences(rank, c, work, positions, chunks);
  Values q(rank.tensor(c, c.reads[0])), k(rank.tensor(c, c.reads[1])),
      v(rank.tensor(c, c.reads[2]));
  const KeyValues kv{k.matrix(), v.matrix(), std::ssize(positions), positions};
  if (work.pass == Pass::forward) {
    // Another op writes the other chunks' rows.
    Values out(rank.tensor(c, c.writes[0]), chunked), lse(rank.tensor(c, c.writes[1]), chunked);
    sequences.forward(q.matrix(), kv, out.matrix(), lse.matrix());
    apply_sinks(rank, c, work, out.matrix(), lse.matrix());
    out.commit();
    lse.commit();
    return;
  }
  Values out(rank.tensor(c, c.reads[3])), lse(rank.tensor(c, c.reads[4])),
      dout(rank.tensor(c, c.reads[5]));
  Values dq(rank.tensor(c, c.writes[0]), chunked), dk(rank.tensor(c, c.writes[1]), chunked),
      dv(rank.tensor(c, c.writes[2]), chunked);
  for (Values* gradient : {&dq, &dk, &dv}) {
    if (!chunked) clear(*gradient);
    for (const std::int64_t begin : chunks) {
      for (std::int64_t r = begin; r < begin + work.q_len; ++r) {
        std::ranges::fill(gradient->matrix().row(r), 0.0F);
      }
    }
  }
  sequences.backward(q.matrix(), kv, out.matrix(), lse.matrix(), dout.matrix(), dq.matrix(),
                     dk.matrix(), dv.matrix());
  sinks_gradient(rank, c, work, out.matrix(), lse.matrix(), dout.matrix());
  for (Values* gradient : {&dq, &dk, &dv}) gradient->commit();
}

// {q, k|v} -> {out, lse}; {q, k|v, out, lse, dout} -> {dq, dk|dv}: keys of one other rank, added to
// what the parts before gave; or, at once, those of all ranks.
void packed_keys(CpuRank& rank, const Command& c, const Attention& work) {
  const ParallelPlan& p = rank.job.plan;
  const bool part = c.op->pieces > 1;
  const std::int64_t ranks = part ? 1 : p.cp, local = p.seq_len / p.cp;
  const std::int64_t rows = ranks * work.batch * local;
  const std::int64_t holder = (rank.at.cp + p.cp - c.op->piece) % p.cp;  // of a part's keys
  const Sequences sequences(rank, c, work, positions_of(p, rank.at.cp));
  Values q(rank.tensor(c, c.reads[0])), all(rank.tensor(c, c.reads[1]));
  // A ring brings one rank's keys, a gather those of all.
  const std::int64_t first = all.matrix().rows > rows ? holder * rows : 0;
  const Matrix packed = all.matrix().row_range(first, rows);
  const std::int64_t k_width = work.kv_heads * work.head_dim;
  const std::int64_t v_width = work.kv_heads * work.v_head_dim;
  // Rows by rank and sequence become rows by sequence and rank.
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
    std::copy_n(&packed.at(from, 0), k_width, &k.at(to, 0));
    std::copy_n(&packed.at(from, k_width), v_width, &v.at(to, 0));
  });
  for (std::int64_t r = 0; r < ranks; ++r) {
    const Positions positions = positions_of(p, part ? holder : r);
    kv.positions.insert(kv.positions.end(), positions.begin(), positions.end());
  }
  if (work.pass == Pass::forward) {
    Values out(rank.tensor(c, c.writes[0])), lse(rank.tensor(c, c.writes[1]));
    if (part) {
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
  Values dq(rank.tensor(c, c.writes[0])), dall(rank.tensor(c, c.writes[1]));
  if (!part) clear(dq);
  // The second part is the first with other ranks' keys.
  if (!part || c.op->piece == 1) clear(dall);
  const Matrix dpacked = dall.matrix().row_range(first, rows);
  std::vector<float> dks(ks.size()), dvs(vs.size());
  const Matrix dk(dks, rows, k_width), dv(dvs, rows, v_width);
  sequences.backward(q.matrix(), kv, out.matrix(), lse.matrix(), dout.matrix(), dq.matrix(), dk,
                     dv);
  each_row([&](std::int64_t to, std::int64_t from) {
    for (std::int64_t j = 0; j < k_width; ++j) dpacked.at(to, j) += dk.at(from, j);
    for (std::int64_t j = 0; j < v_width; ++j) dpacked.at(to, k_width + j) += dv.at(from, j);
  });
  sinks_gradient(rank, c, work, out.matrix(), lse.matrix(), dout.matrix());
  dq.commit();
  dall.commit();
}

// Equal parts of what a rank sends, one for each rank of the group.
void exchange_shares(const Parties& parties) {
  for (std::size_t to = 0; to < parties.size(); ++to) {
    const Party& receiver = parties[to];
    const std::span<std::byte> arrived =
        receiver.rank.tensor(receiver.command, receiver.command.writes[0]).span();
    const std::size_t part = arrived.size() / parties.size();
    for (std::size_t from = 0; from < parties.size(); ++from) {
      const Party& sender = parties[from];
      const std::span<std::byte> sent =
          sender.rank.tensor(sender.command, sender.command.reads[0]).span();
      std::ranges::copy(sent.subspan(to * part, part), arrived.subspan(from * part, part).begin());
    }
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
  QPLAN_CHECK(operands == (forward ? 2 : 5), "keys and values are apart or packed");
  packed_keys(rank, c, work);
}

std::vector<std::int64_t> exchanged_parts(const CpuRank& rank, const Command& c,
                                          std::int64_t cols) {
  const ModelSpec& m = rank.spec(c);
  const std::int64_t tp = rank.job.plan.tp;
  const Mixer mixer = rank.shape(c.instance).layer.mixer;
  if (mixer == Mixer::mamba && cols > m.mamba->inner() / tp) {
    const std::int64_t inner = m.mamba->inner() / tp, heads = m.mamba->num_heads / tp;
    const std::int64_t shared = m.mamba->num_groups / tp * m.mamba->state_size;
    return {inner, inner, shared, shared, heads};
  }
  if (mixer == Mixer::delta_net && cols > m.delta_net->value_dim() / tp) {
    const DeltaNetSpec& d = *m.delta_net;
    const std::int64_t key = d.key_dim() / tp, value = d.value_dim() / tp;
    const std::int64_t heads = d.num_value_heads / tp;
    if (d.packed_projections) return {2 * (key + value), 2 * heads};
    return {key, key, value, value, heads, heads};
  }
  return {cols};
}

// Between what is exchanged and {q, k, v}, {out} or their gradients: with all heads of this rank's
// positions (dispatch, combine), or with its heads of all positions (group_rows, ungroup_rows).
void move_heads(CpuRank& rank, const Command& c) {
  const Role role = c.op->role;
  const bool by_heads = role == Role::group_rows || role == Role::ungroup_rows;
  const bool leaving = role == Role::dispatch || role == Role::ungroup_rows;
  const ParallelPlan& p = rank.job.plan;
  const std::int64_t local = p.seq_len / p.cp, rows = p.micro_batch_size * local;
  Values buffer(rank.tensor(c, leaving ? c.writes[0] : c.reads[0]));
  const Matrix shares(buffer.all(), p.cp * rows, std::ssize(buffer.all()) / (p.cp * rows));
  std::int64_t first = 0;  // column of the operand's share
  for (const Operand& operand : leaving ? c.reads : c.writes) {
    Values own(rank.tensor(c, operand));
    const std::int64_t cols = own.matrix().cols * (by_heads ? p.cp : 1);
    const std::vector<std::int64_t> parts = exchanged_parts(rank, c, cols);
    for (std::int64_t other = 0; other < p.cp; ++other) {
      const Positions positions = positions_of(p, other);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t place = r / local * p.seq_len + positions[math::at(r % local)];
        std::int64_t begin = 0, before = 0;  // of a part among all columns, among a share's
        for (const std::int64_t part : parts) {
          const std::int64_t share = part / p.cp;
          float* const here = by_heads ? &own.matrix().at(place, before)
                                       : &own.matrix().at(r, begin + other * share);
          float* const there = &shares.at(other * rows + r, first + before);
          leaving ? std::copy_n(here, share, there) : std::copy_n(there, share, here);
          begin += part;
          before += share;
        }
      }
    }
    first += cols / p.cp;
    if (!leaving) own.commit();
  }
  if (leaving) buffer.commit();
}

void exchange_context(const Parties& parties, const Collective& work) {
  switch (work.kind) {
    case CollectiveKind::all_gather:
      return gather_keys(parties);
    case CollectiveKind::reduce_scatter:
      return reduce_keys(parties);
    case CollectiveKind::all_to_all:
      return exchange_shares(parties);
    case CollectiveKind::all_reduce:
    case CollectiveKind::broadcast:
      break;
  }
  QPLAN_CHECK(false, "context parallelism gathers, reduces and exchanges");
}

}  // namespace qplan
