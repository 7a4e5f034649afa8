// What ops of our executor take beside communication, and alone.

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "costmodel/fold/replay.h"
#include "tests/costmodel/job.h"

using namespace qplan;

TEST_CASE("of the executor's ops what runs beside another is slower than alone, and no other") {
  const Job job("llama3-8b", "h200-sxm", RecipeKind::qplan);
  const ParallelPlan plan = parse_plan("dp8 zero1 mbs1 gbs16 seq4096 overlap=grad+param");
  const Trace beside = trace_step(job.cost, plan, TraceGrain::op),
              alone = trace_alone(job.cost, plan);
  REQUIRE(beside.events.size() == alone.events.size());
  std::map<std::string, Seconds> slowed, as_alone;
  for (const TraceEvent& e : beside.events) slowed[e.name] += e.end - e.begin;
  for (const TraceEvent& e : alone.events) as_alone[e.name] += e.end - e.begin;
  std::size_t slower = 0;
  for (const auto& [name, time] : slowed) {
    CAPTURE(name);
    CHECK(time.value() >= as_alone.at(name).value() * (1 - 1e-9));
    if (time.value() > as_alone.at(name).value() * 1.01) ++slower;
  }
  CHECK(slower > 0);
  CHECK(slower < slowed.size());
}

TEST_CASE("messages that wait keep multiprocessors of stages, not of a rank without") {
  const Job job("llama3-8b", "h200-sxm", RecipeKind::qplan);
  const auto time_of_products = [&](const char* words) {
    Seconds sum;
    for (const TraceEvent& e : trace_alone(job.cost, parse_plan(words)).events) {
      if (e.name.rfind("gemm 4096x28672x4096 ", 0) == 0) sum += e.end - e.begin;
    }
    REQUIRE(sum > Seconds());
    return sum;
  };
  CHECK(time_of_products("pp2 mbs1 gbs8 seq4096") / time_of_products("dp2 mbs1 gbs16 seq4096") ==
        doctest::Approx(132.0 / 128).epsilon(1e-3));
}
