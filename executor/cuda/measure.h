#pragma once
// How long a piece of work takes on this machine's GPU, alone: the same kernels that a step runs,
// on random numbers.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "executor/launch.h"
#include "models/program/op.h"
#include "models/units.h"

namespace qplan {

struct GpuFacts {
  std::string name, driver;
  std::int64_t multiprocessors = 0, memory_bytes = 0;
  int compute_capability = 0;  // 90
};

// Of one work and of one message, alone and beside the other.
struct BesideTimes {
  Seconds work, work_beside, message, message_beside;
};

// Queues from this process to its GPU: one, as most ranks have it, or one a stream.
enum class Queues : std::uint8_t { one, many };

class Measurer {
 public:
  Measurer() = default;
  virtual ~Measurer() = default;
  Measurer(const Measurer&) = delete;
  Measurer& operator=(const Measurer&) = delete;

  // Median over several runs of many repetitions, operands rotating through more memory than the
  // cache holds. Absent: work that is not measured. Collectives run in every group of so many ranks
  // of the job at once, as in a step; they must divide it.
  // The mean of all GPUs: what one loses by chance another gains.
  virtual std::optional<Seconds> time(const Work& work, int ranks) = 0;
  // Time of the slowest GPU over the mean of all, for the works that each did alone so far: a step
  // goes at its pace.
  virtual double slowest() = 0;
  // The same between large products, which keep the GPU at its power limit and so its clock low.
  // The work takes as long as they do, memory-bound work half as long.
  virtual std::optional<Seconds> warm_time(const Work& work) = 0;
  // The work over and over, and the message on another stream one after the other, in every group
  // of so many ranks at once: each alone, and both beside each other. The mean over all ranks.
  // Wants a queue for each (Queues::many): in one, a message that waits for the one before holds
  // up what stands behind it. Absent: work that is not measured.
  virtual std::optional<BesideTimes> beside(const Work& work, const Work& message, int ranks) = 0;
  // From one kernel's begin to the next's, when neither has anything to do.
  virtual Seconds launch_time() = 0;
  // How much sooner a kernel follows another in a CUDA graph than launched; not below 0.
  virtual Seconds graph_gain() = 0;
  // Pinned host memory to the device or back.
  virtual BytesPerSecond copy_rate(bool to_host) = 0;
  // Parameters a second that AdamW steps on this rank's share of the host's cores, while the other
  // ranks do the same on theirs.
  virtual double host_adam_rate() = 0;
  [[nodiscard]] virtual const GpuFacts& facts() const = 0;
};

// Collectives are measured between the processes of `process`'s job: every one of them must ask for
// the same works in the same order. Throws Error where the CUDA part was not built.
std::unique_ptr<Measurer> make_measurer(const ProcessRank& process, Queues queues);

}  // namespace qplan
