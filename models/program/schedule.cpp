#include "models/program/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>

#include "models/error.h"

namespace qplan {
namespace {

using Lists = std::vector<std::vector<Action>>;

Lists gpipe(int pp, int m) {
  Lists lists(static_cast<std::size_t>(pp));
  for (int r = 0; r < pp; ++r) {
    auto& list = lists[static_cast<std::size_t>(r)];
    for (int i = 0; i < m; ++i) list.push_back({ActionKind::forward, r, i});
    for (int i = 0; i < m; ++i) list.push_back({ActionKind::backward, r, i});
  }
  return lists;
}

// `extra` warm-up forwards let each steady forward run beside a backward that is ready already.
Lists one_f_one_b(int pp, int m, int extra) {
  Lists lists(static_cast<std::size_t>(pp));
  for (int r = 0; r < pp; ++r) {
    auto& list = lists[static_cast<std::size_t>(r)];
    const int warm_up = std::min(pp - r - 1 + extra, m);
    for (int i = 0; i < warm_up; ++i) list.push_back({ActionKind::forward, r, i});
    for (int i = warm_up; i < m; ++i) {
      list.push_back(
          {.kind = ActionKind::forward, .stage = r, .microbatch = i, .paired = extra > 0});
      list.push_back({ActionKind::backward, r, i - warm_up});
    }
    for (int i = m - warm_up; i < m; ++i) list.push_back({ActionKind::backward, r, i});
  }
  return lists;
}

// Chunk and microbatch of the k-th forward (or backward) of a rank: groups of `pp` microbatches go
// through chunk 0, then chunk 1, ...; backward takes the chunks in reverse.
struct Turn {
  int chunk, microbatch;
};
Turn turn(int k, int pp, int vpp, int m, bool forward) {
  const int group = k / (pp * vpp);
  const int size = std::min(pp, m - group * pp);  // the last group may be short
  const int within = k - group * pp * vpp;
  const int chunk = within / size;
  return {forward ? chunk : vpp - 1 - chunk, group * pp + within % size};
}

int interleaved_warm_up(int pp, int vpp, int m, int rank, int extra) {
  return std::min(2 * (pp - rank - 1) + (vpp - 1) * pp + extra, m * vpp);
}

Lists interleaved(int pp, int vpp, int m, int extra) {
  Lists lists(static_cast<std::size_t>(pp));
  const int total = m * vpp;
  for (int r = 0; r < pp; ++r) {
    auto& list = lists[static_cast<std::size_t>(r)];
    const auto add = [&](ActionKind kind, int k) {
      const Turn t = turn(k, pp, vpp, m, kind == ActionKind::forward);
      list.push_back({kind, t.chunk * pp + r, t.microbatch});
    };
    const int warm_up = interleaved_warm_up(pp, vpp, m, r, extra);
    for (int k = 0; k < warm_up; ++k) add(ActionKind::forward, k);
    for (int k = warm_up; k < total; ++k) {
      add(ActionKind::forward, k);
      list.back().paired = extra > 0;
      add(ActionKind::backward, k - warm_up);
    }
    for (int k = total - warm_up; k < total; ++k) add(ActionKind::backward, k);
  }
  return lists;
}

// ZB-H1: 1F1B whose weight gradients wait: rank r lets r of them pile up, which fills the
// cool-down.
Lists zb_h1(int pp, int m) {
  Lists lists(static_cast<std::size_t>(pp));
  for (int r = 0; r < pp; ++r) {
    auto& list = lists[static_cast<std::size_t>(r)];
    const int warm_up = std::min(pp - r - 1, m);
    int next_weight = 0;
    for (int i = 0; i < warm_up; ++i) list.push_back({ActionKind::forward, r, i});
    for (int i = warm_up; i < m; ++i) {
      list.push_back({ActionKind::forward, r, i});
      list.push_back({ActionKind::backward_input, r, i - warm_up});
      if (i - warm_up >= r) list.push_back({ActionKind::backward_weight, r, next_weight++});
    }
    for (int i = m - warm_up; i < m; ++i) {
      list.push_back({ActionKind::backward_input, r, i});
      if (next_weight <= i) list.push_back({ActionKind::backward_weight, r, next_weight++});
    }
    while (next_weight < m) list.push_back({ActionKind::backward_weight, r, next_weight++});
  }
  return lists;
}

// ZB-V (two chunks a rank in a V: stages r and 2pp-1-r), found greedily: whenever a rank is free it
// runs a backward-input that is ready, else a forward within its memory (2pp chunks, the 1F1B
// bound), else a weight gradient; unit times F = B = W, as in the paper.
Lists zbv(int pp, int m) {
  const int stages = 2 * pp;
  constexpr int kNotYet = 1 << 28;
  const auto at = [m](int stage, int mb) {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(m) +
           static_cast<std::size_t>(mb);
  };
  const auto cells = static_cast<std::size_t>(stages) * static_cast<std::size_t>(m);
  std::vector<int> forward_done(cells, kNotYet), backward_done(cells, kNotYet);
  Lists lists(static_cast<std::size_t>(pp));
  struct Rank {
    std::array<int, 2> f{}, b{}, w{};  // next microbatch of each chunk
    int in_flight = 0;
  };
  std::vector<Rank> ranks(static_cast<std::size_t>(pp));
  const auto stage_of = [pp](int r, int chunk) { return chunk == 0 ? r : 2 * pp - 1 - r; };
  int left = 3 * stages * m;
  for (int clock = 0; left > 0; ++clock) {
    for (int r = 0; r < pp; ++r) {
      Rank& rank = ranks[static_cast<std::size_t>(r)];
      auto& list = lists[static_cast<std::size_t>(r)];
      const auto ready_b = [&](int c) {
        const int s = stage_of(r, c), i = rank.b[static_cast<std::size_t>(c)];
        if (i >= m || forward_done[at(s, i)] > clock) return false;
        return s == stages - 1 || backward_done[at(s + 1, i)] <= clock;
      };
      const auto ready_f = [&](int c) {
        const int s = stage_of(r, c), i = rank.f[static_cast<std::size_t>(c)];
        // Chunk 0 leaves room for the chunk 1 forwards that will free memory.
        const int limit = c == 0 ? 2 * pp - 1 : 2 * pp;
        if (i >= m || rank.in_flight >= limit) return false;
        return s == 0 || forward_done[at(s - 1, i)] <= clock;
      };
      bool done = false;
      for (const int c : {1, 0}) {
        if (done || !ready_b(c)) continue;
        const auto k = static_cast<std::size_t>(c);
        list.push_back({ActionKind::backward_input, stage_of(r, c), rank.b[k]});
        backward_done[at(stage_of(r, c), rank.b[k]++)] = clock + 1;
        done = true;
      }
      for (const int c : {1, 0}) {
        if (done || !ready_f(c)) continue;
        const auto k = static_cast<std::size_t>(c);
        list.push_back({ActionKind::forward, stage_of(r, c), rank.f[k]});
        forward_done[at(stage_of(r, c), rank.f[k]++)] = clock + 1;
        ++rank.in_flight;
        done = true;
      }
      for (const int c : {1, 0}) {
        const auto k = static_cast<std::size_t>(c);
        if (done || rank.w[k] >= rank.b[k]) continue;
        list.push_back({ActionKind::backward_weight, stage_of(r, c), rank.w[k]++});
        --rank.in_flight;
        done = true;
      }
      if (done) --left;
    }
  }
  return lists;
}

// One rank of DualPipe while its list is dealt out. Microbatches reach it from both ends: soon from
// the nearer one, into its stage `near`, and late from the other, into `far`.
class DualPipeRank {
 public:
  DualPipeRank(int pp, int rank) : pp_(pp) {
    const int down = rank, up = 2 * pp - 1 - rank;
    const bool nearer_to_first = rank < pp / 2;
    near.stage = nearer_to_first ? down : up;
    far.stage = nearer_to_first ? up : down;
  }

