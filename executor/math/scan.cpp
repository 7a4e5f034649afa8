#include "executor/math/scan.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "executor/math/sigmoid.h"

namespace qplan::math {
namespace {

// One head of a sequence.
class Head {
 public:
  Head(const ScanInput& in, const ScanShape& s, std::int64_t head)
      : in_(in), s_(s), head_(head), group_(head / (s.heads / s.groups)) {}

  [[nodiscard]] std::size_t size() const { return at(s_.head_dim * s_.state_size); }
  template <class T>
  [[nodiscard]] std::span<T> own(MatrixView<T> m, std::int64_t t) const {
    return m.row(t).subspan(at(head_ * s_.head_dim), at(s_.head_dim));
  }
  template <class T>
  [[nodiscard]] std::span<T> shared(MatrixView<T> m, std::int64_t t) const {
    return m.row(t).subspan(at(group_ * s_.state_size), at(s_.state_size));
  }
  [[nodiscard]] double raw_step(std::int64_t t) const {
    return static_cast<double>(in_.dt.at(t, head_)) + in_.dt_bias[at(head_)];
  }
  [[nodiscard]] double step(std::int64_t t) const {
    return std::max(softplus(raw_step(t)), s_.step_min);
  }
  [[nodiscard]] double rate() const { return -std::exp(static_cast<double>(in_.a_log[at(head_)])); }

  void advance(std::vector<double>& state, std::int64_t t) const {
    const double dt = step(t), kept = std::exp(rate() * dt);
    const ConstFloats x = own(in_.x, t), b = shared(in_.b, t);
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t j = 0; j < b.size(); ++j) {
        double& place = state[i * b.size() + j];
        place = kept * place + dt * static_cast<double>(x[i]) * static_cast<double>(b[j]);
      }
    }
  }

 private:
  const ScanInput& in_;
  const ScanShape& s_;
  std::int64_t head_, group_;
};

}  // namespace

void scan(const ScanInput& in, const ScanShape& s, Matrix y) {
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const Head head(in, s, h);
    std::vector<double> state(head.size(), 0.0);
    for (std::int64_t t = 0; t < y.rows; ++t) {
      head.advance(state, t);
      const ConstFloats x = head.own(in.x, t), c = head.shared(in.c, t);
      for (std::size_t i = 0; i < x.size(); ++i) {
        double sum = static_cast<double>(in.skip[at(h)]) * static_cast<double>(x[i]);
        for (std::size_t j = 0; j < c.size(); ++j) {
          sum += state[i * c.size() + j] * static_cast<double>(c[j]);
        }
        head.own(y, t)[i] = static_cast<float>(sum);
      }
    }
  }
}

void scan_backward(const ScanInput& in, const ScanShape& s, ConstMatrix dy, const ScanGradient& d) {
  for (std::int64_t t = 0; t < dy.rows; ++t) {
    std::ranges::fill(d.db.row(t), 0.0F);
    std::ranges::fill(d.dc.row(t), 0.0F);
  }
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const Head head(in, s, h);
    std::vector<std::vector<double>> left{std::vector<double>(head.size(), 0.0)};
    for (std::int64_t t = 0; t < dy.rows; ++t) {
      left.push_back(left.back());
      head.advance(left.back(), t);
    }
    std::vector<double> ds(head.size(), 0.0);  // of the state that a token leaves
    double of_bias = 0, of_rate = 0, of_skip = 0;
    const std::size_t width = at(s.state_size);
    for (std::int64_t t = dy.rows - 1; t >= 0; --t) {
      const std::vector<double>&after = left[at(t + 1)], &before = left[at(t)];
      const double dt = head.step(t), kept = std::exp(head.rate() * dt);
      const ConstFloats x = head.own(in.x, t), b = head.shared(in.b, t), c = head.shared(in.c, t);
      const ConstFloats out = head.own(dy, t);
      const Floats db = head.shared(d.db, t), dc = head.shared(d.dc, t);
      std::vector<double> of_b(width, 0.0), of_c(width, 0.0);
      double of_step = 0, of_kept = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        double dx = static_cast<double>(in.skip[at(h)]) * static_cast<double>(out[i]);
        of_skip += static_cast<double>(x[i]) * static_cast<double>(out[i]);
        for (std::size_t j = 0; j < width; ++j) {
          const std::size_t place = i * width + j;
          of_c[j] += after[place] * static_cast<double>(out[i]);
          ds[place] += static_cast<double>(out[i]) * static_cast<double>(c[j]);
          dx += dt * ds[place] * static_cast<double>(b[j]);
          of_b[j] += dt * ds[place] * static_cast<double>(x[i]);
          of_step += ds[place] * static_cast<double>(x[i]) * static_cast<double>(b[j]);
          of_kept += ds[place] * before[place];
          ds[place] *= kept;
        }
        head.own(d.dx, t)[i] = static_cast<float>(dx);
      }
      for (std::size_t j = 0; j < width; ++j) {
        db[j] += static_cast<float>(of_b[j]);
        dc[j] += static_cast<float>(of_c[j]);
      }
      of_step += of_kept * kept * head.rate();
      of_rate += of_kept * kept * dt;
      const bool held = softplus(head.raw_step(t)) < s.step_min;
      const double of_raw = held ? 0 : of_step * sigmoid(head.raw_step(t));
      d.ddt.at(t, h) = static_cast<float>(of_raw);
      of_bias += of_raw;
    }
    d.d_dt_bias[at(h)] += static_cast<float>(of_bias);
    d.d_a_log[at(h)] += static_cast<float>(of_rate * head.rate());
    d.dskip[at(h)] += static_cast<float>(of_skip);
  }
}

}  // namespace qplan::math
