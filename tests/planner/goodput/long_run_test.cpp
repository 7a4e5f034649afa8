#include "planner/goodput/long_run.h"

#include <doctest/doctest.h>

#include <cmath>

#include "models/statistics.h"

using namespace qplan;

namespace {

// 200 days of work on 100 nodes, one failure a day, a save of 5 min every 2 h, 10 min to come back.
LongRun some_run() {
  LongRun run;
  run.work = Seconds(200 * 86400);
  run.step = Seconds(10);
  run.nodes = 100;
  run.between_failures = Seconds(100 * 86400);
  run.hardware_share = 0;
  run.detection = Seconds(60);
  run.restart = Seconds(540);
  run.interval = Seconds(7200);
  run.save = run.durable = Seconds(300);
  return run;
}

double goodput_of(const LongRun& run) {
  return play_runs(run, 60).goodput.mean;
}

}  // namespace

TEST_CASE("a run that never fails loses only its saves, and without them nothing") {
  LongRun run = some_run();
  run.between_failures = Seconds(0);
  const TimeSpent spent = play(run, 1);
  CHECK(spent.failures == 0);
  CHECK(spent.useful == run.work);
  CHECK(spent.saving == run.save * (200 * 12 - 1));  // none at the end
  run.interval = Seconds(HUGE_VAL);
  CHECK(play(run, 1).goodput() == 1);
}

TEST_CASE("runs that save, fail and restart take as long as Daly's formula says") {
  struct Case {
    double days_between, interval, save, restart;
  };
  for (const Case& c : {Case{1, 7200, 300, 540}, Case{0.2, 3600, 60, 600},
                        Case{0.05, 1200, 120, 900}, Case{10, 20000, 600, 0}}) {
    CAPTURE(c.days_between);
    LongRun run = some_run();
    run.between_failures = Seconds(c.days_between * 100 * 86400);
    run.interval = Seconds(c.interval);
    run.save = run.durable = Seconds(c.save);
    run.detection = Seconds(0);
    run.restart = Seconds(c.restart);
    const Seconds expected = expected_time(run.work, run.interval, run.save, run.restart,
                                           Seconds(c.days_between * 86400));
    // 200 days have at least 20 failures a run, 6000 in all: chance is below 1%.
    CHECK(play_runs(run, 300).mean.total() / expected == doctest::Approx(1).epsilon(0.01));
  }
}

TEST_CASE("failures are as many as the time that they may happen in") {
  LongRun run = some_run();
  run.restart = run.detection = Seconds(0);
  const PlayedRuns played = play_runs(run, 300);
  CHECK(played.failures == doctest::Approx(played.days.mean).epsilon(0.01));  // one a day
}

TEST_CASE("what was spent adds up, and each run is the same again") {
  LongRun run = some_run();
  run.hardware_share = 0.8;
  run.spares = 1;
  for (const Recovery recovery : {Recovery::job, Recovery::replica}) {
    run.recovery = recovery;
    run.replicas = 20;
    const TimeSpent a = play(run, 7), b = play(run, 7), other = play(run, 8);
    CHECK(a.total() == b.total());
    CHECK(a.total() != other.total());
    CHECK(a.useful.value() == doctest::Approx(run.work.value()));
    for (const Seconds part : {a.saving, a.lost_work, a.restarting, a.waiting, a.degraded}) {
      CHECK(part >= Seconds(0));
    }
  }
}

TEST_CASE("rarer failures, quicker saves, quicker restarts and more spares never cost goodput") {
  LongRun run = some_run();
  run.hardware_share = 0.8;
  run.spares = 1;
  const auto rises = [](double before, double after) { return after > before - 1e-3; };
  double before = 0;
  for (const double days : {20.0, 50.0, 100.0, 1000.0, 1e6}) {
    LongRun other = run;
    other.between_failures = Seconds(days * 86400);
    const double now = goodput_of(other);
    CAPTURE(days);
    CHECK(now > before);
    before = now;
  }
  before = 0;
  for (const std::int64_t spares : {0, 1, 2, 4, 8}) {
    LongRun other = run;
    other.spares = spares;
    const double now = goodput_of(other);
    CAPTURE(spares);
    CHECK(rises(before, now));
    before = now;
  }
  LongRun quick = run;
  quick.save = quick.durable = Seconds(30);
  CHECK(goodput_of(quick) > goodput_of(run));
  quick = run;
  quick.restart = Seconds(60);
  CHECK(goodput_of(quick) > goodput_of(run));
  quick = run;
  quick.memory_interval = Seconds(100);
  CHECK(goodput_of(quick) > goodput_of(run));
}

TEST_CASE("a save behind the work's back can be loaded only when it is written") {
  LongRun late = some_run();
  late.save = Seconds(0);
  late.durable = Seconds(0);
  const double at_once = play_runs(late, 60).mean.lost_work.value();
  late.durable = Seconds(3600);
  const PlayedRuns played = play_runs(late, 60);
  // An hour more a failure.
  CHECK((played.mean.lost_work.value() - at_once) / played.failures ==
        doctest::Approx(3600).epsilon(0.1));
}

