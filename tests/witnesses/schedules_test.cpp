// Pipeline schedules seen through the whole cost model: docs/reference/physics.md 4.
#include "models/program/liveness.h"
#include "tests/witnesses/witness.h"

using namespace qplan;

namespace {

// A model whose stages are all alike but for the embedding and a tiny head.
ModelSpec even_model() {
  ModelSpec m = load_model("llama3-8b");
  m.vocab_size = 128;
  return m;
}

struct Even {
  WitnessJob job{even_model(), "h100-sxm", RecipeKind::qplan};

  // Bubble over work, sends, norm and optimizer left out.
  [[nodiscard]] double bubble(const std::string& line) const {
    const TimeBreakdown time = job.cost.evaluate(parse_plan(line)).time;
    return time.pp_bubble / time.compute;
  }
  [[nodiscard]] double activations(const std::string& line, std::size_t rank) const {
    return job.cost.memory(parse_plan(line)).stages[rank].activations.value();
  }
};

}  // namespace

TEST_CASE("witness: the 1F1B bubble is (p - 1)/m of the work") {
  const Even even;
  for (const int m : {8, 16, 64}) {
    CHECK(std::abs(witness(fmt::format("1F1B bubble / work, p4 m{}", m), 3.0 / m,
                           even.bubble(fmt::format("pp4 gbs{} seq4096", m)), "-")) <
          0.05);  // the head, though tiny, makes the last stage the busiest
  }
}

TEST_CASE("witness: interleaving divides the bubble by its chunks") {
  const Even even;
  const double plain = even.bubble("pp4 gbs16 seq4096");
  for (const int vpp : {2, 4}) {
    const double woven = even.bubble(fmt::format("pp4 gbs16 seq4096 interleaved vpp{}", vpp));
    CHECK(std::abs(witness(fmt::format("interleaved bubble / 1F1B bubble, v{}", vpp), 1.0 / vpp,
                           woven / plain, "-")) < 0.15);
  }
}

TEST_CASE("witness: the first 1F1B stage holds p microbatches' activations, the last one") {
  const Even even;
  const double one = even.activations("pp4 gbs1 seq4096", 1);
  const double four = even.activations("pp4 gbs16 seq4096", 0);
  const double two = even.activations("pp4 gbs16 seq4096", 2);
  CHECK(std::abs(witness("activations in flight, stage 0 of 4", 4, four / one, "microbatches")) <
        0.15);  // a stage's transients are counted once, not p times
  CHECK(std::abs(witness("activations in flight, stage 2 of 4", 2, two / one, "microbatches")) <
        0.10);
}

TEST_CASE("witness: dualpipe's middle holds p + 1 microbatches' activations, its ends p") {
  // p + 1 are in flight everywhere, but a pair frees one microbatch layer by layer while it keeps
  // the next; only the middle runs its first forward and backward apart.
  const Even even;
  const double one = even.activations("pp4 gbs1 seq4096", 1);
  const auto held = [&](std::size_t rank) {
    return even.activations("pp4 gbs16 seq4096 dualpipe", rank) / one;
  };
  CHECK(std::abs(witness("activations in flight, dualpipe rank 0 of 4", 4, held(0),
                         "microbatches")) < 0.15);
  CHECK(std::abs(witness("activations in flight, dualpipe rank 1 of 4", 5, held(1),
                         "microbatches")) < 0.15);
}

TEST_CASE("witness: with F = B = W dualpipe's bubble is 2/9 of 1F1B's on four ranks") {
  const Even even;
  const double ratio = even.bubble("pp4 gbs16 seq4096 dualpipe") / even.bubble("pp4 gbs16 seq4096");
  // Attention has no weight gradient: W is shorter than a third, and fills less.
  CHECK(std::abs(witness("dualpipe bubble / 1F1B bubble, p4", 2.0 / 9, ratio, "-")) < 0.25);
}

TEST_CASE("witness: gpipe holds every microbatch") {
  const Even even;
  const double one = even.activations("pp4 gbs1 seq4096 gpipe", 1);
  const double many = even.activations("pp4 gbs16 seq4096 gpipe", 1);
  CHECK(std::abs(witness("activations in flight, gpipe m16", 16, many / one, "microbatches")) <
        0.15);
}

TEST_CASE("witness: interleaving holds 1 + (p - 1)/(pv) times 1F1B's activations on stage 0") {
  const Even even;
  const double plain = even.activations("pp4 gbs16 seq4096", 0);
  for (const int vpp : {2, 4}) {
    const double woven =
        even.activations(fmt::format("pp4 gbs16 seq4096 interleaved vpp{}", vpp), 0);
    CHECK(std::abs(witness(fmt::format("interleaved / 1F1B activations, v{}", vpp),
                           1 + 3.0 / (4 * vpp), woven / plain, "-")) < 0.10);
  }
}
