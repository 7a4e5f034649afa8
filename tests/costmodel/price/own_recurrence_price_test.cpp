#include <doctest/doctest.h>

#include "costmodel/price/price.h"
#include "tests/costmodel/machine.h"
#include "tests/costmodel/rates.h"

using namespace qplan;

namespace {

// Milliseconds on an H200, medians of 100 launches
// (docs/evidence/archive/executor-recurrences-2026-11-28.md).
struct Measured {
  std::int64_t batch, tokens, heads;
  double forward, backward;
};

GatedDeltaRule delta_rule(const Measured& w, Pass pass) {
  return {.batch = w.batch,
          .seq_len = w.tokens,
          .key_heads = w.heads / 2,
          .value_heads = w.heads,
          .key_dim = 128,
          .value_dim = 128,
          .pass = pass,
          .own = true};
}

StateSpaceScan scan(const Measured& w, Pass pass) {
  return {.batch = w.batch,
          .seq_len = w.tokens,
          .heads = w.heads,
          .groups = 8,
          .head_dim = 64,
          .state_size = 128,
          .chunk = 64,
          .gated = true,
          .pass = pass,
          .own = true};
}

double milliseconds(const Price& price) {
  return price.time.value() * 1e3;
}

}  // namespace

TEST_CASE("our kernels of the delta rule take what they took on an H200") {
  const HardwareProfile& h200 = machine("h200-sxm");
  for (const Measured& w :
       {Measured{1, 4096, 32, 0.387, 0.872}, Measured{1, 8192, 32, 0.738, 1.693},
        Measured{4, 2048, 32, 0.735, 1.718}, Measured{1, 4096, 8, 0.242, 0.535}}) {
    CAPTURE(w.tokens);
    CAPTURE(w.batch);
    const Price forward = delta_rule_price(delta_rule(w, Pass::forward), h200);
    CHECK(error_of(milliseconds(forward), w.forward) < 0.03);
    CHECK(error_of(milliseconds(delta_rule_price(delta_rule(w, Pass::backward), h200)),
                   w.backward) < 0.03);
    CHECK(forward.source == PriceSource::formula);
  }
}

TEST_CASE("our kernels of the scan take what they took on an H200") {
  const HardwareProfile& h200 = machine("h200-sxm");
  for (const Measured& w :
       {Measured{1, 4096, 64, 0.258, 0.485}, Measured{1, 8192, 64, 0.494, 0.949},
        Measured{4, 2048, 64, 0.409, 0.928}, Measured{1, 4096, 128, 0.41, 1.017},
        Measured{1, 8192, 128, 0.805, 2.01}, Measured{4, 2048, 128, 0.714, 1.906},
        Measured{1, 4096, 16, 0.158, 0.215}}) {
    CAPTURE(w.tokens);
    CAPTURE(w.heads);
    CHECK(error_of(milliseconds(scan_price(scan(w, Pass::forward), h200)), w.forward) < 0.08);
    CHECK(error_of(milliseconds(scan_price(scan(w, Pass::backward), h200)), w.backward) < 0.08);
  }
}

TEST_CASE("what our kernels take on other GPUs is assumed") {
  const Price price = scan_price(scan({1, 4096, 64, 0, 0}, Pass::forward), machine("b200"));
  CHECK(price.source == PriceSource::assumed);
  CHECK(price.time > Seconds(0));
}
