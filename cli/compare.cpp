// `qplan compare`: two plans side by side, and what each thing that differs does.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <ostream>
#include <system_error>

#include "cli/answer.h"
#include "cli/asked_plan.h"
#include "cli/check_files.h"
#include "cli/commands.h"
#include "cli/compare_causes.h"
#include "cli/files_plan.h"
#include "cli/page.h"
#include "cli/print.h"
#include "models/error.h"

namespace qplan {
namespace {

struct CompareQuestion {
  JobChoices choices;
  PlanWords words;
  std::vector<std::string> names;
  bool best = false, json = false;
};

struct TwoPlans {
  ComparedPlan a, b;
  Causes causes;
  [[nodiscard]] bool has_times() const { return a.answer->estimate && b.answer->estimate; }
};

bool all_exist(const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(), [](const std::string& name) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(name, ignored);
  });
}

// What `search -o` writes, not a framework's JSON.
bool is_our_file(const std::string& name) {
  if (!name.ends_with(".json")) return false;
  try {
    const Json json = read_json_file(name);
    return json.is_object() && json.contains("plan") && json["plan"].is_object();
  } catch (const Error&) {
    return false;  // ds_config.json may have remarks
  }
}

std::optional<std::int64_t> number_of(const PlanWords& words, std::string_view key) {
  const auto found = words.find(key);
  if (found == words.end()) return std::nullopt;
  return read_numbers(option_name(key), found->second, 1, kMaxCount, RangeStep::one).front();
}

ComparedPlan plan_of_files(const CompareQuestion& question, const std::vector<std::string>& names) {
  for (const auto& [key, value] : question.words) {
    if (key == "global_batch_size" || key == "seq_len") continue;
    throw Error(fmt::format("{} cannot change what a framework's files say; change it there",
                            option_name(key)));
  }
  FilesQuestion asked{.choices = question.choices,
                      .seq_len = number_of(question.words, "seq_len"),
                      .global_batch_size = number_of(question.words, "global_batch_size"),
                      .micro_batch_size = {},
                      .assumed = {}};
  if (!asked.choices.gpus) throw Error("--gpus is missing; say how many GPUs the files' job has");
  const std::vector<ConfigText> files = read_check_files(names);
  if (!asked.choices.model) read_model_of_files(asked, files);
  const auto any = make_job(asked.choices);
  const Checked checked = check_files(asked, *any, files);
  const std::string named = fmt::format("{}", fmt::join(names, ", "));
  if (!speaks_of_plan(checked)) {
    throw Error(fmt::format("{} say{} no plan; `qplan check` says what is wrong", named,
                            names.size() == 1 ? "s" : ""));
  }
  if (checked.step) {
    throw Error(
        fmt::format("{} are of a step that makes its own answers; `qplan check` reads it", named));
  }
  ComparedPlan compared;
  compared.label = named;
  compared.job = job_of_files(asked, checked);
  compared.plan = checked.plan;
  compared.assumed = checked.assumed;
  // The best plan beside it is one that the same files can say.
  if (recipe_for(*checked.framework, checked.recipe) == checked.recipe &&
      to_word(*checked.framework) != to_word(checked.recipe)) {
    compared.job->choices.files = checked.framework;
  }
  return compared;
}

ComparedPlan named_plan(const CompareQuestion& question, const std::string& name) {
  const std::vector<std::string> files = split_list(name);
  if (all_exist(files) && !(files.size() == 1 && is_our_file(name))) {
    return plan_of_files(question, files);
  }
  AskedPlan asked = asked_plan({question.choices, question.words, name});
  ComparedPlan compared;
  compared.label = name;
  compared.job = std::move(asked.job);
  compared.job->choices.gpus = compared.job->gpus;
  compared.plan = asked.plan;
  for (const std::string& said : {asked.placed, update_alone_text(asked)}) {
    if (!said.empty()) compared.assumed.push_back(said);
  }
  return compared;
}

