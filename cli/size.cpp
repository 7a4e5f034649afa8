// `qplan size`: how many GPUs, how long, how large, how cheap. Every point asked about is a search.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <ostream>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/notes.h"
#include "cli/page.h"
#include "cli/plan_words.h"
#include "cli/prices.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/size_question.h"
#include "models/error.h"
#include "planner/search/default_batch.h"
#include "planner/search/enumerate.h"
#include "planner/search/goodput.h"
#include "planner/search/refusals.h"

namespace qplan {
namespace {

// A point that was searched.
struct Sized {
  std::shared_ptr<Job> job;
  ParallelPlan asked;  // batch, length
  std::int64_t micro_batch = 0;
  std::optional<Answer> best;   // none: nothing fits
  std::optional<RunCost> cost;  // of --cheapest
};

struct SizeAnswer {
  std::vector<Sized> tried;           // in their order
  std::optional<std::size_t> chosen;  // of them
  std::string how;                    // a sentence without its full stop
  bool bisected = false;
};

Sized look(const SizeQuestion& question, const JobChoices& choices, const PlanWords& words,
           std::int64_t micro_batch = 0) {
  Sized point;
  point.micro_batch = micro_batch;
  point.job = make_job(choices);
  SearchSpace space = question.space;
  if (micro_batch > 0) space[&ParallelPlan::micro_batch_size] = {micro_batch};
  set_job_words(space, words, point.job->model, point.job->recipe(), point.job->gpus);
  point.asked = space.job;
  SearchOptions options;
  options.top = 1;
  options.threads = static_cast<int>(question.threads);
  options.progress = question.progress;
  options.refuses = refuses_states_that_do_not_fit(*point.job->cost);
  const SearchResult result = search_offered(*point.job, space, options);
  if (!result.plans.empty()) point.best = ask(*point.job, result.plans.front().plan);
  return point;
}

// Keeps a point; true: it fits.
bool keep(SizeAnswer& answer, Sized point) {
  answer.tried.push_back(std::move(point));
  return answer.tried.back().best.has_value();
}

std::int64_t node_of(const JobChoices& choices) {
  return make_job(choices, 1)->hardware.link.gpus_per_node;
}

// Doubling from one GPU, in whole nodes above one node.
std::vector<std::int64_t> doubling_worlds(std::int64_t node, std::int64_t most) {
  std::vector<std::int64_t> worlds;
  for (const int part : divisors(node)) {
    if (part <= most) worlds.push_back(part);
  }
  for (std::int64_t gpus = 2 * node; gpus <= most; gpus *= 2) worlds.push_back(gpus);
  return worlds;
}

constexpr std::int64_t kMostAsked = 16384;  // GPUs, where nobody says how many there are

SizeAnswer fewest_gpus(const SizeQuestion& question) {
  SizeAnswer answer;
  answer.how =
      "doubled until something fits, then every number between of a node's GPUs, or of whole "
      "nodes, from below: more GPUs need not fit where fewer do, for batch and layers must divide "
      "among them";
  const std::int64_t node = node_of(question.choices);
  const auto fits = [&](std::int64_t gpus) {
    JobChoices choices = question.choices;
    choices.gpus = gpus;
    if (!keep(answer, look(question, choices, question.words))) return false;
    answer.chosen = answer.tried.size() - 1;
    return true;
  };
  std::int64_t below = 0;
  for (const std::int64_t gpus :
       doubling_worlds(node, question.choices.gpus.value_or(kMostAsked))) {
    if (!fits(gpus)) {
      below = gpus;
      continue;
    }
    const std::int64_t step = gpus <= node ? 1 : node;
    for (std::int64_t between = below / step * step + step; between < gpus; between += step) {
      if (fits(between)) break;
    }
    break;
  }
  return answer;
}

// The largest multiple of `first` that fits, which `most` is too: doubling, then bisection of the
// last doubling.
void bisect(SizeAnswer& answer, std::int64_t first, std::int64_t most, bool refine,
            const std::function<bool(std::int64_t)>& fits) {
  answer.bisected = true;
  std::int64_t largest = 0, value = first;
  while (value <= most && fits(value)) {
    answer.chosen = answer.tried.size() - 1;
    largest = value;
    value *= 2;
  }
  if (largest == 0 || !refine) return;
  std::int64_t high = std::min(value, most + first);  // the least that does not, or is not asked
  while (high - largest > first) {
    const std::int64_t middle = (largest + high) / 2 / first * first;
    if (fits(middle)) {
      answer.chosen = answer.tried.size() - 1;
      largest = middle;
    } else {
      high = middle;
    }
  }
}

SizeAnswer longest_sequence(const SizeQuestion& question) {
  SizeAnswer answer;
  answer.how =
      "doubled from 1024 tokens, then bisected to 1024: the memory of every plan grows with "
      "the length, and lengths on this grid divide alike";
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 24, kGrid = 1024;
  bisect(answer, kGrid, kMostTokens, true, [&](std::int64_t tokens) {
    PlanWords words = question.words;
    words["seq_len"] = fmt::format("{}", tokens);
    return keep(answer, look(question, question.choices, words));
  });
  return answer;
}

SizeAnswer largest_micro_batch(const SizeQuestion& question) {
  SizeAnswer answer;
  const bool said = question.words.contains("global_batch_size");
  answer.how = said ? "doubled from 1 within the batch that was given: others need not divide it"
                    : "doubled from 1, then bisected: the memory of every plan grows "
                      "with the micro-batch; the batch is a multiple of it near 4 Mi tokens";
  constexpr std::int64_t kMostSequencesOfRank = 1 << 16;
  bisect(answer, 1, kMostSequencesOfRank, !said, [&](std::int64_t micro_batch) {
    PlanWords words = question.words;
    if (!said) {
      SearchSpace space;
      const auto job = make_job(question.choices);
      set_job_words(space, words, job->model, job->recipe(), job->gpus);
      const std::int64_t bundles =
          default_global_batch_size(job->gpus, space.job.seq_len * micro_batch);
      words["global_batch_size"] = fmt::format("{}", bundles * micro_batch);
    }
    return keep(answer, look(question, question.choices, words, micro_batch));
  });
  return answer;
}

SizeAnswer cheapest(const SizeQuestion& question) {
  SizeAnswer answer;
  answer.how = fmt::format(
      "every machine of the list, doubled from the fewest GPUs that fit{}; costs are not monotone, "
      "so that every point was asked",
      question.days ? fmt::format("; runs beyond {} days do not count", *question.days) : "");
  for (const ListedPrice& price : read_prices(question.prices)) {
    JobChoices choices = question.choices;
    choices.hardware = price.hardware;
    choices.price = price.usd;
    for (const std::int64_t gpus :
         doubling_worlds(node_of(choices), question.choices.gpus.value_or(1024))) {
      choices.gpus = gpus;
      if (!keep(answer, look(question, choices, question.words))) continue;
      Sized& point = answer.tried.back();
      RunFacts facts;
      facts.tokens = question.tokens.value_or(kTokensOfSize);
      facts.price_per_gpu_hour = price.usd;
      const Bytes checkpoint =
          checkpoint_bytes(point.job->model, point.job->recipe(), point.best->plan);
      point.cost = cost_of_run(facts, checkpoint, point.job->hardware, gpus,
                               point.best->estimate->tokens_per_s);
      if (question.days && point.cost->wall.value() > *question.days * 86400) continue;
      if (!answer.chosen || point.cost->usd < answer.tried[*answer.chosen].cost->usd) {
        answer.chosen = answer.tried.size() - 1;
      }
    }
  }
  return answer;
}

SizeAnswer largest_model(const SizeQuestion& question) {
  SizeAnswer answer;
  answer.how =
      "the built-in models from the largest down: whether one fits says nothing of another";
  std::vector<std::pair<double, std::string>> models;
  for (const std::string& name : model_names()) {
    models.emplace_back(static_cast<double>(count_parameters(load_model(name)).total()), name);
  }
  std::stable_sort(models.begin(), models.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [parameters, name] : models) {
    JobChoices choices = question.choices;
    choices.model = name;
    if (!keep(answer, look(question, choices, question.words))) continue;
    answer.chosen = answer.tried.size() - 1;
    break;
  }
  return answer;
}

SizeAnswer size_of(const SizeQuestion& question) {
  switch (question.of) {
    case SizeOf::gpus:
      return fewest_gpus(question);
    case SizeOf::sequence:
      return longest_sequence(question);
    case SizeOf::micro_batch:
      return largest_micro_batch(question);
    case SizeOf::cost:
      return cheapest(question);
    case SizeOf::model:
      return largest_model(question);
  }
  return {};
}

// ---- text ----

std::string subject_text(const Sized& point) {
  return fmt::format("{} at {} tokens", point.job->model.name, grouped(point.asked.seq_len));
}

std::string cluster_text(const Sized& point) {
  return fmt::format("{} x {}", point.job->gpus, point.job->hardware.name);
}

std::string best_text(const Sized& point) {
  const Estimate& e = *point.best->estimate;
  return fmt::format("{} ({} of {}, {} a step, {} tokens/s a GPU)",
                     line_of(*point.job, point.best->plan),
                     human_bytes(e.memory.worst_stage().device), human_bytes(e.capacity),
                     human_seconds(e.step_time), significant(e.tokens_per_s_per_gpu, 4));
}

std::string cost_text(const Sized& point) {
  return fmt::format("{} USD, {} days", grouped(std::llround(point.cost->usd)),
                     significant(point.cost->wall.value() / 86400));
}

// Parts of nodes beyond the first are not asked.
std::string nodes_text(const Sized& point) {
  const int node = point.job->hardware.link.gpus_per_node;
  return point.job->gpus > node ? fmt::format(", in whole nodes of {},", node) : "";
}

// One line, however long: what is asked most often is pasted elsewhere.
std::string line_of(const SizeQuestion& question, const SizeAnswer& answer) {
  if (!answer.chosen) {
    const Sized& last = answer.tried.back();
    switch (question.of) {
      case SizeOf::gpus:
        return fmt::format("no cluster of up to {} {} fits {}", last.job->gpus,
                           last.job->hardware.name, subject_text(last));
      case SizeOf::cost:
        return fmt::format("no cluster of the list trains {}{}", subject_text(last),
                           question.days ? fmt::format(" within {} days", *question.days) : "");
      case SizeOf::model:
        return fmt::format("no built-in model fits {}", cluster_text(last));
      case SizeOf::sequence:
      case SizeOf::micro_batch:
        return fmt::format("{} does not fit {}", subject_text(last), cluster_text(last));
    }
  }
  const Sized& best = answer.tried[*answer.chosen];
  switch (question.of) {
    case SizeOf::gpus:
      return fmt::format("{}{} is the least for {}: {}", cluster_text(best), nodes_text(best),
                         subject_text(best), best_text(best));
    case SizeOf::sequence: {
      std::string text = fmt::format("{} tokens is the longest sequence of {} on {}: {}",
                                     grouped(best.asked.seq_len), best.job->model.name,
                                     cluster_text(best), best_text(best));
      for (const std::string& note : length_notes(best.job->model, best.asked.seq_len)) {
        text += "; " + note;
      }
      return text;
    }
    case SizeOf::micro_batch:
      return fmt::format("micro-batches of {} are the largest of {} on {}: {}", best.micro_batch,
                         subject_text(best), cluster_text(best), best_text(best));
    case SizeOf::cost:
      return fmt::format("{} is the cheapest of {} clusters for {} tokens of {} ({}): {}",
                         cluster_text(best), answer.tried.size(),
                         human_count(question.tokens.value_or(kTokensOfSize)), best.job->model.name,
                         cost_text(best), best_text(best));
    case SizeOf::model:
      return fmt::format(
          "{} ({} parameters) is the largest built-in model for {} at {} tokens: {}",
          best.job->model.name,
          human_count(static_cast<double>(count_parameters(best.job->model).total())),
          cluster_text(best), grouped(best.asked.seq_len), best_text(best));
  }
  return "";
}

std::string tried_text(const SizeAnswer& answer) {
  Table table({{"GPUs", ""},
               {"hardware", "", Align::left},
               {"model", "", Align::left},
               {"length", "tokens"},
               {"micro-batch", ""},
               {"batch", "sequences"},
               {"memory", "GiB"},
               {"step", "s"},
               {"cost", "", Align::left}});
  for (const Sized& point : answer.tried) {
    const bool fits = point.best.has_value();
    table.row({fmt::format("{}", point.job->gpus), point.job->hardware.name, point.job->model.name,
               fmt::format("{}", point.asked.seq_len),
               fits                    ? fmt::format("{}", point.best->plan.micro_batch_size)
               : point.micro_batch > 0 ? fmt::format("{}", point.micro_batch)
                                       : "-",
               fmt::format("{}", point.asked.global_batch_size),
               fits ? fixed(in_gib(point.best->estimate->memory.worst_stage().device), 1)
                    : "does not fit",
               fits ? significant(point.best->estimate->step_time.value(), 4) : "-",
               point.cost ? cost_text(point) : ""});
  }
  return '\n' + table.text(page().table) + wrapped("How: " + answer.how + ".", page().text, 5);
}

// ---- JSON ----

constexpr std::string_view name_of(SizeOf of) {
  switch (of) {
    case SizeOf::gpus:
      return "fewest_gpus";
    case SizeOf::sequence:
      return "longest_sequence";
    case SizeOf::micro_batch:
      return "largest_micro_batch";
    case SizeOf::cost:
      return "cheapest";
    case SizeOf::model:
      return "largest_model";
  }
  return "?";
}

Json to_json(const SizeQuestion& question, const SizeAnswer& answer) {
  Json tried = Json::array();
  for (const Sized& point : answer.tried) {
    const bool fits = point.best.has_value();
    tried.push_back(
        {{"model", point.job->model.name},
         {"hardware", point.job->hardware.name},
         {"gpus", point.job->gpus},
         {"seq_len", point.asked.seq_len},
         {"global_batch_size", point.asked.global_batch_size},
         {"micro_batch_size",
          fits ? Json(point.best->plan.micro_batch_size)
               : (point.micro_batch > 0 ? Json(point.micro_batch) : Json(nullptr))},
         {"feasible", fits},
         {"short", fits ? Json(line_of(*point.job, point.best->plan)) : Json(nullptr)},
         {"step_time_s", fits ? Json(point.best->estimate->step_time.value()) : Json(nullptr)},
         {"cost_usd", point.cost ? Json(point.cost->usd) : Json(nullptr)},
         {"days", point.cost ? Json(point.cost->wall.value() / 86400) : Json(nullptr)}});
  }
  const Sized* const best = answer.chosen ? &answer.tried[*answer.chosen] : nullptr;
  return {{"question", name_of(question.of)},
          {"text", line_of(question, answer)},
          {"bisected", answer.bisected},
          {"how", answer.how},
          {"chosen", answer.chosen ? Json(*answer.chosen) : Json(nullptr)},
          {"tried", std::move(tried)},
          {"best", best != nullptr ? report(*best->job, *best->best) : Json(nullptr)}};
}

}  // namespace

Exit run_size(const Args& args, const Console& console) {
  SizeQuestion question;
  CommandLine line("size", "How many GPUs a job needs, and how large a job a cluster takes.",
                   "qplan size --model qwen3-32b --seq-len 16384\n"
                   "         qplan size --longest --model llama3-70b --gpus 64");
  add_size_options(line, question);
  if (!line.parse(args, console.out)) return Exit::done;
  settle_size_question(question);
  question.progress = progress_of(console);
  const SizeAnswer answer = size_of(question);
  end_progress(console);
  if (question.json) {
    console.out << answer_text("size", to_json(question, answer));
  } else {
    console.out << line_of(question, answer) << '\n';
    if (question.tried) console.out << tried_text(answer);
  }
  return answer.chosen ? Exit::done : Exit::nothing_fits;
}

}  // namespace qplan
