#pragma once
// One pipeline rank's step as it is executed: every op in program order, every slot a buffer with a
// place in one arena. Deterministic, and the only layout there is: what is predicted here is what
// the executor allocates.

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "models/program/merge.h"
#include "models/program/step_program.h"

namespace qplan {

// A block at its place in the model. Those of one stage are neighbours, in forward order.
struct BlockInstance {
  int stage = -1;  // -1: the step edge
  BlockId block = 0;
  std::int64_t layer = 0;            // which of its kind in the model: decoder layer 17, ...
  std::vector<std::int64_t> held{};  // slot -> where it lies for the whole step; -1: it does not
};

// In-order queues of a rank: the streams of op.h, then one for each neighbour, direction and pass.
using Lane = int;
using LaneSet = std::uint64_t;
constexpr LaneSet only_lane(Lane lane) {
  return LaneSet{1} << lane;
}

// A slot that an op reads or writes.
struct Operand {
  std::int64_t offset = -1;  // bytes from the arena's begin
  SlotId slot = kNoSlot;     // of the command's block
  bool fresh = false;        // allocated just before this command: holds nothing yet
};

struct Operands {
  std::array<Operand, 8> list{};
  std::uint8_t count = 0;
  [[nodiscard]] const Operand* begin() const { return list.data(); }
  [[nodiscard]] const Operand* end() const { return list.data() + count; }
  [[nodiscard]] const Operand& operator[](std::size_t i) const { return list[i]; }
};

// A message is received into its link's buffer beside the action before the one that needs it, and
// taken from there when that one begins; it is sent from its link's buffer as well.
enum class CommandKind : std::uint8_t { op, receive, take, send };

// Enqueued on its lane, after everything enqueued so far on the lanes of `after`.
struct Command {
  CommandKind kind = CommandKind::op;
  const Op* op = nullptr;  // of kind op
  Lane lane = 0;
  LaneSet after = 0;
  int instance = 0;
  Action action{};             // stage -1: the step's edge
  Part part = Part::forward;   // which list of the block
  Operands reads{}, writes{};  // of an op
  int peer = -1;               // of a message: the other pipeline rank
  std::int64_t offset = -1;    // of a message: where its reader or writer has it; none in receive
  std::int64_t bytes = 0;
  std::int64_t buffer = -1;  // of a message: its link's, for the whole step
};

struct RankProgram {
  int rank = 0;  // pipeline rank
  int lanes = kStreamCount;
  std::vector<BlockInstance> instances;  // the last is the step edge
  std::vector<Command> commands;
  Bytes live_peak;          // most bytes allocated at once, rounded slots, in program order
  std::int64_t extent = 0;  // bytes of the arena: live_peak and what its layout loses
  // What `op` points into: lists of blocks, and of pairs of them (forward's, then backward's).
  std::map<std::pair<BlockId, Part>, OpList> lists;
  std::map<std::array<std::pair<BlockId, Part>, 2>, MergedOps> pairs;

  RankProgram() = default;
  RankProgram(RankProgram&&) = default;  // nodes of a map stay where they are
  RankProgram& operator=(RankProgram&&) = default;
  RankProgram(const RankProgram&) = delete;
  RankProgram& operator=(const RankProgram&) = delete;
  ~RankProgram() = default;
};

RankProgram rank_program(const StepProgram& program, int pipeline_rank);

}  // namespace qplan