ComparedPlan best_beside(const ComparedPlan& plan) {
  SearchOptions options;
  options.top = 1;
  const SearchSpace space = space_of_job(plan.plan, plan.job->gpus);
  const SearchResult result = search_offered(*plan.job, space, options);
  if (result.plans.empty()) {
    throw Error(fmt::format("no plan of this job fits {} x {}; `qplan search` says what would",
                            plan.job->gpus, plan.job->hardware.name));
  }
  return {.label = "the best plan that search finds",
          .job = plan.job,
          .plan = result.plans.front().plan,
          .assumed = {},
          .answer = {}};
}

TwoPlans compare(const CompareQuestion& question) {
  TwoPlans found;
  if (question.best) {
    const bool files = question.names.size() > 1;
    found.a = files ? plan_of_files(question, question.names)
                    : named_plan(question, question.names.front());
    found.b = best_beside(found.a);
  } else {
    found.a = named_plan(question, question.names[0]);
    found.b = named_plan(question, question.names[1]);
  }
  for (ComparedPlan* plan : {&found.a, &found.b}) plan->answer = ask(*plan->job, plan->plan);
  found.causes = causes_of(found.a, found.b);
  return found;
}

// ---- text ----

std::string with_sign(double value, std::string text) {
  // What rounds to nothing is neither more nor less.
  const bool nothing = text.find_first_not_of("0.") == std::string::npos;
  return nothing ? "0" : (value < 0 ? "-" : "+") + std::move(text);
}

// No op takes a nanosecond: a smaller difference is the rounding of sums.
constexpr double kRoundingSeconds = 1e-9;

std::string seconds_delta(Seconds time) {
  if (std::abs(time.value()) < kRoundingSeconds) return "0";
  return with_sign(time.value(), significant(std::abs(time.value())));
}

std::string gib_delta(Bytes bytes) {
  return with_sign(bytes.value(), fixed(std::abs(in_gib(bytes)), 2));
}

std::string sides_text(const TwoPlans& found) {
  std::string text;
  for (const auto& [letter, side] : {std::pair{'A', &found.a}, std::pair{'B', &found.b}}) {
    text += wrapped(fmt::format("{}  {}", letter, side->label), page().text, 3);
    text += "   " + model_line(*side->job);
    text += wrapped("   " + line_of(*side->job, side->plan), page().text, 3);
    for (const std::string& sentence : side->assumed) {
      text += wrapped("   assumed: " + sentence, page().text, 12);
    }
    for (const Infeasible& reason : side->answer->infeasible) {
      text +=
          wrapped(fmt::format("   {}: {}", side->answer->estimate ? "does not fit" : "cannot run",
                              reason.message),
                  page().text, 3);
    }
  }
  return text;
}

// "B is 1.16 times as fast as A a token, ..."; "as fast as A" where they do the same.
std::string verdict_text(const TwoPlans& found) {
  const Estimate &a = *found.a.answer->estimate, &b = *found.b.answer->estimate;
  const double ratio = b.tokens_per_s / a.tokens_per_s;
  if (found.a.plan == found.b.plan && found.causes.differences.empty()) {
    return "A and B are the same plan.\n";
  }
  const bool faster = ratio >= 1;
  const Answer& best = faster ? *found.b.answer : *found.a.answer;
  const Answer& other = faster ? *found.a.answer : *found.b.answer;
  const bool same_work =
      a.tokens_per_s * a.step_time.value() == b.tokens_per_s * b.step_time.value();
  const bool tie = same_work && cannot_be_told(best, other);
  const char* const but = best.feasible() ? "" : ", but does not fit";
  return wrapped(fmt::format("{} is {} times as fast as {} ({} against {} tokens/s){}{}.",
                             faster ? 'B' : 'A', significant(faster ? ratio : 1 / ratio),
                             faster ? 'A' : 'B', human_count(best.estimate->tokens_per_s),
                             human_count(other.estimate->tokens_per_s), tie_text(tie), but),
                 page().text);
}

