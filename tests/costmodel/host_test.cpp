// What a step keeps on the host, and what that costs.

#include <doctest/doctest.h>

#include "costmodel/evaluate.h"
#include "tests/costmodel/job.h"

using namespace qplan;

TEST_CASE("activations take their way to the host and back, and wait there") {
  const Job job("llama3-8b");
  for (const char* line : {"dp8 zero1 mbs1 gbs8", "tp4 dp2 sp zero1 mbs4 gbs8",
                           "tp2 dp4 sp zero1 mbs2 gbs8 recompute=selective:mlp"}) {
    CAPTURE(line);
    const std::string plan = line, moved = plan + " offload=activations";
    const MemoryEstimate memory = job.cost.memory(parse_plan(moved));
    const Bytes of_rank = memory.host_per_node * (1.0 / 8);
    CHECK(of_rank > gib(1));
    // All that is on the host is not on the device, but for one layer's on its way.
    const Bytes saved = job.worst(plan).peak - memory.worst_stage().peak;
    CHECK(saved < of_rank);
    const Bytes layers_less = of_rank * (1 - 3.0 / 32);
    CHECK(saved > layers_less);
    const Interconnect& link = job.hardware.link;
    const double least = (of_rank / link.device_to_host + of_rank / link.host_to_device).value();
    CHECK(job.seconds(moved) > least);
    CHECK(job.seconds(moved) < job.seconds(plan) + least);
  }
}

TEST_CASE("activations of the first layers only take less of the host, and less time") {
  const Job job("llama3-8b");
  const std::string plan = "tp4 dp2 sp zero1 mbs4 gbs8", all = plan + " offload=activations";
  const std::string some = plan + " offload=activations:8";
  const auto host = [&](const std::string& line) {
    return job.cost.memory(parse_plan(line)).host_per_node;
  };
  CHECK(host(some) == host(all) * 0.25);
  CHECK(job.seconds(plan) <= job.seconds(some));
  CHECK(job.seconds(some) < job.seconds(all));
}

TEST_CASE("checkpoints on the host leave the device, and their copies hold the step up") {
  // huggingface/transformers pull request 48444: layers x sequence x hidden x 2 bytes.
  const double layers = 32, input = 8192. * 4096 * 2;
  for (const RecipeKind kind : {RecipeKind::fsdp2, RecipeKind::deepspeed}) {
    const Job job("llama3-8b", "h100-sxm", kind);
    const std::string plan = "dp8 zero3 mbs1 gbs8 seq8192 recompute=full";
    const std::string moved = plan + " offload=activations";
    // A layer's own is there while it runs.
    CHECK((job.worst(plan).peak - job.worst(moved).peak).value() ==
          doctest::Approx((layers - 1) * input).epsilon(0.05));
    const MemoryEstimate host = job.cost.memory(parse_plan(moved));
    CHECK(host.host_per_node.value() == doctest::Approx(8 * layers * input).epsilon(0.01));
    const double copies = layers * input / 55.1e9 + layers * input / 55.4e9;
    CHECK(job.seconds(moved) - job.seconds(plan) == doctest::Approx(copies).epsilon(0.1));
  }
}

TEST_CASE("an optimizer on the host steps its states in the formats that they have") {
  const Job job("llama3-8b", "h100-sxm", RecipeKind::fsdp2);
  const std::string wide = "dp8 zero3 mbs1 gbs8 seq2048 offload=optimizer,params";
  const std::string narrow = wide + " main_params_dtype=bf16 moment_dtype=bf16 grad_dtype=bf16";
  const auto offloaded = [&](const std::string& line) {
    return job.cost.evaluate(parse_plan(line)).time.offload.value();
  };
  CHECK(offloaded(narrow) < 0.6 * offloaded(wide));
  const auto on_host = [&](const std::string& line) {
    return job.cost.memory(parse_plan(line)).host_per_node.value();
  };
  CHECK(on_host(narrow) == doctest::Approx(on_host(wide) / 2).epsilon(0.01));
}

TEST_CASE("offloading the optimizer moves its bytes to the host and slows the step") {
  const Job job("llama3-8b");
  const std::string line = "dp8 zero1 gbs16";
  const MemoryEstimate without = job.cost.memory(parse_plan(line));
  const MemoryEstimate with = job.cost.memory(parse_plan(line + " offload=optimizer:1"));
  CHECK(with.worst_stage().optimizer.value() == 0);
  CHECK(without.host_per_node.value() == 0);
  // 16 bytes a parameter of the whole node (8.03 billion, vocabulary already a multiple of 128).
  CHECK(with.host_per_node.value() ==
        doctest::Approx(16.0 * static_cast<double>(count_parameters(job.model).total()))
            .epsilon(0.001));
  CHECK(job.seconds(line + " offload=optimizer:1") > job.seconds(line));
}

TEST_CASE("a job that fills no node asks its host for the states of its own ranks alone") {
  const Job job("llama3-8b");
  const double whole = 16.0 * static_cast<double>(count_parameters(job.model).total());
  for (const char* line : {"dp1 gbs16", "dp2 gbs16", "tp2 pp2 dp1 gbs16", "dp8 gbs16"}) {
    CAPTURE(line);
    const std::string plan = std::string(line) + " zero1 offload=optimizer:1";
    CHECK(job.cost.memory(parse_plan(plan)).host_per_node.value() ==
          doctest::Approx(whole).epsilon(0.001));
  }
}

TEST_CASE("a job below a node has its GPUs' share of the host, in memory as in time") {
  // 16 bytes x 8.03 billion are 120 GiB: an eighth of 800 GB is too little, a quarter is enough.
  const ModelSpec model = load_model("llama3-8b");
  HardwareProfile hardware = load_hardware("h100-sxm");
  hardware.host.memory = Bytes(800e9);
  const CostModel cost(model, recipe_of(RecipeKind::megatron), hardware, {});
  const auto memory = [&](const char* line) {
    return cost.memory(parse_plan(std::string(line) + " zero1 gbs16 offload=optimizer:1"));
  };
  CHECK(memory("dp1").host_room == Bytes(100e9));
  CHECK(memory("dp2").host_room == Bytes(200e9));
  CHECK(memory("dp16").host_room == Bytes(800e9));
  CHECK_FALSE(cost.fits(memory("dp1 recompute=full")));
  CHECK(cost.fits(memory("dp2 recompute=full")));
  // Half as many ranks take twice the parameters each, on as much of the host each.
  const auto host_time = [&](const char* line) {
    const ParallelPlan plan = parse_plan(std::string(line) + " zero1 gbs16 offload=optimizer:1");
    return cost.evaluate(plan).time.offload.value();
  };
  CHECK(host_time("dp2") == doctest::Approx(2 * host_time("dp4")).epsilon(0.02));
}
