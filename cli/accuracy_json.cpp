#include "cli/accuracy_json.h"

#include <fmt/format.h>

#include "cli/report.h"

namespace qplan {
namespace {

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
      !estimate ? Json(nullptr) : Json(predicted_memory_gib(*estimate, run));
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
                                            "smaller micro-batch, bubbles aside; runs the middle "
                                            "half of whose steps spans over {} of their median",
                                            kTwinRatio, kSlowRatio, kUnsteadySpread)},
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
