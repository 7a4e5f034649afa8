#include "tests/executor/reference_runs.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "executor/io/tokens.h"

namespace qplan {
namespace {

const std::string kFolder = QPLAN_TEST_DATA "/transformers";

Json reference() {
  return read_json_file(kFolder + "/reference.json");
}

}  // namespace

std::vector<std::string> ReferenceRun::names() {
  std::vector<std::string> names;
  const Json all = reference();
  for (const auto& [name, run] : all["models"].items()) names.push_back(name);
  return names;
}

ReferenceRun::ReferenceRun(const std::string& name)
    : reference_(reference()),
      own_(reference_["models"][name]),
      folder_(kFolder + "/" + name),
      model_(load_model(folder_)) {}

WeightSource ReferenceRun::weights() const {
  return checkpoint_weights(model_, weights_file());
}

std::string ReferenceRun::tokens_file() {
  return kFolder + "/tokens.bin";
}

std::int64_t ReferenceRun::seq_len() const {
  return reference_["seq_len"].get<std::int64_t>();
}

std::int64_t ReferenceRun::global_batch_size() const {
  return reference_["global_batch_size"].get<std::int64_t>();
}

std::vector<std::int32_t> ReferenceRun::batch(std::int64_t step) const {
  const std::int64_t sequences = global_batch_size(), width = seq_len() + 1;
  const TokenSource tokens = file_tokens(
      tokens_file(),
      {.vocab_size = model_.vocab_size, .seq_len = seq_len(), .sequences = steps() * sequences});
  std::vector<std::int32_t> ids(static_cast<std::size_t>(sequences * width));
  for (std::int64_t i = 0; i < sequences; ++i) {
    tokens(step * sequences + i, std::span(ids).subspan(static_cast<std::size_t>(i * width),
                                                        static_cast<std::size_t>(width)));
  }
  return ids;
}

math::AdamWSettings ReferenceRun::adamw() const {
  const Json& a = reference_["adamw"];
  return {.lr = a["lr"].get<double>(),
          .beta1 = a["betas"][0].get<double>(),
          .beta2 = a["betas"][1].get<double>(),
          .epsilon = a["eps"].get<double>(),
          .weight_decay = a["weight_decay"].get<double>()};
}

double ReferenceRun::clip_grad() const {
  return reference_["clip_grad"].get<double>();
}

double ReferenceRun::loss(std::int64_t step) const {
  return own_["loss"][static_cast<std::size_t>(step)].get<double>();
}

double ReferenceRun::grad_norm(std::int64_t step) const {
  return own_["grad_norm"][static_cast<std::size_t>(step)].get<double>();
}

double ReferenceRun::worst_gradient(const std::vector<std::vector<float>>& gradients) const {
  const WeightSource expected = checkpoint_weights(model_, folder_ + "/gradients.safetensors");
  double worst = 0;
  for (const ModelParameter& it : model_parameters(model_)) {
    if (!is_trained(it.parameter.role)) continue;
    const auto& actual = gradients.at(static_cast<std::size_t>(it.index));
    std::vector<float> want(actual.size());
    expected(it, 0, 0, {want, it.parameter.rows, it.parameter.cols});
    double difference = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      difference += std::pow(static_cast<double>(actual[i]) - want[i], 2);
    }
    // Some gradients are 0 but for rounding: of experts without tokens, and of a key's bias without
    // rope, which moves all scores of a query alike. They are measured by the whole gradient.
    const double size = std::max(std::sqrt(math::sum_of_squares(want)), 1e-3 * grad_norm(0));
    worst = std::max(worst, std::sqrt(difference) / size);
  }
  return worst;
}

ModelSpec with_all_experts(ModelSpec model) {
  if (!model.moe) return model;
  model.moe->top_k = model.moe->num_experts;
  model.moe->num_groups = model.moe->topk_group = 1;
  return model;
}

double ReferenceRun::loss_with_all_experts() const {
  return own_["bf16"]["exact_loss"].get<double>();
}

ReferenceRun::Bf16Errors ReferenceRun::bf16_errors() const {
  const Json& e = own_["bf16"];
  return {e["loss"].get<double>(), e["worst_gradient"].get<double>(),
          e["mean_gradient"].get<double>()};
}

ReferenceRun::Bf16Errors ReferenceRun::errors(const std::vector<std::vector<float>>& rounded,
                                              const std::vector<std::vector<float>>& exact) const {
  struct Squares {
    double difference = 0, size = 0;
  };
  std::map<std::string, Squares> tensors;  // the checkpoint's, of which some hold many parameters
  double all = 0;
  for (const ModelParameter& it : model_parameters(model_)) {
    if (!is_trained(it.parameter.role)) continue;
    const auto &actual = rounded.at(static_cast<std::size_t>(it.index)),
               &want = exact.at(static_cast<std::size_t>(it.index));
    Squares& sum = tensors[tensor_place(model_, it).name];
    for (std::size_t i = 0; i < want.size(); ++i) {
      sum.difference += std::pow(static_cast<double>(actual[i]) - static_cast<double>(want[i]), 2);
      sum.size += std::pow(static_cast<double>(want[i]), 2);
      all += std::pow(static_cast<double>(want[i]), 2);
    }
  }
  Bf16Errors errors;
  for (const auto& [name, sum] : tensors) {
    const double error =
        std::sqrt(sum.difference) / std::max(std::sqrt(sum.size), 1e-3 * std::sqrt(all));
    errors.worst_gradient = std::max(errors.worst_gradient, error);
    errors.mean_gradient += error / static_cast<double>(tensors.size());
  }
  return errors;
}

std::vector<double> ReferenceRun::curve(const std::string& precision) const {
  if (!own_.contains("curve")) return {};
  return own_["curve"][precision].get<std::vector<double>>();
}

}  // namespace qplan
