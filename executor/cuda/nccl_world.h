#pragma once
// The communicators of one rank: one for each group it is in and stream that uses it, so that
// collectives of different streams never wait for each other, and one for each neighbouring
// stage, direction and pass.

#include <nccl.h>

#include <compare>
#include <map>
#include <source_location>
#include <utility>
#include <vector>

#include "executor/cuda/device_error.h"
#include "models/program/rank_program.h"

namespace qplan {

void check(ncclResult_t code, std::source_location where = std::source_location::current());

// Of a communicator of ranks of the job, in ascending order, that steps and calibration share.
ncclConfig_t config_of_group(const std::vector<std::int64_t>& members);

class NcclWorld {
 public:
  // Of one rank alone.
  NcclWorld() = default;
  // Meets all ranks of the program, which were given the same id. Every rank makes the same calls.
  NcclWorld(const StepProgram& program, std::int64_t rank, const ncclUniqueId& id);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  // Null for a group of one rank.
  [[nodiscard]] ncclComm_t group(Axis axis, Stream stream) const;
  // Of numbers that each rank of a group has as many of, the least, in place. Every rank of the job
  // calls this.
  using OfGroups = std::map<std::pair<Axis, Stream>, std::vector<double>>;
  void take_least(OfGroups& numbers) const;

  // From one pipeline rank (0 in it) to another (1), for activations or their gradients.
  struct Edge {
    int from = 0, to = 0;
    bool backward = false;
    auto operator<=>(const Edge&) const = default;
  };
  [[nodiscard]] ncclComm_t edge(const Edge& edge) const;

  // What has gone wrong since, if anything: throws DeviceError.
  void check_health() const;

 private:
  ncclComm_t split(std::int64_t color, std::int64_t key, ncclConfig_t config);
  void connect_edges(int own);

  ncclComm_t world_ = nullptr;  // for splitting, and for the step's sums
  std::map<std::pair<Axis, Stream>, ncclComm_t> groups_;
  std::map<Edge, ncclComm_t> edges_;
};

}  // namespace qplan
