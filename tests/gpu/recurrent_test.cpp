// Kernels of Gated DeltaNet and Mamba-2 against the reference mathematics.

#include "kernels/recurrent.h"

#include <doctest/doctest.h>

#include <numeric>

#include "executor/math/causal_conv.h"
#include "executor/math/delta_rule.h"
#include "executor/math/norm.h"
#include "executor/math/scan.h"
#include "executor/math/sigmoid.h"
#include "tests/gpu/device_array.h"

using namespace qplan;
using namespace qplan::test;
using math::ConstMatrix;
using math::Matrix;

namespace {

constexpr cudaStream_t kStream = nullptr;

// Of sums of products whose operands were rounded to bf16 once or twice more than the result: 2e-3
// to 4e-3 of many numbers, of few up to 6.4e-3.
constexpr double kProductRounding = 7e-3;

// Numbers of a matrix of their own.
struct Own {
  std::vector<float> values;
  std::int64_t cols;
  Own(std::int64_t rows, std::int64_t width)
      : values(static_cast<std::size_t>(rows * width)), cols(width) {}
  Own(std::vector<float> numbers, std::int64_t width) : values(std::move(numbers)), cols(width) {}
  Matrix matrix() { return {values, std::ssize(values) / cols, cols}; }
  // Rows of the b-th sequence of `length`.
  Matrix sequence(std::int64_t b, std::int64_t length) {
    return matrix().row_range(b * length, length);
  }
};

Own random(std::int64_t rows, std::int64_t cols, unsigned seed, float deviation = 1) {
  return {random_bf16(rows * cols, seed, deviation), cols};
}

// Tokens of sequences that are made whole chunks.
std::int64_t whole_chunks(std::int64_t batch, std::int64_t length) {
  constexpr std::int64_t chunk = kernels::kChunkTokens;
  return batch * ((length + chunk - 1) / chunk * chunk);
}

// Queries, keys, values and what lies beside them in what Gated DeltaNet's projection makes, by
// column; `packed`: a key head's together, as transformers' fix_query_key_value_ordering has it.
struct DeltaColumns {
  std::vector<std::int64_t> channels, gates, strengths, decays;
};
DeltaColumns columns_of(const kernels::ProjectedColumns& p, std::int64_t key_heads,
                        std::int64_t key_dim, bool packed) {
  const std::int64_t group = p.heads / key_heads, served = group * p.value_dim;
  const std::int64_t keys = key_heads * key_dim, values = p.heads * p.value_dim;
  DeltaColumns all;
  const auto append = [](std::vector<std::int64_t>& to, std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to.push_back(first + i);
  };
  if (!packed) {
    append(all.channels, 0, 2 * keys + values);
    append(all.gates, 2 * keys + values, values);
    append(all.strengths, 2 * keys + 2 * values, p.heads);
    append(all.decays, 2 * keys + 2 * values + p.heads, p.heads);
    return all;
  }
  const std::int64_t width = 2 * (key_dim + served), behind = key_heads * width;
  for (const std::int64_t first : {std::int64_t{0}, key_dim}) {
    for (std::int64_t h = 0; h < key_heads; ++h) append(all.channels, h * width + first, key_dim);
  }
  for (std::int64_t h = 0; h < key_heads; ++h) {
    append(all.channels, h * width + 2 * key_dim, served);
    append(all.gates, h * width + 2 * key_dim + served, served);
    append(all.strengths, behind + 2 * h * group, group);
    append(all.decays, behind + 2 * h * group + group, group);
  }
  return all;
}

Own taken(Own& from, const std::vector<std::int64_t>& columns) {
  Own to(from.matrix().rows, std::ssize(columns));
  for (std::int64_t r = 0; r < to.matrix().rows; ++r) {
    for (std::int64_t c = 0; c < to.cols; ++c) {
      to.matrix().at(r, c) = from.matrix().at(r, columns[math::at(c)]);
    }
  }
  return to;
}

// Four key heads that serve two value heads each.
struct Projection {
  static constexpr std::int64_t kKeyHeads = 4, kKeyDim = 16, kHeads = 8, kValueDim = 24;
  bool packed;
  kernels::ProjectedColumns places;
  DeltaColumns columns;
  explicit Projection(bool is_packed) : packed(is_packed) {
    const std::int64_t keys = kKeyHeads * kKeyDim, values = kHeads * kValueDim;
    places = {.stride = 2 * keys + 2 * values + 2 * kHeads,
              .channels = 0,
              .gates = 2 * keys + values,
              .strengths = 2 * keys + 2 * values,
              .heads = kHeads,
              .key_heads = packed ? kKeyHeads : 0,
              .key_dim = kKeyDim,
              .value_dim = kValueDim};
    columns = columns_of(places, kKeyHeads, kKeyDim, packed);
  }
};

void check_delta_rule(std::int64_t batch, std::int64_t length, const math::DeltaRuleShape& s) {
  CAPTURE(length);
  CAPTURE(s.key_dim);
  CAPTURE(s.value_dim);
  const std::int64_t rows = batch * length;
  const std::int64_t keys = s.key_heads * s.key_dim, values = s.value_heads * s.value_dim;
  const auto unit = 1 / std::sqrt(static_cast<float>(s.key_dim));
  Own q = random(rows, keys, 1, unit), k = random(rows, keys, 2, unit), v = random(rows, values, 3),
      decay = random(rows, s.value_heads, 4), strength = random(rows, s.value_heads, 5),
      dout = random(rows, values, 6);
  // Some tokens forget nearly all, some nothing.
  for (float& x : decay.values) x = -x * x;
  for (float& x : strength.values) x = 1 / (1 + std::exp(-x));
  math::round_to(DType::bf16, strength.values);
  Own out(rows, values), dq(rows, keys), dk(rows, keys), dv(rows, values),
      ddecay(rows, s.value_heads), dstrength(rows, s.value_heads);
  for (std::int64_t b = 0; b < batch; ++b) {
    const math::DeltaRuleInput in{q.sequence(b, length), k.sequence(b, length),
                                  v.sequence(b, length), decay.sequence(b, length),
                                  strength.sequence(b, length)};
    math::delta_rule(in, s, out.sequence(b, length));
    math::delta_rule_backward(
        in, s, dout.sequence(b, length),
        {dq.sequence(b, length), dk.sequence(b, length), dv.sequence(b, length),
         ddecay.sequence(b, length), dstrength.sequence(b, length)});
  }
  const Bf16Array dev_q(q.values), dev_k(k.values), dev_v(v.values), dev_strength(strength.values),
      dev_dout(dout.values), dev_out(rows * values), dev_dq(rows * keys), dev_dk(rows * keys),
      dev_dv(rows * values), dev_dstrength(rows * s.value_heads);
  const FloatArray dev_decay(decay.values), dev_ddecay(rows * s.value_heads);
  const std::int64_t state = s.key_dim * s.value_dim / kernels::kChunkTokens;
  const Bf16Array scratch(whole_chunks(batch, length) * s.value_heads *
                          (s.key_dim + 2 * s.value_dim + kernels::kChunkTokens + 2 * state + 10));
  const kernels::DeltaRule rule{batch,       length,          s.key_heads,       s.value_heads,
                                s.key_dim,   s.value_dim,     dev_q.get(),       dev_k.get(),
                                dev_v.get(), dev_decay.get(), dev_strength.get()};
  kernels::delta_rule(dev_out.get(), rule, scratch.get(), kStream);
  kernels::delta_rule_backward(
      {dev_dq.get(), dev_dk.get(), dev_dv.get(), dev_ddecay.get(), dev_dstrength.get()}, rule,
      dev_dout.get(), scratch.get(), kStream);
  check(cudaGetLastError());
  CHECK(distance(dev_out.read(), out.values) < kProductRounding);
  CHECK(distance(dev_dq.read(), dq.values) < kProductRounding);
  CHECK(distance(dev_dk.read(), dk.values) < kProductRounding);
  CHECK(distance(dev_dv.read(), dv.values) < kProductRounding);
  CHECK(distance(dev_dstrength.read(), dstrength.values) < kProductRounding);
  CHECK(distance(dev_ddecay.read(), ddecay.values) < kProductRounding);
}

void check_scan(std::int64_t batch, std::int64_t length, const math::ScanShape& s) {
  CAPTURE(length);
  CAPTURE(s.head_dim);
  CAPTURE(s.state_size);
  const std::int64_t rows = batch * length, inner = s.heads * s.head_dim,
                     shared = s.groups * s.state_size;
  const std::int64_t channels = inner + 2 * shared, width = inner + channels + s.heads;
  Own projected = random(rows, width, 1), xbc = random(rows, channels, 2),
      dgated = random(rows, inner, 3), bias = random(1, s.heads, 4), log = random(1, s.heads, 5),
      skip = random(1, s.heads, 6), before = random(3, s.heads, 7);
  Own out(rows, inner), gated(rows, inner), dy(rows, inner), dxbc(rows, channels),
      dprojected(rows, width), sums = before;
  const auto input = [&](std::int64_t b) {
    const Matrix part = xbc.sequence(b, length);
    return math::ScanInput{.x = part.columns(0, inner),
                           .b = part.columns(inner, shared),
                           .c = part.columns(inner + shared, shared),
                           .dt = projected.sequence(b, length).columns(inner + channels, s.heads),
                           .dt_bias = bias.values,
                           .a_log = log.values,
                           .skip = skip.values};
  };
  for (std::int64_t b = 0; b < batch; ++b) math::scan(input(b), s, out.sequence(b, length));
  // What backward reads of it has been rounded.
  const std::vector<float> exact = out.values;
  math::round_to(DType::bf16, out.values);
  for (std::int64_t i = 0; i < rows * inner; ++i) {
    const std::int64_t r = i / inner, c = i % inner;
    const double z = projected.matrix().at(r, c), share = math::sigmoid(z);
    const double d = dgated.values[math::at(i)], y = out.values[math::at(i)];
    gated.values[math::at(i)] = static_cast<float>(exact[math::at(i)] * z * share);
    dy.values[math::at(i)] = static_cast<float>(d * z * share);
    dprojected.matrix().at(r, c) = static_cast<float>(d * y * share * (1 + z * (1 - share)));
  }
  for (std::int64_t b = 0; b < batch; ++b) {
    const Matrix d = dxbc.sequence(b, length);
    const auto sum = [&](std::int64_t i) { return sums.matrix().row(i); };
    math::scan_backward(input(b), s, dy.sequence(b, length),
                        {.dx = d.columns(0, inner),
                         .db = d.columns(inner, shared),
                         .dc = d.columns(inner + shared, shared),
                         .ddt = dprojected.sequence(b, length).columns(inner + channels, s.heads),
                         .d_dt_bias = sum(0),
                         .d_a_log = sum(1),
                         .dskip = sum(2)});
  }
  const Bf16Array dev_projected(projected.values), dev_xbc(xbc.values), dev_dgated(dgated.values),
      dev_bias(bias.values), dev_log(log.values), dev_skip(skip.values), dev_out(rows * inner),
      dev_gated(rows * inner), dev_dxbc(rows * channels),
      dev_dprojected(dprojected.values);  // what the convolution's backward fills stays
  const FloatArray dev_sums(before.values);
  const std::int64_t state = s.head_dim * s.state_size / kernels::kChunkTokens;
  const Bf16Array scratch(whole_chunks(batch, length) * s.heads *
                          (2 * state + s.head_dim + 4 * s.state_size + 11));
  const kernels::Scan scan{batch,
                           length,
                           s.heads,
                           s.groups,
                           s.head_dim,
                           s.state_size,
                           static_cast<float>(s.step_min),
                           dev_projected.get(),
                           dev_xbc.get(),
                           dev_bias.get(),
                           dev_log.get(),
                           dev_skip.get()};
  kernels::scan(dev_out.get(), dev_gated.get(), scan, scratch.get(), kStream);
  CHECK(distance(dev_out.read(), exact) < kProductRounding);
  CHECK(distance(dev_gated.read(), gated.values) < kProductRounding);
  const Bf16Array rounded(out.values);
  float* const first = dev_sums.get();
  kernels::scan_backward(
      {dev_dxbc.get(), dev_dprojected.get(), first, first + s.heads, first + 2 * s.heads}, scan,
      rounded.get(), dev_dgated.get(), scratch.get(), kStream);
  check(cudaGetLastError());
  CHECK(distance(dev_dxbc.read(), dxbc.values) < kProductRounding);
  CHECK(distance(dev_dprojected.read(), dprojected.values) < kProductRounding);
  CHECK(distance(dev_sums.read(), sums.values) < kProductRounding);
}

void check_convolution(const kernels::ProjectedColumns& places,
                       const std::vector<std::int64_t>& columns, bool biased) {
  constexpr std::int64_t batch = 2, length = 131, taps = 4;
  const std::int64_t rows = batch * length, channels = std::ssize(columns);
  Own projected = random(rows, places.stride, 1), weight = random(channels, taps, 2),
      bias = random(1, channels, 3), dy = random(rows, channels, 4),
      before = random(channels, taps, 5), bias_before = random(1, channels, 6);
  Own x = taken(projected, columns), y(rows, channels), dx(rows, channels), dweight = before,
      dbias = bias_before;
  const math::ConstFloats shift = biased ? math::ConstFloats(bias.values) : math::ConstFloats();
  for (std::int64_t b = 0; b < batch; ++b) {
    math::causal_conv(x.sequence(b, length), weight.matrix(), shift, y.sequence(b, length));
    math::causal_conv_backward(x.sequence(b, length), weight.matrix(), shift,
                               dy.sequence(b, length), dx.sequence(b, length), dweight.matrix(),
                               biased ? math::Floats(dbias.values) : math::Floats());
  }
  const Bf16Array dev_x(projected.values), dev_weight(weight.values), dev_bias(bias.values),
      dev_dy(dy.values), dev_y(rows * channels), dev_dx(rows * channels);
  const FloatArray dev_dweight(before.values), dev_dbias(bias_before.values),
      scratch(kernels::kScratchBytes / 4);
  const kernels::Convolution conv{dev_x.get(), dev_weight.get(), biased ? dev_bias.get() : nullptr,
                                  places,      {batch, length},  channels};
  kernels::causal_conv(dev_y.get(), conv, kStream);
  kernels::causal_conv_backward(dev_dx.get(), channels, dev_dweight.get(),
                                biased ? dev_dbias.get() : nullptr, dev_dy.get(), conv,
                                scratch.get(), kStream);
  check(cudaGetLastError());
  CHECK(distance(dev_y.read(), y.values) < kBf16Rounding);
  CHECK(distance(dev_dx.read(), dx.values) < kBf16Rounding);
  CHECK(distance(dev_dweight.read(), dweight.values) < kFloatRounding);
  CHECK(distance(dev_dbias.read(), dbias.values) < kFloatRounding);
}

}  // namespace

