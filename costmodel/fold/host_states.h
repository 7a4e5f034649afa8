#pragma once
// What a node's memory holds of states that live there.

#include <algorithm>

#include "costmodel/profiles/hardware.h"
#include "models/plan/parallel_plan.h"

namespace qplan {

struct HostStates {
  Bytes held, room;  // of a node, or of the share of it that a job below a node has
  double ranks = 1;  // that share it
};

// `offloaded`: elements of a rank that the host may hold, in the mean of the pipeline's. An
// offloaded optimizer: fp32 master, m, v and a gradient copy, 16 bytes a parameter
// (docs/reference/frameworks.md 2.2); offloaded parameters 2 more. With NVMe only staging buffers
// stay in memory (a tenth, assumed).
inline HostStates host_states(const ParallelPlan& plan, double offloaded,
                              const HardwareProfile& hardware) {
  const double bytes = 16 * plan.offload.optimizer + (plan.offload.params ? 2 : 0);
  const double staged = plan.offload.nvme ? 0.1 : 1.0;
  HostStates host;
  host.ranks =
      static_cast<double>(std::min<std::int64_t>(plan.world(), hardware.link.gpus_per_node));
  host.held = Bytes(offloaded * bytes * staged * host.ranks);
  // Each GPU of a node brings its share of the host, memory as well as cores (host_adam_price()).
  host.room = hardware.host.memory * (host.ranks / hardware.link.gpus_per_node);
  return host;
}

}  // namespace qplan
