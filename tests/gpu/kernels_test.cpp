// Kernels against the reference mathematics, on shapes that divide nothing evenly.

#include "kernels/kernels.h"

#include <doctest/doctest.h>

#include <cstring>
#include <numeric>

#include "executor/io/weights.h"
#include "executor/math/activation.h"
#include "executor/math/cross_entropy.h"
#include "executor/math/embedding.h"
#include "executor/math/norm.h"
#include "executor/math/optimizer.h"
#include "executor/math/permute.h"
#include "executor/math/rope.h"
#include "executor/math/router.h"
#include "tests/gpu/device_array.h"

using namespace qplan;
using namespace qplan::test;
using math::ConstMatrix;
using math::Matrix;

namespace {

constexpr cudaStream_t kStream = nullptr;

std::vector<float> ids_as_floats(const std::vector<std::int32_t>& ids) {
  return {ids.begin(), ids.end()};
}

void check_norm(std::int64_t rows, std::int64_t cols) {
  CAPTURE(cols);
  const auto x = random_bf16(rows * cols, 1), w = random_bf16(cols, 2),
             dy = random_bf16(rows * cols, 3), residual = random_bf16(rows * cols, 4),
             before = random_bf16(cols, 5);
  const math::NormShape shape{.epsilon = 1e-6};
  std::vector<float> y(x.size()), dx(x.size()), dw = before;
  math::rms_norm(ConstMatrix(x, rows, cols), w, shape, Matrix(y, rows, cols));
  math::rms_norm_backward(ConstMatrix(x, rows, cols), w, shape, ConstMatrix(dy, rows, cols),
                          Matrix(dx, rows, cols), dw);
  math::add(ConstMatrix(residual, rows, cols), Matrix(dx, rows, cols));

  const Bf16Array dev_x(x), dev_w(w), dev_dy(dy), dev_residual(residual), dev_y(rows * cols),
      dev_dx(rows * cols);
  const FloatArray dev_dw(before), scratch(kernels::kScratchBytes / 4);
  const kernels::Lines dense{1, cols};
  kernels::rms_norm(dev_y.get(), dense, dev_x.get(), dense, dev_w.get(), rows, cols, 1e-6F,
                    kStream);
  kernels::rms_norm_backward({dev_dx.get(), dev_dw.get(), dev_x.get(), dev_dy.get(), dev_w.get(),
                              dev_residual.get(), dense, dense, dense},
                             rows, cols, 1e-6F, scratch.get(), kStream);
  check(cudaGetLastError());
  CHECK(distance(dev_y.read(), y) < kBf16Rounding);
  CHECK(distance(dev_dx.read(), dx) < kBf16Rounding);
  CHECK(distance(dev_dw.read(), dw) < kFloatRounding);
}

}  // namespace

TEST_CASE("RMSNorm and its gradients are the reference's at every width") {
  for (const std::int64_t cols : {64, 128, 200, 1024, 1536, 2048, 4096, 5120, 8192, 12288}) {
    check_norm(517, cols);
  }
  check_norm(3, 256);
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
    const FloatArray dev_angles(angles), dev_dw(before), scratch(kernels::kScratchBytes / 4);
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
    kernels::pack_normed_heads(dpacked.get(), dev_dw.get(), dev_dw.get() + dim,
                               {dev_packed.get(), gradients[0].get(), gradients[1].get(),
                                dev_dv.get(), rows, q_heads, kv_heads, dim},
                               rotation, norms, scratch.get(), kStream);
    check(cudaGetLastError());
    const auto result = dpacked.read();
    CHECK(distance(part(result, 0, q_heads), expected[0]) < kBf16Rounding);
    CHECK(distance(part(result, q_heads, kv_heads), expected[1]) < kBf16Rounding);
    CHECK(part(result, q_heads + kv_heads, kv_heads) == dv);
    CHECK(distance(dev_dw.read(), dw) < kFloatRounding);
  }
}

