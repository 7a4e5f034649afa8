// Checkpoints of runs on a GPU: they go on there, under another plan, and on the other backend.

#include <doctest/doctest.h>

#include <string>

#include "executor/cuda/run.h"
#include "tests/temporary_folder.h"

using namespace qplan;

namespace {

RunOptions options_of(const ModelSpec& model, int steps, const std::string& load,
                      const std::string& save) {
  RunOptions options;
  options.steps = steps;
  options.weights = seeded_weights(model, 1);
  options.tokens = seeded_tokens(1, model.vocab_size);
  options.optimizer.adamw = {.lr = 1e-3, .weight_decay = 0.1};
  options.load = load;
  options.save = save;
  options.keep_weights = true;
  return options;
}

RunResult on_gpu(const ModelSpec& model, const std::string& line, int steps,
                 const std::string& load = "", const std::string& save = "") {
  return run_on_gpu(model, parse_plan(line), {}, options_of(model, steps, load, save), {});
}

RunResult on_cpu(const ModelSpec& model, const std::string& line, int steps,
                 const std::string& load = "", const std::string& save = "") {
  return run(model, parse_plan(line), {}, options_of(model, steps, load, save));
}

struct Change {
  std::string model, before, after;
};

}  // namespace

// The backward pass adds queries' gradients in no fixed order, and bf16 rounds each parameter.
TEST_CASE("a run on a GPU goes on from a checkpoint under another plan") {
  for (const Change& c : std::initializer_list<Change>{
           {"tiny", "gbs4 seq128", "gbs4 seq128"},
           {"tiny", "gbs4 seq128 zero3", "mbs2 gbs4 seq128"},
           {"tiny", "gbs4 seq128 offload=optimizer:0.4", "gbs4 seq128 zero1"},
           {"tiny", "gbs4 seq128", "gbs4 seq128 zero3 offload=optimizer"},
           {"tiny-moe", "mbs2 gbs4 seq128", "gbs4 seq128 recompute=full zero1"}}) {
    CAPTURE(c.before);
    CAPTURE(c.after);
    const ModelSpec model = load_model(c.model);
    const TemporaryFolder folder;
    on_gpu(model, c.before, 2, "", folder.path());
    const RunResult second = on_gpu(model, c.after, 2, folder.path());
    const RunResult whole = on_gpu(model, c.before, 4);
    CHECK(second.first_step == 3);
    CHECK(second.loss[0] == doctest::Approx(whole.loss[2]).epsilon(5e-4));
    CHECK(second.loss[1] == doctest::Approx(whole.loss[3]).epsilon(5e-4));
  }
}

TEST_CASE("a GPU's checkpoint holds its main parameters bit by bit") {
  const ModelSpec model = load_model("tiny");
  const TemporaryFolder folder;
  const RunResult saved = on_gpu(model, "gbs4 seq128 offload=optimizer:0.4", 2, "", folder.path());
  const Checkpoint checkpoint(folder.path(), model);
  CHECK(checkpoint.facts().step == 2);
  CHECK(checkpoint.facts().sequences == 8);
  for (std::size_t i = 0; i < saved.weights.size(); ++i) {
    std::vector<float> read(saved.weights[i].size());
    checkpoint.read(StateKind::main, static_cast<std::int64_t>(i), 0, read);
    CHECK(read == saved.weights[i]);
  }
}

// Losses as between the two backends (run_test.cpp).
TEST_CASE("what one backend saves, the other goes on from") {
  const ModelSpec model = load_model("tiny");
  const std::string several = "tp2 sp dp2 zero1 gbs4 seq128", one = "gbs4 seq128 zero3";
  const RunResult whole = on_cpu(model, several, 4);
  const auto check_end = [&](const RunResult& second) {
    CHECK(second.first_step == 3);
    CHECK(second.loss[0] == doctest::Approx(whole.loss[2]).epsilon(2e-3));
    CHECK(second.loss[1] == doctest::Approx(whole.loss[3]).epsilon(2e-3));
  };
  const TemporaryFolder from_cpu, from_gpu;
  on_cpu(model, several, 2, "", from_cpu.path());
  check_end(on_gpu(model, one, 2, from_cpu.path()));
  on_gpu(model, one, 2, "", from_gpu.path());
  check_end(on_cpu(model, several, 2, from_gpu.path()));
}
