#pragma once
// What a node's memory holds of states that live there.

#include <algorithm>

#include "costmodel/profiles/hardware.h"
#include "models/plan/parallel_plan.h"
#include "models/program/op.h"

namespace qplan {

struct HostStates {
  Bytes held, room;  // of a node, or of the share of it that a job below a node has
  double ranks = 1;  // that share it
};

// `offloaded`: elements of a rank that the host may hold, in the mean of the pipeline's; `step`: of
// one of them. An offloaded optimizer: main weights, moments and a gradient copy, 16 bytes a
// parameter in fp32 (docs/reference/frameworks.md 2.2); offloaded parameters 2 more where they are
// a copy. With NVMe only staging buffers stay in memory (a tenth, assumed).
inline HostStates host_states(const ParallelPlan& plan, double offloaded, const HostAdam& step,
                              const HardwareProfile& hardware) {
  const bool copies = plan.offload.params && step.working != step.main_params;
  const double bytes = plan.offload.optimizer * (state_bytes(step).value() + size_of(step.grad)) +
                       (copies ? size_of(step.working) : 0);
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
