#include "executor/cuda/backend.h"

#include <fmt/format.h>

#include <chrono>
#include <set>
#include <thread>
#include <variant>

#include "executor/cuda/ops.h"
#include "models/error.h"

namespace qplan {
namespace {

using Clock = std::chrono::steady_clock;
// How far the host runs ahead of the device: 4 marks, 64 commands apart. More than a millisecond of
// work; but less than the thousand launches that the driver takes before a launch itself waits,
// where no timeout could end it.
constexpr std::size_t kMarks = 4, kCommandsPerMark = 64;
constexpr Lane kCompute = index(Stream::compute);

// Communication goes first: what waits for it is longer than what it delays.
OwnedStream make_lane(Lane lane) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     lane == kCompute ? least : greatest));
  return OwnedStream(stream);
}

// Whether other ranks take part.
bool is_shared(const Op& op) {
  return std::holds_alternative<Collective>(op.work) || std::holds_alternative<SendRecv>(op.work);
}

// Commands before the optimizer's first.
std::size_t before_update(const std::vector<Command>& commands) {
  const auto updates = [](const Command& c) {
    return c.kind == CommandKind::op && (std::holds_alternative<Update>(c.op->work) ||
                                         std::holds_alternative<HostCopy>(c.op->work) ||
                                         std::holds_alternative<HostAdam>(c.op->work));
  };
  return static_cast<std::size_t>(std::ranges::find_if(commands, updates) - commands.begin());
}

}  // namespace

CudaBackend::CudaBackend(CudaRank& rank, NcclWorld& world, Options options)
    : rank_(rank),
      world_(world),
      options_(options),
      lanes_(static_cast<std::size_t>(rank.commands.lanes)),
      start_(make_event(/*timed=*/true)),
      last_(lanes_.size(), nullptr),
      in_graph_(options.graphs ? before_update(rank.commands.commands) : 0) {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].stream = make_lane(static_cast<Lane>(i));
    lanes_[i].reached = make_event();
  }
  for (std::size_t i = 0; i < kMarks; ++i) marks_.push_back(make_event());
  rank.wait_for = [this](const OwnedEvent& event) { wait_until(event, /*awake=*/true); };
}

CudaBackend::~CudaBackend() = default;

void CudaBackend::rehearse() {
  cudaStream_t stream = lane(kCompute).stream.get();
  set_deadline();
  rank_.clear_arena(stream);
  std::set<const Op*> known;
  for (const Command& c : rank_.commands.commands) {
    if (c.kind != CommandKind::op || is_shared(*c.op) || !known.insert(c.op).second) continue;
    // What another op left there is no map of rows or count of tokens: it would send kernels
    // astray.
    for (const Operand& operand : c.reads) {
      const Tensor read = rank_.tensor(c, operand);
      check(cudaMemsetAsync(read.data, 0, static_cast<std::size_t>(read.bytes()), stream));
    }
    launch(rank_, c, stream);
  }
  check(cudaStreamSynchronize(stream));
}

void CudaBackend::set_deadline() {
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(options_.timeout.value()));
}

void CudaBackend::begin(bool timed) {
  timed_ = timed;
  enqueued_ = 0;
  set_deadline();
  while (timed && begins_.size() < rank_.commands.commands.size()) {
    begins_.push_back(make_event(true));
    ends_.push_back(make_event(true));
  }
  for (LaneState& lane : lanes_) lane.recorded = true;  // the step before has ended
  LaneState& compute = lane(kCompute);
  check(cudaEventRecord(start_.get(), compute.stream.get()));
  rank_.begin_step(compute.stream.get());
  compute.recorded = false;
  state_ = Graph::none;
  if (in_graph_ > 0 && !timed && warm_) {
    if (graph_ == nullptr) return capture();
    check(cudaGraphLaunch(graph_.get(), compute.stream.get()));
    state_ = Graph::launched;
  }
  warm_ = true;
  // Other lanes may not touch gradients or sums before they are cleared.
  start_lanes();
}

void CudaBackend::start_lanes() {
  lane(kCompute).recorded = false;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (static_cast<Lane>(i) != kCompute) {
      record(lane(kCompute));
      check(cudaStreamWaitEvent(lanes_[i].stream.get(), lane(kCompute).reached.get()));
    }
  }
}

// Lanes become branches of the graph as they wait for compute.
void CudaBackend::capture() {
  check(cudaStreamBeginCapture(lane(kCompute).stream.get(), cudaStreamCaptureModeThreadLocal));
  state_ = Graph::capturing;
  start_lanes();
  for (LaneState& own : lanes_) own.recorded = false;  // what was recorded is of the step before
}

void CudaBackend::end_capture() {
  LaneState& compute = lane(kCompute);
  for (LaneState& own : lanes_) {
    if (&own == &compute) continue;
    own.recorded = false;
    record(own);
    check(cudaStreamWaitEvent(compute.stream.get(), own.reached.get()));
  }
  cudaGraph_t captured = nullptr;
  check(cudaStreamEndCapture(compute.stream.get(), &captured));
  const OwnedGraph graph(captured);
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph.get(), 0));
  graph_.reset(executable);
  check(cudaGraphLaunch(graph_.get(), compute.stream.get()));
  state_ = Graph::launched;
  for (LaneState& own : lanes_) own.recorded = false;  // what was recorded belongs to the graph
  start_lanes();
}

