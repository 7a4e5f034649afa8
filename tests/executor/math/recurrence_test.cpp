// Convolutions, the gated delta rule and Mamba-2's scan: by hand, and their gradients as slopes.

#include <vector>

#include "executor/math/causal_conv.h"
#include "executor/math/delta_rule.h"
#include "executor/math/scan.h"
#include "executor/math/sigmoid.h"
#include "tests/executor/math/gradient.h"

using namespace qplan::math;

namespace {

using Numbers = std::vector<float>;

double silu(double x) {
  return x * sigmoid(x);
}

}  // namespace

TEST_CASE("a causal convolution sees zeros before a sequence, and nothing behind a token") {
  const Numbers x{1, 2, 3}, weight{10, 1}, bias{0.5};
  Numbers y(3);
  causal_conv({x, 3, 1}, {weight, 1, 2}, bias, {y, 3, 1});
  CHECK(y[0] == doctest::Approx(silu(1.5)));
  CHECK(y[1] == doctest::Approx(silu(10 + 2 + 0.5)));
  CHECK(y[2] == doctest::Approx(silu(20 + 3 + 0.5)));
}

TEST_CASE("a causal convolution's gradients are slopes") {
  const std::int64_t tokens = 5, channels = 3, taps = 4;
  Numbers x = random_floats(tokens * channels, 1), w = random_floats(channels * taps, 2),
          b = random_floats(channels, 3);
  const Numbers dy = random_floats(tokens * channels, 4);
  const auto loss = [&] {
    Numbers y(x.size());
    causal_conv({x, tokens, channels}, {w, channels, taps}, b, {y, tokens, channels});
    return dot(y, dy);
  };
  Numbers dx(x.size()), dw(w.size()), db(b.size());
  causal_conv_backward({x, tokens, channels}, {w, channels, taps}, b, {dy, tokens, channels},
                       {dx, tokens, channels}, {dw, channels, taps}, db);
  check_gradient(loss, x, dx);
  check_gradient(loss, w, dw);
  check_gradient(loss, b, db);
}

// Of one head with one number: S = exp(g) S; S += beta k (v - k S); out = S q.
TEST_CASE("the delta rule writes what a key does not find, and forgets by its decay") {
  const Numbers q{2, 3}, k{1, 0.5}, v{4, 6}, decay{-1, -0.5}, strength{0.5, 0.25};
  Numbers out(2);
  delta_rule({{q, 2, 1}, {k, 2, 1}, {v, 2, 1}, {decay, 2, 1}, {strength, 2, 1}}, {1, 1, 1, 1},
             {out, 2, 1});
  const double first = 0.5 * 1 * 4;
  const double kept = std::exp(-0.5) * first;
  const double second = kept + 0.25 * 0.5 * (6 - 0.5 * kept);
  CHECK(out[0] == doctest::Approx(2 * first));
  CHECK(out[1] == doctest::Approx(3 * second));
}

TEST_CASE("the delta rule's gradients are slopes, of keys that several heads share") {
  const std::int64_t n = 6;
  const DeltaRuleShape shape{.key_heads = 2, .value_heads = 4, .key_dim = 3, .value_dim = 2};
  Numbers q = random_floats(n * 6, 1), k = random_floats(n * 6, 2, 0.5F),
          v = random_floats(n * 8, 3), decay = random_floats(n * 4, 4, 0.5F),
          strength = random_floats(n * 4, 5);
  const Numbers dy = random_floats(n * 8, 6);
  const auto input = [&] {
    return DeltaRuleInput{{q, n, 6}, {k, n, 6}, {v, n, 8}, {decay, n, 4}, {strength, n, 4}};
  };
  const auto loss = [&] {
    Numbers out(dy.size());
    delta_rule(input(), shape, {out, n, 8});
    return dot(out, dy);
  };
  Numbers dq(q.size()), dk(k.size()), dv(v.size()), dg(decay.size()), db(strength.size());
  delta_rule_backward(input(), shape, {dy, n, 8},
                      {{dq, n, 6}, {dk, n, 6}, {dv, n, 8}, {dg, n, 4}, {db, n, 4}});
  check_gradient(loss, q, dq);
  check_gradient(loss, k, dk);
  check_gradient(loss, v, dv);
  check_gradient(loss, decay, dg);
  check_gradient(loss, strength, db);
}

