#include "models/program/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>

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

}  // namespace

int rank_of_stage(ScheduleKind kind, int pp, int stage) {
  if (kind == ScheduleKind::zbv || kind == ScheduleKind::dualpipe) {
    return stage < pp ? stage : 2 * pp - 1 - stage;
  }
  return stage % pp;
}

bool splits_backward(ScheduleKind kind) {
  return kind == ScheduleKind::zb_h1 || kind == ScheduleKind::zbv || kind == ScheduleKind::dualpipe;
}

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
    // DualPipe in its V form ("DualPipeV", cut in half): the V placement without duplicated
    // weights.
    case ScheduleKind::dualpipe:
    case ScheduleKind::zbv:
      lists = zbv(s.pp, s.microbatches);
      break;
  }
  for (auto& list : lists) mark_edges(list);
  return lists;
}

int microbatches_per_period(const ScheduleShape& s) {
  return s.kind == ScheduleKind::interleaved ? s.pp : 1;
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
    case ScheduleKind::gpipe:
    case ScheduleKind::zbv:
    case ScheduleKind::dualpipe:
      return {};
  }
  return {};
}

std::string to_string(const Action& a) {
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

std::string schedule_fault(const ScheduleShape& s, const Lists& schedule) {
  const int chunks = s.kind == ScheduleKind::interleaved                                 ? s.vpp
                     : (s.kind == ScheduleKind::zbv || s.kind == ScheduleKind::dualpipe) ? 2
                                                                                         : 1;
  const int stages = s.pp * chunks;
  std::map<std::pair<int, int>, int> progress;  // (stage, microbatch) -> 1 F, 2 B or I, 3 W
  std::vector<std::size_t> next(schedule.size(), 0);
  const auto get = [&](int stage, int mb) {
    const auto it = progress.find({stage, mb});
    return it == progress.end() ? 0 : it->second;
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t r = 0; r < schedule.size(); ++r) {
      while (next[r] < schedule[r].size()) {
        const Action& a = schedule[r][next[r]];
        if (a.stage < 0 || a.stage >= stages || a.microbatch < 0 ||
            a.microbatch >= s.microbatches ||
            rank_of_stage(s.kind, s.pp, a.stage) != static_cast<int>(r)) {
          return fmt::format("rank {} runs {} which is not its own", r, to_string(a));
        }
        const int have = get(a.stage, a.microbatch);
        bool ready = false;
        int becomes = 0;
        if (a.kind == ActionKind::forward) {
          if (have != 0) return fmt::format("rank {} runs {} twice", r, to_string(a));
          ready = a.stage == 0 || get(a.stage - 1, a.microbatch) >= 1;
          becomes = 1;
        } else if (a.kind == ActionKind::backward_weight) {
          if (have != 2) return fmt::format("rank {} runs {} out of turn", r, to_string(a));
          ready = true;
          becomes = 3;
        } else {
          if (have != 1) return fmt::format("rank {} runs {} out of turn", r, to_string(a));
          ready = a.stage == stages - 1 || get(a.stage + 1, a.microbatch) >= 2;
          becomes = a.kind == ActionKind::backward ? 3 : 2;
        }
        if (!ready) break;
        progress[{a.stage, a.microbatch}] = becomes;
        ++next[r];
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < schedule.size(); ++r) {
    if (next[r] < schedule[r].size()) {
      return fmt::format("rank {} waits for ever at {}", r, to_string(schedule[r][next[r]]));
    }
  }
  for (int stage = 0; stage < stages; ++stage) {
    for (int mb = 0; mb < s.microbatches; ++mb) {
      if (get(stage, mb) != 3) return fmt::format("stage {} never ends microbatch {}", stage, mb);
    }
  }
  return "";
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
