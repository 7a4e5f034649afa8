#include "cli/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "cli/page.h"
#include "cli/plan_words.h"
#include "executor/gpu_limits.h"
#include "planner/frameworks/emit.h"
#include "planner/rules/feasible.h"

namespace qplan {
namespace {

std::vector<std::string> words_of(const ParallelPlan& plan) {
  std::istringstream line(to_string(plan));
  std::vector<std::string> words;
  for (std::string word; line >> word;) words.push_back(word);
  return words;
}

bool has_word(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// The words of `a` that `b` lacks.
std::string without(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::string text;
  for (const std::string& word : a) {
    if (has_word(b, word)) continue;
    if (!text.empty()) text += ' ';
    text += word;
  }
  return text;
}

// What is said of a plan that breaks a rule, or a limit of the framework's files.
std::string sentence_of(const Job& job, const SearchSpace& space, const std::string& rule,
                        const ParallelPlan& plan) {
  ClusterLimits limits = job.limits();
  limits.gpus = plan.world();
  if (rule == kCudaBackendRule) return unexecuted_on_gpu(job.model, plan).value_or("");
  const auto framework = files_of(job, space.job);
  const Json config = config_of(job);
  const bool written = broken_rule(job.model, plan, job.recipe(), limits) == rule;
  if (!written && !framework) return "";
  const auto why =
      written
          ? why_infeasible(job.model, plan, job.recipe(), limits)
          : why_inexpressible(
                *framework,
                {job.model, config, plan, job.framework, job.hardware.link.gpus_per_node}, limits);
  const auto said =
      std::find_if(why.begin(), why.end(), [&](const Infeasible& i) { return i.rule == rule; });
  return said == why.end() ? "" : said->message;
}

// What is left on the fullest stage, and what the host holds. A cache grows into what nobody else
// needs, so that a device can be full of it.
std::string memory_limit(const Estimate& e) {
  const StageMemory& worst = e.memory.worst_stage();
  const Bytes spare = e.capacity - worst.device;
  std::string text =
      spare.value() < 1
          ? fmt::format("memory is full on stage {}, the allocator's cache being {} of it",
                        e.memory.worst, human_bytes(worst.reserved - worst.peak))
          : fmt::format("memory has {} to spare on stage {}", human_bytes(spare), e.memory.worst);
  if (e.memory.host_per_node.value() > 0) {
    text += fmt::format("; the host holds {} a node, pinned", human_bytes(e.memory.host_per_node));
  }
  return text;
}

}  // namespace

CommonWords split_common_words(const std::vector<Answer>& answers) {
  CommonWords result;
  std::vector<std::vector<std::string>> words;
  for (const Answer& answer : answers) words.push_back(words_of(answer.plan));
  std::vector<std::string> common;
  // One plan alone is shown whole.
  if (words.size() > 1) {
    for (const std::string& word : words.front()) {
      const bool everywhere = std::all_of(words.begin(), words.end(),
                                          [&](const auto& plan) { return has_word(plan, word); });
      if (everywhere) common.push_back(word);
    }
  }
  result.common = without(common, {});
  for (const auto& plan : words) result.own.push_back(without(plan, common));
  return result;
}

std::string limits_text(const Job& job, const Answer& answer) {
  const Estimate& e = *answer.estimate;
  const Precision peak = peak_of(job, answer).format;
  const TimePart* loss = nullptr;  // the largest part that is not compute
  for (const TimePart& part : time_parts()) {
    if (part.value == &TimeBreakdown::compute) continue;
    if (loss == nullptr || e.time.*part.value > e.time.*loss->value) loss = &part;
  }
  return wrapped(
      fmt::format(
          "limits: compute is {}% of the step, at {}% of the GPU's {}peak; the largest loss is "
          "{}, {}% ({}); {}",
          percent(e.time.compute / e.time.total()),
          percent(e.mfu * (e.time.total() / e.time.compute)),
          peak == Precision::bf16 ? "" : std::string(to_word(peak)) + ' ', loss->label,
          percent(e.time.*loss->value / e.time.total()), human_seconds(e.time.*loss->value),
          memory_limit(e)),
      page().text, 8);
}

std::string change_text(const ParallelPlan& best, const ParallelPlan& plan) {
  const auto a = words_of(best), b = words_of(plan);
  const std::string here = without(a, b), there = without(b, a);
  return here.empty()    ? there
         : there.empty() ? fmt::format("without {}", here)
                         : fmt::format("{} instead of {}", there, here);
}

std::string untried_text(const ParallelPlan& best, Seconds step_time,
                         const std::vector<UntriedSetting>& untried) {
  if (untried.empty()) return "";
  std::vector<std::string> said;
  for (const auto& [ranked, written] : untried) {
    said.push_back(fmt::format("{} {:+.1f}% ({} GiB{})", change_text(best, ranked.plan),
                               100 * (ranked.step_time / step_time - 1),
                               fixed(in_gib(ranked.device_peak), 1),
                               written ? "" : "; `emit` does not write it"));
  }
  return wrapped(fmt::format("also:   settings that a search leaves as they are, each alone on the "
                             "best plan: {}",
                             fmt::join(said, "; ")),
                 page().text, 8);
}

std::string runner_up_text(const Answer& best, const Answer& second, bool tie) {
  const Estimate &first = *best.estimate, &next = *second.estimate;
  const Seconds lost = next.step_time - first.step_time;

  struct PartOfLoss {
    std::string_view label;
    Seconds time;
  };
  std::vector<PartOfLoss> differences;
  for (const TimePart& part : time_parts()) {
    const Seconds time = next.time.*part.value - first.time.*part.value;
    // Below a thousandth of the step nothing is explained.
    if (std::abs(time / first.step_time) < 1e-3) continue;
    differences.push_back({part.label, time});
  }
  std::stable_sort(differences.begin(), differences.end(), [](const auto& x, const auto& y) {
    return std::abs(x.time.value()) > std::abs(y.time.value());
  });
  std::string parts;
  for (const PartOfLoss& d : differences) {
    if (!parts.empty()) parts += ", ";
    parts += fmt::format("{} {}{}", d.label, d.time.value() > 0 ? "+" : "", human_seconds(d.time));
  }
  std::string text =
      fmt::format("second: {} loses {} a step ({}%){}", change_text(best.plan, second.plan),
                  human_seconds(lost), percent(lost / first.step_time), tie_text(tie));
  if (!parts.empty()) text += ": " + parts;
  return wrapped(text, page().text, 8);
}

std::string source_of_refusal(const Job& job, const SearchSpace& space, const std::string& rule) {
  if (rule == kCudaBackendRule) return "qplan: executor/gpu_limits.cpp";
  std::string source = source_of_rule(rule, job.framework);
  const auto framework = files_of(job, space.job);
  if (source.empty() && framework) {
    source = fmt::format("qplan: emit has no words for it in {}'s files", to_word(*framework));
  }
  return source;
}

std::vector<Refusal> refusals_of(const Job& job, const SearchSpace& space,
                                 const std::map<std::string, Refused>& refused) {
  std::vector<Refusal> reasons;
  for (const auto& [rule, of_rule] : refused) {
    const std::string example = sentence_of(job, space, rule, of_rule.example);
    reasons.push_back({rule, of_rule.plans, in_notation(example, Notation::options)});
  }
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const Refusal& a, const Refusal& b) { return a.count > b.count; });
  return reasons;
}

std::string rules_text(const Job& job, const SearchSpace& space,
                       const std::map<std::string, Refused>& refused) {
  std::string text;
  for (const Refusal& reason : refusals_of(job, space, refused)) {
    const std::string count = grouped(reason.count);
    text += wrapped(
        fmt::format("{}{} {}{}", std::string(count.size() < 9 ? 9 - count.size() : 0, ' '), count,
                    reason.rule, reason.example.empty() ? "" : ": " + reason.example),
        page().text, 12);
    const std::string source = source_of_refusal(job, space, reason.rule);
    if (!source.empty()) text += wrapped(fmt::format("{:12}[{}]", "", source), page().text, 13);
  }
  return text;
}

}  // namespace qplan