std::string numbers_text(const TwoPlans& found) {
  const Estimate &a = *found.a.answer->estimate, &b = *found.b.answer->estimate;
  const PlanDelta delta = delta_of(a, b);
  Table table({{"", "", Align::left}, {"A", ""}, {"B", ""}, {"B less A", ""}});
  const auto add = [&](const char* name, double of_a, double of_b) {
    table.row({name, significant(of_a, 4), significant(of_b, 4),
               with_sign(of_b - of_a, significant(std::abs(of_b - of_a)))});
  };
  add("step, s", a.step_time.value(), b.step_time.value());
  add("tokens/s a GPU", a.tokens_per_s_per_gpu, b.tokens_per_s_per_gpu);
  add("MFU, %", 100 * a.mfu, 100 * b.mfu);
  for (const TimePart& part : time_parts()) {
    const Seconds of_a = a.time.*part.value, of_b = b.time.*part.value;
    if (of_a.value() == 0 && of_b.value() == 0) continue;
    table.row({fmt::format("  {}, s", part.label), significant(of_a.value()),
               significant(of_b.value()), seconds_delta(delta.time.*part.value)});
  }
  const StageMemory &worst_a = a.memory.worst_stage(), &worst_b = b.memory.worst_stage();
  const auto add_memory = [&](const std::string& name, Bytes of_a, Bytes of_b) {
    table.row({name, fixed(in_gib(of_a), 2), fixed(in_gib(of_b), 2), gib_delta(of_b - of_a)});
  };
  add_memory("memory of the fullest GPU, GiB", worst_a.device, worst_b.device);
  for (const MemoryPart& part : memory_parts()) {
    add_memory(fmt::format("  {}, GiB", part.label), worst_a.*part.value, worst_b.*part.value);
  }
  add_memory("  allocator, context and NCCL, GiB", worst_a.device - worst_a.peak,
             worst_b.device - worst_b.peak);
  add_memory("may be filled, GiB", a.capacity, b.capacity);
  return table.text(page().table);
}

// The parts that a change moves most: "pipeline bubble -0.12 s".
std::string mostly_text(const PlanDelta& delta) {
  std::vector<std::pair<double, std::string>> parts;
  for (const TimePart& part : time_parts()) {
    const Seconds moved = delta.time.*part.value;
    parts.emplace_back(std::abs(moved.value()),
                       fmt::format("{} {} s", part.label, seconds_delta(moved)));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& x, const auto& y) { return x.first > y.first; });
  std::string text = parts[0].second;
  // A second part is worth a word where it is a third of the first at least.
  if (parts[1].first > parts[0].first / 3) text += ", " + parts[1].second;
  return parts[0].first >= kRoundingSeconds ? text : "";
}

std::string change_text(const Causes& causes, const std::vector<std::size_t>& changes) {
  std::string text;
  for (const std::size_t i : changes) {
    const Difference& d = causes.differences[i];
    text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", d.word, d.a, d.b);
  }
  return text;
}

std::string causes_text(const Causes& causes) {
  if (causes.way.empty()) return "";
  Table table({{"from A to B, one on top of the other", "", Align::left},
               {"step", "s"},
               {"memory", "GiB"},
               {"mostly", "", Align::left},
               {"alone", "s"}});
  for (const Cause& cause : causes.way) {
    const Difference& first = causes.differences[cause.changes.front()];
    const std::string alone = cause.changes.size() > 1 ? "together"
                              : first.alone            ? seconds_delta(first.alone->step_time)
                                                       : "refused";
    table.row({change_text(causes, cause.changes), seconds_delta(cause.delta.step_time),
               gib_delta(cause.delta.device_peak), mostly_text(cause.delta), alone});
  }
  return '\n' + table.text(page().table) +
         wrapped(
             "The steps sum to the difference. What a change does depends on those before it; "
             "\"alone\" is what it does to A by itself.",
             page().text);
}

