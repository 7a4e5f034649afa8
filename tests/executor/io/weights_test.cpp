#include "executor/io/weights.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "executor/io/safetensors.h"
#include "models/json.h"
#include "tests/complaint.h"
#include "tests/temporary_folder.h"

using namespace qplan;
using math::Matrix;

namespace {

std::vector<float> all_of(const WeightSource& source, const ModelParameter& it) {
  std::vector<float> values(static_cast<std::size_t>(it.parameter.elements()));
  source(it, 0, 0, Matrix(values, it.parameter.rows, it.parameter.cols));
  return values;
}

// A checkpoint whose tensors count up from their number in the alphabet.
void write_checkpoint(const ModelSpec& model, const std::string& path) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const ModelParameter& it : model_parameters(model)) {
    const TensorPlace place = tensor_place(model, it);
    shapes[place.name] = place.shape;
  }
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, shape] : shapes) {
    const auto start = static_cast<float>(1000 * tensors.size());
    tensors.push_back({name, DType::fp32, shape, [start](std::int64_t first, auto out) {
                         std::iota(out.begin(), out.end(), start + static_cast<float>(first));
                       }});
  }
  write_safetensors(path, tensors);
}

// Any part of a parameter equals that part of the whole.
void check_parts(const ModelSpec& model, const WeightSource& source) {
  for (const ModelParameter& it : model_parameters(model)) {
    const auto whole = all_of(source, it);
    const std::int64_t rows = it.parameter.rows, cols = it.parameter.cols;
    const std::int64_t r0 = rows / 3, c0 = cols / 2;
    std::vector<float> part(static_cast<std::size_t>((rows - r0) * (cols - c0)));
    source(it, r0, c0, Matrix(part, rows - r0, cols - c0));
    for (std::int64_t r = r0; r < rows; ++r) {
      for (std::int64_t c = c0; c < cols; ++c) {
        REQUIRE(part[static_cast<std::size_t>((r - r0) * (cols - c0) + c - c0)] ==
                whole[static_cast<std::size_t>(r * cols + c)]);
      }
    }
  }
}

ModelSpec tiny_gpt_oss() {
  return read_model(parse_json(R"({"model_type": "gpt_oss", "hidden_size": 6,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
      "intermediate_size": 5, "vocab_size": 12, "num_local_experts": 3,
      "num_experts_per_tok": 2})",
                               "config.json"),
                    "config.json");
}

ModelSpec tiny_gpt2() {
  return read_model(parse_json(R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2,
      "n_positions": 6, "vocab_size": 12})",
                               "config.json"),
                    "config.json");
}

}  // namespace

TEST_CASE("seeded weights are normal with a deviation of 0.02") {
  const ModelSpec model = load_model("tiny");
  const auto w = all_of(seeded_weights(model, 1), model_parameters(model).front());
  double sum = 0, squares = 0, fourth = 0;
  for (const float x : w) {
    sum += x;
    squares += std::pow(x, 2);
    fourth += std::pow(x, 4);
  }
  const auto n = static_cast<double>(w.size());  // 16384
  CHECK(std::abs(sum / n) < 5 * 0.02 / std::sqrt(n));
  CHECK(std::sqrt(squares / n) == doctest::Approx(0.02).epsilon(0.03));
  CHECK(fourth / n / std::pow(squares / n, 2) == doctest::Approx(3).epsilon(0.1));
}

TEST_CASE("scales of norms start around 1, or around 0 where 1 is added; biases around 0") {
  const auto mean = [](const ModelSpec& model, ParameterRole role, bool bias) {
    for (const ModelParameter& it : model_parameters(model)) {
      if (it.parameter.role != role || it.parameter.bias != bias) continue;
      const auto values = all_of(seeded_weights(model, 1), it);
      return std::accumulate(values.begin(), values.end(), 0.0) /
             static_cast<double>(values.size());
    }
    return -1.0;
  };
  ModelSpec model = load_model("tiny");
  model.norm = Norm::layer_norm;
  CHECK(std::abs(mean(model, ParameterRole::input_norm, false) - 1) < 0.02);
  CHECK(std::abs(mean(model, ParameterRole::input_norm, true)) < 0.02);
  model.architecture = "nemotron";
  CHECK(std::abs(mean(model, ParameterRole::input_norm, false)) < 0.02);
}

