#include <doctest/doctest.h>

#include "costmodel/price/price.h"
#include "tests/costmodel/machine.h"
#include "tests/costmodel/rates.h"

using namespace qplan;

namespace {

GatedDeltaRule of(std::int64_t batch, std::int64_t tokens, std::int64_t heads, Pass pass) {
  return {.batch = batch,
          .seq_len = tokens,
          .key_heads = heads,
          .value_heads = heads,
          .key_dim = 128,
          .value_dim = 128,
          .pass = pass};
}

double microseconds_of(const GatedDeltaRule& work, const char* machine_name) {
  return delta_rule_price(work, machine(machine_name)).time.value() * 1e6;
}

}  // namespace

// fla-core 0.6.0 on an H200 (torch 2.11, Triton 3.6.0): kernels' own time by a profiler, without
// the norms of queries and keys, which were in the same call: 64.4 and 95.7 us at 8192 tokens of 32
// heads, at 4096 half of that.
TEST_CASE("the delta rule takes what fla's kernels took on an H200") {
  struct Row {
    std::int64_t tokens, heads;
    double forward, backward;
  };
  for (const Row& r :
       {Row{4096, 32, 285.1 - 32.2, 759.3 - 47.9}, Row{8192, 32, 551.1 - 64.4, 1477.1 - 95.7},
        Row{16384, 16, 694.0 - 64.4, 1887.3 - 95.7}}) {
    CAPTURE(r.tokens);
    const double forward = microseconds_of(of(1, r.tokens, r.heads, Pass::forward), "h200-sxm");
    const double backward = microseconds_of(of(1, r.tokens, r.heads, Pass::backward), "h200-sxm");
    CHECK(error_of(forward, r.forward) < 0.05);
    CHECK(error_of(backward, r.backward) < 0.05);
  }
}

TEST_CASE("heads split over ranks do not shorten the walk through a sequence's chunks") {
  const double whole = microseconds_of(of(1, 8192, 32, Pass::forward), "h200-sxm");
  const double eighth = microseconds_of(of(1, 8192, 4, Pass::forward), "h200-sxm");
  const double walk = 128 * 1.2;
  CHECK(eighth > walk);
  CHECK(eighth - walk == doctest::Approx((whole - walk) / 8));
  // Sequences side by side walk together, until their blocks fill the GPU or its memory's links.
  CHECK(microseconds_of(of(2, 8192, 8, Pass::forward), "h200-sxm") -
            microseconds_of(of(1, 8192, 8, Pass::forward), "h200-sxm") <
        walk);
}

TEST_CASE("twice the tokens of the delta rule take twice as long, on every machine") {
  for (const std::string& name : hardware_names()) {
    CAPTURE(name);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const Price once = delta_rule_price(of(1, 8192, 32, pass), machine(name));
      const Price twice = delta_rule_price(of(1, 16384, 32, pass), machine(name));
      CHECK(twice.time.value() == doctest::Approx(2 * once.time.value()));
      CHECK(once.time.value() > 0);
    }
  }
  CHECK(delta_rule_price(of(1, 8192, 32, Pass::forward), machine("h200-sxm")).source ==
        PriceSource::formula);
  CHECK(delta_rule_price(of(1, 8192, 32, Pass::forward), machine("b200")).source ==
        PriceSource::assumed);
  CHECK(delta_rule_price({}, machine("h200-sxm")).time == Seconds());
}
