#include "models/model_spec.h"

#include <doctest/doctest.h>

#include <cmath>

#include "models/error.h"
#include "models/json.h"
#include "tests/complaint.h"
#include "tests/models/short_configs.h"

using namespace qplan;

namespace {

// The message for a built-in model's config with some keys replaced; null removes a key.
std::string message_of(const std::string& name, const std::string& changes) {
  Json config = model_config(name);
  const Json changed = Json::parse(changes);
  for (const auto& [key, value] : changed.items()) {
    if (value.is_null()) {
      config.erase(key);
    } else {
      config[key] = value;
    }
  }
  return complaint_of([&] { read_model(config, "config.json"); });
}

struct CountCase {
  std::string model;
  std::int64_t total, active;
};

}  // namespace

// Oracle: the model class of transformers 5.23.0 for the same config on torch 2.15.0's meta device,
// all parameters and V3's e_score_correction_bias (a buffer there, a tensor in the checkpoint);
// active is total less (experts - top_k) / experts of what is named ".experts.".
TEST_CASE("built-in models have the parameters of their checkpoints") {
  const CountCase cases[] = {
      {"deepseek-v2", 235'741'434'880, 21'375'800'320},
      {"deepseek-v3", 671'026'419'200, 37'552'297'472},
      {"deepseek-v3.2", 671'877'944'064, 38'403'822'336},
      {"gemma3-27b", 27'009'346'304, 27'009'346'304},  // its text model
      // GLM: summed by hand over the modules of transformers 4.57's Glm4MoeForCausalLM
      {"glm4.5", 352'797'829'024, 33'632'266'144},
      {"glm4.5-air", 106'852'251'264, 13'424'129'664},
      {"gpt-1.3t", 1'322'624'870'400, 1'322'624'870'400},
      {"gpt-217b", 218'181'722'112, 218'181'722'112},
      {"gpt-5t", 4'989'184'278'528, 4'989'184'278'528},
      {"gpt-oss-120b", 116'829'156'672, 5'711'982'912},
      {"gpt-oss-20b", 20'914'757'184, 4'187'440'704},
      {"gpt3-175b", 174'615'846'912, 174'615'846'912},
      {"kimi-k2", 1'026'408'232'448, 32'861'500'928},
      {"llama2-13b", 13'015'864'320, 13'015'864'320},
      {"llama2-70b", 68'976'648'192, 68'976'648'192},
      {"llama2-7b", 6'738'415'616, 6'738'415'616},
      {"llama3-405b", 405'853'388'800, 405'853'388'800},
      {"llama3-70b", 70'553'706'496, 70'553'706'496},
      {"llama3-8b", 8'030'261'248, 8'030'261'248},
      {"llama4-maverick-17b-128e", 400'711'848'960, 17'184'691'200},
      {"llama4-scout-17b-16e", 107'769'861'120, 17'172'894'720},
      {"megatron-175b", 174'615'846'912, 174'615'846'912},
      {"megatron-1t", 1'008'038'758'400, 1'008'038'758'400},
      {"megatron-22b", 22'074'273'792, 22'074'273'792},
      {"megatron-530b", 529'600'819'200, 529'600'819'200},
      // MiniMax and Seed: summed by hand over the modules of transformers 5's classes
      {"minimax-m2", 228'689'764'864, 11'030'553'088},
      {"mixtral-8x22b", 140'630'071'296, 39'161'468'928},
      {"mixtral-8x7b", 46'702'792'704, 12'879'925'248},
      {"moonlight-16b-a3b", 15'960'110'208, 2'914'776'192},
      {"nemotron-3-nano-30b-a3b", 31'577'940'288, 3'580'076'352},
      {"nemotron-3-super-120b-a12b", 120'668'707'840, 12'770'237'440},
      {"nemotron-3-ultra-550b-a55b", 549'308'993'536, 56'058'843'136},
      {"nemotron-h-8b", 8'100'852'736, 8'100'852'736},
      {"nemotron4-15b", 15'628'775'424, 15'628'775'424},
      {"nemotron4-340b", 341'029'195'776, 341'029'195'776},
      {"olmo2-32b", 32'234'279'936, 32'234'279'936},
      {"phi-4", 14'659'507'200, 14'659'507'200},
      {"qwen2-57b-a14b", 57'408'658'944, 14'249'270'784},
      {"qwen2.5-14b", 14'770'033'664, 14'770'033'664},
      {"qwen2.5-vl-7b", 8'292'166'656, 8'292'166'656},
      {"qwen3-0.6b", 596'049'920, 596'049'920},
      {"qwen3-1.7b", 1'720'574'976, 1'720'574'976},
      {"qwen3-14b", 14'768'307'200, 14'768'307'200},
      {"qwen3-235b-a22b", 235'093'634'560, 22'190'763'520},
      {"qwen3-30b-a3b", 30'532'122'624, 3'353'032'704},
      {"qwen3-32b", 32'762'123'264, 32'762'123'264},
      {"qwen3-4b", 4'022'468'096, 4'022'468'096},
      {"qwen3-8b", 8'190'735'360, 8'190'735'360},
      {"qwen3-next-80b-a3b", 79'674'391'296, 3'874'929'408},
      {"qwen3.5-27b", 26'895'998'464, 26'895'998'464},
      {"qwen3.5-35b-a3b", 34'660'610'688, 3'454'988'928},  // its text model
      {"qwen3.5-9b", 8'953'803'264, 8'953'803'264},
      {"qwen3-vl-30b-a3b", 31'070'754'032, 3'891'664'112},
      {"tiny-mla", 313'624, 203'032},
      {"tiny-moe", 330'432, 182'976},
      {"tiny-vl", 434'336, 286'880},
      {"seed-oss-36b", 36'151'104'512, 36'151'104'512},
      {"tiny", 230'080, 230'080},
  };
  CHECK(model_names().size() == std::size(cases));
  for (const CountCase& c : cases) {
    CAPTURE(c.model);
    const ParameterCount count = count_parameters(load_model(c.model));
    CHECK(count.total() == c.total);
    CHECK(count.active() == c.active);
  }
}

TEST_CASE("an architecture's defaults and switches give its class's parameters") {
  const CountCase cases[] = {
      // the same oracle
      {R"({"model_type": "llama4_text", "num_local_experts": 6, "num_experts_per_tok": 1})",
       1'579'584, 1'210'944},
      {R"({"model_type": "llama4_text", "num_key_value_heads": 2, "head_dim": 16,
           "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size_mlp": 160,
           "moe_layers": [1, 2], "attention_bias": true, "tie_word_embeddings": true})",
       410'176, 262'720},
      {R"({"model_type": "llama4_text", "num_key_value_heads": 4, "head_dim": 16,
           "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 160,
           "interleave_moe_layer_step": 2, "use_qk_norm": false})",
       357'952, 247'360},
      {R"({"model_type": "qwen2_moe", "num_attention_heads": 32, "num_experts": 6,
           "num_experts_per_tok": 3, "moe_intermediate_size": 16,
           "shared_expert_intermediate_size": 40})",
       169'280, 132'416},
      {R"({"model_type": "qwen3_next", "hidden_size": 256, "intermediate_size": 512,
           "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
           "head_dim": 64, "vocab_size": 1000, "linear_num_key_heads": 4,
           "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 48,
           "linear_conv_kernel_dim": 3, "decoder_sparse_step": 2, "moe_intermediate_size": 64,
           "shared_expert_intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 2,
           "mlp_only_layers": [3], "full_attention_interval": 3})",
       5'017'344, 4'427'520},
      {R"({"model_type": "qwen3", "num_attention_heads": 64})", 6'379'584, 6'379'584},
      {R"({"model_type": "qwen3", "num_key_value_heads": null})", 1'136'704, 1'136'704},
      {R"({"model_type": "llama", "num_key_value_heads": 2, "attention_bias": true,
           "mlp_bias": true})",
       129'728, 129'728},
      {R"({"model_type": "llama", "head_dim": 24, "tie_word_embeddings": true})", 277'312, 277'312},
      {R"({"model_type": "mistral"})", 152'640, 152'640},
      {R"({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2})", 374'848,
       227'392},
      {R"({"model_type": "qwen2", "num_key_value_heads": 4, "tie_word_embeddings": true})", 130'368,
       130'368},
      {R"({"model_type": "qwen2_moe", "num_key_value_heads": 4, "num_experts": 6,
           "num_experts_per_tok": 3, "moe_intermediate_size": 16,
           "shared_expert_intermediate_size": 40, "decoder_sparse_step": 2})",
       153'024, 134'592},
      {R"({"model_type": "qwen2_moe", "num_key_value_heads": 8, "num_experts": 6,
           "num_experts_per_tok": 3, "moe_intermediate_size": 16,
           "shared_expert_intermediate_size": 40, "qkv_bias": false, "mlp_only_layers": [0, 3]})",
       168'896, 150'464},
      {R"({"model_type": "qwen3", "num_key_value_heads": 4, "attention_bias": true})", 883'008,
       883'008},
      {R"({"model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 3,
           "moe_intermediate_size": 16, "mlp_only_layers": [1]})",
       137'472, 109'824},
      {R"({"model_type": "qwen3_moe", "num_local_experts": 6, "num_experts_per_tok": 3,
           "moe_intermediate_size": 16, "head_dim": 16, "attention_bias": true})",
       188'352, 151'488},
      {R"({"model_type": "deepseek_v2", "moe_intermediate_size": 16, "n_routed_experts": 6,
           "num_experts_per_tok": 2, "q_lora_rank": null, "kv_lora_rank": 16})",
       920'192, 871'040},
      {R"({"model_type": "deepseek_v3", "moe_intermediate_size": 16, "n_routed_experts": 16,
           "num_experts_per_tok": 2, "attention_bias": true, "q_lora_rank": 24, "kv_lora_rank":
           16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 10,
           "n_shared_experts": 2, "first_k_dense_replace": 1})",
       256'704, 127'680},
      {R"({"model_type": "deepseek_v3", "moe_intermediate_size": 16, "n_routed_experts": 16,
           "num_experts_per_tok": 2})",
       14'564'432, 14'521'424},
      {R"({"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2})", 844'144,
       694'640},
      {R"({"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
           "attention_bias": false})",
       837'744, 688'240},
      {R"({"model_type": "nemotron", "num_key_value_heads": 2, "head_dim": 16,
           "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true})",
       140'288, 140'288},
      {R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size":
           50257})",
       124'439'808, 124'439'808},
      {R"({"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 99,
           "n_inner": 100, "n_positions": 40, "tie_word_embeddings": false})",
       69'564, 69'564},
      {R"({"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text",
           "num_key_value_heads": 4, "head_dim": 16}, "vision_config": {"depth": 3,
           "hidden_size": 32, "num_heads": 4, "intermediate_size": 50, "out_hidden_size": 64,
           "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 2]},
           "tie_word_embeddings": true})",
       326'614, 326'614},
      {R"({"model_type": "qwen3_vl_moe", "text_config": {"model_type": "qwen3_vl_moe_text",
           "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 16, "mlp_only_layers": [2]}, "vision_config": {"depth": 25,
           "hidden_size": 32, "num_heads": 4, "intermediate_size": 50, "out_hidden_size": 64,
           "patch_size": 14}})",
       520'802, 502'370},
  };
  for (const CountCase& c : cases) {
    CAPTURE(c.model);
    const ParameterCount count = count_parameters(read_short(c.model));
    CHECK(count.total() == c.total);
    CHECK(count.active() == c.active);
  }
}

