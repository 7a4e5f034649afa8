#include "executor/math/rope.h"

#include <algorithm>
#include <cmath>

namespace qplan::math {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// `angle(r, i)`: of pair i of row r.
template <class Angle>
void turn(Matrix x, const RopeShape& shape, std::int64_t pairs, Angle angle) {
  const bool halves = shape.pairs == RopePairs::halves;
  QPLAN_CHECK(x.cols == shape.heads * shape.head_dim && shape.first + 2 * pairs <= shape.head_dim,
              "rope turns whole heads");
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double cosine = shape.magnitude * std::cos(angle(r, i));
      const double sine = shape.magnitude * std::sin(angle(r, i));
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        const std::int64_t begin = head * shape.head_dim + shape.first;
        float& a = x.at(r, begin + (halves ? i : 2 * i));
        float& b = x.at(r, begin + (halves ? i + pairs : 2 * i + 1));
        const double old_a = a, old_b = b;
        a = static_cast<float>(old_a * cosine - old_b * sine);
        b = static_cast<float>(old_a * sine + old_b * cosine);
      }
    }
  }
}

void turn_by_position(Matrix x, const RopeShape& shape, std::span<const std::int64_t> positions,
                      std::span<const double> frequencies, double direction) {
  QPLAN_CHECK(x.rows == std::ssize(positions), "rope turns each row at one position");
  turn(x, shape, std::ssize(frequencies), [&](std::int64_t r, std::int64_t i) {
    return direction * static_cast<double>(positions[at(r)]) * frequencies[at(i)];
  });
}

void turn_by_angle(Matrix x, const RopeShape& shape, std::span<const double> angles,
                   double direction) {
  const std::int64_t pairs = x.rows == 0 ? 0 : std::ssize(angles) / x.rows;
  QPLAN_CHECK(pairs * x.rows == std::ssize(angles), "rope has as many angles a row");
  turn(x, shape, pairs,
       [&](std::int64_t r, std::int64_t i) { return direction * angles[at(r * pairs + i)]; });
}

// Low frequencies are divided by the factor, high ones stay, those between are mixed by a ramp over
// the pairs that turn beta_fast to beta_slow times within the original positions.
void stretch_yarn(std::vector<double>& frequencies, double theta, double dim,
                  const RopeScaling& scaling) {
  const auto pair_that_turns = [&](double times) {
    return dim * std::log(scaling.original_positions / (times * kTwoPi)) / (2 * std::log(theta));
  };
  double low = pair_that_turns(scaling.beta_fast), high = pair_that_turns(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // as transformers avoids the division by zero
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= 1 - ramp + ramp / scaling.factor;
  }
}

// Llama 3.1: long wavelengths are stretched, short ones stay, those between are mixed.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double turns = scaling.original_positions * frequency / kTwoPi;
  const double keep = std::clamp(
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0,
      1.0);
  return frequency * (keep + (1 - keep) / scaling.factor);
}

}  // namespace

std::vector<double> rope_frequencies(double theta, std::int64_t dim,
                                     const std::optional<RopeScaling>& scaling) {
  std::vector<double> frequencies(at(dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
  }
  if (!scaling) return frequencies;
  if (scaling->kind == RopeScalingKind::yarn) {
    stretch_yarn(frequencies, theta, static_cast<double>(dim), *scaling);
    return frequencies;
  }
  QPLAN_CHECK(scaling->kind != RopeScalingKind::other, "only known scalings are executed");
  for (double& f : frequencies) {
    f = scaling->kind == RopeScalingKind::llama3 ? llama3_frequency(f, *scaling)
                                                 : f / scaling->factor;
  }
  return frequencies;
}

double latent_score_scale(const std::optional<RopeScaling>& scaling) {
  if (!scaling || scaling->mscale_all_dim == 0) return 1;
  const double magnitude = yarn_magnitude(scaling->factor, scaling->mscale_all_dim);
  return magnitude * magnitude;
}

void rope(Matrix x, const RopeShape& shape, std::span<const std::int64_t> positions,
          std::span<const double> frequencies) {
  turn_by_position(x, shape, positions, frequencies, 1);
}

void rope_backward(Matrix dx, const RopeShape& shape, std::span<const std::int64_t> positions,
                   std::span<const double> frequencies) {
  turn_by_position(dx, shape, positions, frequencies, -1);
}

void rope(Matrix x, const RopeShape& shape, std::span<const double> angles) {
  turn_by_angle(x, shape, angles, 1);
}

void rope_backward(Matrix dx, const RopeShape& shape, std::span<const double> angles) {
  turn_by_angle(dx, shape, angles, -1);
}

}  // namespace qplan::math
