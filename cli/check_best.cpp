#include "cli/check_best.h"

#include <fmt/format.h>

#include <utility>

#include "cli/files_plan.h"
#include "planner/frameworks/written_plans.h"

namespace qplan {
namespace {

void say_nothing_fits(FoundInFiles& found, const Job& job, const SearchSpace& space,
                      const RankedPlan& smallest) {
  if (!found.would_fit.empty()) return;  // said of another implementation
  found.checked.findings.insert(
      found.checked.findings.begin(),
      {Severity::error,
       std::string(kNoPlanFits),
       {"the job", 0},
       fmt::format("no plan trains {} on {} x {} by {}: the one that needs least has {} ({})",
                   job.model.name, job.gpus, job.hardware.name, to_word(job.framework),
                   excess_text(job, smallest), line_of(job, smallest.plan)),
       "more GPUs, or one of the changes below",
       "qplan search"});
  found.would_fit = what_makes_job_fit(job, space);
}

}  // namespace

void find_best(FoundInFiles& found, const JobChoices& choices) {
  found.searched = true;
  const ParallelPlan& plan = found.checked.plan;
  for (const RecipeKind recipe : {found.checked.recipe, RecipeKind::megatron}) {
    JobChoices same = choices;
    same.framework = recipe;
    *same.gpus -= found.checked.engines;
    auto job = make_job(same);
    const SearchSpace space = space_of_job(plan, job->gpus);
    SearchOptions options;
    options.top = 1;
    options.alone = false;  // no step of it makes answers, or none is read
    // The job's own framework runs the plan that is recommended, or another is named.
    auto framework = files_of(*job, space.job);
    const auto& of_files = found.checked.framework;
    if (of_files && recipe_for(*of_files, recipe) == recipe) framework = of_files;
    const Json config = config_of(*job);
    const SearchResult result = search_written(*job->cost, space, options, framework, config);
    if (result.plans.empty()) {
      if (result.smallest) say_nothing_fits(found, *job, space, *result.smallest);
      continue;
    }
    found.best = ask(*job, result.plans.front().plan);
    found.best_job = std::move(job);
    return;
  }
}

void find_best_step(FoundInFiles& found, const JobChoices& choices) {
  const Checked& checked = found.checked;
  const RlStep& own = *checked.step;
  JobChoices all = choices;
  all.framework = checked.recipe;
  auto job = make_job(all);
  RolloutLayout any = own.layout;  // another one may be in its place
  any.tp = any.dp = any.ep = 1;
  if (!rl_faults(own.job, job->model, checked.plan, any, job->gpus).empty()) return;
  found.searched = true;
  const Json config = config_of(*job);
  RlSearchOptions options;
  options.search.top = 1;
  options.split = false;
  const std::int64_t engines_on = own.job.colocated() ? job->gpus : own.job.rollout_gpus;
  if (own.job.generates()) {
    options.layouts = rollout_layouts(job->model, engines_on, own.layout);
  }
  const RlSearchResult result =
      search_rl_written(*job->cost, own.job, space_of_job(checked.plan, job->gpus), options,
                        checked.framework, config);
  if (result.plans.empty()) return;
  const RlPlan& best = result.plans.front();
  const bool slower =
      found.step && found.step->fits && found.step->step_time <= best.estimate.step_time;
  found.best_step_asked = own;
  if (!slower) {
    found.best_step_asked->layout = best.layout;
    found.best_step_asked->job.rollout_gpus = best.rollout_gpus;
  }
  found.best_step = slower ? *found.step : best.estimate;
  const ParallelPlan plan = slower ? update_plan(own.job, job->model, checked.plan) : best.plan;
  job->gpus = plan.world();
  found.best = ask(*job, plan);
  found.best_job = std::move(job);
}

}  // namespace qplan
