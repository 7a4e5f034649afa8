#include "planner/rules/feasible.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "costmodel/profiles/hardware.h"
#include "planner/rules/adapters.h"
#include "planner/rules/context.h"
#include "planner/rules/data.h"
#include "planner/rules/degrees.h"
#include "planner/rules/execution.h"
#include "planner/rules/executor.h"
#include "planner/rules/experts.h"
#include "planner/rules/optimizers.h"
#include "planner/rules/pipeline.h"
#include "planner/rules/precision.h"

namespace qplan {
namespace {

using rules::Case;
using rules::Rule;

template <std::size_t... N>
constexpr auto joined(const std::array<Rule, N>&... tables) {
  std::array<Rule, (N + ...)> all{};
  auto end = all.begin();
  ((end = std::copy(tables.begin(), tables.end(), end)), ...);
  return all;
}

// In the order they are asked. Cheap rules that reject most of a search's candidates come first.
constexpr auto kRules =
    joined(rules::kDegrees, rules::kPipeline, rules::kContext, rules::kData, rules::kExperts,
           rules::kPrecision, rules::kOptimizers, rules::kAdapters, rules::kWords,
           rules::kExecution, rules::kExecutor);

template <std::size_t I>
bool is_broken(const Case& c) {
  constexpr const Rule& rule = kRules[I];
  return rule.recipes.has(c.recipe) && rule.broken(c);
}

// Unrolled over the table, so that the compiler sees every predicate and inlines it: 55 ns for a
// plan that breaks none against 155 ns by calls through the pointers (gcc 12 -O2, EPYC).
template <std::size_t... I>
const Rule* first_broken(const Case& c, std::index_sequence<I...>) {
  const Rule* found = nullptr;
  static_cast<void>(((is_broken<I>(c) && (found = &kRules[I]) != nullptr) || ...));
  return found;
}

// What the sources of recipes' rules begin with.
struct Repositories {
  RecipeSet recipes;
  std::array<std::string_view, 3> names;
};
constexpr auto kRepositories = std::to_array<Repositories>({
    {kMegatronCore | set_of(RecipeKind::megatron_legacy), {"Megatron-LM ", "TransformerEngine "}},
    {set_of(RecipeKind::megatron_deepspeed), {"Megatron-DeepSpeed ", "DeepSpeed "}},
    {set_of(RecipeKind::deepspeed), {"DeepSpeed ", "transformers "}},
    {set_of(RecipeKind::ddp), {"PyTorch ", "transformers ", "accelerate "}},
    {kFsdpOfModules, {"accelerate ", "PyTorch ", "transformers "}},
    {set_of(RecipeKind::fsdp2_compile), {"torchtitan ", "PyTorch "}},
    {set_of(RecipeKind::nanotron), {"nanotron "}},
    {set_of(RecipeKind::dualpipe), {"DualPipe ", "DeepEP "}},
    {set_of(RecipeKind::qplan), {"qplan: "}},
});

bool is_source_of(RecipeKind recipe, std::string_view source) {
  return std::any_of(kRepositories.begin(), kRepositories.end(), [&](const Repositories& row) {
    return row.recipes.has(recipe) &&
           std::any_of(row.names.begin(), row.names.end(), [&](std::string_view name) {
             return !name.empty() && source.starts_with(name);
           });
  });
}

// The parts of a rule's source that speak of this recipe's framework; all, where none does.
std::string own_source(std::string_view source, RecipeKind recipe) {
  std::string own;
  for (std::size_t from = 0; from < source.size();) {
    const std::size_t to = std::min(source.find("; ", from), source.size());
    const std::string_view part = source.substr(from, to - from);
    from = to + 2;
    if (!is_source_of(recipe, part)) continue;
    if (!own.empty()) own += "; ";
    own += part;
  }
  return own.empty() ? std::string(source) : own;
}

}  // namespace

EnumSet<ScheduleKind> schedules_of(RecipeKind recipe) {
  return recipe_of(recipe).can.schedules;
}

EnumSet<Precision> precisions_of(RecipeKind recipe) {
  return recipe_of(recipe).can.precisions;
}

ClusterLimits limits_of(const HardwareProfile& hardware, std::int64_t gpus,
                        std::span<const GpusOfKind> kinds) {
  const Interconnect& link = hardware.link;
  const int joined = link.nvlink.value() > 0 ? link.nvlink_domain : 1;
  return {.gpus = gpus,
          .compute_capability = hardware.gpu.compute_capability,
          .kinds = kinds,
          .nvlinked = joined < link.gpus_per_node ? joined : 0,
          .library_reach = link.simple_only ? link.gpus_per_node : 0,
          .rack = joined > link.gpus_per_node};
}

std::string_view broken_rule(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                             const ClusterLimits& limits) {
  const Rule* const rule =
      first_broken({model, plan, recipe.kind, limits}, std::make_index_sequence<kRules.size()>());
  return rule == nullptr ? std::string_view() : rule->id;
}

std::vector<std::string_view> broken_rules(const ModelSpec& model, const ParallelPlan& plan,
                                           const Recipe& recipe, const ClusterLimits& limits) {
  std::vector<std::string_view> ids;
  const Case c{model, plan, recipe.kind, limits};
  for (const Rule& rule : kRules) {
    if (!rule.recipes.has(c.recipe) || !rule.broken(c)) continue;
    ids.push_back(rule.id);
    if (&rule == kRules.data()) break;  // of sizes below one the other rules cannot be asked
  }
  return ids;
}

std::vector<Infeasible> why_infeasible(const ModelSpec& model, const ParallelPlan& plan,
                                       const Recipe& recipe, const ClusterLimits& limits) {
  std::vector<Infeasible> reasons;
  const Case c{model, plan, recipe.kind, limits};
  for (const Rule& rule : kRules) {
    if (!rule.recipes.has(c.recipe) || !rule.broken(c)) continue;
    reasons.push_back({rule.id, rule.message(c), own_source(rule.source, c.recipe)});
    if (&rule == kRules.data()) break;  // of sizes below one the other rules cannot be asked
  }
  return reasons;
}

std::vector<RuleInfo> feasibility_rules() {
  std::vector<RuleInfo> rules;
  for (const Rule& rule : kRules) rules.push_back({rule.id, rule.recipes, rule.source});
  return rules;
}

std::string source_of_rule(std::string_view id, RecipeKind recipe) {
  const auto rule =
      std::find_if(kRules.begin(), kRules.end(), [&](const Rule& r) { return r.id == id; });
  return rule == kRules.end() ? std::string() : own_source(rule->source, recipe);
}

}  // namespace qplan
