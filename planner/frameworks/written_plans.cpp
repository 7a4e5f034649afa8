#include "planner/frameworks/written_plans.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "planner/frameworks/check.h"
#include "planner/frameworks/rl/written_step.h"
#include "planner/rl/rl_job.h"
#include "planner/search/refusals.h"

namespace qplan {
namespace {

// What the engine of such a step takes of the device while the plan trains.
Bytes taken_beside(const CostModel& cost) {
  return engine_asleep(RlJob{}, RolloutLayout{}, cost.hardware());
}

// ... and nothing is left beside an engine that cannot hold the weights, whatever the plan: which
// engine verl's and NeMo-RL's files get depends on the model and the machine alone.
Bytes taken_by_written_step(const CostModel& cost, Framework framework, const Json& config,
                            const SearchSpace& space) {
  if (framework == Framework::slime) return taken_beside(cost);
  const ParallelPlan plain = default_plan(cost.model(), cost.recipe(), space.gpus,
                                          space.job.global_batch_size, space.job.seq_len);
  const Subject subject{
      cost.model(), config, plain, cost.recipe().kind, cost.hardware().link.gpus_per_node,
      nullptr,      &cost};
  const bool held = holds_weights(cost, step_to_write(subject).step.layout);
  return held ? taken_beside(cost) : Bytes(std::numeric_limits<double>::infinity());
}

// What check() makes of the files of a plan, or of the step that it is a part of.
Checked read_back(const CostModel& cost, Framework framework, const Subject& subject,
                  std::int64_t gpus) {
  const HardwareProfile& hardware = cost.hardware();
  std::vector<ConfigText> texts;
  for (EmittedFile& file : emit(framework, subject, {})) {
    texts.push_back({std::move(file.name), std::move(file.text)});
  }
  return check(texts, CheckQuestion{cost.model(),
                                    subject.config,
                                    limits_of(hardware, gpus, cost.kinds()),
                                    hardware.link.gpus_per_node,
                                    {},
                                    {},
                                    {}});
}

// Whether every phase of a step that was read fits.
bool step_fits(const CostModel& cost, const Checked& read, std::int64_t gpus) {
  const auto& [job, layout] = *read.step;
  const ParallelPlan update = update_plan(job, cost.model(), read.plan);
  const ClusterLimits limits = limits_of(cost.hardware(), update.world(), cost.kinds());
  return rl_faults(job, cost.model(), read.plan, layout, gpus).empty() &&
         broken_rule(cost.model(), update, cost.recipe(), limits).empty() &&
         evaluate_rl(cost, job, read.plan, layout, gpus).fits;
}

// Whether the files of the plan are, read back, a step of which every phase fits.
bool written_step_fits(const CostModel& cost, Framework framework, const Json& config,
                       const ParallelPlan& plan) {
  const int gpus_per_node = cost.hardware().link.gpus_per_node;
  const Subject subject{cost.model(),  config,  plan, cost.recipe().kind,
                        gpus_per_node, nullptr, &cost};
  const Checked read = read_back(cost, framework, subject, plan.world());
  return !read.step || step_fits(cost, read, plan.world());
}

// Whether files that are read back as one plan say the other. What lengths answers have no file
// says, so that those of other than the usual ones make another batch.
bool says_plan(const ParallelPlan& read, ParallelPlan plan, const RlJob& job) {
  plan.routing = read.routing;
  plan.document_len = read.document_len;
  const bool usual = job.response.stated.empty() &&
                     job.response.mean * 2 == static_cast<double>(job.response.max) &&
                     job.response.spread == ResponseLengths{}.spread;
  if (!usual) plan.global_batch_size = read.global_batch_size;
  return to_string(read) == to_string(plan);
}

// Whether the files of a step can be written, and are, read back, the same plan and engines, with
// nothing to find.
bool step_is_written(const CostModel& cost, Framework framework, const Json& config,
                     const RlJob& job, const RlPlan& found) {
  RlStep step{job, found.layout};
  step.job.rollout_gpus = found.rollout_gpus;
  const ParallelPlan& plan = found.plan;
  const Subject subject{
      cost.model(), config, plan, cost.recipe().kind, cost.hardware().link.gpus_per_node,
      &step,        &cost};
  const ClusterLimits limits = limits_of(cost.hardware(), plan.world(), cost.kinds());
  if (!refusals(framework, subject, limits).empty()) return false;
  const std::int64_t gpus = plan.world() + found.rollout_gpus;
  const Checked read = read_back(cost, framework, subject, gpus);
  return read.step && !read.has(Severity::error) && !read.has(Severity::warning) &&
         says_plan(read.plan, plan, job) && read.step->layout == found.layout &&
         read.step->job.rollout_gpus == found.rollout_gpus && step_fits(cost, read, gpus);
}

// Plans that break a limit of the files, of a part of `step` where one is given, are refused.
void refuse_unsaid(SearchOptions& options, const CostModel& cost, Framework framework,
                   const Json& config, const ParallelPlan& job, const RlStep* step) {
  const auto subject = [&cost, &config, step](const ParallelPlan& plan) -> Subject {
    return {cost.model(), config, plan, cost.recipe().kind, cost.hardware().link.gpus_per_node,
            step};
  };
  const auto unsaid = [subject, limits = limits_of_plans(framework, subject(job))](
                          const ParallelPlan& plan) -> std::string_view {
    const Subject of_plan = subject(plan);
    const auto broken = std::find_if(limits.begin(), limits.end(),
                                     [&](const Limit* limit) { return limit->broken(of_plan); });
    return broken == limits.end() ? std::string_view() : (*broken)->rule;
  };
  options.refuses = either(options.refuses, unsaid);
}

// What the files of a framework leave no choice of, where nobody asks for another.
SearchSpace as_written(SearchSpace space, Framework framework, RecipeKind recipe) {
  std::vector<LossKind>& losses = space[&ParallelPlan::loss];
  const bool whole = framework == Framework::automodel && recipe == RecipeKind::fsdp2_compile;
  if (whole && losses.empty()) losses = {LossKind::compiled};
  return space;
}

// Limits are no rules of the implementation, which have sources; nor what no other search finds
// room for.
bool refused_by_limits(const SearchResult& result, const CostModel& cost) {
  return std::any_of(result.infeasible.begin(), result.infeasible.end(), [&](const auto& count) {
    return count.first != kStatesFit && source_of_rule(count.first, cost.recipe().kind).empty();
  });
}

// A search leaves out sequences in shares that are shorter than pays. Of GPUs such as 24 they may
// be all that files can say which divide answers among ranks and have no word for uneven stages.
std::optional<SearchSpace> with_every_cp(const SearchSpace& space) {
  constexpr int kMost = 64;
  if (!space[&ParallelPlan::cp].empty()) return std::nullopt;
  SearchSpace wider = space;
  for (int cp = 1; cp <= kMost; ++cp) wider[&ParallelPlan::cp].push_back(cp);
  return wider;
}

// ... and whether limits, or what was read back, refused any.
struct FoundSteps {
  RlSearchResult result;
  bool refused = false;
};

FoundSteps find_steps(const CostModel& cost, const RlJob& job, const SearchSpace& space,
                      RlSearchOptions options, std::optional<Framework> framework,
                      const Json& config) {
  FoundSteps found;
  if (!framework || !has_files_of(*framework, cost.model())) {
    found.result = search_rl(cost, job, space, options);
    return found;
  }
  const bool steps = writes_steps(*framework);
  options.find = [&](const RlJob& split, const SearchSpace& training, const SearchOptions& how) {
    const RlStep step{split, {}};
    // Of files of a plan alone, those of pairs of answers are another program's.
    const bool says_step = steps || !split.generates();
    SearchOptions asked = how;
    refuse_unsaid(asked, cost, *framework, config, training.job, says_step ? &step : nullptr);
    // Who puts steps together wants the best plans alone.
    SearchResult plans = search(cost, training, asked, [](const SearchResult&) { return false; });
    found.refused = found.refused || refused_by_limits(plans, cost);
    return plans;
  };
  if (steps) {
    options.one_sequence = true;
    options.accepts = [&](const RlJob& asked, const RlPlan& plan) {
      return step_is_written(cost, *framework, config, asked, plan);
    };
  }
  found.result = search_rl(cost, job, space, options);
  found.refused = found.refused || found.result.refused > 0;
  return found;
}

// How plans are looked for: search(), or one that is asked for less.
using LooksFor = std::function<SearchResult(const SearchSpace&, const SearchOptions&)>;

SearchResult look_for_written(const LooksFor& look, const CostModel& cost, const SearchSpace& space,
                              SearchOptions options, Framework framework, const Json& config) {
  refuse_unsaid(options, cost, framework, config, space.job, nullptr);
  const bool files = has_files_of(framework, cost.model());
  if (files && options.alone && writes_steps(framework)) {
    options.beside = taken_by_written_step(cost, framework, config, space);
    options.accepts = [&cost, &config, framework](const ParallelPlan& plan) {
      return written_step_fits(cost, framework, config, plan);
    };
  }
  return look(as_written(space, framework, cost.recipe().kind), options);
}

// Where the files cannot name the model, or no plan that they can say is found, any plan.
SearchResult look_for_offered(const LooksFor& look_for_written_ones, const LooksFor& look,
                              const CostModel& cost, const SearchSpace& space,
                              const SearchOptions& options, std::optional<Framework> framework,
                              const Json& config) {
  if (!framework || !has_files_of(*framework, cost.model())) return look(space, options);
  SearchResult result =
      look_for_written(look_for_written_ones, cost, space, options, *framework, config);
  if (!result.plans.empty()) return result;
  // Where limits refused nothing, a search without them finds nothing more.
  if (!refused_by_limits(result, cost)) return result;
  SearchOptions free = options;
  if (options.alone && writes_steps(*framework)) free.beside = taken_beside(cost);
  return look(space, free);
}

}  // namespace

SearchResult search_written(const CostModel& cost, const SearchSpace& space, SearchOptions options,
                            std::optional<Framework> framework, const Json& config) {
  if (!framework) return search(cost, space, options);
  const auto look = [&cost](const SearchSpace& among, const SearchOptions& how) {
    return search(cost, among, how);
  };
  return look_for_written(look, cost, space, std::move(options), *framework, config);
}

SearchResult search_offered(const CostModel& cost, const SearchSpace& space,
                            const SearchOptions& options, std::optional<Framework> framework,
                            const Json& config, const AsksSmallest& asks_smallest) {
  // Nobody asks for it of a search that another one follows.
  const auto last = [&](const SearchResult& none) {
    return !refused_by_limits(none, cost) && (!asks_smallest || asks_smallest(none));
  };
  const auto written = [&](const SearchSpace& among, const SearchOptions& how) {
    return search(cost, among, how, last);
  };
  const auto any = [&](const SearchSpace& among, const SearchOptions& how) {
    return search(cost, among, how, asks_smallest);
  };
  return look_for_offered(written, any, cost, space, options, framework, config);
}

bool any_offered(const CostModel& cost, const SearchSpace& space, const SearchOptions& options,
                 std::optional<Framework> framework, const Json& config) {
  const auto look = [&cost](const SearchSpace& among, const SearchOptions& how) {
    return search_any(cost, among, how);
  };
  return !look_for_offered(look, look, cost, space, options, framework, config).plans.empty();
}

RlSearchResult search_rl_written(const CostModel& cost, const RlJob& job, const SearchSpace& space,
                                 RlSearchOptions options, std::optional<Framework> framework,
                                 const Json& config) {
  return find_steps(cost, job, space, std::move(options), framework, config).result;
}

RlSearchResult search_rl_offered(const CostModel& cost, const RlJob& job, const SearchSpace& space,
                                 const RlSearchOptions& options, std::optional<Framework> framework,
                                 const Json& config) {
  FoundSteps found = find_steps(cost, job, space, options, framework, config);
  if (!found.result.plans.empty() || !found.refused) return std::move(found.result);
  if (const auto wider = with_every_cp(space); wider && writes_steps(*framework)) {
    FoundSteps others = find_steps(cost, job, *wider, options, framework, config);
    if (!others.result.plans.empty()) return std::move(others.result);
  }
  RlSearchResult any = search_rl(cost, job, space, options);
  return any.plans.empty() && !found.result.misfits.empty() ? std::move(found.result) : any;
}

}  // namespace qplan
