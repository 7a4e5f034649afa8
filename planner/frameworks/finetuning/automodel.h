#pragma once
// What reading and writing NeMo AutoModel's YAML share.

#include <array>
#include <string_view>

#include "models/plan/parallel_plan.h"

namespace qplan {

// torch.distributed.pipelining's schedules: as NeMo AutoModel's files spell them (also with an
// underscore before "1f1b"), and as torchtitan's do.
struct AutoModelSchedule {
  ScheduleKind kind;
  std::string_view word, of_torchtitan;
};
inline constexpr std::array<AutoModelSchedule, 4> kAutoModelSchedules{
    {{ScheduleKind::one_f_one_b, "1f1b", "1F1B"},
     {ScheduleKind::gpipe, "gpipe", "GPipe"},
     {ScheduleKind::interleaved, "interleaved1f1b", "Interleaved1F1B"},
     {ScheduleKind::zbv, "zbvzerobubble", "ZBVZeroBubble"}}};

}  // namespace qplan
