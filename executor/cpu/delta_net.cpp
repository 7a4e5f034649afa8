// Gated DeltaNet: the convolution that it shares with Mamba-2, decays and strengths, the rule, and
// the gated norm of what it gives. A rank works on whole sequences of its heads, of which there are
// fewer where heads are exchanged for sequence.

#include <algorithm>

#include "executor/cpu/ops.h"
#include "executor/math/causal_conv.h"
#include "executor/math/delta_rule.h"
#include "executor/math/norm.h"
#include "executor/math/sigmoid.h"
#include "models/error.h"

namespace qplan {
namespace {

using math::Matrix;

struct DeltaHeads {
  std::int64_t keys = 0, values = 0, key_dim = 0, value_dim = 0;
};

DeltaHeads delta_heads(const CpuRank& rank, const Command& c) {
  const DeltaNetSpec& d = *rank.spec(c).delta_net;
  const std::int64_t ranks = std::int64_t{rank.job.plan.tp} * rank.job.plan.cp;
  return {d.num_key_heads / ranks, d.num_value_heads / ranks, d.key_head_dim, d.value_head_dim};
}

// Numbers of a matrix of their own.
struct Scratch {
  Scratch(std::int64_t rows, std::int64_t cols)
      : values(static_cast<std::size_t>(rows * cols)), matrix(values, rows, cols) {}
  Scratch(const Scratch&) = delete;  // a copy's matrix would be the other's
  Scratch(Scratch&&) = default;
  std::vector<float> values;
  Matrix matrix;
};

Scratch taken(const std::vector<ColumnRun>& runs, Matrix packed) {
  std::int64_t cols = 0;
  for (const ColumnRun& run : runs) cols += run.count;
  Scratch own(packed.rows, cols);
  take(runs, packed, own.matrix);
  return own;
}

template <class Visit>
void each_sequence(const CpuRank& rank, std::int64_t rows, Visit visit) {
  const std::int64_t length = rank.job.plan.seq_len;
  for (std::int64_t first = 0; first < rows; first += length) visit(first, length);
}

// Heads' rows one after the other.
Matrix by_head(std::span<float> x, std::int64_t dim) {
  return {x, std::ssize(x) / dim, dim};
}

}  // namespace

HeadParameter::HeadParameter(const CpuRank& rank, const PackedParameter& p) : cols_(p.cols) {
  const std::int64_t tp = p.whole.rows / p.rows, cp = rank.job.plan.cp;
  std::int64_t begin = 0, own = 0;
  for (std::int64_t part : p.whole.parts) {
    if (begin == 0 && part == 0) part = p.whole.rows;
    const std::int64_t all = part / tp, share = all / cp;
    if (share > 0) rows_.push_back({begin + rank.at.cp * share, own, share});
    begin += all;
    own += share;
    if (begin == p.rows) break;
  }
  own_.resize(static_cast<std::size_t>(own * cols_));
}

HeadParameter::HeadParameter(const CpuRank& rank, const Tensor& slot, const PackedParameter& p)
    : HeadParameter(rank, p) {
  Values whole(parameter_in(slot, p));
  for (const ColumnRun& run : rows_) {
    std::copy_n(&whole.matrix().at(run.packed, 0), run.count * cols_,
                own_.begin() + run.own * cols_);
  }
}

void HeadGradient::commit() {
  for (const ColumnRun& run : rows_) {
    for (std::int64_t i = 0; i < run.count * cols_; ++i) {
      kept_.all()[math::at(run.packed * cols_ + i)] += own_[math::at(run.own * cols_ + i)];
    }
  }
  kept_.commit();
}

// transformers 5.23, fix_query_key_value_ordering: the packed projection makes of each key head its
// query, its key, the values and the gates that it serves, and behind all that its strengths and
// decays. Qwen3.5's projections make queries, keys, values, gates, strengths and decays.
DeltaColumns delta_columns(const CpuRank& rank, const Command& c) {
  const DeltaHeads h = delta_heads(rank, c);
  const std::int64_t key = h.keys * h.key_dim, value = h.values * h.value_dim;
  if (!rank.spec(c).delta_net->packed_projections) {
    const std::int64_t gate = 2 * key + value;
    return {{{0, 0, gate}}, {{gate, 0, value}}, {{gate + value, 0, 2 * h.values}}};
  }
  DeltaColumns columns;
  const std::int64_t group = h.values / h.keys, served = group * h.value_dim;
  for (std::int64_t head = 0; head < h.keys; ++head) {
    const std::int64_t first = head * 2 * (h.key_dim + served), values = first + 2 * h.key_dim;
    columns.channels.push_back({first, head * h.key_dim, h.key_dim});
    columns.channels.push_back({first + h.key_dim, key + head * h.key_dim, h.key_dim});
    columns.channels.push_back({values, 2 * key + head * served, served});
    columns.gate.push_back({values + served, head * served, served});
    const std::int64_t strength = 2 * (key + value + head * group);
    columns.strengths.push_back({strength, head * group, group});
    columns.strengths.push_back({strength + group, h.values + head * group, group});
  }
  return columns;
}

// {projected, weights} -> {convolved}; {projected, d convolved, weights} -> {d channels,
// gradients}, or into their columns of all that the projection made.
void run_convolution(CpuRank& rank, const Command& c, bool backward) {
  const bool mamba = rank.shape(c.instance).layer.mixer == Mixer::mamba;
  const std::vector<ColumnRun> runs =
      mamba ? mamba_channels(rank, c) : delta_columns(rank, c).channels;
  Values projected(rank.tensor(c, c.reads[0]));
  Scratch x = taken(runs, projected.matrix());
  const std::int64_t rows = x.matrix.rows;
  const PackedParameter& p = parameter_with(rank, c, ParameterRole::linear_conv);
  const PackedParameter* const with_bias = bias_of(rank, c, p);
  const Tensor weights = rank.tensor(c, c.reads[backward ? 2 : 1]);
  HeadParameter weight(rank, weights, p);
  std::optional<HeadParameter> bias;
  if (with_bias != nullptr) bias.emplace(rank, weights, *with_bias);
  const math::ConstFloats shift = bias ? math::ConstFloats(bias->all()) : math::ConstFloats();
  if (!backward) {
    Values y(rank.tensor(c, c.writes[0]), false);
    each_sequence(rank, rows, [&](std::int64_t first, std::int64_t length) {
      math::causal_conv(x.matrix.row_range(first, length), weight.matrix(), shift,
                        y.matrix().row_range(first, length));
    });
    y.commit();
    return;
  }
  Values dy(rank.tensor(c, c.reads[1])), dprojected(rank.tensor(c, c.writes[0]));
  Scratch dx(rows, x.matrix.cols);
  HeadGradient dweight(rank, c, p);
  std::optional<HeadGradient> dbias;
  if (with_bias != nullptr) dbias.emplace(rank, c, *with_bias);
  each_sequence(rank, rows, [&](std::int64_t first, std::int64_t length) {
    math::causal_conv_backward(x.matrix.row_range(first, length), weight.matrix(), shift,
                               dy.matrix().row_range(first, length),
                               dx.matrix.row_range(first, length), dweight.matrix(),
                               dbias ? dbias->all() : math::Floats());
  });
  dweight.commit();
  if (dbias) dbias->commit();
  const bool dense = dprojected.matrix().cols == dx.matrix.cols;
  put(dense ? std::vector<ColumnRun>{{0, 0, dx.matrix.cols}} : runs, dx.matrix,
      dprojected.matrix());
  dprojected.commit();
}

// {q|k} -> {q, k, scales}; {dq, dk, q, k, scales} -> {dq|dk}.
void run_delta_norm(CpuRank& rank, const Command& c, bool backward) {
  const DeltaHeads h = delta_heads(rank, c);
  const std::int64_t width = h.keys * h.key_dim;
  Values packed(rank.tensor(c, backward ? c.writes[0] : c.reads[0]), !backward);
  Values scales(rank.tensor(c, backward ? c.reads[4] : c.writes[2]), backward);
  for (const std::int64_t i : {0, 1}) {
    const auto k = static_cast<std::size_t>(i);
    Values own(rank.tensor(c, backward ? c.reads[2 + k] : c.writes[k]), backward);
    Scratch whole(own.matrix().rows, width), scale(own.matrix().rows, h.keys);
    const std::vector<ColumnRun> columns{{i * width, 0, width}}, of_scale{{i * h.keys, 0, h.keys}};
    if (!backward) {
      take(columns, packed.matrix(), whole.matrix);
      math::l2_norm(by_head(whole.values, h.key_dim), by_head(own.all(), h.key_dim), scale.values);
      put(of_scale, scale.matrix, scales.matrix());
      own.commit();
      continue;
    }
    Values given(rank.tensor(c, c.reads[k]));
    take(of_scale, scales.matrix(), scale.matrix);
    math::l2_norm_backward(by_head(own.all(), h.key_dim), scale.values,
                           by_head(given.all(), h.key_dim), by_head(whole.values, h.key_dim));
    put(columns, whole.matrix, packed.matrix());
  }
  backward ? packed.commit() : scales.commit();
}

// {projected, weights} -> {decays, strengths}; {projected, d decays, d strengths, weights} ->
// {d strengths | d decays' input, gradients}.
void run_decay_gates(CpuRank& rank, const Command& c, bool backward) {
  const std::int64_t heads = delta_heads(rank, c).values;
  Values projected(rank.tensor(c, c.reads[0]));
  Scratch own = taken(delta_columns(rank, c).strengths, projected.matrix());
  const PackedParameter &of_bias = parameter_with(rank, c, ParameterRole::linear_dt_bias),
                        &of_log = parameter_with(rank, c, ParameterRole::linear_a_log);
  const Tensor weights = rank.tensor(c, c.reads[backward ? 3 : 1]);
  HeadParameter dt_bias(rank, weights, of_bias), a_log(rank, weights, of_log);
  const math::DecayInput in{own.matrix.columns(heads, heads), own.matrix.columns(0, heads),
                            dt_bias.all(), a_log.all()};
  if (!backward) {
    Values decay(rank.tensor(c, c.writes[0]), false), strength(rank.tensor(c, c.writes[1]), false);
    math::decay_gates(in, decay.matrix(), strength.matrix());
    decay.commit();
    strength.commit();
    return;
  }
  Values ddecay(rank.tensor(c, c.reads[1])), dstrength(rank.tensor(c, c.reads[2]));
  Values d(rank.tensor(c, c.writes[0]), false);
  HeadGradient dbias(rank, c, of_bias), dlog(rank, c, of_log);
  math::decay_gates_backward(in, ddecay.matrix(), dstrength.matrix(),
                             d.matrix().columns(heads, heads), d.matrix().columns(0, heads),
                             dbias.all(), dlog.all());
  d.commit();
  dbias.commit();
  dlog.commit();
}

// {q, k, v, decays, strengths} -> {out}; {q, k, v, decays, strengths, dout} -> {dq, dk,
// dv, d decays, d strengths, ...}.
void run_delta_rule(CpuRank& rank, const Command& c, const GatedDeltaRule& work) {
  const math::DeltaRuleShape shape{work.key_heads, work.value_heads, work.key_dim, work.value_dim};
  std::vector<Values> in;
  for (std::size_t i = 0; i < 5; ++i) in.emplace_back(rank.tensor(c, c.reads[i]));
  const auto rows = [](Values& values, std::int64_t b, std::int64_t length) {
    return values.matrix().row_range(b * length, length);
  };
  const auto input = [&](std::int64_t b) {
    const std::int64_t n = work.seq_len;
    return math::DeltaRuleInput{rows(in[0], b, n), rows(in[1], b, n), rows(in[2], b, n),
                                rows(in[3], b, n), rows(in[4], b, n)};
  };
  if (work.pass == Pass::forward) {
    Values out(rank.tensor(c, c.writes[0]), false);
    for (std::int64_t b = 0; b < work.batch; ++b) {
      math::delta_rule(input(b), shape, rows(out, b, work.seq_len));
    }
    out.commit();
    return;
  }
  Values dout(rank.tensor(c, c.reads[5]));
  std::vector<Values> out;
  for (std::size_t i = 0; i < 5; ++i) out.emplace_back(rank.tensor(c, c.writes[i]), false);
  for (std::int64_t b = 0; b < work.batch; ++b) {
    const std::int64_t n = work.seq_len;
    math::delta_rule_backward(input(b), shape, rows(dout, b, n),
                              {rows(out[0], b, n), rows(out[1], b, n), rows(out[2], b, n),
                               rows(out[3], b, n), rows(out[4], b, n)});
  }
  for (Values& gradient : out) gradient.commit();
}

// RMSNorm of each head, times the SiLU of a gate: {out, projected, weights} -> {gated}; {d gated,
// out, projected, weights} -> {d out, d gate, gradients}.
void run_gated_norm(CpuRank& rank, const Command& c, bool backward) {
  const std::size_t first = backward ? 1 : 0;
  const std::int64_t dim = delta_heads(rank, c).value_dim;
  const math::NormShape shape{.epsilon = rank.spec(c).norm_epsilon};
  Values out(rank.tensor(c, c.reads[first])), projected(rank.tensor(c, c.reads[first + 1]));
  const PackedParameter& p = parameter_with(rank, c, ParameterRole::linear_norm);
  Values weight(parameter_in(rank.tensor(c, c.reads[first + 2]), p));
  Scratch gate = taken(delta_columns(rank, c).gate, projected.matrix());
  Scratch normed(out.matrix().rows, out.matrix().cols);
  math::rms_norm(by_head(out.all(), dim), weight.all(), shape, by_head(normed.values, dim));
  if (!backward) {
    Values y(rank.tensor(c, c.writes[0]), false);
    for (std::size_t i = 0; i < y.all().size(); ++i) {
      const double z = gate.values[i];
      y.all()[i] = static_cast<float>(normed.values[i] * z * math::sigmoid(z));
    }
    y.commit();
    return;
  }
  Values dy(rank.tensor(c, c.reads[0]));
  Values dout(rank.tensor(c, c.writes[0]), false), dgate(rank.tensor(c, c.writes[1]), false);
  Scratch dnormed(out.matrix().rows, out.matrix().cols);
  for (std::size_t i = 0; i < dy.all().size(); ++i) {
    const double z = gate.values[i], s = math::sigmoid(z), d = dy.all()[i];
    dnormed.values[i] = static_cast<float>(d * z * s);
    dgate.all()[i] = static_cast<float>(d * normed.values[i] * s * (1 + z * (1 - s)));
  }
  NormGradient dweight(rank, c, p);
  math::rms_norm_backward(by_head(out.all(), dim), weight.all(), shape,
                          by_head(dnormed.values, dim), by_head(dout.all(), dim), dweight.all());
  dweight.commit();
  dout.commit();
  dgate.commit();
}

// {d channels, d gate, d strengths} -> what the projection made.
void put_projected(CpuRank& rank, const Command& c) {
  const DeltaColumns columns = delta_columns(rank, c);
  const std::vector<ColumnRun>* parts[] = {&columns.channels, &columns.gate, &columns.strengths};
  Values projected(rank.tensor(c, c.writes[0]), false);
  for (std::size_t i = 0; i < 3; ++i) {
    Values own(rank.tensor(c, c.reads[i]));
    put(*parts[i], own.matrix(), projected.matrix());
  }
  projected.commit();
}

}  // namespace qplan