  struct Way {
    int stage = 0, forwards = 0, backwards = 0;
  };
  Way near, far;
  std::vector<Action> list;

  void forward(Way& way) { add(ActionKind::forward, way, way.forwards++); }
  void backward(Way& way) { add(ActionKind::backward, way, way.backwards++); }
  void pair(Way& forwards, Way& backwards) {
    forward(forwards);
    list.back().paired = true;
    backward(backwards);
  }
  void input(Way& way) {
    add(ActionKind::backward_input, way, way.backwards++);
    waiting_.push_back(list.back());
  }
  // The oldest weight gradient that waits.
  void weight() {
    list.push_back(waiting_.front());
    list.back().kind = ActionKind::backward_weight;
    waiting_.pop_front();
  }

 private:
  void add(ActionKind kind, const Way& way, int nth) {
    list.push_back({kind, way.stage, 2 * nth + (way.stage < pp_ ? 0 : 1)});
  }

  int pp_;
  std::deque<Action> waiting_;
};

// How far DualPipe's rank is from the pipeline's nearer end, and from its middle.
struct DualPipePlace {
  int depth, inner;
};
constexpr DualPipePlace dualpipe_place(int pp, int rank) {
  const int depth = std::min(rank, pp - 1 - rank);
  return {depth, pp / 2 - 1 - depth};
}

// DualPipe (3da1bbe, DualPipe.step), rank by rank; the ranks of one depth mirror each other.
Lists dualpipe(int pp, int m) {
  QPLAN_CHECK(pp % 2 == 0 && m % 2 == 0 && m >= 2 * pp,
              "dualpipe's rules hold before its schedule is built");
  Lists lists;
  for (int r = 0; r < pp; ++r) {
    const auto [depth, inner] = dualpipe_place(pp, r);
    DualPipeRank rank(pp, r);
    auto &near = rank.near, &far = rank.far;
    // Warm-up: near alone until far arrives, then both.
    for (int i = 0; i < 2 * inner; ++i) rank.forward(near);
    for (int i = 0; i <= depth; ++i) {
      rank.forward(near);
      rank.forward(far);
    }
    // Far comes back: gradients are sent on first, weights get theirs while the next forward
    // arrives.
    for (int i = 0; i < inner; ++i) {
      rank.input(far);
      rank.weight();
      rank.forward(far);
    }
    // Steady: each way's forward beside the other way's backward.
    const int steady = m / 2 - pp + depth + 1;
    for (int i = 0; i < steady; ++i) {
      if (i == 0 && inner == 0) {
        // The middle starts apart, so that the forward is sent on sooner.
        rank.forward(near);
        rank.backward(far);
      } else {
        rank.pair(near, far);
      }
      rank.pair(far, near);
    }
    // Cool-down: near has no forwards left, then far has none.
    for (int i = 0; i < inner; ++i) {
      rank.backward(far);
      rank.pair(far, near);
    }
    // The later half of the last backwards puts weight gradients off, to fill the waits and the
    // end.
    for (int i = 0; i < 2 * (depth + 1); ++i) {
      auto& way = i % 2 == 0 ? far : near;
      i <= depth ? rank.backward(way) : rank.input(way);
    }
    for (int i = 0; i < inner; ++i) {
      rank.weight();
      rank.input(near);
    }
    for (int i = 0; i <= depth; ++i) rank.weight();
    lists.push_back(std::move(rank.list));
  }
  return lists;
}

// Marks each stage's first forward and last backward (or weight gradient) of the step.
void mark_edges(std::vector<Action>& list) {
  std::map<int, std::size_t> last;
  std::map<int, bool> seen;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Action& a = list[i];
    if (a.kind == ActionKind::forward) {
      a.first = !seen[a.stage];
      seen[a.stage] = true;
    } else if (a.kind != ActionKind::backward_input) {
      last[a.stage] = i;
    }
  }
  for (const auto& [stage, place] : last) list[place].last = true;
}

// Moves the reductions of 1f1b and interleaved from beside the last backwards to behind them.
void reduce_whole_stages(std::vector<Action>& list, const ScheduleShape& s, int rank) {
  if (s.kind == ScheduleKind::one_f_one_b && rank == 0) return;
  const int delay = s.kind == ScheduleKind::interleaved ? rank : 0;
  std::vector<Action> result;
  std::deque<std::pair<int, int>> waiting;  // backwards to go, stage
  const auto reduce = [&] {
    result.push_back({.kind = ActionKind::reduce, .stage = waiting.front().second});
    waiting.pop_front();
  };
  for (Action a : list) {
    const bool backward = a.kind == ActionKind::backward;
    for (auto& [left, stage] : waiting) left -= static_cast<int>(backward);
    if (a.last) waiting.emplace_back(delay, a.stage);
    a.last = false;
    result.push_back(a);
    while (!waiting.empty() && waiting.front().first <= 0 && backward) reduce();
  }
  while (!waiting.empty()) reduce();
  for (auto a = result.rbegin(); a != result.rend() && a->kind == ActionKind::reduce; ++a) {
    a->last = true;
  }
  list = std::move(result);
}

}  // namespace

