#include "cli/html_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "cli/notes.h"
#include "cli/report.h"
#include "cli/timeline.h"
#include "costmodel/fold/replay.h"
#include "models/embedded.h"
#include "models/error.h"
#include "models/text.h"

namespace qplan {

extern const EmbeddedFile report_files[];
extern const std::size_t report_files_count;

namespace {

// How an answer is told: keys that it has and others have not, the first that fits.
struct AnswerKind {
  std::string_view verb;
  std::array<std::string_view, 2> keys;
};
constexpr std::array kKinds{
    AnswerKind{"search", {"considered", "plans"}}, AnswerKind{"search", {"combined", "steps"}},
    AnswerKind{"search", {"searches", "plans"}},   AnswerKind{"predict", {"plan", "feasible"}},
    AnswerKind{"sweep", {"points", "points"}},     AnswerKind{"validate", {"comparison", "loss"}},
    AnswerKind{"run", {"predicted", "loss"}},      AnswerKind{"accuracy", {"all", "rows"}},
};

// Bars that a browser draws anew while somebody zooms: 20,000 take Chromium 0.14 s on a core that
// others use, and 0.4 s at a quarter of its speed (docs/evidence/archive/doors-2026-11-29.md); they
// are half a megabyte.
constexpr std::size_t kMostEvents = 20'000;

std::string embedded(std::string_view name) {
  const std::span files(report_files, report_files_count);
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const EmbeddedFile& f) { return f.name == name; });
  return found == files.end() ? std::string() : found->text();
}

// The plans of an answer that are told whole.
std::vector<const Json*> plans_of(const PageAnswer& page) {
  std::vector<const Json*> plans;
  const Json& answer = page.answer;
  if (page.verb == "predict") plans.push_back(&answer);
  if (answer.contains("predicted")) plans.push_back(&answer["predicted"]);
  if (page.verb == "search" && answer.contains("plans") && answer["plans"].is_array()) {
    for (const Json& plan : answer["plans"]) plans.push_back(&plan);
  }
  return plans;
}

// Of the machines that a list names, the one that this plan is on.
std::optional<std::string> machine_of(const Json& plan, const std::string& list) {
  if (list.find(',') == std::string::npos) return list;
  for (const std::string_view part : split(list, ',')) {
    const std::string name(trimmed(part));
    try {
      if (plan.contains("hardware") && plan["hardware"] == load_hardware(name).name) return name;
    } catch (const Error&) {
      continue;  // a cluster of several kinds, whose name says all of it
    }
  }
  return std::nullopt;
}

PlanFile read_plan(const Json& object, const JobChoices& given) {
  PlanFile file = plan_file_of(object, "a plan of the answer");
  if (given.model) {
    file.choices.model = given.model;
    file.choices.model_config = given.model_config;
  }
  if (const auto machine = given.hardware ? machine_of(object, *given.hardware) : std::nullopt) {
    file.choices.hardware = machine;
    file.choices.hardware_profile = given.hardware_profile;
  }
  if (given.read_as) file.choices.read_as = given.read_as;
  return file;
}

// The step of a plan over time, or a sentence why there is none. `room`: events that may still be
// drawn; the first plan's are, if not all.
Json timeline_of(const Job& job, const PlanFile& file, bool first, std::size_t& room) {
  constexpr const char* kTooMany = "it would make the page large; `qplan trace` draws it";
  if (file.fingerprint.empty()) return "a rule forbids this plan, it has no step";
  if (fingerprint_of(job, file.plan) != file.fingerprint) {
    return "the step program has changed since the answer was made";
  }
  if (room == 0) return kTooMany;
  const Trace trace = trace_step(*job.cost, file.plan, TraceGrain::action);
  const std::size_t events = trace.events.size();
  if (events > room && !first) return kTooMany;
  Json timeline = timeline_json(trace, room);
  room -= std::min(room, events);
  return timeline;
}

// Every "source" of a profile, by the section that it is in.
void add_sources(const Json& section, const std::string& name, Json& list) {
  if (!section.is_object()) return;
  for (const auto& [key, value] : section.items()) {
    const std::string below = name.empty() ? key : name + '.' + key;
    if (key != "source") {
      add_sources(value, below, list);
    } else if (value.is_string()) {
      list.push_back({{"section", name}, {"figure", nullptr}, {"source", value}});
    } else if (value.is_object()) {
      for (const auto& [figure, source] : value.items()) {
        list.push_back({{"section", name}, {"figure", figure}, {"source", source}});
      }
    }
  }
}