TEST_CASE("SwiGLU and its gradients are the reference's") {
  constexpr std::int64_t rows = 53, width = 264;
  const auto x = random_bf16(rows * 2 * width, 1), dy = random_bf16(rows * width, 2),
             scale = random_bf16(rows, 3);
  const Bf16Array dev_x(x), dev_dy(dy), dev_y(rows * width), dev_dx(rows * 2 * width);
  const FloatArray dev_scale(scale), dev_dscale(rows);
  std::vector<float> y(dy.size()), dx(x.size()), dscale(scale.size());
  const ConstMatrix in(x, rows, 2 * width), dout(dy, rows, width);
  SUBCASE("plain") {
    math::activate(math::Activation::swiglu, in, {}, Matrix(y, rows, width));
    math::activate_backward(math::Activation::swiglu, in, {}, dout, Matrix(dx, rows, 2 * width),
                            {});
    kernels::swiglu(dev_y.get(), dev_x.get(), nullptr, rows, width, kStream);
    kernels::swiglu_backward(dev_dx.get(), nullptr, dev_x.get(), dev_dy.get(), nullptr, rows, width,
                             kStream);
  }
  SUBCASE("each row scaled") {
    math::activate(math::Activation::swiglu, in, scale, Matrix(y, rows, width));
    math::activate_backward(math::Activation::swiglu, in, scale, dout, Matrix(dx, rows, 2 * width),
                            dscale);
    kernels::swiglu(dev_y.get(), dev_x.get(), dev_scale.get(), rows, width, kStream);
    kernels::swiglu_backward(dev_dx.get(), dev_dscale.get(), dev_x.get(), dev_dy.get(),
                             dev_scale.get(), rows, width, kStream);
    CHECK(distance(dev_dscale.read(), dscale) < kFloatRounding);
  }
  CHECK(distance(dev_y.read(), y) < kBf16Rounding);
  CHECK(distance(dev_dx.read(), dx) < kBf16Rounding);
}

TEST_CASE("a rank looks up its rows of the table, and adds their gradients") {
  constexpr std::int64_t n = 1000, cols = 136, first = 10, rows = 40;
  std::vector<std::int32_t> ids(n);
  std::mt19937 generator(7);
  for (auto& id : ids) id = static_cast<std::int32_t>(generator() % 64);
  const auto table = random_bf16(rows * cols, 1), dy = random_bf16(n * cols, 2),
             before = random_bf16(rows * cols, 3);
  std::vector<float> y(dy.size()), dtable = before;
  math::embed(ConstMatrix(table, rows, cols), first, ids, Matrix(y, n, cols));
  math::embed_backward(ConstMatrix(dy, n, cols), first, ids, Matrix(dtable, rows, cols));
  const Bf16Array dev_table(table), dev_dy(dy), dev_y(n * cols);
  const FloatArray dev_dtable(before);
  const DeviceArray<std::int32_t> dev_ids(ids_as_floats(ids));
  const DeviceArray<std::int64_t> kept(n);
  kernels::embed(dev_y.get(), kept.get(), dev_table.get(), first, rows, dev_ids.get(), n, cols,
                 kStream);
  kernels::embed_backward(dev_dtable.get(), dev_dy.get(), first, rows, kept.get(), n, cols,
                          kStream);
  CHECK(dev_y.read() == y);
  CHECK(distance(dev_dtable.read(), dtable) < kFloatRounding);
}

