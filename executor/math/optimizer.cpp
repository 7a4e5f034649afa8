#include "executor/math/optimizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

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

void sgd(const SgdSettings& s, ConstFloats gradient, double gradient_scale, Floats parameters,
         Floats momentum) {
  QPLAN_CHECK(gradient.size() == parameters.size() && momentum.size() == parameters.size(),
              "a gradient and a momentum a parameter");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double g = gradient[i] * gradient_scale + s.weight_decay * parameters[i];
    const double m = s.momentum * momentum[i] + g;
    parameters[i] = static_cast<float>(parameters[i] - s.lr * m);
    momentum[i] = static_cast<float>(m);
  }
}

namespace {

// Square or wide, in doubles.
struct Wide {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> values;
  [[nodiscard]] double& at(std::int64_t r, std::int64_t c) {
    return values[math::at(r * cols + c)];
  }
  [[nodiscard]] double at(std::int64_t r, std::int64_t c) const {
    return values[math::at(r * cols + c)];
  }
};

Wide zeros(std::int64_t rows, std::int64_t cols) {
  return {rows, cols, std::vector<double>(at(rows * cols))};
}

Wide times_own_transpose(const Wide& x) {
  Wide product = zeros(x.rows, x.rows);
  for (std::int64_t i = 0; i < x.rows; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < x.cols; ++k) sum += x.at(i, k) * x.at(j, k);
      product.at(i, j) = product.at(j, i) = sum;
    }
  }
  return product;
}

Wide times(const Wide& a, const Wide& b) {
  Wide product = zeros(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.cols; ++k) {
      for (std::int64_t j = 0; j < b.cols; ++j) product.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return product;
}

// a x + b y, in x.
void combine(double a, Wide& x, double b, const Wide& y) {
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    x.values[i] = a * x.values[i] + b * y.values[i];
  }
}

}  // namespace

void orthogonalize(Matrix matrix) {
  const bool tall = matrix.rows > matrix.cols;
  Wide x = tall ? zeros(matrix.cols, matrix.rows) : zeros(matrix.rows, matrix.cols);
  double squares = 0;
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    for (std::int64_t c = 0; c < matrix.cols; ++c) {
      const double v = matrix.at(r, c);
      (tall ? x.at(c, r) : x.at(r, c)) = v;
      squares += v * v;
    }
  }
  constexpr double kEpsilon = 1e-7;  // muon.py's
  for (double& v : x.values) v /= std::sqrt(squares) + kEpsilon;
  constexpr int kIterations = 5;
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  for (int i = 0; i < kIterations; ++i) {
    Wide a = times_own_transpose(x);
    const Wide square = times(a, a);
    combine(kB, a, kC, square);
    combine(kA, x, 1, times(a, x));
  }
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    for (std::int64_t c = 0; c < matrix.cols; ++c) {
      matrix.at(r, c) = static_cast<float>(tall ? x.at(c, r) : x.at(r, c));
    }
  }
}

void muon(const MuonSettings& s, ConstMatrix gradient, double gradient_scale, Matrix parameters,
          Matrix momentum) {
  QPLAN_CHECK(gradient.rows == parameters.rows && gradient.cols == parameters.cols &&
                  momentum.rows == parameters.rows && momentum.cols == parameters.cols,
              "a gradient and a momentum a parameter");
  std::vector<float> step(at(parameters.rows * parameters.cols));
  const Matrix update(Floats(step), parameters.rows, parameters.cols);
  for (std::int64_t r = 0; r < parameters.rows; ++r) {
    for (std::int64_t c = 0; c < parameters.cols; ++c) {
      const double g = gradient.at(r, c) * gradient_scale;
      const double m = s.momentum * momentum.at(r, c) + (1 - s.momentum) * g;
      momentum.at(r, c) = static_cast<float>(m);
      update.at(r, c) = static_cast<float>(s.momentum * m + (1 - s.momentum) * g);
    }
  }
  orthogonalize(update);
  const double scale =
      0.2 * std::sqrt(static_cast<double>(std::max(parameters.rows, parameters.cols)));
  for (std::int64_t r = 0; r < parameters.rows; ++r) {
    for (std::int64_t c = 0; c < parameters.cols; ++c) {
      const double decayed = parameters.at(r, c) * (1 - s.lr * s.weight_decay);
      parameters.at(r, c) = static_cast<float>(decayed - s.lr * scale * update.at(r, c));
    }
  }
}

void adafactor(const AdafactorSettings& s, std::int64_t step, ConstMatrix gradient,
               double gradient_scale, Matrix parameters, Floats means, bool is_vector) {
  const std::int64_t rows = parameters.rows, cols = parameters.cols;
  QPLAN_CHECK(gradient.rows == rows && gradient.cols == cols &&
                  std::ssize(means) == (is_vector ? rows * cols : rows + cols),
              "a gradient a parameter, and a mean a row and column");
  // Defaults of transformers' Adafactor: decay_rate, eps[0], clip_threshold.
  constexpr double kDecayRate = -0.8, kEpsilon = 1e-30, kLargest = 1;
  const double decay = 1 - std::pow(static_cast<double>(step), kDecayRate);
  std::vector<double> squares(means.size());
  const auto square = [&](std::int64_t r, std::int64_t c) {
    const double g = gradient.at(r, c) * gradient_scale;
    return g * g + kEpsilon;
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      if (is_vector) {
        squares[at(r * cols + c)] = square(r, c);
      } else {
        squares[at(r)] += square(r, c) / static_cast<double>(cols);
        squares[at(rows + c)] += square(r, c) / static_cast<double>(rows);
      }
    }
  }
  double mean_of_rows = 0;
  for (std::size_t i = 0; i < means.size(); ++i) {
    means[i] = static_cast<float>(decay * means[i] + (1 - decay) * squares[i]);
    if (i < at(rows)) mean_of_rows += means[i] / static_cast<double>(rows);
  }
  const auto step_of = [&](std::int64_t r, std::int64_t c) {
    const double g = gradient.at(r, c) * gradient_scale;
    const double mean = is_vector ? means[at(r * cols + c)]
                                  : static_cast<double>(means[at(r)]) / mean_of_rows *
                                        static_cast<double>(means[at(rows + c)]);
    return g / std::sqrt(mean);
  };
  double sum = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) sum += step_of(r, c) * step_of(r, c);
  }
  const double rms = std::sqrt(sum / static_cast<double>(rows * cols));
  const double scale = s.lr / std::max(1.0, rms / kLargest);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const double decayed = parameters.at(r, c) * (1 - s.lr * s.weight_decay);
      parameters.at(r, c) = static_cast<float>(decayed - scale * step_of(r, c));
    }
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