// The search of a list that found a plan; 0 of an answer that is no list.
std::size_t search_of(const Json& plan) {
  return plan.contains("search") && plan["search"].is_number_unsigned()
             ? plan["search"].get<std::size_t>()
             : 0;
}

// What the answer does not have itself: timelines of its plans and the sources of its machine; of a
// list of searches those of the best plan's machine, and of each search's.
void add_job(const PageAnswer& answer, Json& object) {
  Json& timelines = object["timelines"] = Json::array();
  Json sources = Json::array(), sources_of = Json::object();
  std::map<std::size_t, std::unique_ptr<Job>> jobs;  // of the plans of one search
  std::size_t room = kMostEvents;
  for (const Json* plan : plans_of(answer)) {
    try {
      const PlanFile file = read_plan(*plan, answer.given);
      const std::size_t search = search_of(*plan);
      std::unique_ptr<Job>& job = jobs[search];
      if (!job) {
        job = make_job(file.choices);
        Json& own = sources_of[std::to_string(search)] = Json::array();
        add_sources(job->hardware.source, "", own);
        if (sources.empty()) sources = own;
      }
      timelines.push_back(timeline_of(*job, file, timelines.empty(), room));
    } catch (const Error& error) {
      timelines.push_back(error.what());
    }
  }
  object["sources"] = std::move(sources);
  if (answer.answer.contains("searches")) object["sources_of"] = std::move(sources_of);
}

Json page_data(const std::vector<PageAnswer>& answers) {
  Json data{{"version", QPLAN_VERSION},      {"time_parts", Json::array()},
            {"memory_parts", Json::array()}, {"beside_peak", kBesidePeak},
            {"much_assumed", kMuchAssumed},  {"assumed_mark", kAssumedMark},
            {"answers", Json::array()}};
  for (const TimePart& part : time_parts()) {
    data["time_parts"].push_back(
        {{"key", part.key}, {"label", part.label}, {"communication", part.communication}});
  }
  for (const MemoryPart& part : memory_parts()) {
    data["memory_parts"].push_back({{"key", part.key}, {"label", part.label}});
  }
  for (const PageAnswer& answer : answers) {
    Json object{{"verb", answer.verb}, {"asked", answer.asked}};
    add_job(answer, object);
    object["answer"] = answer.answer;
    data["answers"].push_back(std::move(object));
  }
  return data;
}

// As a script's text. A '<' stands in strings alone, where \u003c says the same: neither "</script"
// nor "<!--" can end or hide what follows.
std::string script_json(const Json& data) {
  const std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string safe;
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string html_text(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '&':
        safe += "&amp;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

// The template with each {{name}} filled in, once: what is filled in is not looked at again.
std::string filled(std::string_view text, const auto& content_of) {
  std::string page;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = text.find("{{", at), end = text.find("}}", begin);
    if (begin == text.npos || end == text.npos) return page += text.substr(at);
    page += text.substr(at, begin - at);
    page += content_of(text.substr(begin + 2, end - begin - 2));
    at = end + 2;
  }
  return page;
}

}  // namespace

std::optional<std::string> verb_of(const Json& answer) {
  const auto fits = [&](const AnswerKind& kind) {
    return std::all_of(kind.keys.begin(), kind.keys.end(),
                       [&](std::string_view key) { return answer.contains(key); });
  };
  const auto found = std::find_if(kKinds.begin(), kKinds.end(), fits);
  if (!answer.is_object() || found == kKinds.end()) return std::nullopt;
  return std::string(found->verb);
}

std::string drawn_verbs() {
  std::vector<std::string_view> verbs;
  for (const AnswerKind& kind : kKinds) {
    if (verbs.empty() || verbs.back() != kind.verb) verbs.push_back(kind.verb);
  }
  return fmt::format("{}", fmt::join(verbs, ", "));
}

bool is_drawn(std::string_view verb) {
  return std::any_of(kKinds.begin(), kKinds.end(),
                     [&](const AnswerKind& kind) { return kind.verb == verb; });
}

bool has_plots() {
  return !embedded("plots").empty();
}

std::string html_page(const std::vector<PageAnswer>& answers) {
  return filled(embedded("page"), [&](std::string_view name) {
    if (name == "answers") return script_json(page_data(answers));
    if (name == "licence") return html_text(embedded(name));
    return embedded(name);
  });
}

}  // namespace qplan
