// DoRA (models/program/magnitudes.cpp): y = b + m / |W + scale B A| (before - b), where `before` is
// what the layer, its bias b and its adapters make. Norms get no gradient.

#include <cmath>
#include <vector>

#include "executor/cpu/ops.h"
#include "executor/math/gemm.h"

namespace qplan {
namespace {

const PackedParameter& entry(const CpuRank& rank, const Command& c, std::int16_t parameter) {
  return rank.block(c).parameters[static_cast<std::size_t>(parameter)];
}

// Of each output of a layer: its magnitude (1 where it has no adapter), the norm of its row, and
// the bias that this rank has added.
struct Outputs {
  std::vector<double> magnitude, norm, bias;
};

Outputs outputs_of(CpuRank& rank, const Command& c, std::int64_t n, Values& squares,
                   const Tensor& adapters, const Tensor& weights) {
  const auto count = static_cast<std::size_t>(n);
  Outputs out{std::vector<double>(count, 1), std::vector<double>(count, 1),
              std::vector<double>(count, 0)};
  const PackedParameter& first = entry(rank, c, c.op->parameter);
  for (const AdaptedPart& part : adapted_parts(rank.block(c).parameters, first.whole.role, n)) {
    Values magnitudes(parameter_in(adapters, entry(rank, c, part.magnitude)));
    for (std::int64_t i = 0; i < part.width; ++i) {
      const auto at = static_cast<std::size_t>(part.column + i);
      out.magnitude[at] = static_cast<double>(magnitudes.all()[static_cast<std::size_t>(i)]);
      out.norm[at] = std::sqrt(static_cast<double>(squares.all()[at]));
    }
  }
  const Weight w = weight_of(rank, c, weights, n);
  if (w.bias.data != nullptr && adds_bias(rank, first)) {
    Values bias(w.bias);
    for (std::size_t i = 0; i < count; ++i) out.bias[i] = static_cast<double>(bias.all()[i]);
  }
  return out;
}

}  // namespace

void run_merge(CpuRank& rank, const Command& c) {
  const AdapterView view = adapter_view(rank, c);
  const Tensor adapters = rank.tensor(c, c.reads[0]);
  Values b(parameter_in(adapters, entry(rank, c, c.op->parameter)));
  Values a(parameter_in(adapters, entry(rank, c, view.a)));
  Values change(rank.tensor(c, c.writes[0]), false);
  math::multiply(b.matrix(), math::Op::plain, a.matrix(), math::Op::plain, change.matrix(),
                 /*accumulate=*/false, view.scale);
  change.commit();
}

void run_merged_squares(CpuRank& rank, const Command& c) {
  const AdaptedPart part = adapted_part(rank, c);
  Values weight(parameter_in(rank.tensor(c, c.reads[0]), entry(rank, c, part.weight)));
  Values change(rank.tensor(c, c.reads[1])), squares(rank.tensor(c, c.writes[0]));
  for (std::int64_t row = 0; row < part.width; ++row) {
    double sum = 0;
    for (std::int64_t i = 0; i < weight.matrix().cols; ++i) {
      const double merged = static_cast<double>(weight.matrix().at(row, i)) +
                            static_cast<double>(change.matrix().at(row, i));
      sum += merged * merged;
    }
    squares.all()[static_cast<std::size_t>(part.column + row)] = static_cast<float>(sum);
  }
  squares.commit();
}

void run_magnify(CpuRank& rank, const Command& c, const Rowwise& work) {
  Values before(rank.tensor(c, c.reads[0])), squares(rank.tensor(c, c.reads[1]));
  Values y(rank.tensor(c, c.writes[0]), false);
  const Outputs of = outputs_of(rank, c, work.cols, squares, rank.tensor(c, c.reads[2]),
                                rank.tensor(c, c.reads[3]));
  for (std::int64_t r = 0; r < work.rows; ++r) {
    for (std::int64_t i = 0; i < work.cols; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double own = static_cast<double>(before.matrix().at(r, i)) - of.bias[at];
      y.matrix().at(r, i) = static_cast<float>(of.bias[at] + of.magnitude[at] / of.norm[at] * own);
    }
  }
  y.commit();
}

void run_magnify_backward(CpuRank& rank, const Command& c, const Rowwise& work) {
  Values dy(rank.tensor(c, c.reads[0])), before(rank.tensor(c, c.reads[1]));
  Values squares(rank.tensor(c, c.reads[2])), d_before(rank.tensor(c, c.writes[0]), false);
  const Outputs of = outputs_of(rank, c, work.cols, squares, rank.tensor(c, c.reads[3]),
                                rank.tensor(c, c.reads[4]));
  std::vector<double> sums(static_cast<std::size_t>(work.cols));
  for (std::int64_t r = 0; r < work.rows; ++r) {
    for (std::int64_t i = 0; i < work.cols; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const auto d = static_cast<double>(dy.matrix().at(r, i));
      d_before.matrix().at(r, i) = static_cast<float>(of.magnitude[at] / of.norm[at] * d);
      sums[at] += d * (static_cast<double>(before.matrix().at(r, i)) - of.bias[at]) / of.norm[at];
    }
  }
  d_before.commit();
  const Tensor gradients = rank.tensor(c, c.writes[1]);
  const ParameterRole first = entry(rank, c, c.op->parameter).whole.role;
  for (const AdaptedPart& part : adapted_parts(rank.block(c).parameters, first, work.cols)) {
    Values gradient(parameter_in(gradients, entry(rank, c, part.magnitude)));
    for (std::int64_t i = 0; i < part.width; ++i) {
      gradient.all()[static_cast<std::size_t>(i)] +=
          static_cast<float>(sums[static_cast<std::size_t>(part.column + i)]);
    }
    gradient.commit();
  }
}

}  // namespace qplan
