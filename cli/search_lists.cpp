// `qplan search` of several machines, frameworks or precisions: a search of each combination, and
// one ranking across them.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <ostream>
#include <set>
#include <tuple>

#include "cli/answer.h"
#include "cli/default_hardware.h"
#include "cli/explain.h"
#include "cli/notes.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/prices.h"
#include "cli/print.h"
#include "cli/search_answer.h"
#include "costmodel/profiles/other_names.h"
#include "models/error.h"
#include "models/program/recipe.h"
#include "planner/frameworks/emit.h"

namespace qplan {
namespace {

struct Searched {
  std::unique_ptr<Job> job;
  SearchQuestion question;  // of this combination
  FoundPlans found;
};

// One plan of one of the searches.
struct Ranked {
  std::size_t search = 0, plan = 0;
};

struct Lists {
  std::vector<Searched> searches;  // by machine, then framework, then precision
  std::vector<Ranked> ranking;     // best first, at most --top
  double elapsed_s = 0;
  [[nodiscard]] const Searched& of(const Ranked& ranked) const { return searches[ranked.search]; }
  [[nodiscard]] const Answer& answer(const Ranked& ranked) const {
    return of(ranked).found.plans[ranked.plan];
  }
};

// US dollars for a million tokens; 0: nobody says what a GPU hour costs.
double usd_per_million_tokens(const Searched& searched, const Answer& answer) {
  const double usd_per_s =
      searched.job->price_per_gpu_hour * static_cast<double>(answer.plan.world()) / 3600;
  return 1e6 * usd_per_s / answer.estimate->tokens_per_s;
}

// Smaller is better. Ranks that are equal stand in the order of the lists.
std::pair<double, double> score(Objective objective, const Searched& searched,
                                const Answer& answer) {
  const double speed = answer.estimate->tokens_per_s_per_gpu;
  if (objective == Objective::cost) return {usd_per_million_tokens(searched, answer), -speed};
  if (objective == Objective::gpus) return {static_cast<double>(answer.plan.world()), -speed};
  return {-speed, 0};
}

void rank(Lists& lists, const SearchQuestion& question) {
  for (std::size_t i = 0; i < lists.searches.size(); ++i) {
    const std::size_t count = lists.searches[i].found.plans.size();
    for (std::size_t j = 0; j < count; ++j) lists.ranking.push_back({i, j});
  }
  std::stable_sort(lists.ranking.begin(), lists.ranking.end(),
                   [&](const Ranked& a, const Ranked& b) {
                     return score(question.objective, lists.of(a), lists.answer(a)) <
                            score(question.objective, lists.of(b), lists.answer(b));
                   });
  const auto top = static_cast<std::size_t>(question.top);
  if (lists.ranking.size() > top) lists.ranking.resize(top);
}

// Of the best plan, where the same GPUs do the same work.
bool is_tie(const Lists& lists, std::size_t i) {
  if (i == 0) return false;
  const Answer &best = lists.answer(lists.ranking[0]), &other = lists.answer(lists.ranking[i]);
  return best.plan.world() == other.plan.world() && cannot_be_told(best, other);
}

std::vector<SearchQuestion> combinations(const SearchQuestion& question) {
  // An axis that nobody listed has one point: what was said, or the default.
  const std::size_t machines = std::max<std::size_t>(1, question.hardware.size());
  const std::size_t frameworks = std::max<std::size_t>(1, question.frameworks.size());
  const std::size_t precisions = std::max<std::size_t>(1, question.precisions.size());
  std::vector<ListedPrice> prices;
  if (!question.prices.empty()) prices = read_prices(question.prices);
  std::vector<SearchQuestion> all;
  for (std::size_t m = 0; m < machines; ++m) {
    for (std::size_t f = 0; f < frameworks; ++f) {
      for (std::size_t p = 0; p < precisions; ++p) {
        SearchQuestion one = question;
        if (!question.hardware.empty()) one.choices.hardware = question.hardware[m];
        if (!question.frameworks.empty()) {
          one.choices.framework = question.frameworks[f].framework;
          one.choices.files = question.frameworks[f].files;
        }
        if (!question.precisions.empty()) one.words["precision"] = question.precisions[p];
        const std::string machine =
            plain_machine_name(one.choices.hardware.value_or(std::string(kDefaultHardware)));
        for (const ListedPrice& price : prices) {
          if (plain_machine_name(price.hardware) == machine) one.choices.price = price.usd;
        }
        all.push_back(std::move(one));
      }
    }
  }
  return all;
}

Lists search_all(const SearchQuestion& question, const Console& console) {
  std::vector<SearchQuestion> questions = combinations(question);
  Lists lists;
  for (SearchQuestion& one : questions) {
    Searched searched;
    searched.job = make_job(one.choices);
    if (searched.job->gpus == 0) {
      throw Error(kGpusMissing);
    }
    if (question.objective == Objective::cost && searched.job->price_per_gpu_hour <= 0) {
      throw Error(
          fmt::format("--objective cost compares {} with other machines, and nobody says what an "
                      "hour of it costs; give --prices",
                      searched.job->hardware.name));
    }
    one.defaults = set_job_words(one.space, one.words, searched.job->model, searched.job->recipe(),
                                 searched.job->gpus);
    searched.question = std::move(one);
    lists.searches.push_back(std::move(searched));
  }
  const auto all = static_cast<double>(lists.searches.size());
  double done = 0;
  for (Searched& searched : lists.searches) {
    searched.found =
        find_plans(*searched.job, searched.question, console, done / all, (done + 1) / all);
    lists.elapsed_s += searched.found.elapsed_s;
    ++done;
  }
  rank(lists, question);
  return lists;
}

std::string framework_of(const Searched& searched) {
  const auto& files = searched.job->choices.files;
  return std::string(files ? to_word(*files) : to_word(searched.job->framework));
}

// "h100-sxm, megatron, bf16".
std::string combination_text(const Searched& searched) {
  return fmt::format("{}, {}, {}", searched.job->hardware.name, framework_of(searched),
                     to_word(searched.question.space.job.precision));
}

// ---- text ----

std::string ranking_text(const Lists& lists, const SearchQuestion& question) {
  bool priced = false, marks = false;
  std::vector<Answer> answers;
  for (const Ranked& ranked : lists.ranking) {
    priced |= lists.of(ranked).job->price_per_gpu_hour > 0;
    marks |= rests_on_assumptions(*lists.answer(ranked).estimate);
    answers.push_back(lists.answer(ranked));
  }
  const bool by_hardware = question.hardware.size() > 1;
  const bool by_framework = question.frameworks.size() > 1;
  const bool by_precision = question.precisions.size() > 1;
  std::vector<Table::Column> columns{{"#", ""}, {"", "", Align::left}};
  if (by_hardware) columns.push_back({"hardware", "", Align::left});
  if (by_framework) columns.push_back({"framework", "", Align::left});
  if (by_precision) columns.push_back({"precision", "", Align::left});
  columns.insert(columns.end(), {{"step", "s"},
                                 {"interval", "s", Align::left},
                                 {"tok/s/GPU", ""},
                                 {"MFU", "% of bf16"},
                                 {"peak", "GiB"},
                                 {"bubble", "%"},
                                 {"exposed", "%"}});
  if (priced) columns.push_back({"cost", "USD/M tok"});
  Table table(columns);
  const CommonWords words = split_common_words(answers);
  for (std::size_t i = 0; i < lists.ranking.size(); ++i) {
    const Searched& searched = lists.of(lists.ranking[i]);
    const Answer& answer = answers[i];
    const Estimate& e = *answer.estimate;
    const std::string mark = !marks ? "" : rests_on_assumptions(e) ? "*" : " ";
    std::vector<std::string> cells{fmt::format("{}", i + 1), is_tie(lists, i) ? "tie" : ""};
    if (by_hardware) cells.push_back(searched.job->hardware.name);
    if (by_framework) cells.push_back(framework_of(searched));
    if (by_precision) cells.emplace_back(to_word(searched.question.space.job.precision));
    cells.insert(cells.end(),
                 {significant(e.step_time.value(), 4) + mark,
                  fmt::format("{} .. {}", significant(e.step_time_low.value()),
                              significant(e.step_time_high.value())),
                  significant(e.tokens_per_s_per_gpu, 4),
                  percent(peak_of(*searched.job, answer).mfu_bf16) + mark,
                  fixed(in_gib(e.memory.worst_stage().device), 1),
                  percent(e.time.pp_bubble / e.time.total()), percent(exposed_communication(e))});
    if (priced) {
      const double usd = usd_per_million_tokens(searched, answer);
      cells.push_back(usd > 0 ? significant(usd) : "-");
    }
    table.row(cells);
    if (!words.own[i].empty()) table.note("   " + words.own[i]);
  }
  std::string text = table.text(page().table);
  if (marks) text += wrapped(kAssumedMark, page().text, 2);
  if (!words.common.empty()) text += wrapped("all with: " + words.common, page().text, 10);
  return text;
}

// What became of a combination that has no plan.
std::string nothing_text(const Searched& searched) {
  const SearchResult& result = searched.found.result;
  std::string_view rule;
  std::int64_t most = 0, refused = 0;
  for (const auto& [id, of_rule] : result.infeasible) {
    refused += of_rule.plans;
    if (of_rule.plans <= most) continue;
    most = of_rule.plans;
    rule = id;
  }
  std::string text =
      fmt::format("{}: nothing fits; of {} plans {} are out of memory", combination_text(searched),
                  grouped(result.considered), grouped(result.out_of_memory));
  if (refused > 0) {
    text += fmt::format(" and {} against a rule, most against {}", grouped(refused), rule);
  }
  return wrapped(text, page().text, 4);
}

// The searches of which no plan stands in the table.
std::string others_text(const Lists& lists) {
  std::string text;
  for (std::size_t i = 0; i < lists.searches.size(); ++i) {
    const Searched& searched = lists.searches[i];
    const bool shown = std::any_of(lists.ranking.begin(), lists.ranking.end(),
                                   [i](const Ranked& ranked) { return ranked.search == i; });
    if (searched.found.plans.empty()) {
      text += nothing_text(searched);
    } else if (!shown) {
      const Answer& best = searched.found.plans.front();
      text += wrapped(fmt::format("{}: at best {} tok/s/GPU, {}", combination_text(searched),
                                  significant(best.estimate->tokens_per_s_per_gpu, 4),
                                  line_of(*searched.job, best.plan)),
                      page().text, 4);
    }
  }
  return text;
}

void print_lists(const Lists& lists, const SearchQuestion& question, std::ostream& out) {
  const Searched& first = lists.searches.front();
  const ParallelPlan& job = first.question.space.job;
  const ParameterCount count = count_parameters(first.job->model);
  const double tokens =
      static_cast<double>(job.global_batch_size) * static_cast<double>(job.seq_len);
  print(out, "{}, {} parameters, on {} GPUs; {} searches\n", first.job->model.name,
        human_count(static_cast<double>(count.total())), first.question.space.gpus,
        lists.searches.size());
  print(out, "global batch {} x {} tokens = {} tokens a step\n", job.global_batch_size, job.seq_len,
        human_count(tokens));
  out << defaults_text(first.question.defaults)
      << notes_text(search_notes(first.job->model, first.question.space, first.question.defaults))
      << '\n';
  if (lists.ranking.empty()) out << "Nothing fits.\n\n";
  if (!lists.ranking.empty()) {
    const Ranked& best = lists.ranking.front();
    out << ranking_text(lists, question) << '\n'
        << wrapped(fmt::format("best:   {}, {}", combination_text(lists.of(best)),
                               line_of(*lists.of(best).job, lists.answer(best).plan)),
                   page().text, 8)
        << notes_text(notes_of(*lists.of(best).job, lists.answer(best)))
        << limits_text(*lists.of(best).job, lists.answer(best)) << '\n';
  }
  out << others_text(lists);
  if (question.timing) print(out, "elapsed {}\n", human_seconds(Seconds(lists.elapsed_s)));
}

// ---- JSON ----

Json lists_json(const Lists& lists, const SearchQuestion& question) {
  const Searched& first = lists.searches.front();
  Json searches = Json::array(), plans = Json::array();
  for (const Searched& searched : lists.searches) {
    searches.push_back(
        versioned("search", search_json(*searched.job, searched.question, searched.found)));
  }
  for (std::size_t i = 0; i < lists.ranking.size(); ++i) {
    const Searched& searched = lists.of(lists.ranking[i]);
    const Answer& answer = lists.answer(lists.ranking[i]);
    Json plan = report(*searched.job, answer);
    plan["tie"] = is_tie(lists, i);
    plan["search"] = lists.ranking[i].search;
    const double usd = usd_per_million_tokens(searched, answer);
    plan["usd_per_million_tokens"] = usd > 0 ? Json(usd) : Json();
    plans.push_back(std::move(plan));
  }
  Json object{{"model", first.job->model.name},
              {"gpus", first.question.space.gpus},
              {"global_batch_size", first.question.space.job.global_batch_size},
              {"seq_len", first.question.space.job.seq_len},
              {"objective", to_word(question.objective)},
              {"plans", std::move(plans)},
              {"searches", std::move(searches)}};
  if (question.timing) object["elapsed_s"] = lists.elapsed_s;
  return object;
}

}  // namespace

Exit search_lists(const SearchQuestion& question, const Console& console) {
  if (question.pareto) {
    throw Error("--pareto is of one search; --json has it of each of the list's");
  }
  const Lists lists = search_all(question, console);
  const Console beside = beside_output(question.output, console);
  if (!question.output.empty() && !lists.ranking.empty()) {
    const Ranked& best = lists.ranking.front();
    write_plan(*lists.of(best).job, lists.answer(best), question.output, console);
  }
  if (question.json) {
    beside.out << answer_text("search_lists", lists_json(lists, question));
  } else {
    print_lists(lists, question, beside.out);
  }
  return lists.ranking.empty() ? Exit::nothing_fits : Exit::done;
}

}  // namespace qplan
