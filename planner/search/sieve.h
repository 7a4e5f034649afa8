#pragma once
// Inside the search: what is asked of plans before any is simulated, and only of those that could
// be among the best. A family of plans is bounded by the least of its work, siblings in it by their
// own, a plan by the time of its blocks; rules and memory are asked where they spare more than they
// cost. Private to planner/search.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <queue>
#include <string_view>
#include <vector>

#include "planner/rules/feasible.h"
#include "planner/search/enumerate.h"
#include "planner/search/hopeless.h"
#include "planner/search/search.h"

namespace qplan {

// As many plans are looked for whoever wants fewer, and layouts are tried for as many whoever wants
// more, so that what is considered does not depend on how much is shown.
inline constexpr std::size_t kFewest = 10;

// Families or siblings that are looked at together.
inline constexpr std::size_t kFewestAtOnce = 64;

enum class Room : std::uint8_t { unknown, fits, too_small };

// A plan that the rules allow.
struct Allowed {
  ParallelPlan plan;
  Bytes device_peak{};
  Room room = Room::unknown;
};

// Plans are numbered as they are enumerated: their family's number, and their place in it.
using PlanNumber = std::uint64_t;
inline constexpr PlanNumber kMostOfFamily = PlanNumber{1} << 24U;

// Plans, one enumerated after the other, that differ only in where their states live.
struct Siblings {
  std::vector<Allowed*> plans;  // without those that are known not to fit, nor to with layers moved
  StepBound own_work;           // by CostModel::own_work_bound()
  PlanNumber number = 0;        // of the first
};

// A family of which the rules allow some plan.
struct BoundedFamily {
  Family family;              // whose least plan is one that the rules allow, but for recomputation
  std::vector<bool> allowed;  // its plans, in turn
  StepBound bound;            // no plan of it can undercut
  // Whether the bound is of the family's own schedule; else of the work alone, as other schedules
  // have it, too.
  bool of_schedule = false;
};

// The rules of a plan's recipe and cluster, and whatever else the search refuses.
class Rules {
 public:
  Rules(const CostModel& cost, const SearchSpace& space, const SearchOptions& options);
  // The first that the plan breaks; empty: none.
  [[nodiscard]] std::string_view broken(const ParallelPlan& plan) const;

 private:
  const CostModel& cost_;
  const SearchOptions& options_;
  ClusterLimits limits_;
};

// What plans came to by the rules.
struct Ruled {
  std::vector<BoundedFamily> families;  // of which some plan may fit
  Hopeless hopeless;                    // the others' plans
  std::map<std::string_view, Refused> infeasible;
  std::int64_t considered = 0;

  // Counts the plan.
  bool allows(const Rules& rules, const ParallelPlan& plan);
};
// Of one skeleton.
Ruled ask_rules(const CostModel& cost, const SearchSpace& space, const SearchOptions& options,
                const Skeleton& skeleton, HeldStates& states);

// What plans came to before any simulation.
struct Sifted {
  std::deque<Allowed> allowed;  // a third of a kilobyte each: they stay in place
  std::vector<Siblings> siblings;
  std::int64_t out_of_memory = 0;
  std::optional<RankedPlan> smallest;  // of those that do not fit

  void misfit(const Allowed& plan);
};

// Finds out whether the plan fits.
void weigh(const CostModel& cost, const SearchOptions& options, PlanSifter& sifter,
           Allowed& allowed);

// Asks of each plan its memory or the bound of its work, whichever is likelier to spare the other:
// what cannot fit needs no bound, and of what cannot be fast nobody asks whether it fits. Most
// plans of a skeleton fit, or few do: memory comes first as long as nothing fits, and now and then.
class Sieve {
 public:
  Sieve(const CostModel& cost, const SearchOptions& options, HeldStates& states)
      : cost_(cost), options_(options), states_(states), sifter_(cost) {}