// OpenAI, gpt-oss model card (arXiv 2508.10925), table 1: 116.83 and 20.91 B total, 5.13 and 3.61 B
// active without the input embedding.
TEST_CASE("gpt-oss has the parameters of its model card") {
  const auto billions = [](std::int64_t n) { return std::lround(static_cast<double>(n) / 1e7); };
  const ParameterCount large = count_parameters(load_model("gpt-oss-120b"));
  CHECK(billions(large.total()) == 11683);
  CHECK(billions(large.active() - large.embedding) == 513);
  const ParameterCount small = count_parameters(load_model("gpt-oss-20b"));
  CHECK(billions(small.total()) == 2091);
  CHECK(billions(small.active() - small.embedding) == 361);
}

// Narayanan et al. 2021 (arXiv 2104.04473), equation 2: 12 L h^2 (1 + 13/12h + (V + s)/12Lh), which
// leaves out the final LayerNorm (2h).
TEST_CASE("GPT models have the parameters of Megatron's formula") {
  for (const char* name : {"megatron-22b", "megatron-175b", "megatron-530b", "megatron-1t",
                           "gpt3-175b", "gpt-1.3t", "gpt-5t", "gpt-217b"}) {
    CAPTURE(name);
    const ModelSpec m = load_model(name);
    const std::int64_t h = m.hidden_size;
    CHECK(count_parameters(m).total() - 2 * h ==
          m.num_layers * (12 * h * h + 13 * h) + (m.vocab_size + m.max_position_embeddings) * h);
  }
}