Lists build_schedule(const ScheduleShape& s) {
  Lists lists;
  const int extra = s.pairs ? 1 : 0;
  switch (s.kind) {
    case ScheduleKind::gpipe:
      lists = gpipe(s.pp, s.microbatches);
      break;
    case ScheduleKind::one_f_one_b:
      lists = one_f_one_b(s.pp, s.microbatches, extra);
      break;
    case ScheduleKind::interleaved:
      lists = interleaved(s.pp, s.vpp, s.microbatches, extra);
      break;
    case ScheduleKind::zb_h1:
      lists = zb_h1(s.pp, s.microbatches);
      break;
    case ScheduleKind::zbv:
      lists = zbv(s.pp, s.microbatches);
      break;
    case ScheduleKind::dualpipe:
      lists = dualpipe(s.pp, s.microbatches);
      break;
  }
  for (std::size_t r = 0; r < lists.size(); ++r) {
    mark_edges(lists[r]);
    if (s.whole_reductions) reduce_whole_stages(lists[r], s, static_cast<int>(r));
  }
  return lists;
}

int microbatches_per_period(const ScheduleShape& s) {
  if (s.kind == ScheduleKind::interleaved) return s.pp;
  return s.kind == ScheduleKind::dualpipe ? 2 : 1;  // one a direction
}

