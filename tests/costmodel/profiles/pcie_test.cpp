// Nodes whose GPUs meet over PCIe.

#include <doctest/doctest.h>

#include <string>

#include "costmodel/evaluate.h"
#include "costmodel/price/price.h"
#include "models/program/recipe.h"
#include "tests/costmodel/machine.h"
#include "tests/temporary_folder.h"

using namespace qplan;

namespace {

// The machine of a profile that extends another.
HardwareProfile extended(const std::string& json) {
  const TemporaryFolder folder;
  const std::string file = folder.file("rig.json");
  write_file_atomically(file, json);
  return load_hardware(file);
}

}  // namespace

TEST_CASE("without NVLink a node's GPUs meet over PCIe") {
  const HardwareProfile p = extended(R"({
    "extends": "h100-pcie",
    "link": {"nvlink_gb_per_s": 0, "gpus_per_node": 4, "host_to_device_gb_per_s": 24,
             "device_to_host_gb_per_s": 20}
  })");
  CHECK(p.link.over_pcie());
  CHECK(p.link.nvlink_domain == 4);
  CHECK(p.collectives.empty());
  CHECK(p.collective_tables.empty());
  CHECK_FALSE(p.link.nvls);
  const auto price_of = [&](CollectiveKind kind, int ranks, Bytes bytes) {
    return collective_price({.kind = kind, .axis = Axis::tp, .bytes = bytes}, {ranks, ranks, 1, 1},
                            p);
  };
  const auto whole = [](CollectiveKind kind, int ranks, Bytes bytes) {
    // Rings of several GPUs reach 0.45 of what pinned copies do (profiles/generations/any.json).
    return bytes * bus_factor(kind, ranks) / gb_per_s(20 * 0.45);
  };
  for (const CollectiveKind kind :
       {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
        CollectiveKind::all_to_all, CollectiveKind::broadcast}) {
    CAPTURE(to_word(kind));
    const Price large = price_of(kind, 4, gib(1));
    CHECK(large.source == PriceSource::assumed);
    CHECK(large.error == p.errors.pcie);
    CHECK(large.time > whole(kind, 4, gib(1)));
    CHECK(large.time.value() == doctest::Approx(whole(kind, 4, gib(1)).value()).epsilon(0.01));
    CHECK(price_of(kind, 1, gib(1)).time == Seconds());
    CHECK(price_of(kind, 2, gib(1)).time <= large.time);
  }
  // A few bytes take LL's start and hops: NCCL's tuner has 6.6 us and 1 us over PCIe.
  CHECK(price_of(CollectiveKind::all_gather, 4, Bytes(8)).time.value() ==
        doctest::Approx(9.6e-6).epsilon(0.01));
  CHECK(price_of(CollectiveKind::all_reduce, 4, Bytes(8)).time.value() ==
        doctest::Approx(12.6e-6).epsilon(0.01));
  // Messages go the same way.
  CHECK(send_recv_price(gib(1), false, p).time.value() ==
        doctest::Approx((gib(1) / gb_per_s(20)).value()).epsilon(0.001));

  // Across nodes the slower of PCIe and network counts.
  const auto across = [](const HardwareProfile& hardware) {
    return collective_price({.kind = CollectiveKind::all_gather, .axis = Axis::dp, .bytes = gib(1)},
                            {8, 4, 2, 1}, hardware)
        .time;
  };
  HardwareProfile slow = p;
  slow.link.nic = gb_per_s(0.5);
  CHECK(across(p) < across(slow));
  HardwareProfile fast = p;
  fast.link.nic = gb_per_s(500);
  CHECK(across(fast) >= whole(CollectiveKind::all_gather, 4, gib(1)));

  HardwareProfile wider = p;
  set_gpus_per_node(wider, 8);
  CHECK(wider.link.nvlink_domain == 8);
  const ModelSpec model = load_model("qwen3-0.6b");
  const auto step = [&](const HardwareProfile& hardware) {
    const CostModel cost(model, recipe_of(RecipeKind::fsdp2), hardware, {});
    return cost.evaluate(parse_plan("dp4 gbs16 seq2048 zero3"));
  };
  CHECK(step(p).step_time > step(machine("h100-sxm")).step_time);
  CHECK(step(p).priced_from.assumed > 0);
}

TEST_CASE("collectives that were measured over PCIe are taken") {
  const HardwareProfile p = extended(R"({
    "extends": "h100-sxm",
    "link": {"nvlink_gb_per_s": 0},
    "collectives": {"fits": [{"kind": "all_gather", "ranks": 8, "alpha_us": 20, "gb_per_s": 10},
                             {"kind": "all_reduce", "ranks": 8, "alpha_us": 30, "gb_per_s": 11}],
                    "source": "measured"}
  })");
  const Price price = collective_price(
      {.kind = CollectiveKind::all_reduce, .axis = Axis::tp, .bytes = gib(1)}, {8, 8, 1, 1}, p);
  CHECK(price.source == PriceSource::formula);
  CHECK(price.time.value() ==
        doctest::Approx((gib(1) * 1.75 / gb_per_s(11)).value()).epsilon(0.001));
}
