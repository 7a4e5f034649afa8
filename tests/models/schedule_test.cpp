#include "models/program/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace qplan;

namespace {

// Every schedule of a grid of sizes.
std::vector<ScheduleShape> grid() {
  std::vector<ScheduleShape> shapes;
  for (int pp = 1; pp <= 8; ++pp) {
    for (const int m : {1, 2, 3, 4, 5, 8, 12, 16, 17, 24}) {
      shapes.push_back({ScheduleKind::gpipe, pp, 1, m});
      shapes.push_back({ScheduleKind::one_f_one_b, pp, 1, m});
      shapes.push_back({ScheduleKind::one_f_one_b, pp, 1, m, true});
      if (pp > 1) shapes.push_back({ScheduleKind::one_f_one_b, pp, 1, m, m % 2 == 0, true});
      shapes.push_back({ScheduleKind::zb_h1, pp, 1, m});
      shapes.push_back({ScheduleKind::zbv, pp, 2, m});
      // Fed from both ends (rules dualpipe_pairs and schedule_microbatches).
      if (pp % 2 == 0 && m % 2 == 0 && m >= 2 * pp) {
        shapes.push_back({ScheduleKind::dualpipe, pp, 1, m, true});
      }
      // Interleaving works in groups of pp (rule interleaved_microbatches).
      for (int vpp = 2; vpp <= 4 && m % pp == 0; ++vpp) {
        shapes.push_back({ScheduleKind::interleaved, pp, vpp, m});
        shapes.push_back({ScheduleKind::interleaved, pp, vpp, m, true});
        if (pp > 1) shapes.push_back({ScheduleKind::interleaved, pp, vpp, m, vpp == 2, true});
      }
    }
  }
  return shapes;
}

std::string describe(const ScheduleShape& s) {
  return std::string(to_word(s.kind)) + " pp" + std::to_string(s.pp) + " vpp" +
         std::to_string(s.vpp) + " m" + std::to_string(s.microbatches) + (s.pairs ? " pairs" : "") +
         (s.whole_reductions ? " whole reductions" : "");
}

}  // namespace

TEST_CASE("the last 1F1B stage never holds more than one microbatch") {
  const auto schedule = build_schedule({ScheduleKind::one_f_one_b, 4, 1, 8});
  CHECK(max_in_flight(schedule[3]) == 1);
  CHECK(to_string(schedule[3]) ==
        "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7");
}

TEST_CASE("the first 1F1B stage warms up with pp - 1 forwards") {
  const auto schedule = build_schedule({ScheduleKind::one_f_one_b, 4, 1, 5});
  CHECK(to_string(schedule[0]) == "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0B2 0B3 0B4");
}

TEST_CASE("gpipe runs all forwards before any backward") {
  const auto schedule = build_schedule({ScheduleKind::gpipe, 2, 1, 3});
  CHECK(to_string(schedule[1]) == "1F0 1F1 1F2 1B0 1B1 1B2");
}

