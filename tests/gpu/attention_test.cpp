#include "executor/math/attention.h"

#include <doctest/doctest.h>

#include <numeric>

#include "executor/cuda/attention_cudnn.h"
#include "kernels/kernels.h"
#include "tests/gpu/device_array.h"

using namespace qplan;
using namespace qplan::test;

namespace {

double size_of(const std::vector<float>& values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return std::sqrt(sum);
}

// `learned`: with sinks.
void check_attention(Attention work, bool learned = false) {
  CAPTURE(to_string(work));
  CAPTURE(learned);
  const std::int64_t rows = work.batch * work.q_len, keys = work.batch * work.kv_len;
  const std::int64_t q_width = work.heads * work.head_dim, k_width = work.kv_heads * work.head_dim;
  const std::int64_t v_width = work.kv_heads * work.v_head_dim,
                     out_width = work.heads * work.v_head_dim;
  const auto q = random_bf16(rows * q_width, 1), k = random_bf16(keys * k_width, 2),
             v = random_bf16(keys * v_width, 3), dout = random_bf16(rows * out_width, 4);

  // The reference, sequence by sequence.
  const math::AttentionShape shape{.heads = work.heads,
                                   .kv_heads = work.kv_heads,
                                   .head_dim = work.head_dim,
                                   .v_head_dim = work.v_head_dim,
                                   .scale = 1 / std::sqrt(static_cast<double>(work.head_dim)),
                                   .causal = work.causal,
                                   .window = work.window};
  const auto sinks = random_bf16(work.heads, 5), before = random_bf16(work.heads, 6);
  auto dsinks = before;
  std::vector<std::int64_t> positions(static_cast<std::size_t>(work.q_len));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> out(dout.size()), lse(static_cast<std::size_t>(rows * work.heads));
  std::vector<float> dq(q.size()), dk(k.size()), dv(v.size());
  std::vector<std::int64_t> key_positions(static_cast<std::size_t>(work.kv_len));
  std::iota(key_positions.begin(), key_positions.end(), 0);
  const auto part = [&](std::vector<float>& all, std::int64_t width, std::int64_t b) {
    const std::int64_t len = std::ssize(all) / width / work.batch;
    return math::Matrix(all, work.batch * len, width).row_range(b * len, len);
  };
  const auto const_part = [&](const std::vector<float>& all, std::int64_t width, std::int64_t b) {
    const std::int64_t len = std::ssize(all) / width / work.batch;
    return math::ConstMatrix(all, work.batch * len, width).row_range(b * len, len);
  };
  for (std::int64_t b = 0; b < work.batch; ++b) {
    const math::AttentionInput in{const_part(q, q_width, b), const_part(k, k_width, b),
                                  const_part(v, v_width, b), positions, key_positions};
    math::attention(in, shape, part(out, out_width, b), part(lse, work.heads, b));
    if (learned) {
      math::apply_sinks(sinks, shape, part(out, out_width, b), part(lse, work.heads, b));
      math::sinks_backward(sinks, shape, part(out, out_width, b), part(lse, work.heads, b),
                           const_part(dout, out_width, b), dsinks);
    }
    math::attention_backward(in, shape, part(out, out_width, b), part(lse, work.heads, b),
                             const_part(dout, out_width, b), part(dq, q_width, b),
                             part(dk, k_width, b), part(dv, v_width, b));
  }

  const Bf16Array dev_q(q), dev_k(k), dev_v(v), dev_dout(dout);
  const Bf16Array dev_out(rows * out_width), dev_dq(rows * q_width), dev_dk(keys * k_width),
      dev_dv(keys * v_width);
  const Bf16Array dev_sinks(sinks);
  const FloatArray dev_lse(rows * work.heads), dev_dsinks(before), sums(kernels::kScratchBytes / 4);
  const kernels::AttentionPart whole{dev_out.get(), dev_lse.get()};
  const kernels::HeadRows lines{work.batch, work.q_len, work.heads, work.v_head_dim};
  AttentionOperands operands{.q = dev_q.get(),
                             .k = dev_k.get(),
                             .v = dev_v.get(),
                             .out = dev_out.get(),
                             .log_sum_exp = dev_lse.get(),
                             .dout = dev_dout.get(),
                             .dq = dev_dq.get(),
                             .dk = dev_dk.get(),
                             .dv = dev_dv.get()};
  CudnnAttention attention;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    work.pass = pass;
    const DeviceMemory scratch = device_memory(attention.prepare(work) + 256);
    attention.run(work, operands, scratch.get(), nullptr);
    if (learned && pass == Pass::forward) {
      kernels::apply_sinks(whole, dev_sinks.get(), lines, nullptr);
    } else if (learned) {
      kernels::sinks_gradient(dev_dsinks.get(), whole, dev_dout.get(), dev_sinks.get(), lines,
                              sums.get(), nullptr);
    }
    check(cudaDeviceSynchronize());
  }
  if (learned) CHECK(distance(dev_dsinks.read(), dsinks) < 1e-2);
  // Probabilities are rounded to bf16 before the second product, gradients several times.
  CHECK(distance(dev_out.read(), out) < 6e-3);
  CHECK(distance(dev_dv.read(), dv) < 1e-2);
  if (work.window == 1) {  // with nothing to choose from there is no gradient, but for rounding
    const std::vector<float> zero(dq.size(), 0), zero_k(dk.size(), 0);
    CHECK(dq == zero);
    CHECK(dk == zero_k);
    CHECK(size_of(dev_dq.read()) < 1e-2 * size_of(dout));
    CHECK(size_of(dev_dk.read()) < 1e-2 * size_of(dout));
    return;
  }
  CHECK(distance(dev_dq.read(), dq) < 1e-2);
  CHECK(distance(dev_dk.read(), dk) < 1e-2);
}

}  // namespace

