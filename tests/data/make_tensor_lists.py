#!/usr/bin/env python3
"""Writes tensor_lists.json: the tensors that transformers' save_pretrained() writes for tiny models.

Needs torch and transformers (5.23.0 made the kept file); the C++ test reads only the JSON.
    python3 make_tensor_lists.py > tensor_lists.json
"""
import json
import os
import tempfile

import transformers
from safetensors import safe_open

SIZES = dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24, vocab_size=32)
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=10)
TOWER = dict(depth=2, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=2, temporal_patch_size=2,
             num_position_embeddings=9, out_hidden_size=16, deepstack_visual_indexes=[0, 1])
DEEPSEEK = dict(SIZES, **EXPERTS, num_hidden_layers=2, num_key_value_heads=4, n_routed_experts=4, n_shared_experts=2,
                first_k_dense_replace=1, n_group=2, topk_group=1, kv_lora_rank=6, qk_nope_head_dim=8,
                qk_rope_head_dim=4, v_head_dim=5, num_nextn_predict_layers=0)

HYBRID = dict(SIZES, num_hidden_layers=4, full_attention_interval=2, head_dim=8, linear_num_key_heads=2,
              linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=10, linear_conv_kernel_dim=3)

MAMBA = dict(SIZES, hybrid_override_pattern="ME*-", num_hidden_layers=4, head_dim=8, mamba_num_heads=6,
             mamba_head_dim=4, n_groups=2, ssm_state_size=5, conv_kernel=3, n_routed_experts=3, num_experts_per_tok=2,
             moe_intermediate_size=10, moe_shared_expert_intermediate_size=14)

CONFIGS = [
    dict(model_type="llama", num_hidden_layers=2, **SIZES),
    dict(model_type="llama", num_hidden_layers=1, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, **SIZES),
    dict(model_type="mistral", num_hidden_layers=1, **SIZES),
    dict(model_type="qwen2", num_hidden_layers=1, **SIZES),
    dict(model_type="qwen3", num_hidden_layers=1, head_dim=6, **SIZES),
    dict(model_type="qwen2_moe", num_hidden_layers=2, num_experts=3, shared_expert_intermediate_size=14,
         decoder_sparse_step=2, **SIZES, **EXPERTS),
    dict(model_type="qwen3_moe", num_hidden_layers=1, num_experts=3, **SIZES, **EXPERTS),
    dict(model_type="mixtral", num_hidden_layers=1, num_local_experts=3, num_experts_per_tok=2, **SIZES),
    dict(model_type="deepseek_v2", q_lora_rank=None, **DEEPSEEK),
    dict(model_type="deepseek_v3", q_lora_rank=12, **DEEPSEEK),
    dict(model_type="deepseek_v3", q_lora_rank=12, attention_bias=True, **DEEPSEEK),
    dict(model_type="gpt_oss", num_hidden_layers=2, head_dim=8, num_local_experts=3, num_experts_per_tok=2, **SIZES),
    dict(model_type="gpt2", n_embd=16, n_layer=2, n_head=4, n_positions=20, vocab_size=32),
    dict(model_type="nemotron", num_hidden_layers=1, **SIZES),
    dict(model_type="qwen3_vl", text_config=dict(model_type="qwen3_vl_text", num_hidden_layers=2, head_dim=4, **SIZES),
         vision_config=dict(model_type="qwen3_vl", **TOWER)),
    dict(model_type="qwen3_vl_moe",
         text_config=dict(model_type="qwen3_vl_moe_text", num_hidden_layers=2, head_dim=4, num_experts=3, **SIZES,
                          **EXPERTS),
         vision_config=dict(model_type="qwen3_vl_moe", **TOWER)),
    dict(model_type="qwen3_next", num_experts=3, shared_expert_intermediate_size=14, decoder_sparse_step=2,
         mlp_only_layers=[1], **HYBRID, **EXPERTS),
    dict(model_type="nemotron_h", **MAMBA),
    dict(model_type="nemotron_h", moe_latent_size=12, **MAMBA),
    dict(model_type="llama4_text", num_hidden_layers=2, head_dim=8, num_local_experts=3, num_experts_per_tok=1,
         interleave_moe_layer_step=2, intermediate_size_mlp=20, **SIZES),
    dict(model_type="phi3", num_hidden_layers=1, **SIZES),
    dict(model_type="internlm3", num_hidden_layers=1, head_dim=6, qkv_bias=True, bias=True, **SIZES),
    dict(model_type="gemma3_text", num_hidden_layers=1, head_dim=6, **SIZES),
    dict(model_type="glm4", num_hidden_layers=1, head_dim=6, **SIZES),
    dict(model_type="olmo2", num_hidden_layers=1, **SIZES),
    dict(model_type="olmo3", num_hidden_layers=1, attention_bias=True, **SIZES),
    dict(model_type="cohere", num_hidden_layers=1, use_qk_norm=True, **SIZES),
    dict(model_type="cohere2", num_hidden_layers=1, **SIZES),
    dict(model_type="ernie4_5", num_hidden_layers=1, head_dim=6, use_bias=True, **SIZES),
    dict(model_type="ernie4_5_moe", num_hidden_layers=2, moe_num_experts=3, moe_k=2, moe_intermediate_size=10, **SIZES),
    dict(model_type="hunyuan_v1_dense", num_hidden_layers=1, head_dim=6, **SIZES),
    dict(model_type="hunyuan_v1_moe", num_hidden_layers=1, head_dim=6, num_experts=3, moe_topk=2, **SIZES),
    dict(model_type="deepseek_v32", q_lora_rank=12, index_n_heads=2, index_head_dim=6, index_topk=4, **DEEPSEEK),
    dict(model_type="qwen2_5_vl", text_config=dict(model_type="qwen2_5_vl_text", num_hidden_layers=1, **SIZES),
         vision_config=dict(depth=2, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=2,
                            temporal_patch_size=2, window_size=8, out_hidden_size=16, fullatt_block_indexes=[1])),
    dict(model_type="qwen3_5_text", **HYBRID),
    dict(model_type="qwen3_5_moe_text", num_experts=3, shared_expert_intermediate_size=14, **HYBRID, **EXPERTS),
]


def build(config):
    # The classes' padding words are of vocabularies larger than these.
    options = dict({key: value for key, value in config.items() if key != "model_type"}, pad_token_id=None)
    if "text_config" in options:
        options["text_config"] = dict(options["text_config"], pad_token_id=None)
    settings = transformers.AutoConfig.for_model(config["model_type"], **options)
    if "vision_config" in config:
        return transformers.AutoModelForImageTextToText.from_config(settings)
    return transformers.AutoModelForCausalLM.from_config(settings)


def tensors(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(os.path.join(folder, "model.safetensors"), "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
    # Published checkpoints keep experts (in, out); transformers turns what it loads (conversion_mapping.py), but writes
    # a model that it never loaded as it is.
    if model.config.model_type == "qwen3_vl_moe":
        for name in shapes:
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                shapes[name][1:] = shapes[name][:0:-1]
    return shapes


entries = []
for config in CONFIGS:
    entries.append('  {"config": %s,\n   "tensors": %s}' % (json.dumps(config), json.dumps(tensors(build(config)))))
print("[\n" + ",\n".join(entries) + "\n]")
