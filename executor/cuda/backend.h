#pragma once
// One rank's step on a GPU: lanes are streams, waits are events, and nothing on the host waits
// before the end of the step.

#include <chrono>
#include <memory>
#include <vector>

#include "executor/cuda/nccl_world.h"
#include "executor/cuda/rank.h"
#include "executor/interpreter.h"
#include "models/units.h"

namespace qplan {

class CudaBackend : public Backend {
 public:
  struct Options {
    Seconds timeout{600};  // longest time from begin() to the end of finish()
    // What comes before the optimizer, whose settings change from step to step, is captured in the
    // second step that is not timed, and replayed in those that follow.
    bool graphs = false;
  };
  CudaBackend(CudaRank& rank, NcclWorld& world, Options options);
  ~CudaBackend() override;

  // Runs what this rank does alone once, on an arena of zeros, and leaves nothing of value there:
  // kernels are loaded and libraries choose theirs while no other rank waits. A kernel that is
  // loaded beside one that waits for a message may wait for its end.
  void rehearse();
  // Begins a step. `timed`: every command is put between two events, so that times() knows it.
  void begin(bool timed);
  void wait(Lane lane, LaneSet others) override;
  void run(const Command& command) override;
  // Until the device has done all. Throws DeviceError for a failure, and for a step that takes
  // longer than the timeout, with the command that each lane is stuck at.
  void finish() override;

  // Between steps: until every rank has come here. Throws as finish() does.
  void meet();

  // Of the last timed step, in seconds since its begin, by place in the program.
  struct CommandTime {
    Seconds begin, end;
  };
  [[nodiscard]] std::vector<CommandTime> times() const;

 private:
  struct LaneState {
    OwnedStream stream;
    OwnedEvent reached;        // recorded behind everything enqueued so far, ...
    bool recorded = true;      // ... unless more has been enqueued since
    std::size_t commands = 0;  // enqueued in this step
  };
  enum class Graph : std::uint8_t { none, capturing, launched };
  // Every lane waits for what compute has been given so far.
  void start_lanes();
  void capture();
  void end_capture();
  // Whether the command is part of the graph that has been launched.
  [[nodiscard]] bool replayed() const { return state_ == Graph::launched && enqueued_ < in_graph_; }
  [[nodiscard]] LaneState& lane(Lane number) { return lanes_[static_cast<std::size_t>(number)]; }
  void record(LaneState& lane);
  void hold_back(LaneState& lane);
  void set_deadline();
  void wait_until(const OwnedEvent& event, bool awake = false);
  [[nodiscard]] std::string stuck_at() const;

  CudaRank& rank_;
  NcclWorld& world_;
  Options options_;
  std::vector<LaneState> lanes_;
  // Timed steps: two events a command, and the one that they count from.
  bool timed_ = false;
  std::vector<OwnedEvent> begins_, ends_;
  OwnedEvent start_, waited_ = make_event();
  std::size_t enqueued_ = 0;
  std::chrono::steady_clock::time_point deadline_;
  // Behind every so many commands, the oldest next.
  std::vector<OwnedEvent> marks_;
  std::vector<const Command*> last_;  // of each lane
  // The first commands of the program, and where this step stands with them.
  std::size_t in_graph_ = 0;
  bool warm_ = false;  // a step has been run
  Graph state_ = Graph::none;
  OwnedGraphExec graph_;
};

}  // namespace qplan