void CudaBackend::record(LaneState& lane) {
  if (lane.recorded) return;
  check(cudaEventRecord(lane.reached.get(), lane.stream.get()));
  lane.recorded = true;
}

void CudaBackend::wait(Lane number, LaneSet others) {
  if (state_ == Graph::capturing && enqueued_ == in_graph_) end_capture();
  if (replayed()) return;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const auto other = static_cast<Lane>(i);
    if ((others & only_lane(other)) == 0 || other == number) continue;
    record(lanes_[i]);
    check(cudaStreamWaitEvent(lane(number).stream.get(), lanes_[i].reached.get()));
  }
}

void CudaBackend::run(const Command& command) {
  if (state_ == Graph::capturing && enqueued_ == in_graph_) end_capture();
  const bool done = replayed();
  const std::size_t place = enqueued_++;
  if (done) return;
  LaneState& own = lane(command.lane);
  cudaStream_t stream = own.stream.get();
  last_[static_cast<std::size_t>(command.lane)] = &command;
  try {
    if (timed_) check(cudaEventRecord(begins_[place].get(), stream));
    const auto copy = [&](std::int64_t to, std::int64_t from) {
      check(cudaMemcpyAsync(rank_.memory(to), rank_.memory(from),
                            static_cast<std::size_t>(command.bytes), cudaMemcpyDeviceToDevice,
                            stream));
    };
    if (command.kind == CommandKind::send) {
      // Others wait for the copy alone: two stages that send to each other would wait for ever.
      copy(command.buffer, command.offset);
      own.recorded = false;
      record(own);
    }
    if (command.kind == CommandKind::take) {
      copy(command.offset, command.buffer);
    } else if (command.kind != CommandKind::op) {
      launch_message(rank_, world_, command, stream);
    } else if (std::holds_alternative<Collective>(command.op->work)) {
      launch_collective(rank_, world_, command, stream);
    } else if (std::holds_alternative<SendRecv>(command.op->work)) {
      launch_ring(rank_, world_, command, stream);
    } else {
      launch(rank_, command, stream);
    }
    if (timed_) check(cudaEventRecord(ends_[place].get(), stream));
  } catch (const DeviceError& error) {
    throw DeviceError(
        fmt::format("rank {}, {}: {}", rank_.rank, describe(rank_, command), error.what()));
  }
  if (command.kind != CommandKind::send) own.recorded = false;
  if (enqueued_ % kCommandsPerMark == 0 && state_ != Graph::capturing) hold_back(own);
}

void CudaBackend::hold_back(LaneState& lane) {
  const OwnedEvent& mark = marks_[enqueued_ / kCommandsPerMark % kMarks];
  wait_until(mark);  // of kMarks times as many commands before
  check(cudaEventRecord(mark.get(), lane.stream.get()));
}

void CudaBackend::finish() {
  if (state_ == Graph::capturing) end_capture();  // nothing is updated on this rank
  for (LaneState& own : lanes_) {
    own.recorded = false;  // behind the last message, too
    record(own);
    wait_until(own.reached);
  }
  rank_.end_step();
}

void CudaBackend::meet() {
  ncclComm_t all = world_.group(Axis::world, Stream::compute);
  if (all == nullptr) return;
  set_deadline();
  cudaStream_t stream = lane(kCompute).stream.get();
  // The step's sums are the same everywhere, and so is their maximum.
  check(ncclAllReduce(rank_.sums(), rank_.sums(), 1, ncclDouble, ncclMax, all, stream));
  check(cudaEventRecord(waited_.get(), stream));
  wait_until(waited_);
}

void CudaBackend::wait_until(const OwnedEvent& event, bool awake) {
  for (;;) {
    const cudaError_t state = cudaEventQuery(event.get());
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) {
      throw DeviceError(fmt::format("rank {}: CUDA says '{}' in the step that has come to {}",
                                    rank_.rank, cudaGetErrorString(state), stuck_at()));
    }
    world_.check_health();
    if (Clock::now() > deadline_) {
      throw DeviceError(fmt::format(
          "rank {}: the step takes longer than {} s, waiting for {}; another rank may have "
          "stopped, or give more time with --timeout",
          rank_.rank, options_.timeout.value(), stuck_at()));
    }
    if (awake) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

// The last command of each lane that has not ended, of those that were marked.
std::string CudaBackend::stuck_at() const {
  std::string text;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (last_[i] == nullptr || cudaEventQuery(lanes_[i].reached.get()) == cudaSuccess) continue;
    if (!text.empty()) text += " and ";
    text += describe(rank_, *last_[i]);
  }
  return text.empty() ? "its last command" : text;
}

std::vector<CudaBackend::CommandTime> CudaBackend::times() const {
  QPLAN_CHECK(timed_, "a step was timed before its times are asked for");
  const auto since_start = [&](const OwnedEvent& event) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_.get(), event.get()));
    return Seconds(static_cast<double>(milliseconds) * 1e-3);
  };
  std::vector<CommandTime> times;
  for (std::size_t i = 0; i < enqueued_; ++i) {
    times.push_back({since_start(begins_[i]), since_start(ends_[i])});
  }
  return times;
}

}  // namespace qplan
