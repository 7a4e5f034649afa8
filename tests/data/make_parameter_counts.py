#!/usr/bin/env python3
"""Writes parameter_counts.json: config.json files and the parameters that transformers' classes have for them.

Needs torch and transformers (5.23.0 on torch 2.15.0 made the kept file); the C++ test reads only the JSON. Models are
built on torch's meta device, so that none of them takes memory.
    python3 make_parameter_counts.py > parameter_counts.json

Small configs are invented. Those named after a model have the sizes of its published config.json. A config that
transformers has no class for is built by the class named beside it ("as"), from the keys that class has.
"""
import json
import sys

import torch
import transformers

SIZES = dict(hidden_size=64, num_hidden_layers=4, num_attention_heads=8, intermediate_size=96, vocab_size=100)
KV = dict(num_key_value_heads=2)
INDEXED = dict(index_n_heads=4, index_head_dim=8, index_topk=16)
DEEPSEEK = dict(SIZES, moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
                q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=10, n_group=2,
                topk_group=1)
QWEN_TOWER = dict(depth=3, hidden_size=32, num_heads=4, intermediate_size=50, out_hidden_size=64, patch_size=14,
                  spatial_merge_size=2, temporal_patch_size=2, window_size=112, fullatt_block_indexes=[1])

SMALL = [
    dict(model_type="phi3", **SIZES),
    dict(model_type="phi3", tie_word_embeddings=True, partial_rotary_factor=0.75, sliding_window=32, **SIZES, **KV),
    dict(model_type="gemma3_text", head_dim=16, **SIZES, **KV),
    dict(model_type="gemma3_text", head_dim=16, attention_bias=True, tie_word_embeddings=False, sliding_window=8,
         sliding_window_pattern=2, **SIZES, **KV),
    dict(model_type="gemma3_text", hidden_size=64, num_hidden_layers=2, intermediate_size=96),
    dict(model_type="glm4", **SIZES),
    dict(model_type="glm4", head_dim=16, attention_bias=False, tie_word_embeddings=True, **SIZES, **KV),
    dict(model_type="glm4_moe", moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=2,
         n_shared_experts=1, use_qk_norm=True, attention_bias=True, head_dim=16, **SIZES, **KV),
    dict(model_type="qwen2_5_vl_text", **SIZES, **KV),
    dict(model_type="qwen2_5_vl", text_config=dict(model_type="qwen2_5_vl_text", **SIZES, **KV),
         vision_config=QWEN_TOWER),
    dict(model_type="qwen2_5_vl", tie_word_embeddings=True, vision_config=dict(QWEN_TOWER, depth=2,
         fullatt_block_indexes=[0]), **SIZES, **KV),
    dict(model_type="olmo2", **SIZES),
    dict(model_type="olmo2", attention_bias=True, tie_word_embeddings=True, **SIZES, **KV),
    dict(model_type="olmo3", **SIZES, **KV),
    dict(model_type="internlm3", **SIZES),
    dict(model_type="internlm3", head_dim=16, qkv_bias=True, bias=True, **SIZES, **KV),
    dict(model_type="cohere", **SIZES),
    dict(model_type="cohere", use_qk_norm=True, attention_bias=True, tie_word_embeddings=False, **SIZES, **KV),
    dict(model_type="cohere2", **SIZES, **KV),
    dict(model_type="cohere2", attention_bias=True, sliding_window_pattern=2, **SIZES, **KV),
    dict(model_type="ernie4_5", **SIZES),
    dict(model_type="ernie4_5", use_bias=True, head_dim=16, tie_word_embeddings=False, **SIZES, **KV),
    dict(model_type="ernie4_5_moe", moe_intermediate_size=16, moe_num_experts=8, moe_k=3, **SIZES, **KV),
    dict(model_type="ernie4_5_moe", moe_intermediate_size=16, moe_num_experts=8, moe_k=3, moe_num_shared_experts=0,
         moe_layer_start_index=0, moe_layer_end_index=2, moe_layer_interval=2, tie_word_embeddings=False, **SIZES,
         **KV),
    dict(model_type="hunyuan_v1_dense", head_dim=8, **SIZES),
    dict(model_type="hunyuan_v1_dense", head_dim=16, attention_bias=True, tie_word_embeddings=True, **SIZES, **KV),
    dict(model_type="hunyuan_v1_moe", head_dim=8, num_experts=6, moe_topk=2, **SIZES, **KV),
    dict(model_type="hunyuan_v1_moe", head_dim=16, attention_bias=True, tie_word_embeddings=True, num_experts=6,
         moe_topk=[3, 3, 3, 3], **SIZES, **KV),
    dict(model_type="mimo", **SIZES, **KV),
    dict(model_type="deepseek_v32", **DEEPSEEK, **INDEXED),
    dict(model_type="deepseek_v32", attention_bias=True, first_k_dense_replace=1, **DEEPSEEK),
    dict(model_type="deepseek_v32", mlp_layer_types=["dense", "sparse", "dense", "sparse"], **DEEPSEEK, **INDEXED),
]

