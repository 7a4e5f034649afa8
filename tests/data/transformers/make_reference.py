#!/usr/bin/env python3
"""Makes the reference runs beside it: tiny random models of Hugging Face transformers, trained for three steps.

    python3 make_reference.py            # torch 2.15.0 and transformers 5.23.0 made the kept files
    python3 make_reference.py NAME ...   # these alone; the others stay as they are

For every model: NAME/config.json, NAME/model.safetensors (weights, exact in bf16), NAME/gradients.safetensors (of the
first step, before clipping, in the checkpoint's names), and in reference.json the loss and gradient norm of each step.
All in fp32 on the CPU with eager attention, without an auxiliary loss. tokens.bin has int32 ids as `qplan run --tokens`
reads them: STEPS * BATCH sequences of SEQ_LEN + 1.

`bf16` of a model whose tokens go to all experts: the loss of its first step in fp32 and how far its loss and its
gradients in bf16 are from those in fp32 (relative L2, the worst and the mean of all tensors). `curve` of a few: losses of 50 steps over the same batches again and again,
in fp32 and in bf16 with fp32 copies that AdamW moves.

A vision-language model sees one image at the start of every sequence, whose pixels are those of `seeded_images(1)`. As
in fine-tuning (labels -100 where an image stands), nothing is to predict a visual token: its loss is the mean over the rest.
"""
import copy
import json
import os
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

STEPS, BATCH, SEQ_LEN, VOCAB = 3, 4, 16, 128
CURVE, CURVES = 50, ("llama", "qwen3", "qwen3_moe", "deepseek_v2")
GRID = 4  # patches a side of an image: 2 x 2 tokens, a quarter of a sequence
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
    # Chunks that do not divide a sequence; layers that rotate and one that does not, whose queries grow every four
    # tokens; a dense MLP and experts behind it.
    "llama4": dict(model_type="llama4_text", head_dim=8, num_local_experts=4, num_experts_per_tok=1,
                   router_aux_loss_coef=0.0, intermediate_size_mlp=40, moe_layers=[1, 2], no_rope_layers=[1, 0, 1],
                   attention_chunk_size=6, floor_scale=4, attn_scale=0.1, attn_temperature_tuning=True,
                   use_qk_norm=True, **dict(SIZES, num_hidden_layers=3, intermediate_size=16)),
    "qwen3_next": dict(model_type="qwen3_next", head_dim=16, partial_rotary_factor=0.25, num_experts=4,
                       shared_expert_intermediate_size=20, norm_topk_prob=True, router_aux_loss_coef=0.0,
                       linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
                       linear_value_head_dim=8, linear_conv_kernel_dim=4, mlp_only_layers=[2],
                       layer_types=["linear_attention", "full_attention", "linear_attention"],
                       **dict(SIZES, num_hidden_layers=3, rope_parameters=dict(
                           rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25)), **EXPERTS),
    "qwen3_5": dict(model_type="qwen3_5_text", head_dim=16, linear_num_key_heads=2, linear_num_value_heads=2,
                    linear_key_head_dim=6, linear_value_head_dim=8, linear_conv_kernel_dim=4,
                    layer_types=["linear_attention", "full_attention"],
                    **dict(SIZES, rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                       partial_rotary_factor=0.25))),
    # Without a padding token, whose embedding has no gradient.
    "ernie4_5": dict(model_type="ernie4_5", head_dim=8, use_bias=False, pad_token_id=None,
                     **dict(SIZES, num_hidden_layers=1)),
    "nemotron_h": dict(model_type="nemotron_h", head_dim=8, mamba_num_heads=4, mamba_head_dim=6, n_groups=2,
                       ssm_state_size=5, conv_kernel=4, chunk_size=8, use_conv_bias=True, mlp_hidden_act="relu2",
                       layer_norm_epsilon=1e-5, hybrid_override_pattern="M-*ME",
                       n_routed_experts=4, n_shared_experts=1, router_aux_loss_coef=0.0, norm_topk_prob=True, routed_scaling_factor=1.5,
                       n_group=1, topk_group=1, moe_shared_expert_intermediate_size=20, moe_latent_size=12,
                       **{k: v for k, v in dict(SIZES, num_hidden_layers=5, **EXPERTS).items()
                          if k not in ("rms_norm_eps", "rope_parameters")}),
    "qwen3_vl_moe": dict(
        model_type="qwen3_vl_moe", image_token_id=VOCAB, tie_word_embeddings=False,
        text_config=dict(model_type="qwen3_vl_moe_text", num_experts=4, router_aux_loss_coef=0.0, mlp_only_layers=[1],
                         **dict(SIZES, num_hidden_layers=3, head_dim=16, vocab_size=VOCAB + 1, rope_parameters=dict(
                             rope_type="default", rope_theta=10000.0, mrope_section=[4, 2, 2],
                             mrope_interleaved=True)), **dict(EXPERTS, moe_intermediate_size=12)),
        vision_config=dict(model_type="qwen3_vl_moe", depth=3, hidden_size=16, intermediate_size=24, num_heads=2,
                           in_channels=3, patch_size=2, temporal_patch_size=2, spatial_merge_size=2,
                           num_position_embeddings=9, out_hidden_size=32, hidden_act="gelu_pytorch_tanh",
                           deepstack_visual_indexes=[0, 1])),
}


