#include <doctest/doctest.h>

#include <cmath>

#include "costmodel/replay.h"
#include "tests/properties/random_plans.h"

using namespace qplan;

TEST_CASE("a fold gives the replay's answer, in time to 1e-9 and in memory to the byte") {
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const std::vector<RecipeKind> recipes = {
      RecipeKind::megatron, RecipeKind::megatron_deepspeed, RecipeKind::deepspeed,
      RecipeKind::fsdp2,    RecipeKind::fsdp2_compile,      RecipeKind::qplan,
      RecipeKind::nanotron, RecipeKind::megatron_fsdp,      RecipeKind::megatron_legacy,
      RecipeKind::fsdp1};
  const std::vector<std::string> models = {"tiny",        "tiny-moe",         "tiny-mla",
                                           "gpt-oss-20b", "qwen3-vl-30b-a3b", "megatron-22b",
                                           "deepseek-v3"};
  RandomPlans random(7);
  const int rounds = test_rounds(200);
  for (const std::string& name : models) {
    const ModelSpec model = load_model(name);
    for (int i = 0; i < rounds; ++i) {
      const Recipe& recipe = recipe_of(recipes[static_cast<std::size_t>(i) % recipes.size()]);
      // Some models cannot run under some recipes at all; qplan and megatron take every one.
      const bool plain = !model.moe && !model.mla && !model.qk_norm;
      const Recipe& used = plain ? recipe
                                 : recipe_of(i % 3 == 0   ? RecipeKind::qplan
                                             : i % 3 == 1 ? RecipeKind::megatron
                                                          : RecipeKind::megatron_fsdp);
      const ParallelPlan plan = random.next(model, used);
      const std::string text = to_string(plan);
      if (std::getenv("QPLAN_TRACE")) MESSAGE(name, " ", to_word(used.kind), " ", text);
      CAPTURE(name);
      CAPTURE(to_word(used.kind));
      CAPTURE(text);
      const CostModel cost(model, used, hardware, {});
      const Replay flat = replay(cost, plan);
      const MemoryEstimate memory = cost.memory(plan);
      const double folded = cost.step_time(plan).value();
      CHECK(std::abs(folded / flat.step_time.value() - 1) < 1e-9);
      REQUIRE(memory.stages.size() == flat.peak.size());
      for (std::size_t r = 0; r < flat.peak.size(); ++r) {
        CAPTURE(r);
        CHECK(memory.stages[r].peak.value() == flat.peak[r].value());
      }
      CHECK(cost.lower_bound(plan).value() <= folded * (1 + 1e-12));
    }
  }
}
