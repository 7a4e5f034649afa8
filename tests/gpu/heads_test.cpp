// Kernels on heads of queries, keys and values against the reference mathematics.

#include <doctest/doctest.h>

#include <algorithm>

#include "executor/math/attention.h"
#include "executor/math/norm.h"
#include "executor/math/rope.h"
#include "kernels/kernels.h"
#include "tests/gpu/device_array.h"

using namespace qplan;
using namespace qplan::test;
using math::ConstMatrix;
using math::Matrix;

namespace {

constexpr cudaStream_t kStream = nullptr;

}  // namespace

TEST_CASE("heads that are exchanged for sequence come where they belong, and back") {
  // Two sequences of 12, three ranks: chunks of two rows. q and k of six and three heads of 16.
  constexpr std::int64_t ranks = 3, sequences = 2, length = 12, local = 4, rows = 8;
  const std::vector<std::int64_t> heads{6, 3};
  constexpr std::int64_t dim = 16, width = (6 + 3) * dim, share = width / ranks * rows;
  const auto position = [](std::int64_t rank, std::int64_t i) {
    return i < 2 ? rank * 2 + i : (2 * ranks - 1 - rank) * 2 + i - 2;
  };
  // Whole sequences of both operands, and what each rank has of them.
  std::vector<std::vector<float>> whole, sent(ranks);
  for (const std::int64_t n : heads) {
    whole.push_back(random_bf16(sequences * length * n * dim, static_cast<unsigned>(n)));
  }
  for (std::int64_t r = 0; r < ranks; ++r) {
    std::vector<std::vector<float>> own;
    for (std::size_t k = 0; k < heads.size(); ++k) {
      const std::int64_t cols = heads[k] * dim;
      std::vector<float>& rows_of = own.emplace_back();
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto row = whole[k].begin() + (i / local * length + position(r, i % local)) * cols;
        rows_of.insert(rows_of.end(), row, row + cols);
      }
    }
    const Bf16Array q(own[0]), k(own[1]), buffer(ranks * share);
    kernels::HeadShares shares{.ranks = ranks, .local = local, .rows = rows, .count = 2};
    shares.operand[0] = q.get();
    shares.operand[1] = k.get();
    shares.share[0] = heads[0] / ranks * dim;
    shares.share[1] = heads[1] / ranks * dim;
    kernels::gather_shares(buffer.get(), shares, kStream);
    sent[math::at(r)] = buffer.read();
    const Bf16Array again_q(q.size()), again_k(k.size());
    shares.operand[0] = again_q.get();
    shares.operand[1] = again_k.get();
    kernels::spread_shares(buffer.get(), shares, kStream);
    CHECK(again_q.read() == own[0]);
    CHECK(again_k.read() == own[1]);
  }
  for (std::int64_t r = 0; r < ranks; ++r) {  // whose heads
    std::vector<float> arrived;
    for (const auto& from : sent) {
      const auto part = from.begin() + r * share;
      arrived.insert(arrived.end(), part, part + share);
    }
    const Bf16Array buffer(arrived);
    const std::int64_t all = sequences * length;
    const Bf16Array q(all * heads[0] / ranks * dim), k(all * heads[1] / ranks * dim);
    kernels::HeadShares shares{
        .ranks = ranks, .local = local, .rows = rows, .by_heads = true, .count = 2};
    shares.operand[0] = q.get();
    shares.operand[1] = k.get();
    shares.share[0] = heads[0] / ranks * dim;
    shares.share[1] = heads[1] / ranks * dim;
    kernels::spread_shares(buffer.get(), shares, kStream);
    for (std::size_t which = 0; which < heads.size(); ++which) {
      const std::int64_t cols = heads[which] * dim, own = cols / ranks;
      std::vector<float> expected;
      for (std::int64_t row = 0; row < all; ++row) {
        const auto first = whole[which].begin() + row * cols + r * own;
        expected.insert(expected.end(), first, first + own);
      }
      CHECK((which == 0 ? q : k).read() == expected);
    }
    const Bf16Array back(ranks * share);
    kernels::gather_shares(back.get(), shares, kStream);
    CHECK(back.read() == arrived);
  }
}