TEST_CASE("cross-entropy over a part of a padded vocabulary is the reference's") {
  constexpr std::int64_t rows = 41, cols = 1016, first = 500, words = 1400;
  std::vector<std::int32_t> targets(rows);
  std::mt19937 generator(7);
  for (auto& t : targets) t = static_cast<std::int32_t>(generator() % words);
  const auto logits = random_bf16(rows * cols, 1, 4);
  const math::VocabularyShard shard{first, words};
  std::vector<float> maxima(rows), sums(rows), target(rows), log_sum(rows), loss(rows),
      dlogits(logits.size());
  const ConstMatrix matrix(logits, rows, cols);
  math::logits_max(matrix, shard, maxima);
  math::logits_sums(matrix, shard, targets, maxima, sums, target);
  for (std::size_t t = 0; t < rows; ++t) {
    log_sum[t] = maxima[t] + std::log(sums[t]);
    const bool here = targets[t] >= first && targets[t] < first + cols;
    loss[t] = here ? -(target[t] + maxima[t]) : 0;
  }
  const std::vector<float> ones(rows, 1);
  math::cross_entropy_backward(matrix, shard, targets, log_sum, ones, 0.125,
                               Matrix(dlogits, rows, cols));
  const Bf16Array dev_logits(logits), dev_dlogits(rows * cols);
  const FloatArray dev_loss(rows), dev_log_sum(rows), maximum(std::vector<float>(rows, 20));
  const DeviceArray<std::int32_t> dev_targets(ids_as_floats(targets));
  kernels::cross_entropy(dev_loss.get(), dev_log_sum.get(), dev_logits.get(), {first, words},
                         dev_targets.get(), false, rows, cols, kStream);
  kernels::cross_entropy_backward(dev_dlogits.get(), dev_logits.get(), dev_log_sum.get(),
                                  {first, words}, dev_targets.get(), 0.125F, rows, cols, kStream);
  CHECK(distance(dev_loss.read(), loss) < kFloatRounding);
  CHECK(distance(dev_log_sum.read(), log_sum) < kFloatRounding);
  CHECK(distance(dev_dlogits.read(), dlogits) < kBf16Rounding);

  const DeviceArray<double> total(std::vector<float>{3});
  kernels::add_losses(total.get(), dev_loss.get(), rows, kStream);
  CHECK(total.read()[0] == doctest::Approx(3 + std::accumulate(loss.begin(), loss.end(), 0.0)));
  kernels::loss_rescale(dev_log_sum.get(), maximum.get(), rows, kStream);
  kernels::loss_finish(dev_loss.get(), dev_log_sum.get(), maximum.get(), rows, kStream);
  CHECK(distance(dev_log_sum.read(), log_sum) < kFloatRounding);
  for (std::size_t t = 0; t < rows; ++t) loss[t] += log_sum[t];
  CHECK(distance(dev_loss.read(), loss) < kFloatRounding);
}

TEST_CASE("AdamW with clipping is the reference's") {
  constexpr std::int64_t n = 10007;
  auto main = random_bf16(n, 1), m = random_bf16(n, 2), v = random_bf16(n, 3);
  const auto gradient = random_bf16(n, 4);
  for (float& x : v) x = std::abs(x);
  const FloatArray dev_main(main), dev_m(m), dev_v(v), dev_gradient(gradient);
  const Bf16Array working(n);
  const DeviceArray<double> squares(std::vector<float>{0}), scratch(kernels::kScratchBytes / 8);
  kernels::sum_of_squares(squares.get(), dev_gradient.get(), n, scratch.get(), kStream);
  const double sum = math::sum_of_squares(gradient);
  CHECK(squares.read()[0] == doctest::Approx(sum));
  const math::AdamWSettings s{.lr = 1e-2, .weight_decay = 0.1};
  const kernels::AdamW settings{
      1e-2F, 0.9F,         0.95F, 1e-8F, 0.1F, 1 - std::pow(0.9F, 3.0F), 1 - std::pow(0.95F, 3.0F),
      1,     squares.get()};
  kernels::adamw(working.get(), dev_main.get(), dev_m.get(), dev_v.get(), dev_gradient.get(), n,
                 settings, kStream);
  math::adamw(s, 3, gradient, math::clip_scale(std::sqrt(sum), 1), main, m, v);
  CHECK(distance(dev_main.read(), main) < 1e-6);
  CHECK(distance(dev_m.read(), m) < 1e-6);
  CHECK(distance(dev_v.read(), v) < 1e-6);
  math::round_to(DType::bf16, main);
  CHECK(distance(working.read(), main) < kBf16Rounding);
}

