#include "executor/math/optimizer.h"

#include <algorithm>
#include <cmath>

namespace qplan::math {

void adamw(const AdamWSettings& s, std::int64_t step, ConstFloats gradient, double gradient_scale,
           Floats parameters, Floats moment1, Floats moment2) {
  QPLAN_CHECK(gradient.size() == parameters.size() && moment1.size() == parameters.size() &&
                  moment2.size() == parameters.size(),
              "a gradient and two moments a parameter");
  const double correction1 = 1 - std::pow(s.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(s.beta2, static_cast<double>(step));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double g = gradient[i] * gradient_scale;
    const double m = s.beta1 * moment1[i] + (1 - s.beta1) * g;
    const double v = s.beta2 * moment2[i] + (1 - s.beta2) * g * g;
    const double step_size = m / correction1 / (std::sqrt(v / correction2) + s.epsilon);
    parameters[i] =
        static_cast<float>(parameters[i] * (1 - s.lr * s.weight_decay) - s.lr * step_size);
    moment1[i] = static_cast<float>(m);
    moment2[i] = static_cast<float>(v);
  }
}

double sum_of_squares(ConstFloats x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return sum;
}

double clip_scale(double norm, double limit) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

}  // namespace qplan::math
