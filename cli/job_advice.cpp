// What makes a search that found nothing find something: changes of the job, alone, in twos and in
// threes.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "cli/advice.h"
#include "planner/frameworks/written_plans.h"
#include "planner/rules/feasible.h"
#include "planner/search/enumerate.h"
#include "planner/search/refusals.h"

namespace qplan {
namespace {

using P = ParallelPlan;

constexpr Recompute kEverything{RecomputeKind::full, {}, 0};
constexpr std::int64_t kMostTimes = 256;  // the GPUs
constexpr std::int64_t kShortest = 512;   // tokens of a sequence
constexpr std::size_t kMostAtOnce = 3;    // changes

// What is asked: by whose implementation, over which plans.
struct JobQuestion {
  SearchSpace space;
  RecipeKind framework = RecipeKind::megatron;
};

// One change: applies itself and says what it is; nothing where it changes nothing.
using Step = std::function<std::string(JobQuestion&)>;

// A kind of change. Where steps are `ordered`, each needs less memory than the one before, and the
// last says whether any of them helps; `probes` are those that are looked at to know.
struct Kind {
  std::vector<Step> steps;
  bool ordered = true;
  std::vector<std::size_t> probes;
  bool at_home = true;  // on the same GPUs, by the same framework
};

// Which step of which kinds; kinds ascend.
using ChosenSteps = std::vector<std::pair<std::size_t, std::size_t>>;

// ---- the kinds, in the order in which they are applied and said ----

Kind framework_kind(RecipeKind present) {
  Kind kind{.steps = {}, .ordered = false, .probes = {}, .at_home = false};
  // One of each way to share the states out: most others are their relatives.
  for (const RecipeKind other : {RecipeKind::megatron, RecipeKind::deepspeed, RecipeKind::fsdp2}) {
    if (other == present) continue;
    kind.probes.push_back(kind.steps.size());
    kind.steps.push_back([other](JobQuestion& asked) {
      asked.framework = other;
      return fmt::format("framework {}", to_word(other));
    });
  }
  return kind;
}

Kind gpus_kind(const SearchSpace& space) {
  Kind kind{.steps = {}, .ordered = true, .probes = {}, .at_home = false};
  for (std::int64_t times = 2; times <= kMostTimes && space.gpus * times <= kMostGpus; times *= 2) {
    kind.steps.push_back([times](JobQuestion& asked) {
      const std::int64_t before = asked.space.gpus;
      // Degrees that somebody fixed stay fixed; the world is what grows.
      asked.space[&P::dp].clear();
      asked.space.gpus *= times;
      return fmt::format("{} GPUs instead of {}", asked.space.gpus, before);
    });
  }
  // More GPUs than sequences help nobody: those between are looked at, too.
  for (const std::size_t i : {std::size_t{1}, std::size_t{4}, std::size_t{7}}) {
    if (i < kind.steps.size()) kind.probes.push_back(i);
  }
  if (kind.probes.empty() && !kind.steps.empty()) kind.probes.push_back(kind.steps.size() - 1);
  return kind;
}

std::string with_batch(JobQuestion& asked, std::int64_t batch) {
  if (batch == asked.space.job.global_batch_size || batch > kMostSequences) return "";
  asked.space.job.global_batch_size = batch;
  return fmt::format("a batch of {} sequences", batch);
}

// Sequences that every GPU gets as many of: the nearest, then one each.
Kind batch_kind() {
  const auto nearest = [](JobQuestion& asked) {
    const std::int64_t gpus = asked.space.gpus, batch = asked.space.job.global_batch_size;
    return with_batch(asked, std::max<std::int64_t>(1, (batch + gpus / 2) / gpus) * gpus);
  };
  const auto one_each = [](JobQuestion& asked) { return with_batch(asked, asked.space.gpus); };
  return {.steps = {nearest, one_each}, .ordered = true, .probes = {1}, .at_home = true};
}

Kind length_kind(const SearchSpace& space) {
  Kind kind;
  for (std::int64_t length = space.job.seq_len / 2; length >= kShortest; length /= 2) {
    kind.steps.push_back([length](JobQuestion& asked) {
      asked.space.job.seq_len = length;
      return fmt::format("sequences of {} tokens", length);
    });
  }
  if (!kind.steps.empty()) kind.probes = {kind.steps.size() - 1};
  return kind;
}

// Whether the framework and the machine have these words at all.
bool has_words(const Job& job, const ParallelPlan& plan) {
  ClusterLimits limits = job.limits();
  limits.gpus = 0;
  const auto broken = why_infeasible(job.model, plan, job.recipe(), limits);
  return std::none_of(broken.begin(), broken.end(), [](const Infeasible& reason) {
    const std::string_view rule = reason.rule;
    return rule.starts_with("precision_") || rule.starts_with("offload_");
  });
}

Kind precision_kind(const SearchSpace& space) {
  Kind kind{.steps = {}, .ordered = false, .probes = {}, .at_home = true};
  const auto add = [&kind](Precision precision) {
    kind.probes.push_back(kind.steps.size());
    kind.steps.push_back([precision](JobQuestion& asked) {
      asked.space.job.precision = precision;
      return fmt::format("precision={}", to_word(precision));
    });
  };
  const Precision present = space.job.precision;
  // fp32 takes more memory; narrower products than 16 bits are not every GPU's or framework's.
  const bool is_16_bits = present == Precision::bf16 || present == Precision::fp16;
  add(is_16_bits ? Precision::fp8 : Precision::bf16);
  return kind;
}

// Of more and more states. Where nobody constrained it, the search has tried what it offers.
Kind offload_kind(const Job& job, const SearchSpace& space) {
  Kind kind;
  const auto& asked_for = space[&P::offload];
  const bool whole = job.recipe().can.offload == StateOffload::whole;
  for (const Offload& offload :
       {Offload{.optimizer = 1}, Offload{.optimizer = 1, .params = true},
        Offload{.optimizer = 1, .params = true, .activation_layers = 0, .nvme = true}}) {
    const bool offered = !offload.params || (whole && !offload.nvme);
    const bool tried = asked_for.empty() ? offered
                                         : std::find(asked_for.begin(), asked_for.end(), offload) !=
                                               asked_for.end();
    if (tried) continue;
    kind.probes.push_back(kind.steps.size());
    kind.steps.push_back([offload](JobQuestion& asked) {
      asked.space[&P::offload] = {offload};
      return fmt::format("offload={}", to_string(offload));
    });
  }
  return kind;
}

// Where nobody constrained it, the search has tried it.
Kind recompute_kind(const SearchSpace& space) {
  const auto& asked_for = space[&P::recompute];
  const bool tried = asked_for.empty() ||
                     std::find(asked_for.begin(), asked_for.end(), kEverything) != asked_for.end();
  if (tried) return {};
  const auto everything = [](JobQuestion& asked) {
    asked.space[&P::recompute] = {kEverything};
    return std::string("recompute=full");
  };
  return {.steps = {everything}, .ordered = true, .probes = {0}, .at_home = true};
}

// ---- looking ----

class Advisor {
 public:
  Advisor(const Job& job, const SearchSpace& space) : job_(job), present_{space, job.framework} {
    kinds_ = {recompute_kind(space),
              offload_kind(job, space),
              gpus_kind(space),
              batch_kind(),
              length_kind(space),
              precision_kind(space),
              framework_kind(job.framework)};
  }

