#include "executor/math/attention.h"

#include <limits>
#include <numeric>

#include "tests/executor/math/gradient.h"

using namespace qplan::math;

namespace {

// One sequence's q, k, v and the results over any of its queries and keys.
struct Sequence {
  AttentionShape shape;
  std::vector<std::int64_t> positions;
  std::vector<float> q, k, v, sinks;

  Sequence(AttentionShape s, std::int64_t tokens) : shape(s), positions(at(tokens)) {
    std::iota(positions.begin(), positions.end(), 0);
    q = random_floats(tokens * s.heads * s.head_dim, 1);
    k = random_floats(tokens * s.kv_heads * s.head_dim, 2);
    v = random_floats(tokens * s.kv_heads * s.v_head_dim, 3);
  }
  [[nodiscard]] std::int64_t tokens() const { return std::ssize(positions); }
  [[nodiscard]] std::int64_t out_size() const { return tokens() * shape.heads * shape.v_head_dim; }

  // All queries over keys first .. first + count - 1.
  [[nodiscard]] AttentionInput block(std::int64_t first, std::int64_t count) const {
    const auto matrix = [&](const std::vector<float>& x) {
      return ConstMatrix(x, tokens(), std::ssize(x) / tokens());
    };
    return {matrix(q), matrix(k).row_range(first, count), matrix(v).row_range(first, count),
            positions, std::span(positions).subspan(at(first), at(count))};
  }
  [[nodiscard]] Matrix out_view(std::vector<float>& x) const {
    return {x, tokens(), shape.heads * shape.v_head_dim};
  }
  [[nodiscard]] Matrix lse_view(std::vector<float>& x) const { return {x, tokens(), shape.heads}; }

  struct Result {
    std::vector<float> out, lse;
  };
  [[nodiscard]] Result forward(const std::vector<std::int64_t>& cuts) const {
    Result r{
        std::vector<float>(at(out_size())),
        std::vector<float>(at(tokens() * shape.heads), -std::numeric_limits<float>::infinity())};
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      Result part = r;
      attention(block(cuts[i], cuts[i + 1] - cuts[i]), shape, out_view(part.out),
                lse_view(part.lse));
      merge_attention(out_view(part.out), lse_view(part.lse), shape, out_view(r.out),
                      lse_view(r.lse));
    }
    if (!sinks.empty()) apply_sinks(sinks, shape, out_view(r.out), lse_view(r.lse));
    return r;
  }

  struct Gradients {
    std::vector<float> q, k, v, sinks;
  };
  [[nodiscard]] Gradients backward(std::vector<float> dout,
                                   const std::vector<std::int64_t>& cuts) const {
    Result r = forward(cuts);
    Gradients g{std::vector<float>(q.size()), std::vector<float>(k.size()),
                std::vector<float>(v.size()), std::vector<float>(sinks.size())};
    const auto view = [&](std::vector<float>& x) {
      return Matrix(x, tokens(), std::ssize(x) / tokens());
    };
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t first = cuts[i], count = cuts[i + 1] - cuts[i];
      attention_backward(block(first, count), shape, out_view(r.out), lse_view(r.lse),
                         out_view(dout), view(g.q), view(g.k).row_range(first, count),
                         view(g.v).row_range(first, count));
    }
    if (!sinks.empty()) {
      sinks_backward(sinks, shape, out_view(r.out), lse_view(r.lse), out_view(dout), g.sinks);
    }
    return g;
  }
};

const std::vector<AttentionShape> kShapes{
    {.heads = 2, .kv_heads = 2, .head_dim = 3, .v_head_dim = 3, .scale = 0.5},
    {.heads = 4, .kv_heads = 2, .head_dim = 3, .v_head_dim = 3, .scale = 0.5},
    {.heads = 2, .kv_heads = 2, .head_dim = 4, .v_head_dim = 2, .scale = 0.5},
    {.heads = 2, .kv_heads = 1, .head_dim = 3, .v_head_dim = 3, .scale = 0.5, .causal = false},
    {.heads = 2, .kv_heads = 1, .head_dim = 3, .v_head_dim = 3, .scale = 0.5, .window = 2}};

}  // namespace

