#include "cli/compare_causes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>

#include "models/error.h"
#include "models/plan/plan_text.h"
#include "models/plan/words.h"

namespace qplan {
namespace {

using Mask = std::uint64_t;  // which differences are as in B

// A plan on the way.
struct Halfway {
  std::optional<Estimate> estimate;
  std::string refused;
};

std::string value_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  if (!value.empty() && value.front().is_number())
    return layout_text(value.get<std::vector<int>>());
  std::vector<std::string> parts;
  for (const Json& part : value) parts.push_back(value_text(part));
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, "+"));
}

std::string machine_text(const Job& job) {
  const Json overrides = overrides_to_json(job.choices);
  std::string text = job.hardware.name;
  for (const auto& [key, value] : overrides.items()) {
    if (key != "files") text += fmt::format(" {} {}", key, value_text(value));
  }
  return text;
}

// Takes the parts of a job's choices from either side.
struct Sides {
  bool model = false, machine = false, framework = false, gpus = false;  // as in B
  auto operator<=>(const Sides&) const = default;
};

JobChoices mixed(const Job& a, const Job& b, Sides sides) {
  JobChoices choices = sides.machine ? b.choices : a.choices;
  const Job& model = sides.model ? b : a;
  choices.model = model.choices.model;
  choices.model_config = model.choices.model_config;
  choices.read_as = model.choices.read_as;
  choices.images = model.choices.images;
  choices.image_pixels = model.choices.image_pixels;
  const Job& framework = sides.framework ? b : a;
  choices.framework = framework.framework;
  choices.files = framework.choices.files;
  choices.gpus = (sides.gpus ? b : a).gpus;
  return choices;
}

class WayFromAToB {
 public:
  WayFromAToB(const ComparedPlan& a, const ComparedPlan& b) : a_(a), b_(b) {
    add_fact("model", a.job->model.name, b.job->model.name, a.job->model == b.job->model,
             &Sides::model);
    add_fact("hardware", machine_text(*a.job), machine_text(*b.job),
             machine_text(*a.job) == machine_text(*b.job) &&
                 a.job->hardware.source == b.job->hardware.source,
             &Sides::machine);
    add_fact("framework", std::string(to_word(a.job->framework)),
             std::string(to_word(b.job->framework)), a.job->framework == b.job->framework,
             &Sides::framework);
    add_fact("gpus", fmt::format("{}", a.job->gpus), fmt::format("{}", b.job->gpus),
             a.job->gpus == b.job->gpus, &Sides::gpus);
    facts_ = differences_.size();
    const Json words_a = plan_to_json(a.plan), words_b = plan_to_json(b.plan);
    for_each_word([&](const auto& word) {
      // dp follows from the GPUs and the other degrees.
      if (is_member(word.member, &ParallelPlan::dp)) return;
      if (a.plan.*word.member == b.plan.*word.member) return;
      const std::string key(word.key);
      differences_.push_back({key, value_text(words_a[key]), value_text(words_b[key]), {}, {}});
      words_.push_back([member = word.member](ParallelPlan& plan, const ParallelPlan& from) {
        plan.*member = from.*member;
      });
    });
    known_[0] = {a.answer->estimate, ""};
    known_[full()] = {b.answer->estimate, ""};
  }

  Causes walk() {
    for (std::size_t i = 0; i < differences_.size(); ++i) {
      const Halfway& alone = ask_of(Mask{1} << i);
      differences_[i].refused = alone.refused;
      if (alone.estimate) differences_[i].alone = delta_of(*ask_of(0).estimate, *alone.estimate);
    }
    Causes causes{differences_, {}};
    for (Mask at = 0; at != full();) {
      const Mask next = next_after(at);
      Cause cause;
      for (std::size_t i = 0; i < differences_.size(); ++i) {
        if (((next & ~at) >> i & 1U) != 0) cause.changes.push_back(i);
      }
      cause.delta = delta_of(*ask_of(at).estimate, *ask_of(next).estimate);
      causes.way.push_back(std::move(cause));
      at = next;
    }
    return causes;
  }

  [[nodiscard]] const std::vector<Difference>& differences() const { return differences_; }

 private:
  void add_fact(const std::string& word, const std::string& a, const std::string& b, bool same,
                bool Sides::*side) {
    if (same) return;
    differences_.push_back({word, a, b, {}, {}});
    sides_.push_back(side);
  }

