#pragma once
// What a pipeline rank has for the whole step, and where it lies: its blocks with their states,
// buffers that several blocks work in, and buffers of what it sends.

#include <cstdint>
#include <vector>

#include "models/program/arena_layout.h"
#include "models/program/block.h"
#include "models/program/rank_program.h"

namespace qplan {

inline constexpr std::int64_t kNowhere = -1;  // the offset of what has no place in the arena

inline std::int64_t size_in_bytes(const Slot& slot) {
  return static_cast<std::int64_t>(slot.bytes().value());
}

struct HeldPlaces {
  struct Span {
    int first = 0, count = 0;
  };
  std::vector<BlockInstance> instances;  // the last is the step edge
  std::vector<Span> stages;              // virtual stage -> its instances; none: another rank's
  std::vector<int> own;                  // this rank's stages, in the order of the step's end
  std::vector<std::int64_t> message_buffers;  // of its links, those out and those in
};

HeldPlaces place_held(const StepProgram& program, int pipeline_rank, ArenaLayout& arena);

}  // namespace qplan
