// Networks that are thinner between pods than inside them.

#include <doctest/doctest.h>

#include "costmodel/evaluate.h"
#include "costmodel/fold/replay.h"
#include "costmodel/price/price.h"
#include "tests/costmodel/job.h"

using namespace qplan;

namespace {

struct InPods {
  ModelSpec model;
  HardwareProfile hardware = load_hardware("h100-sxm");
  CostModel cost;

  InPods(const std::string& name, const PodLevels& pods)
      : model(load_model(name)),
        hardware(with_pods(pods)),
        cost(model, recipe_of(RecipeKind::megatron), hardware, {}) {}
  static HardwareProfile with_pods(const PodLevels& pods) {
    HardwareProfile profile = load_hardware("h100-sxm");
    profile.link.pods = pods;
    return profile;
  }
  [[nodiscard]] double seconds(const char* line) const {
    return cost.step_time(parse_plan(line)).value();
  }
};

constexpr const char* kDense[] = {
    "tp2 pp4 dp16 zero1 gbs512 sp",
    "dp128 zero3 gbs512",
    "tp2 pp2 cp2 dp16 zero1 gbs512 sp",
    "tp12 dp8 pp2 gbs64",
    "pp8 vpp2 interleaved dp16 zero1 gbs512",
    "pp4 dp32 dualpipe zero1 gbs512",
    "dp8 pp16 zbv gbs512",
};
constexpr const char* kExperts[] = {"tp1 pp2 dp64 ep64 zero1 gbs512", "pp4 dp32 ep8 zero1 gbs512",
                                    "dp128 ep32 zero1 gbs512"};

template <class Check>
void for_each_plan(Check check) {
  for (const char* line : kDense) check("llama3-8b", line);
  for (const char* line : kExperts) check("qwen3-30b-a3b", line);
}

}  // namespace

TEST_CASE("a pod as large as the cluster is no pod, and neither is one with full links") {
  for_each_plan([](const char* model, const char* line) {
    CAPTURE(line);
    const double flat = InPods(model, {}).seconds(line);
    CHECK(InPods(model, {PodLevel{192, 50, false}}).seconds(line) == flat);
    CHECK(InPods(model, {PodLevel{8, 1, true}}).seconds(line) == flat);
  });
}

TEST_CASE("twice the pod is never slower, thinner links are never faster, a level never helps") {
  for_each_plan([](const char* model, const char* line) {
    CAPTURE(line);
    double before = InPods(model, {PodLevel{8, 20, false}}).seconds(line);
    CHECK(InPods(model, {PodLevel{8, 20, false}, PodLevel{32, 40, false}}).seconds(line) >= before);
    for (const int gpus : {16, 32, 64, 128, 256}) {
      CAPTURE(gpus);
      const double now = InPods(model, {PodLevel{gpus, 20, false}}).seconds(line);
      CHECK(now <= before);
      CHECK(InPods(model, {PodLevel{gpus, 10, false}}).seconds(line) <= now);
      before = now;
    }
  });
}

TEST_CASE("with pods the fold is the replay") {
  for_each_plan([](const char* model, const char* line) {
    CAPTURE(line);
    const InPods job(model, {PodLevel{16, 8, false}, PodLevel{64, 24, false}});
    const ParallelPlan plan = parse_plan(line);
    CHECK(replay(job.cost, plan).step_time.value() ==
          doctest::Approx(job.seconds(line)).epsilon(1e-9));
  });
}

TEST_CASE("groups in a pod are not slowed by stages in others") {
  const char* line = "tp2 pp4 dp16 zero1 gbs512 sp";
  const ParallelPlan plan = parse_plan(line);
  const Estimate flat = InPods("llama3-8b", {}).cost.evaluate(plan);
  // A stage fills a pod of 32, or half of one of 64.
  const Estimate each = InPods("llama3-8b", {PodLevel{32, 64, false}}).cost.evaluate(plan);
  const Estimate two = InPods("llama3-8b", {PodLevel{64, 64, false}}).cost.evaluate(plan);
  CHECK(two.time.tp.value() == doctest::Approx(flat.time.tp.value()).epsilon(1e-9));
  CHECK(each.time.dp.value() == doctest::Approx(flat.time.dp.value()).epsilon(1e-6));
  CHECK(each.time.pp_p2p > flat.time.pp_p2p);
  CHECK(two.time.pp_p2p > flat.time.pp_p2p);
  CHECK(two.time.pp_p2p < each.time.pp_p2p);  // one boundary of three, with twice the links
}

TEST_CASE("between pods an all-to-all has its pod's share of the links") {
  const HardwareProfile p = load_hardware("h100-sxm");
  const Collective work{
      .kind = CollectiveKind::all_to_all, .axis = Axis::ep, .bytes = Bytes(1 << 28)};
  GroupShape group{64, 8, 8, 1};
  const Seconds flat = collective_price(work, group, p).time;
  // Two pods of 32 ranks: half of each rank's bytes leave, over a quarter of the cards' rate.
  group.pods = pod_load(1, 64, {32, 4, false}, 8, 64);
  const Seconds thin = collective_price(work, group, p).time;
  const double rate = p.link.nic.value() * p.link.nic_efficiency * p.link.all_to_all_nic_share;
  CHECK((thin - flat).value() ==
        doctest::Approx((1 << 28) / rate * (4.0 / 2 - 56.0 / 64)).epsilon(1e-9));
}