TEST_CASE("norms of heads read and write packed rows") {
  constexpr std::int64_t tokens = 37, heads = 3, dim = 128, line = 640;
  const auto x = random_bf16(tokens * heads * dim, 1), w = random_bf16(dim, 2);
  std::vector<float> y(x.size());
  math::rms_norm(ConstMatrix(x, tokens * heads, dim), w, {.epsilon = 1e-6},
                 Matrix(y, tokens * heads, dim));
  const Bf16Array dev_x(x), dev_w(w), packed(tokens * line);
  kernels::rms_norm(packed.get() + 128, {heads, line}, dev_x.get(), {1, dim}, dev_w.get(),
                    tokens * heads, dim, 1e-6F, kStream);
  const auto all = packed.read();
  std::vector<float> own;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto begin = all.begin() + t * line + 128;
    own.insert(own.end(), begin, begin + heads * dim);
  }
  CHECK(distance(own, y) < kBf16Rounding);
  CHECK(std::isnan(all[0]));  // nothing beside them was touched
  CHECK(std::isnan(all[128 + heads * dim]));
}

TEST_CASE("heads are taken apart and turned, and their gradients turned back") {
  constexpr std::int64_t rows = 29, q_heads = 4, kv_heads = 2, dim = 64, turned = 32;
  constexpr std::int64_t width = (q_heads + 2 * kv_heads) * dim;
  const auto packed = random_bf16(rows * width, 1);
  std::vector<std::int64_t> positions(rows);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<std::int64_t>(i * 7 % 64);
  }
  const auto frequencies = math::rope_frequencies(10000, turned);
  std::vector<float> angles;
  for (int p = 0; p < 64; ++p) {
    for (const double f : frequencies) {
      angles.push_back(static_cast<float>(std::cos(p * f)));
      angles.push_back(static_cast<float>(std::sin(p * f)));
    }
  }
  const FloatArray dev_angles(angles);
  const DeviceArray<std::int32_t> dev_positions(
      std::vector<float>(positions.begin(), positions.end()));
  const Bf16Array dev_packed(packed), q(rows * q_heads * dim), k(rows * kv_heads * dim),
      v(rows * kv_heads * dim), again(rows * width);
  for (const math::RopePairs pairs : {math::RopePairs::halves, math::RopePairs::neighbours}) {
    const bool neighbours = pairs == math::RopePairs::neighbours;
    CAPTURE(neighbours);
    const kernels::Rotation rotation{
        turned, static_cast<const float2*>(static_cast<const void*>(dev_angles.get())),
        dev_positions.get(), neighbours};
    kernels::split_heads(
        {dev_packed.get(), q.get(), k.get(), v.get(), rows, q_heads, kv_heads, dim}, rotation,
        kStream);
    kernels::pack_heads({again.get(), q.get(), k.get(), v.get(), rows, q_heads, kv_heads, dim},
                        rotation, kStream);

    const auto part = [&](std::int64_t first, std::int64_t heads, bool turn) {
      std::vector<float> own;
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto begin = packed.begin() + r * width + first * dim;
        own.insert(own.end(), begin, begin + heads * dim);
      }
      if (turn) {
        math::rope(Matrix(own, rows, heads * dim),
                   {.heads = heads, .head_dim = dim, .pairs = pairs}, positions, frequencies);
      }
      return own;
    };
    CHECK(distance(q.read(), part(0, q_heads, true)) < kBf16Rounding);
    CHECK(distance(k.read(), part(q_heads, kv_heads, true)) < kBf16Rounding);
    CHECK(v.read() == part(q_heads + kv_heads, kv_heads, false));
    CHECK(distance(again.read(), packed) < 2 * kBf16Rounding);
  }
}

