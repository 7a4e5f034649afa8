#pragma once
// A pipeline schedule is data: for each pipeline rank a list of actions, printable as "0F0 0F1
// 0B0".

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/parallel_plan.h"

namespace qplan {

enum class ActionKind : std::uint8_t { forward, backward, backward_input, backward_weight };

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;  // virtual stage, 0 .. pp*vpp-1 in the order of the model
  int microbatch = 0;
  bool first = false;   // the stage's first forward of the step: gathers updated parameters
  bool last = false;    // the stage's last backward of the step: may start reducing gradients
  bool paired = false;  // a forward that runs side by side with the backward that follows it
  bool operator==(const Action&) const = default;
};

struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int pp = 1, vpp = 1;
  int microbatches = 1;
  bool pairs = false;  // steady forwards and backwards run side by side; warm-up is one longer
  bool operator==(const ScheduleShape&) const = default;
};

// The rank that holds a virtual stage: round robin for interleaving, a V for zbv.
int rank_of_stage(ScheduleKind kind, int pp, int stage);

// One list per pipeline rank. 1f1b and interleaved: Megatron's order (schedules.py); zb-h1 and zbv:
// Qi et al., arXiv 2401.10241; gpipe: all forwards, then all backwards.
std::vector<std::vector<Action>> build_schedule(const ScheduleShape& shape);

// Where rank `rank` is in a repeating body: actions before it, actions of one period, and periods.
// Every period moves the rank by `microbatches_per_period` microbatches of each of its stages.
struct SteadyPart {
  std::int64_t begin = 0, period = 0, count = 0;
};
SteadyPart steady_part(const ScheduleShape& shape, int rank);
int microbatches_per_period(const ScheduleShape& shape);

// Schedules that split backward into input and weight gradients.
bool splits_backward(ScheduleKind kind);

std::string to_string(const Action& action);                // "2F0"
std::string to_string(const std::vector<Action>& actions);  // "0F0 0F1 0B0"

// "" for a valid schedule, else what is wrong and where. Valid: every
// stage runs every microbatch forward and backward once, in an order that does not deadlock.
std::string schedule_fault(const ScheduleShape& shape,
                           const std::vector<std::vector<Action>>& schedule);

// Microbatches of one stage (or all stages of a rank, in chunks) alive at once, at most.
int max_in_flight(const std::vector<Action>& actions);

}  // namespace qplan
