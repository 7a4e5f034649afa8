#include "executor/io/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "executor/io/philox.h"
#include "executor/io/safetensors.h"
#include "models/error.h"

namespace qplan {
namespace {

constexpr double kDeviation = 0.02;  // initializer_range's default, transformers
constexpr double kTwoPi = 6.283185307179586;

// Element `index` of a parameter: blocks of four uniform numbers make four normal ones (Box and
// Muller, two by two).
float seeded_normal(std::uint64_t seed, std::uint32_t parameter, std::int64_t index) {
  const auto block =
      random_block(seed, RandomStream::weights, parameter, static_cast<std::uint64_t>(index) / 4);
  const auto pair = static_cast<std::size_t>(index % 4 / 2 * 2);
  // Centred in their steps of 2^-32, so the logarithm is finite.
  const double u = (block[pair] + 0.5) * 0x1p-32, v = (block[pair + 1] + 0.5) * 0x1p-32;
  const double radius = std::sqrt(-2 * std::log(u)), angle = kTwoPi * v;
  const double normal = radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
  return static_cast<float>(kDeviation * normal);
}

// Copies and buffers in checkpoints that are no parameters of their own.
bool is_ignorable(const ModelSpec& model, std::string_view name) {
  if (model.tie_word_embeddings && name == "lm_head.weight") return true;
  if (model.num_mtp_layers > 0 &&
      (name.ends_with(".embed_tokens.weight") || name.ends_with(".shared_head.head.weight"))) {
    return true;  // an MTP layer's copies of the model's embedding and head
  }
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.masked_bias") ||
         (model.architecture == "gpt2" && name.ends_with(".attn.bias"));
}

std::string and_more(std::size_t count) {
  return count > 1 ? fmt::format(" and {} more", count - 1) : "";
}

// Every parameter has its tensor, of the right shape, and no tensor is left over.
void check_tensors(const ModelSpec& model, const TensorStore& store) {
  std::map<std::string, std::vector<std::int64_t>> expected;
  for (const ModelParameter& parameter : model_parameters(model)) {
    TensorPlace place = tensor_place(model, parameter);
    expected.emplace(std::move(place.name), std::move(place.shape));
  }
  std::vector<std::string> missing;
  for (const auto& [name, shape] : expected) {
    const TensorInfo* info = store.find(name);
    if (info == nullptr) {
      missing.push_back(name);
    } else if (info->shape != shape) {
      throw Error(fmt::format("'{}': tensor '{}' has shape {}; {} needs {}", store.path(), name,
                              shape_text(info->shape), model.name, shape_text(shape)));
    }
  }
  if (!missing.empty()) {
    throw Error(fmt::format("'{}' lacks tensor '{}'{} of the {} that {} needs", store.path(),
                            missing.front(), and_more(missing.size()), expected.size(),
                            model.name));
  }
  std::vector<std::string> left_over;
  for (const std::string& name : store.names()) {
    if (!expected.contains(name) && !is_ignorable(model, name)) left_over.push_back(name);
  }
  if (!left_over.empty()) {
    throw Error(fmt::format(
        "'{}' holds tensor '{}'{}, which {} has no parameter for; is it another "
        "model's?",
        store.path(), shown(left_over.front()), and_more(left_over.size()), model.name));
  }
}

// Reads along the dim whose elements lie closer together, one span of the tensor a line.
void read_part(const TensorStore& store, const TensorPlace& place, std::int64_t first_row,
               std::int64_t first_col, math::Matrix out) {
  const bool by_rows = place.col_stride <= place.row_stride;
  const std::int64_t lines = by_rows ? out.rows : out.cols;
  const std::int64_t count = by_rows ? out.cols : out.rows;
  const std::int64_t step = by_rows ? place.col_stride : place.row_stride;
  const std::int64_t line_step = by_rows ? place.row_stride : place.col_stride;
  if (lines == 0 || count == 0) return;
  const std::int64_t begin =
      place.begin + first_row * place.row_stride + first_col * place.col_stride;
  std::vector<float> line(static_cast<std::size_t>((count - 1) * step + 1));
  for (std::int64_t i = 0; i < lines; ++i) {
    store.read(place.name, begin + i * line_step, line);
    for (std::int64_t j = 0; j < count; ++j) {
      (by_rows ? out.at(i, j) : out.at(j, i)) = line[static_cast<std::size_t>(j * step)];
    }
  }
}

// Magnitudes start as the norms of their weight's rows (DoraLinearLayer.update_layer in PEFT), for
// B is 0.
void read_norms(const TensorStore& store, const ModelSpec& model, const ModelParameter& magnitude,
                std::int64_t first_row, math::Matrix out) {
  const LayerKind kind = magnitude.part == ModelPart::decoder
                             ? model.layers[static_cast<std::size_t>(magnitude.layer)]
                             : LayerKind{};
  ModelParameter weight = magnitude;
  for (const Parameter& p : parameters_of(model, magnitude.part, kind)) {
    if (p.role == magnitude.parameter.role && !p.bias) weight.parameter = p;
  }
  const std::int64_t cols = weight.parameter.cols;
  std::vector<float> row(static_cast<std::size_t>(cols));
  for (std::int64_t r = 0; r < out.rows; ++r) {
    read_part(store, tensor_place(model, weight), first_row + r, 0, {row, 1, cols});
    double squares = 0;
    for (const float x : row) squares += static_cast<double>(x) * static_cast<double>(x);
    out.at(r, 0) = static_cast<float>(std::sqrt(squares));
  }
}

}  // namespace

bool norm_around_zero(const ModelSpec& model) {
  return model.architecture == "nemotron" || model.zero_centered_norms;
}

float SeededWeights::centre(const Parameter& p) const {
  // So long are rows of 64 such numbers, which tiny models have: DoRA's start as its weights' rows.
  if (p.adapter == Adapter::magnitude) return static_cast<float>(8 * kDeviation);
  // Gated DeltaNet's is never around 0 (Qwen3NextRMSNormGated).
  if (p.role == ParameterRole::linear_norm) return 1;
  return is_norm(p.role) && !p.bias ? norm_centre : 0.0F;
}

void SeededWeights::operator()(const ModelParameter& it, std::int64_t first_row,
                               std::int64_t first_col, math::Matrix out) const {
  const Parameter& p = it.parameter;
  const auto number = static_cast<std::uint32_t>(it.index);
  for (std::int64_t r = 0; r < out.rows; ++r) {
    const std::int64_t begin = (first_row + r) * p.cols + first_col;
    for (std::int64_t c = 0; c < out.cols; ++c) {
      out.at(r, c) = centre(p) + seeded_normal(seed, number, begin + c);
    }
  }
}

WeightSource seeded_weights(const ModelSpec& model, std::uint64_t seed) {
  return SeededWeights{seed, norm_around_zero(model) ? 0.0F : 1.0F};
}

WeightSource checkpoint_weights(const ModelSpec& model, const std::string& path) {
  const auto store = std::make_shared<const TensorStore>(path);
  check_tensors(model, *store);
  return [store, model](const ModelParameter& parameter, std::int64_t first_row,
                        std::int64_t first_col, math::Matrix out) {
    if (parameter.parameter.adapter == Adapter::magnitude) {
      return read_norms(*store, model, parameter, first_row, out);
    }
    // Adapters start as PEFT's do: A at random, B at 0, so that they add nothing.
    if (parameter.parameter.adapter == Adapter::lora_b) {
      for (std::int64_t r = 0; r < out.rows; ++r) std::ranges::fill(out.row(r), 0.0F);
      return;
    }
    if (parameter.parameter.adapter == Adapter::lora_a) {
      return SeededWeights{}(parameter, first_row, first_col, out);
    }
    read_part(*store, tensor_place(model, parameter), first_row, first_col, out);
  };
}

}  // namespace qplan
