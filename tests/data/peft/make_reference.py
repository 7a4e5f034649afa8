#!/usr/bin/env python3
"""Makes the reference runs beside it: PEFT's adapters beside the models of ../transformers, one step each.

    python3 make_reference.py            # torch 2.15.0, transformers 5.24.0 and peft 0.21.2 made the kept files

The frozen weights are ../transformers/MODEL/model.safetensors, the tokens the first batch of its tokens.bin. For every
case: CASE/adapters.safetensors (what is trained, in the names of PEFT's adapter_model.safetensors, exact in bf16) and
CASE/gradients.safetensors (of the same, before clipping), and in reference.json the plan words that say the same, the
loss, the gradient norm, and the loss of the merged model (merge_and_unload). In fp32 on the CPU with eager attention.
"""
import json
import os

import numpy
import peft
import torch
import transformers
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "transformers")
BATCH, SEQ_LEN = 4, 16
DENSE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LATENT = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]

# Name: model, plan words that say the same, LoraConfig's fields.
CASES = {
    "lora": ("llama", "lora4 lora_alpha=8", dict(r=4, lora_alpha=8, target_modules=DENSE)),
    "lora_qv": ("qwen3", "lora2 lora_alpha=32 lora_targets=q_proj+v_proj",
                dict(r=2, lora_alpha=32, target_modules=["q_proj", "v_proj"])),
    "lora_moe": ("qwen3_moe", "lora4 lora_alpha=8",
                 dict(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])),
    "lora_mla": ("deepseek_v3", "lora2 lora_alpha=8 lora_targets=q_a_proj+q_b_proj+kv_a_proj+kv_b_proj+o_proj",
                 dict(r=2, lora_alpha=8, target_modules=LATENT)),
    "embeddings": ("llama", "lora2 lora_alpha=8 lora_targets=q_proj+down_proj lora_embeddings",
                   dict(r=2, lora_alpha=8, target_modules=["q_proj", "down_proj"],
                        modules_to_save=["embed_tokens", "lm_head"])),
    "dora": ("llama", "lora4 lora_alpha=8 dora", dict(r=4, lora_alpha=8, target_modules=DENSE, use_dora=True)),
    "dora_bias": ("qwen2", "lora2 lora_alpha=8 lora_targets=k_proj+v_proj+o_proj dora",
                  dict(r=2, lora_alpha=8, target_modules=["k_proj", "v_proj", "o_proj"], use_dora=True)),
    "dora_moe": ("qwen3_moe", "lora2 lora_alpha=8 lora_targets=q_proj+o_proj lora_embeddings dora",
                 dict(r=2, lora_alpha=8, target_modules=["q_proj", "o_proj"], use_dora=True,
                      modules_to_save=["embed_tokens", "lm_head"])),
    "dora_mla": ("deepseek_v3", "lora2 lora_alpha=8 lora_targets=q_a_proj+q_b_proj+kv_a_proj+kv_b_proj+o_proj dora",
                 dict(r=2, lora_alpha=8, target_modules=LATENT, use_dora=True)),
}


def base_model(name):
    with open(os.path.join(MODELS, name, "config.json")) as file:
        fields = json.load(file)
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    return transformers.AutoModelForCausalLM.from_pretrained(
        os.path.join(MODELS, name), config=config, dtype=torch.float32, attn_implementation="eager",
        experts_implementation="eager").eval()


def loss_of(model, ids):
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def run(case, model_name, fields, ids):
    model = peft.get_peft_model(base_model(model_name), peft.LoraConfig(**fields)).eval()
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in trained:
            noise = torch.randn(parameter.shape, generator=generator)
            # Magnitudes near the norms that they begin as; B is not 0, so that all gradients are seen.
            new = parameter * (1 + 0.2 * noise) if "magnitude" in name else 0.15 * noise
            parameter.copy_(new.bfloat16().float())
    loss = loss_of(model, ids)
    loss.backward()
    norm = torch.stack([p.grad.norm() for _, p in trained]).norm().item()
    folder = os.path.join(HERE, case)
    os.makedirs(folder, exist_ok=True)
    values = {k: v.bfloat16().contiguous() for k, v in get_peft_model_state_dict(model).items()}
    save_file(values, os.path.join(folder, "adapters.safetensors"))
    with torch.no_grad():
        for _, parameter in trained:
            parameter.copy_(parameter.grad)
    save_file({k: v.contiguous() for k, v in get_peft_model_state_dict(model).items()},
              os.path.join(folder, "gradients.safetensors"))
    # Merged: the same adapters, read back.
    again = peft.get_peft_model(base_model(model_name), peft.LoraConfig(**fields)).eval()
    peft.set_peft_model_state_dict(
        again, {k: v.float() for k, v in load_file(os.path.join(folder, "adapters.safetensors")).items()})
    unmerged = loss_of(again, ids).item()
    assert abs(unmerged - loss.item()) < 1e-6 * loss.item(), (case, unmerged, loss.item())
    merged = loss_of(again.merge_and_unload(), ids).item()
    return dict(model=model_name, plan=f"{words_of(case)} gbs{BATCH} seq{SEQ_LEN}", loss=loss.item(), grad_norm=norm,
                merged_loss=merged, trained=sum(p.numel() for _, p in trained))


def words_of(case):
    return CASES[case][1]


def main():
    torch.set_num_threads(1)
    ids = numpy.fromfile(os.path.join(MODELS, "tokens.bin"), dtype="<i4").reshape(-1, BATCH, SEQ_LEN + 1)[0]
    ids = torch.from_numpy(ids.astype(numpy.int64))
    results = {case: run(case, model, fields, ids) for case, (model, _, fields) in CASES.items()}
    reference = dict(torch=torch.__version__, transformers=transformers.__version__, peft=peft.__version__,
                     global_batch_size=BATCH, seq_len=SEQ_LEN, cases=results)
    with open(os.path.join(HERE, "reference.json"), "w") as file:
        json.dump(reference, file, indent=1)
        file.write("\n")


main()
