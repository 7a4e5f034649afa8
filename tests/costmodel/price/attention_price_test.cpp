#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "costmodel/price/price.h"
#include "tests/costmodel/machine.h"
#include "tests/costmodel/rates.h"

using namespace qplan;

namespace {

Attention causal(std::int64_t batch, std::int64_t heads, std::int64_t s, Pass pass) {
  return {.batch = batch,
          .heads = heads,
          .kv_heads = 8,
          .q_len = s,
          .kv_len = s,
          .head_dim = 128,
          .pass = pass};
}

}  // namespace

// Short runs of the kernel alone; the profile's sustained rate is what is left at the power limit.
TEST_CASE("attention meets what cuDNN reached on an H200") {
  struct Row {
    std::int64_t batch, heads, s;
    double forward, backward;
  };
  for (const Row& r :
       {Row{2, 32, 2048, 473, 346}, Row{1, 8, 4096, 355, 307}, Row{1, 32, 4096, 536, 423},
        Row{1, 64, 4096, 585, 467}, Row{4, 32, 4096, 568, 448}, Row{1, 32, 8192, 617, 511},
        Row{1, 32, 32768, 600, 537}}) {
    CAPTURE(r.s);
    CAPTURE(r.heads);
    const HardwareProfile& p = machine("h200-sxm");
    const auto burst = [&](Pass pass) {
      return teraflops(causal(r.batch, r.heads, r.s, pass), p) / p.attention.back().sustain;
    };
    CHECK(error_of(burst(Pass::forward), r.forward) < 0.13);
    CHECK(error_of(burst(Pass::backward), r.backward) < 0.15);
  }
}

// NVIDIA/cudnn-frontend 50c8aeb, benchmark/sdpa_benchmark_training: causal, 64 heads, TFLOP/s of
// the kernel alone.
TEST_CASE("attention in fp8 meets what cuDNN reached on H200, GB200 and GB300") {
  struct Row {
    const char* gpu;
    std::int64_t batch, s;
    double forward, backward, off;
  };
  for (const Row& r :
       {Row{"h200-sxm", 1, 4096, 854, 471, 0.2}, Row{"h200-sxm", 1, 16384, 1010, 374, 0.2},
        Row{"gb200", 2, 2048, 1420, 831, 0.03}, Row{"gb200", 2, 8192, 2047, 1454, 0.03},
        Row{"gb200", 2, 32768, 2197, 1687, 0.03}, Row{"gb300", 2, 2048, 1954, 944, 0.03},
        Row{"gb300", 2, 8192, 2897, 1781, 0.03}, Row{"gb300", 2, 32768, 3108, 2128, 0.03}}) {
    CAPTURE(r.gpu);
    CAPTURE(r.s);
    const HardwareProfile& p = machine(r.gpu);
    const auto burst = [&](Pass pass) {
      Attention a = causal(r.batch, 64, r.s, pass);
      a.kernel = AttentionKernel::fused_fp8;
      return teraflops(a, p) / p.fp8_attention.back().sustain;
    };
    CHECK(error_of(burst(Pass::forward), r.forward) < 0.03);
    CHECK(error_of(burst(Pass::backward), r.backward) < r.off);
  }
  // Where a profile has no such fits, bf16's stand for them.
  Attention a = causal(1, 32, 4096, Pass::forward);
  const double bf16 = teraflops(a, machine("mi300x"));
  a.kernel = AttentionKernel::fused_fp8;
  CHECK(teraflops(a, machine("mi300x")) == bf16);
}

// AITER's assembly, bf16, causal, sums in fp32 (ROCm/aiter 0403bcdf, op_tests/cpp/mha/README.md).
TEST_CASE("attention of an MI300X and an MI355X takes what AMD's kernels do") {
  struct Row {
    const char* gpu;
    std::int64_t batch, heads, s;
    double forward, backward;
  };
  for (const Row& r :
       {Row{"mi300x", 8, 64, 2048, 452, 348}, Row{"mi300x", 8, 32, 4096, 513, 409},
        Row{"mi300x", 4, 64, 8192, 541, 435}, Row{"mi300x", 1, 64, 16384, 542, 412},
        Row{"mi355x", 8, 64, 2048, 963, 630}, Row{"mi355x", 8, 32, 4096, 1167, 726},
        Row{"mi355x", 4, 64, 8192, 1319, 774}, Row{"mi355x", 1, 64, 16384, 1392, 809}}) {
    CAPTURE(r.gpu);
    CAPTURE(r.s);
    const HardwareProfile& p = machine(r.gpu);
    const auto burst = [&](Pass pass) {
      return teraflops(causal(r.batch, r.heads, r.s, pass), p) / p.attention.back().sustain;
    };
    CHECK(error_of(burst(Pass::forward), r.forward) < 0.08);
    CHECK(error_of(burst(Pass::backward), r.backward) < 0.08);
  }
}

