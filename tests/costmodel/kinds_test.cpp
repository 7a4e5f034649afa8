// Clusters whose GPUs are of two kinds.

#include <doctest/doctest.h>

#include "costmodel/evaluate.h"
#include "tests/costmodel/job.h"

using namespace qplan;

namespace {

struct Mixed {
  ModelSpec model = load_model("llama3-8b");
  std::vector<GpuKind> kinds;
  HardwareProfile whole;
  CostModel cost;

  explicit Mixed(std::vector<GpuKind> of)
      : kinds(std::move(of)),
        whole(as_one_machine(kinds)),
        cost(model, recipe_of(RecipeKind::megatron), whole, kinds, {}) {}
};

constexpr const char* kHalves = "tp2 pp2 dp4 zero1 gbs32 sp";

}  // namespace

TEST_CASE("a cluster of two kinds that are one is that one") {
  const HardwareProfile h100 = load_hardware("h100-sxm");
  const Mixed mixed({{h100, 8}, {h100, 8}});
  const Job one("llama3-8b");
  for (const char* line : {kHalves, "pp2 vpp2 interleaved dp8 zero1 gbs32", "pp4 dp4 gbs32"}) {
    CAPTURE(line);
    const ParallelPlan plan = parse_plan(line);
    const Estimate a = mixed.cost.evaluate(plan), b = one.cost.evaluate(plan);
    // The hop between the kinds is over the network, wherever the pipeline lies.
    CHECK(a.step_time >= b.step_time);
    CHECK(a.step_time.value() == doctest::Approx(b.step_time.value()).epsilon(0.01));
    CHECK(a.memory.worst_stage().device == b.memory.worst_stage().device);
    CHECK(a.capacity == b.capacity);
    CHECK(a.mfu == doctest::Approx(b.mfu).epsilon(0.01));
    CHECK(mixed.cost.lower_bound(plan).step.value() ==
          doctest::Approx(one.cost.lower_bound(plan).step.value()).epsilon(1e-9));
    CHECK(mixed.cost.lower_bound(plan).evened.value() ==
          doctest::Approx(one.cost.lower_bound(plan).evened.value()).epsilon(1e-9));
  }
}

TEST_CASE("stages on two kinds take what lies between, and the slower kind decides") {
  const HardwareProfile h100 = load_hardware("h100-sxm"), a100 = load_hardware("a100-80gb-sxm");
  const Mixed mixed({{h100, 8}, {a100, 8}});
  const Job fast("llama3-8b"), slow("llama3-8b", "a100-80gb-sxm");
  const ParallelPlan plan = parse_plan(kHalves);
  const Seconds time = mixed.cost.step_time(plan);
  CHECK(time > fast.cost.step_time(plan) * 1.5);
  CHECK(time < slow.cost.step_time(plan) * 1.01);
  // With its layers where the time is, the same plan is faster: A100s have a third of the rate.
  ParallelPlan uneven = plan;
  uneven.pipeline_layout = {23, 9};
  CHECK(mixed.cost.step_time(uneven) < time * 0.7);
  CHECK(fast.cost.step_time(uneven) > fast.cost.step_time(plan));
  const EndWork ends = mixed.cost.end_work(plan);
  REQUIRE(ends.layer.size() == 2);
  CHECK(ends.layer[0] == 1);
  CHECK(ends.layer[1] > 2.2);
  CHECK(ends.layer[1] < 3.2);
  CHECK(fast.cost.end_work(plan).layer.empty());
  // Its bounds hold, and evening out promises about what the better layout takes.
  for (const ParallelPlan& p : {plan, uneven}) {
    const StepBound bound = mixed.cost.lower_bound(p);
    CHECK(bound.step <= mixed.cost.step_time(p));
    CHECK(mixed.cost.own_work_bound(p).step <= bound.step);
    CHECK(bound.evened <= mixed.cost.step_time(uneven));
  }
  CHECK(mixed.cost.lower_bound(plan).imbalance > 1.3);
  CHECK(mixed.cost.lower_bound(uneven).imbalance < 1.25);
  const Estimate e = mixed.cost.evaluate(uneven);
  CHECK(e.time.total().value() == doctest::Approx(e.step_time.value()).epsilon(1e-9));
  CHECK(mixed.whole.gpu.matmul.at(Precision::bf16).value() ==
        doctest::Approx((989e12 + 312e12) / 2).epsilon(1e-9));
  CHECK_FALSE(mixed.whole.gpu.matmul.contains(Precision::fp8));
}

TEST_CASE("each kind's stages are held to its own memory, in the order of the kinds") {
  const HardwareProfile h200 = load_hardware("h200-sxm"), l40s = load_hardware("l40s");
  const ParallelPlan plan = parse_plan("pp2 dp8 zero1 gbs64");
  const Mixed large_first({{h200, 8}, {l40s, 8}}), small_first({{l40s, 8}, {h200, 8}});
  const MemoryEstimate a = large_first.cost.memory(plan), b = small_first.cost.memory(plan);
  CHECK(a.worst == 1);
  CHECK(a.capacity == l40s.gpu.usable_memory * memory_share(large_first.model));
  CHECK(b.worst == 0);
  CHECK(b.stages[0].device > a.stages[1].device);  // the first stage holds more microbatches
}

TEST_CASE("a cluster of two kinds draws the power of both, whichever is named first") {
  const HardwareProfile big = load_hardware("h200-sxm"), small = load_hardware("l40s");
  const HardwareProfile one = as_one_machine({{big, 8}, {small, 24}});
  const HardwareProfile other = as_one_machine({{small, 24}, {big, 8}});
  CHECK(one.gpu.tdp_watt == doctest::Approx((8 * big.gpu.tdp_watt + 24 * small.gpu.tdp_watt) / 32));
  CHECK(one.host.watt_per_gpu ==
        doctest::Approx((8 * big.host.watt_per_gpu + 24 * small.host.watt_per_gpu) / 32));
  CHECK(one.gpu.tdp_watt == doctest::Approx(other.gpu.tdp_watt));
  CHECK(one.host.watt_per_gpu == doctest::Approx(other.host.watt_per_gpu));
}