TEST_CASE("queries alone are multiplied by their position's factor, and so are their gradients") {
  constexpr std::int64_t rows = 19, q_heads = 4, kv_heads = 2, dim = 48, positions = 8;
  constexpr std::int64_t width = (q_heads + 2 * kv_heads) * dim;
  const auto packed = random_bf16(rows * width, 1);
  std::vector<float> factors, position;
  for (std::int64_t p = 0; p < positions; ++p) {
    factors.push_back(static_cast<float>(math::query_temperature(p, 3, 0.5)));
  }
  CHECK(factors[1] == 1);
  CHECK(factors[2] == doctest::Approx(1 + 0.5 * std::log(2.0)));
  for (std::int64_t r = 0; r < rows; ++r) position.push_back(static_cast<float>(r * 5 % positions));
  const FloatArray dev_factors(factors);
  const DeviceArray<std::int32_t> dev_position(position);
  const Bf16Array dev_packed(packed), q(rows * q_heads * dim), k(rows * kv_heads * dim),
      v(rows * kv_heads * dim), again(rows * width);
  const kernels::QueryFactors queries{dev_factors.get(), dev_position.get()};
  kernels::split_heads({dev_packed.get(), q.get(), k.get(), v.get(), rows, q_heads, kv_heads, dim},
                       {}, kStream, queries);
  kernels::pack_heads({again.get(), q.get(), k.get(), v.get(), rows, q_heads, kv_heads, dim}, {},
                      kStream, queries);
  const auto k_read = k.read(), v_read = v.read();
  std::vector<float> q_raised, twice = packed;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float factor = factors[static_cast<std::size_t>(position[math::at(r)])];
    for (std::int64_t c = 0; c < q_heads * dim; ++c) {
      q_raised.push_back(factor * packed[math::at(r * width + c)]);
      twice[math::at(r * width + c)] *= factor * factor;
    }
    for (std::int64_t c = 0; c < kv_heads * dim; ++c) {
      const std::int64_t own = r * kv_heads * dim + c, from = r * width + q_heads * dim + c;
      REQUIRE(k_read[math::at(own)] == packed[math::at(from)]);
      REQUIRE(v_read[math::at(own)] == packed[math::at(from + kv_heads * dim)]);
    }
  }
  CHECK(distance(q.read(), q_raised) < kBf16Rounding);
  CHECK(distance(again.read(), twice) < 2 * kBf16Rounding);
}

TEST_CASE("heads are normed without weights, and back") {
  for (const std::int64_t dim : {16, 48, 128, 256}) {
    CAPTURE(dim);
    constexpr std::int64_t rows = 13, q_heads = 5, kv_heads = 2;
    const std::int64_t q_width = q_heads * dim, k_width = kv_heads * dim,
                       normed = q_width + k_width, width = normed + k_width;
    const auto q = random_bf16(rows * q_width, 1), k = random_bf16(rows * k_width, 2),
               dnormed = random_bf16(rows * normed, 3), dv = random_bf16(rows * k_width, 4);
    const std::vector<float> ones(math::at(dim), 1.0F);
    std::vector<float> packed(math::at(rows * normed)), dpacked(math::at(rows * width));
    std::vector<float> nowhere(ones.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t head = 0; head < q_heads + 2 * kv_heads; ++head) {
        const bool is_q = head < q_heads, is_v = head >= q_heads + kv_heads;
        const std::int64_t own =
            is_q ? r * q_width + head * dim : r * k_width + (head - q_heads) % kv_heads * dim;
        const Matrix dx =
            Matrix(dpacked, 1, std::ssize(dpacked)).columns(r * width + head * dim, dim);
        if (is_v) {
          std::copy_n(dv.begin() + own, dim, dx.row(0).begin());
          continue;
        }
        const std::vector<float>& all = is_q ? q : k;
        const ConstMatrix x = ConstMatrix(all, 1, std::ssize(all)).columns(own, dim);
        const std::int64_t at = r * normed + head * dim;
        math::rms_norm(x, ones, {.epsilon = 1e-5},
                       Matrix(packed, 1, std::ssize(packed)).columns(at, dim));
        math::rms_norm_backward(x, ones, {.epsilon = 1e-5},
                                ConstMatrix(dnormed, 1, std::ssize(dnormed)).columns(at, dim), dx,
                                nowhere);
      }
    }
    const Bf16Array dev_q(q), dev_k(k), dev_dnormed(dnormed), dev_dv(dv), dev_packed(rows * normed),
        dev_dpacked(rows * width);
    kernels::PackedHeads heads{dev_packed.get(), dev_q.get(), dev_k.get(), nullptr, rows,
                               q_heads,          kv_heads,    dim};
    kernels::norm_heads(heads, 1e-5F, kStream);
    heads.v = dev_dv.get();
    kernels::norm_heads_backward(dev_dpacked.get(), dev_dnormed.get(), heads, 1e-5F, kStream);
    CHECK(distance(dev_packed.read(), packed) < kBf16Rounding);
    CHECK(distance(dev_dpacked.read(), dpacked) < kBf16Rounding);
  }
}