TEST_CASE("sums and copies of odd lengths are exact") {
  constexpr std::int64_t n = 4104, odd = 1003;
  const auto a = random_bf16(n, 1), b = random_bf16(n, 2), c = random_bf16(n, 3);
  const Bf16Array dev_a(a), dev_b(b), dev_c(c), dev_y(n), narrow(odd);
  kernels::add(dev_y.get(), dev_a.get(), dev_b.get(), dev_c.get(), n, kStream);
  std::vector<float> sum(a.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a[i] + b[i] + c[i];
  CHECK(distance(dev_y.read(), sum) < kBf16Rounding);
  const FloatArray to(b), from(c);
  kernels::accumulate(to.get(), from.get(), odd, kStream);
  const auto accumulated = to.read();
  CHECK(accumulated[odd - 1] == b[odd - 1] + c[odd - 1]);
  CHECK(accumulated[odd] == b[odd]);
  kernels::narrow(narrow.get(), from.get(), odd, kStream);
  CHECK(narrow.read() == std::vector<float>(c.begin(), c.begin() + odd));
}

TEST_CASE("sigmoid routers choose among the best groups, with a correction") {
  constexpr std::int64_t tokens = 300, experts = 48, k = 4, length = 100;
  const auto logits = random_bf16(tokens * experts, 1), correction = random_bf16(experts, 2, 0.1F),
             dweights = random_bf16(tokens * k, 3);
  const math::RouterShape shape{.experts = experts,
                                .top_k = k,
                                .sigmoid_scores = true,
                                .num_groups = 6,
                                .topk_group = 2,
                                .norm_topk_prob = true,
                                .routed_scaling_factor = 2.5};
  std::vector<float> scores(logits.size()), dlogits(logits.size());
  std::vector<std::int32_t> chosen(dweights.size());
  math::router_scores(ConstMatrix(logits, tokens, experts), shape, Matrix(scores, tokens, experts));
  math::choose_experts(ConstMatrix(scores, tokens, experts), correction, shape, chosen);

  const Bf16Array dev_correction(correction);
  const kernels::Router router{experts, k, true, 2.5F, true, 6, 2, dev_correction.get()};
  const kernels::Sequences sequences{0, length};
  const FloatArray dev_logits(logits), dev_scores(tokens * experts), dev_dweights(dweights),
      dev_dlogits(tokens * experts);
  const DeviceArray<std::int32_t> row_map(tokens * 2 * k), counts(experts), visits(3 * experts),
      scratch(2 * experts);
  kernels::route(dev_scores.get(), row_map.get(), counts.get(), visits.get(), dev_logits.get(),
                 router, sequences, 3, {}, tokens, scratch.get(), kStream);
  CHECK(distance(dev_scores.read(), scores) < kFloatRounding);
  const auto map = row_map.read(), visited = visits.read();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < k; ++j) {
      CHECK(map[math::at(t * 2 * k + j)] == static_cast<float>(chosen[math::at(t * k + j)]));
    }
  }
  constexpr double coefficient = 0.01;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto first = visited.begin() + t / length * experts;
    const std::vector<double> of_sequence(first, first + experts);
    math::router_backward(ConstMatrix(scores, tokens, experts).row_range(t, 1),
                          math::ConstExpertIds(chosen).subspan(math::at(t * k), math::at(k)),
                          ConstMatrix(dweights, tokens, k).row_range(t, 1),
                          {.coefficient = coefficient, .visits = of_sequence, .tokens = length},
                          shape, Matrix(dlogits, tokens, experts).row_range(t, 1));
  }
  const double balance = coefficient * experts / (k * double{length} * length);
  kernels::route_backward(dev_dlogits.get(), dev_scores.get(), dev_dweights.get(), row_map.get(),
                          visits.get(), static_cast<float>(balance), router, sequences, tokens,
                          kStream);
  CHECK(distance(dev_dlogits.read(), dlogits) < 10 * kFloatRounding);
}

