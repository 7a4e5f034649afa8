// A plan that is printed as a line: whoever pastes it asks of the same plan.

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "cli/asked_plan.h"
#include "models/program/loss.h"
#include "planner/search/search.h"
#include "tests/properties/random_plans.h"

namespace qplan {
namespace {

AskedPlan asked(const char* model, RecipeKind framework, std::int64_t gpus, std::string line) {
  PlanQuestion question;
  question.choices.model = model;
  question.choices.hardware = "h100-sxm";
  question.choices.framework = framework;
  question.choices.gpus = gpus;
  question.plan = std::move(line);
  return asked_plan(question);
}

TEST_CASE("the line of a plan reads back as the plan, by every framework") {
  RandomPlans random(53);
  const int rounds = test_rounds(10);
  for (const auto& [framework, word] : Words<RecipeKind>::table) {
    const Recipe& recipe = recipe_of(framework);
    for (const char* const name : {"llama3-8b", "qwen3-30b-a3b"}) {
      const ModelSpec model = load_model(name);
      // Some have no such layers, whatever the plan.
      if (!broken_rule(model, default_plan(model, recipe, 2, 8, 4096), recipe, {2, 90}).empty()) {
        CHECK(model.moe.has_value());
        continue;
      }
      for (int i = 0; i < rounds; ++i) {
        ParallelPlan plan = random.next(model, recipe);
        plan.loss =
            loss_word(plan.loss, plan.deterministic, recipe);  // as whoever says none has it
        const std::string line = to_string(plan, defaults_beside(plan, model, recipe));
        CAPTURE(word);
        CAPTURE(name);
        CAPTURE(line);
        ParallelPlan read = asked(name, framework, plan.world(), line).plan;
        // Layers that do not divide are placed, and said to be.
        if (plan.pipeline_layout.empty()) read.pipeline_layout.clear();
        CHECK(to_string(read) == to_string(plan));
        CHECK(read == plan);
      }
    }
  }
}

TEST_CASE("a line says what its framework takes otherwise") {
  const auto line = [](RecipeKind framework, const char* words) {
    const AskedPlan plan = asked("llama3-8b", framework, 8, words);
    return line_of(*plan.job, plan.plan);
  };
  CHECK(line(RecipeKind::megatron, "tp2 mbs1 gbs16 overlap=none").ends_with(" overlap=none"));
  CHECK(line(RecipeKind::deepspeed, "gbs64 grad_dtype=fp32").find("grad_dtype=fp32") !=
        std::string::npos);
  CHECK(line(RecipeKind::fsdp2_compile, "zero3 gbs64 compile=false").find("compile=false") !=
        std::string::npos);
  CHECK(line(RecipeKind::megatron, "tp2 mbs1 gbs16") ==
        "tp2 pp1 dp4 zero1 mbs1 gbs16 seq4096 overlap=grad+param");
}

}  // namespace
}  // namespace qplan
