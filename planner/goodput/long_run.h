#pragma once
// A long run played through: it works, saves, fails, comes back. Chance is seeded and the same on
// every machine, so that the same question has the same answer.

#include <cstdint>
#include <string_view>

#include "models/units.h"
#include "models/words.h"

namespace qplan {

// What stops when a node does. `job`: everybody, and goes on from what was saved. `replica`: the
// data-parallel replica that lost it; the others discard the step under way and go on without, and
// it comes back with a neighbour's weights (TorchFT, https://github.com/pytorch/torchft).
enum class Recovery : std::uint8_t { job, replica };

template <>
struct Words<Recovery> {
  static constexpr std::string_view what = "recovery";
  static constexpr auto table = std::to_array<std::pair<Recovery, std::string_view>>(
      {{Recovery::job, "job"}, {Recovery::replica, "replica"}});
};

// Defaults are of the sources that are named; "assumed" has none.
struct LongRun {
  Seconds work;  // how long it takes if nothing ever fails or is saved
  Seconds step;  // one step of it
  std::int64_t nodes = 1;
  std::int64_t replicas = 1;  // data-parallel ones, alike
  Recovery recovery = Recovery::job;

  Seconds between_failures;  // of one node, in the mean; 0: never
  // Failures that take a node away until it is repaired: Llama 3 405B's 419 unexpected
  // interruptions were 78% confirmed or suspected hardware (arXiv 2407.21783, section 3.3.4). After
  // the others the same nodes go on.
  double hardware_share = 0.78;
  std::int64_t spares = 0;          // idle nodes at hand
  Seconds repair = Seconds(86400);  // of a node, in the mean; assumed

  Seconds detection;        // until everybody knows
  Seconds restart;          // from there to the next step: scheduling, communicators, loading
  Seconds interval;         // work between two saves
  Seconds save;             // how long a save stops the work
  Seconds durable;          // from its beginning until it may be loaded; at least `save`
  Seconds memory_interval;  // between copies in other nodes' memory, which cost nothing; 0: none
};

// Where the time went; failures that fell upon it.
struct TimeSpent {
  Seconds useful, saving, lost_work, restarting, waiting, degraded;
  std::int64_t failures = 0;
  bool endless = false;  // it fails faster than it makes progress
  [[nodiscard]] Seconds total() const {
    return useful + saving + lost_work + restarting + waiting + degraded;
  }
  [[nodiscard]] double goodput() const { return useful / total(); }
};
// Of a run that fails more than kPlayed times as many failures are played, and the rest goes as
// they went. One that has made less than a thousandth of its time good by then is endless.
inline constexpr std::int64_t kPlayed = 20000;
TimeSpent play(const LongRun& run, std::uint64_t seed);

// Several of them: means of all shares, and the spread of the goodput.
struct Spread {
  double mean = 1, p10 = 1, p90 = 1;
};
struct PlayedRuns {
  TimeSpent mean;  // of the sums; failures rounded
  Spread goodput, days;
  double failures = 0;
  bool endless = false;  // one of them was: nothing else is said
};
PlayedRuns play_runs(const LongRun& run, int runs);

// Between saves that stop the work: Young's (1974), and Daly's of higher order (2006). Nothing is
// saved where nothing fails: infinite.
Seconds young_interval(Seconds save, Seconds mean_time_between_failures);
Seconds daly_interval(Seconds save, Seconds mean_time_between_failures);
// Time that `work` takes in the mean, exactly, where saves stop the work, everybody restarts and
// nobody waits for nodes (Daly 2006, "A higher order estimate of the optimum checkpoint interval
// for restart dumps", equation 13).
Seconds expected_time(Seconds work, Seconds interval, Seconds save, Seconds restart,
                      Seconds mean_time_between_failures);

// The interval with the most goodput, of those within a factor of 8 around Daly's, a quarter apart.
Seconds best_interval(LongRun run, int runs);
// The number of spares with the most work for all nodes, the idle ones counted.
std::int64_t best_spares(LongRun run, int runs);

}  // namespace qplan