TEST_CASE("tokens are routed, sorted by expert and summed as the reference does") {
  // Copies of more than one chunk (1024).
  constexpr std::int64_t tokens = 701, experts = 40, k = 3, cols = 72, length = 256, first = 64;
  const auto logits = random_bf16(tokens * experts, 1), x = random_bf16(tokens * cols, 2),
             dweights = random_bf16(tokens * k, 3);
  const math::RouterShape shape{
      .experts = experts, .top_k = k, .norm_topk_prob = true, .routed_scaling_factor = 2.5};
  std::vector<float> scores(logits.size()), weights(dweights.size()), dlogits(logits.size());
  std::vector<std::int32_t> chosen(dweights.size());
  math::router_scores(ConstMatrix(logits, tokens, experts), shape, Matrix(scores, tokens, experts));
  math::choose_experts(ConstMatrix(scores, tokens, experts), {}, shape, chosen);
  math::router_weights(ConstMatrix(scores, tokens, experts), chosen, shape,
                       Matrix(weights, tokens, k));
  const math::ExpertOrder order = math::order_by_expert(chosen, experts);

  const kernels::Router router{experts, k, true, 2.5F};
  const kernels::Sequences sequences{first, length};
  constexpr std::int64_t num_sequences = 3;
  const FloatArray dev_logits(logits), dev_scores(tokens * experts), dev_weights(tokens * k),
      dev_dweights(dweights), dev_dlogits(tokens * experts), by_choice(tokens * k);
  const DeviceArray<std::int32_t> row_map(tokens * 2 * k), counts(experts),
      visits(num_sequences * experts), scratch(3 * experts);
  const Bf16Array dev_x(x), sorted(tokens * k * cols), sums(tokens * cols);
  kernels::route(dev_scores.get(), row_map.get(), counts.get(), visits.get(), dev_logits.get(),
                 router, sequences, num_sequences, {}, tokens, scratch.get(), kStream);
  kernels::sort_tokens(sorted.get(), dev_weights.get(), dev_x.get(), row_map.get(),
                       dev_scores.get(), router, tokens, cols, kStream);
  kernels::sum_copies(sums.get(), by_choice.get(), sorted.get(), row_map.get(), dev_weights.get(),
                      k, tokens, cols, kStream);
  CHECK(distance(dev_scores.read(), scores) < kFloatRounding);
  const auto map = row_map.read(), count = counts.read(), copies = sorted.read(),
             sorted_weights = dev_weights.read();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < k; ++j) {
      CHECK(map[math::at(t * 2 * k + j)] == static_cast<float>(chosen[math::at(t * k + j)]));
    }
  }
  for (std::int64_t e = 0; e < experts; ++e) {
    CHECK(count[math::at(e)] ==
          static_cast<float>(order.offsets[math::at(e + 1)] - order.offsets[math::at(e)]));
  }
  for (std::size_t i = 0; i < order.copies.size(); ++i) {
    const std::int64_t copy = order.copies[i];
    CHECK(copies[i * cols] == x[math::at(copy / k * cols)]);
    CHECK(sorted_weights[i] == doctest::Approx(weights[math::at(copy)]).epsilon(1e-5));
  }
  CHECK(distance(by_choice.read(), weights) < kFloatRounding);
  std::vector<float> thrice = x;
  for (float& value : thrice) value *= k;
  CHECK(distance(sums.read(), thrice) < kBf16Rounding);

  kernels::route_backward(dev_dlogits.get(), dev_scores.get(), dev_dweights.get(), row_map.get(),
                          visits.get(), 1e-3F, router, sequences, tokens, kStream);
  const auto visited = visits.read();
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t sequence = (first + t) / length;
    const std::vector<double> own(visited.begin() + sequence * experts,
                                  visited.begin() + (sequence + 1) * experts);
    // What the kernel takes as one factor: coefficient experts / (top_k tokens^2).
    const math::BalanceGradient balance{1e-3 * k * length * length / experts, own, length};
    math::router_backward(ConstMatrix(scores, tokens, experts).row_range(t, 1),
                          std::span(chosen).subspan(math::at(t * k), k),
                          ConstMatrix(dweights, tokens, k).row_range(t, 1), balance, shape,
                          Matrix(dlogits, tokens, experts).row_range(t, 1));
  }
  CHECK(distance(dev_dlogits.read(), dlogits) < 1e-4);
}

