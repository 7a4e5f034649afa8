// Kernels on heads of queries, keys and values against the reference mathematics.

#include <doctest/doctest.h>

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
  const kernels::Rotation rotation{
      turned, static_cast<const float2*>(static_cast<const void*>(dev_angles.get())),
      dev_positions.get()};
  kernels::split_heads({dev_packed.get(), q.get(), k.get(), v.get(), rows, q_heads, kv_heads, dim},
                       rotation, kStream);
  kernels::pack_heads({again.get(), q.get(), k.get(), v.get(), rows, q_heads, kv_heads, dim},
                      rotation, kStream);

  const auto part = [&](std::int64_t first, std::int64_t heads, bool turn) {
    std::vector<float> own;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto begin = packed.begin() + r * width + first * dim;
      own.insert(own.end(), begin, begin + heads * dim);
    }
    if (turn) {
      math::rope(Matrix(own, rows, heads * dim), {.heads = heads, .head_dim = dim}, positions,
                 frequencies);
    }
    return own;
  };
  CHECK(distance(q.read(), part(0, q_heads, true)) < kBf16Rounding);
  CHECK(distance(k.read(), part(q_heads, kv_heads, true)) < kBf16Rounding);
  CHECK(v.read() == part(q_heads + kv_heads, kv_heads, false));
  CHECK(distance(again.read(), packed) < 2 * kBf16Rounding);
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