// Sequences of less than a chunk, of some, and of some and a part of one.
TEST_CASE("the gated delta rule and its gradients are the reference's at every width of a head") {
  check_delta_rule(2, 137, {2, 4, 16, 24});
  check_delta_rule(1, 64, {3, 3, 40, 8});
  check_delta_rule(1, 2, {1, 2, 8, 8});
  check_delta_rule(1, 195, {1, 2, 128, 64});
  check_delta_rule(1, 128, {1, 1, 64, 128});
  check_delta_rule(1, 70, {1, 2, 128, 128});
}

TEST_CASE("Mamba-2's scan and its gradients are the reference's at every width of a head") {
  check_scan(2, 137, {8, 2, 16, 24, 1e-3});
  check_scan(1, 33, {8, 8, 8, 40, 0.5});  // some steps are at the smallest
  check_scan(1, 195, {8, 1, 64, 128, 0});
  check_scan(1, 64, {16, 1, 8, 8, 0});  // heads of a group in two parts
  check_scan(1, 70, {8, 1, 128, 128, 0});
}

TEST_CASE("convolutions read their channels where the projection leaves them") {
  for (const bool packed : {false, true}) {
    const Projection p(packed);
    check_convolution(p.places, p.columns.channels, false);
  }
  constexpr std::int64_t inner = 40, channels = 1048;  // of Mamba-2
  std::vector<std::int64_t> columns(channels);
  std::iota(columns.begin(), columns.end(), inner);
  check_convolution({.stride = inner + channels + 8, .channels = inner}, columns, true);
}

