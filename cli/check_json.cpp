#include "cli/check_json.h"

#include <utility>

#include "cli/answer.h"
#include "cli/report.h"
#include "planner/frameworks/own_copy.h"

namespace qplan {

Json check_json(const FoundInFiles& found) {
  const Checked& checked = found.checked;
  Json findings = Json::array();
  for (const Finding& f : checked.findings) {
    const std::string why = why_stands(found, f);
    findings.push_back({{"severity", to_word(f.severity)},
                        {"rule", f.rule},
                        {"file", f.place.file},
                        {"line", f.place.line > 0 ? Json(f.place.line) : Json(nullptr)},
                        {"message", f.message},
                        {"instead", f.instead.empty() ? Json(nullptr) : Json(f.instead)},
                        {"source", f.source.empty() ? Json(nullptr) : Json(f.source)},
                        {"fixable", why.empty()},
                        {"not_fixable_because", why.empty() ? Json(nullptr) : Json(why)}});
  }
  Json object{{"framework", checked.framework ? Json(to_word(*checked.framework)) : Json(nullptr)},
              {"errors", checked.count(Severity::error)},
              {"warnings", checked.count(Severity::warning)},
              {"notes", checked.count(Severity::note)},
              {"findings", std::move(findings)},
              {"assumed", checked.assumed},
              {"fixed_files", found.written}};
  object["this_job"] = found.yours ? report(*found.job, *found.yours) : Json(nullptr);
  object["step"] = found.step ? rl_json(*checked.step, *found.step) : Json(nullptr);
  object["would_fit"] = found.job ? advice_json(*found.job, found.would_fit) : Json::array();
  object["best"] = found.best ? report(*found.best_job, *found.best) : Json(nullptr);
  object["best_step"] =
      found.best_step ? rl_json(*found.best_step_asked, *found.best_step) : Json(nullptr);
  return object;
}

Json skipped_json(const CheckAnswer& answer) {
  Json list = Json::array();
  for (const SkippedFile& skipped : answer.skipped) {
    list.push_back({{"file", skipped.file}, {"reason", skipped.reason}});
  }
  return list;
}

Json checks_json(const CheckAnswer& answer) {
  Json jobs = Json::array();
  for (const FoundInFiles& found : answer.jobs) {
    std::vector<std::string> names;
    for (const ConfigText& file : found.files) {
      if (!is_parser(file)) names.push_back(file.name);
    }
    jobs.push_back({{"files", names}, {"answer", versioned("check", check_json(found))}});
  }
  return {{"errors", answer.count(Severity::error)},
          {"warnings", answer.count(Severity::warning)},
          {"notes", answer.count(Severity::note)},
          {"jobs", std::move(jobs)},
          {"skipped", skipped_json(answer)}};
}

}  // namespace qplan
