#include "models/parameters.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "models/json.h"

using namespace qplan;

namespace {

struct Tensor {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> taken;  // offsets that parameters claim, in order of claiming
};

// The tensors of a model's checkpoint as tensor_place() tells them.
std::map<std::string, Tensor> tensors_of(const ModelSpec& model) {
  std::map<std::string, Tensor> tensors;
  for (const ModelParameter& it : model_parameters(model)) {
    const TensorPlace place = tensor_place(model, it);
    Tensor& tensor = tensors[place.name];
    CAPTURE(place.name);
    if (!tensor.shape.empty()) CHECK(tensor.shape == place.shape);
    tensor.shape = place.shape;
    for (std::int64_t r = 0; r < it.parameter.rows; ++r) {
      for (std::int64_t c = 0; c < it.parameter.cols; ++c) {
        tensor.taken.push_back(place.begin + r * place.row_stride + c * place.col_stride);
      }
    }
  }
  return tensors;
}

const ModelParameter& parameter_of(const std::vector<ModelParameter>& all, ParameterRole role,
                                   bool bias = false, std::int64_t copy = 0) {
  return *std::find_if(all.begin(), all.end(), [&](const ModelParameter& it) {
    return it.parameter.role == role && it.parameter.bias == bias && it.copy == copy;
  });
}

}  // namespace

// Oracle: save_pretrained() of transformers 5.23.0 (tests/data/make_tensor_lists.py).
TEST_CASE("checkpoints have the tensors that transformers writes") {
  const Json lists = read_json_file(QPLAN_TEST_DATA "/tensor_lists.json");
  REQUIRE(lists.size() == 36);
  for (const Json& entry : lists) {
    CAPTURE(entry["config"].dump());
    const ModelSpec model = read_model(entry["config"], "config.json");
    const auto tensors = tensors_of(model);
    for (const auto& [name, tensor] : tensors) {
      CAPTURE(name);
      REQUIRE(entry["tensors"].contains(name));
      CHECK(entry["tensors"][name].get<std::vector<std::int64_t>>() == tensor.shape);
    }
    CHECK(tensors.size() == entry["tensors"].size());
  }
}

TEST_CASE("every element of a checkpoint's tensor belongs to one parameter") {
  for (const Json& entry : read_json_file(QPLAN_TEST_DATA "/tensor_lists.json")) {
    CAPTURE(entry["config"].dump());
    for (auto& [name, tensor] : tensors_of(read_model(entry["config"], "config.json"))) {
      CAPTURE(name);
      std::int64_t elements = 1;
      for (const std::int64_t size : tensor.shape) elements *= size;
      const std::set<std::int64_t> distinct(tensor.taken.begin(), tensor.taken.end());
      CHECK(static_cast<std::int64_t>(tensor.taken.size()) == elements);
      CHECK(static_cast<std::int64_t>(distinct.size()) == elements);
      CHECK(*distinct.begin() == 0);
      CHECK(*distinct.rbegin() == elements - 1);
    }
  }
}

TEST_CASE("the parameters of a built-in model add up to its count") {
  for (const std::string& name : model_names()) {
    CAPTURE(name);
    const ModelSpec model = load_model(name);
    std::int64_t sum = 0;
    for (const ModelParameter& it : model_parameters(model)) sum += it.parameter.elements();
    const ParameterCount count = count_parameters(model);
    CHECK(sum == count.total() + count.mtp);
  }
}

TEST_CASE("a parameter's index is its position, so seeds do not depend on a plan") {
  const auto all = model_parameters(load_model("tiny-mla"));
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i].index == static_cast<std::int64_t>(i));
}

TEST_CASE("multi-token prediction keeps DeepSeek-V3's names after the last layer") {
  const ModelSpec model = load_model("deepseek-v3");
  const auto all = model_parameters(model);
  const auto name = [&](ParameterRole role) {
    return tensor_place(model, parameter_of(all, role)).name;
  };
  CHECK(name(ParameterRole::mtp_proj) == "model.layers.61.eh_proj.weight");
  CHECK(name(ParameterRole::mtp_embed_norm) == "model.layers.61.enorm.weight");
  CHECK(name(ParameterRole::mtp_final_norm) == "model.layers.61.shared_head.norm.weight");
  CHECK(tensor_place(model, all.back()).name == "model.layers.61.shared_head.norm.weight");
}

TEST_CASE("multi-token prediction has names of its own in Qwen3.5's checkpoints") {
  const ModelSpec model = load_model("qwen3.5-9b");
  std::set<std::string> names;
  for (const ModelParameter& it : model_parameters(model)) {
    if (it.part == ModelPart::mtp) names.insert(tensor_place(model, it).name);
  }
  const std::string layer = "mtp.layers.0.";
  CHECK(names == std::set<std::string>{
                     "mtp.fc.weight", "mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight",
                     "mtp.pre_fc_norm_hidden.weight", layer + "input_layernorm.weight",
                     layer + "post_attention_layernorm.weight", layer + "self_attn.q_proj.weight",
                     layer + "self_attn.k_proj.weight", layer + "self_attn.v_proj.weight",
                     layer + "self_attn.o_proj.weight", layer + "self_attn.q_norm.weight",
                     layer + "self_attn.k_norm.weight", layer + "mlp.gate_proj.weight",
                     layer + "mlp.up_proj.weight", layer + "mlp.down_proj.weight"});
}

TEST_CASE("GPT-2 keeps weights transposed and q, k, v side by side") {
  const ModelSpec model = load_model("gpt3-175b");  // hidden 12288
  const auto all = model_parameters(model);
  const TensorPlace v = tensor_place(model, parameter_of(all, ParameterRole::v_proj));
  CHECK(v.name == "transformer.h.0.attn.c_attn.weight");
  CHECK(v.shape == std::vector<std::int64_t>{12288, 36864});
  CHECK(v.begin == 2 * 12288);
  CHECK(v.row_stride == 1);
  CHECK(v.col_stride == 36864);
}

TEST_CASE("gpt-oss alternates gate and up in one tensor for all experts") {
  const ModelSpec model = load_model("gpt-oss-20b");  // 32 experts, hidden and width 2880
  const auto all = model_parameters(model);
  const TensorPlace up = tensor_place(
      model, parameter_of(all, ParameterRole::expert_up_proj, /*bias=*/false, /*copy=*/3));
  CHECK(up.name == "model.layers.0.mlp.experts.gate_up_proj");
  CHECK(up.shape == std::vector<std::int64_t>{32, 2880, 5760});
  CHECK(up.begin == 3 * 2880 * 5760 + 1);
  CHECK(up.row_stride == 2);
  CHECK(up.col_stride == 5760);
}

TEST_CASE("what tensor parallelism splits: outputs, then inputs, then nothing of a norm") {
  const auto table = parameters_of(load_model("qwen2.5-14b"), ModelPart::decoder);
  const auto split = [&](ParameterRole role, bool bias = false) {
    return std::find_if(table.begin(), table.end(),
                        [&](const Parameter& p) { return p.role == role && p.bias == bias; })
        ->split;
  };
  CHECK(split(ParameterRole::q_proj) == Split::rows);
  CHECK(split(ParameterRole::q_proj, /*bias=*/true) == Split::rows);
  CHECK(split(ParameterRole::o_proj) == Split::cols);
  CHECK(split(ParameterRole::up_proj) == Split::rows);
  CHECK(split(ParameterRole::down_proj) == Split::cols);
  CHECK(split(ParameterRole::input_norm) == Split::none);
}
