#include "cli/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "models/text.h"

namespace qplan {
namespace {

// Where it takes other than `gpus`, the change says so; a cluster of several kinds has no more.
std::optional<Advice> try_plan(const Job& job, std::int64_t gpus, std::string change,
                               const ParallelPlan& plan) {
  ClusterLimits limits = job.limits();
  if (plan.world() != gpus) {
    if (!job.cost->kinds().empty()) return std::nullopt;
    change += fmt::format(", on {} GPUs", plan.world());
  }
  limits.gpus = 0;
  if (!broken_rule(job.model, plan, job.recipe(), limits).empty()) return std::nullopt;
  const MemoryEstimate memory = job.cost->memory(plan);
  if (!job.cost->fits(memory)) return std::nullopt;
  return Advice{std::move(change),         plan,         plan.world(), memory.worst_stage().device,
                job.cost->step_time(plan), job.framework};
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
  int word = 0;  // which word of the plan it changes, in the order of the list
};

std::vector<Change> single_changes(const ParallelPlan& plan) {
  std::vector<Change> changes;
  int word = 0;
  const auto edit = [&](std::string name, auto&& change) {
    ParallelPlan changed = plan;
    change(changed);
    if (!(changed == plan)) changes.push_back({std::move(name), changed, word});
  };
  for (const RecomputeKind kind : {RecomputeKind::selective, RecomputeKind::full}) {
    edit(fmt::format("recompute={}", to_word(kind)), [&](ParallelPlan& p) {
      p.recompute = Recompute{kind, {}, 0};
    });
  }
  ++word;
  for (int stage = plan.zero + 1; stage <= 3; ++stage) {
    edit(fmt::format("zero {}", stage), [&](ParallelPlan& p) { p.zero = stage; });
  }
  ++word;
  if (plan.micro_batch_size > 1) {
    edit("micro_batch_size 1", [](ParallelPlan& p) { p.micro_batch_size = 1; });
  }
  ++word;
  edit("offload=optimizer", [](ParallelPlan& p) { p.offload.optimizer = 1; });
  const std::array<std::pair<std::string_view, int ParallelPlan::*>, 3> degrees{
      {{"tp", &ParallelPlan::tp}, {"pp", &ParallelPlan::pp}, {"cp", &ParallelPlan::cp}}};
  for (const auto& [name, degree] : degrees) {
    const ParallelPlan doubled = with_doubled(plan, degree);
    changes.push_back({fmt::format("{} {}", name, doubled.*degree), doubled, ++word});
  }
  ++word;
  edit(fmt::format("ep {}", plan.ep * 2), [](ParallelPlan& p) { p.ep *= 2; });
  ++word;
  if (plan.seq_len >= 2) {
    edit(fmt::format("seq_len {}", plan.seq_len / 2), [](ParallelPlan& p) { p.seq_len /= 2; });
  }
  return changes;
}

// Those that take the same GPUs come first: others are faster by having more.
void keep_fastest(std::int64_t gpus, std::vector<Advice>& advice) {
  std::stable_sort(advice.begin(), advice.end(), [gpus](const Advice& a, const Advice& b) {
    const bool a_more = a.gpus != gpus, b_more = b.gpus != gpus;
    return a_more == b_more ? a.step_time < b.step_time : b_more;
  });
  if (advice.size() > kMostAdvice) advice.resize(kMostAdvice);
}

// Tries `count` changes at once of what single_changes() offers, each of another word.
void try_changes(const Job& job, std::int64_t gpus, const ParallelPlan& plan,
                 const std::string& name, int after, int count, std::vector<Advice>& found) {
  for (const Change& change : single_changes(plan)) {
    if (change.word <= after) continue;
    const std::string both = name.empty() ? change.name : name + " and " + change.name;
    if (count > 1) {
      try_changes(job, gpus, change.plan, both, change.word, count - 1, found);
    } else if (auto fits = try_plan(job, gpus, both, change.plan)) {
      found.push_back(*std::move(fits));
    }
  }
}

// A word less may come to the same plan as another value of it.
void try_others(const Job& job, std::int64_t gpus, const std::vector<NamedPlan>& others,
                std::vector<Advice>& found) {
  for (const NamedPlan& other : others) {
    const bool known = std::any_of(found.begin(), found.end(),
                                   [&](const Advice& a) { return a.plan == other.plan; });
    if (known) continue;
    if (auto fits = try_plan(job, gpus, other.change, other.plan))
      found.push_back(*std::move(fits));
  }
}

}  // namespace

std::vector<Advice> what_makes_plan_fit(const Job& job, const ParallelPlan& plan,
                                        const std::vector<NamedPlan>& others) {
  std::vector<Advice> advice;
  constexpr int kMostAtOnce = 3;
  const std::int64_t gpus = plan.world();
  // Not everybody can have more GPUs: what helps without is looked for on.
  const auto at_home = [gpus](const Advice& a) { return a.gpus == gpus; };
  for (int count = 1; count <= kMostAtOnce && std::none_of(advice.begin(), advice.end(), at_home);
       ++count) {
    try_changes(job, gpus, plan, "", -1, count, advice);
    if (count == 1) try_others(job, gpus, others, advice);
  }
  keep_fastest(gpus, advice);
  return advice;
}

std::string advice_text(const std::vector<Advice>& advice) {
  std::size_t width = 28;
  for (const Advice& a : advice) width = std::max(width, a.change.size());
  std::string text;
  for (const Advice& a : advice) {
    text += fmt::format("  {:<{}}  {:>9} a GPU, {} a step\n", a.change, width,
                        human_bytes(a.device_peak), human_seconds(a.step_time));
  }
  return text;
}

Json advice_json(const Job& job, const std::vector<Advice>& advice) {
  Json list = Json::array();
  for (const Advice& a : advice) {
    const ParallelPlan usual = defaults_beside(a.plan, job.model, recipe_of(a.framework));
    list.push_back({{"change", a.change},
                    {"gpus", a.gpus},
                    {"short", to_string(a.plan, usual)},
                    {"device_peak_gib", in_gib(a.device_peak)},
                    {"step_time_s", a.step_time.value()},
                    {"framework", to_word(a.framework)}});
  }
  return list;
}

}  // namespace qplan
