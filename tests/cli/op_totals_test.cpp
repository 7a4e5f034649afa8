#include "cli/op_totals.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "costmodel/fold/replay.h"
#include "executor/run.h"
#include "models/model_spec.h"
#include "models/plan/plan_text.h"

using namespace qplan;

TEST_CASE("ops are compared on the pipeline ranks that were traced, and on no others") {
  const ModelSpec model = load_model("tiny");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  for (const char* line :
       {"pp2 gbs4 seq32", "tp2 pp2 dp2 zero1 gbs8 seq32 sp", "gbs2 seq16", "pp2 zbv gbs4 seq32"}) {
    CAPTURE(line);
    const ParallelPlan plan = parse_plan(line);
    const Recipe& recipe = recipe_of(RecipeKind::qplan);
    const CostModel cost(model, recipe, hardware, {});
    const Trace predicted = trace_step(cost, plan, TraceGrain::op);
    RunOptions options;
    options.weights = seeded_weights(model, 1);
    options.tokens = seeded_tokens(1, model.vocab_size);
    options.keep_trace = true;
    const Trace all = run(model, plan, {}, options).trace;
    const RankGrid grid(plan, 8);
    const OpComparison whole = compare_ops(predicted, all, grid);
    CHECK(std::ssize(whole.pipeline_ranks) == plan.pp);
    CHECK(whole.same_ops());
    // On GPUs each rank is a process of its own, and rank 0 says what it traced.
    Trace own = all;
    std::erase_if(own.events, [](const TraceEvent& e) { return e.rank != 0; });
    const OpComparison first = compare_ops(predicted, own, grid);
    CHECK(first.pipeline_ranks == std::set{0});
    CHECK(first.same_ops());
    CHECK(first.kinds().size() > 5);
    // An op less is seen.
    const auto op = std::find_if(own.events.begin(), own.events.end(),
                                 [](const TraceEvent& e) { return !e.pipe; });
    own.events.erase(op);
    CHECK_FALSE(compare_ops(predicted, own, grid).same_ops());
  }
}