TEST_CASE("a part of a seeded parameter is that part of the whole") {
  const ModelSpec model = load_model("tiny-mla");
  check_parts(model, seeded_weights(model, 42));
}

TEST_CASE("parameters of one seed differ, and so do seeds") {
  const ModelSpec model = load_model("tiny");
  const auto all = model_parameters(model);
  const WeightSource one = seeded_weights(model, 1), two = seeded_weights(model, 2);
  CHECK(all_of(one, all[0]) == all_of(one, all[0]));
  CHECK(all_of(one, all[0]) != all_of(two, all[0]));
  CHECK(all_of(one, all[2]).front() != all_of(one, all[3]).front());
}

TEST_CASE("a part of a checkpoint's parameter is that part of the whole, fused or transposed") {
  const TemporaryFolder folder;
  for (const ModelSpec& model : {load_model("tiny-moe"), tiny_gpt_oss(), tiny_gpt2()}) {
    CAPTURE(model.architecture);
    const std::string path = folder.file(model.architecture + ".safetensors");
    write_checkpoint(model, path);
    check_parts(model, checkpoint_weights(model, path));
  }
}

TEST_CASE("GPT-2's weights are read transposed") {
  const TemporaryFolder folder;
  const ModelSpec model = tiny_gpt2();
  const std::string path = folder.file("f.safetensors");
  write_checkpoint(model, path);
  const SafetensorsFile file(path);
  std::vector<float> fused(8 * 24);
  file.read("transformer.h.0.attn.c_attn.weight", 0, fused);
  const WeightSource source = checkpoint_weights(model, path);
  for (const ModelParameter& it : model_parameters(model)) {
    if (it.parameter.role != ParameterRole::k_proj || it.parameter.bias) continue;
    const auto k = all_of(source, it);
    CHECK(k[0] == fused[8]);       // output 0, input 0: column 8 of the first row
    CHECK(k[1] == fused[24 + 8]);  // output 0, input 1
    CHECK(k[8] == fused[9]);       // output 1, input 0
  }
}

TEST_CASE("a checkpoint of another model is refused before anything is read") {
  const TemporaryFolder folder;
  const std::string path = folder.file("f.safetensors");
  const ModelSpec model = load_model("tiny");
  const auto complaint = [&](const ModelSpec& m) {
    return complaint_of([&] { checkpoint_weights(m, path); });
  };
  write_checkpoint(model, path);
  CHECK(complaint(model) == "accepted");
  CHECK(complaint(load_model("tiny-moe")).find("lacks tensor 'model.layers.0.mlp.experts.0.") !=
        std::string::npos);
  CHECK(complaint(load_model("tiny-moe")).find(" more of the ") != std::string::npos);

  ModelSpec shallow = model;
  shallow.num_layers = 3;
  shallow.layers.resize(3);
  CHECK(complaint(shallow) ==
        "'" + path +
            "' holds tensor 'model.layers.3.input_layernorm.weight' and 10 more, which "
            "tiny has no parameter for; is it another model's?");

  ModelSpec narrow = model;
  narrow.intermediate_size = 96;
  CHECK(complaint(narrow) ==
        "'" + path +
            "': tensor 'model.layers.0.mlp.down_proj.weight' has shape (64, 128); tiny "
            "needs (64, 96)");

  ModelSpec tied = model;
  tied.tie_word_embeddings = true;  // a written-out copy of the embedding does no harm
  CHECK(complaint(tied) == "accepted");
}