TEST_CASE("attention and its gradients are the reference's") {
  Attention work{.batch = 2,
                 .heads = 4,
                 .kv_heads = 4,
                 .q_len = 256,
                 .kv_len = 256,
                 .head_dim = 128,
                 .v_head_dim = 128,
                 .causal = true};
  check_attention(work);
  work.causal = false;
  check_attention(work);
  work.head_dim = work.v_head_dim = 64;
  check_attention(work);
}

TEST_CASE("several query heads share a key-value head") {
  const Attention work{.batch = 1,
                       .heads = 8,
                       .kv_heads = 2,
                       .q_len = 512,
                       .kv_len = 512,
                       .head_dim = 128,
                       .v_head_dim = 128,
                       .causal = true};
  check_attention(work);
}

TEST_CASE("keys may be longer than values") {
  const Attention work{.batch = 2,
                       .heads = 4,
                       .kv_heads = 4,
                       .q_len = 256,
                       .kv_len = 256,
                       .head_dim = 192,
                       .v_head_dim = 128,
                       .causal = true};
  check_attention(work);
}

TEST_CASE("queries and keys may differ in number") {
  Attention work{.batch = 2,
                 .heads = 4,
                 .kv_heads = 2,
                 .q_len = 256,
                 .kv_len = 512,
                 .head_dim = 128,
                 .v_head_dim = 128,
                 .causal = false};
  check_attention(work);
  work.q_len = 512;
  work.kv_len = 256;
  check_attention(work);
}

TEST_CASE("a query sees the last keys of a window") {
  Attention work{.batch = 2,
                 .heads = 4,
                 .kv_heads = 2,
                 .q_len = 512,
                 .kv_len = 512,
                 .head_dim = 64,
                 .v_head_dim = 64,
                 .window = 128,
                 .causal = true};
  check_attention(work);
  work.window = 100;
  check_attention(work);
  work.window = 1;
  check_attention(work);
  work.window = 4096;
  check_attention(work);
}

TEST_CASE("learned sinks take their share of the softmax, and get their gradient") {
  Attention work{.batch = 2,
                 .heads = 8,
                 .kv_heads = 2,
                 .q_len = 256,
                 .kv_len = 256,
                 .head_dim = 64,
                 .v_head_dim = 64,
                 .causal = true};
  check_attention(work, /*learned=*/true);
  work.window = 64;
  check_attention(work, /*learned=*/true);
}