// torch SDPA's flash backend, 2026-11 (docs/evidence/archive/issue3-h200.json); worst of 36 shapes
// 19%.
TEST_CASE("FlashAttention-2 on Hopper reaches half of what cuDNN does") {
  struct Row {
    std::int64_t batch, heads, s;
    double forward, backward;
  };
  for (const Row& r : {Row{4, 16, 2048, 238, 152}, Row{2, 16, 4096, 262, 201},
                       Row{1, 16, 8192, 281, 245}, Row{1, 16, 32768, 332, 315}}) {
    CAPTURE(r.s);
    const auto rate = [&](Pass pass) {
      Attention a = causal(r.batch, r.heads, r.s, pass);
      a.kernel = AttentionKernel::flash2;
      return teraflops(a, machine("h200-sxm"));
    };
    CHECK(error_of(rate(Pass::forward), r.forward) < 0.08);
    CHECK(error_of(rate(Pass::backward), r.backward) < 0.08);
  }
}

// Dao-AILab/flash-attention issue 1589 (heads of 64) and meta-pytorch/tritonbench pull request 171.
TEST_CASE("FlashAttention-2 on Blackwell is no faster than on Hopper") {
  const auto rate = [](std::int64_t batch, std::int64_t heads, std::int64_t dim, Pass pass) {
    Attention a = causal(batch, heads, 8192, pass);
    a.head_dim = dim;
    a.causal = false;
    a.kernel = AttentionKernel::flash2;
    return teraflops(a, machine("b200"));
  };
  CHECK(error_of(rate(2, 32, 64, Pass::forward), 343) < 0.05);
  CHECK(error_of(rate(2, 32, 64, Pass::backward), 329) < 0.05);
  CHECK(error_of(rate(8, 16, 128, Pass::forward), 362) < 0.06);
}

// torch 2.11 on an H100, us: FlexAttention as torchtitan compiles it, 8192 tokens, 32 heads and 8
// of keys, causal within documents.
TEST_CASE("FlexAttention lies between FlashAttention-2 and cuDNN on Hopper") {
  struct Row {
    std::int64_t document;
    double forward, backward;
  };
  const HardwareProfile& p = machine("h100-sxm");
  const auto microseconds_of = [&](std::int64_t document, Pass pass, AttentionKernel kernel) {
    Attention a = causal(8192 / document, 32, document, pass);
    a.kernel = kernel;
    return 1e6 * attention_price(a, p).time.value();
  };
  for (const Row& r :
       {Row{8192, 1312.5, 4239.2}, Row{2048, 424.1, 1258.8}, Row{512, 191.7, 610.0}}) {
    CAPTURE(r.document);
    CHECK(error_of(microseconds_of(r.document, Pass::forward, AttentionKernel::flex), r.forward) <
          0.06);
    CHECK(error_of(microseconds_of(r.document, Pass::backward, AttentionKernel::flex), r.backward) <
          0.07);
  }
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const double flex = microseconds_of(8192, pass, AttentionKernel::flex);
    CHECK(flex < microseconds_of(8192, pass, AttentionKernel::flash2));
    CHECK(flex > microseconds_of(8192, pass, AttentionKernel::fused));
  }
}

// cuDNN 9.19 on an H200, causal, among products (three parts of their time to one of attention's)
// at the power limit, us (docs/evidence/archive/issue6-hopper-12.json).
TEST_CASE("heads of 64 and 256 meet what cuDNN reached among products on an H200") {
  struct Row {
    std::int64_t batch, heads, s, head_dim;
    double forward, backward;
  };
  for (const Row& r :
       {Row{1, 64, 4096, 64, 416.9, 1165.6}, Row{1, 64, 8192, 64, 1546.9, 4250.0},
        Row{1, 64, 16384, 64, 5900.1, 15500.2}, Row{2, 16, 4096, 256, 562.5, 2329.3},
        Row{1, 16, 8192, 256, 1070.8, 4143.1}, Row{1, 16, 16384, 256, 3894.6, 16705.2},
        Row{1, 8, 32768, 256, 7811.0, 32113.8}}) {
    CAPTURE(r.head_dim);
    CAPTURE(r.s);
    const auto microseconds_of = [&](Pass pass) {
      Attention a = causal(r.batch, r.heads, r.s, pass);
      a.head_dim = r.head_dim;
      return 1e6 * attention_price(a, machine("h200-sxm")).time.value();
    };
    CHECK(error_of(microseconds_of(Pass::forward), r.forward) < 0.06);
    CHECK(error_of(microseconds_of(Pass::backward), r.backward) < 0.09);
  }
}

