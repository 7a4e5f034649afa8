// A machine whose times are known is calibrated; its profile must give them back.

#include "costmodel/profiles/calibrate.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "costmodel/price/price.h"
#include "models/plan/parallel_plan.h"
#include "models/rank_grid.h"

using namespace qplan;

namespace {

constexpr int kRanks = 4;

// A machine with grouped products of its own, in bursts (sustain 1) or long runs.
HardwareProfile own_grouped(const HardwareProfile& base, double sustain) {
  HardwareProfile own = base;
  own.gemm.at(Precision::bf16).sustain = sustain;
  own.grouped_gemm.efficiency = 1.1;
  own.grouped_gemm.bandwidth_efficiency = 0.6;
  own.grouped_gemm.m0 = 48;
  return own;
}

// A machine whose products keep so much of their burst rate in long runs.
HardwareProfile sustaining(const HardwareProfile& base, double share) {
  HardwareProfile own = base;
  for (auto& [format, fit] : own.gemm) fit.sustain = share;
  return own;
}

RankGrid grid_of(int ranks) {
  ParallelPlan plan;
  plan.dp = ranks;
  return RankGrid(plan, 8);
}

// The reference machine, slower or faster by kind, in short runs (without what long runs lose).
Seconds true_time(const Work& work, const HardwareProfile& base, int ranks = 1) {
  const RankGrid grid = grid_of(ranks);
  if (std::holds_alternative<GroupedGemm>(work)) {
    const HardwareProfile own = own_grouped(base, 1);
    return price(work, {&own, &grid}).time;
  }
  const double factor = std::holds_alternative<Gemm>(work)        ? 0.9
                        : std::holds_alternative<Attention>(work) ? 1.2
                        : std::holds_alternative<Rowwise>(work)   ? 1.5
                                                                  : 1.1;
  const double burst = std::holds_alternative<Attention>(work) ? base.attention[1].sustain : 1;
  const HardwareProfile own = sustaining(base, 1);
  return price(work, {&own, &grid}).time * factor * burst;
}

constexpr double kSustain = 0.93;

Calibration calibration_of(const HardwareProfile& base) {
  Calibration c{.gpu = "NVIDIA H200", .driver = "CUDA 13.0", .date = "2026-01-31", .ranks = kRanks};
  for (const Work& work : calibration_works()) c.samples.push_back({work, true_time(work, base)});
  for (const int ranks : collective_groups(kRanks)) {
    for (const Work& work : collective_works()) {
      c.samples.push_back({work, true_time(work, base, ranks), ranks});
    }
  }
  c.launch = base.gpu.kernel_launch;
  c.graph_gain = microseconds(1.25);
  // Warm GPUs are slower, and half of the sums' traffic is not hidden.
  for (const Work& work : warm_works()) {
    Gemm plain = std::get<Gemm>(work);
    const Bytes traffic(plain.accumulate_fp32 ? 8 * static_cast<double>(plain.m * plain.n) : 0);
    plain.accumulate_fp32 = false;
    c.warm.push_back({work, true_time(Work(plain), base) / kSustain +
                                traffic / base.gpu.memory_bandwidth * 0.5});
  }
  c.host_to_device = c.device_to_host = gb_per_s(50);
  c.waited_share = 0.00491;
  c.host_memory = Bytes(125e9);
  return c;
}

}  // namespace