// DeepSeek-V3's README counts 14 B in its MTP weights: 11.5 B of its own and copies of embedding
// and head (0.9 B each).
TEST_CASE("multi-token prediction is counted apart") {
  const ModelSpec m = load_model("deepseek-v3");
  const ParameterCount count = count_parameters(m);
  CHECK(m.num_mtp_layers == 1);
  CHECK(count.mtp == layer_parameters(m, {.moe = true}) + 2 * 7168 * 7168 + 3 * 7168);
  CHECK(std::lround(static_cast<double>(count.mtp) / 1e8) == 116);
  CHECK(count_parameters(load_model("kimi-k2")).mtp == 0);
}

TEST_CASE("products beside attention are those of the active parameters") {
  // Qwen3-8B: 4 (h q + h k) + 6 h f a token and layer, against 4 d heads s / 2.
  const ModelSpec dense = load_model("qwen3-8b");
  const double layer = 2.0 * (2.0 * 4096 * 4096 + 2.0 * 4096 * 1024 + 3.0 * 4096 * 12288);
  const double scores = 2.0 * 2 * 128 * 32 * 8192 / 2;
  CHECK(products_beside_attention(dense, 8192) == doctest::Approx(layer / scores).epsilon(1e-3));
  CHECK(products_beside_attention(dense, 16384) ==
        doctest::Approx(layer / scores / 2).epsilon(1e-3));
  // Of 128 experts a token uses 8.
  const ModelSpec experts = load_model("qwen3-30b-a3b");
  const double active =
      2.0 * (2.0 * 2048 * 4096 + 2.0 * 2048 * 512 + 8 * 3.0 * 2048 * 768 + 2048.0 * 128);
  CHECK(products_beside_attention(experts, 8192) == doctest::Approx(active / scores).epsilon(1e-3));
  // gpt-oss: half of the layers see 128 tokens.
  ModelSpec windows = load_model("gpt-oss-20b");
  const double seen = products_beside_attention(windows, 8192);
  for (LayerKind& kind : windows.layers) kind.window = 0;
  CHECK(seen / products_beside_attention(windows, 8192) == doctest::Approx(2).epsilon(0.04));
  ModelSpec none = dense;
  none.layers.clear();
  CHECK(products_beside_attention(none, 512) == 0);
}

