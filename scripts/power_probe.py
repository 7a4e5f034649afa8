#!/usr/bin/env python3
"""What a GPU's power limit leaves of a product's rate: in turns with other work, by shape.

    scripts/power_probe.py -o power.json

Needs torch with CUDA; some three minutes on an H100. `turns`: a product for a share of the time, then
copies, sleep or attention. `shapes`: products of many sizes, one after the other among large ones,
so that each runs at the clock that large ones leave. Results:
docs/evidence/archive/issue3-fifteenth-round.md.
"""

import argparse
import json
import random
import statistics
import subprocess
import threading
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

PERIOD_MS = 8.0  # of a turn: about a layer's forward
LARGEST = 28672 * 18432  # elements of the largest operand


class Sensors:
    """Clock in MHz, power in W and temperature, ten times a second."""

    def __enter__(self):
        query = "--query-gpu=clocks.sm,power.draw,temperature.gpu"
        self.process = subprocess.Popen(
            ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "100"],
            stdout=subprocess.PIPE, text=True)
        self.rows = []
        threading.Thread(target=self.read, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.process.kill()

    def read(self):
        for line in self.process.stdout:
            self.rows.append((time.time(), [float(x) for x in line.split(",")]))

    def since(self, begin):
        rows = [values for at, values in self.rows if at > begin] or [self.rows[-1][1]]
        return [round(statistics.mean(column), 1) for column in zip(*rows)]


def events(count):
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]


def timed(work, count):
    """Milliseconds a call."""
    begin, end = events(2)
    begin.record()
    for i in range(count):
        work(i)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def turn_works():
    def normal(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def fp8(x):
        return x.to(torch.float8_e4m3fn)

    one = torch.ones((), device="cuda")
    a = [normal(8192, 4096) for _ in range(3)]
    b = [normal(14336, 4096) for _ in range(3)]
    a8, b8 = [fp8(x) for x in a], [fp8(x) for x in b]
    rows, experts = normal(64 * 512, 2048), normal(64, 2048, 1536)
    ends = torch.arange(512, 64 * 512 + 1, 512, device="cuda", dtype=torch.int32)
    x, y = normal(1 << 26), normal(1 << 26)
    total = torch.empty_like(x)
    heads = [normal(2, 32, 8192, 128) for _ in range(3)]

    def attention(backend):
        def run(_):
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(*heads, is_causal=True)
        return run

    products = {
        "bf16": lambda i: torch.mm(a[i % 3], b[i % 3].t()),
        "fp8": lambda i: torch._scaled_mm(a8[i % 3], b8[i % 3].t(), scale_a=one, scale_b=one,
                                          out_dtype=torch.bfloat16),
        "grouped": lambda _: torch._grouped_mm(rows, experts, offs=ends),
    }
    others = {
        "copy": lambda _: torch.add(x, y, out=total),
        "sleep": lambda _: torch.cuda._sleep(100_000),
        "attn": attention(SDPBackend.CUDNN_ATTENTION),
        "flash": attention(SDPBackend.FLASH_ATTENTION),
    }
    return products, others


def turns(sensors, product, other, burst, share, seconds):
    products = max(1, round(PERIOD_MS * share / burst[0]))
    others = 0 if share >= 1 else max(1, round(PERIOD_MS * (1 - share) / burst[1]))
    begin, late = time.time(), []
    while time.time() - begin < seconds:
        marks = []
        for _ in range(5):
            first, second, third = events(3)
            first.record()
            for i in range(products):
                product(i)
            second.record()
            for i in range(others):
                other(i)
            third.record()
            marks.append((first, second, third))
        marks[-1][2].synchronize()
        if time.time() - begin > seconds / 2:
            late += [(p.elapsed_time(q), q.elapsed_time(r)) for p, q, r in marks]
    busy, beside = (statistics.median(column) for column in zip(*late))
    other_rate = round(burst[1] * others / beside, 3) if others else None
    return [round(busy / (busy + (beside if others else 0)), 3),
            round(burst[0] * products / busy, 3), other_rate, *sensors.since(begin + seconds / 2)]


def all_turns(sensors):
    products, others = turn_works()

    def burst(work):
        for i in range(3):
            work(i)
        torch.cuda.synchronize()
        time.sleep(1.5)
        return timed(work, 6)

    alone = {name: burst(work) for name, work in {**products, **others}.items()}
    plan = [("bf16", "copy", (1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)),
            ("bf16", "sleep", (0.9, 0.8, 0.7, 0.6, 0.5, 0.3)),
            ("bf16", "attn", (0.8, 0.6, 0.4, 0.2)), ("bf16", "flash", (0.8, 0.5, 0.2)),
            ("fp8", "copy", (1, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)),
            ("fp8", "sleep", (0.8, 0.6, 0.4)),
            ("grouped", "copy", (1, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2))]
    rows = []
    turns(sensors, products["bf16"], others["copy"], (alone["bf16"], alone["copy"]), 1, 12)
    for product, other, shares in plan:
        for share in shares:
            rows.append([product, other, *turns(sensors, products[product], others[other],
                                                (alone[product], alone[other]), share, 3)])
    return rows


def all_shapes():
    sides = {"m": (256, 512, 1024, 2048, 4096, 8192, 16384),
             "n": (512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 28672),
             "k": (512, 1024, 2048, 4096, 6144, 8192, 14336, 18432)}
    one = torch.ones((), device="cuda")
    pool = [torch.randn(LARGEST, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    pool8 = [x.to(torch.float8_e4m3fn) for x in pool]
    result = torch.empty(LARGEST, device="cuda", dtype=torch.bfloat16)
    sums = torch.zeros(LARGEST // 2, device="cuda")

    def part(array, rows, cols, call):  # another each call, so that it is not cached
        size = rows * cols
        at = call % max(1, min(8, LARGEST // size)) * size
        return array[at:at + size].view(rows, cols)

    def product(m, n, k, kind):
        def run(i):
            if kind == "fp8":
                torch._scaled_mm(part(pool8[0], m, k, i), part(pool8[1], n, k, i).t(), scale_a=one,
                                 scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
                return
            x, y = part(pool[0], m, k, i), part(pool[1], n, k, i).t()
            if kind == "bf16 +fp32":
                c = sums[:m * n].view(m, n)
                torch.addmm(c, x, y, out_dtype=torch.float32, out=c)
            else:
                torch.mm(x, y, out=result[:m * n].view(m, n))
        return run

    shapes = [(m, n, k, kind) for m in sides["m"] for n in sides["n"] for k in sides["k"]
              for kind in ("bf16", "fp8", "bf16 +fp32") if kind != "bf16 +fp32" or 2 * m * n <= LARGEST]
    random.Random(0).shuffle(shapes)
    large, rows = product(8192, 8192, 8192, "bf16"), []
    timed(large, 4000)
    for m, n, k, kind in shapes:
        work = product(m, n, k, kind)
        work(0)
        timed(large, 4)
        calls = max(3, min(200, int(0.03 * 6e14 / (2 * m * n * k))))
        rows.append([m, n, k, kind, round(1e3 * timed(work, calls), 2)])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", required=True, help="JSON file to write")
    output = parser.parse_args().output
    torch.manual_seed(0)
    with Sensors() as sensors:
        answer = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                  "turns": all_turns(sensors), "shapes": all_shapes()}
    with open(output, "w", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
