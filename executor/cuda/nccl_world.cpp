#include "executor/cuda/nccl_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <set>
#include <variant>

#include "executor/cuda/handles.h"
#include "models/error.h"
#include "models/program/recipe.h"

namespace qplan {
namespace {

using Uses = std::set<std::pair<Axis, Stream>>;

// Blocks that a communicator's kernels may have. Its buffers grow with them, by 12 MiB each.
// Of a group on NVLink, where bandwidth counts. NCCL 2.28.3 chooses 24 for two H200, with which
// reductions of 256 MiB reach 237 GB/s each way and gathers 244; with 32, 253 and 264. Steps of
// 8B's width with ZeRO-3 take 1.8% less, with ZeRO-1 0.9%, of experts on two ranks 0.3%
// (docs/evidence/archive/issue6-h200-10.json).
constexpr int kGroupBlocks = 32;
constexpr int kScalarBlocks = 1;  // two sums a step
constexpr std::size_t kFirstMessage = 256;

ncclConfig_t config_of(int blocks) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = blocks;
  return config;
}

// Whether ranks, one a GPU of machines with as many as this one, are on one machine whose GPUs
// NVLink joins: over PCIe there are no native atomics.
bool on_nvlink(const std::vector<std::int64_t>& members) {
  int devices = 0, own = 0, atomics = 0;
  check(cudaGetDeviceCount(&devices));
  check(cudaGetDevice(&own));
  if (devices < 2 || members.front() / devices != members.back() / devices) return false;
  check(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, own,
                                  own == 0 ? 1 : 0));
  return atomics != 0;
}

// Groups that any block's ops meet in. The same on every rank, so that all split alike.
Uses uses_of(const StepProgram& program) {
  Uses uses;
  for (const Block& b : program.blocks) {
    for (const OpList* list : {&b.forward, &b.backward, &b.gather, &b.reduce, &b.norm, &b.update}) {
      for (const Op& op : *list) {
        const auto* c = std::get_if<Collective>(&op.work);
        if (c != nullptr && c->axis != Axis::world) uses.emplace(c->axis, op.stream);
        if (const auto* r = std::get_if<SendRecv>(&op.work)) uses.emplace(r->axis, op.stream);
      }
    }
  }
  return uses;
}

// The ways that messages take.
std::set<NcclWorld::Edge> edges_of(const StepProgram& program) {
  std::set<NcclWorld::Edge> edges;
  const ScheduleShape& shape = program.schedule;
  for (int r = 0; r < shape.pp; ++r) {
    for (const Action& a : program.actions[static_cast<std::size_t>(r)]) {
      const bool backward = a.kind != ActionKind::forward;
      const int stage = backward ? stage_before(shape, a.stage) : stage_after(shape, a.stage);
      if (stage < 0) continue;
      const int other = rank_of_stage(shape.kind, shape.pp, stage);
      if (other != r) edges.insert({r, other, backward});
    }
  }
  return edges;
}

}  // namespace

void check(ncclResult_t code, std::source_location where) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  throw DeviceError(fmt::format("NCCL says '{}' ({}) at {}:{}", ncclGetErrorString(code),
                                ncclGetLastError(nullptr), where.file_name(), where.line()));
}

ncclConfig_t config_of_group(const std::vector<std::int64_t>& members) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (on_nvlink(members)) config.minCTAs = config.maxCTAs = kGroupBlocks;
  return config;
}

