#!/usr/bin/env python3
"""Bytes that PEFT's adapters take beside frozen weights, as torch allocates them on a CPU.

An oracle for docs/evidence/lora.md, no part of the product. Runs forward and backward of a Llama of random weights in
bf16 with one and with two layers, without norm and head behind them, counts what is allocated (torch.profiler, profile_memory) and prints, for each kind
of adapters, what one layer keeps from forward to backward and how far the one's peak lies above the other's:

    scripts/peft_memory.py --hidden 1024 --seq 512 --rank 16
"""

import argparse
import contextlib
import json

import peft
import torch
import transformers

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS = {
    "lora": dict(),
    "dora": dict(use_dora=True),
    "lora, dropout": dict(lora_dropout=0.1),
    "dora, dropout": dict(lora_dropout=0.1, use_dora=True),
    "lora, fp32": dict(fp32=True),
    "lora, fp32, dropout": dict(fp32=True, lora_dropout=0.1),
    "dora, fp32": dict(fp32=True, use_dora=True),
}


def model_of(args, layers, fp32=False, **fields):
    config = transformers.LlamaConfig(
        hidden_size=args.hidden, intermediate_size=args.intermediate, num_hidden_layers=layers, vocab_size=512,
        num_attention_heads=args.hidden // 64, num_key_value_heads=args.hidden // 256, tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    lora = peft.LoraConfig(r=args.rank, lora_alpha=16, target_modules=ALL, **fields)
    model = peft.get_peft_model(model, lora, autocast_adapter_dtype=fp32).train()
    model.enable_input_require_grads()  # as a layer in the middle of a model
    model.base_model.model.model.norm = model.base_model.model.lm_head = torch.nn.Identity()
    return model


class Counter:
    """Bytes allocated and not freed, as the profiler's memory events tell."""

    def __enter__(self):
        self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        self.profile.__enter__()
        return self

    def __exit__(self, *args):
        self.profile.__exit__(*args)
        events = [e for e in self.profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        self.net = self.peak = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            self.net += event.nbytes()
            self.peak = max(self.peak, self.net)


def measure(args, kind, layers):
    fields = dict(KINDS[kind])
    fp32 = fields.pop("fp32", False)
    torch.manual_seed(1)
    model = model_of(args, layers, fp32, **fields)
    ids = torch.randint(512, (1, args.seq))
    context = torch.autocast("cpu", dtype=torch.bfloat16) if fp32 else contextlib.nullcontext()

    def forward():
        with context:
            return model(input_ids=ids, use_cache=False).logits.mean()

    forward().backward()
    model.zero_grad(set_to_none=True)
    with Counter() as kept:
        loss = forward()
    loss.backward()
    model.zero_grad(set_to_none=True)
    del loss
    with Counter() as whole:
        forward().backward()
    return kept.net, kept.peak, whole.peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--intermediate", type=int, default=2816)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--rank", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = dict(vars(args), torch=torch.__version__, transformers=transformers.__version__, peft=peft.__version__)
    for kind in KINDS:
        one, two = measure(args, kind, 1), measure(args, kind, 2)
        result[kind] = dict(kept_by_a_layer=two[0] - one[0], above_it_in_forward=two[1] - two[0],
                            above_it_in_all=two[2] - two[0])
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
