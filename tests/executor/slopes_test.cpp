// Backward passes against finite differences of the loss, block by block: which blocks there are is
// read from the programs of every built-in model that the executor runs.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "executor/run.h"
#include "planner/rules/feasible.h"
#include "tests/tiny_models.h"

using namespace qplan;

namespace {

constexpr JobFacts kSlopeFacts{.moe_imbalance = 8};

ParallelPlan one_rank() {
  ParallelPlan defaults;
  defaults.precision = Precision::fp32;
  defaults.routing = Routing::natural;
  return parse_plan("gbs1 seq16", defaults);
}

ModelSpec two_layers(ModelSpec model, const std::string& name) {
  model.name = name;
  model.num_layers = 2;
  model.layers.resize(2, model.layers.back());
  return model;
}

// Every token goes to all experts: the loss has no jumps where a token changes its choice.
ModelSpec without_choice(ModelSpec model) {
  model.moe->top_k = model.moe->num_experts;
  model.moe->num_groups = model.moe->topk_group = 1;
  return model;
}

bool chooses(const ModelSpec& model) {
  return model.moe && model.moe->top_k < model.moe->num_experts;
}

// Small models that between them have every kind of block.
std::vector<ModelSpec> small_models() {
  // GPT-2's: learned positions, LayerNorm, GELU, biases; and Nemotron's squared ReLU.
  ModelSpec learned = two_layers(load_model("tiny"), "learned positions");
  learned.position = PositionEmbedding::learned;
  learned.norm = Norm::layer_norm;
  learned.mlp = MlpKind::gelu;
  learned.qk_norm = false;
  learned.qkv_bias = learned.attention_output_bias = learned.mlp_bias = true;
  ModelSpec squared = two_layers(load_model("tiny"), "squared relu");
  squared.mlp = MlpKind::relu2;
  squared.norm = Norm::layer_norm;
  squared.architecture = "nemotron";
  squared.qk_norm = false;
  squared.rotary_fraction = 0.5;
  // Qwen2-MoE's gated shared expert; gpt-oss's sinks, windows and biases.
  ModelSpec gated = two_layers(load_model("tiny-moe"), "gated");
  gated.moe->shared_expert_intermediate_size = 64;
  gated.moe->shared_expert_gate = true;
  ModelSpec biased = two_layers(load_model("tiny-moe"), "sinks");
  biased.architecture = "gpt_oss";
  biased.qk_norm = false;
  biased.attention_sinks = biased.qkv_bias = biased.attention_output_bias = true;
  biased.moe->expert_bias = biased.moe->router_bias = true;
  biased.layers.front().window = 5;
  // GLM-4.5's heads, half of each rotated, in the layer that predicts another token too.
  ModelSpec half_rotated = two_layers(load_model("tiny-moe"), "half rotated");
  half_rotated.rotary_fraction = 0.5;
  half_rotated.qkv_bias = true;
  half_rotated.num_mtp_layers = 1;
  half_rotated.mtp_loss_weight = 0.3;
  half_rotated.moe->sigmoid_scores = half_rotated.moe->router_bias = true;
  half_rotated.moe->shared_expert_intermediate_size = 64;
  // DeepSeek-V2's full queries beside latent keys.
  ModelSpec full_queries = two_layers(load_model("tiny-mla"), "full queries");
  full_queries.mla->q_lora_rank = 0;
  // Qwen3.5's projections apart, and its layer that predicts another token; with experts and
  // without.
  ModelSpec of_qwen = predicting(delta_net_model());
  of_qwen.delta_net->packed_projections = false;
  ModelSpec dense_qwen = of_qwen;
  dense_qwen.name += ", dense";
  dense_qwen.moe.reset();
  for (LayerKind& layer : dense_qwen.layers) layer.moe = false;
  return {two_layers(load_model("tiny"), "tiny"),
          two_layers(load_model("tiny-moe"), "tiny-moe"),
          two_layers(load_model("tiny-mla"), "tiny-mla"),
          learned,
          squared,
          two_layers(tied_model(), "tied"),
          without_choice(two_layers(predicting_model(), "two tokens")),
          without_choice(gated),
          without_choice(biased),
          without_choice(half_rotated),
          without_choice(full_queries),
          without_choice(load_model("tiny-vl")),
          without_choice(chunked_model()),
          without_choice(delta_net_model()),
          without_choice(mamba_model()),
          without_choice(of_qwen),
          dense_qwen,
          without_choice(predicting(mamba_model()))};
}

// Weights five times as large as at initialization: gradients and the loss's changes are far above
// what fp32 rounds off.
ModelTensors large_weights(const ModelSpec& model) {
  const WeightSource seeded = seeded_weights(model, 1);
  ModelTensors weights;
  for (const ModelParameter& p : model_parameters(model)) {
    std::vector<float> values(static_cast<std::size_t>(p.parameter.elements()));
    seeded(p, 0, 0, {values, p.parameter.rows, p.parameter.cols});
    const float scale = is_norm(p.parameter.role) && !p.parameter.bias ? 1 : 5;
    for (float& w : values) w *= scale;
    weights.push_back(std::move(values));
  }
  return weights;
}

// A source that reads what `weights` holds when it is asked.
WeightSource source_of(const ModelTensors& weights) {
  return [&weights](const ModelParameter& p, std::int64_t first_row, std::int64_t first_col,
                    math::Matrix out) {
    const math::ConstMatrix whole(weights[static_cast<std::size_t>(p.index)], p.parameter.rows,
                                  p.parameter.cols);
    for (std::int64_t r = 0; r < out.rows; ++r) {
      std::copy_n(&whole.at(first_row + r, first_col), out.cols, out.row(r).begin());
    }
  };
}

// What a block computes, op by op: "moe layer: rms_norm_backward input_norm".
std::set<std::string> work_of(const ModelSpec& model) {
  const StepProgram program =
      build_step_program(model, one_rank(), recipe_of(RecipeKind::qplan), kSlopeFacts);
  std::set<std::string> all;
  for (const Block& block : program.blocks) {
    for (const OpList* ops : {&block.forward, &block.backward}) {
      for (const Op& op : *ops) {
        const bool named = op.parameter != kNoParameter;
        const auto role = named
                              ? block.parameters[static_cast<std::size_t>(op.parameter)].whole.role
                              : ParameterRole{};
        all.insert(fmt::format("{}: {} {} {}", block.name, kind_name(op.work),
                               static_cast<int>(op.role), named ? to_word(role) : "alone"));
      }
    }
  }
  return all;
}

// Every parameter of a program, by block: "vision layer: o_proj bias".
std::set<std::string> parameters_in(const ModelSpec& model) {
  std::set<std::string> all;
  for (const ModelParameter& p : model_parameters(model)) {
    if (!is_trained(p.parameter.role)) continue;
    all.insert(fmt::format("{} {}{}", static_cast<int>(p.part), to_word(p.parameter.role),
                           p.parameter.bias ? " bias" : ""));
  }
  return all;
}

class Slopes {
 public:
  explicit Slopes(const ModelSpec& model) : model_(model), weights_(large_weights(model)) {
    options_.weights = source_of(weights_);
    options_.tokens = seeded_tokens(1, model.vocab_size);
    RunOptions first = options_;
    first.keep_gradients = true;
    gradients_ = run(model, one_rank(), kSlopeFacts, first).gradients;
  }