TEST_CASE("interleaving takes pp microbatches through each chunk in turn") {
  const auto schedule = build_schedule({ScheduleKind::interleaved, 2, 2, 4});
  // Rank 0 holds stages 0 and 2; backward takes the later chunk first.
  CHECK(to_string(schedule[0]) ==
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3");
}

TEST_CASE("zb-h1 fills the cool-down with weight gradients") {
  const auto schedule = build_schedule({ScheduleKind::zb_h1, 2, 1, 3});
  CHECK(to_string(schedule[1]) == "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2");
}

TEST_CASE("dualpipe feeds two ranks from both ends, and defers the last weight gradient") {
  // Rank 0 has piece 0 for the even microbatches (stage 0) and piece 1 for the odd ones (stage 3).
  const auto schedule = build_schedule({ScheduleKind::dualpipe, 2, 1, 4, true});
  CHECK(to_string(schedule[0]) == "0F0 3F1 0F2 3B1 3F3 0B0 3B3 0I2 0W2");
  CHECK(to_string(schedule[1]) == "2F1 1F0 2F3 1B0 1F2 2B1 1B2 2I3 2W3");
  // The middle of the pipeline runs its first steady forward and backward apart, the rest in pairs.
  std::string paired;
  for (const Action& a : schedule[0]) paired += a.paired ? to_string(a) + " " : "";
  CHECK(paired == "3F3 ");
}

TEST_CASE("dualpipe's outer rank fills its wait for the other end with weight gradients") {
  const auto schedule = build_schedule({ScheduleKind::dualpipe, 4, 1, 8, true});
  CHECK(to_string(schedule[0]) ==
        "0F0 0F2 0F4 7F1 7I1 7W1 7F3 0F6 7B3 7F5 0B0 7B5 7F7 0B2 7B7 0I4 0W4 0I6 0W6");
  CHECK(to_string(schedule[1]) ==
        "1F0 6F1 1F2 6F3 1F4 6B1 6F5 1B0 1F6 6B3 6F7 1B2 6B5 1B4 6I7 1I6 6W7 1W6");
}

TEST_CASE("dualpipe looks the same from both ends") {
  for (const ScheduleShape& s : grid()) {
    if (s.kind != ScheduleKind::dualpipe) continue;
    const auto schedule = build_schedule(s);
    for (int r = 0; r < s.pp / 2; ++r) {
      std::vector<Action> mirrored = schedule[static_cast<std::size_t>(s.pp - 1 - r)];
      for (Action& a : mirrored) {
        a.stage = (a.stage + s.pp) % (2 * s.pp);  // the other copy of the same piece
        a.microbatch ^= 1;
      }
      CHECK(schedule[static_cast<std::size_t>(r)] == mirrored);
    }
  }
}

TEST_CASE("dualpipe's rank r holds pieces r and pp - 1 - r, each with its own two ends") {
  const ScheduleShape s{ScheduleKind::dualpipe, 4, 1, 8, true};
  CHECK(virtual_stages(s) == 8);
  CHECK(microbatches_of_stage(s) == 4);
  for (int piece = 0; piece < 4; ++piece) {
    CHECK(rank_of_stage(s.kind, 4, piece) == piece);
    CHECK(rank_of_stage(s.kind, 4, piece + 4) == 3 - piece);
    for (const int stage : {piece, piece + 4}) {
      CHECK(stage_before(s, stage) == (piece == 0 ? -1 : stage - 1));
      CHECK(stage_after(s, stage) == (piece == 3 ? -1 : stage + 1));
      CHECK(receives(s, stage) == (piece > 0));
      CHECK(sends(s, stage) == (piece < 3));
    }
    CHECK(stage_runs(s, piece, 6));
    CHECK(stage_runs(s, piece + 4, 7));
    CHECK_FALSE(stage_runs(s, piece, 7));
    CHECK_FALSE(stage_runs(s, piece + 4, 6));
  }
}

TEST_CASE("the turn of a V stays on its rank and sends nothing") {
  const ScheduleShape s{ScheduleKind::zbv, 3, 2, 6};
  CHECK(stage_after(s, 2) == 3);
  CHECK_FALSE(sends(s, 2));
  CHECK_FALSE(receives(s, 3));
  CHECK(sends(s, 3));
}

TEST_CASE("stages go round robin, or down and up a V") {
  CHECK(rank_of_stage(ScheduleKind::interleaved, 4, 5) == 1);
  CHECK(rank_of_stage(ScheduleKind::zbv, 4, 3) == 3);
  CHECK(rank_of_stage(ScheduleKind::zbv, 4, 4) == 3);
  CHECK(rank_of_stage(ScheduleKind::zbv, 4, 7) == 0);
}

TEST_CASE("every schedule of the grid is complete and does not deadlock") {
  for (const ScheduleShape& s : grid()) {
    const std::string text = describe(s);
    CAPTURE(text);
    CHECK(schedule_fault(s, build_schedule(s)) == "");
  }
}

TEST_CASE("1F1B's first rank reduces beside its last backward, the others after theirs") {
  ScheduleShape s{ScheduleKind::one_f_one_b, 3, 1, 3};
  s.whole_reductions = true;
  const auto schedule = build_schedule(s);
  CHECK(to_string(schedule[0]) == "0F0 0F1 0F2 0B0 0B1 0B2");
  CHECK(schedule[0].back().last);
  CHECK(to_string(schedule[1]) == "1F0 1F1 1B0 1F2 1B1 1B2 1R");
  CHECK(to_string(schedule[2]) == "2F0 2B0 2F1 2B1 2F2 2B2 2R");
  for (const Action& a : schedule[1]) CHECK(a.last == (a.kind == ActionKind::reduce));
}

// Megatron-Core's schedules.py: after virtual microbatch k, chunks that ended with k - rank.
TEST_CASE(
    "interleaved, rank r reduces a chunk r backwards after its last, and the rest at the end") {
  ScheduleShape s{ScheduleKind::interleaved, 3, 2, 3};
  s.whole_reductions = true;
  const auto schedule = build_schedule(s);
  const auto tail = [&](std::size_t rank) {
    const std::string text = to_string(schedule[rank]);
    return text.substr(text.find(std::to_string(rank + 3) + "B0"));
  };
  CHECK(tail(0) == "3B0 3B1 3B2 3R 0B0 0B1 0B2 0R");
  CHECK(tail(1) == "4B0 4B1 4B2 1B0 4R 1B1 1B2 1R");
  CHECK(tail(2) == "5B0 5F1 5B1 5F2 5B2 2B0 2B1 5R 2B2 2R");
  for (const auto& list : schedule) {
    for (const Action& a : list) CHECK(a.last == (a.kind == ActionKind::reduce && a.stage < 3));
  }
}

TEST_CASE("a reduction before its stage has ended, or a second one, is a fault in words") {
  ScheduleShape s{ScheduleKind::one_f_one_b, 2, 1, 2};
  s.whole_reductions = true;
  auto early = build_schedule(s);
  std::rotate(early[1].begin() + 2, early[1].end() - 1, early[1].end());
  CHECK(schedule_fault(s, early) == "rank 1 runs 1R before microbatch 1 has ended");
  auto twice = build_schedule(s);
  twice[1].push_back(twice[1].back());
  CHECK(schedule_fault(s, twice) == "rank 1 runs 1R twice");
}

TEST_CASE("a schedule with a swapped, missing or foreign action is a fault in words") {
  const ScheduleShape s{ScheduleKind::one_f_one_b, 2, 1, 2};
  auto swapped = build_schedule(s);
  std::swap(swapped[1][0], swapped[1][1]);
  CHECK(schedule_fault(s, swapped) == "rank 1 runs 1B0 out of turn");
  auto missing = build_schedule(s);
  missing[0].pop_back();
  CHECK(schedule_fault(s, missing) == "stage 0 never ends microbatch 1");
  auto foreign = build_schedule(s);
  foreign[0][0].stage = 1;
  CHECK(schedule_fault(s, foreign) == "rank 0 runs 1F0 which is not its own");
  auto deadlocked = build_schedule(s);
  std::rotate(deadlocked[0].begin(), deadlocked[0].begin() + 2, deadlocked[0].begin() + 3);
  CHECK(schedule_fault(s, deadlocked) != "");
}

TEST_CASE("a pair without its backward, or that waits for itself, is a fault in words") {
  const ScheduleShape s{ScheduleKind::dualpipe, 2, 1, 4, true};
  auto lonely = build_schedule(s);
  lonely[0].back().paired = true;
  CHECK(schedule_fault(s, lonely) == "rank 0 pairs 0W2 with no backward");
  auto forwards = build_schedule(s);
  forwards[0][0].paired = true;
  CHECK(schedule_fault(s, forwards) == "rank 0 pairs 0F0 with no backward");
  auto own = build_schedule({ScheduleKind::one_f_one_b, 1, 1, 2});
  own[0][0].paired = true;  // 0F0 beside 0B0
  CHECK(schedule_fault({ScheduleKind::one_f_one_b, 1, 1, 2}, own) == "rank 0 runs 0B0 out of turn");
  auto other_way = build_schedule(s);
  other_way[0][0].microbatch = 1;
  CHECK(schedule_fault(s, other_way) == "rank 0 runs 0F1 which is not its own");
}

TEST_CASE("each stage marks one first forward, and reduces once: beside a backward or after it") {
  for (const ScheduleShape& s : grid()) {
    const std::string text = describe(s);
    CAPTURE(text);
    int first = 0, last = 0;
    for (const auto& list : build_schedule(s)) {
      for (const Action& a : list) {
        first += static_cast<int>(a.first);
        last += static_cast<int>(a.last || a.kind == ActionKind::reduce);
      }
    }
    CHECK(first == virtual_stages(s));
    CHECK(last == virtual_stages(s));
  }
}

TEST_CASE("a paired schedule warms up by one more, and pairs each steady forward with a backward") {
  const auto schedule = build_schedule({ScheduleKind::one_f_one_b, 2, 1, 4, true});
  CHECK(to_string(schedule[0]) == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3");
  CHECK(to_string(schedule[1]) == "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3");
  for (const auto& list : schedule) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!list[i].paired) continue;
      CHECK(list[i].kind == ActionKind::forward);
      REQUIRE(i + 1 < list.size());
      CHECK(list[i + 1].kind == ActionKind::backward);
      CHECK(list[i + 1].microbatch < list[i].microbatch);
    }
  }
}

