#include "executor/math/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "executor/math/sigmoid.h"

namespace qplan::math {
namespace {

constexpr double kNormEpsilon = 1e-6;  // l2norm's default, transformers 5.23

// One value head of a sequence: its state after every token.
class HeadStates {
 public:
  HeadStates(const DeltaRuleInput& in, const DeltaRuleShape& s, std::int64_t head)
      : in_(in), s_(s), head_(head), key_head_(head / (s.value_heads / s.key_heads)) {}

  [[nodiscard]] std::size_t size() const { return at(s_.key_dim * s_.value_dim); }
  [[nodiscard]] ConstFloats q(std::int64_t t) const { return key_row(in_.q, t); }
  [[nodiscard]] ConstFloats k(std::int64_t t) const { return key_row(in_.k, t); }
  [[nodiscard]] ConstFloats v(std::int64_t t) const {
    return in_.v.row(t).subspan(at(head_ * s_.value_dim), at(s_.value_dim));
  }
  [[nodiscard]] Floats key_part(Matrix m, std::int64_t t) const {
    return m.row(t).subspan(at(key_head_ * s_.key_dim), at(s_.key_dim));
  }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(s_.key_dim)); }

  // S^T x, by a state's columns.
  [[nodiscard]] std::vector<double> read(const std::vector<double>& state, ConstFloats x) const {
    std::vector<double> sum(at(s_.value_dim), 0.0);
    for (std::int64_t i = 0; i < s_.key_dim; ++i) {
      for (std::int64_t j = 0; j < s_.value_dim; ++j) {
        sum[at(j)] += state[at(i * s_.value_dim + j)] * static_cast<double>(x[at(i)]);
      }
    }
    return sum;
  }

  // What a token finds, decayed, becomes what it leaves. Returns v - S^T k.
  std::vector<double> step(std::vector<double>& state, std::int64_t t) const {
    const double kept = std::exp(static_cast<double>(in_.decay.at(t, head_)));
    for (double& x : state) x *= kept;
    std::vector<double> error = read(state, k(t));
    for (std::size_t j = 0; j < error.size(); ++j) error[j] = v(t)[j] - error[j];
    const double strength = in_.strength.at(t, head_);
    for (std::int64_t i = 0; i < s_.key_dim; ++i) {
      for (std::int64_t j = 0; j < s_.value_dim; ++j) {
        state[at(i * s_.value_dim + j)] +=
            strength * static_cast<double>(k(t)[at(i)]) * error[at(j)];
      }
    }
    return error;
  }

 private:
  [[nodiscard]] ConstFloats key_row(ConstMatrix m, std::int64_t t) const {
    return m.row(t).subspan(at(key_head_ * s_.key_dim), at(s_.key_dim));
  }

  const DeltaRuleInput& in_;
  const DeltaRuleShape& s_;
  std::int64_t head_, key_head_;
};

}  // namespace

void delta_rule(const DeltaRuleInput& in, const DeltaRuleShape& s, Matrix out) {
  for (std::int64_t head = 0; head < s.value_heads; ++head) {
    const HeadStates states(in, s, head);
    std::vector<double> state(states.size(), 0.0);
    for (std::int64_t t = 0; t < out.rows; ++t) {
      states.step(state, t);
      const std::vector<double> sum = states.read(state, states.q(t));
      for (std::int64_t j = 0; j < s.value_dim; ++j) {
        out.at(t, head * s.value_dim + j) = static_cast<float>(states.scale() * sum[at(j)]);
      }
    }
  }
}

