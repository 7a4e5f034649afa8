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
  bool backward = false;
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
      add(op, hand.backward);
    }
    if (other.unwaited) join(other);
    for (; !hand.done() && communicates(hand.ops[hand.next]); ++hand.next) {
      add(hand.ops[hand.next], hand.backward);
      hand.unwaited = true;
    }
  }

 private:
  void add(const Op& op, bool backward) {
    merged_.ops.push_back(op);
    merged_.from_backward.push_back(backward);
  }
  void join(Hand& hand) {
    add({.work = Join{}, .stream = Stream::compute, .after = only(Stream::model_comm)}, false);
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
  Hand f{forward, false}, b{backward, true};
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