// What alone stays below the power limit slows beside products, which do not. Of steps of both, by
// one clock for all of it: 0.92 where attention takes 0.535 of the time, 0.89 at 0.26 (H100, 8192
// tokens of 32 heads, docs/evidence/archive/issue6-hopper-12.json).
TEST_CASE("FlashAttention-2 runs at the clock that the products beside it leave") {
  const HardwareProfile& p = machine("h100-sxm");
  Attention a = causal(1, 32, 8192, Pass::forward);
  a.kernel = AttentionKernel::flash2;
  const Seconds alone = attention_price(a, p).time;
  const auto clock_beside = [&](double products) {
    a.products = products;
    return alone / attention_price(a, p).time;
  };
  CHECK(clock_beside(0) == 1);
  const double even = clock_beside(2.67), mostly_products = clock_beside(8.66);
  CHECK(error_of(even, 0.92) < 0.01);
  CHECK(error_of(mostly_products, 0.89) < 0.01);
  CHECK(clock_beside(1e9) == doctest::Approx(0.89).epsilon(1e-3));
  a.kernel = AttentionKernel::fused;  // at its own limit alone, too
  a.products = 0;
  const Seconds fused = attention_price(a, p).time;
  a.products = 6;
  CHECK(attention_price(a, p).time == fused);
}

// torch 2.11 on an H100, ms: scaled_dot_product_attention with dropout 0.1 and without.
TEST_CASE("dropout takes attention longer by its random numbers") {
  struct Row {
    std::int64_t batch, heads, s;
    AttentionKernel kernel;
    double forward, backward;
  };
  for (const Row& r : {Row{4, 32, 2048, AttentionKernel::fused, 0.262, 0.168},
                       Row{1, 32, 8192, AttentionKernel::fused, 1.053, 0.614},
                       Row{2, 8, 8192, AttentionKernel::flash2, 0.243, 0.419},
                       Row{1, 32, 8192, AttentionKernel::flash2, 0.303, 0.565}}) {
    CAPTURE(r.s);
    const auto longer = [&](Pass pass) {
      Attention a = causal(r.batch, r.heads, r.s, pass);
      a.kernel = r.kernel;
      const Seconds plain = attention_price(a, machine("h100-sxm")).time;
      a.dropout = true;
      return 1e3 * (attention_price(a, machine("h100-sxm")).time - plain).value();
    };
    CHECK(error_of(longer(Pass::forward), r.forward) < 0.4);
    CHECK(std::abs(longer(Pass::forward) - r.forward) < 0.1);
    CHECK(std::abs(longer(Pass::backward) - r.backward) < 0.18);
  }
}

// cuDNN 9.14 under Transformer Engine 2.12 on an H100: compute_dot_do_o with learned logits, less
// without, ms (docs/evidence/archive/issue3-megatron-layers.json).
TEST_CASE("learned logits take cuDNN's backward longer, and nothing else") {
  for (const auto& [batch, heads, ms] :
       {std::tuple{1, 64, 0.373}, {4, 64, 1.710}, {1, 32, 0.178}, {4, 32, 0.811}}) {
    const auto longer = [&](Pass pass, AttentionKernel kernel, const char* gpu) {
      Attention a = causal(batch, heads, 4096, pass);
      a.kernel = kernel;
      const Seconds plain = attention_price(a, machine(gpu)).time;
      a.sinks = true;
      return 1e3 * (attention_price(a, machine(gpu)).time - plain).value();
    };
    CAPTURE(heads);
    CHECK(error_of(longer(Pass::backward, AttentionKernel::fused, "h100-sxm"), ms) < 0.12);
    CHECK(longer(Pass::forward, AttentionKernel::fused, "h100-sxm") == 0);
    CHECK(longer(Pass::backward, AttentionKernel::flash2, "h100-sxm") == 0);
    CHECK(longer(Pass::backward, AttentionKernel::fused, "a100-80gb-sxm") == 0);
  }
}

