#!/usr/bin/env python3
"""Loss of `qplan run --backend cuda` against Hugging Face transformers, same weights and tokens.

An oracle for docs/evidence/executor.md, no part of the product. Makes a model of the given
width with a few layers, saves it as safetensors, trains it with torch (bf16 autocast, fp32 weights
and AdamW moments), then runs qplan from the same files and compares every step's loss:

    scripts/transformers_loss.py --qplan build/release/cli/qplan --model models/zoo/qwen3-0.6b.json --layers 4
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def train(model, ids, args):
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                   {"params": others, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(args.steps):
        batch = ids[step * args.batch:(step + 1) * args.batch].cuda().long()
        words, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=words, labels=targets, shift_labels=targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--qplan", default="qplan")
    parser.add_argument("--model", required=True)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--plans", nargs="*", default=[""], help="words of plans beside the batch")
    args = parser.parse_args()
    with open(args.model) as file:
        fields = json.load(file)
    fields["num_hidden_layers"] = args.layers
    if "router_aux_loss_coef" in fields:
        fields["router_aux_loss_coef"] = 0
    torch.manual_seed(1)
    config = AutoConfig.for_model(**fields)
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    # Words repeat, as language does, so that there is something to learn.
    ids = torch.randint(2000, (args.steps * args.batch, args.seq + 1), dtype=torch.int32)
    ids[:, 1::2] = (ids[:, 0:-1:2] * 7 + 3) % 2000
    with tempfile.TemporaryDirectory() as folder:
        weights, tokens = os.path.join(folder, "model"), os.path.join(folder, "tokens.bin")
        model.save_pretrained(weights)
        with open(os.path.join(weights, "config.json"), "w") as file:
            json.dump(fields, file)
        ids.numpy().tofile(tokens)
        expected = train(model.cuda().train(), ids, args)
        del model
        torch.cuda.empty_cache()
        answers = []
        for plan in args.plans:
            words = f"{plan} gbs{args.batch} seq{args.seq} routing=natural".strip()
            command = [args.qplan, "run", words, "--model", os.path.join(weights, "config.json"),
                       "--backend", "cuda", "--weights", weights, "--tokens", tokens, "--steps",
                       str(args.steps), "--lr", str(args.lr), "--weight-decay", "0.1", "--json",
                       "--moe-imbalance", "2"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if result.returncode:
                print(words, (result.stdout + result.stderr)[-500:], file=sys.stderr)
                continue
            loss = json.loads(result.stdout)["loss"]
            off = [abs(a / b - 1) for a, b in zip(loss, expected)]
            answers.append({"plan": words, "first": off[0], "worst": max(off), "last_loss": loss[-1]})
    print(json.dumps({"model": os.path.basename(args.model), "layers": args.layers, "torch": torch.__version__,
                      "transformers_loss": [round(x, 5) for x in expected[:3] + expected[-3:]],
                      "relative_difference": answers}))


if __name__ == "__main__":
    main()
