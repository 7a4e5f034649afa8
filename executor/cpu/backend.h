#pragma once
// The reference backend: one rank is one thread, a lane is a queue of commands, and the thread
// takes any command that its lane and its waits allow. Which one it takes may be left to chance, to
// show that the program says everything that must hold.

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "executor/cpu/rank.h"
#include "executor/cpu/world.h"
#include "executor/interpreter.h"
#include "models/units.h"

namespace qplan {

Seconds clock_now();  // of a steady clock

// When a command ran, by clock_now().
struct CommandTime {
  Seconds begin, end;
};

class CpuBackend : public Backend {
 public:
  struct Options {
    std::optional<std::uint64_t> shuffle;  // seed of a random order; absent: program order
    // Called before every command with its place in the program; may throw. For tests.
    std::function<void(std::size_t)> before;
  };
  CpuBackend(CpuRank& rank, CpuWorld& world, Options options);

  void wait(Lane lane, LaneSet others) override;
  void run(const Command& command) override;
  // Executes what was enqueued. Throws what the first command that fails throws, its name added.
  void finish() override;

  // Of the last finish(): commands in the order in which they ended, and when they ran, by place.
  [[nodiscard]] const std::vector<std::size_t>& order() const { return order_; }
  [[nodiscard]] const std::vector<CommandTime>& times() const { return times_; }

 private:
  struct Entry {
    const Command* command = nullptr;
    std::vector<std::size_t> needs;  // of each lane: how many commands must have ended
    std::shared_ptr<CpuWorld::Meeting> meeting;
  };
  struct Queue {
    std::vector<std::size_t> entries;
    std::size_t ended = 0;
  };
  [[nodiscard]] bool ready(const Entry& entry) const;
  // True when the command has ended.
  bool advance(std::size_t entry);
  bool start(Entry& entry);
  bool meet(Entry& entry, Axis axis);
  void end(std::size_t entry);
  [[nodiscard]] std::string heads() const;

  CpuRank& rank_;
  CpuWorld& world_;
  Options options_;
  std::mt19937_64 random_;
  std::vector<Entry> entries_;
  std::vector<Queue> lanes_;
  std::vector<std::vector<std::size_t>> waits_;  // of each lane: what its next command needs
  std::map<std::pair<Axis, Stream>, std::int64_t> meetings_;
  std::vector<std::size_t> order_;
  std::vector<CommandTime> times_;
};

}  // namespace qplan