TEST_CASE("the first token of a causal sequence sees itself only") {
  const Sequence s(kShapes[0], 3);
  const auto out = s.forward({0, 3}).out;
  for (std::size_t d = 0; d < 6; ++d) CHECK(out[d] == doctest::Approx(s.v[d]));
}

TEST_CASE("equal scores average the values") {
  Sequence s({.heads = 1, .kv_heads = 1, .head_dim = 1, .v_head_dim = 1}, 2);
  s.q = {0, 0};
  s.v = {2, 4};
  const auto r = s.forward({0, 2});
  CHECK(r.out[1] == doctest::Approx(3));
  CHECK(r.lse[1] == doctest::Approx(std::log(2)));
}

TEST_CASE("a window of one sees nothing but the token itself") {
  Sequence s({.heads = 1, .kv_heads = 1, .head_dim = 2, .v_head_dim = 2, .window = 1}, 4);
  const auto out = s.forward({0, 4}).out;
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == doctest::Approx(s.v[i]));
}

TEST_CASE("a sink takes its share: with equal logits, half") {
  Sequence s({.heads = 1, .kv_heads = 1, .head_dim = 1, .v_head_dim = 1}, 1);
  s.q = {0};
  s.v = {4};
  s.sinks = {0};
  CHECK(s.forward({0, 1}).out[0] == doctest::Approx(2));
}

TEST_CASE("attention's gradients are the slopes of its output") {
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    CAPTURE(i);
    for (const bool with_sinks : {false, true}) {
      Sequence s(kShapes[i], 4);
      if (with_sinks) s.sinks = random_floats(s.shape.heads, 5);
      const auto dout = random_floats(s.out_size(), 4);
      const auto loss = [&] { return dot(s.forward({0, 4}).out, dout); };
      const auto g = s.backward(dout, {0, 4});
      check_gradient(loss, s.q, g.q);
      check_gradient(loss, s.k, g.k);
      check_gradient(loss, s.v, g.v);
      check_gradient(loss, s.sinks, g.sinks);
    }
  }
}

TEST_CASE("keys in blocks give the whole sequence's output and gradients") {
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    CAPTURE(i);
    Sequence s(kShapes[i], 6);
    s.sinks = random_floats(s.shape.heads, 5);
    const auto dout = random_floats(s.out_size(), 4);
    const auto whole = s.forward({0, 6}), parts = s.forward({0, 1, 4, 6});
    for (std::size_t j = 0; j < whole.out.size(); ++j) {
      CHECK(parts.out[j] == doctest::Approx(whole.out[j]).epsilon(1e-5));
    }
    const auto g = s.backward(dout, {0, 6}), h = s.backward(dout, {0, 1, 4, 6});
    for (std::size_t j = 0; j < g.q.size(); ++j) CHECK(std::abs(g.q[j] - h.q[j]) < 1e-5);
    for (std::size_t j = 0; j < g.k.size(); ++j) CHECK(std::abs(g.k[j] - h.k[j]) < 1e-5);
    for (std::size_t j = 0; j < g.v.size(); ++j) CHECK(std::abs(g.v[j] - h.v[j]) < 1e-5);
  }
}

TEST_CASE("a query without keys yields nothing and hands nothing back") {
  const Sequence s(kShapes[0], 2);
  AttentionInput in = s.block(0, 1);
  const std::vector<std::int64_t> late{7};
  in.k_positions = late;
  std::vector<float> out(12, 9), lse(4), dq(12), dk(6), dv(6);
  attention(in, s.shape, s.out_view(out), s.lse_view(lse));
  CHECK(out == std::vector<float>(12, 0));
  CHECK(std::isinf(lse[0]));
  const auto dout = random_floats(12, 4);
  attention_backward(in, s.shape, s.out_view(out), s.lse_view(lse), ConstMatrix(dout, 2, 6),
                     {dq, 2, 6}, {dk, 1, 6}, {dv, 1, 6});
  CHECK(dk == std::vector<float>(6, 0));
  CHECK(dq == std::vector<float>(12, 0));
}
