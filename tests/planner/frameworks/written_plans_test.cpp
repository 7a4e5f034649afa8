#include "planner/frameworks/written_plans.h"

#include <doctest/doctest.h>

#include "costmodel/profiles/hardware.h"
#include "models/error.h"
#include "planner/frameworks/check.h"
#include "planner/frameworks/rl/written_step.h"
#include "planner/rl/rl_job.h"
#include "planner/search/default_batch.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

struct Searched {
  SearchResult written, offered, any;
};

Searched searched(const std::string& name, RecipeKind recipe, const std::vector<int>& pp) {
  const ModelSpec model = load_model(name);
  const Json config = model_config(name);
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const CostModel cost(model, recipe_of(recipe), hardware, {});
  SearchSpace space;
  space.gpus = 16;
  space.job.global_batch_size = 64;
  space[&ParallelPlan::pp] = pp;
  SearchOptions options;
  options.top = 5;
  const auto framework = files_of(recipe, model);
  return {search_written(cost, space, options, framework, config),
          search_offered(cost, space, options, framework, config), search(cost, space, options)};
}

TEST_CASE("a search offers plans that files can say, and counts the others under their limit") {
  // DeepSpeed's pipeline takes no Hugging Face module.
  const Searched both = searched("qwen3-8b", RecipeKind::deepspeed, {1, 2});
  REQUIRE_FALSE(both.written.plans.empty());
  for (const RankedPlan& found : both.written.plans) CHECK(found.plan.pp == 1);
  CHECK(both.written.infeasible.count("no_pipeline_of_modules") == 1);
  CHECK(both.any.infeasible.count("no_pipeline_of_modules") == 0);
  CHECK(both.offered.plans.front().plan == both.written.plans.front().plan);
}

TEST_CASE("where no plan that fits can be said, others are offered all the same") {
  const Searched piped = searched("qwen3-8b", RecipeKind::deepspeed, {2});
  CHECK(piped.written.plans.empty());
  REQUIRE_FALSE(piped.offered.plans.empty());
  CHECK(piped.offered.plans.front().plan == piped.any.plans.front().plan);
  // Limits that ask the model alone leave every plan in: the model has no files, whatever is found.
  const Searched nobodys = searched("mixtral-8x7b", RecipeKind::fsdp2_compile, {1});
  CHECK(nobodys.written.infeasible.count("torchtitan_model") == 0);
  CHECK(nobodys.offered.infeasible == nobodys.any.infeasible);
}

struct Step {
  RlEstimate estimate;
  RolloutLayout layout;
};

// What the files of a plan are, read back: every phase of the step, as check() prices it.
Step step_of_files(const CostModel& cost, Framework framework, const Json& config,
                   const ParallelPlan& plan) {
  const Subject subject{cost.model(), config, plan, cost.recipe().kind, 8, nullptr, &cost};
  const auto files = emit(framework, subject, {});
  const Checked checked = check(texts_of(files), question_of(cost.model(), config, plan.world()));
  REQUIRE(checked.step.has_value());
  const auto& [job, layout] = *checked.step;
  return {evaluate_rl(cost, job, checked.plan, layout, plan.world()), layout};
}

TEST_CASE("plans of frameworks whose jobs make answers fit beside the engine that sleeps") {
  const ModelSpec model = load_model("qwen3-8b");
  const Json config = model_config("qwen3-8b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  for (const auto& [framework, gpus] : {std::pair{Framework::verl, 12}, {Framework::slime, 1}}) {
    CAPTURE(to_word(framework));
    const RecipeKind recipe = recipe_for(framework, RecipeKind::megatron);
    const CostModel cost(model, recipe_of(recipe), hardware, {});
    SearchSpace space;
    space.gpus = gpus;
    space.job.seq_len = 4096;
    space.job.global_batch_size = default_global_batch_size(gpus, space.job.seq_len);
    SearchOptions options;
    options.top = 3;
    const SearchResult written = search_written(cost, space, options, framework, config);
    REQUIRE_FALSE(written.plans.empty());
    for (const RankedPlan& found : written.plans) {
      const Step step = step_of_files(cost, framework, config, found.plan);
      CHECK_MESSAGE(step.estimate.fits, to_string(found.plan) << ": " << step.estimate.misfit);
    }
    // Whoever prices the whole step asks for plans of the trainer alone, which may fill the device.
    options.alone = false;
    const SearchResult part = search_written(cost, space, options, framework, config);
    CHECK(part.out_of_memory < written.out_of_memory);
    CHECK_FALSE(step_of_files(cost, framework, config, part.plans.front().plan).estimate.fits);
  }
}

TEST_CASE("engines that are written hold the model's weights") {
  const ModelSpec model = load_model("deepseek-v2");
  const Json config = model_config("deepseek-v2");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const CostModel cost(model, recipe_of(RecipeKind::megatron), hardware, {});
  ParallelPlan plan = parse_plan("tp1 pp6 dp8 ep8 zero1 mbs1 gbs96 seq4096 recompute=full");
  CHECK(step_of_files(cost, Framework::nemo_rl, config, plan).layout.tp == 16);
  const Subject nobodys{model, config, plan, RecipeKind::megatron, 8};
  CHECK(written_engine(nobodys, 0.6).tp == 8);  // of no machine: a node's
}

TEST_CASE("no plan is tried beside an engine that cannot hold the model's weights") {
  const ModelSpec model = load_model("llama4-maverick-17b-128e");
  const Json config = model_config("llama4-maverick-17b-128e");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  for (const Framework framework : {Framework::verl, Framework::nemo_rl}) {
    const CostModel cost(model, recipe_of(recipe_for(framework, RecipeKind::megatron)), hardware,
                         {});
    SearchSpace space;
    space.gpus = 1024;
    space.job.global_batch_size = 1024;
    SearchOptions options;
    const SearchResult written = search_written(cost, space, options, framework, config);
    CHECK(written.plans.empty());
    CHECK(written.out_of_memory > 0);
    CHECK(written.simulated == 0);
    // A trainer alone has the device to itself, and plans that fit it.
    options.alone = false;
    CHECK_FALSE(search_written(cost, space, options, framework, config).plans.empty());
  }
}

TEST_CASE("whoever has no files is searched as before") {
  const Searched free = searched("qwen3-8b", RecipeKind::nanotron, {1, 2});
  REQUIRE_FALSE(free.any.plans.empty());
  CHECK(free.written.plans.front().plan == free.any.plans.front().plan);
  CHECK(free.written.infeasible == free.any.infeasible);
}

}  // namespace
}  // namespace qplan
