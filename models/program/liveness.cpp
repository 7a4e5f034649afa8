#include "models/program/liveness.h"

#include <algorithm>
#include <array>
#include <utility>

#include "models/program/step_program.h"

namespace qplan {
namespace {

constexpr std::int32_t kNever = -1;

// For each op: the last op of every stream that is known to have ended when this op starts.
using Seen = std::array<std::int32_t, kStreamCount>;

std::vector<Seen> completion(const OpList& ops) {
  std::vector<Seen> seen(ops.size());
  Seen none;
  none.fill(kNever);
  std::array<Seen, kStreamCount> of_stream;
  of_stream.fill(none);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    Seen now = of_stream[static_cast<std::size_t>(index(op.stream))];
    for (std::size_t s = 0, left = op.after.bits; left != 0; ++s, left >>= 1) {
      if ((left & 1U) == 0) continue;
      for (std::size_t t = 0; t < kStreamCount; ++t) now[t] = std::max(now[t], of_stream[s][t]);
    }
    seen[i] = now;
    now[static_cast<std::size_t>(index(op.stream))] = static_cast<std::int32_t>(i);
    of_stream[static_cast<std::size_t>(index(op.stream))] = now;
  }
  return seen;
}

// What one list does to one slot.
struct Usage {
  std::int32_t first_write = kNever, first_read = kNever, last_access = kNever;
  StreamSet streams;  // that access it
  Seen last_on{};     // last access on each of them
};

std::vector<Usage> usages(const Block& block, const OpList& ops) {
  std::vector<Usage> all(block.slots.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto at = static_cast<std::int32_t>(i);
    const auto touch = [&](SlotId id) -> Usage& {
      Usage& u = all[static_cast<std::size_t>(id)];
      u.last_access = at;
      u.streams = u.streams | only(ops[i].stream);
      u.last_on[static_cast<std::size_t>(index(ops[i].stream))] = at;
      return u;
    };
    for (const SlotId id : ops[i].reads) {
      Usage& u = touch(id);
      if (u.first_read == kNever) u.first_read = at;
    }
    for (const SlotId id : ops[i].writes) {
      Usage& u = touch(id);
      if (u.first_write == kNever) u.first_write = at;
    }
  }
  return all;
}

// Every framework here allocates on the compute stream, whoever writes the buffer.
constexpr Stream kAllocator = Stream::compute;

// Before which op a slot whose accesses are `u` may be reused by its allocating stream.
std::int32_t free_place(const Usage& u, const OpList& ops, const std::vector<Seen>& seen) {
  const auto size = static_cast<std::int32_t>(ops.size());
  const bool aside = (u.streams.bits & ~only(kAllocator).bits) != 0;
  for (std::int32_t i = u.last_access + 1; i < size; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (ops[at].stream != kAllocator) continue;
    bool waited = true;
    for (std::size_t s = 0; aside && s < kStreamCount && waited; ++s) {
      const auto stream = static_cast<Stream>(s);
      if (stream != kAllocator && u.streams.has(stream)) waited = u.last_on[s] <= seen[at][s];
    }
    if (waited) return i;
  }
  return size;
}

// The slot holds data when this list starts: it reads before it writes.
bool arrives(const Usage& u) {
  return u.first_read != kNever && (u.first_write == kNever || u.first_read <= u.first_write);
}

// Does some later list read the slot before any of them writes it anew?
bool kept(std::size_t slot, std::size_t list, const std::vector<std::vector<Usage>>& all) {
  for (std::size_t later = list + 1; later < all.size(); ++later) {
    const Usage& u = all[later][slot];
    if (arrives(u)) return true;
    if (u.first_write != kNever) return false;
  }
  return false;
}

// What events are in order of: the op, frees first, the slot.
std::uint64_t place_of(const LiveEvent& event) {
  return (static_cast<std::uint64_t>(event.at) << 32U) +
         (static_cast<std::uint64_t>(event.allocate) << 16U) +
         static_cast<std::uint64_t>(event.slot);
}

}  // namespace

std::vector<std::vector<LiveEvent>> liveness(const Block& block,
                                             const std::vector<const OpList*>& lists) {
  std::vector<std::vector<Usage>> all;
  for (const OpList* ops : lists) all.push_back(usages(block, *ops));
  std::vector<std::vector<LiveEvent>> result(lists.size());
  for (std::size_t list = 0; list < lists.size(); ++list) {
    const OpList& ops = *lists[list];
    std::vector<LiveEvent>& events = result[list];
    events.reserve(2 * block.slots.size());
    const std::vector<Seen> seen = completion(ops);
    for (std::size_t id = 0; id < block.slots.size(); ++id) {
      const Slot& slot = block.slots[id];
      const Usage& u = all[list][id];
      if (is_persistent(slot.storage) || u.last_access == kNever) continue;
      const bool arrived = arrives(u);
      if (!arrived) events.push_back({u.first_write, static_cast<SlotId>(id), true});
      const bool leaves = slot.storage == Storage::wire && !arrived;
      const auto& stay = block.until_backward_ends;
      const bool stays =
          list > 0 && std::find(stay.begin(), stay.end(), static_cast<SlotId>(id)) != stay.end();
      if (leaves || stays || kept(id, list, all)) continue;
      events.push_back({free_place(u, ops, seen), static_cast<SlotId>(id), false});
    }
    std::sort(events.begin(), events.end(),
              [](const LiveEvent& a, const LiveEvent& b) { return place_of(a) < place_of(b); });
  }
  return result;
}

StepLiveness step_liveness(const Block& block, BackwardForm form) {
  StepLiveness live;
  if (form != BackwardForm::whole) {
    const BackwardSplit parts = split_backward(block);
    auto events =
        liveness(block, {&block.forward, &parts.input, &parts.weight, &block.norm, &block.update});
    live = {std::move(events[0]), {},
            std::move(events[1]), std::move(events[2]),
            std::move(events[3]), std::move(events[4])};
  }
  if (form != BackwardForm::split) {
    auto events = liveness(block, {&block.forward, &block.backward, &block.norm, &block.update});
    live.forward = std::move(events[0]);
    live.backward = std::move(events[1]);
    live.norm = std::move(events[2]);
    live.update = std::move(events[3]);
  }
  return live;
}

MemoryUse memory_use(const Block& block, const std::vector<LiveEvent>& events) {
  MemoryUse use;
  for (const LiveEvent& event : events) {
    const Slot& slot = block.slots[static_cast<std::size_t>(event.slot)];
    const Bytes change = event.allocate ? slot.bytes() : -slot.bytes();
    use.net += change;
    if (slot.storage == Storage::fresh_gradient) use.parts.gradients += change;
    if (slot.storage == Storage::wire && slot.flow == Flow::weights) use.parts.gathered += change;
    if (use.net > use.peak) {
      use.peak = use.net;
      use.at_peak = use.parts;
    }
  }
  return use;
}

}  // namespace qplan
