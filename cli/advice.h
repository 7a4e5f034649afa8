#pragma once
// What would make a plan, or a job, fit: found by trying, never by rule of thumb.

#include <string>
#include <vector>

#include "cli/job.h"
#include "planner/search/search.h"

namespace qplan {

// A change, or several at once, that makes things fit, with what comes out.
struct Advice {
  std::string change;  // "recompute=full", "sequences of 512 tokens and a batch of 8 sequences"
  ParallelPlan plan;
  std::int64_t gpus = 0;
  Bytes device_peak;
  Seconds step_time;
  RecipeKind framework = RecipeKind::megatron;
};
inline constexpr std::size_t kMostAdvice = 6;  // that anybody reads

struct NamedPlan {
  std::string change;  // "without --fsdp-shard"
  ParallelPlan plan;
};

// Changes of a plan that does not fit, on the same GPUs where possible; fastest first. Two at once
// where none alone is enough, three where no two are. `others`: plans that the question would make
// otherwise, each a change by itself.
std::vector<Advice> what_makes_plan_fit(const Job& job, const ParallelPlan& plan,
                                        const std::vector<NamedPlan>& others = {});

// Changes of a job for which the search found nothing, in job_advice.cpp: more GPUs, another batch,
// shorter sequences, precision, offload, recompute, another framework. Two or three at once as
// above; the smallest first.
std::vector<Advice> what_makes_job_fit(const Job& job, const SearchSpace& space);

// What was tried in vain, where the list is empty.
std::string nothing_helps();

// One line for each.
std::string advice_text(const std::vector<Advice>& advice);
Json advice_json(const Job& job, const std::vector<Advice>& advice);

}  // namespace qplan