// As the parts of a context-parallel ring: half of the keys of each sequence, and half of the
// queries.
TEST_CASE("attention over two halves of the keys, merged, is attention over all") {
  Attention work{.batch = 2,
                 .heads = 4,
                 .kv_heads = 2,
                 .q_len = 256,
                 .kv_len = 512,
                 .head_dim = 128,
                 .v_head_dim = 128,
                 .causal = false};
  const std::int64_t q_width = work.heads * work.head_dim, k_width = work.kv_heads * work.head_dim;
  const std::int64_t q_rows = work.batch * work.q_len, k_rows = work.batch * work.kv_len;
  const Bf16Array q(random_bf16(q_rows * q_width, 1)), k(random_bf16(k_rows * k_width, 2)),
      v(random_bf16(k_rows * k_width, 3)), out(q_rows * q_width), whole(q_rows * q_width),
      part(q_rows * q_width);
  const FloatArray sums(q_rows * work.heads), whole_sums(q_rows * work.heads),
      part_sums(q_rows * work.heads);
  CudnnAttention attention;
  const auto run = [&](const Attention& w, const Bf16Array& to, const FloatArray& log_sum,
                       std::int64_t first_query, std::int64_t first_key) {
    const AttentionRows stored{256, 512};
    const DeviceMemory scratch = device_memory(attention.prepare(w, stored) + 256);
    attention.run(w,
                  {.q = q.get() + first_query * q_width,
                   .k = k.get() + first_key * k_width,
                   .v = v.get() + first_key * k_width,
                   .out = to.get(),
                   .log_sum_exp = log_sum.get()},
                  scratch.get(), nullptr, stored);
    check(cudaDeviceSynchronize());
  };
  run(work, whole, whole_sums, 0, 0);
  work.kv_len = 256;
  run(work, out, sums, 0, 0);
  // The other half, first for early queries and then for late ones.
  work.q_len = 128;
  for (const std::int64_t first : {0, 128}) {
    run(work, part, part_sums, first, 256);
    kernels::merge_attention({out.get(), sums.get()}, {part.get(), part_sums.get()},
                             {work.batch, 256, first, 128}, work.heads, work.v_head_dim, nullptr);
  }
  check(cudaDeviceSynchronize());
  CHECK(distance(out.read(), whole.read()) < 6e-3);
  CHECK(distance(sums.read(), whole_sums.read()) < kFloatRounding);
}

// Without the option two runs of this shape may differ in a bit; with it they must not.
TEST_CASE("deterministic attention is the reference's and gives the same bits every time") {
  Attention work{.batch = 1,
                 .heads = 4,
                 .kv_heads = 2,
                 .q_len = 2048,
                 .kv_len = 2048,
                 .head_dim = 128,
                 .v_head_dim = 128,
                 .causal = true,
                 .pass = Pass::backward,
                 .deterministic = true};
  const std::int64_t q_size = 2048 * 4 * 128, k_size = 2048 * 2 * 128;
  const Bf16Array q(random_bf16(q_size, 1)), k(random_bf16(k_size, 2)), v(random_bf16(k_size, 3)),
      dout(random_bf16(q_size, 4)), out(q_size);
  const FloatArray log_sum(2048 * 4);
  CudnnAttention attention;
  const auto run = [&](Pass pass, const Bf16Array& dq, const Bf16Array& dk, const Bf16Array& dv) {
    work.pass = pass;
    work.deterministic = pass == Pass::backward;
    const DeviceMemory scratch = device_memory(attention.prepare(work) + 256);
    attention.run(work,
                  {.q = q.get(),
                   .k = k.get(),
                   .v = v.get(),
                   .out = out.get(),
                   .log_sum_exp = log_sum.get(),
                   .dout = dout.get(),
                   .dq = dq.get(),
                   .dk = dk.get(),
                   .dv = dv.get()},
                  scratch.get(), nullptr);
    check(cudaDeviceSynchronize());
  };
  const Bf16Array dq(q_size), dk(k_size), dv(k_size);
  run(Pass::forward, dq, dk, dv);
  run(Pass::backward, dq, dk, dv);
  for (int i = 0; i < 20; ++i) {
    const Bf16Array dq2(q_size), dk2(k_size), dv2(k_size);
    run(Pass::backward, dq2, dk2, dv2);
    CHECK(dq2.read() == dq.read());
    CHECK(dk2.read() == dk.read());
    CHECK(dv2.read() == dv.read());
  }
  Attention small = work;
  small.batch = 2;
  small.kv_heads = 4;
  small.q_len = small.kv_len = 256;
  check_attention(small);
  small.head_dim = small.v_head_dim = 64;
  check_attention(small);
  small.window = 100;
  check_attention(small);
  small.window = 0;
  small.head_dim = 192;  // latent attention's
  small.v_head_dim = 128;
  check_attention(small);
  small.causal = false;
  check_attention(small);
}
