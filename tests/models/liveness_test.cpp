#include "models/program/liveness.h"

#include <doctest/doctest.h>

#include <random>
#include <tuple>

#include "costmodel/fold/block_cost.h"
#include "tests/properties/random_plans.h"

using namespace qplan;

namespace {

constexpr double kKiB = 1024;

// A block made by hand: slots of some KiB, ops that name them.
struct Sketch {
  Block block;

  SlotId slot(double kib, Storage storage = Storage::local) {
    const auto bytes = static_cast<std::int64_t>(kib * kKiB);
    block.slots.push_back(
        {.name = "x", .storage = storage, .dtype = DType::boolean, .shape = {bytes, 1, 1}});
    return static_cast<SlotId>(block.slots.size() - 1);
  }
  static Op op(std::initializer_list<SlotId> reads, std::initializer_list<SlotId> writes,
               Stream stream = Stream::compute, StreamSet after = {}) {
    Op made{.work = Join{}, .stream = stream, .after = after};
    for (const SlotId id : reads) made.reads.add(id);
    for (const SlotId id : writes) made.writes.add(id);
    return made;
  }
  [[nodiscard]] std::vector<std::vector<LiveEvent>> events() const {
    return liveness(block, {&block.forward, &block.backward});
  }
  [[nodiscard]] MemoryUse use(std::size_t list) const { return memory_use(block, events()[list]); }
};

MemoryUse kib(double net, double peak) {
  return {Bytes(net * kKiB), Bytes(peak * kKiB)};
}

// Where `slot` is freed in a list; -1: never.
int freed_at(const std::vector<LiveEvent>& events, SlotId slot) {
  for (const LiveEvent& e : events) {
    if (e.slot == slot && !e.allocate) return e.at;
  }
  return -1;
}

std::vector<MemoryUse> random_uses(int count) {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> net(-5, 5), above(0, 7);
  std::vector<MemoryUse> uses;
  for (int i = 0; i < count; ++i) {
    const double n = net(random);
    uses.push_back(
        {Bytes(n),
         Bytes(std::max(n, 0.0) + above(random)),
         {Bytes(static_cast<double>(net(random))), Bytes(static_cast<double>(net(random)))},
         {Bytes(static_cast<double>(above(random))), Bytes(static_cast<double>(above(random)))}});
    if (uses.back().peak.value() == 0) uses.back().at_peak = {};
  }
  return uses;
}

}  // namespace

TEST_CASE("scratch lives from its first write to the op after its last read") {
  Sketch s;
  const SlotId scratch = s.slot(4), other = s.slot(2), out = s.slot(1, Storage::wire);
  s.block.forward = {Sketch::op({}, {scratch}), Sketch::op({scratch}, {out}),
                     Sketch::op({}, {other})};
  const auto events = s.events()[0];
  CHECK(freed_at(events, scratch) == 2);
  CHECK(s.use(0) == kib(1, 5));  // 4 + 1, then 1 + 2
}

TEST_CASE("what backward reads without writing is kept from forward") {
  Sketch s;
  const SlotId stash = s.slot(3);
  s.block.forward = {Sketch::op({}, {stash})};
  s.block.backward = {Sketch::op({stash}, {})};
  CHECK(s.use(0) == kib(3, 3));
  CHECK(s.use(1) == kib(-3, 0));
}

TEST_CASE("what backward writes before it reads is not kept: that is recomputation") {
  Sketch s;
  const SlotId again = s.slot(3);
  s.block.forward = {Sketch::op({}, {again})};
  s.block.backward = {Sketch::op({}, {again}), Sketch::op({again}, {})};
  CHECK(s.use(0) == kib(0, 3));
  CHECK(s.use(1) == kib(0, 3));
}

TEST_CASE("a wire that is written leaves, and one that is read arrived") {
  Sketch s;
  const SlotId in = s.slot(2, Storage::wire), out = s.slot(5, Storage::wire);
  s.block.forward = {Sketch::op({in}, {out})};
  CHECK(s.use(0) == kib(3, 5));  // the input is held by the caller when we begin
}

