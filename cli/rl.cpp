#include "cli/rl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "cli/page.h"
#include "models/error.h"
#include "models/plan/plan_text.h"
#include "models/text.h"
#include "planner/rl/rl_step.h"

namespace qplan {
namespace {

constexpr std::int64_t kMostAnswers = 1 << 24;
constexpr std::int64_t kLongest = 1 << 24;
constexpr int kTimelineWidth = 48;

// Lengths one a line or between blanks, or a JSON array of them.
std::vector<std::int64_t> read_lengths(const std::string& path) {
  std::string text = read_text_file(path);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '[' || c == ']' || c == ','; }, ' ');
  std::vector<std::int64_t> lengths;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    lengths.push_back(parse_count(fmt::format("a length in {}", path), word, 1, kLongest));
  }
  if (lengths.empty()) {
    throw Error(
        fmt::format("{} holds no lengths; write the tokens of each answer, one a line", path));
  }
  return lengths;
}

// Where a phase lies within the step.
std::string timeline(const RlPhase& phase, Seconds step) {
  const auto at = [&](Seconds time) {
    return static_cast<std::size_t>(std::llround(kTimelineWidth * (time / step)));
  };
  const std::size_t begin = at(phase.begin), end = std::max(at(phase.end), begin + 1);
  return std::string(begin, ' ') + std::string(end - begin, '#');
}

std::string algorithm_text(const RlJob& job) {
  switch (job.algorithm) {
    case Algorithm::sft:
      return fmt::format("{} examples", job.answers());
    case Algorithm::dpo:
      return fmt::format("{} pairs", job.prompts);
    case Algorithm::grpo:
    case Algorithm::ppo:
      return fmt::format("{} prompts x {} answers", job.prompts, job.samples);
  }
  return "";
}

}  // namespace

void add_rl_options(CommandLine& line, RlQuestion& question) {
  // The first of these that was given, so that a complaint can name it.
  const auto noted = [&question](SetOption set) -> SetOption {
    return [&question, set = std::move(set)](const std::string& option, const std::string& text) {
      if (question.first_option.empty()) question.first_option = option;
      set(option, text);
    };
  };
  line.group("Fine-tuning on answers (with --algorithm)");
  line.option({"--algorithm", "WORD",
               "what a step is: " + word_list<Algorithm>() +
                   "; its batch is made of --prompts and --samples",
               ""},
              set_given(question.algorithm, [](Algorithm& value) { return set_word(value); }));
  line.option({"--prompts", "COUNT", "prompts of a step; examples of sft, pairs of dpo", "64"},
              noted(set_whole(question.job.prompts, 1, kMostAnswers)));
  line.option({"--samples", "COUNT", "answers to each prompt", "8"},
              noted(set_given(question.samples, set_whole, 1, 65536)));
  line.option({"--train-batch", "COUNT", "answers of one optimizer step", "all of the step's"},
              noted(set_whole(question.job.train_batch, 1, kMostAnswers)));
  line.option({"--prompt-len", "TOKENS", "tokens of a prompt, in the mean", "512"},
              noted(set_given(question.prompt_len, set_whole, 0, kLongest)));
  line.option({"--response-len", "TOKENS", "tokens of an answer, in the mean",
               "half of --max-response-len"},
              noted(set_given(question.response_len, set_number, 1.0, 1e7)));
  line.option({"--max-response-len", "TOKENS", "the longest answer", "4096"},
              noted(set_given(question.max_response_len, set_whole, 1, kLongest)));
  line.option({"--response-spread", "SIGMA", "deviation of the logarithm of answers' lengths",
               significant(question.job.response.spread)},
              noted(set_number(question.job.response.spread, 0, 5)));
  line.option({"--lengths", "FILE", "answers' lengths, one a line or a JSON array", ""},
              noted(set_text(question.lengths)));
  line.option(
      {"--rollout", "LAYOUT",
       "an engine that makes answers: \"tp2 share0.8\"; words tp, pp, dp, ep, redundant, share "
       "(of memory), running (at once), fp8",
       "search: all"},
      noted(set_text(question.rollout)));
  line.option({"--rollout-gpus", "COUNT",
               "GPUs that make answers while the others train; 0: the same ones do both in turn",
               "search: all ways"},
              noted(set_given(question.rollout_gpus, set_whole, 0, kMostGpus)));
  line.option(
      {"--staleness", "STEPS",
       "steps that answers may be older than the policy, so that both sides run at once", "0"},
      noted(set_whole(question.job.staleness, 0, 64)));
  line.option({"--ppo-epochs", "COUNT", "times that a step's answers are trained on", "1"},
              noted(set_whole(question.job.epochs, 1, 1000)));
  line.flag("--no-reference", "no frozen model whose log-probabilities are made",
            question.no_reference);
  line.flag("--padded", "answers are padded to the longest, not packed", question.padded);
  line.flag("--unbalanced", "packed answers are dealt to ranks as they come", question.unbalanced);
  line.flag("--keep-trainer", "the trainer's states stay on the device while answers are made",
            question.keep_trainer);
}

