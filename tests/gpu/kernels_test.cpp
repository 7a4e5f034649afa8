// Kernels against the reference mathematics, on shapes that divide nothing evenly.

#include "kernels/kernels.h"

#include <doctest/doctest.h>

#include <cstring>

#include "executor/io/weights.h"
#include "executor/math/activation.h"
#include "executor/math/cross_entropy.h"
#include "executor/math/embedding.h"
#include "executor/math/norm.h"
#include "executor/math/optimizer.h"
#include "tests/gpu/device_array.h"

using namespace qplan;
using namespace qplan::test;
using math::ConstMatrix;
using math::Matrix;
using qplan::kernels::RowOrder;

namespace {

constexpr cudaStream_t kStream = nullptr;

void check_norm(std::int64_t rows, std::int64_t cols, bool around_zero) {
  CAPTURE(cols);
  CAPTURE(around_zero);
  const auto x = random_bf16(rows * cols, 1), w = random_bf16(cols, 2),
             dy = random_bf16(rows * cols, 3), residual = random_bf16(rows * cols, 4),
             before = random_bf16(cols, 5);
  const math::NormShape shape{.epsilon = 1e-6, .weight_around_zero = around_zero};
  const float centre = around_zero ? 1 : 0;
  std::vector<float> y(x.size()), dx(x.size()), dw = before;
  math::rms_norm(ConstMatrix(x, rows, cols), w, shape, Matrix(y, rows, cols));
  math::rms_norm_backward(ConstMatrix(x, rows, cols), w, shape, ConstMatrix(dy, rows, cols),
                          Matrix(dx, rows, cols), dw);
  math::add(ConstMatrix(residual, rows, cols), Matrix(dx, rows, cols));

  const Bf16Array dev_x(x), dev_w(w), dev_dy(dy), dev_residual(residual), dev_y(rows * cols),
      dev_dx(rows * cols);
  const FloatArray scratch(kernels::kScratchBytes / 4);
  const kernels::Lines dense{1, cols};
  kernels::rms_norm(dev_y.get(), dense, dev_x.get(), dense, dev_w.get(), rows, cols, 1e-6F, kStream,
                    centre);
  CHECK(distance(dev_y.read(), y) < kBf16Rounding);
  // Again: what a launch draws from is as it was, and what is not drawn is added up as before.
  std::vector<float> fixed;
  for (const RowOrder order :
       {RowOrder::drawn, RowOrder::drawn, RowOrder::fixed, RowOrder::fixed}) {
    CAPTURE(order == RowOrder::fixed);
    const FloatArray dev_dw(before);
    kernels::rms_norm_backward({dev_dx.get(), dev_dw.get(), dev_x.get(), dev_dy.get(), dev_w.get(),
                                dev_residual.get(), dense, dense, dense, centre},
                               rows, cols, 1e-6F, scratch.get(), kStream, order);
    check(cudaGetLastError());
    CHECK(distance(dev_dx.read(), dx) < kBf16Rounding);
    const std::vector<float> sums = dev_dw.read();
    CHECK(distance(sums, dw) < kFloatRounding);
    if (order == RowOrder::drawn) continue;
    if (!fixed.empty()) CHECK(sums == fixed);
    fixed = sums;
  }
}

void check_layer_norm(std::int64_t rows, std::int64_t cols, bool around_zero) {
  CAPTURE(cols);
  CAPTURE(around_zero);
  // Far from 0, as activations are where a mean is worth subtracting.
  auto x = random_bf16(rows * cols, 1);
  for (float& value : x) value += 4;
  math::round_to(DType::bf16, x);
  const auto w = random_bf16(cols, 2), b = random_bf16(cols, 3), dy = random_bf16(rows * cols, 4),
             residual = random_bf16(rows * cols, 5), before = random_bf16(cols, 6);
  const math::NormShape shape{.epsilon = 1e-5, .weight_around_zero = around_zero};
  std::vector<float> y(x.size()), dx(x.size()), dw = before, db = before;
  const ConstMatrix in(x, rows, cols), dout(dy, rows, cols);
  math::layer_norm(in, w, b, shape, Matrix(y, rows, cols));
  math::layer_norm_backward(in, w, shape, dout, Matrix(dx, rows, cols), dw, db);
  math::add(ConstMatrix(residual, rows, cols), Matrix(dx, rows, cols));

  const Bf16Array dev_x(x), dev_w(w), dev_b(b), dev_dy(dy), dev_residual(residual),
      dev_y(rows * cols), dev_dx(rows * cols);
  const FloatArray scratch(kernels::kScratchBytes / 4);
  const kernels::LayerNormWeights weights{dev_w.get(), dev_b.get(), around_zero ? 1.0F : 0.0F};
  kernels::layer_norm(dev_y.get(), dev_x.get(), weights, rows, cols, 1e-5F, kStream);
  CHECK(distance(dev_y.read(), y) < kBf16Rounding);
  for (const RowOrder order : {RowOrder::drawn, RowOrder::fixed}) {
    const FloatArray dev_dw(before), dev_db(before);
    kernels::layer_norm_backward({dev_dx.get(), dev_dw.get(), dev_db.get(), dev_x.get(),
                                  dev_dy.get(), dev_residual.get(), weights},
                                 rows, cols, 1e-5F, scratch.get(), kStream, order);
    check(cudaGetLastError());
    CHECK(distance(dev_dx.read(), dx) < kBf16Rounding);
    CHECK(distance(dev_dw.read(), dw) < kFloatRounding);
    CHECK(distance(dev_db.read(), db) < kFloatRounding);
  }
}

}  // namespace