TEST_CASE("an arriving wire that backward reads too stays until backward has read it") {
  Sketch s;
  const SlotId in = s.slot(2, Storage::wire), out = s.slot(5, Storage::wire);
  s.block.forward = {Sketch::op({in}, {out})};
  s.block.backward = {Sketch::op({in}, {})};
  CHECK(s.use(0) == kib(5, 5));
  CHECK(s.use(1) == kib(-2, 0));
}

TEST_CASE("a buffer that another stream reads is freed only when compute has waited for it") {
  Sketch s;
  const SlotId sent = s.slot(1), received = s.slot(1), other = s.slot(1);
  s.block.forward = {
      Sketch::op({}, {sent}),
      Sketch::op({sent}, {received}, Stream::model_comm, only(Stream::compute)),
      Sketch::op({}, {other}),
      Sketch::op({received}, {}, Stream::compute, only(Stream::model_comm)),
  };
  CHECK(freed_at(s.events()[0], sent) == 3);
  // Without the wait nobody knows, and it is held to the end.
  s.block.forward[3].after = {};
  CHECK(freed_at(s.events()[0], sent) == 4);
}

TEST_CASE("a wait reaches through streams: compute after d2h after model_comm") {
  Sketch s;
  const SlotId sent = s.slot(1), received = s.slot(1);
  s.block.forward = {
      Sketch::op({}, {sent}),
      Sketch::op({sent}, {received}, Stream::model_comm, only(Stream::compute)),
      Sketch::op({received}, {}, Stream::d2h, only(Stream::model_comm)),
      Sketch::op({}, {}, Stream::compute, only(Stream::d2h)),
      Sketch::op({}, {}),
  };
  CHECK(freed_at(s.events()[0], sent) == 3);
}

TEST_CASE("states and shared buffers never appear in the events") {
  Sketch s;
  const SlotId weight = s.slot(9, Storage::weight), grad = s.slot(9, Storage::gradient);
  const SlotId moments = s.slot(9, Storage::optimizer), shared = s.slot(9, Storage::shared);
  s.block.forward = {Sketch::op({weight, shared}, {grad, moments})};
  CHECK(s.events()[0].empty());
}

TEST_CASE("a fresh gradient lives from its first write in backward to the end of the update") {
  Sketch s;
  const SlotId x = s.slot(5), grad = s.slot(3, Storage::fresh_gradient);
  s.block.forward = {Sketch::op({}, {x})};
  s.block.backward = {Sketch::op({x}, {}), Sketch::op({}, {}),
                      Sketch::op({}, {grad}, Stream::reduce_comm)};
  s.block.norm = {Sketch::op({grad}, {})};
  s.block.update = {Sketch::op({grad}, {}), Sketch::op({}, {})};
  const StepLiveness live = step_liveness(s.block, BackwardForm::whole);
  CHECK(memory_use(s.block, live.forward) == kib(5, 5));
  const MemoryUse backward = memory_use(s.block, live.backward);
  CHECK(backward.net == Bytes(-2 * kKiB));  // x goes before the gradient comes
  CHECK(backward.peak == Bytes(0));
  CHECK(backward.parts.gradients == Bytes(3 * kKiB));
  CHECK(live.norm.empty());
  CHECK(freed_at(live.update, grad) == 1);
  // Two such layers: the peak is at the end of forward, before any gradient.
  const MemoryUse forward = power(memory_use(s.block, live.forward), 2);
  const MemoryUse both = then(forward, power(backward, 2));
  CHECK(both.peak == Bytes(10 * kKiB));
  CHECK(both.at_peak.gradients == Bytes(0));
  CHECK(both.parts.gradients == Bytes(6 * kKiB));
}