  // A plan that the rules allow.
  void judge(const ParallelPlan& plan, PlanNumber number);
  // Those of a family.
  void judge(const BoundedFamily& family, PlanNumber number);
  Sifted take() { return std::move(found_); }

 private:
  void begin();

  const CostModel& cost_;
  const SearchOptions& options_;
  HeldStates& states_;
  PlanSifter sifter_;
  Sifted found_;
  bool weighs_ = true;  // these siblings
  bool fits_ = false;   // one of them may
  bool kept_ = false;   // one of them is
  int unweighed_ = 0;   // siblings since the last that were weighed
};

// The k best step times so far, ascending.
class BestTimes {
 public:
  explicit BestTimes(int wanted);
  void add(Seconds time);
  // Whether a step that takes at least this long changes nothing, of all that are kept or of the
  // first few.
  [[nodiscard]] bool rules_out(Seconds bound) const { return rules_out(bound, wanted_); }
  [[nodiscard]] bool rules_out(Seconds bound, std::size_t few) const {
    return times_.size() >= few && bound > times_[few - 1];
  }
  // The longest that is not ruled out.
  [[nodiscard]] Seconds limit() const { return limit(wanted_); }
  [[nodiscard]] Seconds limit(std::size_t few) const;

 private:
  std::size_t wanted_;
  std::vector<Seconds> times_;
};

// Plans that fit in the order of their lower bounds, equal ones as they were enumerated. A family's
// plans are looked at, and a plan's memory and bound asked for, when the bound before no longer
// keeps them behind the others.
class ByBound {
 public:
  template <class What>
  struct Bounded {
    Seconds bound;
    PlanNumber number;
    What what;
    bool operator<(const Bounded& other) const {  // the heap's top is the first
      return bound == other.bound ? number > other.number : other.bound < bound;
    }
  };
  using BoundedPlan = Bounded<const Allowed*>;

  // `found`: what was looked at already.
  ByBound(const CostModel& cost, const SearchOptions& options, HeldStates& states,
          std::vector<BoundedFamily> families, std::deque<Sifted> found);

  // The next plan; nothing when there are no more, or none that `best` does not rule out.
  std::optional<BoundedPlan> first(const BestTimes& best);
  void pop() { bounded_.pop(); }

  // Siblings that can be among the first few when their layers are moved between stages: of all
  // families, looked at or not, those first that may come to the least, and as enumerated. Each is
  // told of once, a few at a time: what comes of them rules out others. Empty: there are no more.
  std::vector<const Siblings*> next_to_even(const BestTimes& best);

  // How much of what there is to ask was asked, 0..1.
  [[nodiscard]] double progress() const;
  // All that was looked at.
  [[nodiscard]] const std::deque<Sifted>& found() const { return found_; }

 private:
  template <class What>
  using Heap = std::priority_queue<Bounded<What>>;

  [[nodiscard]] bool hopeless(Seconds bound, const BestTimes& best) const {
    return options_.prune && best.rules_out(bound);
  }
  void bound(const std::vector<std::size_t>& families);
  void look_at(const std::vector<std::size_t>& families);
  void look_at_next();
  void ask_next();
  void wait_for(const Sifted& found);
  void begin_evening();
  void wait_for_evening(const Sifted& found);

  const CostModel& cost_;
  const SearchOptions& options_;
  HeldStates& states_;
  std::vector<BoundedFamily> families_;
  int threads_;
  std::vector<bool> looked_at_;  // of the families
  std::deque<Sifted> found_;
  std::size_t at_once_ = kFewestAtOnce, families_at_once_ = kFewestAtOnce;
  Heap<std::size_t> unseen_;       // families, by the least of their work
  Heap<const Siblings*> waiting_;  // by the bound of their own work
  Heap<const Allowed*> bounded_;

  // By the bounds of the same work with its layers moved; there once somebody asks.
  bool evening_ = false;
  Heap<std::size_t> uneven_families_;  // not looked at
  Heap<const Siblings*> uneven_;
  std::size_t even_at_once_ = kFewestAtOnce;
};

}  // namespace qplan
