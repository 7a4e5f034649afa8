#pragma once
// The plans of a search space, one by one, in a fixed order. Only distinct plans: a word that
// cannot matter (a context-parallel algorithm on one rank) keeps its default.

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "planner/search/search.h"

namespace qplan {

// The degrees that decide a plan's skeleton; the unit of parallel work.
struct Skeleton {
  int tp = 1, cp = 1, pp = 1, dp = 1;
};
std::vector<Skeleton> skeletons(const ModelSpec& model, const Recipe& recipe,
                                const HardwareProfile& hardware, const SearchSpace& space);

// Chunks of layers that a rank of an interleaved pipeline has at most, unless somebody asks.
inline constexpr int kMostChunks = 12;
// The model's layers, embedding, loss and what predicts further tokens: as many stages at most.
std::int64_t layers_with_ends(const ModelSpec& model);

// Plans that run the same on the same ranks, but for what they recompute and where their states
// live.
struct Family {
  // Does no more than any of them: where they may recompute nothing, it does not; as for states,
  // any may be meant.
  ParallelPlan least;
  struct Words;
  std::shared_ptr<const Words> words;  // in which its plans differ
  std::size_t place = 0;  // among the families of its schedule and chunks, which are the same ones
};

// Calls visit(family) for every family of a skeleton. Their plans, one family after the other, are
// the plans of the skeleton.
void each_family(const ModelSpec& model, const Recipe& recipe, const HardwareProfile& hardware,
                 const SearchSpace& space, const Skeleton& skeleton,
                 const std::function<void(const Family&)>& visit);

// Calls visit(plan) for every plan of a family, or of a skeleton.
void each_plan(const Family& family, const std::function<void(const ParallelPlan&)>& visit);
void each_plan(const ModelSpec& model, const Recipe& recipe, const HardwareProfile& hardware,
               const SearchSpace& space, const Skeleton& skeleton,
               const std::function<void(const ParallelPlan&)>& visit);

// Divisors of n, ascending.
std::vector<int> divisors(std::int64_t n);

}  // namespace qplan