TEST_CASE("rows that arrived by rank are grouped by expert, and go back") {
  constexpr std::int64_t ranks = 3, experts = 12, first = 4, local = 4, cols = 24, room = 500;
  std::mt19937 generator(7);
  std::vector<std::int32_t> counts(ranks * experts);
  for (auto& c : counts) c = static_cast<std::int32_t>(generator() % 60);
  counts[first] = 0;
  const auto count = [&](std::int64_t source, std::int64_t expert) {
    return counts[math::at(source * experts + first + expert)];
  };
  // Every row's number says where it is from: source, expert, and which of theirs.
  std::vector<float> arrived, grouped;
  for (std::int64_t s = 0; s < ranks; ++s) {
    for (std::int64_t e = 0; e < local; ++e) {
      for (int i = 0; i < count(s, e); ++i) {
        arrived.push_back(static_cast<float>(s * 10000 + e * 1000 + i));
      }
    }
  }
  for (std::int64_t e = 0; e < local; ++e) {
    for (std::int64_t s = 0; s < ranks; ++s) {
      for (int i = 0; i < count(s, e); ++i) {
        grouped.push_back(static_cast<float>(s * 10000 + e * 1000 + i));
      }
    }
  }
  const std::size_t rows = arrived.size();
  REQUIRE(rows < room);
  arrived.resize(room, -1);
  auto x = random_bf16(room * cols, 1);
  const Bf16Array from(x), to(room * cols), again(room * cols);
  const FloatArray numbers(arrived), sorted(room), back(room);
  const DeviceArray<std::int32_t> dev_counts(ids_as_floats(counts));
  const kernels::Arrivals arrivals{dev_counts.get(), ranks, experts, first, local};
  kernels::group_rows(to.get(), sorted.get(), from.get(), numbers.get(), arrivals, true, room, cols,
                      kStream);
  kernels::group_rows(again.get(), back.get(), to.get(), sorted.get(), arrivals, false, room, cols,
                      kStream);
  auto found = sorted.read(), returned = back.read(), values = again.read();
  found.resize(rows);
  returned.resize(rows);
  values.resize(rows * cols);
  x.resize(rows * cols);
  arrived.resize(rows);
  CHECK(found == grouped);
  CHECK(returned == arrived);
  CHECK(values == x);
}

TEST_CASE("weights drawn on the device are the host's") {
  constexpr std::int64_t rows = 37, cols = 48, whole_cols = 96, first_row = 5, first_col = 16;
  constexpr std::uint64_t seed = 0x123456789abcdefU;
  ModelParameter parameter;
  parameter.index = 70;
  parameter.parameter.cols = whole_cols;
  std::vector<float> expected(rows * cols);
  SeededWeights{seed}(parameter, first_row, first_col, Matrix(expected, rows, cols));

  const kernels::SeededPart part{seed, 70, 0, cols, whole_cols, first_row, first_col};
  constexpr std::int64_t begin = 100, n = rows * cols - begin;
  const FloatArray main(n);
  const Bf16Array working(n);
  kernels::draw_weights(main.get(), working.get(), part, begin, n, kStream);
  const std::vector<float> behind(expected.begin() + begin, expected.end());
  CHECK(distance(main.read(), behind) < 1e-7);
  CHECK(distance(working.read(), behind) < kBf16Rounding);
}