void delta_rule_backward(const DeltaRuleInput& in, const DeltaRuleShape& s, ConstMatrix dout,
                         const DeltaRuleGradient& d) {
  for (std::int64_t t = 0; t < dout.rows; ++t) {
    std::ranges::fill(d.dq.row(t), 0.0F);
    std::ranges::fill(d.dk.row(t), 0.0F);
  }
  const std::int64_t tokens = dout.rows, width = s.value_dim;
  for (std::int64_t head = 0; head < s.value_heads; ++head) {
    const HeadStates states(in, s, head);
    std::vector<std::vector<double>> left{std::vector<double>(states.size(), 0.0)}, errors;
    for (std::int64_t t = 0; t < tokens; ++t) {
      left.push_back(left.back());
      errors.push_back(states.step(left.back(), t));
    }
    std::vector<double> ds(states.size(), 0.0);  // of the state that a token leaves
    for (std::int64_t t = tokens - 1; t >= 0; --t) {
      const std::vector<double>&after = left[at(t + 1)], &before = left[at(t)],
            &error = errors[at(t)];
      const ConstFloats q = states.q(t), k = states.k(t);
      const Floats dq = states.key_part(d.dq, t), dk = states.key_part(d.dk, t);
      const double strength = in.strength.at(t, head);
      const double kept = std::exp(static_cast<double>(in.decay.at(t, head)));
      const auto dy = [&](std::int64_t j) {
        return states.scale() * static_cast<double>(dout.at(t, head * width + j));
      };
      // out = S^T q, and S += strength k error^T.
      std::vector<double> derror(at(width), 0.0);
      double dstrength = 0;
      for (std::int64_t i = 0; i < s.key_dim; ++i) {
        double of_q = 0, of_k = 0;
        for (std::int64_t j = 0; j < width; ++j) {
          const std::size_t at_ij = at(i * width + j);
          of_q += after[at_ij] * dy(j);
          ds[at_ij] += static_cast<double>(q[at(i)]) * dy(j);
          of_k += ds[at_ij] * strength * error[at(j)];
          derror[at(j)] += ds[at_ij] * static_cast<double>(k[at(i)]);
        }
        dq[at(i)] += static_cast<float>(of_q);
        dk[at(i)] += static_cast<float>(of_k);
      }
      for (std::int64_t j = 0; j < width; ++j) {
        dstrength += derror[at(j)] * error[at(j)];
        derror[at(j)] *= strength;
        d.dv.at(t, head * width + j) = static_cast<float>(derror[at(j)]);
      }
      d.dstrength.at(t, head) = static_cast<float>(dstrength);
      // error = v - S^T k of the decayed state, which is `kept` times the one before.
      double ddecay = 0;
      for (std::int64_t i = 0; i < s.key_dim; ++i) {
        double of_k = 0;
        for (std::int64_t j = 0; j < width; ++j) {
          const std::size_t at_ij = at(i * width + j);
          of_k -= kept * before[at_ij] * derror[at(j)];
          ds[at_ij] -= static_cast<double>(k[at(i)]) * derror[at(j)];
          ddecay += ds[at_ij] * kept * before[at_ij];
          ds[at_ij] *= kept;
        }
        dk[at(i)] += static_cast<float>(of_k);
      }
      d.ddecay.at(t, head) = static_cast<float>(ddecay);
    }
  }
}

void l2_norm(ConstMatrix x, Matrix y, Floats r) {
  for (std::int64_t row = 0; row < x.rows; ++row) {
    double squares = 0;
    for (const float value : x.row(row)) squares += static_cast<double>(value) * value;
    const double scale = 1 / std::sqrt(squares + kNormEpsilon);
    r[at(row)] = static_cast<float>(scale);
    for (std::int64_t i = 0; i < x.cols; ++i) {
      y.at(row, i) = static_cast<float>(scale * x.at(row, i));
    }
  }
}

void l2_norm_backward(ConstMatrix y, ConstFloats r, ConstMatrix dy, Matrix dx) {
  for (std::int64_t row = 0; row < y.rows; ++row) {
    double dot = 0;
    for (std::int64_t i = 0; i < y.cols; ++i) {
      dot += static_cast<double>(y.at(row, i)) * dy.at(row, i);
    }
    for (std::int64_t i = 0; i < y.cols; ++i) {
      dx.at(row, i) = static_cast<float>(r[at(row)] * (dy.at(row, i) - y.at(row, i) * dot));
    }
  }
}

void decay_gates(const DecayInput& in, Matrix decay, Matrix strength) {
  for (std::int64_t t = 0; t < in.a.rows; ++t) {
    for (std::int64_t h = 0; h < in.a.cols; ++h) {
      const double step = static_cast<double>(in.a.at(t, h)) + in.dt_bias[at(h)];
      decay.at(t, h) =
          static_cast<float>(-std::exp(static_cast<double>(in.a_log[at(h)])) * softplus(step));
      strength.at(t, h) = static_cast<float>(sigmoid(in.b.at(t, h)));
    }
  }
}

void decay_gates_backward(const DecayInput& in, ConstMatrix ddecay, ConstMatrix dstrength,
                          Matrix da, Matrix db, Floats d_dt_bias, Floats d_a_log) {
  for (std::int64_t h = 0; h < in.a.cols; ++h) {
    const double rate = -std::exp(static_cast<double>(in.a_log[at(h)]));
    double of_bias = 0, of_log = 0;
    for (std::int64_t t = 0; t < in.a.rows; ++t) {
      const double step = static_cast<double>(in.a.at(t, h)) + in.dt_bias[at(h)];
      const double s = sigmoid(in.b.at(t, h)), d = ddecay.at(t, h);
      db.at(t, h) = static_cast<float>(dstrength.at(t, h) * s * (1 - s));
      const double of_step = d * rate * sigmoid(step);
      da.at(t, h) = static_cast<float>(of_step);
      of_bias += of_step;
      of_log += d * rate * softplus(step);
    }
    d_dt_bias[at(h)] += static_cast<float>(of_bias);
    d_a_log[at(h)] += static_cast<float>(of_log);
  }
}

}  // namespace qplan::math