  // The squared norm of a parameter's gradient: the loss's slope along it.
  [[nodiscard]] double expected(const ModelParameter& p) const {
    double square = 0;
    for (const float g : gradient(p)) square += static_cast<double>(g) * static_cast<double>(g);
    return square;
  }

  // That slope by central differences over +-h, the weights moved by h along the unit gradient.
  [[nodiscard]] double measured(const ModelParameter& p, double h) {
    const double norm = std::sqrt(expected(p));
    return (loss_at(p, h / norm) - loss_at(p, -h / norm)) / (2 * h) * norm;
  }

 private:
  [[nodiscard]] const std::vector<float>& gradient(const ModelParameter& p) const {
    return gradients_[static_cast<std::size_t>(p.index)];
  }

  [[nodiscard]] double loss_at(const ModelParameter& p, double along) {
    std::vector<float>& moved = weights_[static_cast<std::size_t>(p.index)];
    const std::vector<float> before = moved;
    for (std::size_t i = 0; i < moved.size(); ++i) {
      moved[i] += static_cast<float>(along * static_cast<double>(gradient(p)[i]));
    }
    const RunResult result = run(model_, one_rank(), kSlopeFacts, options_);
    moved = before;
    const bool predicts = model_.num_mtp_layers > 0;
    return result.loss[0] + (predicts ? model_.mtp_loss_weight * result.mtp_loss[0] : 0);
  }

  const ModelSpec& model_;
  ModelTensors weights_;
  RunOptions options_;
  ModelTensors gradients_;
};

}  // namespace

TEST_CASE("gradients are the loss's slopes, of every parameter of every kind of block") {
  std::set<std::string> tested, all;
  for (const ModelSpec& model : small_models()) {
    CAPTURE(model.name);
    all.merge(parameters_in(model));
    Slopes slopes(model);
    // The loss is near 5.5, hence known to 5e-7 in fp32: 1% of its change where the gradient's norm
    // is `least`. Steps are shorter where a longer one changes a token's experts, and where the
    // loss is steep: behind norms of small numbers it bends within them.
    const double step = chooses(model) ? 1e-3 : 1e-2, least = 2.5e-5 / step;
    for (const ModelParameter& p : model_parameters(model)) {
      if (!is_trained(p.parameter.role) || p.copy > 1) continue;  // experts are alike
      const double expected = slopes.expected(p);
      if (expected < least * least) continue;
      const std::string name = std::string(to_word(p.parameter.role));
      CAPTURE(name);
      CAPTURE(p.parameter.bias);
      CAPTURE(p.layer);
      CAPTURE(p.copy);
      const double shorter = std::min(step, 0.02 / std::sqrt(expected));
      CHECK(slopes.measured(p, shorter) == doctest::Approx(expected).epsilon(0.03));
      tested.insert(
          fmt::format("{} {}{}", static_cast<int>(p.part), name, p.parameter.bias ? " bias" : ""));
    }
  }
  for (const std::string& parameter : all) {
    CAPTURE(parameter);
    CHECK(tested.contains(parameter));
  }
}

TEST_CASE("no built-in model has a block whose slopes are not tested") {
  std::set<std::string> tested;
  for (const ModelSpec& model : small_models()) tested.merge(work_of(model));
  int models = 0;
  for (const std::string& name : model_names()) {
    const ModelSpec model = load_model(name);
    const auto rules = why_infeasible(model, one_rank(), recipe_of(RecipeKind::qplan), {.gpus = 1});
    const bool refused = std::any_of(rules.begin(), rules.end(), [](const Infeasible& reason) {
      return reason.rule == "executor_model";
    });
    if (refused) continue;
    ++models;
    CAPTURE(name);
    for (const std::string& work : work_of(model)) {
      CAPTURE(work);
      CHECK(tested.contains(work));
    }
  }
  CHECK(models >= 20);
}