TEST_CASE("queries and keys become rows of length 1") {
  constexpr std::int64_t rows = 21, heads = 3;
  for (const std::int64_t dim : {16, 96, 128}) {
    CAPTURE(dim);
    const std::int64_t all = 2 * rows * heads;
    Own qk = random(all, dim, 1), unit(all, dim), d = random(all, dim, 2), dqk(all, dim);
    std::vector<float> scale(static_cast<std::size_t>(all));
    math::l2_norm(qk.matrix(), unit.matrix(), scale);
    // Of a row queries and then keys; apart, all queries and all keys.
    const auto part_of = [&](Own& both, std::int64_t which) {
      Own own(rows * heads, dim);
      for (std::int64_t r = 0; r < rows * heads; ++r) {
        const auto from = both.matrix().row((r / heads * 2 + which) * heads + r % heads);
        std::copy(from.begin(), from.end(), own.matrix().row(r).begin());
      }
      return own.values;
    };
    const Bf16Array dev_qk(qk.values), dev_q(rows * heads * dim), dev_k(rows * heads * dim),
        dev_dq(part_of(d, 0)), dev_dk(part_of(d, 1)), dev_dqk(all * dim);
    const FloatArray dev_scale(all);
    const kernels::UnitHeads where{dev_q.get(), dev_k.get(), dev_scale.get(), rows, heads, dim};
    kernels::unit_heads(where, dev_qk.get(), kStream);
    CHECK(distance(dev_q.read(), part_of(unit, 0)) < kBf16Rounding);
    CHECK(distance(dev_k.read(), part_of(unit, 1)) < kBf16Rounding);
    CHECK(distance(dev_scale.read(), scale) < kFloatRounding);
    math::round_to(DType::bf16, unit.values);
    math::l2_norm_backward(unit.matrix(), scale, d.matrix(), dqk.matrix());
    kernels::unit_heads_backward(dev_dqk.get(), dev_dq.get(), dev_dk.get(), where, kStream);
    check(cudaGetLastError());
    CHECK(distance(dev_dqk.read(), dqk.values) < kBf16Rounding);
  }
}

