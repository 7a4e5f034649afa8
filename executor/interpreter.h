#pragma once
// Walks one rank's step and tells a backend what to do, in program order. It knows neither threads
// nor devices.

#include "models/program/rank_program.h"

namespace qplan {

// One rank's view of what executes it. Lanes are in-order queues (streams); `run` may return before
// the command has been executed, `finish` returns after all have.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // What is enqueued on `lane` from now on starts after what has been enqueued so far on `others`.
  virtual void wait(Lane lane, LaneSet others) = 0;
  virtual void run(const Command& command) = 0;
  virtual void finish() = 0;
};

inline void execute(const RankProgram& program, Backend& backend) {
  for (const Command& command : program.commands) {
    if (command.after != 0) backend.wait(command.lane, command.after);
    backend.run(command);
  }
  backend.finish();
}

}  // namespace qplan
