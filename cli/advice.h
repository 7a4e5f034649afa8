#pragma once
// What would make a plan, or a job, fit: found by trying, never by rule of thumb.

#include <string>
#include <vector>

#include "cli/job.h"
#include "planner/search/search.h"

namespace qplan {

// One change that makes things fit, with what comes out.
struct Advice {
  std::string change;  // "recompute=full"
  ParallelPlan plan;
  std::int64_t gpus = 0;
  Bytes device_peak;
  Seconds step_time;
};

// Single changes of a plan that does not fit, on the same GPUs where possible; fastest first.
std::vector<Advice> what_makes_plan_fit(const Job& job, const ParallelPlan& plan);

// Changes of a job for which the search found nothing: more GPUs, offload, shorter sequences.
std::vector<Advice> what_makes_job_fit(const Job& job, const SearchSpace& space);

// One line for each.
std::string advice_text(const std::vector<Advice>& advice);
Json advice_json(const std::vector<Advice>& advice);

}  // namespace qplan
