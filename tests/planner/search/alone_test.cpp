// ZeRO-2 and 3 where a rank shares its states with nobody.

#include <doctest/doctest.h>

#include "costmodel/evaluate.h"
#include "planner/search/search.h"

using namespace qplan;

TEST_CASE("our executor runs ZeRO-2 and 3 of a rank alone as ZeRO-1") {
  const ModelSpec model = load_model("qwen3-8b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const CostModel own(model, recipe_of(RecipeKind::qplan), hardware, {});
  for (const char* axes : {"", "tp2 etp2 sp", "pp2"}) {
    CAPTURE(axes);
    const auto plan = [&](const char* zero) {
      return parse_plan(std::string(axes) + " " + zero + " mbs1 gbs8 seq4096 recompute=full");
    };
    const Estimate one = own.evaluate(plan("zero1"));
    for (const char* zero : {"zero2", "zero3"}) {
      const Estimate other = own.evaluate(plan(zero));
      CHECK(other.step_time == one.step_time);
      CHECK(other.memory.worst_stage().peak == one.memory.worst_stage().peak);
    }
  }
  // Two ranks share: sharded gradients take less.
  const auto peak = [&](const char* zero) {
    return own.evaluate(parse_plan(std::string("dp2 mbs1 gbs8 seq4096 recompute=full ") + zero))
        .memory.worst_stage()
        .peak;
  };
  CHECK(peak("zero2") < peak("zero1"));
}