# Where the numbers are from: a default of transformers' own class ("transformers"), else the model's config.json.
REAL = {
    "Phi-3-mini-4k": dict(model_type="phi3", hidden_size=3072, intermediate_size=8192, num_hidden_layers=32,
                          num_attention_heads=32, num_key_value_heads=32, vocab_size=32064, sliding_window=2047,
                          max_position_embeddings=4096),
    "GLM-4-9B-0414": dict(model_type="glm4", hidden_size=4096, intermediate_size=13696, num_hidden_layers=40,
                          num_attention_heads=32, num_key_value_heads=2, head_dim=128, vocab_size=151552,
                          attention_bias=False),
    "GLM-4-32B-0414": dict(model_type="glm4", hidden_size=6144, intermediate_size=23040, num_hidden_layers=61,
                           num_attention_heads=48, num_key_value_heads=2, head_dim=128, vocab_size=151552,
                           attention_bias=False),
    "Gemma-3-4B": dict(model_type="gemma3_text", hidden_size=2560, intermediate_size=10240, num_hidden_layers=34,
                       sliding_window=1024),
    "Olmo-3-7B": dict(model_type="olmo3", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
                      num_attention_heads=32, num_key_value_heads=32, vocab_size=100278, sliding_window=4096),
    "InternLM3-8B": dict(model_type="internlm3", hidden_size=4096, intermediate_size=10240, num_hidden_layers=48,
                         num_attention_heads=32, num_key_value_heads=2, head_dim=128, vocab_size=128512,
                         qkv_bias=False, bias=False),
    "Command-R": dict(model_type="cohere", hidden_size=8192, intermediate_size=22528, num_hidden_layers=40,
                      num_attention_heads=64, num_key_value_heads=64, vocab_size=256000, logit_scale=0.0625),
    "Command-R-plus": dict(model_type="cohere", hidden_size=12288, intermediate_size=33792, num_hidden_layers=64,
                           num_attention_heads=96, num_key_value_heads=8, vocab_size=256000, use_qk_norm=True,
                           logit_scale=0.8333333333333334),
    "Command-R7B": dict(model_type="cohere2", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                        num_attention_heads=32, num_key_value_heads=8, vocab_size=256000, sliding_window=4096,
                        sliding_window_pattern=4, logit_scale=0.25),
    "ERNIE-4.5-0.3B": dict(model_type="ernie4_5", hidden_size=1024, intermediate_size=3072, num_hidden_layers=18,
                           num_attention_heads=16, num_key_value_heads=2, head_dim=128, vocab_size=103424,
                           tie_word_embeddings=True, use_bias=False),
    "ERNIE-4.5-21B-A3B": dict(model_type="ernie4_5_moe", hidden_size=2560, intermediate_size=12288,
                              num_hidden_layers=28, num_attention_heads=20, num_key_value_heads=4, vocab_size=103424,
                              moe_num_experts=64, moe_k=6, moe_intermediate_size=1536, moe_num_shared_experts=2,
                              moe_layer_start_index=1, moe_layer_interval=1, tie_word_embeddings=True,
                              use_bias=False),
    "Hunyuan-7B": dict(model_type="hunyuan_v1_dense", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                       num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=128167,
                       tie_word_embeddings=True),
    "Hunyuan-A13B": dict(model_type="hunyuan_v1_moe", hidden_size=4096, intermediate_size=3072, num_hidden_layers=32,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=128167,
                         num_experts=64, moe_topk=8, tie_word_embeddings=True),
    "MiMo-7B": dict(model_type="mimo", hidden_size=4096, intermediate_size=11008, num_hidden_layers=36,
                    num_attention_heads=32, num_key_value_heads=8, vocab_size=151680, max_position_embeddings=32768,
                    rope_theta=640000, num_nextn_predict_layers=1),
    "DeepSeek-V3.2": dict(model_type="deepseek_v32", hidden_size=7168, intermediate_size=18432, num_hidden_layers=61,
                          num_attention_heads=128, num_key_value_heads=128, vocab_size=129280,
                          moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
                          first_k_dense_replace=3, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
                          qk_rope_head_dim=64, v_head_dim=128, n_group=8, topk_group=4, index_n_heads=64,
                          index_head_dim=128, index_topk=2048),
}