RlJob rl_job_of(const RlQuestion& question) {
  RlJob job = question.job;
  if (!question.asked()) {
    std::string given = question.first_option;
    for (const auto& [flag, on] : {std::pair{"--no-reference", question.no_reference},
                                   {"--padded", question.padded},
                                   {"--unbalanced", question.unbalanced},
                                   {"--keep-trainer", question.keep_trainer}}) {
      if (given.empty() && on) given = flag;
    }
    if (!given.empty()) {
      throw Error(fmt::format("{} needs --algorithm: say {}", given, word_list<Algorithm>()));
    }
    return job;
  }
  job.algorithm = *question.algorithm;
  const bool generates = job.generates();
  job.samples = job.algorithm == Algorithm::sft   ? 1
                : job.algorithm == Algorithm::dpo ? 2
                                                  : question.samples.value_or(8);
  if (question.samples && !generates) {
    throw Error(fmt::format("--samples is for grpo and ppo; {} has {}", to_word(job.algorithm),
                            job.samples == 1 ? "one answer an example" : "two answers a pair"));
  }
  if (!generates && (!question.rollout.empty() || question.rollout_gpus || job.staleness > 0)) {
    throw Error(
        fmt::format("{} makes no answers: --rollout, --rollout-gpus and --staleness are for "
                    "grpo and ppo",
                    to_word(job.algorithm)));
  }
  if (!question.lengths.empty()) {
    if (question.response_len || question.max_response_len) {
      throw Error("--lengths says what --response-len and --max-response-len do; give one of them");
    }
    job.response.stated = read_lengths(question.lengths);
    job.response.max = *std::max_element(job.response.stated.begin(), job.response.stated.end());
    double sum = 0;
    for (const std::int64_t n : job.response.stated) sum += static_cast<double>(n);
    job.response.mean = sum / static_cast<double>(job.response.stated.size());
  } else {
    job.response.max = question.max_response_len.value_or(4096);
    job.response.mean = question.response_len.value_or(static_cast<double>(job.response.max) / 2);
  }
  // An example's file says whole examples.
  job.prompt_len = question.prompt_len.value_or(
      job.algorithm == Algorithm::sft && !question.lengths.empty() ? 0 : 512);
  job.rollout_gpus = question.rollout_gpus.value_or(0);
  job.reference = !question.no_reference && job.algorithm != Algorithm::sft;
  job.packed = !question.padded;
  job.balanced = !question.unbalanced && generates;
  job.offload_trainer = !question.keep_trainer;
  return job;
}

RolloutLayout rollout_layout_of(const RlQuestion& question) {
  return parse_rollout_layout(question.rollout);
}

std::int64_t longest_of(const RlJob& job) {
  return job.prompt_len + job.response.max;
}

std::string rl_job_text(const RlJob& job, bool shared_as_found) {
  std::string text = fmt::format(
      "{}: {}, prompts of {} tokens, answers of {} in the mean and {} at most{}",
      to_word(job.algorithm), algorithm_text(job), job.prompt_len,
      significant(job.response.mean, 4), job.response.max, job.packed ? ", packed" : ", padded");
  if (job.generates()) {
    if (shared_as_found) {
      text += "; who makes answers is looked for";
    } else if (job.colocated()) {
      text += "; the same GPUs make answers and train";
    } else {
      text += fmt::format("; {} GPUs make answers", job.rollout_gpus);
    }
    if (job.staleness > 0) {
      text += fmt::format("; answers may be {} step{} old", job.staleness,
                          job.staleness == 1 ? "" : "s");
    }
  }
  return wrapped("step         " + text, page().text, 13);
}

