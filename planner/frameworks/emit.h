#pragma once
// A plan in a framework's own files: configuration and launch scripts that run once the paths in
// them are replaced.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/words.h"
#include "planner/frameworks/option.h"
#include "planner/rules/feasible.h"

namespace qplan {

enum class Framework : std::uint8_t {
  megatron,
  megatron_bridge,
  deepspeed,
  megatron_deepspeed,
  fsdp2,
  torchtitan,
  slime,
  verl,
  nemo_rl,
  ms_swift,
  automodel,
  trl,
  nanotron  // read, and not written
};

template <>
struct Words<Framework> {
  static constexpr std::string_view what = "framework";
  static constexpr auto table = std::to_array<std::pair<Framework, std::string_view>>(
      {{Framework::megatron, "megatron"},
       {Framework::megatron_bridge, "megatron-bridge"},
       {Framework::deepspeed, "deepspeed"},
       {Framework::megatron_deepspeed, "megatron-deepspeed"},
       {Framework::fsdp2, "fsdp2"},
       {Framework::torchtitan, "torchtitan"},
       {Framework::slime, "slime"},
       {Framework::verl, "verl"},
       {Framework::nemo_rl, "nemo-rl"},
       {Framework::ms_swift, "ms-swift"},
       {Framework::automodel, "automodel"},
       {Framework::trl, "trl"},
       {Framework::nanotron, "nanotron"}});
};

// Whether `emit` writes its files; of others `check` reads them alone.
// Whose files of a plan are of a step that makes its answers by engines on the same GPUs.
constexpr bool writes_steps(Framework framework) {
  return framework == Framework::slime || framework == Framework::verl ||
         framework == Framework::nemo_rl;
}
constexpr bool is_written(Framework framework) {
  return framework != Framework::nanotron;
}

// The framework whose files go by a name: its own, or that of the tool that reads them (accelerate
// reads those of fsdp2).
std::optional<Framework> files_named(std::string_view name);
std::vector<std::string_view> files_words();
// The same, of a framework that must be one of these; throws Error for others.
Framework written_framework(std::string_view name);

// Whose implementation a framework's files run; Megatron's own runs Megatron-FSDP too.
RecipeKind recipe_for(Framework framework, RecipeKind of_plan);
// The same where nothing but the framework is said, of a model by its Hugging Face config on so
// many GPUs: NeMo AutoModel spreads experts of layers of its own, for which torchtitan's stand in.
RecipeKind usual_recipe(Framework framework, const Json& config, std::int64_t gpus);

// The framework whose files run an implementation of a model, if one's do: of several the first
// listed that has the model, and words for the plan's adapters, or the first of all, which then
// says why it has not.
std::optional<Framework> files_of(RecipeKind recipe, const ModelSpec& model,
                                  const ParallelPlan& plan = {});

// Whether a framework's files can name the model at all.
bool has_files_of(Framework framework, const ModelSpec& model);

// The limits of a framework's files that plans of a job may break, in the order they are asked,
// without those that ask the model alone.
std::vector<const Limit*> limits_of_plans(Framework framework, const Subject& job);

// Every rule and every limit of its files that the plan breaks; empty: it can be written.
std::vector<Infeasible> why_inexpressible(Framework framework, const Subject& subject,
                                          const ClusterLimits& limits);

// Their ids alone, in the same order.
std::vector<std::string_view> refusals(Framework framework, const Subject& subject,
                                       const ClusterLimits& limits);

// The plan that can be written with the fewest words changed, those that the refusals are about,
// and the degrees of parallelism kept as long as possible. Of plans with as few changes, or a
// change or two more, one that fits comes first where `fits` is asked. False: there is none. In
// emit_nearest.cpp.
using PlanFits = std::function<bool(const ParallelPlan&)>;
bool nearest_expressible(Framework framework, const Subject& subject, const ClusterLimits& limits,
                         ParallelPlan& nearest, const PlanFits& fits = {});

struct EmittedFile {
  std::string name, text;
  bool executable = false;
};

// What the files of a plan that can be written leave out of the model, a sentence each.
std::vector<std::string> left_unsaid(Framework framework, const Subject& subject);

// `remarks`, and what is left unsaid, stand at the top of each file, or in a README.md where a
// format has no comments. The plan must be expressible.
std::vector<EmittedFile> emit(Framework framework, const Subject& subject,
                              const std::vector<std::string>& remarks);

// The options and facts that a framework's arguments hold, written.
struct WrittenOption {
  std::string key;
  Json value;
};
std::vector<WrittenOption> written(std::span<const Option> options, const Subject& subject);
std::vector<WrittenOption> written(std::span<const Fact> facts, const Subject& subject);

}  // namespace qplan
