#include "executor/run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <span>

#include "models/error.h"
#include "tests/properties/random_plans.h"

using namespace qplan;

namespace {

constexpr JobFacts kFacts{.moe_imbalance = 8};

ParallelPlan plan_of(const std::string& line, Precision precision = Precision::fp32) {
  ParallelPlan defaults;
  defaults.precision = precision;
  defaults.routing = Routing::natural;
  return parse_plan(line, defaults);
}

// Two layers, so that a thousand runs are quick.
ModelSpec small(const std::string& name) {
  ModelSpec model = load_model(name);
  model.num_layers = 2;
  model.layers.resize(2, model.layers.back());
  return model;
}

// The places of a rank's commands.
std::vector<std::int64_t> commands_of(const ModelSpec& model, const ParallelPlan& plan,
                                      std::int64_t rank) {
  const StepProgram program = build_step_program(model, plan, recipe_of(RecipeKind::qplan), kFacts);
  std::vector<std::int64_t> places(
      rank_program(program, program.grid.dense(rank).pp).commands.size());
  std::iota(places.begin(), places.end(), 0);
  return places;
}

RunOptions options_of(const ModelSpec& model, int steps = 1) {
  RunOptions options;
  options.steps = steps;
  options.weights = seeded_weights(model, 1);
  options.tokens = seeded_tokens(1, model.vocab_size);
  return options;
}

}  // namespace

TEST_CASE("a batch is read when its step begins, once for all ranks") {
  const ModelSpec model = small("tiny");
  RunOptions options = options_of(model, 3);
  const TokenSource tokens = options.tokens;
  std::array<std::atomic<int>, 12> reads{};
  std::atomic<int> begun = 0, read = 0;
  std::atomic<bool> ahead = false;
  options.tokens = [&](std::int64_t sequence, std::span<std::int32_t> ids) {
    ++reads[static_cast<std::size_t>(sequence)];
    ++read;
    tokens(sequence, ids);
  };
  options.before = [&](std::int64_t rank, std::size_t command) {
    if (rank == 0 && command == 0) ahead = ahead || read > 4 * ++begun;
  };
  run(model, plan_of("gbs4 seq16"), kFacts, options);
  CHECK_FALSE(ahead);
  begun = read = 0;
  run(model, plan_of("tp2 dp2 gbs4 seq16"), kFacts, options);
  for (const auto& times : reads) CHECK(times == 2);
}

TEST_CASE("bf16 follows fp32 to bf16's accuracy") {
  // bf16 keeps 8 bits: a relative error of 2^-9 an operand, averaged over many.
  for (const char* line : {"gbs4 seq16", "tp2 dp2 zero1 gbs4 seq16 sp", "pp2 dp2 zero3 gbs4 seq16",
                           "dp2 zero2 gbs4 seq16 grad_dtype=bf16 moment_dtype=bf16"}) {
    CAPTURE(line);
    const ModelSpec model = load_model("tiny");
    const RunResult exact = run(model, plan_of("gbs4 seq16"), kFacts, options_of(model, 3));
    const RunResult rounded =
        run(model, plan_of(line, Precision::bf16), kFacts, options_of(model, 3));
    for (std::size_t i = 0; i < exact.loss.size(); ++i) {
      CHECK(rounded.loss[i] == doctest::Approx(exact.loss[i]).epsilon(2e-3));
      CHECK(rounded.grad_norm[i] == doctest::Approx(exact.grad_norm[i]).epsilon(5e-2));
    }
  }
}

TEST_CASE("a run is the same, bit for bit, in program order and in any other") {
  const ModelSpec model = load_model("tiny-moe");
  const ParallelPlan plan = plan_of("tp2 pp2 dp2 ep2 zero1 gbs8 seq16 sp");
  const RunResult straight = run(model, plan, kFacts, options_of(model, 2));
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    RunOptions options = options_of(model, 2);
    options.shuffle = seed;
    const RunResult shuffled = run(model, plan, kFacts, options);
    CHECK(shuffled.loss == straight.loss);
    CHECK(shuffled.grad_norm == straight.grad_norm);
  }
}

TEST_CASE("experts that get more tokens than there is room for are named") {
  const ModelSpec model = load_model("tiny-moe");
  const JobFacts tight{.moe_imbalance = 1};
  try {
    run(model, plan_of("dp2 ep2 gbs2 seq16"), tight, options_of(model));
    FAIL("two experts of eight are never chosen equally often by chance");
  } catch (const Error& error) {
    const std::string message = error.what();
    CHECK(message.find("use a larger moe_imbalance") != std::string::npos);
    CHECK(message.find("moe layer") != std::string::npos);
  }
}

TEST_CASE("a loss that is no number ends the run") {
  const ModelSpec model = small("tiny");
  RunOptions options = options_of(model);
  const WeightSource base = options.weights;
  options.weights = [base](const ModelParameter& p, std::int64_t row, std::int64_t col,
                           math::Matrix out) {
    base(p, row, col, out);
    if (p.parameter.role == ParameterRole::final_norm) out.at(0, 0) = NAN;
  };
  CHECK_THROWS_AS(run(model, plan_of("gbs1 seq8"), kFacts, options), Error);
}

TEST_CASE("a rank that fails anywhere stops all within a second, and is named") {
  const ModelSpec model = small("tiny");
  const std::vector<std::string> lines = {"tp2 pp2 gbs4 seq8 sp", "dp4 zero3 gbs4 seq8",
                                          "pp2 dp2 gbs4 seq8 zb-h1 zero1", "cp2 dp2 gbs2 seq8"};
  RandomPlans random(5);
  const int rounds = test_rounds(1000);
  for (int i = 0; i < rounds; ++i) {
    const ParallelPlan plan = plan_of(random.pick(lines));
    const auto rank = random.pick<std::int64_t>({0, 1, 2, 3});
    const auto command = static_cast<std::size_t>(random.pick(commands_of(model, plan, rank)));
    CAPTURE(to_string(plan));
    CAPTURE(rank);
    CAPTURE(command);
    RunOptions options = options_of(model);
    std::chrono::steady_clock::time_point failed;
    options.before = [&](std::int64_t r, std::size_t c) {
      if (r != rank || c != command) return;
      failed = std::chrono::steady_clock::now();
      throw Error("an injected fault");
    };
    try {
      run(model, plan, kFacts, options);
      FAIL_CHECK("the fault was not noticed");
    } catch (const Error& error) {
      const std::string message = error.what();
      CHECK(message.find("rank " + std::to_string(rank) + ", ") == 0);
      CHECK(message.find("an injected fault") != std::string::npos);
      CHECK(message.find(" of ") != std::string::npos);
      const std::chrono::duration<double> late = std::chrono::steady_clock::now() - failed;
      CHECK(late.count() < 1);
    }
  }
}
