#pragma once
// Can this plan run at all? One table of rules answers the search (which rule is broken first) and
// people (all of them, in words). Memory is not asked here: that is the fold's answer.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/gpus_of_kind.h"
#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "models/program/recipe.h"

namespace qplan {

struct HardwareProfile;

// What the rules need to know of the cluster. A tp wider than an NVLink domain is slow, not
// forbidden; only some libraries of experts need the domain.
struct ClusterLimits {
  std::int64_t gpus = 0;       // the world asked for; 0: whatever the plan multiplies to
  int compute_capability = 0;  // 80, 89, 90, 100 ...; 0: unknown, rules about it are skipped
  std::span<const GpusOfKind> kinds{};  // of a cluster of several, in the pipeline's order
  int nvlinked = 0;  // GPUs that NVLink joins, all to all; 0: all of a node, or unknown
  // GPUs that libraries of experts' exchange reach: a node's, where the network is none that they
  // write to (EFA, TCP); 0: any.
  int library_reach = 0;
  bool rack = false;  // NVLink joins GPUs of several nodes (NVL72)
};

// A machine's. With NVLink from card to card in pairs, or none at all, a node has no one domain.
ClusterLimits limits_of(const HardwareProfile& hardware, std::int64_t gpus,
                        std::span<const GpusOfKind> kinds = {});

// Sequences of a step that is simulated: a schedule lists every microbatch, and nobody trains with
// more.
inline constexpr std::int64_t kMostSequences = 1 << 20;

struct Infeasible {
  std::string_view rule;  // stable snake_case id
  std::string message;    // one sentence with the numbers
  std::string source{};   // who refuses it, and where; empty: it is an answer, not a rule
};

// The id of the first broken rule, or empty when the plan can run. Allocates nothing: the search
// asks it for every plan.
std::string_view broken_rule(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                             const ClusterLimits& limits);

// Every broken rule, for people. Empty exactly when broken_rule() is.
std::vector<Infeasible> why_infeasible(const ModelSpec& model, const ParallelPlan& plan,
                                       const Recipe& recipe, const ClusterLimits& limits);

// Their ids alone, in the order in which they are asked.
std::vector<std::string_view> broken_rules(const ModelSpec& model, const ParallelPlan& plan,
                                           const Recipe& recipe, const ClusterLimits& limits);

// What the table says of itself: ids in the order they are asked, with the recipes each holds for
// and where the frameworks enforce it.
struct RuleInfo {
  std::string_view id;
  EnumSet<RecipeKind> recipes;
  std::string_view source;
};
std::vector<RuleInfo> feasibility_rules();

// Where a rule is enforced, as far as the recipe's own framework does; else wherever it is. Empty:
// there is no such rule.
std::string source_of_rule(std::string_view rule, RecipeKind recipe);

// The schedules and precisions that a recipe's implementation has.
EnumSet<ScheduleKind> schedules_of(RecipeKind recipe);
EnumSet<Precision> precisions_of(RecipeKind recipe);

}  // namespace qplan
