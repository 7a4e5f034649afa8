// The CUDA backend's launches on the host, against the reference backend: the same plan, weights
// and tokens, bf16 on both sides. Short, for a thread of a GPU is a fiber here.

#include "executor/cuda/run.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/gpu/device_array.h"
#include "tests/temporary_folder.h"
#include "tests/tiny_models.h"

using namespace qplan;

namespace {

RunOptions options_of(const ModelSpec& model, int steps) {
  RunOptions options;
  options.steps = steps;
  options.weights = seeded_weights(model, 1);
  options.tokens = seeded_tokens(1, model.vocab_size);
  options.optimizer.adamw = {.lr = 1e-3, .weight_decay = 0.1};
  options.keep_gradients = true;
  return options;
}

}  // namespace

// Bounds as on a GPU (tests/gpu/run_test.cpp).
TEST_CASE("two steps of every kind of model are the reference backend's") {
  for (const char* line : {"mbs2 gbs4 seq32 zero3 recompute=full offload=optimizer:0.4",
                           "mbs2 gbs4 seq32 zero3 recompute=full lora4",
                           "mbs2 gbs4 seq32 lora4 lora_targets=k_proj+o_proj+up_proj+experts"}) {
    for (const ModelSpec& model :
         {load_model("tiny"), load_model("tiny-moe"), tied_gpt_model(), biased_model(),
          chunked_model(), rotating_neighbours_model(), predicting_model(),
          predicting(wide_delta_net_model()), predicting(wide_mamba_model())}) {
      const ParallelPlan plan = parse_plan(line);
      CAPTURE(std::string(line));
      CAPTURE(model.name);
      const RunResult reference = run(model, plan, {}, options_of(model, 2));
      const RunResult emulated = run_on_gpu(model, plan, {}, options_of(model, 2), {});
      for (std::size_t i = 0; i < reference.loss.size(); ++i) {
        CHECK(std::abs(emulated.loss[i] / reference.loss[i] - 1) < 2e-3);
      }
      REQUIRE(emulated.mtp_loss.size() == reference.mtp_loss.size());
      for (std::size_t i = 0; i < reference.mtp_loss.size(); ++i) {
        CHECK(std::abs(emulated.mtp_loss[i] / reference.mtp_loss[i] - 1) < 2e-3);
      }
      const std::vector<ModelParameter> parameters = model_parameters(model, plan.lora());
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        CAPTURE(std::string(to_word(parameters[i].parameter.role)));
        CAPTURE(static_cast<int>(parameters[i].parameter.adapter));
        CHECK(test::distance(emulated.gradients[i], reference.gradients[i]) < 4e-2);
      }
    }
  }
}

// On the host sums have one order.
TEST_CASE("a run that goes on from a checkpoint is the run that was never stopped, bit by bit") {
  const ModelSpec model = load_model("tiny-moe");
  const ParallelPlan plan = parse_plan("gbs2 seq32 zero1 offload=optimizer:0.4");
  const TemporaryFolder folder;
  RunOptions first = options_of(model, 1), second = options_of(model, 1),
             whole = options_of(model, 2);
  first.save = second.load = folder.path();
  second.keep_weights = whole.keep_weights = true;
  run_on_gpu(model, plan, {}, first, {});
  const RunResult resumed = run_on_gpu(model, plan, {}, second, {});
  const RunResult straight = run_on_gpu(model, plan, {}, whole, {});
  CHECK(resumed.first_step == 2);
  CHECK(resumed.loss[0] == straight.loss[1]);
  CHECK(resumed.weights == straight.weights);
}