TEST_CASE("a tied head is counted once") {
  const ParameterCount tied = count_parameters(load_model("qwen3-4b"));
  CHECK(tied.head == 0);
  CHECK(tied.embedding == 151936 * 2560);
  CHECK(count_parameters(load_model("qwen3-8b")).head == 151936 * 4096);
}

TEST_CASE("the vision tower of Qwen3-VL is the text model's 538.6 million more") {
  const ModelSpec m = load_model("qwen3-vl-30b-a3b");
  const ParameterCount count = count_parameters(m);
  CHECK(count.total() - count.vision == count_parameters(load_model("qwen3-30b-a3b")).total());
  CHECK(count.vision == 538'631'408);
  REQUIRE(m.vision);
  CHECK(m.vision->deepstack_layers == std::vector<std::int64_t>{8, 16, 24});
  CHECK(m.max_position_embeddings == 262144);
}

TEST_CASE("keys of no interest are passed over") {
  CHECK(message_of("qwen3-8b", R"({"torch_dtype": "bfloat16", "transformers_version": "4.51.0",
      "quantization_config": {"fmt": "e4m3"}, "auto_map": {"x": "y"}, "my_own": [1, 2]})") ==
        "accepted");
}

TEST_CASE("impossible sizes are refused with their path") {
  struct Case {
    std::string model, changes, message;
  };
  const Case cases[] = {
      {"qwen3-8b", R"({"hidden_size": 0})",
       "config.json: hidden_size must be between 1 and 1048576, is 0"},
      {"qwen3-8b", R"({"num_hidden_layers": -3})",
       "config.json: num_hidden_layers must be between 1 and 16384, is -3"},
      {"qwen3-8b", R"({"vocab_size": 2000000000000})",
       "config.json: vocab_size must be between 1 and 268435456, is 2000000000000"},
      {"qwen3-8b", R"({"hidden_size": null})", "config.json: hidden_size is missing"},
      {"qwen3-8b", R"({"hidden_size": null, "hiden_size": 64})",
       "config.json: hidden_size is missing; did you mean 'hiden_size'?"},
      {"qwen3-8b", R"({"hidden_size": "4096"})",
       "config.json: hidden_size must be a whole number, is a string"},
      {"qwen3-8b", R"({"num_hidden_layers": 1e9})",
       "config.json: num_hidden_layers must be a whole number without point or exponent, is "
       "1000000000"},
      {"qwen3-8b", R"({"num_key_value_heads": 5})",
       "config.json: num_attention_heads (32) must be a multiple of num_key_value_heads (5)"},
      {"qwen3-8b", R"({"hidden_act": "gelu"})",
       "config.json: hidden_act is 'gelu', which is not modelled for this architecture; it must be "
       "silu or swish"},
      {"llama2-7b", R"({"num_attention_heads": 31, "num_key_value_heads": 31})",
       "config.json: hidden_size (4096) must be a multiple of num_attention_heads (31) unless "
       "head_dim is given"},
      {"qwen3-30b-a3b", R"({"num_experts_per_tok": 129})",
       "config.json: num_experts_per_tok (129) must not exceed the 128 experts"},
      {"qwen3-30b-a3b", R"({"mlp_only_layers": [3, 48]})",
       "config.json: mlp_only_layers must hold layer numbers from 0 to 47, holds 48"},
      {"qwen3-30b-a3b", R"({"mlp_only_layers": 3})",
       "config.json: mlp_only_layers must be a list, is a number"},
      {"qwen3-30b-a3b", R"({"decoder_sparse_step": 0})",
       "config.json: decoder_sparse_step must be between 1 and 16384, is 0"},
      {"deepseek-v3", R"({"n_group": 7})",
       "config.json: n_group (7) must divide n_routed_experts (256)"},
      {"deepseek-v3", R"({"topk_group": 9})",
       "config.json: topk_group (9) must not exceed n_group (8)"},
      {"deepseek-v3", R"({"topk_group": 1, "n_group": 64})",
       "config.json: num_experts_per_tok (8) must not exceed the 4 experts in 1 groups"},
      {"deepseek-v3", R"({"scoring_func": "sqrtsoftplus"})",
       "config.json: scoring_func is 'sqrtsoftplus', which is not modelled for this architecture; "
       "it must be softmax or sigmoid"},
      {"deepseek-v2", R"({"topk_method": "hash"})",
       "config.json: topk_method is 'hash', which is not modelled for this architecture; it must "
       "be greedy or group_limited_greedy or noaux_tc"},
      {"gpt-oss-20b", R"({"num_hidden_layers": 12})",
       "config.json: layer_types must be a list of num_hidden_layers (12) entries, is one of 24"},
      {"qwen3-8b", R"({"num_hidden_layers": 1, "layer_types": ["linear_attention"]})",
       "config.json: layer_types holds \"linear_attention\"; only full_attention and "
       "sliding_attention are modelled"},
      {"gpt3-175b", R"({"n_head": 95})",
       "config.json: n_embd (12288) must be a multiple of n_head (95)"},
      {"qwen3-vl-30b-a3b", R"({"text_config": null})",
       "config.json: text_config, text_config.hidden_size, text_config.num_hidden_layers, "
       "text_config.vocab_size, text_config.intermediate_size, text_config.num_attention_heads, "
       "text_config.num_experts, text_config.num_experts_per_tok and "
       "text_config.moe_intermediate_size are missing"},
      {"qwen3-vl-30b-a3b", R"({"text_config": {}})",
       "config.json: text_config.hidden_size, text_config.num_hidden_layers, "
       "text_config.vocab_size, text_config.intermediate_size, text_config.num_attention_heads, "
       "text_config.num_experts, text_config.num_experts_per_tok and "
       "text_config.moe_intermediate_size are missing"},
      {"qwen3-vl-30b-a3b", R"({"vision_config": {}})",
       "config.json: vision_config.out_hidden_size (3584) must be the text model's hidden_size "
       "(2048)"},
      {"qwen3-vl-30b-a3b", R"({"vision_config": []})",
       "config.json: vision_config must be an object, is a list"},
      {"tiny-vl", R"({"text_config": {"hidden_size": 64, "num_hidden_layers": 4,
           "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16,
           "intermediate_size": 128, "vocab_size": 256,
           "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
           "rope_scaling": {"mrope_section": [4, 2]}}})",
       "config.json: text_config.rope_scaling.mrope_section must be three numbers of pairs: of "
       "time, height and width"},
      {"kimi-k2", R"({"hidden_size": 1000000, "moe_intermediate_size": 1000000})",
       "config.json: model_type 'kimi_k2' with these sizes has 6.9e+16 parameters, more than "
       "1e+15; "
       "check them"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.changes);
    CHECK(message_of(c.model, c.changes) == c.message);
  }
}

