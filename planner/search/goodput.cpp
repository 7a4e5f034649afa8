#include "planner/search/goodput.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <variant>

#include "models/portable_math.h"
#include "models/program/step_program.h"
#include "planner/goodput/long_run.h"

namespace qplan {

namespace {

// Weights, their master copy where there is one, and the optimizer's states.
template <class Step>
Bytes saved(const Step& step) {
  // Weights that are worked with in the master copy's own format are that copy.
  const double master = step.working == DType::fp32 ? 0 : size_of(step.main_params);
  return Bytes((size_of(step.working) + master) * as_double(step.params)) + state_bytes(step);
}

// Calls visit(update, times) for what the update writes: Update and Muon.
template <class Visit>
void each_update(const ModelSpec& model, const Recipe& recipe, const ParallelPlan& plan,
                 Visit visit) {
  // On one rank nothing is shared out and nothing is on the host: what the update writes is all.
  ParallelPlan alone = plan;
  alone.tp = alone.pp = alone.vpp = alone.cp = alone.ep = alone.etp = alone.dp = 1;
  alone.fsdp_shard = 0;
  alone.micro_batch_size = alone.global_batch_size = 1;
  alone.schedule = ScheduleKind::one_f_one_b;
  alone.pipeline_layout.clear();
  alone.sequence_parallel = false;
  alone.offload = {};
  alone.moe_dispatcher = MoeDispatcher::alltoall;
  const StepProgram program = build_step_program(model, alone, recipe, {});
  for (const Stage& stage : program.stages) {
    for (const Stage::Part& run : stage.runs) {
      for (const Op& op : program.blocks[static_cast<std::size_t>(run.block)].update) {
        if (const auto* update = std::get_if<Update>(&op.work)) visit(*update, run.count);
        if (const auto* muon = std::get_if<Muon>(&op.work)) visit(*muon, run.count);
      }
    }
  }
}

}  // namespace

Bytes checkpoint_bytes(const ModelSpec& model, const Recipe& recipe, const ParallelPlan& plan) {
  Bytes sum;
  each_update(model, recipe, plan,
              [&](const auto& update, int times) { sum += saved(update) * times; });
  return sum;
}

double updated_parameters(const ModelSpec& model, const Recipe& recipe, const ParallelPlan& plan) {
  double sum = 0;
  each_update(model, recipe, plan,
              [&](const auto& update, int times) { sum += as_double(update.params) * times; });
  return sum;
}

Goodput goodput(const Reliability& facts, Bytes checkpoint, std::int64_t nodes) {
  Goodput result;
  const double failures_per_day =
      facts.failures_per_1000_node_days * static_cast<double>(nodes) / 1000;
  result.save_time = facts.storage.time_of(checkpoint, nodes);
  if (failures_per_day <= 0) {
    result.mean_time_between_failures = result.save_interval = Seconds(HUGE_VAL);
    return result;
  }
  result.mean_time_between_failures = Seconds(86400 / failures_per_day);
  result.save_interval = young_interval(result.save_time, result.mean_time_between_failures);
  const double mtbf = result.mean_time_between_failures.value();
  const double save = result.save_time.value(), interval = result.save_interval.value();
  // Time spent saving, work lost since the last save (half an interval), and the way back.
  const double waste =
      (interval > 0 ? save / interval : 0) + interval / (2 * mtbf) + facts.restart.value() / mtbf;
  result.share = std::max(0.0, 1 - waste);
  return result;
}

double straggler_slowdown(std::int64_t nodes, double mean_delay) {
  // Of n exponential delays the longest is H(n) means in the mean; by Euler and Maclaurin.
  const auto n = static_cast<double>(std::max<std::int64_t>(nodes, 1));
  double harmonic = portable::log(n) + std::numbers::egamma + 1 / (2 * n) - 1 / (12 * n * n);
  if (n < 10) {
    harmonic = 0;
    for (double i = 1; i <= n; ++i) harmonic += 1 / i;
  }
  return mean_delay * harmonic;
}

RunCost cost_of_run(const RunFacts& facts, Bytes checkpoint, const HardwareProfile& hardware,
                    std::int64_t gpus, double tokens_per_s) {
  RunCost cost;
  const std::int64_t nodes = nodes_for(hardware, gpus);
  cost.goodput = goodput(facts.reliability, checkpoint, nodes);
  cost.slowdown = straggler_slowdown(nodes);
  cost.wall = Seconds(facts.tokens / tokens_per_s * (1 + cost.slowdown) / cost.goodput.share);
  cost.gpu_hours = cost.wall.value() / 3600 * static_cast<double>(gpus);
  cost.usd = cost.gpu_hours * facts.price_per_gpu_hour;
  // Nodes draw their full power all the time: an upper estimate (GPUs alone run at 85-95% of it).
  const double watt_per_gpu = (hardware.gpu.tdp_watt + hardware.host.watt_per_gpu) * facts.pue;
  cost.kwh = cost.gpu_hours * watt_per_gpu / 1000;
  cost.joule_per_token = cost.kwh * 3.6e6 / facts.tokens;
  return cost;
}

}  // namespace qplan
