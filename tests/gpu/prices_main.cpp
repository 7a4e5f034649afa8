// What `validate` predicts of many plans, without a GPU and without running them: what gpu_plans
// measured is held against it, and against other profiles or prices later. For
// scripts/validate_draw.py:
//
//     plan_prices PLANS.json HARDWARE
//
// PLANS.json as of gpu_plans, and "routed" of a plan that it has run: what its routers did. Prints
// a line of JSON a plan.

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <string>

#include "cli/execution/execution.h"
#include "models/json.h"

using namespace qplan;

namespace {

// Of pipeline rank 0, by kind of work and shape: [ops, seconds].
Json works_of(const Trace& trace) {
  std::map<std::string, std::pair<int, double>> found;
  for (const TraceEvent& event : trace.events) {
    if (event.pipe || event.rank != 0) continue;
    auto& [ops, seconds] = found[event.name];
    ++ops;
    seconds += (event.end - event.begin).value();
  }
  return found;
}

Json prices_of(const Json& job, const std::string& hardware) {
  ExecutionChoices choices;
  choices.plan = job.at("plan");
  choices.job.model = job.at("model");
  choices.job.hardware = hardware;
  choices.job.moe_imbalance = job.at("moe_imbalance");
  choices.backend = BackendKind::cuda;
  const Execution execution = prepare(choices);
  const Estimate& estimate = *execution.predicted.estimate;
  const Trace trace = trace_as_timed(execution);
  Json answer = {{"step_s", estimate.step_time.value()},
                 {"device_gib", in_gib(estimate.memory.stages.front().device)},
                 {"works", works_of(trace)}};
  const Json routed = job.value("routed", Json());
  if (!routed.is_null() && execution.plan.routing == Routing::natural) {
    const ExpertLoad load{routed.at("active"), routed.at("busiest")};
    answer["as_routed_s"] = step_time_as_routed(execution, load).value();
  }
  return answer;
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) {
    fmt::print(stderr, "plan_prices needs a file of plans and a hardware profile\n");
    return 2;
  }
  try {
    for (const Json& job : parse_json(read_text_file(words[1]), words[1])) {
      std::puts(prices_of(job, words[2]).dump().c_str());
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "plan_prices: {}\n", error.what());
    return 3;
  }
  return 0;
}
