#pragma once
// Which training plan and which rollout layout, together: the fastest step of both.

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/rl/rl_job.h"
#include "planner/search/search.h"

namespace qplan {

struct RlPlan {
  ParallelPlan plan;  // its batch is the update's (update_plan())
  RolloutLayout layout;
  std::int64_t rollout_gpus = 0;  // 0: the same GPUs do both
  RlEstimate estimate;
};

struct RlSearchOptions {
  SearchOptions search;
  // Layouts of the rollout to look at; empty: all that the model divides by.
  std::vector<RolloutLayout> layouts;
  // How training plans of a job are looked for; empty: search().
  std::function<SearchResult(const RlJob&, const SearchSpace&, const SearchOptions&)> find;
  // Whether a combination is one that may be reported. Asked of those that fit, best first, until
  // there are enough.
  std::function<bool(const RlJob&, const RlPlan&)> accepts;
  // A packed micro-batch is one sequence of as many tokens, as verl, NeMo-RL and slime run it.
  bool one_sequence = false;
  bool split = true;  // also ways to set GPUs aside for the rollout, where the job leaves it open
};

struct RlSearchResult {
  std::vector<RlPlan> plans;                           // best first, at most `search.top`; all fit
  std::int64_t layouts = 0, splits = 0, combined = 0;  // looked at
  std::int64_t considered = 0;                         // training plans, of all splits
  std::int64_t refused = 0;                            // by `accepts`
  std::vector<RlPlan> misfits;  // with nothing that fits: what came nearest, and why not
};

// `space` says what a training plan may be (its GPUs are replaced by each split's), its job the
// length of a sequence.
RlSearchResult search_rl(const CostModel& cost, const RlJob& job, const SearchSpace& space,
                         const RlSearchOptions& options);

// Engines that the model divides by, up to `gpus`, in powers of two, at the memory share and limit
// of `like`.
std::vector<RolloutLayout> rollout_layouts(const ModelSpec& model, std::int64_t gpus,
                                           const RolloutLayout& like = {});

}  // namespace qplan