TEST_CASE("whatever one value of a config becomes, it is read or refused in a sentence") {
  const Json values = Json::parse(R"([null, true, 0, 1, -1, 3, 1e300, 1.5, 9223372036854775807,
      18446744073709551615, 1000000000000, "x", "", [], [-1], [9223372036854775807], ["x"], {},
      {"rope_theta": "x"}])");
  for (const std::string& name : model_names()) {
    const Json config = model_config(name);
    const Json flat = config.flatten();
    for (const auto& [pointer, old] : flat.items()) {
      for (const Json& value : values) {
        Json changed = config;
        changed[Json::json_pointer(pointer)] = value;
        CAPTURE(name);
        CAPTURE(pointer);
        CAPTURE(value.dump());
        try {
          const ParameterCount count = count_parameters(read_model(changed, "config.json"));
          CHECK(count.total() > 0);
          CHECK(count.active() > 0);
          CHECK(count.active() <= count.total());
        } catch (const Error& error) {
          const std::string message = error.what();
          CHECK(message.starts_with("config.json: "));
          CHECK(message.size() < 640);  // that of an unknown model_type lists the known
        }
      }
    }
  }
}

TEST_CASE("an unknown architecture is answered with the known ones") {
  const std::string known =
      "cohere, cohere2, deepseek_v2, deepseek_v3, deepseek_v32, ernie4_5, ernie4_5_moe, gemma3, "
      "gemma3_text, glm4, glm4_moe, gpt2, gpt_oss, hunyuan_v1_dense, hunyuan_v1_moe, internlm3, "
      "kimi_k2, llama, llama4, llama4_text, mimo, minimax_m2, mistral, mixtral, nemotron, "
      "nemotron_h, olmo2, olmo3, phi3, qwen2, qwen2_5_vl, qwen2_5_vl_text, qwen2_moe, qwen3, "
      "qwen3_5, qwen3_5_moe, qwen3_5_moe_text, qwen3_5_text, qwen3_moe, qwen3_next, qwen3_vl, "
      "qwen3_vl_moe, qwen3_vl_moe_text, qwen3_vl_text, seed_oss, or --as one of them";
  CHECK(message_of("tiny", R"({"model_type": "mamba"})") ==
        "config.json: model_type 'mamba' is unknown; choose one of " + known);
  CHECK(message_of("tiny", R"({"model_type": "quen3"})") ==
        "config.json: model_type 'quen3' is unknown; choose one of " + known +
            "; did you mean 'qwen3'?");
  CHECK(message_of("tiny", R"({"model_type": null})") == "config.json: model_type is missing");
  CHECK_THROWS_WITH_AS(read_model(Json::array(), "config.json"),
                       "config.json: the file must be an object, is a list", Error);
}

TEST_CASE("architectures without a model here are refused by name") {
  CHECK(message_of("qwen3-30b-a3b", R"({"model_type": "kimi_linear"})") ==
        "config.json: model_type 'kimi_linear' has Kimi Delta Attention in three layers of four, "
        "whose states forget each channel at a rate of its own, which is not modelled; its nearest "
        "kin "
        "that is has --as qwen3_next");
  // The kin reads such a file: Gemma 2's has no text_config.
  CHECK(message_of("qwen3-30b-a3b", R"({"model_type": "gemma2"})").find("--as gemma3_text") !=
        std::string::npos);
  CHECK(message_of("qwen3-30b-a3b", R"({"model_type": "minimax_text_01"})").find("lightning") !=
        std::string::npos);
}

TEST_CASE("a wrapper of a text model that is known says which part to give") {
  CHECK(message_of("qwen3-30b-a3b",
                   R"({"model_type": "mistral3", "text_config": {"model_type": "mistral"}})")
            .find("its text_config is a mistral; give that alone") != std::string::npos);
}