# MiMo's own code is Qwen2's with a block of multi-token prediction besides, which is counted apart.
AS = {"mimo": "qwen2"}


def build(config):
    kind = AS.get(config["model_type"], config["model_type"])
    # The classes' padding words are of their own vocabularies, which small configs do not have.
    options = {key: value for key, value in config.items() if key != "model_type"}
    options["pad_token_id"] = None
    if "text_config" in options:
        options["text_config"] = dict(options["text_config"], pad_token_id=None)
    settings = transformers.AutoConfig.for_model(kind, **options)
    with torch.device("meta"):
        if "vision_config" in config:
            return transformers.AutoModelForImageTextToText.from_config(settings)
        if kind == "qwen2_5_vl_text":
            text = transformers.models.qwen2_5_vl.modeling_qwen2_5_vl
            whole = transformers.AutoConfig.for_model("qwen2_5_vl", text_config=settings.to_dict(),
                                                      vision_config=dict(depth=1))
            model = text.Qwen2_5_VLForConditionalGeneration(whole)
            del model.model.visual
            return model
        return transformers.AutoModelForCausalLM.from_config(settings)


def counts(config):
    model = build(config)
    # What is chosen by is a buffer in some classes and a parameter in others; checkpoints have it in both.
    numbers = {name: tensor.numel() for name, tensor in model.named_parameters()}
    numbers.update({name: tensor.numel() for name, tensor in model.named_buffers() if "e_score_correction" in name})
    routed = sum(count for name, count in numbers.items() if ".experts." in name)
    total = sum(numbers.values())
    # The first of the keys in this order that the class has, for "num_experts" is another key's alias in some.
    settings = model.config.get_text_config()
    experts = used = 1
    if routed:
        experts = getattr(settings, "n_routed_experts", None) or settings.num_experts
        used = settings.moe_topk if hasattr(settings, "moe_topk") else settings.num_experts_per_tok
        used = used[0] if isinstance(used, list) else used
    return {"total": total, "active": total - routed // experts * (experts - used)}


entries = []
for name, config in [("", c) for c in SMALL] + list(REAL.items()):
    entry = {"of": name, "config": config}
    entry.update(counts(config))
    if config["model_type"] in AS:
        entry["as"] = AS[config["model_type"]]
    entries.append(json.dumps(entry))
print('{"transformers": "%s", "torch": "%s", "counts": [\n  %s\n]}' %
      (transformers.__version__, torch.__version__.split("+")[0], ",\n  ".join(entries)))