  // The changes of so many kinds at once that make a plan fit, each as small as it can be; those of
  // the fewest steps first. `at_home`: on the same GPUs, by the same framework.
  std::vector<ChosenSteps> of(std::size_t count, bool at_home) {
    std::vector<std::size_t> chosen;
    std::vector<ChosenSteps> found;
    choose(0, count, at_home, chosen, found);
    std::stable_sort(found.begin(), found.end(), [](const ChosenSteps& a, const ChosenSteps& b) {
      return steps_of(a) < steps_of(b);
    });
    return found;
  }

  [[nodiscard]] bool at_home(const ChosenSteps& change) const {
    return std::all_of(change.begin(), change.end(),
                       [&](const auto& of_kind) { return kinds_[of_kind.first].at_home; });
  }

  // The fastest of all the plans.
  std::optional<Advice> best(const ChosenSteps& change) {
    const auto asked = changed(change);
    if (!asked || !can_be(*asked)) return std::nullopt;
    const Job& job = of_framework(asked->first.framework);
    const SearchResult result = search_offered(job, asked->first.space, options_for(job));
    if (result.plans.empty()) return std::nullopt;
    const RankedPlan& plan = result.plans.front();
    return Advice{asked->second,    plan.plan,      plan.plan.world(),
                  plan.device_peak, plan.step_time, job.framework};
  }

 private:
  static std::size_t steps_of(const ChosenSteps& change) {
    std::size_t steps = 0;
    for (const auto& [kind, step] : change) steps += step;
    return steps;
  }

  // What cannot fit is left out: nobody asks here for the plan that needs least.
  SearchOptions options_for(const Job& job) {
    RefusesPlan& refuses = refuse_[&job];
    if (!refuses) refuses = refuses_states_that_do_not_fit(*job.cost);
    SearchOptions options;
    options.top = 1;
    options.refuses = refuses;
    return options;
  }

  const Job& of_framework(RecipeKind framework) {
    if (framework == job_.framework) return job_;
    auto& other = others_[framework];
    if (!other) {
      JobChoices choices = job_.choices;
      choices.framework = framework;
      choices.files.reset();
      other = make_job(choices, job_.gpus);
    }
    return *other;
  }

