#!/usr/bin/env python3
"""PyTorch FSDP2 on Hugging Face modules: tokens/s per GPU of one training step, to hold ours against.

An oracle for docs/evidence/executor.md, no part of the product. Same model file, same number of
layers, same batch; fp32 main weights and AdamW moments, bf16 products, gradients reduced in fp32,
optimizer step included; random tokens. One process a GPU:

    torchrun --nproc-per-node 2 scripts/torch_baseline.py --model models/zoo/qwen3-8b.json \
        --layers 8 --micro-batch 2 --accumulate 4 --compile
"""

import argparse
import contextlib
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a Hugging Face config.json")
    parser.add_argument("--layers", type=int, help="of the model's; all if left out")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--micro-batch", type=int, default=1, help="sequences a GPU at once")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
    parser.add_argument("--compile", action="store_true", help="torch.compile each layer")
    parser.add_argument("--recompute", action="store_true", help="checkpoint each layer")
    parser.add_argument("--reduce-each", action="store_true",
                        help="reduce gradients after every micro-batch: a GPU keeps its part alone")
    parser.add_argument("--cudnn", action="store_true", help="attention by cuDNN, else as PyTorch chooses")
    parser.add_argument("--experts", default="grouped_mm", help="experts_implementation of a MoE")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warm-up", type=int, default=2, help="steps that are left out")
    parser.add_argument("--trace", help="three more steps, recorded by PyTorch's profiler, in this file")
    return parser.parse_args()


def build(args):
    with open(args.model) as file:
        fields = json.load(file)
    if args.layers:
        fields["num_hidden_layers"] = args.layers
    config = AutoConfig.for_model(**fields)
    config.use_cache = False
    options = {"attn_implementation": "sdpa"}
    if "num_experts" in fields:
        config.output_router_logits = False
        options["experts_implementation"] = args.experts
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options)
    if args.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if args.compile:
        for layer in model.model.layers:
            layer.compile()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model, config


def record(step, path):
    """What `qplan fit` reads: three steps after one that warms the profiler up."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=3)
    with torch.profiler.profile(activities=activities, schedule=schedule,
                                on_trace_ready=lambda found: found.export_chrome_trace(path)) as profiler:
        for _ in range(4):
            step()
            torch.cuda.synchronize()
            profiler.step()


def main():
    args = arguments()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    model, config = build(args)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=True)
    generator = torch.Generator("cuda").manual_seed(rank)
    attention = sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if args.cudnn else contextlib.nullcontext()

    def step():
        for i in range(args.accumulate):
            ids = torch.randint(config.vocab_size, (args.micro_batch, args.seq + 1),
                                device="cuda", generator=generator)
            reduces = args.reduce_each or i + 1 == args.accumulate
            model.set_requires_gradient_sync(reduces)
            model.set_is_last_backward(reduces)
            # Labels shifted by hand: the loss sees seq tokens, as ours does.
            words, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
            loss = model(input_ids=words, labels=targets, shift_labels=targets).loss
            (loss / args.accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    times = []
    with attention:
        for _ in range(args.steps):
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
            loss = step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        if args.trace:
            record(step, args.trace if rank == 0 else os.devnull)
    if rank == 0:
        median = statistics.median(times[args.warm_up:])
        free, total = torch.cuda.mem_get_info()
        print(json.dumps({
            "torch": torch.__version__, "gpus": world, "model": os.path.basename(args.model),
            "layers": config.num_hidden_layers, "micro_batch": args.micro_batch,
            "accumulate": args.accumulate, "compile": args.compile, "recompute": args.recompute,
            "cudnn": args.cudnn, "reduce_each": args.reduce_each, "step_s": round(median, 5),
            "tokens_per_s_per_gpu": round(args.micro_batch * args.accumulate * args.seq / median),
            "device_gib": round((total - free) / 2**30, 2), "loss": round(loss.item(), 4)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
