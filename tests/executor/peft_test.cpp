// The executor against Hugging Face PEFT: adapters as files, loss and their gradients as PEFT
// computed them beside the same frozen weights (tests/data/peft).

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "executor/io/safetensors.h"
#include "executor/run.h"
#include "models/json.h"
#include "models/trained.h"
#include "planner/rules/feasible.h"
#include "tests/executor/reference_runs.h"

using namespace qplan;

namespace {

const std::string kFolder = QPLAN_TEST_DATA "/peft";

// What is trained from a file of PEFT's, everything else from the frozen model.
class PeftRun {
 public:
  explicit PeftRun(const std::string& name)
      : own_(read_json_file(kFolder + "/reference.json")["cases"][name]),
        base_(own_["model"].get<std::string>()),
        adapters_(std::make_shared<TensorStore>(kFolder + "/" + name + "/adapters.safetensors")),
        gradients_(kFolder + "/" + name + "/gradients.safetensors") {}

  [[nodiscard]] const ModelSpec& model() const { return base_.model(); }
  [[nodiscard]] double number(const char* key) const { return own_[key].get<double>(); }

  [[nodiscard]] ParallelPlan plan(const std::string& words) const {
    ParallelPlan defaults;
    defaults.precision = Precision::fp32;
    defaults.routing = Routing::natural;
    return parse_plan(own_["plan"].get<std::string>() + " " + words, defaults);
  }

  [[nodiscard]] WeightSource weights(const Trained& trained) const {
    return [store = adapters_, model = model(), frozen = base_.weights(), trained](
               const ModelParameter& it, std::int64_t row, std::int64_t col, math::Matrix out) {
      if (trained.leaves_frozen(it.parameter)) return frozen(it, row, col, out);
      for (std::int64_t r = 0; r < out.rows; ++r) {
        store->read(name_of(model, it), (row + r) * it.parameter.cols + col, out.row(r));
      }
    };
  }

  // Largest relative L2 difference of a trained parameter's gradient, and how many numbers were
  // compared.
  struct Compared {
    double worst = 0;
    std::int64_t numbers = 0;
  };
  [[nodiscard]] Compared compare(const ModelTensors& gradients, const Trained& trained) const {
    Compared result;
    for (const ModelParameter& it : model_parameters(model(), trained.lora)) {
      if (trained.leaves_frozen(it.parameter)) continue;
      const auto& actual = gradients.at(static_cast<std::size_t>(it.index));
      std::vector<float> want(actual.size());
      gradients_.read(name_of(model(), it), 0, want);
      double difference = 0, size = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        difference += std::pow(static_cast<double>(actual[i]) - static_cast<double>(want[i]), 2);
        size += std::pow(static_cast<double>(want[i]), 2);
      }
      const double by = std::max(std::sqrt(size), 1e-3 * number("grad_norm"));
      result.worst = std::max(result.worst, std::sqrt(difference) / by);
      result.numbers += it.parameter.elements();
    }
    return result;
  }

 private:
  // modules_to_save keep their module's name in PEFT's model.
  static std::string name_of(const ModelSpec& model, const ModelParameter& it) {
    const std::string name = tensor_place(model, it).name;
    return it.parameter.adapter == Adapter::none ? "base_model.model." + name : name;
  }

  Json own_;
  ReferenceRun base_;
  std::shared_ptr<TensorStore> adapters_;
  TensorStore gradients_;
};

void check(const std::string& name, const std::string& words) {
  CAPTURE(name);
  CAPTURE(words);
  const PeftRun reference(name);
  const ParallelPlan plan = reference.plan(words);
  for (const Infeasible& reason : why_infeasible(
           reference.model(), plan, recipe_of(RecipeKind::qplan), {.gpus = plan.world()})) {
    FAIL_CHECK(reason.message);
  }
  const Trained trained = trained_by(plan);
  RunOptions options;
  options.steps = 1;
  options.keep_gradients = true;
  options.weights = reference.weights(trained);
  options.tokens =
      file_tokens(ReferenceRun::tokens_file(), {.vocab_size = reference.model().vocab_size,
                                                .seq_len = plan.seq_len,
                                                .sequences = plan.global_batch_size});
  const RunResult result = run(reference.model(), plan, {.moe_imbalance = 8}, options);
  CHECK(result.loss[0] == doctest::Approx(reference.number("loss")).epsilon(1e-6));
  CHECK(result.loss[0] == doctest::Approx(reference.number("merged_loss")).epsilon(1e-6));
  CHECK(result.grad_norm[0] == doctest::Approx(reference.number("grad_norm")).epsilon(1e-5));
  const PeftRun::Compared compared = reference.compare(result.gradients, trained);
  CHECK(compared.worst < 1e-4);
  CHECK(compared.numbers == static_cast<std::int64_t>(reference.number("trained")));
  MESSAGE(name, " ", words, ": loss ", result.loss[0] / reference.number("loss") - 1,
          ", worst gradient ", compared.worst);
}

}  // namespace

TEST_CASE("loss and adapters' gradients are those of PEFT, whatever the plan") {
  check("lora", "mbs1");
  check("lora", "tp2 sp dp2 zero3 recompute=full");
  check("lora", "pp2 cp2 1f1b");
  check("lora_qv", "mbs4");
  check("lora_qv", "tp2 dp2 zero1");
  check("lora_moe", "mbs1");
  check("lora_moe", "tp2 sp ep2 etp1");
  check("lora_mla", "mbs1");
  check("lora_mla", "tp2 sp ep2 etp1");
}

TEST_CASE("trained embeddings and head beside adapters have PEFT's gradients") {
  check("embeddings", "mbs1");
  check("embeddings", "tp2 sp");
  check("embeddings", "dp2 zero3");
  check("embeddings", "pp2 dp2 zero1 1f1b");
}

TEST_CASE("DoRA's loss and gradients are those of PEFT, whatever the plan") {
  check("dora", "mbs1");
  check("dora", "tp2");
  check("dora", "tp2 sp dp2 zero3");
  check("dora", "pp2 dp2 zero2 1f1b recompute=full");
  check("dora", "cp2 dp2");
  check("dora_bias", "mbs2");
  check("dora_bias", "tp2 sp");
  check("dora_moe", "mbs1");
  check("dora_moe", "tp2 sp ep2 etp1");
  check("dora_mla", "mbs1");
  check("dora_mla", "tp2 sp ep2 etp1");
  check("dora_mla", "dp2 zero3");
}