TEST_CASE("RMSNorm and its gradients are the reference's at every width") {
  for (const std::int64_t cols : {64, 128, 200, 1024, 1536, 2048, 4096, 5120, 8192, 12288}) {
    check_norm(517, cols, false);
  }
  check_norm(3, 256, false);
  check_norm(67, 256, true);
  check_norm(67, 2048, true);
}

TEST_CASE("LayerNorm and its gradients are the reference's at every width") {
  for (const std::int64_t cols : {64, 200, 1024, 1536, 2048, 4096, 8192, 12288}) {
    check_layer_norm(517, cols, false);
  }
  check_layer_norm(3, 256, true);
  check_layer_norm(1001, 768, true);
}

TEST_CASE("activations and their gradients are the reference's") {
  constexpr std::int64_t rows = 53, width = 264;
  using Pair = std::pair<kernels::Activation, math::Activation>;
  for (const auto& [kind, expected] :
       {Pair{kernels::Activation::swiglu, math::Activation::swiglu},
        Pair{kernels::Activation::swiglu_clamped, math::Activation::swiglu_clamped},
        Pair{kernels::Activation::gelu_tanh, math::Activation::gelu_tanh},
        Pair{kernels::Activation::relu2, math::Activation::relu2}}) {
    CAPTURE(static_cast<int>(kind));
    // Wide enough to reach the limits of the clamped one.
    const std::int64_t wide = math::is_gated(expected) ? 2 * width : width;
    const auto x = random_bf16(rows * wide, 1, 4), dy = random_bf16(rows * width, 2),
               scale = random_bf16(rows, 3);
    const Bf16Array dev_x(x), dev_dy(dy);
    const FloatArray dev_scale(scale);
    for (const bool scaled : {false, true}) {
      CAPTURE(scaled);
      const Bf16Array dev_y(rows * width), dev_dx(rows * wide);
      const FloatArray dev_dscale(rows);
      std::vector<float> y(dy.size()), dx(x.size()), dscale(scale.size());
      const ConstMatrix in(x, rows, wide), dout(dy, rows, width);
      const math::ConstFloats by = scaled ? math::ConstFloats(scale) : math::ConstFloats();
      math::activate(expected, in, by, Matrix(y, rows, width));
      math::activate_backward(expected, in, by, dout, Matrix(dx, rows, wide),
                              scaled ? math::Floats(dscale) : math::Floats());
      const float* dev_by = scaled ? dev_scale.get() : nullptr;
      kernels::activate(kind, dev_y.get(), dev_x.get(), dev_by, rows, width, kStream);
      kernels::activate_backward(kind, dev_dx.get(), dev_dscale.get(), dev_x.get(), dev_dy.get(),
                                 dev_by, rows, width, kStream);
      check(cudaGetLastError());
      CHECK(distance(dev_y.read(), y) < kBf16Rounding);
      CHECK(distance(dev_dx.read(), dx) < kBf16Rounding);
      // Of the gates' exponentials, which are the device's fast ones.
      if (scaled) CHECK(distance(dev_dscale.read(), dscale) < 2 * kFloatRounding);
    }
  }
}

TEST_CASE("a rank looks up its rows of the table, and adds their gradients") {
  constexpr std::int64_t n = 1500, cols = 1160, first = 10, rows = 40;
  std::vector<std::int32_t> ids(n);
  std::mt19937 generator(7);
  // One of them, a common word, every other time.
  for (auto& id : ids) id = generator() % 2 ? 17 : static_cast<std::int32_t>(generator() % 64);
  const auto table = random_bf16(rows * cols, 1), dy = random_bf16(n * cols, 2),
             before = random_bf16(rows * cols, 3);
  std::vector<float> y(dy.size()), dtable = before;
  math::embed(ConstMatrix(table, rows, cols), first, ids, Matrix(y, n, cols));
  math::embed_backward(ConstMatrix(dy, n, cols), first, ids, Matrix(dtable, rows, cols));
  const Bf16Array dev_table(table), dev_dy(dy), dev_y(n * cols);
  const FloatArray dev_dtable(before);
  const DeviceArray<std::int32_t> dev_ids(ids_as_floats(ids));
  const DeviceArray<std::int64_t> kept(n);
  const FloatArray scratch(kernels::kScratchBytes / 4);
  kernels::embed(dev_y.get(), kept.get(), dev_table.get(), first, rows, dev_ids.get(), {}, n, cols,
                 kStream);
  check(kernels::embed_backward(dev_dtable.get(), dev_dy.get(), first, rows, kept.get(), n, cols,
                                scratch.get(), kStream));
  CHECK(dev_y.read() == y);
  CHECK(distance(dev_dtable.read(), dtable) < kFloatRounding);
}

