#include "cli/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "models/text.h"

namespace qplan {
namespace {

constexpr std::size_t kMostAdvice = 6;

std::optional<Advice> try_plan(const Job& job, std::string change, const ParallelPlan& plan) {
  const ClusterLimits limits{.gpus = 0, .compute_capability = job.limits().compute_capability};
  if (!broken_rule(job.model, plan, job.recipe(), limits).empty()) return std::nullopt;
  const MemoryEstimate memory = job.cost->memory(plan);
  if (!job.cost->fits(memory)) return std::nullopt;
  return Advice{std::move(change), plan, plan.world(), memory.worst_stage().device,
                job.cost->step_time(plan)};
}

// Doubles a degree at the expense of dp, or of more GPUs where dp is 1.
ParallelPlan with_doubled(ParallelPlan plan, int ParallelPlan::*degree) {
  plan.*degree *= 2;
  if (plan.dp % 2 == 0) plan.dp /= 2;
  if (plan.tp > 1) plan.sequence_parallel = true;
  plan.pipeline_layout.clear();
  return plan;
}

struct Change {
  std::string name;
  ParallelPlan plan;
};

std::vector<Change> single_changes(const ParallelPlan& plan) {
  std::vector<Change> changes;
  const auto edit = [&](std::string name, auto&& change) {
    ParallelPlan changed = plan;
    change(changed);
    if (!(changed == plan)) changes.push_back({std::move(name), changed});
  };
  for (const RecomputeKind kind : {RecomputeKind::selective, RecomputeKind::full}) {
    edit(fmt::format("recompute={}", to_word(kind)), [&](ParallelPlan& p) {
      p.recompute = Recompute{kind, {}, 0};
    });
  }
  for (int stage = plan.zero + 1; stage <= 3; ++stage) {
    edit(fmt::format("zero {}", stage), [&](ParallelPlan& p) { p.zero = stage; });
  }
  if (plan.micro_batch_size > 1) {
    edit("micro_batch_size 1", [](ParallelPlan& p) { p.micro_batch_size = 1; });
  }
  edit("offload=optimizer", [](ParallelPlan& p) { p.offload.optimizer = 1; });
  const std::array<std::pair<std::string_view, int ParallelPlan::*>, 3> degrees{
      {{"tp", &ParallelPlan::tp}, {"pp", &ParallelPlan::pp}, {"cp", &ParallelPlan::cp}}};
  for (const auto& [name, degree] : degrees) {
    const ParallelPlan doubled = with_doubled(plan, degree);
    changes.push_back({fmt::format("{} {}", name, doubled.*degree), doubled});
  }
  edit(fmt::format("ep {}", plan.ep * 2), [](ParallelPlan& p) { p.ep *= 2; });
  if (plan.seq_len >= 2) {
    edit(fmt::format("seq_len {}", plan.seq_len / 2), [](ParallelPlan& p) { p.seq_len /= 2; });
  }
  return changes;
}

void keep_fastest(std::vector<Advice>& advice) {
  std::stable_sort(advice.begin(), advice.end(),
                   [](const Advice& a, const Advice& b) { return a.step_time < b.step_time; });
  if (advice.size() > kMostAdvice) advice.resize(kMostAdvice);
}

std::optional<Advice> try_job(const Job& job, std::string change, const SearchSpace& space) {
  SearchOptions options;
  options.top = 1;
  const SearchResult result = search_offered(job, space, options);
  if (result.plans.empty()) return std::nullopt;
  const RankedPlan& best = result.plans.front();
  return Advice{std::move(change), best.plan, best.plan.world(), best.device_peak, best.step_time};
}

}  // namespace

std::vector<Advice> what_makes_plan_fit(const Job& job, const ParallelPlan& plan) {
  std::vector<Advice> advice;
  const std::vector<Change> changes = single_changes(plan);
  for (const Change& change : changes) {
    if (auto fits = try_plan(job, change.name, change.plan)) advice.push_back(*std::move(fits));
  }
  if (advice.empty()) {
    // Nothing alone is enough: full recompute with one more.
    for (const Change& change : changes) {
      ParallelPlan both = change.plan;
      both.recompute = Recompute{RecomputeKind::full, {}, 0};
      const std::string name = "recompute=full and " + change.name;
      if (auto fits = try_plan(job, name, both)) advice.push_back(*std::move(fits));
    }
  }
  keep_fastest(advice);
  return advice;
}

std::vector<Advice> what_makes_job_fit(const Job& job, const SearchSpace& space) {
  std::vector<Advice> advice;
  const auto attempt = [&](std::string change, const SearchSpace& changed) {
    auto fits = try_job(job, std::move(change), changed);
    const bool found = fits.has_value();
    if (found) advice.push_back(*std::move(fits));
    return found;
  };
  SearchSpace changed = space;
  // Where nobody constrained them, the search has tried these.
  if (!space[&ParallelPlan::recompute].empty()) {
    changed[&ParallelPlan::recompute] = {Recompute{RecomputeKind::full, {}, 0}};
    attempt("recompute=full", changed);
  }
  if (!space[&ParallelPlan::offload].empty()) {
    changed = space;
    changed[&ParallelPlan::offload] = {Offload{.optimizer = 1}};
    attempt("offload=optimizer", changed);
    changed[&ParallelPlan::recompute] = {Recompute{RecomputeKind::full, {}, 0}};
    if (advice.empty()) attempt("offload=optimizer and recompute=full", changed);
  }
  // Degrees that somebody fixed stay fixed; the world is what grows.
  changed = space;
  changed[&ParallelPlan::dp].clear();
  constexpr std::int64_t kMostTimes = 256;
  for (std::int64_t times = 2; times <= kMostTimes && space.gpus * times <= kMostGpus; times *= 2) {
    changed.gpus = space.gpus * times;
    if (attempt(fmt::format("{} GPUs instead of {}", changed.gpus, space.gpus), changed)) break;
  }
  changed = space;
  for (changed.job.seq_len /= 2; changed.job.seq_len >= 512; changed.job.seq_len /= 2) {
    if (attempt(fmt::format("sequences of {} tokens", changed.job.seq_len), changed)) break;
  }
  return advice;
}

std::string advice_text(const std::vector<Advice>& advice) {
  std::string text;
  for (const Advice& a : advice) {
    text += fmt::format("  {:<28}  {:>9} a GPU, {} a step\n", a.change, human_bytes(a.device_peak),
                        human_seconds(a.step_time));
  }
  return text;
}

Json advice_json(const std::vector<Advice>& advice) {
  Json list = Json::array();
  for (const Advice& a : advice) {
    list.push_back({{"change", a.change},
                    {"gpus", a.gpus},
                    {"short", to_string(a.plan)},
                    {"device_peak_gib", in_gib(a.device_peak)},
                    {"step_time_s", a.step_time.value()}});
  }
  return list;
}

}  // namespace qplan
