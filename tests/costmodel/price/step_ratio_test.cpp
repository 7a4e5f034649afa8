// Steps of models that were measured, and what they say of works of other sizes.

#include "costmodel/price/step_ratio.h"

#include <doctest/doctest.h>

#include <cmath>

#include "costmodel/price/price.h"
#include "costmodel/profiles/calibrate.h"

using namespace qplan;

namespace {

Gemm product(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.m = m, .n = n, .k = k};
}

Attention attention(std::int64_t len, std::int64_t dim, Pass pass = Pass::forward) {
  return {.batch = 1,
          .heads = 32,
          .kv_heads = 8,
          .q_len = len,
          .kv_len = len,
          .head_dim = dim,
          .v_head_dim = dim,
          .pass = pass};
}

Seconds price_on(const HardwareProfile& hardware, const Work& work) {
  return price(work, {.hardware = &hardware}).time;
}

// A machine whose steps take `ratio` times what `work` is priced.
HardwareProfile with_steps(const std::vector<std::pair<Work, double>>& measured) {
  const HardwareProfile base = load_hardware("h200-sxm");
  Calibration c{.gpu = "NVIDIA H200", .driver = "CUDA 13.0", .date = "2026-01-31"};
  c.launch = microseconds(2);
  c.host_to_device = c.device_to_host = BytesPerSecond(5e10);
  const HardwareProfile plain = read_hardware(calibrated_profile(base.source, c), "plain");
  for (const auto& [work, ratio] : measured) {
    c.steps.push_back({work, price_on(plain, work) * ratio});
  }
  return read_hardware(calibrated_profile(base.source, c), "measured");
}

double ratio_on(const HardwareProfile& hardware, const Work& work) {
  HardwareProfile plain = hardware;
  plain.step_ratios.clear();
  return price_on(hardware, work) / price_on(plain, work);
}

}  // namespace

TEST_CASE("a work of a measured step is priced as it was measured, others by how near they are") {
  const HardwareProfile hardware = with_steps({{product(4096, 4096, 4096), 1.2},
                                               {product(4096, 65536, 4096), 0.8},
                                               {product(131072, 512, 512), 1.0},
                                               {attention(4096, 128), 1.3}});
  CHECK(ratio_on(hardware, product(4096, 4096, 4096)) == doctest::Approx(1.2).epsilon(0.03));
  CHECK(ratio_on(hardware, product(4096, 65536, 4096)) == doctest::Approx(0.8).epsilon(0.03));
  // Nearer the one than the other; between both; far from both: their median.
  CHECK(ratio_on(hardware, product(8192, 4096, 4096)) > 1.15);
  const double between = ratio_on(hardware, product(4096, 16384, 4096));
  CHECK(between > 0.9);
  CHECK(between < 1.1);
  CHECK(ratio_on(hardware, product(64, 64, 64)) == doctest::Approx(1.0).epsilon(0.03));
  // Heads of another size are related; backward is another kernel.
  CHECK(ratio_on(hardware, attention(4096, 64)) == doctest::Approx(1.3).epsilon(0.01));
  CHECK(ratio_on(hardware, attention(4096, 128, Pass::backward)) == doctest::Approx(1.0));
  CHECK(ratio_on(hardware, Rowwise{.kind = RowwiseKind::swiglu, .rows = 4096, .cols = 4096}) ==
        doctest::Approx(1.0));
}

TEST_CASE("an optimizer's step is priced as the measured steps end") {
  const HardwareProfile hardware = with_steps({{Update{.params = 500'000'000}, 0.93}});
  CHECK(ratio_on(hardware, Update{.params = 500'000'000}) == doctest::Approx(0.93).epsilon(0.01));
  CHECK(ratio_on(hardware, Update{.params = 2'000'000'000}) == doctest::Approx(0.93).epsilon(0.01));
  CHECK(ratio_on(hardware, Update{.params = 500'000'000, .optimizer = OptimizerKind::muon}) == 1);
}

TEST_CASE("sums of products in fp32 lean on plain products where none was measured, fp8 does not") {
  const HardwareProfile hardware = with_steps({{product(4096, 4096, 4096), 1.1}});
  Gemm sums = product(4096, 4096, 4096);
  sums.accumulate_fp32 = true;
  CHECK(ratio_on(hardware, sums) == doctest::Approx(1.1).epsilon(0.01));
  Gemm narrow = product(4096, 4096, 4096);
  narrow.dtype = DType::fp8;
  CHECK(ratio_on(hardware, narrow) == doctest::Approx(1.0));
}

TEST_CASE("the median of a work's ops counts, whatever one of them met") {
  const Work work = product(4096, 4096, 4096);
  const HardwareProfile base = load_hardware("h200-sxm");
  Calibration c{.gpu = "NVIDIA H200", .driver = "CUDA 13.0", .date = "2026-01-31"};
  c.launch = microseconds(2);
  c.host_to_device = c.device_to_host = BytesPerSecond(5e10);
  const HardwareProfile plain = read_hardware(calibrated_profile(base.source, c), "plain");
  for (const double ratio : {1.1, 1.1, 9.0}) {
    c.steps.push_back({work, price_on(plain, work) * ratio});
  }
  const HardwareProfile hardware = read_hardware(calibrated_profile(base.source, c), "measured");
  CHECK(ratio_on(hardware, work) == doctest::Approx(1.1).epsilon(0.01));
}

TEST_CASE("small collectives of a measured step say nothing of large ones") {
  const Collective small{CollectiveKind::all_reduce, Axis::tp, Bytes(16384)};
  const Collective large{CollectiveKind::all_reduce, Axis::tp, Bytes(80 << 20)};
  const WorkPoint measured = point_of(small, 2);
  const StepRatios ratios{{measured.kind, {{{log2_size(measured.sizes.front())}, std::log(1.4)}}}};
  CHECK(step_ratio(measured, ratios) == doctest::Approx(1.4).epsilon(0.05));
  CHECK(step_ratio(point_of(large, 2), ratios) == doctest::Approx(1).epsilon(1e-3));
}

TEST_CASE("a ratio that is remembered is the one that is asked anew") {
  const Collective gather{.kind = CollectiveKind::all_gather, .bytes = Bytes(1 << 20)};
  const HardwareProfile hardware = load_hardware("h200-sxm-measured");
  REQUIRE(!hardware.step_ratios.empty());
  StepRatioMemo memo;
  for (int again = 0; again < 2; ++again) {
    for (const Work& work : {Work(product(4096, 4096, 4096)), Work(product(4096, 4096, 4095)),
                             Work(attention(4096, 128)), Work(gather)}) {
      for (const int ranks : {1, 2, 8}) {
        CAPTURE(to_string(work));
        CHECK(memo.of(work, ranks, hardware.step_ratios) ==
              step_ratio(point_of(work, ranks), hardware.step_ratios));
      }
    }
  }
}