TEST_CASE("a pair holds neither a stage's first forward nor its last backward") {
  // Which gather parameters and reduce gradients, and are priced on their own.
  int pairs = 0;
  for (const ScheduleShape& s : grid()) {
    for (const auto& list : build_schedule(s)) {
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (!list[i].paired) continue;
        ++pairs;
        const std::string text = describe(s) + ": " + to_string(list[i]);
        CAPTURE(text);
        CHECK_FALSE(list[i].first);
        CHECK_FALSE(list[i + 1].last);
      }
    }
  }
  CHECK(pairs > 1000);
}

TEST_CASE("pairing holds one microbatch more") {
  for (int r = 0; r < 6; ++r) {
    const auto at = static_cast<std::size_t>(r);
    CHECK(max_in_flight(build_schedule({ScheduleKind::one_f_one_b, 6, 1, 16, true})[at]) ==
          6 - r + 1);
  }
}

// docs/reference/physics.md 4: peak in-flight activations (Megatron-LM schedules; Qi et al.
// 2401.10241).
TEST_CASE("gpipe holds every microbatch at once") {
  for (const auto& list : build_schedule({ScheduleKind::gpipe, 4, 1, 9})) {
    CHECK(max_in_flight(list) == 9);
  }
}

TEST_CASE("rank r of 1F1B holds min(m, pp - r) microbatches") {
  for (const int m : {1, 3, 16}) {
    const auto schedule = build_schedule({ScheduleKind::one_f_one_b, 6, 1, m});
    for (int r = 0; r < 6; ++r) {
      CHECK(max_in_flight(schedule[static_cast<std::size_t>(r)]) == std::min(m, 6 - r));
    }
  }
}