TEST_CASE("what a peak holds of gradients is known of the earliest of equal peaks") {
  const auto use = [](double net, double peak, double gradients, double at_peak) {
    return MemoryUse{Bytes(net),
                     Bytes(peak),
                     {.gradients = Bytes(gradients), .gathered = {}},
                     {.gradients = Bytes(at_peak), .gathered = {}}};
  };
  CHECK(power(use(2, 3, 2, 1), 3) == use(6, 7, 6, 5));
  CHECK(power(use(0, 3, 2, 1), 3) == use(0, 3, 6, 1));
}

TEST_CASE("frees come before allocations at the same place") {
  Sketch s;
  const SlotId a = s.slot(8), b = s.slot(8);
  s.block.forward = {Sketch::op({}, {a}), Sketch::op({}, {b})};
  CHECK(s.use(0) == kib(0, 8));
}

TEST_CASE("memory in sequence is associative") {
  const auto uses = random_uses(60);
  for (std::size_t i = 0; i + 2 < uses.size(); ++i) {
    const auto [a, b, c] = std::tuple{uses[i], uses[i + 1], uses[i + 2]};
    CHECK(then(then(a, b), c) == then(a, then(b, c)));
  }
}

TEST_CASE("doing nothing before or after changes nothing") {
  for (const MemoryUse& use : random_uses(20)) {
    CHECK(then(use, MemoryUse{}) == use);
    CHECK(then(MemoryUse{}, use) == use);
  }
}

TEST_CASE("a power is repetition, also where each copy frees more than it takes") {
  for (const MemoryUse& use : random_uses(40)) {
    MemoryUse repeated;
    for (int n = 0; n <= 6; ++n) {
      CHECK(power(use, n) == repeated);
      repeated = then(repeated, use);
    }
  }
}

// Every byte that the lists of a stage take is given back, whatever the plan.
TEST_CASE("a step leaves no memory behind in any stage") {
  struct Case {
    std::string model;
    RecipeKind recipe;
  };
  const std::vector<Case> cases = {{"tiny", RecipeKind::qplan},
                                   {"tiny", RecipeKind::fsdp2},
                                   {"tiny-moe", RecipeKind::megatron},
                                   {"tiny-mla", RecipeKind::megatron_fsdp},
                                   {"moonlight-16b-a3b", RecipeKind::qplan},
                                   {"qwen3-vl-30b-a3b", RecipeKind::megatron},
                                   {"megatron-22b", RecipeKind::megatron_legacy}};
  RandomPlans random(11);
  const int rounds = test_rounds(40);
  for (const Case& c : cases) {
    const ModelSpec model = load_model(c.model);
    const Recipe& recipe = recipe_of(c.recipe);
    for (int i = 0; i < rounds; ++i) {
      const ParallelPlan plan = random.next(model, recipe);
      const std::string text = to_string(plan);
      CAPTURE(c.model);
      CAPTURE(text);
      const BlockShape base = base_shape(model, plan, recipe, 1.2);
      const StageList stages = stage_list(model, plan, recipe, base, {});
      // Fully sharded stages have no zero-bubble schedule: their whole gradients cross B and W.
      const bool splits = plan.zero < 2;
      for (const StageRuns& runs : stages.distinct) {
        Bytes whole, halves;
        for (const Run& run : runs) {
          const BlockMemory memory = memory_of(build_block(model, recipe, run.shape),
                                               splits ? BackwardForm::both : BackwardForm::whole);
          const double n = run.count;
          whole += (memory.forward.net + memory.backward.net + memory.end.net) * n;
          halves += (memory.forward.net + memory.backward_input.net + memory.backward_weight.net +
                     memory.end.net) *
                    n;
          // Muon's iterations hold whole matrices for a while; other updates only free.
          if (plan.optimizer != OptimizerKind::muon) CHECK(memory.end.peak == Bytes(0));
        }
        CHECK(whole.value() == 0);
        if (splits) CHECK(halves.value() == 0);
      }
    }
  }
}
