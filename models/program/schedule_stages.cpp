// Where a schedule's stages lie, and which of their neighbours are on other ranks.

#include <set>
#include <utility>

#include "models/program/schedule.h"

namespace qplan {

int virtual_stages(const ScheduleShape& s) {
  switch (s.kind) {
    case ScheduleKind::interleaved:
      return s.pp * s.vpp;
    case ScheduleKind::zbv:
    case ScheduleKind::dualpipe:
      return 2 * s.pp;
    case ScheduleKind::gpipe:
    case ScheduleKind::one_f_one_b:
    case ScheduleKind::zb_h1:
      return s.pp;
  }
  return s.pp;
}

int rank_of_stage(ScheduleKind kind, int pp, int stage) {
  if (kind == ScheduleKind::zbv || kind == ScheduleKind::dualpipe) {
    return stage < pp ? stage : 2 * pp - 1 - stage;
  }
  return stage % pp;
}

int stage_before(const ScheduleShape& s, int stage) {
  const bool enters = stage == 0 || (s.kind == ScheduleKind::dualpipe && stage == s.pp);
  return enters ? -1 : stage - 1;
}

int stage_after(const ScheduleShape& s, int stage) {
  const bool leaves =
      stage + 1 == virtual_stages(s) || (s.kind == ScheduleKind::dualpipe && stage + 1 == s.pp);
  return leaves ? -1 : stage + 1;
}

bool receives(const ScheduleShape& s, int stage) {
  const int from = stage_before(s, stage);
  return from >= 0 && rank_of_stage(s.kind, s.pp, from) != rank_of_stage(s.kind, s.pp, stage);
}

bool sends(const ScheduleShape& s, int stage) {
  const int to = stage_after(s, stage);
  return to >= 0 && receives(s, to);
}

int outgoing_links(const ScheduleShape& s, int rank) {
  std::set<std::pair<int, bool>> links;  // peer, backward
  for (int stage = 0; stage < virtual_stages(s); ++stage) {
    if (rank_of_stage(s.kind, s.pp, stage) != rank) continue;
    if (sends(s, stage)) links.emplace(rank_of_stage(s.kind, s.pp, stage_after(s, stage)), false);
    if (receives(s, stage))
      links.emplace(rank_of_stage(s.kind, s.pp, stage_before(s, stage)), true);
  }
  return static_cast<int>(links.size());
}

int microbatches_of_stage(const ScheduleShape& s) {
  return s.microbatches / stage_copies(s.kind);
}

bool stage_runs(const ScheduleShape& s, int stage, int microbatch) {
  if (s.kind != ScheduleKind::dualpipe) return true;
  return microbatch % 2 == (stage < s.pp ? 0 : 1);
}

BackwardForm backward_form(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::gpipe:
    case ScheduleKind::one_f_one_b:
    case ScheduleKind::interleaved:
      return BackwardForm::whole;
    case ScheduleKind::zb_h1:
    case ScheduleKind::zbv:
      return BackwardForm::split;
    case ScheduleKind::dualpipe:
      return BackwardForm::both;
  }
  return BackwardForm::whole;
}

}  // namespace qplan
