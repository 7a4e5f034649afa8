#include "cli/accuracy_summary.h"

#include <fmt/format.h>

#include "cli/report.h"

namespace qplan {
namespace {

// ---- one run ----

// What a ranking set shares (docs/reference/contract.md 7.1).
std::string set_of(const MeasuredRun& run) {
  const ParallelPlan& p = run.inputs->plan;
  return fmt::format("{}|{}|{}|{}|{}|{}|{}", run.model, run.recipe, run.hardware, run.inputs->gpus,
                     to_word(p.precision), p.seq_len, p.global_batch_size);
}

// What a plan shares with those that cut the same batch and states otherwise.
std::string kin_of(ParallelPlan plan) {
  plan.zero = 0;
  plan.micro_batch_size = 1;
  plan.overlap.remove(OverlapKind::param);
  return to_string(plan);
}

double bubble_of(const ParallelPlan& plan) {
  const double m = as_double(plan.num_microbatches());
  return (m + plan.pp - 1) / m;
}

// ---- groups ----

std::vector<std::string> names_of(const MeasuredRun& run, const std::vector<std::string>& by) {
  std::vector<std::string> names;
  for (const std::string& word : by) {
    for (const GroupKey& key : group_keys()) {
      if (key.name == word) names.push_back(run.*key.value);
    }
  }
  return names;
}

std::map<std::vector<std::string>, Outcomes> grouped_by(const std::vector<JudgedRun>& runs,
                                                        const std::vector<std::string>& by) {
  std::map<std::vector<std::string>, Outcomes> groups;
  for (const JudgedRun& judged : runs) {
    groups[names_of(judged.run, by)].push_back(&judged.outcome);
  }
  return groups;
}

ErrorFigures figures_of_unknown_memory(const std::vector<JudgedRun>& runs) {
  std::vector<Outcome> outcomes;
  for (const JudgedRun& judged : runs) {
    if (judged.run.memory_kind != MemoryKind::unknown) continue;
    Outcome o;
    o.memory = memory_pair(judged);
    outcomes.push_back(std::move(o));
  }
  Outcomes list;
  for (const Outcome& o : outcomes) list.push_back(&o);
  return figures_of(list).memory;
}

}  // namespace

double predicted_memory_gib(const Estimate& e, const MeasuredRun& run) {
  const bool allocated = !run.memory || run.memory_kind == MemoryKind::allocated;
  const auto value = allocated ? &StageMemory::peak : &StageMemory::reserved;
  switch (run.inputs ? run.inputs->memory_of : MemoryOf::fullest_stage) {
    case MemoryOf::first_stage:
      return in_gib(e.memory.stages.front().*value);
    case MemoryOf::last_stage:
      return in_gib(e.memory.stages.back().*value);
    case MemoryOf::fullest_stage:
      break;
  }
  return in_gib(largest(e.memory, value));
}

std::optional<Pair> memory_pair(const JudgedRun& judged) {
  const MeasuredRun& run = judged.run;
  if (!run.memory || !judged.prediction.estimate) return std::nullopt;
  return Pair{in_gib(*run.memory), predicted_memory_gib(*judged.prediction.estimate, run)};
}

const std::vector<GroupKey>& group_keys() {
  static const std::vector<GroupKey> keys{{"recipe", &MeasuredRun::recipe},
                                          {"hardware", &MeasuredRun::hardware},
                                          {"model", &MeasuredRun::model},
                                          {"source", &MeasuredRun::source}};
  return keys;
}

JudgedRun judge(MeasuredRun run, RunPrediction prediction) {
  JudgedRun judged{std::move(run), std::move(prediction), {}};
  const MeasuredRun& r = judged.run;
  const RunPrediction& p = judged.prediction;
  Outcome& o = judged.outcome;
  o.id = r.id;
  o.source = r.source;
  o.failed = r.failed;
  if (r.inputs) {
    o.set = set_of(r);
    o.plan = to_string(r.inputs->plan);
    o.kin = o.set + '|' + r.source + '|' + kin_of(r.inputs->plan);
    o.zero = r.inputs->plan.zero;
    o.micro_batch = r.inputs->plan.micro_batch_size;
    o.bubble = bubble_of(r.inputs->plan);
  }
  if (r.step_time) o.measured_step_s = r.step_time->value();
  o.unsteady = r.unsteady;
  if (p.estimate) {
    o.step_s = p.estimate->step_time.value();
    o.step_low_s = p.estimate->step_time_low.value();
    o.step_high_s = p.estimate->step_time_high.value();
  }
  if (r.memory_kind != MemoryKind::unknown) o.memory = memory_pair(judged);
  // That a rule refuses a plan is the answer to a run that failed, and none to one that worked.
  o.unpriced = !p.unpriced.empty() || r.failed ? p.unpriced : p.refused;
  if (p.unpriced.empty()) o.feasible = p.feasible;
  return judged;
}

Accuracy summarise(const std::vector<JudgedRun>& runs, const AccuracyQuestion& question) {
  Accuracy accuracy;
  Outcomes all;
  for (const JudgedRun& judged : runs) {
    all.push_back(&judged.outcome);
    for (const std::string& flag : judged.run.unknown_flags) ++accuracy.unknown_flags[flag];
  }
  accuracy.all = figures_of(all);
  accuracy.by_source = figures_of(all, Weighting::sources);
  accuracy.apart = in_doubt(all);
  accuracy.trusted = figures_of(without(all, accuracy.apart));
  accuracy.unknown_memory = figures_of_unknown_memory(runs);
  for (const auto& [names, outcomes] : grouped_by(runs, question.by)) {
    accuracy.groups.push_back({names, figures_of(outcomes)});
  }
  for (const auto& [names, outcomes] : grouped_by(runs, {"source"})) {
    accuracy.sources.push_back(
        {names.front(), figures_of(outcomes), figures_of(without(all, outcomes))});
  }
  return accuracy;
}

}  // namespace qplan
