// The reference mathematics against Hugging Face transformers (tests/data/transformers).

#include "tests/executor/plain/model.h"

#include <doctest/doctest.h>

#include <cmath>

#include "executor/io/tokens.h"
#include "executor/math/optimizer.h"
#include "tests/executor/reference_runs.h"

using namespace qplan;

TEST_CASE("losses, gradients and steps are those of transformers") {
  for (const std::string& name : ReferenceRun::names()) {
    CAPTURE(name);
    const ReferenceRun run(name);
    // This model in a straight line has no tower, no recurrence, and no pairs of neighbours.
    const ModelSpec& m = run.model();
    if (m.vision || m.delta_net || m.mamba || m.rotary_interleaved) continue;
    PlainModel model(run.model(), run.weights());
    const auto& parameters = model.parameters();
    std::vector<std::vector<float>> moment1, moment2;
    for (const auto& w : model.weights()) {
      moment1.emplace_back(w.size());
      moment2.emplace_back(w.size());
    }
    for (std::int64_t step = 0; step < run.steps(); ++step) {
      CAPTURE(step);
      const double loss = model.step(run.batch(step), run.seq_len());
      CHECK(loss == doctest::Approx(run.loss(step)).epsilon(step == 0 ? 1e-6 : 1e-5));
      if (step == 0) CHECK(run.worst_gradient(model.gradients()) < 1e-5);
      double squares = 0;
      for (const auto& gradient : model.gradients()) squares += math::sum_of_squares(gradient);
      CHECK(std::sqrt(squares) == doctest::Approx(run.grad_norm(step)).epsilon(1e-5));
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const Parameter& p = parameters[i].parameter;
        if (!is_trained(p.role)) continue;
        math::AdamWSettings settings = run.adamw();
        if (is_vector(p)) settings.weight_decay = 0;
        math::adamw(settings, step + 1, model.gradients()[i],
                    math::clip_scale(std::sqrt(squares), run.clip_grad()), model.weights()[i],
                    moment1[i], moment2[i]);
      }
    }
  }
}