void print_text(const TwoPlans& found, std::ostream& out) {
  out << sides_text(found) << '\n';
  if (!found.has_times()) {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < found.causes.differences.size(); ++i) all.push_back(i);
    out << wrapped("They differ in: " + change_text(found.causes, all) + ".", page().text);
    return;
  }
  out << verdict_text(found) << '\n' << numbers_text(found) << causes_text(found.causes);
}

// ---- JSON ----

Json delta_json(const PlanDelta& delta) {
  Json memory = Json::object();
  for (const MemoryPart& part : memory_parts()) {
    memory[std::string(part.key)] = in_gib(delta.memory.*part.value);
  }
  memory["outside_gib"] = in_gib(delta.memory.device - delta.memory.peak);
  return {{"step_time_s", delta.step_time.value()},
          {"device_peak_gib", in_gib(delta.device_peak)},
          {"time", time_json(delta.time)},
          {"memory", std::move(memory)}};
}

Json to_json(const TwoPlans& found) {
  Json object = Json::object();
  for (const auto& [key, side] : {std::pair{"a", &found.a}, std::pair{"b", &found.b}}) {
    object[key] = {{"name", side->label},
                   {"assumed", side->assumed},
                   {"prediction", report(*side->job, *side->answer)}};
  }
  Json differences = Json::array();
  for (const Difference& d : found.causes.differences) {
    differences.push_back({{"word", d.word},
                           {"a", d.a},
                           {"b", d.b},
                           {"alone", d.alone ? delta_json(*d.alone) : Json(nullptr)},
                           {"refused", d.refused.empty() ? Json(nullptr) : Json(d.refused)}});
  }
  object["differences"] = std::move(differences);
  Json way = Json::array();
  for (const Cause& cause : found.causes.way) {
    Json step = delta_json(cause.delta);
    step["words"] = Json::array();
    for (const std::size_t i : cause.changes) {
      step["words"].push_back(found.causes.differences[i].word);
    }
    way.push_back(std::move(step));
  }
  object["way"] = std::move(way);
  object["delta"] = nullptr;
  object["speedup"] = nullptr;
  if (found.has_times()) {
    const Estimate &a = *found.a.answer->estimate, &b = *found.b.answer->estimate;
    object["delta"] = delta_json(delta_of(a, b));
    object["speedup"] = b.tokens_per_s / a.tokens_per_s;
  }
  return object;
}

}  // namespace

Exit run_compare(const Args& args, const Console& console) {
  CompareQuestion question;
  CommandLine line(
      "compare", "Two plans side by side, and what each thing that differs does.",
      "qplan compare \"tp8 pp2 mbs1\" \"tp4 pp4 mbs1\" --model llama3-70b --gpus 64\n"
      "         qplan compare ds_config.json train.sh --best --model qwen3-30b-a3b --gpus 64");
  line.positionals(
      "PLAN",
      "A and B, each a line of plan words, a plan file, or a framework's files (several "
      "with commas); with --best one plan, or all files of one job",
      question.names);
  add_model_options(line, question.choices);
  add_job_words(line, question.words);
  add_cluster_options(line, question.choices);
  line.group("Output");
  line.flag("--best", "compare with the best plan that a search finds for the same job",
            question.best);
  line.flag("--json", "the same as JSON", question.json);
  if (!line.parse(args, console.out)) return Exit::done;
  if (question.best && question.names.empty()) {
    throw Error("compare --best needs a plan, or the files of a job");
  }
  if (!question.best && question.names.size() != 2) {
    throw Error(
        fmt::format("compare needs two plans, A and B, not {}; files of one job are a list "
                    "with commas, and --best takes one job",
                    question.names.size()));
  }
  const TwoPlans found = compare(question);
  if (question.json) {
    console.out << answer_text("compare", to_json(found));
  } else {
    print_text(found, console.out);
  }
  return found.has_times() ? Exit::done : Exit::nothing_fits;
}

}  // namespace qplan