  [[nodiscard]] Mask full() const { return (Mask{1} << differences_.size()) - 1; }

  const std::shared_ptr<Job>& job_of(Sides sides) {
    std::shared_ptr<Job>& job = jobs_[sides];
    if (job == nullptr) job = make_job(mixed(*a_.job, *b_.job, sides));
    return job;
  }

  Halfway asked(Mask mask) {
    Sides sides;
    for (std::size_t i = 0; i < facts_; ++i) {
      if ((mask >> i & 1U) != 0) sides.*sides_[i] = true;
    }
    ParallelPlan plan = a_.plan;
    for (std::size_t i = facts_; i < differences_.size(); ++i) {
      if ((mask >> i & 1U) != 0) words_[i - facts_](plan, b_.plan);
    }
    try {
      const Job& job = *job_of(sides);
      const std::int64_t others = std::int64_t{plan.tp} * plan.cp * plan.pp;
      if (job.gpus % others != 0) {
        return {{}, fmt::format("{} GPUs are no multiple of {}", job.gpus, others)};
      }
      plan.dp = static_cast<int>(job.gpus / others);
      Answer answer = ask(job, plan);
      if (answer.estimate) return {std::move(answer.estimate), ""};
      return {{}, answer.infeasible.front().message};
    } catch (const Error& error) {
      return {{}, error.what()};
    }
  }

  const Halfway& ask_of(Mask mask) {
    const auto known = known_.find(mask);
    if (known != known_.end()) return known->second;
    return known_.emplace(mask, asked(mask)).first->second;
  }

  // How far the step time moves; below 0: the plan cannot run.
  double move(Mask from, Mask to) {
    const Halfway& there = ask_of(to);
    if (!there.estimate) return -1;
    return std::abs(there.estimate->step_time.value() - ask_of(from).estimate->step_time.value());
  }

  // The best of `count` more changes, the first of them not before `first`; `at` itself: none goes.
  Mask best_of(Mask from, Mask at, std::size_t first, int count) {
    Mask best = from;
    double most = -1;
    for (std::size_t i = first; i < differences_.size(); ++i) {
      const Mask bit = Mask{1} << i;
      if ((at & bit) != 0) continue;
      const Mask tried = count == 1 ? at | bit : best_of(from, at | bit, i + 1, count - 1);
      if (tried == from) continue;
      const double moved = move(from, tried);
      if (moved > most) {
        most = moved;
        best = tried;
      }
    }
    return best;
  }

  Mask next_after(Mask at) {
    constexpr int kMostTogether = 3;  // beyond which the attempts are too many to wait for
    for (int count = 1; count <= kMostTogether; ++count) {
      const Mask next = best_of(at, at, 0, count);
      if (next != at) return next;
    }
    return full();
  }

  const ComparedPlan& a_;
  const ComparedPlan& b_;
  std::vector<Difference> differences_;  // facts first
  std::size_t facts_ = 0;
  std::vector<bool Sides::*> sides_;
  std::vector<std::function<void(ParallelPlan&, const ParallelPlan&)>> words_;
  std::map<Sides, std::shared_ptr<Job>> jobs_;
  std::map<Mask, Halfway> known_;
};

}  // namespace

PlanDelta delta_of(const Estimate& a, const Estimate& b) {
  PlanDelta delta;
  delta.step_time = b.step_time - a.step_time;
  for (const TimePart& part : time_parts()) {
    delta.time.*part.value = b.time.*part.value - a.time.*part.value;
  }
  const StageMemory &worst_a = a.memory.worst_stage(), &worst_b = b.memory.worst_stage();
  for (const MemoryPart& part : memory_parts()) {
    delta.memory.*part.value = worst_b.*part.value - worst_a.*part.value;
  }
  for (const auto member : {&StageMemory::peak, &StageMemory::reserved, &StageMemory::device}) {
    delta.memory.*member = worst_b.*member - worst_a.*member;
  }
  delta.device_peak = delta.memory.device;
  return delta;
}

Causes causes_of(const ComparedPlan& a, const ComparedPlan& b) {
  WayFromAToB way(a, b);
  if (!a.answer->estimate || !b.answer->estimate) return {way.differences(), {}};
  return way.walk();
}

}  // namespace qplan
