#include "planner/goodput/long_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <random>
#include <vector>

#include "models/error.h"
#include "models/portable_math.h"
#include "models/statistics.h"

namespace qplan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Seeded chance. The engine's numbers are laid down by the standard; the library's distributions
// are not, so that they are made here.
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : engine_(seed) {}
  // In [0, 1).
  double share() { return static_cast<double>(engine_() >> 11U) * 0x1p-53; }
  // Until something that happens every `mean` in the mean and remembers nothing.
  double until(double mean) { return mean < kNever ? -mean * portable::log(1 - share()) : kNever; }

 private:
  std::mt19937_64 engine_;
};

using Moments = std::priority_queue<double, std::vector<double>, std::greater<>>;

// Idle nodes, and nodes in repair, which join them.
class SpareNodes {
 public:
  SpareNodes(const LongRun& run, Chance& chance)
      : chance_(chance), repair_(run.repair.value()), idle_(run.spares) {}

  // A node fails at `now` and another takes its place: when that is there.
  double replacement(double now) {
    for (; !repaired_.empty() && repaired_.top() <= now; repaired_.pop()) ++idle_;
    repaired_.push(now + chance_.until(repair_));
    if (idle_ > 0) {
      --idle_;
      return now;
    }
    const double first = repaired_.top();
    repaired_.pop();
    return first;
  }

 private:
  Chance& chance_;
  double repair_;
  std::int64_t idle_;
  Moments repaired_;
};

double of_all(const LongRun& run, std::int64_t nodes) {
  const double one = run.between_failures.value();
  return one > 0 && nodes > 0 ? one / static_cast<double>(nodes) : kNever;
}

// What a stretch of work and saves came to when it ended after `time`.
struct Stretch {
  double work = 0, saved = 0, saving = 0;
};
Stretch stretch_of(const LongRun& run, double time) {
  const double interval = run.interval.value(), save = run.save.value();
  if (!std::isfinite(interval)) return {time, 0, 0};
  const double period = interval + save;
  const double periods = std::floor(time / period);
  const double rest = time - periods * period;
  Stretch s;
  s.work = periods * interval + std::min(rest, interval);
  s.saving = periods * save + std::max(0.0, rest - interval);
  // The i-th save begins after i intervals and the saves before it.
  const double durable = std::floor((time - run.durable.value() + save) / period);
  s.saved = std::max(0.0, durable) * interval;
  return s;
}

// Time for `work` and the saves on the way; none at the end.
double time_of(const LongRun& run, double work) {
  const double interval = run.interval.value();
  if (!std::isfinite(interval)) return work;
  return work + std::max(0.0, std::ceil(work / interval) - 1) * run.save.value();
}

// A run of which kPlayed failures were played in `spent`, as long as it is.
TimeSpent whole(TimeSpent spent, double done, double work) {
  constexpr double kHopeless = 1000;
  if (done * kHopeless <= spent.total().value()) {
    spent.endless = true;
    return spent;
  }
  const double times = work / done;
  for (Seconds* part : {&spent.useful, &spent.saving, &spent.lost_work, &spent.restarting,
                        &spent.waiting, &spent.degraded}) {
    *part = *part * times;
  }
  spent.failures = std::llround(static_cast<double>(spent.failures) * times);
  return spent;
}

TimeSpent play_job(const LongRun& run, Chance& chance) {
  const double work = run.work.value(), mean = of_all(run, run.nodes);
  const double back = (run.detection + run.restart).value(), copies = run.memory_interval.value();
  SpareNodes spares(run, chance);
  TimeSpent spent;
  double now = 0, done = 0;
  while (true) {
    const double left = work - done, needed = time_of(run, left);
    double until = chance.until(mean);
    if (until >= needed) {
      spent.useful += Seconds(left);
      spent.saving += Seconds(needed - left);
      return spent;
    }
    Stretch s = stretch_of(run, until);
    if (copies > 0) s.saved = std::max(s.saved, std::floor(s.work / copies) * copies);
    s.saved = std::min(s.saved, left);
    done += s.saved;
    spent.useful += Seconds(s.saved);
    spent.lost_work += Seconds(s.work - s.saved);
    spent.saving += Seconds(s.saving);
    now += until;
    // Whoever fails on the way back begins the way again.
    do {
      ++spent.failures;
      if (chance.share() < run.hardware_share) {
        const double there = spares.replacement(now);
        spent.waiting += Seconds(there - now);
        now = there;
      }
      until = chance.until(mean);
      spent.restarting += Seconds(std::min(until, back));
      now += std::min(until, back);
      if (spent.failures >= kPlayed) return whole(spent, done, work);
    } while (until < back);
  }
}

