#!/usr/bin/env python3
"""Makes the reference runs beside it: tiny random models of Hugging Face transformers, trained for three steps.

    python3 make_reference.py            # torch 2.15.0 and transformers 5.23.0 made the kept files

For every model: NAME/config.json, NAME/model.safetensors (weights, exact in bf16), NAME/gradients.safetensors (of the
first step, before clipping, in the checkpoint's names), and in reference.json the loss and gradient norm of each step.
All in fp32 on the CPU with eager attention, without an auxiliary loss. tokens.bin has int32 ids as `qplan run --tokens`
reads them: STEPS * BATCH sequences of SEQ_LEN + 1.
"""
import copy
import json
import os
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

STEPS, BATCH, SEQ_LEN, VOCAB = 3, 4, 16, 128
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CLIP = 1.0
HERE = os.path.dirname(os.path.abspath(__file__))

SIZES = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=VOCAB,
             max_position_embeddings=64, num_hidden_layers=2, rms_norm_eps=1e-6, tie_word_embeddings=False,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0))
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=16)
DEEPSEEK = dict(SIZES, **EXPERTS, num_key_value_heads=4, n_routed_experts=8, n_shared_experts=1,
                first_k_dense_replace=1, n_group=2, topk_group=1, kv_lora_rank=12, qk_nope_head_dim=8,
                qk_rope_head_dim=4, v_head_dim=6, num_nextn_predict_layers=0, aux_loss_alpha=0.0)
MODELS = {
    "llama": dict(model_type="llama", **SIZES),
    "llama3": dict(model_type="llama", **dict(SIZES, num_hidden_layers=1, rope_parameters=dict(
        rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32))),
    "qwen3": dict(model_type="qwen3", head_dim=12, **dict(SIZES, tie_word_embeddings=True)),
    "qwen3_moe": dict(model_type="qwen3_moe", head_dim=8, num_experts=4, norm_topk_prob=True,
                      router_aux_loss_coef=0.0, **SIZES, **EXPERTS),
    "mixtral": dict(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.0,
                    sliding_window=7, **dict(SIZES, intermediate_size=24)),
    "deepseek_v3": dict(model_type="deepseek_v3", q_lora_rank=20, norm_topk_prob=True, routed_scaling_factor=1.5,
                        scoring_func="sigmoid", topk_method="noaux_tc", **dict(DEEPSEEK, rope_parameters=dict(
                            rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=8.0, beta_slow=1.0, mscale=1.0,
                            mscale_all_dim=0.7, original_max_position_embeddings=16))),
    "deepseek_v2": dict(model_type="deepseek_v2", q_lora_rank=None, norm_topk_prob=False, routed_scaling_factor=1.5,
                        scoring_func="softmax", topk_method="group_limited_greedy", **DEEPSEEK),
    "qwen2": dict(model_type="qwen2", **dict(SIZES, num_hidden_layers=1, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=8.0, beta_slow=1.0, truncate=False,
        original_max_position_embeddings=16))),
    "qwen2_moe": dict(model_type="qwen2_moe", num_experts=4, shared_expert_intermediate_size=20,
                      norm_topk_prob=False, router_aux_loss_coef=0.0, **dict(SIZES, num_hidden_layers=1), **EXPERTS),
    "gpt_oss": dict(model_type="gpt_oss", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=5,
                    router_aux_loss_coef=0.0, layer_types=["sliding_attention", "full_attention"],
                    **dict(SIZES, intermediate_size=16)),
    "gpt2": dict(model_type="gpt2", n_embd=32, n_layer=1, n_head=4, n_positions=32, vocab_size=VOCAB,
                 activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                 bos_token_id=0, eos_token_id=0),
    "nemotron": dict(model_type="nemotron", hidden_act="relu2", norm_eps=1e-5, partial_rotary_factor=0.5,
                     **dict({k: v for k, v in SIZES.items() if k != "rms_norm_eps"}, num_hidden_layers=1,
                            rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
}


def build(config):
    options = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **options)
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager",
                                                           experts_implementation="eager").float().eval()
    # Larger than at initialization, so that attention and routers are far from uniform; exact in bf16.
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
            if not tensor.is_floating_point() or name.endswith("inv_freq"):
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            is_norm = tensor.dim() == 1 and "norm" in name or name.split(".")[-2].startswith("ln_")
            centre = 1.0 if is_norm and name.endswith("weight") and config["model_type"] != "nemotron" else 0.0
            tensor.copy_((centre + 0.15 * noise).bfloat16().float())
    return model


def loss_of(model, ids):
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))


def checkpoint(model, path, dtype):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = load_file(os.path.join(folder, "model.safetensors"))
    save_file({name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}, path)


def gradients_as_model(model):
    result = copy.deepcopy(model)
    with torch.no_grad():
        for mine, theirs in zip(result.parameters(), model.parameters()):
            mine.copy_(theirs.grad)
    return result


def run(name, config, batches):
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
        file.write("\n")
    model = build(config)
    checkpoint(model, os.path.join(folder, "model.safetensors"), torch.bfloat16)
    # A choice of experts that hangs on the last digits would show between fp32 and fp64.
    double = loss_of(copy.deepcopy(model).double(), batches[0]).item()
    # Matrices decay; norms, biases and other vectors do not.
    matrices = [p for n, p in model.named_parameters() if p.dim() > 1 and not n.endswith("bias")]
    vectors = [p for n, p in model.named_parameters() if p.dim() == 1 or n.endswith("bias")]
    optimizer = torch.optim.AdamW([dict(params=matrices), dict(params=vectors, weight_decay=0.0)], **ADAMW)
    losses, norms = [], []
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        if step == 0:
            checkpoint(gradients_as_model(model), os.path.join(folder, "gradients.safetensors"), torch.float32)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    assert abs(losses[0] - double) < 2e-6 * abs(double), (name, losses[0], double)
    return dict(loss=losses, grad_norm=norms)


def main():
    ids = numpy.random.default_rng(11).integers(0, VOCAB, (STEPS, BATCH, SEQ_LEN + 1), dtype=numpy.int32)
    ids.astype("<i4").tofile(os.path.join(HERE, "tokens.bin"))
    batches = torch.from_numpy(ids).long()
    results = {name: run(name, config, batches) for name, config in MODELS.items()}
    reference = dict(torch=torch.__version__, transformers=transformers.__version__, global_batch_size=BATCH,
                     seq_len=SEQ_LEN, adamw=ADAMW, clip_grad=CLIP, models=results)
    with open(os.path.join(HERE, "reference.json"), "w") as file:
        json.dump(reference, file, indent=1)
        file.write("\n")


main()