std::string phases_text(const RlEstimate& e) {
  Table table({{"phase", "", Align::left},
               {"time", "s"},
               {"share", "%"},
               {"GPUs", ""},
               {"device", "GiB"},
               {"", "", Align::left}});
  for (const RlPhase& phase : e.phases) {
    table.row({phase.name, significant(phase.time().value()), percent(phase.time() / e.step_time),
               fmt::format("{}", phase.gpus), fixed(in_gib(phase.device), 1),
               timeline(phase, e.step_time)});
    if (!phase.note.empty()) table.note("  " + phase.note);
  }
  table.row({"step", significant(e.step_time.value(), 4), "100.0"});
  std::string text = table.text(page().table);
  text += wrapped(fmt::format("throughput   {} tokens/s a GPU, prompts and answers of a step",
                              significant(e.tokens_per_s_per_gpu, 4)),
                  page().text, 13);
  if (e.rollout.running > 0) {
    text += wrapped(
        fmt::format(
            "rollout      {} run at once in an engine{}; {} of {} pass with fewer than half "
            "of them",
            e.rollout.running, e.rollout.cache_limits ? ", as many as the cache has room for" : "",
            human_seconds(e.rollout.tail), human_seconds(e.rollout.decode)),
        page().text, 13);
  }
  std::string peak = fmt::format("peak memory  {} on the device of {}", human_bytes(e.device),
                                 human_bytes(e.capacity));
  if (e.host_per_node.value() > 0) {
    peak += fmt::format("; {} a node on the host of {}", human_bytes(e.host_per_node),
                        human_bytes(e.host_room));
  }
  text += wrapped(peak, page().text, 13);
  if (!e.fits) text += wrapped("It does not fit: " + e.misfit + ".", page().text);
  return text;
}

Json rl_json(const RlStep& step, const RlEstimate& e) {
  Json object = rl_step_json(step);
  object.update({{"step_time_s", e.step_time.value()},
                 {"tokens_per_s_per_gpu", e.tokens_per_s_per_gpu},
                 {"optimizer_steps", e.optimizer_steps},
                 {"packed_sequences", e.packing.sequences},
                 {"filled_tokens", e.packing.filled},
                 {"imbalance", e.packing.imbalance},
                 {"device_peak_gib", in_gib(e.device)},
                 {"host_per_node_gib", in_gib(e.host_per_node)},
                 {"fits", e.fits},
                 {"misfit", e.misfit}});
  if (step.job.generates()) {
    object["rollout"].update({{"prefill_s", e.rollout.prefill.value()},
                              {"decode_s", e.rollout.decode.value()},
                              {"tail_s", e.rollout.tail.value()},
                              {"running", e.rollout.running},
                              {"cache_limits", e.rollout.cache_limits},
                              {"tokens_per_s_per_engine", e.rollout.tokens_per_s}});
  }
  Json& phases = object["phases"] = Json::array();
  for (const RlPhase& phase : e.phases) {
    phases.push_back({{"name", phase.name},
                      {"begin_s", phase.begin.value()},
                      {"end_s", phase.end.value()},
                      {"gpus", phase.gpus},
                      {"device_peak_gib", in_gib(phase.device)},
                      {"note", phase.note}});
  }
  return object;
}

void refuse_batch(bool said) {
  if (!said) return;
  throw Error(
      "--global-batch-size follows from --prompts, --samples and --train-batch of an --algorithm; "
      "leave it out");
}

std::string rl_ranking_text(const Job& trainer, const RlJob& job,
                            const std::vector<RlPlan>& plans) {
  Table table({{"#", ""},
               {"step", "s"},
               {"tok/s/GPU", ""},
               {"update", "s"},
               {"device", "GiB"},
               {"host", "GiB"},
               {job.generates() ? "rollout" : "", job.generates() ? "s" : ""}});
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const RlEstimate& e = plans[i].estimate;
    Seconds update;
    for (const RlPhase& phase : e.phases) {
      if (phase.name == "update") update = phase.time();
    }
    table.row({fmt::format("{}", i + 1), significant(e.step_time.value(), 4),
               significant(e.tokens_per_s_per_gpu, 4), significant(update.value()),
               fixed(in_gib(e.device), 1), fixed(in_gib(e.host_per_node), 0),
               job.generates() ? significant(e.rollout.time().value()) : std::string()});
    table.note("   train   " + line_of(trainer, plans[i].plan));
    if (!job.generates()) continue;
    table.note(fmt::format("   rollout {} on {}", to_string(plans[i].layout),
                           plans[i].rollout_gpus > 0
                               ? fmt::format("{} GPUs of their own", plans[i].rollout_gpus)
                               : std::string("the same GPUs")));
  }
  return table.text(page().table);
}

}  // namespace qplan