TEST_CASE("heads are normed and turned in one pass as one after the other, and back") {
  for (const std::int64_t dim : {32, 64, 128, 256}) {
    CAPTURE(dim);
    constexpr std::int64_t rows = 37, q_heads = 5, kv_heads = 2;
    const std::int64_t width = (q_heads + 2 * kv_heads) * dim, turned = dim / 2;
    const std::vector<double> frequencies = math::rope_frequencies(1e4, turned);
    std::vector<float> angles;
    for (int p = 0; p < 64; ++p) {
      for (const double f : frequencies) {
        angles.push_back(static_cast<float>(std::cos(p * f)));
        angles.push_back(static_cast<float>(std::sin(p * f)));
      }
    }
    std::vector<std::int64_t> positions(rows);
    for (std::int64_t r = 0; r < rows; ++r) positions[static_cast<std::size_t>(r)] = r * 29 % 64;
    const auto packed = random_bf16(rows * width, 1), w = random_bf16(2 * dim, 2),
               dout = random_bf16(rows * width, 3), before = random_bf16(2 * dim, 4);
    const FloatArray dev_angles(angles), scratch(kernels::kScratchBytes / 4);
    const DeviceArray<std::int32_t> dev_positions(
        std::vector<float>(positions.begin(), positions.end()));
    const kernels::Rotation rotation{
        turned, static_cast<const float2*>(static_cast<const void*>(dev_angles.get())),
        dev_positions.get()};
    const Bf16Array dev_packed(packed), dev_w(w), q(rows * q_heads * dim), k(rows * kv_heads * dim),
        v(rows * kv_heads * dim), dpacked(rows * width);
    const kernels::HeadNorms norms{dev_w.get(), dev_w.get() + dim, 1e-6F};
    kernels::split_normed_heads(
        {dev_packed.get(), q.get(), k.get(), v.get(), rows, q_heads, kv_heads, dim}, rotation,
        norms, kStream);

    const auto part = [&](const std::vector<float>& all, std::int64_t first, std::int64_t heads) {
      std::vector<float> own;
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto begin = all.begin() + r * width + first * dim;
        own.insert(own.end(), begin, begin + heads * dim);
      }
      return own;
    };
    const math::NormShape shape{.epsilon = 1e-6};
    std::vector<float> dw = before;
    std::vector<Bf16Array> gradients;
    std::vector<std::vector<float>> expected;
    for (const bool queries : {true, false}) {
      CAPTURE(queries);
      const std::int64_t heads = queries ? q_heads : kv_heads, first = queries ? 0 : q_heads;
      const math::RopeShape rope{.heads = heads, .head_dim = dim};
      const auto raw = part(packed, first, heads);
      auto dy = part(dout, first, heads);
      gradients.emplace_back(dy);
      const auto width_of_head = static_cast<std::size_t>(dim), begin = queries ? 0 : width_of_head;
      const auto weight = std::span(w).subspan(begin, width_of_head);
      std::vector<float> out(raw.size()), dx(raw.size());
      math::rms_norm(ConstMatrix(raw, rows * heads, dim), weight, shape,
                     Matrix(out, rows * heads, dim));
      math::rope(Matrix(out, rows, heads * dim), rope, positions, frequencies);
      CHECK(distance((queries ? q : k).read(), out) < kBf16Rounding);
      math::rope_backward(Matrix(dy, rows, heads * dim), rope, positions, frequencies);
      math::rms_norm_backward(ConstMatrix(raw, rows * heads, dim), weight, shape,
                              ConstMatrix(dy, rows * heads, dim), Matrix(dx, rows * heads, dim),
                              std::span(dw).subspan(begin, width_of_head));
      expected.push_back(dx);
    }
    CHECK(v.read() == part(packed, q_heads + kv_heads, kv_heads));
    const auto dv = part(dout, q_heads + kv_heads, kv_heads);
    const Bf16Array dev_dv(dv);
    for (const kernels::RowOrder order : {kernels::RowOrder::drawn, kernels::RowOrder::fixed}) {
      const FloatArray sums(before);
      kernels::pack_normed_heads(dpacked.get(), sums.get(), sums.get() + dim,
                                 {dev_packed.get(), gradients[0].get(), gradients[1].get(),
                                  dev_dv.get(), rows, q_heads, kv_heads, dim},
                                 rotation, norms, scratch.get(), kStream, order);
      check(cudaGetLastError());
      const auto result = dpacked.read();
      CHECK(distance(part(result, 0, q_heads), expected[0]) < kBf16Rounding);
      CHECK(distance(part(result, q_heads, kv_heads), expected[1]) < kBf16Rounding);
      CHECK(part(result, q_heads + kv_heads, kv_heads) == dv);
      CHECK(distance(sums.read(), dw) < kFloatRounding);
    }
  }
}