std::vector<std::vector<Action>> forward_schedule(const ScheduleShape& shape) {
  std::vector<std::vector<Action>> lists = build_schedule(shape);
  for (std::vector<Action>& list : lists) {
    std::erase_if(list, [](const Action& a) { return a.kind != ActionKind::forward; });
    for (Action& a : list) a.first = a.last = a.paired = false;
  }
  return lists;
}

SteadyPart steady_part(const ScheduleShape& s, int rank) {
  const int m = s.microbatches;
  const int extra = s.pairs ? 1 : 0;
  switch (s.kind) {
    case ScheduleKind::one_f_one_b: {
      const int warm_up = std::min(s.pp - rank - 1 + extra, m);
      // All ranks share the period count of the first one, so that snapshots line up.
      const int common = std::max(m - (s.pp - 1) - extra, 0);
      return {warm_up, 2, common};
    }
    case ScheduleKind::interleaved: {
      if (m % s.pp != 0) return {};
      const int warm_up = interleaved_warm_up(s.pp, s.vpp, m, rank, extra);
      const int deepest = interleaved_warm_up(s.pp, s.vpp, m, 0, extra);
      const int common = std::max(m * s.vpp - deepest, 0) / (s.pp * s.vpp);
      return {warm_up, std::int64_t{2} * s.pp * s.vpp, common};
    }
    case ScheduleKind::zb_h1: {
      const int warm_up = std::min(s.pp - rank - 1, m);
      // Before its first weight gradient rank r runs r pairs of forward and backward-input.
      const int common = std::max(m - (s.pp - 1), 0);
      return {warm_up + 2 * rank, 3, common};
    }
    case ScheduleKind::dualpipe: {
      const auto [depth, inner] = dualpipe_place(s.pp, rank);
      // Two pairs a period. The first is left to the warm-up: in the middle it is not paired.
      return {5 * inner + 2 * (depth + 1) + 4, 4, m / 2 - s.pp};
    }
    case ScheduleKind::gpipe:
    case ScheduleKind::zbv:
      return {};
  }
  return {};
}

std::string to_string(const Action& a) {
  if (a.kind == ActionKind::reduce) return fmt::format("{}R", a.stage);
  constexpr std::string_view letters = "FBIW";
  return fmt::format("{}{}{}", a.stage, letters[static_cast<std::size_t>(a.kind)], a.microbatch);
}

std::string to_string(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& a : actions) {
    if (!text.empty()) text += ' ';
    text += to_string(a);
  }
  return text;
}

int max_in_flight(const std::vector<Action>& actions) {
  int now = 0, most = 0;
  for (const Action& a : actions) {
    if (a.kind == ActionKind::forward) most = std::max(most, ++now);
    if (a.kind == ActionKind::backward || a.kind == ActionKind::backward_weight) --now;
  }
  return most;
}

}  // namespace qplan
