// Mamba-2: the scan and its gate, and the norm of each group of heads. The projection makes gate,
// x, B, C and step sizes, side by side. A rank works on whole sequences of its heads.

#include "executor/cpu/ops.h"
#include "executor/math/norm.h"
#include "executor/math/scan.h"
#include "executor/math/sigmoid.h"
#include "models/error.h"

namespace qplan {
namespace {

using math::Matrix;

struct Widths {
  std::int64_t inner = 0, shared = 0, heads = 0, groups = 0;  // shared: columns of B, or of C
  [[nodiscard]] std::int64_t channels() const { return inner + 2 * shared; }
};

// Of a rank's heads, or of its share of them where they are exchanged for sequence.
Widths widths_of(const CpuRank& rank, const Command& c, std::int64_t sequence_ranks) {
  const MambaSpec& m = *rank.spec(c).mamba;
  const std::int64_t ranks = rank.job.plan.tp * sequence_ranks, groups = m.num_groups / ranks;
  return {m.inner() / ranks, groups * m.state_size, m.num_heads / ranks, groups};
}

// One sequence's operands.
math::ScanInput input_of(const Widths& w, Matrix projected, Matrix xbc) {
  return {.x = xbc.columns(0, w.inner),
          .b = xbc.columns(w.inner, w.shared),
          .c = xbc.columns(w.inner + w.shared, w.shared),
          .dt = projected.columns(w.inner + w.channels(), w.heads),
          .dt_bias = {},
          .a_log = {},
          .skip = {}};
}

}  // namespace

std::vector<ColumnRun> mamba_channels(const CpuRank& rank, const Command& c) {
  const Widths w = widths_of(rank, c, rank.job.plan.cp);
  return {{w.inner, 0, w.channels()}};
}

// {projected, x|B|C, weights} -> {out, out times the SiLU of the gate, ...}; {projected, x|B|C,
// out, d of the gated, weights} -> {d x|B|C, d projected, ..., gradients}: of the latter the gate's
// and the steps' columns.
void run_scan(CpuRank& rank, const Command& c, const StateSpaceScan& work) {
  const Widths w = widths_of(rank, c, rank.job.plan.cp);
  const bool backward = work.pass == Pass::backward;
  const math::ScanShape shape{work.heads, work.groups, work.head_dim, work.state_size,
                              rank.spec(c).mamba->step_min};
  Values projected(rank.tensor(c, c.reads[0])), xbc(rank.tensor(c, c.reads[1]));
  const Tensor weights = rank.tensor(c, c.reads[backward ? 4 : 2]);
  const PackedParameter &of_bias = parameter_with(rank, c, ParameterRole::linear_dt_bias),
                        &of_log = parameter_with(rank, c, ParameterRole::linear_a_log),
                        &of_skip = parameter_with(rank, c, ParameterRole::mamba_skip);
  HeadParameter dt_bias(rank, weights, of_bias), a_log(rank, weights, of_log),
      skip(rank, weights, of_skip);
  const auto input = [&](std::int64_t b) {
    math::ScanInput in = input_of(w, projected.matrix().row_range(b * work.seq_len, work.seq_len),
                                  xbc.matrix().row_range(b * work.seq_len, work.seq_len));
    in.dt_bias = dt_bias.all();
    in.a_log = a_log.all();
    in.skip = skip.all();
    return in;
  };
  const Matrix gate = projected.matrix().columns(0, w.inner);
  if (!backward) {
    Values out(rank.tensor(c, c.writes[0]), false), gated(rank.tensor(c, c.writes[1]), false);
    for (std::int64_t b = 0; b < work.batch; ++b) {
      math::scan(input(b), shape, out.matrix().row_range(b * work.seq_len, work.seq_len));
    }
    for (std::int64_t r = 0; r < gate.rows; ++r) {
      for (std::int64_t i = 0; i < w.inner; ++i) {
        const double z = gate.at(r, i);
        gated.matrix().at(r, i) = static_cast<float>(out.matrix().at(r, i) * z * math::sigmoid(z));
      }
    }
    out.commit();
    gated.commit();
    return;
  }
  Values out(rank.tensor(c, c.reads[2])), dgated(rank.tensor(c, c.reads[3]));
  Values dxbc(rank.tensor(c, c.writes[0]), false), dprojected(rank.tensor(c, c.writes[1]));
  std::vector<float> dys(dgated.all().size());
  const Matrix dy(dys, gate.rows, w.inner);
  for (std::int64_t r = 0; r < gate.rows; ++r) {
    for (std::int64_t i = 0; i < w.inner; ++i) {
      const double z = gate.at(r, i), s = math::sigmoid(z), d = dgated.matrix().at(r, i);
      dy.at(r, i) = static_cast<float>(d * z * s);
      dprojected.matrix().at(r, i) =
          static_cast<float>(d * out.matrix().at(r, i) * s * (1 + z * (1 - s)));
    }
  }
  HeadGradient dbias(rank, c, of_bias), dlog(rank, c, of_log), dskip(rank, c, of_skip);
  for (std::int64_t b = 0; b < work.batch; ++b) {
    const auto rows = [&](Matrix m) { return m.row_range(b * work.seq_len, work.seq_len); };
    const Matrix d = rows(dxbc.matrix());
    math::scan_backward(input(b), shape, rows(dy),
                        {.dx = d.columns(0, w.inner),
                         .db = d.columns(w.inner, w.shared),
                         .dc = d.columns(w.inner + w.shared, w.shared),
                         .ddt = rows(dprojected.matrix()).columns(w.inner + w.channels(), w.heads),
                         .d_dt_bias = dbias.all(),
                         .d_a_log = dlog.all(),
                         .dskip = dskip.all()});
  }
  dxbc.commit();
  dprojected.commit();
  for (HeadGradient* gradient : {&dbias, &dlog, &dskip}) gradient->commit();
}

// RMSNorm of each group's columns: {gated, weights} -> {normed}; {gated, d normed, weights} ->
// {d gated, gradients}.
void run_group_norm(CpuRank& rank, const Command& c, bool backward) {
  const std::int64_t groups = widths_of(rank, c, 1).groups;
  const math::NormShape shape{.epsilon = rank.spec(c).norm_epsilon};
  Values x(rank.tensor(c, c.reads[0]));
  const std::int64_t cols = x.matrix().cols / groups;
  const PackedParameter& p = parameter_with(rank, c, ParameterRole::linear_norm);
  Values weight(parameter_in(rank.tensor(c, c.reads[backward ? 2 : 1]), p));
  Values result(rank.tensor(c, c.writes[0]), false);
  std::optional<Values> dy;
  std::optional<NormGradient> dweight;
  if (backward) {
    dy.emplace(rank.tensor(c, c.reads[1]));
    dweight.emplace(rank, c, p);
  }
  for (std::int64_t g = 0; g < groups; ++g) {
    const auto part = [&](std::span<float> all) {
      return all.subspan(static_cast<std::size_t>(g * cols), static_cast<std::size_t>(cols));
    };
    const Matrix in = x.matrix().columns(g * cols, cols);
    const Matrix out = result.matrix().columns(g * cols, cols);
    if (backward) {
      math::rms_norm_backward(in, part(weight.all()), shape, dy->matrix().columns(g * cols, cols),
                              out, part(dweight->all()));
    } else {
      math::rms_norm(in, part(weight.all()), shape, out);
    }
  }
  result.commit();
  if (dweight) dweight->commit();
}

}  // namespace qplan
