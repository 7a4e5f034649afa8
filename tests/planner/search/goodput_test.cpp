#include "planner/search/goodput.h"

#include <doctest/doctest.h>

using namespace qplan;

namespace {

// A cluster that fails every `mtbf` seconds, and one checkpoint that takes `save` seconds.
Goodput at(double mtbf, double save, double restart) {
  Reliability facts;
  facts.failures_per_1000_node_days = 86400 / mtbf * 1000;
  facts.restart = Seconds(restart);
  facts.storage.per_node = gb_per_s(1);
  return goodput(facts, Bytes(save * 1e9), 1);
}

}  // namespace

// Llama-3 405B's cluster failed every 3.1 h (arXiv 2407.21783); a save of 30 s then wants an
// interval of 13.6 min and wastes 7.3%, a save of 10 s 7.9 min and 4.2% (Young 1974).
TEST_CASE("the best interval between checkpoints is Young's") {
  const Goodput slow = at(3.1 * 3600, 30, 0);
  CHECK(slow.save_interval.value() / 60 == doctest::Approx(13.6).epsilon(0.01));
  CHECK(1 - slow.share == doctest::Approx(0.073).epsilon(0.01));
  const Goodput quick = at(3.1 * 3600, 10, 0);
  CHECK(quick.save_interval.value() / 60 == doctest::Approx(7.9).epsilon(0.01));
  CHECK(1 - quick.share == doctest::Approx(0.042).epsilon(0.02));
}

TEST_CASE("4 failures per 1000 node-days are one every 2.9 hours on 2048 nodes") {
  const Goodput result = goodput({}, Bytes(1e12), 2048);
  CHECK(result.mean_time_between_failures.value() / 3600 == doctest::Approx(2.93).epsilon(0.01));
}

TEST_CASE("many nodes write no faster than their storage takes it") {
  CHECK(CheckpointStorage{}.time_of(Bytes(8e12), 500).value() == doctest::Approx(8));
  CHECK(CheckpointStorage{}.time_of(Bytes(8e12), 1000).value() == doctest::Approx(4));
  CHECK(CheckpointStorage{}.time_of(Bytes(8e12), 4000).value() == doctest::Approx(4));
  CHECK(goodput({}, Bytes(8e12), 4000).save_time.value() == doctest::Approx(4));
}

TEST_CASE("the way back from a failure is lost as well") {
  CHECK(at(10000, 10, 0).share - at(10000, 10, 500).share == doctest::Approx(0.05));
}

TEST_CASE("a cluster that never fails loses nothing, and one that always fails everything") {
  Reliability never;
  never.failures_per_1000_node_days = 0;
  CHECK(goodput(never, Bytes(1e12), 100).share == 1);
  CHECK(at(10, 1000, 600).share == 0);
}

TEST_CASE("stragglers cost the longest of all nodes' delays: 10% on 512 nodes, 15% on 16 384") {
  CHECK(straggler_slowdown(1, 0.02) == doctest::Approx(0.02));
  CHECK(straggler_slowdown(2, 0.02) == doctest::Approx(0.03));  // 1 + 1/2
  CHECK(
      straggler_slowdown(10) / straggler_slowdown(9) ==
      doctest::Approx((7381.0 / 2520) / (7129.0 / 2520)));  // H(10) by the formula, H(9) by the sum
  CHECK(straggler_slowdown(512) == doctest::Approx(0.10).epsilon(0.01));
  CHECK(straggler_slowdown(16384) == doctest::Approx(0.151).epsilon(0.01));
}

// 13 011 tokens/s a GPU on DGX H100 (10.2 kW / 8): 0.098 J a token, $0.053 a million tokens at
// $2.5 an hour, before goodput.
TEST_CASE("energy and cost of a token follow from power, price and throughput") {
  const HardwareProfile hardware = load_hardware("h100-sxm");
  RunFacts facts;
  facts.price_per_gpu_hour = 2.5;
  facts.reliability.failures_per_1000_node_days = 0;
  const RunCost cost = cost_of_run(facts, Bytes(14.0 * 30e9), hardware, 16, 16 * 13011.0);
  const double straggling = 1 + cost.slowdown;
  CHECK(cost.joule_per_token / straggling == doctest::Approx(0.098).epsilon(0.01));
  CHECK(cost.usd / straggling / 1e6 == doctest::Approx(0.0534).epsilon(0.01));
  CHECK(cost.kwh == doctest::Approx(cost.joule_per_token * 1e12 / 3.6e6));
}

// bf16 2, and fp32 4 of the master copy and 4 of each moment; of FSDP, whose weights are fp32, 12.
TEST_CASE("a checkpoint holds what the update writes, whatever the plan's degrees") {
  struct Case {
    RecipeKind recipe;
    DType main_params, moments;
    double bytes;
  };
  for (const std::string name : {"llama3-8b", "qwen3-30b-a3b", "qwen3-0.6b", "deepseek-v3"}) {
    const ModelSpec model = load_model(name);
    const ParameterCount count = count_parameters(model);
    const auto parameters = static_cast<double>(count.total() + count.mtp);
    for (const Case& c : {Case{RecipeKind::megatron, DType::fp32, DType::fp32, 14},
                          Case{RecipeKind::megatron, DType::fp32, DType::bf16, 10},
                          Case{RecipeKind::megatron, DType::bf16, DType::fp8, 6},
                          Case{RecipeKind::deepspeed, DType::fp32, DType::fp32, 14},
                          Case{RecipeKind::fsdp2, DType::fp32, DType::fp32, 12}}) {
      ParallelPlan plan;
      plan.zero = 3;
      plan.dp = 8;
      plan.pp = 2;
      plan.offload.optimizer = 1;
      plan.main_params_dtype = c.main_params;
      plan.moment_dtype = c.moments;
      CAPTURE(name);
      CAPTURE(std::string(to_word(c.recipe)));
      CHECK(checkpoint_bytes(model, recipe_of(c.recipe), plan).value() ==
            doctest::Approx(c.bytes * parameters));
    }
  }
}
