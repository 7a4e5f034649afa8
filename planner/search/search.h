#pragma once
// Which plan? Enumerates what the rules allow, folds memory, bounds, simulates what survives.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/evaluate.h"
#include "models/plan/parallel_plan.h"
#include "planner/search/space.h"

namespace qplan {

enum class Objective : std::uint8_t { tokens, cost, gpus };

template <>
struct Words<Objective> {
  static constexpr std::string_view what = "objective";
  static constexpr auto table = std::to_array<std::pair<Objective, std::string_view>>(
      {{Objective::tokens, "tokens"}, {Objective::cost, "cost"}, {Objective::gpus, "gpus"}});
};

struct SearchOptions {
  int top = 10;       // plans to report
  int threads = 0;    // 0: all cores
  bool prune = true;  // false: simulate every plan that fits (tests)
  Objective objective = Objective::tokens;
  // Further plans that are refused: the name of why, or nothing. Asked of what the rules allow.
  std::function<std::string_view(const ParallelPlan&)> refuses;
  // Of the device, what is not the plan's: it stays free.
  Bytes beside{};
  // Whether a plan that fits by itself does in the job that it is a part of. Asked of those that
  // would be reported, one at a time.
  std::function<bool(const ParallelPlan&)> accepts;
  // False: whoever asks prices the whole job that the plan is a part of.
  bool alone = true;
  std::function<void(double done)> progress;  // called now and then from one thread, 0..1
};

struct RankedPlan {
  ParallelPlan plan;
  Seconds step_time;
  Bytes device_peak;
};

struct Refused {
  std::int64_t plans = 0;
  ParallelPlan example;  // the first as enumerated
  bool operator==(const Refused&) const = default;
};

struct SearchResult {
  std::vector<RankedPlan> plans;   // best first, at most `top`
  std::vector<RankedPlan> pareto;  // of simulated plans: none better in both time and memory
  std::map<std::string, Refused> infeasible;  // by rule
  // They sum to the first, with `infeasible`. Whether a plan fits is not asked where its computing
  // alone takes longer than the best steps found. Neighbours of the best plans are not counted.
  std::int64_t considered = 0, out_of_memory = 0, bounded_out = 0, simulated = 0;
  std::optional<RankedPlan> smallest;  // with nothing feasible: the plan that needs least memory
};

SearchResult search(const CostModel& cost, const SearchSpace& space, const SearchOptions& options);

// Whether tensor parallelism splits norms and dropout too where nobody says.
bool splits_sequence(RecipeKind kind);

// The recipe's own defaults for every word that the space leaves open.
ParallelPlan default_plan(const ModelSpec& model, const Recipe& recipe, std::int64_t gpus,
                          std::int64_t global_batch_size, std::int64_t seq_len);

// Defaults that follow from other words. Gradients of 16 bits have the format of the weights: a
// recipe that keeps them in bf16 keeps those of an fp16 job in fp16.
DType default_grad_dtype(const Recipe& recipe, Precision precision);
// PEFT makes adapters fp32 unasked (autocast_adapter_dtype), where the recipe has the choice.
// Beside quantised weights trainers differ (TRL takes it back), and they have the format of
// activations.
AdapterFormat default_lora_dtype(const ParallelPlan& said, RecipeKind recipe);

// The first of the recipe's exchanges under which the plan breaks fewest rules: its only kind, or
// one that has the model's windows and sinks.
CpComm default_cp_comm(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe);
// What there is to hide of an overlap that nobody wrote: without ZeRO no rank gathers parameters.
EnumSet<OverlapKind> overlap_at_zero(int zero, EnumSet<OverlapKind> overlap);
// What a plan's words are where its line does not say them: the recipe's defaults, as they follow
// from the words that every line says.
ParallelPlan defaults_beside(const ParallelPlan& said, const ModelSpec& model,
                             const Recipe& recipe);

}  // namespace qplan
