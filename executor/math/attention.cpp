#include "executor/math/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace qplan::math {
namespace {

constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

double dot(ConstFloats a, ConstFloats b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

void add_scaled(double factor, ConstFloats x, Floats y) {
  for (std::size_t i = 0; i < x.size(); ++i) y[i] += static_cast<float>(factor * x[i]);
}

template <class T>
std::span<T> head_of(MatrixView<T> m, std::int64_t row, std::int64_t head, std::int64_t dim) {
  return m.row(row).subspan(at(head * dim), at(dim));
}

bool sees(const AttentionShape& shape, std::int64_t query, std::int64_t key) {
  if (shape.causal && key > query) return false;
  return shape.window == 0 || query - key < shape.window;
}

void check_sizes(const AttentionInput& in, const AttentionShape& s) {
  QPLAN_CHECK(in.q.cols == s.heads * s.head_dim && in.k.cols == s.kv_heads * s.head_dim &&
                  in.v.cols == s.kv_heads * s.v_head_dim && in.k.rows == in.v.rows &&
                  s.heads % s.kv_heads == 0,
              "attention's operands have its heads");
  QPLAN_CHECK(in.q.rows == std::ssize(in.q_positions) && in.k.rows == std::ssize(in.k_positions),
              "attention knows every row's position");
}

}  // namespace

void attention(const AttentionInput& in, const AttentionShape& s, Matrix out, Matrix lse) {
  check_sizes(in, s);
  const std::int64_t group = s.heads / s.kv_heads;
  std::vector<double> scores(at(in.k.rows)), sum(at(s.v_head_dim));
  for (std::int64_t i = 0; i < in.q.rows; ++i) {
    for (std::int64_t head = 0; head < s.heads; ++head) {
      const ConstFloats q = head_of(in.q, i, head, s.head_dim);
      double largest = kNoKeys, total = 0;
      for (std::int64_t j = 0; j < in.k.rows; ++j) {
        const bool seen = sees(s, in.q_positions[at(i)], in.k_positions[at(j)]);
        scores[at(j)] =
            seen ? s.scale * dot(q, head_of(in.k, j, head / group, s.head_dim)) : kNoKeys;
        largest = std::max(largest, scores[at(j)]);
      }
      std::fill(sum.begin(), sum.end(), 0.0);
      for (std::int64_t j = 0; j < in.k.rows; ++j) {
        if (scores[at(j)] == kNoKeys) continue;
        const double weight = std::exp(scores[at(j)] - largest);
        const ConstFloats v = head_of(in.v, j, head / group, s.v_head_dim);
        for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += weight * v[d];
        total += weight;
      }
      const Floats result = head_of(out, i, head, s.v_head_dim);
      for (std::size_t d = 0; d < sum.size(); ++d) {
        result[d] = total > 0 ? static_cast<float>(sum[d] / total) : 0.0F;
      }
      lse.at(i, head) = static_cast<float>(total > 0 ? largest + std::log(total) : kNoKeys);
    }
  }
}

double query_temperature(std::int64_t position, std::int64_t step, double scale) {
  return 1 + scale * std::log1p(static_cast<double>((position + 1) / step));
}

void merge_attention(ConstMatrix part_out, ConstMatrix part_lse, const AttentionShape& s,
                     Matrix out, Matrix lse) {
  for (std::int64_t i = 0; i < out.rows; ++i) {
    for (std::int64_t head = 0; head < s.heads; ++head) {
      const double mine = lse.at(i, head), theirs = part_lse.at(i, head);
      const double largest = std::max(mine, theirs);
      if (largest == kNoKeys) continue;
      const double both = largest + std::log(std::exp(mine - largest) + std::exp(theirs - largest));
      const double keep = std::exp(mine - both), take = std::exp(theirs - both);
      const Floats o = head_of(out, i, head, s.v_head_dim);
      const ConstFloats p = head_of(part_out, i, head, s.v_head_dim);
      for (std::size_t d = 0; d < o.size(); ++d) {
        o[d] = static_cast<float>(keep * o[d] + take * p[d]);
      }
      lse.at(i, head) = static_cast<float>(both);
    }
  }
}

void apply_sinks(ConstFloats sinks, const AttentionShape& s, Matrix out, Matrix lse) {
  for (std::int64_t i = 0; i < out.rows; ++i) {
    for (std::int64_t head = 0; head < s.heads; ++head) {
      const double mine = lse.at(i, head), sink = sinks[at(head)];
      const double largest = std::max(mine, sink);
      const double both = largest + std::log(std::exp(mine - largest) + std::exp(sink - largest));
      for (float& o : head_of(out, i, head, s.v_head_dim)) {
        o = static_cast<float>(std::exp(mine - both) * o);
      }
      lse.at(i, head) = static_cast<float>(both);
    }
  }
}

void attention_backward(const AttentionInput& in, const AttentionShape& s, ConstMatrix out,
                        ConstMatrix lse, ConstMatrix dout, Matrix dq, Matrix dk, Matrix dv) {
  check_sizes(in, s);
  const std::int64_t group = s.heads / s.kv_heads;
  for (std::int64_t i = 0; i < in.q.rows; ++i) {
    for (std::int64_t head = 0; head < s.heads; ++head) {
      if (std::isinf(lse.at(i, head))) continue;
      const std::int64_t shared = head / group;
      const ConstFloats q = head_of(in.q, i, head, s.head_dim);
      const ConstFloats d = head_of(dout, i, head, s.v_head_dim);
      const double delta = dot(d, head_of(out, i, head, s.v_head_dim));
      for (std::int64_t j = 0; j < in.k.rows; ++j) {
        if (!sees(s, in.q_positions[at(i)], in.k_positions[at(j)])) continue;
        const ConstFloats k = head_of(in.k, j, shared, s.head_dim);
        const double p = std::exp(s.scale * dot(q, k) - lse.at(i, head));
        add_scaled(p, d, head_of(dv, j, shared, s.v_head_dim));
        const double ds = p * (dot(d, head_of(in.v, j, shared, s.v_head_dim)) - delta) * s.scale;
        add_scaled(ds, k, head_of(dq, i, head, s.head_dim));
        add_scaled(ds, q, head_of(dk, j, shared, s.head_dim));
      }
    }
  }
}

void sinks_backward(ConstFloats sinks, const AttentionShape& s, ConstMatrix out, ConstMatrix lse,
                    ConstMatrix dout, Floats dsinks) {
  for (std::int64_t head = 0; head < s.heads; ++head) {
    double sum = 0;
    for (std::int64_t i = 0; i < out.rows; ++i) {
      sum -= std::exp(static_cast<double>(sinks[at(head)]) - lse.at(i, head)) *
             dot(head_of(dout, i, head, s.v_head_dim), head_of(out, i, head, s.v_head_dim));
    }
    dsinks[at(head)] += static_cast<float>(sum);
  }
}

}  // namespace qplan::math
