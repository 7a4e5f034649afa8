#include "planner/frameworks/written_plans.h"

#include <doctest/doctest.h>

#include "costmodel/profiles/hardware.h"
#include "models/error.h"
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

TEST_CASE("whoever has no files is searched as before") {
  const Searched free = searched("qwen3-8b", RecipeKind::nanotron, {1, 2});
  REQUIRE_FALSE(free.any.plans.empty());
  CHECK(free.written.plans.front().plan == free.any.plans.front().plan);
  CHECK(free.written.infeasible == free.any.infeasible);
}

}  // namespace
}  // namespace qplan