def build(config):
    options = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **options)
    family = transformers.AutoModelForImageTextToText if "vision_config" in config else transformers.AutoModelForCausalLM
    model = family.from_config(settings, attn_implementation="eager", experts_implementation="eager").float().eval()
    # Larger than at initialization, so that attention and routers are far from uniform; exact in bf16.
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
            if not tensor.is_floating_point() or name.endswith("inv_freq"):
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            is_norm = tensor.dim() == 1 and "norm" in name or name.split(".")[-2].startswith("ln_")
            around_zero = config["model_type"] == "nemotron" or (
                config["model_type"] in ("qwen3_next", "qwen3_5_text") and not name.endswith("linear_attn.norm.weight"))
            centre = 1.0 if is_norm and name.endswith("weight") and not around_zero else 0.0
            tensor.copy_((centre + 0.15 * noise).bfloat16().float())
    return model


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC'11) of arrays of counters: what executor/io/philox.h draws."""
    counter = [c.astype(numpy.uint64) for c in counter]
    key = list(key)
    mask = numpy.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = counter[0] * numpy.uint64(0xD2511F53), counter[2] * numpy.uint64(0xCD9E8D57)
        high = lambda x: x >> numpy.uint64(32)
        counter = [high(b) ^ counter[1] ^ numpy.uint64(key[0]), b & mask,
                   high(a) ^ counter[3] ^ numpy.uint64(key[1]), a & mask]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def seeded_image(seed, image, count):
    """Numbers of an image, uniform in (-1, 1), as executor/io/images.h draws them."""
    blocks = numpy.arange((count + 3) // 4)
    same = numpy.zeros_like(blocks)
    drawn = philox([blocks, same, same + image, same + 3], (seed, 0))
    uniform = (numpy.stack(drawn, axis=1).reshape(-1)[:count] + 0.5) * 2.0 ** -32
    return (2 * uniform - 1).astype(numpy.float32)


def inputs_of(model, ids, first_sequence):
    ids = ids[:, :-1].clone()
    if not hasattr(model.config, "vision_config"):
        return dict(input_ids=ids)
    v = model.config.vision_config
    tokens = (GRID // v.spatial_merge_size) ** 2
    pixels = v.in_channels * v.temporal_patch_size * v.patch_size ** 2
    kinds = torch.zeros_like(ids)
    ids[:, :tokens], kinds[:, :tokens] = model.config.image_token_id, 1
    images = [seeded_image(1, first_sequence + i, GRID ** 2 * pixels).reshape(-1, pixels) for i in range(len(ids))]
    return dict(input_ids=ids, mm_token_type_ids=kinds, image_grid_thw=torch.tensor([[1, GRID, GRID]] * len(ids)),
                pixel_values=torch.from_numpy(numpy.concatenate(images)).to(model.dtype))


def loss_of(model, ids, first_sequence):
    inputs = inputs_of(model, ids, first_sequence)
    logits = model(**inputs, use_cache=False).logits
    logits = logits if model.dtype == torch.float64 else logits.float()
    labels = ids.clone()
    if "mm_token_type_ids" in inputs:
        labels[:, :-1][inputs["mm_token_type_ids"] == 1] = -100
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def checkpoint(model, path, dtype):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = load_file(os.path.join(folder, "model.safetensors"))
    if model.config.model_type == "qwen3_vl_moe":
        # Published checkpoints keep (in, out); transformers turns what it loads (conversion_mapping.py), but not what
        # it has never loaded.
        tensors = {n: t.transpose(1, 2) if n.endswith(("experts.gate_up_proj", "experts.down_proj")) else t
                   for n, t in tensors.items()}
    save_file({name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}, path)


def gradients_as_model(model):
    result = copy.deepcopy(model)
    with torch.no_grad():
        for mine, theirs in zip(result.parameters(), model.parameters()):
            mine.copy_(theirs.grad)
    return result


def optimizer_of(named):
    """Matrices decay; norms, biases and other vectors do not."""
    matrices = [p for n, p in named if p.dim() > 1 and not n.endswith("bias")]
    vectors = [p for n, p in named if p.dim() == 1 or n.endswith("bias")]
    return torch.optim.AdamW([dict(params=matrices), dict(params=vectors, weight_decay=0.0)], **ADAMW)


def train(model, batches, steps, after_backward=lambda step: None):
    """Losses and gradient norms; in bf16, AdamW moves fp32 copies of the weights."""
    narrow = model.dtype == torch.bfloat16
    own = list(model.named_parameters())
    moved = [(n, p.detach().float().requires_grad_()) for n, p in own] if narrow else own
    optimizer = optimizer_of(moved)
    losses, norms = [], []
    for step in range(steps):
        model.zero_grad()
        loss = loss_of(model, batches[step % STEPS], step % STEPS * BATCH)
        loss.backward()
        after_backward(step)
        for (_, copy), (_, parameter) in zip(moved, own):
            if narrow:
                copy.grad = parameter.grad.float()
        norms.append(torch.nn.utils.clip_grad_norm_([p for _, p in moved], CLIP).item())
        optimizer.step()
        with torch.no_grad():
            for (_, copy), (_, parameter) in zip(moved, own):
                parameter.copy_(copy)
        losses.append(loss.item())
    return losses, norms


def with_all_experts(config):
    """Every token goes to all of them: no choice of experts hangs on a rounding."""
    if "text_config" in config:
        return dict(config, text_config=with_all_experts(config["text_config"]))
    experts = [config[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if key in config]
    one_group = {key: 1 for key in ("n_group", "topk_group") if key in config}
    return dict(config, num_experts_per_tok=experts[0], **one_group) if experts else config


def in_bf16(config, batch):
    config = with_all_experts(config)
    exact, rounded = build(config), build(config).bfloat16()
    exact_loss, loss = loss_of(exact, batch, 0), loss_of(rounded, batch, 0)
    exact_loss.backward()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(exact.parameters(), float("inf")).item()
    errors = [(mine.grad.float() - theirs.grad).norm().item() / max(theirs.grad.norm().item(), 1e-3 * norm)
              for mine, theirs in zip(rounded.parameters(), exact.parameters())]
    return dict(exact_loss=exact_loss.item(), loss=loss.item() / exact_loss.item() - 1, worst_gradient=max(errors), mean_gradient=sum(errors) / len(errors))


def write_config(folder, config):
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
        file.write("\n")


def run(name, config, batches):
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    write_config(folder, config)
    model = build(config)
    checkpoint(model, os.path.join(folder, "model.safetensors"), torch.bfloat16)
    if "vision_config" in config:  # what is published is what from_pretrained reads
        model.config.save_pretrained(folder)
        published = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        assert loss_of(published, batches[0], 0).item() == loss_of(model, batches[0], 0).item()
        write_config(folder, config)
    # A choice of experts that hangs on the last digits would show between fp32 and fp64.
    double = loss_of(copy.deepcopy(model).double(), batches[0], 0).item()

    def keep_gradients(step):
        if step == 0:
            checkpoint(gradients_as_model(model), os.path.join(folder, "gradients.safetensors"), torch.float32)
    losses, norms = train(model, batches, STEPS, keep_gradients)
    assert abs(losses[0] - double) < 2e-6 * abs(double), (name, losses[0], double)
    result = dict(loss=losses, grad_norm=norms, bf16=in_bf16(config, batches[0]))
    if name in CURVES:
        result["curve"] = {word: train(build(config).to(dtype), batches, CURVE)[0]
                           for word, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))}
    return result


def main():
    ids = numpy.random.default_rng(11).integers(0, VOCAB, (STEPS, BATCH, SEQ_LEN + 1), dtype=numpy.int32)
    ids.astype("<i4").tofile(os.path.join(HERE, "tokens.bin"))
    batches = torch.from_numpy(ids).long()
    torch.set_num_threads(1)
    path = os.path.join(HERE, "reference.json")
    kept = {}
    if sys.argv[1:]:
        with open(path) as file:
            kept = json.load(file)["models"]
    chosen = sys.argv[1:] or list(MODELS)
    made = {name: run(name, MODELS[name], batches) for name in chosen}
    results = {name: made.get(name, kept.get(name)) for name in MODELS if name in made or name in kept}
    reference = dict(torch=torch.__version__, transformers=transformers.__version__, global_batch_size=BATCH,
                     seq_len=SEQ_LEN, adamw=ADAMW, clip_grad=CLIP, models=results)
    with open(path, "w") as file:
        json.dump(reference, file, indent=1)
        file.write("\n")


main()
