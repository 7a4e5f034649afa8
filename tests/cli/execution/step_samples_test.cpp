// Whose steps calibration measures.

#include "cli/execution/step_samples.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "executor/gpu_limits.h"
#include "models/plan/parallel_plan.h"
#include "planner/rules/executor.h"

using namespace qplan;

TEST_CASE("a model's first layers have each of its kinds, and are a whole model") {
  for (const std::string& name : usual_step_models()) {
    CAPTURE(name);
    const ModelSpec whole = load_model(name), few = few_layers_of(whole);
    CHECK(rules::unexecuted_part(few).empty());
    CHECK(few.num_layers == static_cast<std::int64_t>(few.layers.size()));
    CHECK(few.layers.size() >= 2);
    CHECK(few.layers.size() <= 8);  // Nemotron-H's first attention is its eighth layer
    CHECK(!unexecuted_on_gpu(few, parse_plan("mbs1 gbs8 seq4096")));
    for (const LayerKind& kind : whole.layers) {
      CHECK(std::find(few.layers.begin(), few.layers.end(), kind) != few.layers.end());
    }
  }
  CHECK(few_layers_of(load_model("deepseek-v3")).num_layers == 4);  // three dense ones come first
}
