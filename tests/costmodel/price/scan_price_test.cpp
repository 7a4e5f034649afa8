#include <doctest/doctest.h>

#include "costmodel/price/price.h"
#include "tests/costmodel/machine.h"
#include "tests/costmodel/rates.h"

using namespace qplan;

namespace {

struct Row {
  std::int64_t batch, tokens, heads, groups, chunk;
  double forward, both;  // us
};

StateSpaceScan of(const Row& r, Pass pass) {
  return {.batch = r.batch,
          .seq_len = r.tokens,
          .heads = r.heads,
          .groups = r.groups,
          .head_dim = 64,
          .state_size = 128,
          .chunk = r.chunk,
          .pass = pass};
}

double microseconds_of(const StateSpaceScan& work, const char* machine_name) {
  return scan_price(work, machine(machine_name)).time.value() * 1e6;
}

}  // namespace

// mamba_ssm 2.3.2's mamba_chunk_scan_combined on an H200 (torch 2.11, Triton 3.6.0): kernels' own
// time by a profiler.
TEST_CASE("the scan takes what mamba_ssm's kernels took on an H200") {
  for (const Row& r :
       {Row{1, 4096, 64, 8, 128, 169.9, 817.8}, Row{1, 8192, 64, 8, 128, 323.6, 1507.7},
        Row{1, 32768, 64, 8, 128, 1227.4, 5633.6}, Row{4, 8192, 64, 8, 128, 1253.4, 5683.7},
        Row{1, 8192, 64, 8, 256, 324.1, 1581.4}, Row{1, 8192, 128, 8, 128, 598.9, 2632.8}}) {
    CAPTURE(r.tokens);
    CAPTURE(r.heads);
    CHECK(error_of(microseconds_of(of(r, Pass::forward), "h200-sxm"), r.forward) < 0.07);
    CHECK(error_of(microseconds_of(of(r, Pass::backward), "h200-sxm"), r.both - r.forward) < 0.1);
  }
  // Of few heads the walk through the chunks is most, and kernels are short.
  const Row few{1, 8192, 16, 2, 128, 110.1, 536.9};
  CHECK(error_of(microseconds_of(of(few, Pass::forward), "h200-sxm"), few.forward) < 0.15);
  CHECK(error_of(microseconds_of(of(few, Pass::backward), "h200-sxm"), few.both - few.forward) <
        0.2);
}

TEST_CASE("a scan's price is marked where its kernels were not measured") {
  const Row r{1, 8192, 64, 8, 128, 0, 0};
  CHECK(scan_price(of(r, Pass::forward), machine("h200-sxm")).source == PriceSource::formula);
  CHECK(scan_price(of(r, Pass::forward), machine("b200")).source == PriceSource::assumed);
  // A multiprocessor does as much anywhere: no more of the products than there are more of those.
  CHECK(microseconds_of(of(r, Pass::forward), "b200") >
        0.5 * microseconds_of(of(r, Pass::forward), "h200-sxm"));
  CHECK(scan_price({}, machine("h200-sxm")).time == Seconds());
}

// Six shapes of fla's chunked kernels, which nobody timed there by mamba_ssm, on an H100 and a
// B200: 1.56 to 1.90 forward, 1.31 to 1.78 backward, medians 1.66 and 1.52 (pytorch/helion
// fea89d20, examples/fla/BENCHMARKS.md).
TEST_CASE("a scan gains as much from an H100 to a B200 as fla's kernels do") {
  for (const std::int64_t heads : {64, 128}) {
    const Row r{1, 8192, heads, 8, 128, 0, 0};
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const double measured = pass == Pass::forward ? 1.66 : 1.52;
      const double gain =
          microseconds_of(of(r, pass), "h100-sxm") / microseconds_of(of(r, pass), "b200");
      CHECK(error_of(gain, measured) < 0.06);
    }
  }
}