TEST_CASE("rank r of interleaving holds 2(pp - r - 1) + (vpp - 1) pp + 1 chunks") {
  for (const int vpp : {2, 3, 4}) {
    const auto schedule = build_schedule({ScheduleKind::interleaved, 4, vpp, 16});
    for (int r = 0; r < 4; ++r) {
      CHECK(max_in_flight(schedule[static_cast<std::size_t>(r)]) ==
            2 * (4 - r - 1) + (vpp - 1) * 4 + 1);
    }
  }
}

TEST_CASE("every rank of zb-h1 holds pp microbatches, as 1F1B's first does") {
  for (const auto& list : build_schedule({ScheduleKind::zb_h1, 5, 1, 12})) {
    CHECK(max_in_flight(list) == 5);
  }
}

TEST_CASE("every rank of dualpipe holds pp + 1 microbatches, of two stages") {
  for (const int pp : {2, 4, 6, 8}) {
    for (const int m : {2 * pp, 2 * pp + 2, 6 * pp}) {
      for (const auto& list : build_schedule({ScheduleKind::dualpipe, pp, 1, m, true})) {
        CHECK(max_in_flight(list) == pp + 1);
      }
    }
  }
}

TEST_CASE("zbv holds at most 2 pp chunks, which is 1F1B's memory") {
  for (int pp = 2; pp <= 8; ++pp) {
    for (const auto& list : build_schedule({ScheduleKind::zbv, pp, 2, 24})) {
      CHECK(max_in_flight(list) <= 2 * pp);
    }
  }
}

TEST_CASE("the steady part repeats, its microbatches moving by one period's worth") {
  int seen = 0;
  for (const ScheduleShape& s : grid()) {
    const auto schedule = build_schedule(s);
    for (int r = 0; r < s.pp; ++r) {
      const SteadyPart steady = steady_part(s, r);
      if (steady.count < 2) continue;
      ++seen;
      const std::string text = describe(s);
      CAPTURE(text);
      CAPTURE(r);
      const auto& list = schedule[static_cast<std::size_t>(r)];
      REQUIRE(steady.begin + steady.period * steady.count <=
              static_cast<std::int64_t>(list.size()));
      for (std::int64_t i = steady.period; i < steady.period * steady.count; ++i) {
        const Action& now = list[static_cast<std::size_t>(steady.begin + i)];
        const Action& before = list[static_cast<std::size_t>(steady.begin + i - steady.period)];
        CHECK(now.kind == before.kind);
        CHECK(now.stage == before.stage);
        CHECK(now.microbatch == before.microbatch + microbatches_per_period(s));
      }
    }
  }
  CHECK(seen > 400);
}

TEST_CASE("all ranks of a schedule have the same number of steady periods") {
  for (const ScheduleShape& s : grid()) {
    for (int r = 1; r < s.pp; ++r) {
      CHECK(steady_part(s, r).count == steady_part(s, 0).count);
    }
  }
}
