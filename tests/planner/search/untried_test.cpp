#include "planner/search/untried.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "models/model_spec.h"
#include "models/plan/plan_text.h"

using namespace qplan;

namespace {

struct Question {
  ModelSpec model;
  HardwareProfile hardware = load_hardware("h100-sxm");
  CostModel cost;
  SearchSpace space;
  Question(const std::string& name, RecipeKind kind, std::int64_t gpus)
      : model(load_model(name)), cost(model, recipe_of(kind), hardware, {}) {
    space.gpus = gpus;
    space.job = default_plan(model, recipe_of(kind), gpus, 64, 4096);
  }
  [[nodiscard]] std::vector<RankedPlan> untried() const {
    SearchOptions options;
    options.top = 1;
    const SearchResult found = search(cost, space, options);
    REQUIRE_FALSE(found.plans.empty());
    return untried_settings(cost, space, found.plans.front().plan);
  }
};

}  // namespace

TEST_CASE(
    "settings that a search leaves are tried on its plan: faster ones that fit, fastest first") {
  const Question question("qwen3-8b", RecipeKind::fsdp2, 8);
  SearchOptions options;
  options.top = 1;
  const RankedPlan best = search(question.cost, question.space, options).plans.front();
  const auto untried = untried_settings(question.cost, question.space, best.plan);
  REQUIRE_FALSE(untried.empty());
  Seconds before{};
  for (const RankedPlan& one : untried) {
    CHECK(one.plan != best.plan);
    CHECK(one.step_time < best.step_time * 0.99 + Seconds(1e-12));
    CHECK(one.step_time >= before);
    CHECK(question.cost.evaluate(one.plan).step_time == one.step_time);
    CHECK(question.cost.evaluate(one.plan).fits);
    before = one.step_time;
  }
  // Liger's kernels in place of Hugging Face's modules.
  CHECK(untried.front().plan.module_kernels == ModuleKernels::all);
}

TEST_CASE("a setting that somebody asked for stays") {
  Question question("qwen3-8b", RecipeKind::fsdp2, 8);
  question.space.job.module_kernels = ModuleKernels::norms;
  for (const RankedPlan& one : question.untried()) {
    CHECK(one.plan.module_kernels == ModuleKernels::norms);
  }
}
