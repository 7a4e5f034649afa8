#pragma once
// The flat view: every op of every rank in program order, with the durations that the fold uses.
// Slower than the fold by orders, and equal to it: the property test says so.

#include <vector>

#include "costmodel/evaluate.h"
#include "models/program/trace.h"

namespace qplan {

struct Replay {
  Seconds step_time;        // end of step 2 - end of step 1
  std::vector<Bytes> peak;  // allocated, per pipeline rank, by replaying every allocation
  std::int64_t ops = 0;     // of one step, all pipeline ranks
};

Replay replay(const CostModel& cost, const ParallelPlan& plan);

enum class TraceGrain : std::uint8_t { action, op };
// The steady (second) step as a trace, its time starting at zero.
Trace trace_step(const CostModel& cost, const ParallelPlan& plan, TraceGrain grain);
// The same, op by op, where nothing slows what runs beside it.
Trace trace_alone(const CostModel& cost, const ParallelPlan& plan);

}  // namespace qplan
