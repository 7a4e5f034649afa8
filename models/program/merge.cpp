#include "models/program/merge.h"

#include <algorithm>

namespace qplan {
namespace {

bool communicates(const Op& op) {
  return op.stream == Stream::model_comm;
}

// One list while it is being dealt out.
struct Hand {
  const OpList& ops;
  MergedFrom from = MergedFrom::forward;
  std::size_t next = 0;
  bool unwaited = false;  // its last communication has not been waited for

  [[nodiscard]] bool done() const { return next == ops.size(); }
};

class Dealer {
 public:
  MergedOps take() { return std::move(merged_); }

  // The next piece of `hand`: work up to its communication, then a wait for the other list's, then
  // its own communication, which the other list's next piece will hide.
  void piece(Hand& hand, Hand& other) {
    if (hand.unwaited) join(hand);
    while (!hand.done() && !communicates(hand.ops[hand.next])) {
      Op op = hand.ops[hand.next++];
      // What it would wait for on model_comm is its own communication, waited for above.
      op.after.bits = static_cast<std::uint8_t>(op.after.bits & ~only(Stream::model_comm).bits);
      add(op, hand.from);
    }
    if (other.unwaited) join(other);
    for (; !hand.done() && communicates(hand.ops[hand.next]); ++hand.next) {
      add(hand.ops[hand.next], hand.from);
      hand.unwaited = true;
    }
  }

 private:
  void add(const Op& op, MergedFrom from) {
    merged_.ops.push_back(op);
    merged_.from.push_back(from);
  }
  void join(Hand& hand) {
    add({.work = Join{}, .stream = Stream::compute, .after = only(Stream::model_comm)},
        MergedFrom::neither);
    hand.unwaited = false;
  }

  MergedOps merged_;
};

bool is_layer(const Run& run) {
  return run.shape.kind == BlockKind::decoder;
}

}  // namespace

MergedOps merge_passes(const OpList& forward, const OpList& backward) {
  Dealer dealer;
  Hand f{forward, MergedFrom::forward}, b{backward, MergedFrom::backward};
  // A layer's backward begins with an exchange, its forward with attention: in this order each of
  // the four exchanges has work beside it (combine's backward and attention, dispatch and experts'
  // backward, dispatch's backward and experts, combine and attention's backward), as in
  // megatron-core's combined_1f1b schedule.
  while (!f.done() || !b.done()) {
    if (!b.done()) dealer.piece(b, f);
    if (!f.done()) dealer.piece(f, b);
  }
  // Nothing is left unwaited for the next block.
  if (f.unwaited) dealer.piece(f, b);
  if (b.unwaited) dealer.piece(b, f);
  return dealer.take();
}

MemoryUse merged_memory_use(const Block& forward, const Block& backward, BackwardForm form) {
  struct Side {
    const Block& block;
    std::vector<LiveEvent> events;
    std::size_t op = 0, event = 0;
  };
  Side f{forward, step_liveness(forward, form).forward};
  Side b{backward, step_liveness(backward, form).backward};
  MemoryUse use;
  const auto until = [&use](Side& side, std::size_t at) {
    const std::size_t first = side.event;
    while (side.event < side.events.size() &&
           static_cast<std::size_t>(side.events[side.event].at) <= at) {
      ++side.event;
    }
    const auto begin = side.events.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = side.events.begin() + static_cast<std::ptrdiff_t>(side.event);
    use = then(use, memory_use(side.block, {begin, end}));
  };
  for (const MergedFrom from : merge_passes(forward.forward, backward.backward).from) {
    if (from == MergedFrom::neither) continue;
    Side& side = from == MergedFrom::forward ? f : b;
    until(side, side.op++);
  }
  until(f, f.op + 1);
  until(b, b.op + 1);
  return use;
}

std::vector<PairedRun> pair_stages(const StageRuns& forward, const StageRuns& backward) {
  std::vector<PairedRun> pairs;
  // Runs are named by their place in the caller's lists, which outlive the result.
  std::vector<const Run*> f, b;
  for (const Run& run : forward) f.push_back(&run);
  for (auto it = backward.rbegin(); it != backward.rend(); ++it) b.push_back(&*it);
  std::size_t i = 0, j = 0;
  for (; j < b.size() && !is_layer(*b[j]); ++j)
    pairs.push_back({nullptr, &b[j]->shape, b[j]->count});
  for (; i < f.size() && !is_layer(*f[i]); ++i)
    pairs.push_back({&f[i]->shape, nullptr, f[i]->count});
  int used_f = 0, used_b = 0;
  while (i < f.size() && j < b.size() && is_layer(*f[i]) && is_layer(*b[j])) {
    const int n = std::min(f[i]->count - used_f, b[j]->count - used_b);
    pairs.push_back({&f[i]->shape, &b[j]->shape, n});
    used_f += n;
    used_b += n;
    if (used_f == f[i]->count) {
      ++i;
      used_f = 0;
    }
    if (used_b == b[j]->count) {
      ++j;
      used_b = 0;
    }
  }
  for (; i < f.size(); ++i, used_f = 0) {
    pairs.push_back({&f[i]->shape, nullptr, f[i]->count - used_f});
  }
  for (; j < b.size(); ++j, used_b = 0) {
    pairs.push_back({nullptr, &b[j]->shape, b[j]->count - used_b});
  }
  return pairs;
}

}  // namespace qplan
