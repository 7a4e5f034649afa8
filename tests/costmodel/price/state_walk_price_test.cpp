#include <doctest/doctest.h>

#include "costmodel/price/price.h"
#include "tests/costmodel/machine.h"
#include "tests/costmodel/rates.h"

using namespace qplan;

namespace {

// Milliseconds on an H200, medians of steps that gpu_plans timed op by op (2026-11-28;
// docs/evidence/executor.md).
struct Walked {
  std::int64_t batch, tokens, heads;
  double forward, backward;
};

GatedDeltaRule delta_rule(const Walked& w, Pass pass) {
  return {.batch = w.batch,
          .seq_len = w.tokens,
          .key_heads = w.heads / 2,
          .value_heads = w.heads,
          .key_dim = 128,
          .value_dim = 128,
          .chunk = 1,
          .pass = pass};
}

StateSpaceScan scan(const Walked& w, Pass pass) {
  return {.batch = w.batch,
          .seq_len = w.tokens,
          .heads = w.heads,
          .groups = 8,
          .head_dim = 64,
          .state_size = 128,
          .chunk = 1,
          .gated = true,
          .pass = pass};
}

double milliseconds(const Price& price) {
  return price.time.value() * 1e3;
}

}  // namespace

TEST_CASE("a delta rule that goes token by token takes what our kernels took on an H200") {
  const HardwareProfile& h200 = machine("h200-sxm");
  for (const Walked& w : {Walked{1, 4096, 32, 1.38, 4.74}, Walked{4, 2048, 32, 1.46, 8.14},
                          Walked{1, 8192, 32, 2.62, 9.6}}) {
    CAPTURE(w.tokens);
    CAPTURE(w.batch);
    const Price forward = delta_rule_price(delta_rule(w, Pass::forward), h200);
    CHECK(error_of(milliseconds(forward), w.forward) < 0.1);
    CHECK(error_of(milliseconds(delta_rule_price(delta_rule(w, Pass::backward), h200)),
                   w.backward) < 0.1);
    CHECK(forward.source == PriceSource::formula);
  }
}

TEST_CASE("a scan that goes token by token takes what our kernels took on an H200") {
  const HardwareProfile& h200 = machine("h200-sxm");
  for (const Walked& w : {Walked{1, 4096, 128, 2.02, 6.1}, Walked{4, 2048, 128, 2.99, 11.06},
                          Walked{1, 8192, 128, 3.92, 12.73}, Walked{1, 4096, 64, 1.63, 3.36},
                          Walked{4, 2048, 64, 1.48, 5.65}, Walked{1, 8192, 64, 3.32, 7.2}}) {
    CAPTURE(w.tokens);
    CAPTURE(w.heads);
    CHECK(error_of(milliseconds(scan_price(scan(w, Pass::forward), h200)), w.forward) < 0.1);
    CHECK(error_of(milliseconds(scan_price(scan(w, Pass::backward), h200)), w.backward) < 0.13);
  }
}

TEST_CASE("what our kernels take on other GPUs is assumed") {
  const Price price = scan_price(scan({1, 4096, 64, 0, 0}, Pass::forward), machine("b200"));
  CHECK(price.source == PriceSource::assumed);
  CHECK(price.time > Seconds(0));
}