TEST_CASE("decays, strengths and their gradients are the reference's") {
  constexpr std::int64_t rows = 301;
  for (const bool packed : {false, true}) {
    const Projection p(packed);
    const std::int64_t heads = p.places.heads;
    Own projected = random(rows, p.places.stride, 1, 3), bias = random(1, heads, 2),
        log = random(1, heads, 3), ddecay = random(rows, heads, 4),
        dstrength = random(rows, heads, 5), before = random(2, heads, 6);
    Own a = taken(projected, p.columns.decays), b = taken(projected, p.columns.strengths);
    Own decay(rows, heads), strength(rows, heads), d(rows, 2 * heads), sums = before;
    const math::DecayInput in{a.matrix(), b.matrix(), bias.values, log.values};
    math::decay_gates(in, decay.matrix(), strength.matrix());
    math::decay_gates_backward(in, ddecay.matrix(), dstrength.matrix(),
                               d.matrix().columns(heads, heads), d.matrix().columns(0, heads),
                               sums.matrix().row(0), sums.matrix().row(1));
    const Bf16Array dev_projected(projected.values), dev_bias(bias.values), dev_log(log.values),
        dev_strength(rows * heads), dev_dstrength(dstrength.values), dev_d(rows * 2 * heads);
    const FloatArray dev_decay(rows * heads), dev_ddecay(ddecay.values), dev_sums(before.values);
    const kernels::DecayGates gates{dev_projected.get(), dev_bias.get(), dev_log.get(), p.places,
                                    rows};
    kernels::decay_gates(dev_decay.get(), dev_strength.get(), gates, kStream);
    kernels::decay_gates_backward(dev_d.get(), dev_sums.get(), dev_sums.get() + heads,
                                  dev_ddecay.get(), dev_dstrength.get(), gates, kStream);
    check(cudaGetLastError());
    CHECK(distance(dev_decay.read(), decay.values) < kFloatRounding);
    CHECK(distance(dev_strength.read(), strength.values) < kBf16Rounding);
    CHECK(distance(dev_d.read(), d.values) < kBf16Rounding);
    CHECK(distance(dev_sums.read(), sums.values) < kFloatRounding);
  }
}

