#pragma once
// One function an architecture, by its Hugging Face model_type. Defaults are those of the
// architecture's own class (transformers 5.23, models/*/configuration_*.py).

#include "models/json_fwd.h"
#include "models/model_spec.h"

namespace qplan::config {

// llama.cpp
void read_llama(JsonReader& in, ModelSpec& m);
void read_mistral(JsonReader& in, ModelSpec& m);
void read_mixtral(JsonReader& in, ModelSpec& m);
void read_minimax_m2(JsonReader& in, ModelSpec& m);
void read_seed_oss(JsonReader& in, ModelSpec& m);
void read_phi3(JsonReader& in, ModelSpec& m);
void read_internlm3(JsonReader& in, ModelSpec& m);

// qwen.cpp
void read_qwen2(JsonReader& in, ModelSpec& m);
void read_mimo(JsonReader& in, ModelSpec& m);
void read_qwen2_5_vl(JsonReader& in, ModelSpec& m);
void read_qwen2_5_vl_text(JsonReader& in, ModelSpec& m);
void read_qwen2_moe(JsonReader& in, ModelSpec& m);
void read_qwen3(JsonReader& in, ModelSpec& m);
void read_qwen3_moe(JsonReader& in, ModelSpec& m);
void read_qwen3_vl(JsonReader& in, ModelSpec& m);
void read_qwen3_vl_moe(JsonReader& in, ModelSpec& m);
void read_qwen3_vl_text(JsonReader& in, ModelSpec& m);
void read_qwen3_vl_moe_text(JsonReader& in, ModelSpec& m);

// qwen_hybrid.cpp
void read_qwen3_5(JsonReader& in, ModelSpec& m);
void read_qwen3_5_moe(JsonReader& in, ModelSpec& m);
void read_qwen3_5_text(JsonReader& in, ModelSpec& m);
void read_qwen3_5_moe_text(JsonReader& in, ModelSpec& m);
void read_qwen3_next(JsonReader& in, ModelSpec& m);

// deepseek.cpp
void read_deepseek_v2(JsonReader& in, ModelSpec& m);
void read_deepseek_v3(JsonReader& in, ModelSpec& m);
void read_deepseek_v32(JsonReader& in, ModelSpec& m);
void read_glm4_moe(JsonReader& in, ModelSpec& m);

// norms_behind.cpp
void read_gemma3(JsonReader& in, ModelSpec& m);
void read_gemma3_text(JsonReader& in, ModelSpec& m);
void read_glm4(JsonReader& in, ModelSpec& m);
void read_olmo2(JsonReader& in, ModelSpec& m);
void read_olmo3(JsonReader& in, ModelSpec& m);

// cohere.cpp
void read_cohere(JsonReader& in, ModelSpec& m);
void read_cohere2(JsonReader& in, ModelSpec& m);

// ernie_hunyuan.cpp
void read_ernie4_5(JsonReader& in, ModelSpec& m);
void read_ernie4_5_moe(JsonReader& in, ModelSpec& m);
void read_hunyuan_v1_dense(JsonReader& in, ModelSpec& m);
void read_hunyuan_v1_moe(JsonReader& in, ModelSpec& m);

// llama4.cpp
void read_llama4(JsonReader& in, ModelSpec& m);
void read_llama4_text(JsonReader& in, ModelSpec& m);

// nemotron_h.cpp
void read_nemotron_h(JsonReader& in, ModelSpec& m);

// gpt.cpp
void read_gpt2(JsonReader& in, ModelSpec& m);
void read_gpt_oss(JsonReader& in, ModelSpec& m);
void read_nemotron(JsonReader& in, ModelSpec& m);

// megatron_gpt.cpp
void read_megatron_gpt(JsonReader& in, ModelSpec& m);

}  // namespace qplan::config
