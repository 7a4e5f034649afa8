#include "cli/accuracy_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

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
  const auto m = static_cast<double>(plan.num_microbatches());
  return (m + plan.pp - 1) / m;
}

double predicted_memory_gib(const Estimate& e, MemoryKind kind) {
  const auto value = kind == MemoryKind::allocated ? &StageMemory::peak : &StageMemory::reserved;
  return in_gib(largest(e.memory, value));
}

std::optional<Pair> memory_pair(const JudgedRun& judged) {
  const MeasuredRun& run = judged.run;
  if (!run.memory || !judged.prediction.estimate) return std::nullopt;
  return Pair{in_gib(*run.memory),
              predicted_memory_gib(*judged.prediction.estimate, run.memory_kind)};
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

// ---- JSON ----

Json or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json to_json(const ErrorFigures& f) {
  return {{"rows", f.rows},
          {"median_abs", or_null(f.median_abs)},
          {"mean_abs", or_null(f.mean_abs)},
          {"p90_abs", or_null(f.p90_abs)},
          {"worst_abs", or_null(f.worst_abs)},
          {"median_signed", or_null(f.median_signed)}};
}

Json to_json(const Figures& f) {
  Json unpriced = Json::object();
  for (const auto& [reason, count] : f.unpriced) unpriced[reason] = count;
  return {{"rows", f.rows},
          {"priced", f.priced},
          {"unpriced", std::move(unpriced)},
          {"step_time", to_json(f.step_time)},
          {"memory", to_json(f.memory)},
          {"ranking",
           {{"sets", f.ranking.sets},
            {"kendall_tau", or_null(f.ranking.kendall_tau)},
            {"top1_regret", or_null(f.ranking.top1_regret)}}},
          {"fits",
           {{"ok_called_feasible", f.fits.ok_called_feasible},
            {"ok_called_infeasible", f.fits.ok_called_infeasible},
            {"failed_called_infeasible", f.fits.failed_called_infeasible},
            {"failed_called_feasible", f.fits.failed_called_feasible}}},
          {"interval",
           {{"coverage", or_null(f.interval.coverage)},
            {"median_half_width", or_null(f.interval.median_half_width)}}}};
}

Json row_json(const JudgedRun& judged) {
  const MeasuredRun& run = judged.run;
  const Outcome& o = judged.outcome;
  const auto memory = memory_pair(judged);
  const auto& estimate = judged.prediction.estimate;
  Json row{{"id", run.id}};
  row["predicted_step_time_s"] = or_null(o.step_s);
  row["measured_step_time_s"] = or_null(o.measured_step_s);
  const bool timed = o.step_s && o.measured_step_s;
  row["error"] = timed ? Json(Pair{*o.measured_step_s, *o.step_s}.error()) : Json(nullptr);
  row["predicted_peak_gib"] =
      !estimate ? Json(nullptr)
                : Json(predicted_memory_gib(*estimate,
                                            run.memory ? run.memory_kind : MemoryKind::allocated));
  row["measured_mem"] = run.memory ? Json(in_gib(*run.memory)) : Json(nullptr);
  row["memory_error"] = memory ? Json(memory->error()) : Json(nullptr);
  row["feasible"] = o.feasible ? Json(*o.feasible) : Json(nullptr);
  row["status"] = run.failed ? "failed" : "ok";
  row["unpriced"] = o.unpriced.empty() ? Json(nullptr) : Json(o.unpriced);
  for (const GroupKey& key : group_keys()) row[std::string(key.name)] = run.*key.value;
  row["grade"] = run.grade;
  row["mem_kind"] = run.memory ? Json(to_word(run.memory_kind)) : Json(nullptr);
  row["interval_s"] = estimate ? Json({*o.step_low_s, *o.step_high_s}) : Json(nullptr);
  row["time"] = estimate ? time_json(estimate->time) : Json(nullptr);
  row["plan"] = run.inputs ? Json(to_string(run.inputs->plan)) : Json(nullptr);
  row["broken_rules"] = judged.prediction.broken;
  return row;
}

}  // namespace

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

Json accuracy_json(const std::vector<JudgedRun>& runs, const Accuracy& accuracy,
                   const AccuracyQuestion& question) {
  Json json{{"files", question.files}, {"grades", question.grades}};
  json["left_out"] = question.left_out;
  json["all"] = to_json(accuracy.all);
  json["all"]["by_source"] = to_json(accuracy.by_source);
  Json& sources = json["all"]["leave_one_source_out"] = Json::array();
  for (const Leave& leave : accuracy.sources) {
    sources.push_back({{"source", leave.source},
                       {"only", to_json(leave.only)},
                       {"without", to_json(leave.others)}});
  }
  Json ids = Json::array();
  for (const Outcome* o : accuracy.apart) ids.push_back(o->id);
  json["set_aside"] = {{"rule", fmt::format("ZeRO-0/1 twins whose measured step times differ by "
                                            "more than {}x; runs over {}x slower than one with a "
                                            "smaller micro-batch, bubbles aside",
                                            kTwinRatio, kSlowRatio)},
                       {"ids", std::move(ids)},
                       {"all", to_json(accuracy.trusted)}};
  json["memory_of_unknown_kind"] = to_json(accuracy.unknown_memory);
  Json& flags = json["unknown_flags"] = Json::object();
  for (const auto& [flag, count] : accuracy.unknown_flags) flags[flag] = count;
  Json& groups = json["groups"] = Json::array();
  for (const FigureGroup& group : accuracy.groups) {
    Json by = Json::object();
    for (std::size_t i = 0; i < question.by.size(); ++i) by[question.by[i]] = group.names[i];
    Json object{{"by", std::move(by)}};
    object.update(to_json(group.figures));
    groups.push_back(std::move(object));
  }
  Json& rows = json["rows"] = Json::array();
  for (const JudgedRun& judged : runs) rows.push_back(row_json(judged));
  return json;
}

}  // namespace qplan