TEST_CASE("what was read of a projection goes back to where it was") {
  constexpr std::int64_t rows = 5;
  for (const bool packed : {false, true}) {
    const Projection p(packed);
    Own projected = random(rows, p.places.stride, 1);
    std::vector<std::int64_t> both = p.columns.strengths;
    both.insert(both.end(), p.columns.decays.begin(), p.columns.decays.end());
    const Bf16Array channels(taken(projected, p.columns.channels).values),
        gates(taken(projected, p.columns.gates).values), strengths(taken(projected, both).values),
        result(rows * p.places.stride);
    kernels::arrange_projected(result.get(), channels.get(), gates.get(), strengths.get(), p.places,
                               rows, kStream);
    CHECK(result.read() == projected.values);
  }
}

TEST_CASE("the norm of heads behind a gate and its gradients are the reference's") {
  constexpr std::int64_t rows = 67;
  for (const bool packed : {false, true}) {
    const Projection p(packed);
    const std::int64_t heads = p.places.heads, dim = p.places.value_dim, width = heads * dim;
    Own x = random(rows * heads, dim, 1), w = random(1, dim, 2),
        projected = random(rows, p.places.stride, 3), dy = random(rows, width, 4),
        before = random(1, dim, 5);
    Own gate = taken(projected, p.columns.gates), normed(rows * heads, dim), y(rows, width),
        dnormed(rows * heads, dim), dgate(rows, width), dx(rows * heads, dim), dw = before;
    const math::NormShape shape{.epsilon = 1e-6};
    math::rms_norm(x.matrix(), w.values, shape, normed.matrix());
    for (std::size_t i = 0; i < y.values.size(); ++i) {
      const double z = gate.values[i], s = math::sigmoid(z), d = dy.values[i];
      y.values[i] = static_cast<float>(normed.values[i] * z * s);
      dnormed.values[i] = static_cast<float>(d * z * s);
      dgate.values[i] = static_cast<float>(d * normed.values[i] * s * (1 + z * (1 - s)));
    }
    math::rms_norm_backward(x.matrix(), w.values, shape, dnormed.matrix(), dx.matrix(), dw.values);
    const Bf16Array dev_x(x.values), dev_w(w.values), dev_projected(projected.values),
        dev_dy(dy.values), dev_y(rows * width), dev_dx(rows * width), dev_dgate(rows * width);
    const FloatArray dev_dw(before.values), scratch(kernels::kScratchBytes / 4);
    const kernels::GatedNorm norm{dev_x.get(), dev_projected.get(), dev_w.get(), p.places, rows,
                                  1e-6F};
    kernels::gated_norm(dev_y.get(), norm, kStream);
    kernels::gated_norm_backward(dev_dx.get(), dev_dgate.get(), dev_dw.get(), dev_dy.get(), norm,
                                 scratch.get(), kStream);
    check(cudaGetLastError());
    CHECK(distance(dev_y.read(), y.values) < kBf16Rounding);
    CHECK(distance(dev_dx.read(), dx.values) < kBf16Rounding);
    CHECK(distance(dev_dgate.read(), dgate.values) < kBf16Rounding);
    CHECK(distance(dev_dw.read(), dw.values) < kFloatRounding);
  }
}