TEST_CASE("learned positions are added to the rows of tokens, and get their gradients") {
  constexpr std::int64_t n = 300, cols = 136, rows = 40, places = 75;
  std::vector<std::int32_t> ids(n), position(n);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(i * 7 % 64);  // a third are another rank's
    position[i] = static_cast<std::int32_t>(i % places);
  }
  const auto table = random_bf16(rows * cols, 1), learned = random_bf16(places * cols, 2),
             dy = random_bf16(n * cols, 3), before = random_bf16(places * cols, 4);
  std::vector<float> y(dy.size()), of_places(dy.size()), dlearned = before;
  math::embed(ConstMatrix(table, rows, cols), 0, ids, Matrix(y, n, cols));
  math::embed(ConstMatrix(learned, places, cols), 0, position, Matrix(of_places, n, cols));
  math::add(ConstMatrix(of_places, n, cols), Matrix(y, n, cols));
  math::embed_backward(ConstMatrix(dy, n, cols), 0, position, Matrix(dlearned, places, cols));
  const Bf16Array dev_table(table), dev_learned(learned), dev_dy(dy), dev_y(n * cols);
  const FloatArray dev_dlearned(before);
  const DeviceArray<std::int32_t> dev_ids(ids_as_floats(ids)),
      dev_position(ids_as_floats(position));
  const DeviceArray<std::int64_t> kept(n);
  kernels::embed(dev_y.get(), kept.get(), dev_table.get(), 0, rows, dev_ids.get(),
                 {dev_learned.get(), dev_position.get()}, n, cols, kStream);
  const FloatArray scratch(kernels::kScratchBytes / 4);
  check(kernels::positions_backward(dev_dlearned.get(), dev_dy.get(), dev_position.get(), places, n,
                                    cols, scratch.get(), kStream));
  check(cudaGetLastError());
  CHECK(distance(dev_y.read(), y) < kBf16Rounding);
  CHECK(distance(dev_dlearned.read(), dlearned) < kFloatRounding);
}

TEST_CASE("cross-entropy over a part of a padded vocabulary is the reference's") {
  constexpr std::int64_t rows = 41, cols = 1016, first = 500, words = 1400;
  std::vector<std::int32_t> targets(rows);
  std::mt19937 generator(7);
  for (auto& t : targets) t = static_cast<std::int32_t>(generator() % words);
  targets[3] = targets[rows - 1] = -1;  // nothing is predicted
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
  for (std::size_t t = 0; t < rows; ++t) {
    if (targets[t] < 0) std::fill_n(dlogits.begin() + static_cast<long>(t) * cols, cols, 0.0F);
  }
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
  kernels::loss_finish(dev_loss.get(), dev_log_sum.get(), maximum.get(), dev_targets.get(), rows,
                       kStream);
  CHECK(distance(dev_log_sum.read(), log_sum) < kFloatRounding);
  for (std::size_t t = 0; t < rows; ++t) loss[t] = targets[t] < 0 ? 0 : loss[t] + log_sum[t];
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

TEST_CASE("AdamW steps runs with and without decay in one launch") {
  const std::vector<std::int64_t> ends{5, 1000, 1003, 6004, 10007};
  const std::int64_t n = ends.back();
  auto main = random_bf16(n, 1), m = random_bf16(n, 2), v = random_bf16(n, 3);
  const auto gradient = random_bf16(n, 4);
  for (float& x : v) x = std::abs(x);
  const FloatArray dev_main(main), dev_m(m), dev_v(v), dev_gradient(gradient);
  const Bf16Array working(n);
  kernels::AdamWRuns runs;
  runs.count = static_cast<int>(ends.size());
  std::copy(ends.begin(), ends.end(), runs.ends);
  runs.decayed = 0b01010;
  const kernels::AdamW settings{
      1e-2F, 0.9F,   0.95F, 1e-8F, 0.1F, 1 - std::pow(0.9F, 3.0F), 1 - std::pow(0.95F, 3.0F),
      0,     nullptr};
  kernels::adamw(working.get(), dev_main.get(), dev_m.get(), dev_v.get(), dev_gradient.get(), runs,
                 settings, kStream);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const math::AdamWSettings s{.lr = 1e-2, .weight_decay = (runs.decayed >> i & 1) != 0 ? 0.1 : 0};
    const auto part = [&](auto& all) {
      return std::span(all).subspan(math::at(begin), math::at(ends[i] - begin));
    };
    math::adamw(s, 3, part(gradient), 1, part(main), part(m), part(v));
    begin = ends[i];
  }
  const auto stepped = dev_main.read();
  for (std::size_t i = 0; i < main.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(stepped[i] - main[i]) < 1e-5 * std::max(1.0F, std::abs(main[i])));
  }
  CHECK(distance(dev_m.read(), m) < 1e-6);
  CHECK(distance(dev_v.read(), v) < 1e-6);
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
