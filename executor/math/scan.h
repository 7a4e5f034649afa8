#pragma once
// Mamba-2's scan (arXiv 2405.21060, equation 1 with a scalar decay) token by token, of one
// sequence. With a state S of head_dim x state_size a head, which begins as 0:
//
//   step = max(softplus(dt + dt_bias), step_min);   S = exp(-exp(a_log) step) S + step x B^T
//   y = S C + skip x

#include "executor/math/matrix.h"

namespace qplan::math {

struct ScanShape {
  std::int64_t heads = 0, groups = 0;  // neighbouring heads share a group's B and C
  std::int64_t head_dim = 0, state_size = 0;
  double step_min = 0;
};

struct ScanInput {
  ConstMatrix x;                     // (tokens, heads * head_dim)
  ConstMatrix b, c;                  // (tokens, groups * state_size)
  ConstMatrix dt;                    // (tokens, heads)
  ConstFloats dt_bias, a_log, skip;  // (heads)
};
void scan(const ScanInput& in, const ScanShape& shape, Matrix y);

struct ScanGradient {
  Matrix dx, db, dc, ddt;
  Floats d_dt_bias, d_a_log, dskip;  // added to
};
void scan_backward(const ScanInput& in, const ScanShape& shape, ConstMatrix dy,
                   const ScanGradient& out);

}  // namespace qplan::math