TEST_CASE("gradients of decays, strengths and heads' norms are slopes") {
  const std::int64_t n = 4, heads = 3;
  Numbers a = random_floats(n * heads, 1), b = random_floats(n * heads, 2),
          bias = random_floats(heads, 3), log = random_floats(heads, 4);
  const Numbers d_decay = random_floats(n * heads, 5), d_strength = random_floats(n * heads, 6);
  const auto input = [&] { return DecayInput{{a, n, heads}, {b, n, heads}, bias, log}; };
  const auto loss = [&] {
    Numbers decay(a.size()), strength(a.size());
    decay_gates(input(), {decay, n, heads}, {strength, n, heads});
    return dot(decay, d_decay) + dot(strength, d_strength);
  };
  Numbers da(a.size()), db(b.size()), dbias(bias.size()), dlog(log.size());
  decay_gates_backward(input(), {d_decay, n, heads}, {d_strength, n, heads}, {da, n, heads},
                       {db, n, heads}, dbias, dlog);
  check_gradient(loss, a, da);
  check_gradient(loss, b, db);
  check_gradient(loss, bias, dbias);
  check_gradient(loss, log, dlog);

  Numbers x = random_floats(n * heads, 7), y(x.size()), r(n), dx(x.size());
  const auto normed = [&] {
    Numbers out(x.size()), scale(n);
    l2_norm({x, n, heads}, {out, n, heads}, scale);
    return dot(out, d_decay);
  };
  l2_norm({x, n, heads}, {y, n, heads}, r);
  CHECK(y[0] * y[0] + y[1] * y[1] + y[2] * y[2] == doctest::Approx(1).epsilon(1e-4));
  l2_norm_backward({y, n, heads}, r, {d_decay, n, heads}, {dx, n, heads});
  check_gradient(normed, x, dx);
}

TEST_CASE("Mamba-2's scan steps by a softplus, no less than its least step") {
  const Numbers x{2, 3}, b{0.5, 1}, c{1, 2}, dt{0, -20}, zero{0}, log{0.5}, skip{0.25};
  Numbers y(2);
  ScanInput in{{x, 2, 1}, {b, 2, 1}, {c, 2, 1}, {dt, 2, 1}, zero, log, skip};
  scan(in, {1, 1, 1, 1, 0.125}, {y, 2, 1});
  const double first = std::log(2.0) * 2 * 0.5;
  const double second = std::exp(-std::exp(0.5) * 0.125) * first + 0.125 * 3;
  CHECK(y[0] == doctest::Approx(first + 0.25 * 2));
  CHECK(y[1] == doctest::Approx(2 * second + 0.25 * 3));
}

TEST_CASE("the scan's gradients are slopes, of B and C that several heads share") {
  const std::int64_t n = 5;
  const ScanShape shape{.heads = 4, .groups = 2, .head_dim = 2, .state_size = 3, .step_min = 1e-3};
  Numbers x = random_floats(n * 8, 1), b = random_floats(n * 6, 2), c = random_floats(n * 6, 3),
          dt = random_floats(n * 4, 4), bias = random_floats(4, 5), log = random_floats(4, 6),
          skip = random_floats(4, 7);
  const Numbers dy = random_floats(n * 8, 8);
  const auto input = [&] {
    return ScanInput{{x, n, 8}, {b, n, 6}, {c, n, 6}, {dt, n, 4}, bias, log, skip};
  };
  const auto loss = [&] {
    Numbers y(dy.size());
    scan(input(), shape, {y, n, 8});
    return dot(y, dy);
  };
  Numbers dx(x.size()), db(b.size()), dc(c.size()), ddt(dt.size()), dbias(4), dlog(4), dskip(4);
  scan_backward(input(), shape, {dy, n, 8},
                {{dx, n, 8}, {db, n, 6}, {dc, n, 6}, {ddt, n, 4}, dbias, dlog, dskip});
  check_gradient(loss, x, dx);
  check_gradient(loss, b, db);
  check_gradient(loss, c, dc);
  check_gradient(loss, dt, ddt);
  check_gradient(loss, bias, dbias);
  check_gradient(loss, log, dlog);
  check_gradient(loss, skip, dskip);
}