TEST_CASE("attention meets the published training rates of A100 and B200") {
  // TE on A100: forward 185, backward 157 at its plateau; TE alone on a B200: 980 at 4k, 1311-1350
  // at 32k, of which steps sustain 0.9, as of products
  constexpr double kInSteps = 0.9;
  CHECK(error_of(teraflops(causal(4, 64, 8192, Pass::forward), machine("a100-80gb-sxm")), 185) <
        .15);
  const auto alone = [&](std::int64_t heads, std::int64_t s, Pass pass) {
    return teraflops(causal(1, heads, s, pass), machine("b200")) / kInSteps;
  };
  CHECK(error_of(alone(128, 4096, Pass::forward), 980) < 0.1);
  CHECK(error_of(alone(128, 32768, Pass::forward), 1330) < 0.1);
  CHECK(error_of(alone(128, 32768, Pass::backward), 1025) < 0.12);
  // Few heads leave the forward multiprocessors idle, the backward hardly.
  for (const auto& [heads, backward] :
       {std::pair{8, 741.}, {16, 850.}, {32, 896.}, {64, 820.}, {128, 935.}}) {
    CAPTURE(heads);
    CHECK(error_of(alone(heads, 4096, Pass::backward), backward) < 0.15);
  }
}

// Backward of torch's flash backend, H100: with torch.use_deterministic_algorithms over without.
TEST_CASE("a fixed order of adding takes attention's backward longer, and only that") {
  struct Row {
    std::int64_t batch, heads, s;
    double plain_ms, ordered_ms;
  };
  for (const Row& r : {Row{4, 32, 2048, 1.7291, 2.0837}, Row{2, 8, 8192, 2.7977, 4.944},
                       Row{1, 32, 8192, 5.1757, 8.3468}}) {
    CAPTURE(r.s);
    CAPTURE(r.heads);
    const auto longer = [&](Pass pass, AttentionKernel kernel) {
      Attention a = causal(r.batch, r.heads, r.s, pass);
      a.kernel = kernel;
      const Seconds plain = attention_price(a, machine("h100-sxm")).time;
      a.deterministic = true;
      return attention_price(a, machine("h100-sxm")).time / plain;
    };
    CHECK(longer(Pass::forward, AttentionKernel::flash2) == 1);
    CHECK(error_of(longer(Pass::backward, AttentionKernel::flash2), r.ordered_ms / r.plain_ms) <
          0.1);
    const double stored = longer(Pass::backward, AttentionKernel::fused);
    CHECK(stored > 1.05);
    CHECK(stored < 1.15);
  }
}

TEST_CASE("head dimensions between two fits lie between their prices") {
  const HardwareProfile& p = machine("h100-sxm");
  const auto rate = [&](std::int64_t d, std::int64_t v) {
    Attention a = causal(1, 64, 4096, Pass::forward);
    a.head_dim = d;
    a.v_head_dim = v;
    return teraflops(a, p);
  };
  CHECK(rate(96, 96) > rate(64, 64));
  CHECK(rate(96, 96) < rate(128, 128));
  CHECK(rate(192, 128) > 0.9 * rate(128, 128));
  CHECK(rate(32, 32) > 0);
}

TEST_CASE("a sliding window saves time, but not all that it saves in FLOPs") {
  const HardwareProfile& p = machine("h100-sxm");
  Attention a = causal(1, 64, 32768, Pass::forward);
  const Seconds full = attention_price(a, p).time;
  a.window = 128;
  const Seconds windowed = attention_price(a, p).time;
  CHECK(windowed < 0.2 * full);
  CHECK(teraflops(a, p) < 300);
}

TEST_CASE("writing the scores out is slower than fused attention") {
  for (const char* name : {"a100-80gb-sxm", "h100-sxm", "b200"}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const Attention fused = causal(4, 16, 2048, pass);
      Attention unfused = fused;
      unfused.kernel = AttentionKernel::unfused;
      CHECK(attention_price(unfused, machine(name)).time >
            2 * attention_price(fused, machine(name)).time);
    }
  }
}

TEST_CASE("Megatron's softmax kernel takes heads by fours; others cost more, a head") {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const auto of_heads = [&](std::int64_t heads) {
      Attention a = causal(1, heads, 1024, pass);
      a.kernel = AttentionKernel::unfused;
      return a;
    };
    const auto a_head = [&](std::int64_t heads) {
      return attention_price(of_heads(heads), machine("a100-80gb-sxm")).time.value() /
             static_cast<double>(heads);
    };
    CHECK(fused_softmax(of_heads(4)));
    CHECK_FALSE(fused_softmax(of_heads(6)));
    CHECK(a_head(6) > 1.5 * a_head(4));
    CHECK(a_head(6) > 1.5 * a_head(8));
  }
}
