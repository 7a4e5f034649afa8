#pragma once
// What ran when: simulate() and execute() both give one of these, so that they can be laid side by
// side.

#include <cstdint>
#include <string>
#include <vector>

#include "models/program/op.h"
#include "models/program/schedule.h"

namespace qplan {

// One op (or, at block grain, one action) on one pipeline rank.
struct TraceEvent {
  int rank = 0;  // pipeline rank; ranks of one stage behave alike
  Stream stream = Stream::compute;
  bool pipe = false;     // a stage boundary's send, on its own stream
  std::string name;      // "gemm 4096x8192x2048 bf16", "2F0", "send 2F0"
  std::string category;  // "forward", "backward", "weight gradient", "send", "reduce", "optimizer"
  Action action;         // what it belongs to; stage -1: the step's edge
  Seconds begin, end;
  // Of a collective that was executed on GPUs: how long the last rank of its group was awaited.
  Seconds waited{};
};

struct Trace {
  int ranks = 1;
  Seconds end;
  std::vector<TraceEvent> events;
};

// Chrome's trace format, which Perfetto opens: one process a pipeline rank, one thread a stream,
// times in microseconds; deterministic.
std::string to_chrome_json(const Trace& trace);

// The pipeline drawn for a terminal: one row a rank, `columns` wide, digits of the microbatch,
// forward and backward told apart, idle as '.'. With `color`, ANSI colours.
std::string draw_pipeline(const Trace& trace, int columns, bool color);

}  // namespace qplan