TEST_CASE("the best interval lies near Young's and Daly's where failures are rare") {
  LongRun run = some_run();
  const Seconds mean(86400);
  const double daly = daly_interval(run.save, mean).value();
  CHECK(young_interval(run.save, mean).value() == doctest::Approx(std::sqrt(2.0 * 300 * 86400)));
  CHECK(daly == doctest::Approx(young_interval(run.save, mean).value()).epsilon(0.05));
  const double best = best_interval(run, 40).value();
  CHECK(best > daly / 2);
  CHECK(best < daly * 2);
  // What it gives is no less than what Daly's does.
  run.interval = Seconds(best);
  const double played = goodput_of(run);
  run.interval = Seconds(daly);
  CHECK(played > goodput_of(run) - 2e-3);
}

TEST_CASE("spares pay until enough nodes are in repair, and no further") {
  LongRun run = some_run();
  run.hardware_share = 1;
  // One a day, away for a day: one is in repair in the mean, more than four hardly ever.
  const std::int64_t best = best_spares(run, 40);
  CHECK(best >= 1);
  CHECK(best <= 4);
  run.between_failures = Seconds(0);
  CHECK(best_spares(run, 10) == 0);
}

TEST_CASE("a replica that is away costs its share of the tokens, not everybody's time") {
  LongRun run = some_run();
  run.recovery = Recovery::replica;
  run.replicas = 50;
  run.detection = Seconds(0);
  const PlayedRuns alone = play_runs(run, 100);
  // A failure a day: 540 s of one of 50 replicas, and half a step.
  CHECK(alone.mean.degraded.value() / alone.failures == doctest::Approx(540.0 / 50).epsilon(0.03));
  CHECK(alone.mean.lost_work.value() / alone.failures == doctest::Approx(5).epsilon(0.1));
  LongRun whole = run;
  whole.recovery = Recovery::job;
  CHECK(alone.goodput.mean > goodput_of(whole));
}

// Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 GPUs, "higher than 90% effective
// training time" (arXiv 2407.21783, section 3.3.4). The rate and the share of hardware are its own;
// the goodput is not fitted. Checkpoints of 5.7 TB to 2 TB/s.
TEST_CASE("Llama 3's effective training time lies above 90%") {
  LongRun run;
  run.work = Seconds(50 * 86400);
  run.step = Seconds(5);
  run.nodes = 2048;
  run.between_failures = Seconds(54.0 * 86400 * 2048 / 419);
  run.detection = Seconds(180);
  run.restart = Seconds(350);
  run.save = run.durable = Seconds(2.8);
  run.spares = 40;
  run.interval = daly_interval(run.save, Seconds(54.0 * 86400 / 419));
  const PlayedRuns played = play_runs(run, 60);
  CHECK(played.goodput.mean > 0.9);
  CHECK(played.failures * 54 / played.days.mean == doctest::Approx(419).epsilon(0.07));
}

// Meta's research clusters: 6.50 failures per 1000 node-days are expected to stop jobs of 16,384
// GPUs every 1.8 h and of 131,072 every 0.23 h (arXiv 2410.21680).
TEST_CASE("the job's failures are its nodes'") {
  for (const auto& [gpus, hours] : {std::pair{16384, 1.8}, std::pair{131072, 0.23}}) {
    LongRun run = some_run();
    run.work = Seconds(20 * 86400);
    run.nodes = gpus / 8;
    run.between_failures = Seconds(86400 * 1000 / 6.5);
    run.restart = run.detection = Seconds(0);
    run.interval = Seconds(120);
    run.save = run.durable = Seconds(1);
    const PlayedRuns played = play_runs(run, 20);
    CHECK(24 * played.days.mean / played.failures == doctest::Approx(hours).epsilon(0.03));
  }
}

TEST_CASE("a run that fails faster than it makes progress is endless, and soon told") {
  for (const Recovery recovery : {Recovery::job, Recovery::replica}) {
    for (const double between_s : {1e-3, 0.1, 1.0}) {
      CAPTURE(between_s);
      LongRun run = some_run();
      run.recovery = recovery;
      run.replicas = recovery == Recovery::job ? 1 : 50;
      run.hardware_share = 0.78;
      run.between_failures = Seconds(between_s * 100);  // of 100 nodes
      CHECK(play_runs(run, 1000).endless);
      run.interval = best_interval(run, 40);
      CHECK(run.interval > Seconds(0));
      CHECK(best_spares(run, 40) == 0);
    }
  }
}

TEST_CASE("of a run with very many failures the first ones tell") {
  LongRun run = some_run();
  run.between_failures = Seconds(0.02 * 86400 * 100);
  run.interval = Seconds(600);
  run.save = run.durable = Seconds(20);
  const Seconds restart = run.detection + run.restart, between = run.between_failures * 0.01;
  for (const double times : {1.0, 100.0}) {  // 10 000 failures, and a million
    run.work = Seconds(times * 100 * 86400);
    const PlayedRuns played = play_runs(run, 40);
    REQUIRE_FALSE(played.endless);
    const Seconds expected = expected_time(run.work, run.interval, run.save, restart, between);
    CHECK(played.mean.total() / expected == doctest::Approx(1).epsilon(0.01));
    CHECK(played.mean.useful / run.work == doctest::Approx(1));
    CHECK(played.failures * between.value() / played.mean.total().value() ==
          doctest::Approx(1).epsilon(0.01));
  }
}
