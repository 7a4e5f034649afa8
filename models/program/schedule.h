#pragma once
// A pipeline schedule is data: for each pipeline rank a list of actions, printable as "0F0 0F1
// 0B0".

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/plan/parallel_plan.h"

namespace qplan {

enum class ActionKind : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  reduce  // of a whole stage's gradients, beside whatever is computed next
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;  // virtual stage, 0 .. virtual_stages()-1
  int microbatch = 0;
  bool first = false;  // the stage's first forward of the step: gathers updated parameters
  // The stage's last backward of the step: its gradients may be reduced beside it. Of a reduction:
  // nothing is computed after it.
  bool last = false;
  bool paired = false;  // a forward that runs side by side with the backward that follows it
  bool operator==(const Action&) const = default;
};

struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int pp = 1, vpp = 1;
  int microbatches = 1;
  // Steady forwards and backwards run side by side (dualpipe: always; elsewhere the warm-up is one
  // longer).
  bool pairs = false;
  // Gradients of a stage are reduced whole, after its last backward (see build_schedule()).
  bool whole_reductions = false;
  bool operator==(const ScheduleShape&) const = default;
};

// Virtual stages are the pieces of the model in its order: vpp a rank when interleaving, two for
// zbv. dualpipe cuts the model into pp pieces and holds each twice: virtual stages 0 .. pp-1 are
// the copies that microbatches 0, 2, 4, ... go through, down the ranks; pp .. 2pp-1 are the same
// pieces again, that microbatches 1, 3, 5, ... go through, up the ranks.
int virtual_stages(const ScheduleShape& shape);

// The rank that holds a virtual stage: round robin for interleaving, a V for zbv and dualpipe (of
// which rank r holds pieces r and pp-1-r).
int rank_of_stage(ScheduleKind kind, int pp, int stage);

// Where a virtual stage's input comes from and its output goes to; -1 at the model's ends, of which
// dualpipe has one pair a direction.
int stage_before(const ScheduleShape& shape, int stage);
int stage_after(const ScheduleShape& shape, int stage);

// Whether its input arrives from another rank, and its output leaves for one.
bool receives(const ScheduleShape& shape, int stage);
bool sends(const ScheduleShape& shape, int stage);
// To how many neighbours a pipeline rank sends, activations and gradients counted apart.
int outgoing_links(const ScheduleShape& shape, int rank);

// Microbatches that one virtual stage runs, and whether `microbatch` is among them.
int microbatches_of_stage(const ScheduleShape& shape);
bool stage_runs(const ScheduleShape& shape, int stage, int microbatch);

// One list per pipeline rank. 1f1b and interleaved: Megatron's order (schedules.py); zb-h1 and zbv:
// Qi et al., arXiv 2401.10241; dualpipe: DeepSeek-V3's, arXiv 2412.19437 section 3.2.1, by the
// steps of DualPipe 3da1bbe; gpipe: all forwards, then all backwards.
//
// With `whole_reductions`, reductions are where Megatron-Core 0.16.1 has them by default
// (schedules.py, align_grad_reduce): 1f1b's first rank reduces bucket by bucket beside its last
// backward, the others after theirs; interleaved, every rank reduces a chunk whole, rank r when it
// has run r backwards more than the chunk's last, so that all ranks do so at about the same time,
// and what is left over at the end.
std::vector<std::vector<Action>> build_schedule(const ScheduleShape& shape);

// What is left of a schedule where nothing is trained: its forwards, in their order.
std::vector<std::vector<Action>> forward_schedule(const ScheduleShape& shape);

// Where rank `rank` is in a repeating body: actions before it, actions of one period, and periods.
// Every period moves the rank by `microbatches_per_period` microbatches of each of its stages.
struct SteadyPart {
  std::int64_t begin = 0, period = 0, count = 0;
};
SteadyPart steady_part(const ScheduleShape& shape, int rank);
int microbatches_per_period(const ScheduleShape& shape);

// How a schedule runs backward: as one, as input gradients and weight gradients apart, or some this
// and some that way.
enum class BackwardForm : std::uint8_t { whole, split, both };
BackwardForm backward_form(ScheduleKind kind);
inline bool splits_backward(ScheduleKind kind) {
  return backward_form(kind) != BackwardForm::whole;
}

std::string to_string(const Action& action);                // "2F0"
std::string to_string(const std::vector<Action>& actions);  // "0F0 0F1 0B0"

// "" for a valid schedule, else what is wrong and where. Valid: every stage runs every microbatch
// of its own forward and backward once, in an order that does not deadlock, and pairs are a forward
// and the backward of another microbatch.
std::string schedule_fault(const ScheduleShape& shape,
                           const std::vector<std::vector<Action>>& schedule);

// Microbatches of one stage (or all stages of a rank, in chunks) alive at once, at most.
int max_in_flight(const std::vector<Action>& actions);

}  // namespace qplan
