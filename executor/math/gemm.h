#pragma once
// Matrix products, and the three of a linear layer y = x W^T with W (out, in).

#include "executor/math/matrix.h"

namespace qplan::math {

enum class Op : std::uint8_t { plain, transposed };

// c = scale op(a) op(b), or c += scale op(a) op(b).
void multiply(ConstMatrix a, Op op_a, ConstMatrix b, Op op_b, Matrix c, bool accumulate = false,
              float scale = 1);

// y[rows, out] = x[rows, in] W^T.
inline void linear(ConstMatrix x, ConstMatrix weight, Matrix y) {
  multiply(x, Op::plain, weight, Op::transposed, y);
}
// dx[rows, in] = dy[rows, out] W.
inline void linear_dgrad(ConstMatrix dy, ConstMatrix weight, Matrix dx) {
  multiply(dy, Op::plain, weight, Op::plain, dx);
}
// dW[out, in] += dy^T x.
inline void linear_wgrad(ConstMatrix dy, ConstMatrix x, Matrix dweight) {
  multiply(dy, Op::transposed, x, Op::plain, dweight, /*accumulate=*/true);
}

// y += bias in every row; dbias += the sum of dy's rows.
void add_bias(ConstFloats bias, Matrix y);
void bias_backward(ConstMatrix dy, Floats dbias);

}  // namespace qplan::math
