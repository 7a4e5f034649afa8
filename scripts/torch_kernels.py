#!/usr/bin/env python3
"""PyTorch's own kernels that a framework's layers call and that their bytes alone do not price, timed on this GPU.

An oracle for costmodel's prices, no part of the product:

    scripts/torch_kernels.py -o torch_kernels.json

* `indexed_bias`, `indexed_bias_backward`: biases of experts looked up row by row, and their gradient, which `index_put`
  adds up (transformers' GptOssExperts, integrations/moe.py). Rows are sorted by expert there.
* `drop_tokens`: an expert takes its best `capacity` tokens (megatron-core, moe_utils.py, apply_router_token_dropping):
  a topk down each expert's column of scores, a mask made of it, two products of masks.
* `order_tokens`: the rows that an expert took, in front (the same file, permute with drop_and_pad): a stable argsort of
  every expert's column.
* `adamw`, `norm`, `clip`: torch.optim.AdamW over lists, and what clip_grad_norm_ does: a norm of each gradient, one
  product of all.

Each figure is the median of `--times` calls between events, the L2 cache flushed before each.
"""

import argparse
import json
import statistics

import torch


def timed(call, times, flush):
    """Median milliseconds of the calls on the GPU."""
    took = []
    for at in range(times + 3):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if at >= 3:
            took.append(begin.elapsed_time(end))
    return statistics.median(took)


def experts_of(rows, experts, skew):
    """Sorted experts of rows; the first takes `skew` times the mean."""
    first = int(rows / experts * skew)
    rest = torch.arange(rows - first, device="cuda") % (experts - 1) + 1
    return torch.cat([torch.zeros(first, dtype=torch.int64, device="cuda"), rest]).sort().values


def indexed_bias(rows, cols, experts, skew, times, flush):
    bias = torch.randn(experts, cols, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    ids = experts_of(rows, experts, skew)
    out = bias[ids]
    grad = torch.randn_like(out)
    return dict(
        indexed_bias=timed(lambda: bias[ids], times, flush),
        indexed_bias_backward=timed(lambda: torch.autograd.grad(out, bias, grad, retain_graph=True), times, flush))


def drop_tokens(tokens, experts, topk, factor, times, flush):
    scores = torch.rand(tokens, experts, device="cuda")
    chosen = scores.topk(topk, dim=1).indices
    routing = torch.zeros_like(scores).scatter(1, chosen, 1).bool()
    probs = scores * routing
    capacity = -(-int(tokens * topk * factor) // experts)

    def drop():
        taken = torch.topk(probs, k=capacity, dim=0, sorted=False).indices
        mask = torch.zeros_like(probs).scatter(0, taken, 1).bool()
        return probs * mask

    def order():
        columns = routing.to(torch.int8).T.contiguous()
        return columns.argsort(dim=-1, descending=True, stable=True)[:, :capacity].contiguous()

    return dict(drop_tokens=timed(drop, times, flush), order_tokens=timed(order, times, flush),
                topk=timed(lambda: torch.topk(probs, k=capacity, dim=0, sorted=False), times, flush))


def update(tensors, each, dtype, kind, times, flush):
    """A step over `tensors` arrays of `each` numbers, states in the format of the weights."""
    weights = [torch.zeros(each, dtype=dtype, device="cuda", requires_grad=True) for _ in range(tensors)]
    for weight in weights:
        weight.grad = torch.full_like(weight, 1e-3)
    optimizer = torch.optim.AdamW(weights, lr=1e-5, fused=kind == "fused", foreach=kind == "foreach")
    optimizer.step()
    gradients = [weight.grad for weight in weights]
    scale = torch.ones((), dtype=dtype, device="cuda")  # as clip_grad_norm_ makes it, of the norms
    return dict(adamw=timed(optimizer.step, times, flush), norm=timed(lambda: torch._foreach_norm(gradients), times, flush),
                clip=timed(lambda: torch._foreach_mul_(gradients, scale), times, flush))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("-o", "--output", default="torch_kernels.json")
    args = parser.parse_args()
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    found = []
    for rows in (1024, 4096, 16384, 32768, 65536):
        for cols, experts, skew in ((5760, 32, 1), (2880, 32, 1), (5760, 32, 4), (2880, 128, 1), (1024, 8, 1)):
            shape = dict(rows=rows, cols=cols, experts=experts, skew=skew)
            found.append(dict(shape, **indexed_bias(**shape, times=args.times, flush=flush)))
    for tokens in (2048, 4096, 8192, 16384, 65536):
        for experts, topk in ((8, 2), (16, 1), (64, 6), (128, 8), (256, 8)):
            for factor in (1.0, 1.5) if tokens == 4096 else (1.0,):
                shape = dict(tokens=tokens, experts=experts, topk=topk, factor=factor)
                found.append(dict(shape, **drop_tokens(**shape, times=args.times, flush=flush)))
    for dtype in (torch.bfloat16, torch.float32):
        for tensors, each in ((400, 1 << 16), (400, 1 << 20), (100, 1 << 24), (8, 1 << 27)):
            for kind in ("fused", "foreach"):
                shape = dict(tensors=tensors, each=each, dtype=str(dtype).split(".")[1], kind=kind)
                found.append(dict(shape, **update(tensors, each, dtype, kind, args.times, flush)))
    with open(args.output, "w") as file:
        json.dump(dict(gpu=torch.cuda.get_device_name(0), torch=torch.__version__, unit="ms", kernels=found), file, indent=1)
    for one in found:
        print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in one.items()}))


if __name__ == "__main__":
    main()
