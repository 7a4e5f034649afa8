#include "executor/cpu/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "executor/cpu/ops.h"
#include "models/error.h"

namespace qplan {
namespace {

// A stage boundary as the receiver names it.
CpuWorld::Tag tag_of(const CpuRank& rank, const Command& c) {
  if (c.kind == CommandKind::receive) return {c.action.stage, c.action.microbatch};
  const ScheduleShape& shape = rank.job.program.schedule;
  const bool forward = c.action.kind == ActionKind::forward;
  return {forward ? stage_after(shape, c.action.stage) : stage_before(shape, c.action.stage),
          c.action.microbatch};
}

}  // namespace

Seconds clock_now() {
  using Clock = std::chrono::steady_clock;
  return Seconds(std::chrono::duration<double>(Clock::now().time_since_epoch()).count());
}

CpuBackend::CpuBackend(CpuRank& rank, CpuWorld& world, Options options)
    : rank_(rank),
      world_(world),
      options_(std::move(options)),
      random_(options_.shuffle.value_or(0)),
      lanes_(static_cast<std::size_t>(rank.commands.lanes)),
      waits_(lanes_.size(), std::vector<std::size_t>(lanes_.size(), 0)) {}

void CpuBackend::wait(Lane lane, LaneSet others) {
  for (std::size_t other = 0; other < lanes_.size(); ++other) {
    if ((others & only_lane(static_cast<Lane>(other))) == 0) continue;
    std::size_t& needed = waits_[static_cast<std::size_t>(lane)][other];
    needed = std::max(needed, lanes_[other].entries.size());
  }
}

void CpuBackend::run(const Command& command) {
  const auto lane = static_cast<std::size_t>(command.lane);
  lanes_[lane].entries.push_back(entries_.size());
  // The queue is in order, so a wait holds for all that follow as well.
  entries_.push_back({&command, waits_[lane], nullptr});
}

bool CpuBackend::ready(const Entry& entry) const {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].ended < entry.needs[lane]) return false;
  }
  return true;
}

void CpuBackend::finish() {
  order_.clear();
  times_.assign(entries_.size(), {});
  while (order_.size() < entries_.size()) {
    const std::uint64_t seen = world_.version();
    std::vector<std::size_t> heads;
    for (const Queue& lane : lanes_) {
      if (lane.ended == lane.entries.size()) continue;
      const std::size_t head = lane.entries[lane.ended];
      if (ready(entries_[head])) heads.push_back(head);
    }
    std::ranges::sort(heads);
    if (options_.shuffle) std::ranges::shuffle(heads, random_);
    const bool moved = std::ranges::any_of(heads, [this](std::size_t i) { return advance(i); });
    if (!moved) world_.wait(seen, rank_.rank, this->heads());
  }
  for (Queue& lane : lanes_) lane = {};
  for (auto& waits : waits_) std::ranges::fill(waits, 0);
  entries_.clear();
}

bool CpuBackend::advance(std::size_t i) {
  Entry& entry = entries_[i];
  try {
    if (entry.meeting != nullptr) {
      if (!world_.done(*entry.meeting)) return false;
    } else {
      world_.throw_if_failed();
      if (times_[i].begin.value() == 0) {
        if (options_.before) options_.before(i);
        times_[i].begin = clock_now();
      }
      if (!start(entry)) return false;
    }
  } catch (const std::exception& error) {
    throw Error(
        fmt::format("rank {}, {}: {}", rank_.rank, describe(rank_, *entry.command), error.what()));
  }
  times_[i].end = clock_now();
  ++lanes_[static_cast<std::size_t>(entry.command->lane)].ended;
  order_.push_back(i);
  return true;
}

// Messages may have to be tried again; a collective may end later.
bool CpuBackend::start(Entry& entry) {
  const Command& c = *entry.command;
  if (c.kind == CommandKind::op) {
    if (const auto* work = std::get_if<Collective>(&c.op->work)) return meet(entry, work->axis);
    if (const auto* ring = std::get_if<SendRecv>(&c.op->work)) return meet(entry, ring->axis);
    compute(rank_, c);
    return true;
  }
  const std::int64_t stride = rank_.job.program.grid.world() / rank_.job.plan.pp;
  const std::int64_t peer = rank_.rank + (c.peer - rank_.commands.rank) * stride;
  const bool backward = c.action.kind != ActionKind::forward;
  const auto bytes = static_cast<std::size_t>(c.bytes);
  const std::span<std::byte> buffer(rank_.memory(c.buffer), bytes);
  if (c.kind == CommandKind::receive) {
    return world_.try_receive({peer, rank_.rank, backward}, tag_of(rank_, c), buffer);
  }
  const std::span<std::byte> message(rank_.memory(c.offset), bytes);
  if (c.kind == CommandKind::take) {
    std::ranges::copy(buffer, message.begin());
    return true;
  }
  return world_.try_send({rank_.rank, peer, backward}, tag_of(rank_, c), message, buffer);
}

bool CpuBackend::meet(Entry& entry, Axis axis) {
  const std::vector<std::int64_t> group = rank_.group(axis);
  const auto position = std::ranges::find(group, rank_.rank) - group.begin();
  const MeetingKey key{.first_rank = group.front(),
                       .axis = axis,
                       .stream = entry.command->op->stream,
                       .count = meetings_[{axis, entry.command->op->stream}]++};
  entry.meeting = world_.arrive(key, static_cast<std::size_t>(position), group.size(),
                                {entry.command, &rank_}, together);
  return world_.done(*entry.meeting);
}

std::string CpuBackend::heads() const {
  std::string text;
  for (const Queue& lane : lanes_) {
    if (lane.ended == lane.entries.size()) continue;
    const Entry& head = entries_[lane.entries[lane.ended]];
    if (!ready(head)) continue;
    if (!text.empty()) text += " and ";
    text += describe(rank_, *head.command);
  }
  return text;
}

}  // namespace qplan