NcclWorld::NcclWorld(const StepProgram& program, std::int64_t rank, const ncclUniqueId& id) {
  const RankGrid& grid = program.grid;
  ncclConfig_t config = config_of(kScalarBlocks);
  check(ncclCommInitRankConfig(&world_, static_cast<int>(grid.world()), id, static_cast<int>(rank),
                               &config));
  for (const auto& [axis, stream] : uses_of(program)) {
    const std::vector<std::int64_t> members = grid.group(axis, rank);
    const bool met = members.size() > 1;
    const std::int64_t place = std::ranges::find(members, rank) - members.begin();
    ncclComm_t comm =
        split(met ? members.front() : NCCL_SPLIT_NOCOLOR, place, config_of_group(members));
    if (met) groups_[{axis, stream}] = comm;
  }
  const std::int64_t stage_ranks = grid.world() / program.schedule.pp;
  const int own = grid.dense(rank).pp;
  for (const Edge& e : edges_of(program)) {
    const bool mine = own == e.from || own == e.to;
    ncclComm_t comm = split(mine ? rank % stage_ranks : NCCL_SPLIT_NOCOLOR, own == e.to ? 1 : 0,
                            config_of(recipe_of(RecipeKind::qplan).host.message_blocks));
    if (mine) edges_[e] = comm;
  }
  connect_edges(own);
}

// NCCL connects two ranks at their first message, and the host of each waits for the other's: once,
// in an order that is the same everywhere, before anything else waits.
void NcclWorld::connect_edges(int own) {
  const OwnedStream stream = make_stream();
  const DeviceMemory number = device_memory(kFirstMessage);
  for (const auto& [e, comm] : edges_) {
    if (own == e.from) {
      check(ncclSend(number.get(), kFirstMessage, ncclInt8, 1, comm, stream.get()));
    } else {
      check(ncclRecv(number.get(), kFirstMessage, ncclInt8, 0, comm, stream.get()));
    }
    check(cudaStreamSynchronize(stream.get()));
  }
}

NcclWorld::~NcclWorld() {
  if (std::uncaught_exceptions() > 0) return;  // it would wait for ranks that go on
  for (const auto& [key, comm] : groups_) ncclCommDestroy(comm);
  for (const auto& [key, comm] : edges_) ncclCommDestroy(comm);
  if (world_ != nullptr) ncclCommDestroy(world_);
}

ncclComm_t NcclWorld::split(std::int64_t color, std::int64_t key, ncclConfig_t config) {
  ncclComm_t comm = nullptr;
  check(ncclCommSplit(world_, static_cast<int>(color), static_cast<int>(key), &comm, &config));
  return comm;
}

ncclComm_t NcclWorld::group(Axis axis, Stream stream) const {
  if (axis == Axis::world) return world_;
  const auto it = groups_.find({axis, stream});
  return it == groups_.end() ? nullptr : it->second;
}

void NcclWorld::take_least(OfGroups& numbers) const {
  const OwnedStream stream = make_stream();
  // In an order that is the same everywhere: no two ranks wait for each other in different groups.
  for (auto& [key, own] : numbers) {
    ncclComm_t comm = group(key.first, key.second);
    if (comm == nullptr) continue;
    const std::size_t bytes = own.size() * sizeof(double);
    const DeviceMemory device = device_memory(static_cast<std::int64_t>(bytes));
    check(cudaMemcpyAsync(device.get(), own.data(), bytes, cudaMemcpyHostToDevice, stream.get()));
    check(ncclAllReduce(device.get(), device.get(), own.size(), ncclDouble, ncclMin, comm,
                        stream.get()));
    check(cudaMemcpyAsync(own.data(), device.get(), bytes, cudaMemcpyDeviceToHost, stream.get()));
    check(cudaStreamSynchronize(stream.get()));
  }
}

ncclComm_t NcclWorld::edge(const Edge& edge) const {
  const auto it = edges_.find(edge);
  QPLAN_CHECK(it != edges_.end(), "messages go between neighbouring stages");
  return it->second;
}

void NcclWorld::check_health() const {
  const auto healthy = [](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    check(ncclCommGetAsyncError(comm, &result));
    check(result);
  };
  if (world_ != nullptr) healthy(world_);
  for (const auto& [key, comm] : groups_) healthy(comm);
  for (const auto& [key, comm] : edges_) healthy(comm);
}

}  // namespace qplan