TEST_CASE("gates of numbers and of rows, and their gradients, are the reference's") {
  constexpr std::int64_t rows = 37, cols = 264;
  for (const bool each : {true, false}) {
    Own x = random(rows, cols, 1), gates = random(rows, each ? cols : 1, 2),
        dy = random(rows, cols, 3);
    Own y(rows, cols), dx(rows, cols), dgates(rows, gates.cols);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const std::int64_t g = each ? c : 0;
        const double share = math::sigmoid(gates.matrix().at(r, g));
        const double d = dy.matrix().at(r, c), value = x.matrix().at(r, c);
        y.matrix().at(r, c) = static_cast<float>(share * value);
        dx.matrix().at(r, c) = static_cast<float>(share * d);
        dgates.matrix().at(r, g) += static_cast<float>(d * value * share * (1 - share));
      }
    }
    const Bf16Array dev_x(x.values), dev_gates(gates.values), dev_dy(dy.values), dev_y(rows * cols),
        dev_dx(rows * cols), dev_dgates(rows * gates.cols);
    if (each) {
      kernels::gate(dev_y.get(), dev_x.get(), dev_gates.get(), rows * cols, kStream);
      kernels::gate_backward(dev_dx.get(), dev_dgates.get(), dev_dy.get(), dev_x.get(),
                             dev_gates.get(), rows * cols, kStream);
    } else {
      kernels::gate_rows(dev_y.get(), dev_x.get(), dev_gates.get(), rows, cols, kStream);
      kernels::gate_rows_backward(dev_dx.get(), dev_dgates.get(), dev_dy.get(), dev_x.get(),
                                  dev_gates.get(), rows, cols, kStream);
    }
    check(cudaGetLastError());
    CHECK(distance(dev_y.read(), y.values) < kBf16Rounding);
    CHECK(distance(dev_dx.read(), dx.values) < kBf16Rounding);
    CHECK(distance(dev_dgates.read(), dgates.values) < kBf16Rounding);
  }
}