TimeSpent play_replicas(const LongRun& run, Chance& chance) {
  const double work = run.work.value(), step = run.step.value();
  const auto all = static_cast<double>(run.replicas);
  const double interval = run.interval.value();
  // Of the time that runs, a share goes into saves, whenever they are.
  const double saving = std::isfinite(interval) ? (run.save / (run.interval + run.save)) : 0;
  SpareNodes spares(run, chance);
  Moments back;  // when replicas are
  TimeSpent spent;
  double now = 0, done = 0;
  while (done < work) {
    const auto down = static_cast<double>(back.size());
    const double up = (all - down) / all;
    const std::int64_t nodes = std::llround(static_cast<double>(run.nodes) * up);
    const double rate = up * (1 - saving);
    const double finished = rate > 0 ? (work - done) / rate : kNever;
    const double failure = chance.until(of_all(run, nodes));
    const double returns = back.empty() ? kNever : back.top() - now;
    const double time = std::min({finished, failure, returns});
    QPLAN_CHECK(time < kNever, "a run with all replicas away waits for one of them");
    now += time;
    done += time * rate;
    spent.useful += Seconds(time * rate);
    spent.saving += Seconds(time * up * saving);
    (up > 0 ? spent.degraded : spent.waiting) += Seconds(time * (1 - up));
    if (time == finished) break;
    if (time == returns) {
      back.pop();
      continue;
    }
    ++spent.failures;
    if (spent.failures >= kPlayed) return whole(spent, done, work);
    // The others notice, and begin the step under way again.
    const double lost = std::min(step * chance.share() * up, done);
    done -= lost;
    spent.useful += Seconds(-lost);
    spent.lost_work += Seconds(lost);
    spent.restarting += run.detection;
    now += run.detection.value();
    const bool gone = chance.share() < run.hardware_share;
    const double there = gone ? spares.replacement(now) : now;
    back.push(there + run.restart.value());
  }
  return spent;
}

}  // namespace

TimeSpent play(const LongRun& run, std::uint64_t seed) {
  Chance chance(seed);
  return run.recovery == Recovery::replica && run.replicas > 1 ? play_replicas(run, chance)
                                                               : play_job(run, chance);
}

PlayedRuns play_runs(const LongRun& run, int runs) {
  PlayedRuns result;
  Weighted goodputs, days;
  double failures = 0;
  for (int i = 0; i < runs; ++i) {
    const TimeSpent one = play(run, static_cast<std::uint64_t>(i) + 1);
    if (one.endless) {
      result.endless = true;
      result.goodput = {0, 0, 0};
      return result;
    }
    TimeSpent& sum = result.mean;
    const double share = 1.0 / runs;
    sum.useful += one.useful * share;
    sum.saving += one.saving * share;
    sum.lost_work += one.lost_work * share;
    sum.restarting += one.restarting * share;
    sum.waiting += one.waiting * share;
    sum.degraded += one.degraded * share;
    failures += static_cast<double>(one.failures) * share;
    goodputs.emplace_back(one.goodput(), 1);
    days.emplace_back(one.total().value() / 86400, 1);
  }
  result.failures = failures;
  result.mean.failures = std::llround(failures);
  const auto spread = [](const Weighted& values, double mean) {
    return Spread{mean, *quantile(values, 0.1), *quantile(values, 0.9)};
  };
  result.goodput = spread(goodputs, result.mean.goodput());
  result.days = spread(days, result.mean.total().value() / 86400);
  return result;
}

Seconds young_interval(Seconds save, Seconds mean) {
  return Seconds(std::sqrt(2 * save.value() * mean.value()));
}

Seconds daly_interval(Seconds save, Seconds mean) {
  if (save.value() >= 2 * mean.value()) return mean;
  const double ratio = save.value() / (2 * mean.value());
  return Seconds(young_interval(save, mean).value() * (1 + std::sqrt(ratio) / 3 + ratio / 9) -
                 save.value());
}

Seconds expected_time(Seconds work, Seconds interval, Seconds save, Seconds restart, Seconds mean) {
  const double m = mean.value();
  return Seconds(m * portable::exp(restart.value() / m) *
                 (portable::exp((interval + save).value() / m) - 1) * (work / interval));
}

Seconds best_interval(LongRun run, int runs) {
  const Seconds mean(of_all(run, run.nodes));
  if (!(mean.value() < kNever)) return mean;
  // A save that stops nothing is as good as soon as the last one is durable.
  const double least = std::max((run.durable - run.save).value(), run.step.value());
  const double middle = std::max(daly_interval(run.save, mean).value(), least);
  Seconds best(middle);
  double most = 0;
  for (int quarter = -12; quarter <= 12; ++quarter) {
    const double interval = middle * portable::pow(2, quarter / 4.0);
    if (interval < least) continue;
    run.interval = Seconds(interval);
    const double goodput = play_runs(run, runs).goodput.mean;
    if (goodput <= most) continue;
    most = goodput;
    best = run.interval;
  }
  return best;
}

std::int64_t best_spares(LongRun run, int runs) {
  const auto nodes = static_cast<double>(run.nodes);
  std::int64_t best = 0;
  double most = 0;
  // Up to a tenth of the nodes, and until four numbers in a row were worse.
  int worse = 0;
  for (std::int64_t spares = 0; worse < 4 && spares <= std::max<std::int64_t>(run.nodes / 10, 4);
       spares += std::max<std::int64_t>(1, spares / 4)) {
    run.spares = spares;
    const double each = play_runs(run, runs).goodput.mean / (nodes + static_cast<double>(spares));
    ++worse;
    if (each <= most) continue;
    most = each;
    best = spares;
    worse = 0;
  }
  return best;
}

}  // namespace qplan
