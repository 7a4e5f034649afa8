// What config.json files of newer architectures say besides sizes, and what their layers are made
// of.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "models/error.h"
#include "models/parameters.h"
#include "models/program/step_program.h"
#include "planner/rules/executor.h"
#include "tests/complaint.h"
#include "tests/models/layer_blocks.h"
#include "tests/models/short_configs.h"

using namespace qplan;

namespace {

ModelSpec of_type(const std::string& type, const std::string& rest = "") {
  return read_short(R"({"model_type": ")" + type + "\"" + rest + "}");
}

const std::string kIndexed = R"(, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4, "v_head_dim": 10, "moe_intermediate_size": 16, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 4,
    "index_n_heads": 4, "index_head_dim": 8, "index_topk": 1024)";

// "s" slides, "f" sees everything, "r" rotates.
std::string layers_of(const ModelSpec& m) {
  std::string text;
  for (const LayerKind& layer : m.layers) {
    text += layer.window > 0 ? 's' : 'f';
    if (layer.rotates) text += 'r';
  }
  return text;
}

Block layer_of(const ModelSpec& m, RecipeKind kind = RecipeKind::megatron, int tp = 1) {
  return build_block(m, recipe_of(kind), layer_shape(m.layers.front(), tp));
}

int count_of(const OpList& ops, RowwiseKind kind, std::int64_t cols) {
  int count = 0;
  for (const Rowwise& work : works_of<Rowwise>(ops)) {
    if (work.kind == kind && work.cols == cols) ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("layers slide as their classes have them, and as the file says") {
  CHECK(layers_of(of_type("gemma3_text")) == "srsrsrsr");
  CHECK(layers_of(of_type("gemma3_text", R"(, "sliding_window_pattern": 2)")) == "srfrsrfr");
  CHECK(layers_of(of_type("gemma3_text", R"(, "layer_types": ["full_attention",
      "sliding_attention", "full_attention", "full_attention"])")) == "frsrfrfr");
  CHECK(layers_of(of_type("olmo3")) == "srsrsrfr");
  CHECK(layers_of(of_type("olmo2")) == "frfrfrfr");
  CHECK(layers_of(of_type("cohere2")) == "srsrsrf");  // what sees everything does not rotate
  CHECK(layers_of(of_type("cohere")) == "frfrfrfr");
  CHECK(layers_of(of_type("phi3")) == "frfrfrfr");
  CHECK(layers_of(of_type("phi3", R"(, "sliding_window": 2047)")) == "srsrsrsr");
  const ModelSpec gemma = load_model("gemma3-27b");
  CHECK(std::count_if(gemma.layers.begin(), gemma.layers.end(),
                      [](const LayerKind& layer) { return layer.window == 1024; }) == 52);
}

TEST_CASE("what an architecture has besides sizes is read as its class has it") {
  const ModelSpec gemma = load_model("gemma3-27b");
  CHECK(gemma.norm_place == NormPlace::both);
  CHECK(gemma.gelu_gate);
  CHECK(gemma.zero_centered_norms);
  CHECK(gemma.rope_scaling->kind == RopeScalingKind::linear);
  CHECK(gemma.left_out == std::vector<std::string>{"vision tower"});
  CHECK(gemma.unmodelled.empty());
  CHECK(of_type("gemma3_text", R"(, "final_logit_softcapping": 30.0)").unmodelled ==
        std::vector<std::string>{"a cap on logits (final_logit_softcapping)"});
  CHECK(load_model("olmo2-32b").norm_place == NormPlace::behind);
  CHECK(of_type("olmo3").rope_theta == 5e5);
  CHECK(of_type("olmo2").rope_theta == 1e4);
  CHECK(of_type("cohere").rope_theta == 5e5);
  CHECK(of_type("cohere2").rope_theta == 1e4);
  CHECK(of_type("cohere2", R"(, "logit_scale": 0.25)").unmodelled ==
        std::vector<std::string>{"logits scaled by 0.25 (logit_scale)"});
  CHECK(of_type("glm4").rotary_fraction == 0.5);
  CHECK(of_type("phi3", R"(, "rope_scaling": {"type": "yarn", "factor": 4})").rope_scaling->kind ==
        RopeScalingKind::other);
  const ModelSpec sparse = of_type("deepseek_v32", kIndexed);
  CHECK(sparse.indexer == IndexerSpec{4, 8, 1024});
  CHECK(sparse.num_mtp_layers == 1);
  const VisionSpec tower = *load_model("qwen2.5-vl-7b").vision;
  CHECK(tower.gated);
  CHECK(tower.window_patches == 64);  // 112 pixels are 8 patches of 14
  CHECK(tower.mrope_section == std::array<std::int64_t, 3>{16, 24, 24});
  CHECK(of_type("mimo", R"(, "num_key_value_heads": 2, "num_nextn_predict_layers": 1)")
            .num_mtp_layers == 1);
}

TEST_CASE("what is not modelled of an architecture is refused in a sentence") {
  const auto complaint = [](const std::string& type, const std::string& rest) {
    return complaint_of([&] { of_type(type, rest); });
  };
  CHECK(complaint("gemma3_text", R"(, "use_bidirectional_attention": true)") ==
        "config.json: use_bidirectional_attention is true; only causal decoders are modelled");
  CHECK(complaint("hunyuan_v1_moe", R"(, "num_experts": 4, "moe_topk": [1, 2, 2, 2])") ==
        "config.json: moe_topk differs between layers, which is not modelled");
  CHECK(complaint("hunyuan_v1_moe", R"(, "num_experts": [4, 4], "moe_topk": [5, 5])") ==
        "config.json: moe_topk (5) must not exceed the 4 experts");
  CHECK(complaint("hunyuan_v1_dense", R"(, "use_cla": true)") ==
        "config.json: use_cla is true; layers that share keys and values are not modelled");
  CHECK(complaint("ernie4_5_moe", R"(, "use_bias": true, "moe_num_experts": 4, "moe_k": 2,
      "moe_intermediate_size": 8)") ==
        "config.json: use_bias is true; only experts without biases are modelled");
  CHECK(complaint("deepseek_v32", R"(, "q_lora_rank": null, "moe_intermediate_size": 16,
      "n_routed_experts": 8, "num_experts_per_tok": 2)") ==
        "config.json: q_lora_rank is null; the indexer reads the compressed queries, which there "
        "must be");
}

TEST_CASE("every key that is missing is named at once") {
  const auto complaint = [](const std::string& text) {
    return complaint_of([&] { read_model(parse_json(text, "config.json"), "config.json"); });
  };
  CHECK(complaint(R"({"model_type": "llama", "hiden_size": 64})") ==
        "config.json: hidden_size, num_hidden_layers, vocab_size, intermediate_size and "
        "num_attention_heads are missing; did you mean 'hiden_size' for hidden_size?");
  CHECK(complaint(R"({"model_type": "qwen3_vl"})") ==
        "config.json: text_config, text_config.hidden_size, text_config.num_hidden_layers, "
        "text_config.vocab_size, text_config.intermediate_size, text_config.num_attention_heads "
        "and vision_config are missing");
  // A stand-in for one key is no hint for another.
  CHECK(complaint(R"({"model_type": "deepseek_v3", "num_attention_heads": 12, "n_group": 2})") ==
        "config.json: hidden_size, num_hidden_layers, vocab_size, intermediate_size, "
        "n_routed_experts, num_experts_per_tok and moe_intermediate_size are missing");
  CHECK(complaint(R"({"hidden_size": 64})") == "config.json: model_type is missing");
  // What is wrong besides is said when nothing is missing.
  CHECK(
      complaint(R"({"model_type": "llama", "num_attention_heads": 7, "num_key_value_heads": 2})") ==
      "config.json: hidden_size, num_hidden_layers, vocab_size and intermediate_size are "
      "missing");
}

TEST_CASE("a decoder of an unknown model_type is read as the architecture that is asked for") {
  const std::string text = R"({"model_type": "foo", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 8, "intermediate_size": 96, "vocab_size": 100, "router_z": 3,
      "use_foo": false, "initializer_range": 0.02, "foo_window": null, "bos_token_id": 1})";
  const Json config = parse_json(text, "config.json");
  const ModelSpec m = read_model(config, "config.json", "llama");
  CHECK(m.architecture == "llama");
  REQUIRE(m.read_as);
  CHECK(*m.read_as == ReadAs{"foo", {"router_z"}});
  CHECK(model_notes(m) ==
        std::vector<std::string>{"model_type 'foo' is unknown and read as llama; ignored of it: "
                                 "router_z"});
  CHECK(rules::unexecuted_part(m) == "keys that were ignored (--as)");
  Json llama = config;
  llama["model_type"] = "llama";
  CHECK(count_parameters(m).total() == count_parameters(read_model(llama, "config.json")).total());
  CHECK(complaint_of([&] { read_model(llama, "config.json", "qwen3"); }) ==
        "config.json: model_type is 'llama', which is read as what it is; leave --as out");
  CHECK(complaint_of([&] {
          read_model(config, "config.json", "lama");
        }).ends_with("; did you mean 'llama'?"));
  Json typeless = config;
  typeless.erase("model_type");
  typeless.erase("router_z");
  CHECK(read_model(typeless, "config.json", "llama").read_as == ReadAs{});
  CHECK(rules::unexecuted_part(read_model(typeless, "config.json", "llama")).empty());
}

TEST_CASE(
    "norms behind attention and MLP are ops of their own, with copies where norms keep them") {
  ModelSpec before = of_type("llama");
  ModelSpec both = before, behind = before;
  both.norm_place = NormPlace::both;
  behind.norm_place = NormPlace::behind;
  const Block a = layer_of(before), b = layer_of(both), c = layer_of(behind);
  CHECK(count_of(a.forward, RowwiseKind::rms_norm, 64) == 2);
  CHECK(count_of(b.forward, RowwiseKind::rms_norm, 64) == 4);
  CHECK(count_of(c.forward, RowwiseKind::rms_norm, 64) == 2);
  CHECK(count_of(a.backward, RowwiseKind::rms_norm_backward, 64) == 2);
  CHECK(count_of(b.backward, RowwiseKind::rms_norm_backward, 64) == 4);
  CHECK(count_of(c.backward, RowwiseKind::rms_norm_backward, 64) == 2);
  CHECK(layer_parameters(both, {}) == layer_parameters(before, {}) + 2 * 64);
  CHECK(layer_parameters(behind, {}) == layer_parameters(before, {}));
  // Their inputs are kept for backward: 2 sums of 2 bytes, where norms before need none.
  const BlockShape shape = layer_shape({});
  CHECK(kept_per_token(both, RecipeKind::megatron, shape) ==
        kept_per_token(before, RecipeKind::megatron, shape) + 2 * 2 * 64);
}

TEST_CASE("an MLP beside attention reads its norm, and its gradient joins before that norm's") {
  const ModelSpec m = of_type("cohere");
  for (const RecipeKind kind : {RecipeKind::megatron, RecipeKind::fsdp2, RecipeKind::deepspeed}) {
    const Block block = layer_of(m, kind);
    CHECK(count_of(block.forward, RowwiseKind::rms_norm, 64) == 1);
    CHECK(count_of(block.backward, RowwiseKind::rms_norm_backward, 64) == 1);
  }
  CHECK(layer_parameters(m, {}) == layer_parameters(of_type("llama"), {}) - 64);
}

TEST_CASE("an indexer limits the keys that attention sees, and scores all of them itself") {
  const ModelSpec sparse = of_type("deepseek_v32", kIndexed);
  ModelSpec dense = sparse;
  dense.indexer.reset();
  const auto attention = works_of<Attention>(layer_of(sparse).forward);
  REQUIRE(attention.size() == 2);
  CHECK(attention.front().heads == 4);  // the indexer's, with one key
  CHECK(attention.front().kv_heads == 1);
  CHECK(attention.front().window == 0);
  CHECK(attention.front().head_dim + attention.front().v_head_dim == 8);
  CHECK(attention.back().heads == 8);
  CHECK(attention.back().window == 1024);
  CHECK(works_of<Attention>(layer_of(dense).forward).size() == 1);
  // Sequences that are no longer than the choice are seen whole.
  BlockShape brief = layer_shape(sparse.layers.front());
  brief.seq_len = 1024;
  const Block seen_whole = build_block(sparse, recipe_of(RecipeKind::megatron), brief);
  CHECK(works_of<Attention>(seen_whole.forward).back().window == 0);
  // FLOPs of scores: 2 a pair, head and column.
  const double pairs = 4096.0 * 4096 / 2;
  CHECK(flops(Work{attention.front()}).value() == doctest::Approx(2 * pairs * 4 * 8).epsilon(0.01));
}

TEST_CASE("every parameter of a layer is read in forward and gets a gradient in backward") {
  for (const ModelSpec& m :
       {of_type("gemma3_text", R"(, "head_dim": 8)"), of_type("olmo2"), of_type("cohere"),
        of_type("deepseek_v32", kIndexed), of_type("glm4", R"(, "num_key_value_heads": 2)")}) {
    CAPTURE(m.architecture);
    const Block block = layer_of(m);
    const auto named = [&](const OpList& ops) {
      std::set<ParameterRole> roles;
      for (const Op& op : ops) {
        if (op.parameter == kNoParameter) continue;
        roles.insert(block.parameters[static_cast<std::size_t>(op.parameter)].whole.role);
      }
      return roles;
    };
    // Products of packed weights name the first.
    const std::set<ParameterRole> packed{ParameterRole::k_proj, ParameterRole::v_proj,
                                         ParameterRole::up_proj, ParameterRole::k_norm};
    for (const Parameter& p : parameters_of(m, ModelPart::decoder, m.layers.front())) {
      if (p.bias || packed.contains(p.role)) continue;
      CAPTURE(to_word(p.role));
      CHECK(named(block.forward).contains(p.role));
      CHECK(named(block.backward).contains(p.role));
    }
  }
}

TEST_CASE("layers of Qwen2.5-VL's tower attend within windows, but for four") {
  const ModelSpec m = load_model("qwen2.5-vl-7b");
  ParallelPlan plan;
  plan.seq_len = 4096;
  const StepProgram program = build_step_program(m, plan, recipe_of(RecipeKind::megatron), {});
  std::int64_t windows = 0, whole = 0;
  for (const Stage::Part& part : program.stages.front().runs) {
    const BlockShape& shape = program.shapes[static_cast<std::size_t>(part.block)];
    if (shape.kind != BlockKind::vision) continue;
    (shape.layer.chunk == 64 ? windows : whole) += part.count;
  }
  CHECK(windows == 28);
  CHECK(whole == 4);
}

TEST_CASE("our executor refuses what it has no kernels for, and says which part") {
  const auto part = [](const std::string& type, const std::string& rest = "") {
    return std::string(rules::unexecuted_part(of_type(type, rest)));
  };
  CHECK(part("gemma3_text") == "norms behind attention and MLP");
  CHECK(part("glm4") == "norms behind attention and MLP");
  CHECK(part("cohere2") != "");
  CHECK(part("cohere") == "an MLP beside attention");
  CHECK(part("olmo2") == "norms of queries and keys over all heads together");
  CHECK(part("hunyuan_v1_dense") == "norms of queries and keys behind their rotation");
  CHECK(part("mimo", R"(, "num_key_value_heads": 2, "num_nextn_predict_layers": 1)") ==
        "MiMo's multi-token prediction");
  CHECK(part("phi3", R"(, "rope_scaling": {"type": "longrope"})") ==
        "a rule of rotary scaling other than linear, llama3 and yarn");
  CHECK(rules::unexecuted_part(of_type("deepseek_v32", kIndexed)) ==
        "attention to keys that an indexer chooses");
  for (const char* runs : {"llama4-scout-17b-16e", "qwen3-next-80b-a3b", "nemotron-h-8b",
                           "qwen3.5-9b", "nemotron-3-super-120b-a12b", "deepseek-v3"}) {
    CHECK(rules::unexecuted_part(load_model(runs)).empty());
  }
  CHECK(rules::unexecuted_part(load_model("qwen2.5-vl-7b")) ==
        "a vision tower of Qwen2.5-VL's kind");
  for (const char* runs : {"phi3", "internlm3", "mimo", "ernie4_5"}) {
    CHECK(part(runs, R"(, "num_key_value_heads": 2)") == "");
  }
}