  // Nothing: some part of the change changes nothing.
  std::optional<std::pair<JobQuestion, std::string>> changed(const ChosenSteps& change) const {
    JobQuestion asked = present_;
    std::string name;
    for (const auto& [kind, step] : change) {
      const std::string said = kinds_[kind].steps[step](asked);
      if (said.empty()) return std::nullopt;
      if (!name.empty()) name += " and ";
      name += said;
    }
    return std::pair(std::move(asked), std::move(name));
  }

  bool can_be(const std::pair<JobQuestion, std::string>& asked) {
    ParallelPlan plan;
    plan.zero = 3;  // what any offload may ask for
    plan.precision = asked.first.space.job.precision;
    const auto& offload = asked.first.space[&P::offload];
    if (!offload.empty()) plan.offload = offload.front();
    return has_words(of_framework(asked.first.framework), plan);
  }

  // Whether any of the plans fits.
  enum class Among : std::uint8_t { all, smallest };
  bool fits(const ChosenSteps& change, Among among) {
    const auto asked = changed(change);
    if (!asked || !can_be(*asked)) return false;
    const Job& job = of_framework(asked->first.framework);
    SearchSpace space = asked->first.space;
    const auto only = [&space](auto member, auto value) {
      if (space[member].empty()) space[member] = {value};
    };
    // Those that need least memory: everything computed again, one sequence at a time, no more than
    // one stage a rank.
    if (among == Among::smallest) {
      only(&P::recompute, kEverything);
      only(&P::micro_batch_size, std::int64_t{1});
      only(&P::schedule, ScheduleKind::one_f_one_b);
    }
    check_images(job, space.job.seq_len);
    return any_offered(*job.cost, space, options_for(job), files_of(job, space.job),
                       config_of(job));
  }

  // Every set of `count` kinds.
  void choose(std::size_t from, std::size_t count, bool at_home, std::vector<std::size_t>& chosen,
              std::vector<ChosenSteps>& found) {
    if (chosen.size() == count) {
      if (auto one = smallest_of(chosen)) found.push_back(*std::move(one));
      return;
    }
    for (std::size_t kind = from; kind < kinds_.size(); ++kind) {
      if (kinds_[kind].steps.empty() || (at_home && !kinds_[kind].at_home)) continue;
      chosen.push_back(kind);
      choose(kind + 1, count, at_home, chosen, found);
      chosen.pop_back();
    }
  }

  // The smallest change of these kinds. One kind alone is walked step by step, over all plans; what
  // fits among the smallest of several is among all of them, too.
  std::optional<ChosenSteps> smallest_of(const std::vector<std::size_t>& chosen) {
    if (chosen.size() == 1) {
      const std::size_t kind = chosen.front();
      for (std::size_t step = 0; step < kinds_[kind].steps.size(); ++step) {
        ChosenSteps change{{kind, step}};
        if (fits(change, Among::all)) return change;
      }
      return std::nullopt;
    }
    auto change = some_of(chosen, {});
    if (!change) return std::nullopt;
    for (auto& [kind, step] : *change) {
      if (!kinds_[kind].ordered) continue;
      const std::size_t enough = step;
      for (step = 0; step < enough && !fits(*change, Among::smallest); ++step) {
      }
    }
    return change;
  }

  // A change of these kinds that fits, among the steps that are probed.
  std::optional<ChosenSteps> some_of(const std::vector<std::size_t>& chosen, ChosenSteps so_far) {
    if (so_far.size() == chosen.size()) {
      return fits(so_far, Among::smallest) ? std::optional(so_far) : std::nullopt;
    }
    const std::size_t kind = chosen[so_far.size()];
    for (const std::size_t step : kinds_[kind].probes) {
      ChosenSteps more = so_far;
      more.emplace_back(kind, step);
      if (auto change = some_of(chosen, std::move(more))) return change;
    }
    return std::nullopt;
  }

  const Job& job_;
  JobQuestion present_;
  std::vector<Kind> kinds_;
  std::map<RecipeKind, std::unique_ptr<Job>> others_;
  std::map<const Job*, RefusesPlan> refuse_;
};

}  // namespace

std::vector<Advice> what_makes_job_fit(const Job& job, const SearchSpace& space) {
  Advisor advisor(job, space);
  std::vector<Advice> all;
  bool at_home = false;
  for (std::size_t count = 1; count <= kMostAtOnce && !at_home; ++count) {
    // Not everybody can have more GPUs or another framework: what helps without is looked for on.
    for (const ChosenSteps& change : advisor.of(count, /*at_home=*/!all.empty())) {
      at_home = at_home || advisor.at_home(change);
      if (all.size() == kMostAdvice) continue;
      if (auto advice = advisor.best(change)) all.push_back(*std::move(advice));
    }
  }
  return all;
}

std::string nothing_helps() {
  return fmt::format(
      "Nothing that was tried makes it fit: up to {} times the GPUs, a batch of as many sequences "
      "as GPUs, sequences down to {} tokens, precision, offload, recompute=full and other "
      "frameworks, up to {} of them at once.",
      kMostTimes, kShortest, kMostAtOnce);
}

}  // namespace qplan
