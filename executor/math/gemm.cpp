#include "executor/math/gemm.h"

#include <Eigen/Core>
#include <vector>

namespace qplan::math {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Map = Eigen::Map<RowMajor, Eigen::Unaligned, Eigen::OuterStride<>>;
using ConstMap = Eigen::Map<const RowMajor, Eigen::Unaligned, Eigen::OuterStride<>>;

ConstMap mapped(ConstMatrix m) {
  return {m.data, m.rows, m.cols, Eigen::OuterStride<>(m.stride)};
}

template <class A, class B>
void multiply_mapped(const A& a, const B& b, Matrix c, bool accumulate, float scale) {
  QPLAN_CHECK(a.rows() == c.rows && b.cols() == c.cols && a.cols() == b.rows(),
              "the sides of a matrix product fit");
  Map result(c.data, c.rows, c.cols, Eigen::OuterStride<>(c.stride));
  if (accumulate) {
    result.noalias() += scale * (a * b);
  } else {
    result.noalias() = scale * (a * b);
  }
}

}  // namespace

void multiply(ConstMatrix a, Op op_a, ConstMatrix b, Op op_b, Matrix c, bool accumulate,
              float scale) {
  const ConstMap left = mapped(a), right = mapped(b);
  if (op_a == Op::plain && op_b == Op::plain) {
    multiply_mapped(left, right, c, accumulate, scale);
  } else if (op_a == Op::plain) {
    multiply_mapped(left, right.transpose(), c, accumulate, scale);
  } else if (op_b == Op::plain) {
    multiply_mapped(left.transpose(), right, c, accumulate, scale);
  } else {
    multiply_mapped(left.transpose(), right.transpose(), c, accumulate, scale);
  }
}

void add_bias(ConstFloats bias, Matrix y) {
  for (std::int64_t r = 0; r < y.rows; ++r) {
    for (std::int64_t c = 0; c < y.cols; ++c) y.at(r, c) += bias[at(c)];
  }
}

void bias_backward(ConstMatrix dy, Floats dbias) {
  std::vector<double> sums(at(dy.cols));
  for (std::int64_t r = 0; r < dy.rows; ++r) {
    for (std::int64_t c = 0; c < dy.cols; ++c) sums[at(c)] += dy.at(r, c);
  }
  for (std::size_t c = 0; c < sums.size(); ++c) dbias[c] += static_cast<float>(sums[c]);
}

}  // namespace qplan::math