TEST_CASE("a calibrated profile gives the measured times back") {
  const HardwareProfile base = load_hardware("h200-sxm");
  const Calibration c = calibration_of(base);
  const Json json = calibrated_profile(base.source, c);
  const HardwareProfile profile = read_hardware(json, "calibrated");
  CHECK(profile.name == "h200-sxm-measured");
  CHECK(profile.gpu.speed_spread.measured_ranks == c.ranks);
  CHECK(profile.gpu.speed_spread.waited_share == doctest::Approx(0.0049));
  CHECK(profile.gpu.graph_gain == microseconds(1.25));
  CHECK(profile.host.memory == Bytes(1e12));  // of a node of eight GPUs
  std::map<std::string, double> worst;
  for (const Sample& s : c.samples) {
    const RankGrid grid = grid_of(s.ranks);
    Seconds expected = s.time / (std::holds_alternative<Attention>(s.work) ? kSustain : 1);
    if (std::holds_alternative<Gemm>(s.work)) {
      // What waits for memory is no slower in a long run.
      const HardwareProfile burst = sustaining(base, 1), warm = sustaining(base, kSustain);
      expected =
          s.time * (price(s.work, {&warm, &grid}).time / price(s.work, {&burst, &grid}).time);
    }
    if (std::holds_alternative<GroupedGemm>(s.work)) {
      const HardwareProfile own = own_grouped(base, kSustain);
      expected = price(s.work, {&own, &grid}).time;
    }
    const double error = std::abs(price(s.work, {&profile, &grid}).time / expected - 1);
    double& most = worst[std::string(kind_name(s.work))];
    most = std::max(most, error);
  }
  // Products and collectives are tables; utilisation is kept in thousandths.
  CHECK(worst.at("gemm") < 0.05);
  CHECK(worst.at("all_gather") < 0.01);
  CHECK(worst.at("send_recv") < 0.01);
  CHECK(worst.at("attention") < 0.03);
  CHECK(worst.at("grouped_gemm") < 0.05);
  CHECK(worst.at("adamw") < 0.03);
  // An efficiency and a latency a kind.
  CHECK(worst.at("swiglu") < 0.02);
  CHECK(worst.at("rms_norm") < 0.02);
  const RankGrid grid = grid_of(1);
  for (const Sample& s : c.warm) CHECK(price(s.work, {&profile, &grid}).time / s.time < 1.03);
  for (const Sample& s : c.warm) CHECK(price(s.work, {&profile, &grid}).time / s.time > 0.97);
}

TEST_CASE("what was not measured stays as it was") {
  const HardwareProfile base = load_hardware("h200-sxm");
  Calibration c = calibration_of(base);
  c.host_memory = Bytes(0);
  // As on a GPU that has no fp8.
  const auto narrow = [](const Sample& s) {
    const auto* product = std::get_if<Gemm>(&s.work);
    return product != nullptr && product->dtype == DType::fp8;
  };
  std::erase_if(c.samples, narrow);
  std::erase_if(c.warm, narrow);
  const Json json = calibrated_profile(base.source, c);
  CHECK(json.at("link").at("nic_gb_per_s") == base.source.at("link").at("nic_gb_per_s"));
  CHECK(json.at("host") == base.source.at("host"));
  CHECK(json.at("gemm").at("fp8") == base.source.at("gemm").at("fp8"));
}

TEST_CASE("every kind of memory-bound work that GPUs execute is measured, the embedding's too") {
  std::map<RowwiseKind, int> sizes;
  for (const Work& work : calibration_works()) {
    if (const auto* rows = std::get_if<Rowwise>(&work)) ++sizes[rows->kind];
  }
  for (const RowwiseKind kind :
       {RowwiseKind::embedding, RowwiseKind::embedding_backward, RowwiseKind::zero_fill,
        RowwiseKind::layer_norm, RowwiseKind::layer_norm_backward, RowwiseKind::gelu,
        RowwiseKind::gelu_backward, RowwiseKind::rope_backward, RowwiseKind::sum_of_squares}) {
    CAPTURE(to_word(kind));
    CHECK(sizes[kind] >= 4);  // a latency and a rate
  }
}

TEST_CASE("collectives are measured in groups of powers of two and of all GPUs") {
  CHECK(collective_groups(1).empty());
  CHECK(collective_groups(2) == std::vector<int>{2});
  CHECK(collective_groups(6) == std::vector<int>{2, 6});
  CHECK(collective_groups(8) == std::vector<int>{2, 4, 8});
}
