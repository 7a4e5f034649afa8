#pragma once
// Functions of one number that gates share.

#include <cmath>

namespace qplan::math {

inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// log(1 + exp(x)), without overflow.
inline double softplus(double x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

}  // namespace qplan::math
