#!/usr/bin/env python3
"""Times decoding steps of Llama- and Qwen-shaped models on one GPU with torch, captured in CUDA graphs.

  scripts/time_decode.py decode.json

What `RolloutModel::step` predicts less an engine's host. Weights and caches of two layers stand for all: each
layer's are far larger than the L2 cache, so that every layer reads its own from memory. Element-wise work is
fused by torch.compile; experts' products are torch's grouped ones. Needs about 70 GB.
"""
import json
import sys

import torch
import torch.nn.functional as F

MODELS = {
    "llama3-8b": dict(hidden=4096, layers=32, heads=32, kv=8, dim=128, ffn=14336, vocab=128256, qk_norm=False),
    "qwen3-14b": dict(hidden=5120, layers=40, heads=40, kv=8, dim=128, ffn=17408, vocab=151936, qk_norm=True),
    "qwen3-30b-a3b": dict(hidden=2048, layers=48, heads=32, kv=4, dim=128, ffn=768, vocab=151936, qk_norm=True,
                          experts=128, top_k=8),
}
BF16 = torch.bfloat16


def random(*shape):
    return (torch.randn(*shape, device="cuda") * 0.02).to(BF16)


def weights_of(m):
    ones = lambda n: torch.ones(n, device="cuda", dtype=BF16)
    w = dict(norm1=ones(m["hidden"]), norm2=ones(m["hidden"]), q_norm=ones(m["dim"]), k_norm=ones(m["dim"]),
             qkv=random((m["heads"] + 2 * m["kv"]) * m["dim"], m["hidden"]),
             out=random(m["hidden"], m["heads"] * m["dim"]))
    if "experts" in m:
        w["router"] = random(m["experts"], m["hidden"])
        w["up"] = random(m["experts"], m["hidden"], 2 * m["ffn"])
        w["down"] = random(m["experts"], m["ffn"], m["hidden"])
    else:
        w["up"], w["down"] = random(2 * m["ffn"], m["hidden"]), random(m["hidden"], m["ffn"])
    return w


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def before_attention(x, w, m, cos, sin):
    y = F.rms_norm(x, (m["hidden"],), w["norm1"])
    q, k, v = F.linear(y, w["qkv"]).view(x.shape[0], -1, m["dim"]).split([m["heads"], m["kv"], m["kv"]], 1)
    if m["qk_norm"]:
        q, k = F.rms_norm(q, (m["dim"],), w["q_norm"]), F.rms_norm(k, (m["dim"],), w["k_norm"])
    return rotated(q, cos, sin), rotated(k, cos, sin), v


def dense(x, w, m):
    gate, up = F.linear(F.rms_norm(x, (m["hidden"],), w["norm2"]), w["up"]).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, w["down"])


def of_experts(x, w, m):
    y = F.rms_norm(x, (m["hidden"],), w["norm2"])
    share, chosen = torch.topk(torch.softmax(F.linear(y, w["router"]).float(), -1), m["top_k"], -1)
    chosen = chosen.reshape(-1)
    order = torch.argsort(chosen, stable=True)
    counts = torch.zeros(m["experts"], device="cuda", dtype=torch.int32)
    counts.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.int32))
    ends = torch.cumsum(counts, 0).to(torch.int32)
    source = order // m["top_k"]
    gate, up = torch._grouped_mm(y[source], w["up"], offs=ends).chunk(2, -1)
    made = torch._grouped_mm((F.silu(gate) * up).contiguous(), w["down"], offs=ends)
    made = made * share.reshape(-1)[order].unsqueeze(-1).to(BF16)
    return x + torch.zeros_like(x).index_add_(0, source, made)


def median_ms(work, repeats=20):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(3 + repeats):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[3:])[repeats // 2]


def rows_of(name, m):
    weights = [weights_of(m) for _ in range(2)]
    table = random(m["vocab"], m["hidden"])
    before = torch.compile(before_attention, dynamic=False)
    mlp = torch.compile(of_experts if "experts" in m else dense, dynamic=False)
    for batch in (1, 16, 64, 256):
        cos = torch.randn(batch, 1, m["dim"] // 2, device="cuda", dtype=BF16)
        sin = torch.randn_like(cos)
        for context in (512, 4096):
            cache = lambda: [torch.randn(batch, m["kv"], context, m["dim"], device="cuda", dtype=BF16)
                             for _ in range(2)]
            keys, values = cache(), cache()
            ids = torch.randint(0, m["vocab"], (batch,), device="cuda")

            def attend(q, i):
                return F.scaled_dot_product_attention(q.unsqueeze(2), keys[i], values[i], enable_gqa=True)

            def step():
                x = F.embedding(ids, table)
                for layer in range(m["layers"]):
                    i = layer % 2
                    q, k, v = before(x, weights[i], m, cos, sin)
                    keys[i][:, :, context - 1] = k
                    values[i][:, :, context - 1] = v
                    x = x + F.linear(attend(q, i).reshape(batch, -1), weights[i]["out"])
                    x = mlp(x, weights[i], m)
                return F.linear(x, table).float().argmax(-1)

            yield {"model": name, "batch": batch, "context": context, "step_ms": median_ms(step)}
            del keys, values
            torch.cuda.empty_cache()


def main():
    torch.set_grad_enabled(False)
    answer = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "rows": []}
    for name, m in MODELS.items():
        for row in rows_of(name, m):
            print(row, flush=True)
            answer["rows"].append(row)
        torch.cuda.empty_cache()
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(answer, file, indent=1)


if __name__ == "__main__":
    main()
