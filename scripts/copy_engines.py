#!/usr/bin/env python3
"""What products lose beside copies between two GPUs by their copy engines, and what the copies lose.

    scripts/copy_engines.py > copies.json

Both GPUs multiply without a pause, alone and while each sends to the other without a pause, as a ring of gathers
under products does (Transformer Engine's ring_exchange with use_ce, torch's asynchronous tensor parallelism). Prints
a line of JSON a product: microseconds (median of five runs, the mean of both GPUs) and how many times as long as
alone. For docs/evidence/executor.md.
"""
import json
import statistics

import torch

RUNS = 5
SECONDS = 0.25  # of products alone, long enough for the power limit
COPY = 256 << 20  # bytes of a copy: all of a run fits a stream's queue
GATE = 300_000_000  # cycles that every stream waits for, until all is queued

gpus = [torch.device("cuda", i) for i in range(2)]
# torch makes a copy's two streams wait for each other: each direction has its own, apart from products'.
sides, sinks = ([torch.cuda.Stream(g, priority=-1) for g in gpus] for _ in range(2))


def on_both(work):
    for g in gpus:
        with torch.cuda.device(g):
            work(g)


def mean(events):
    return statistics.mean(a.elapsed_time(b) for a, b in events)


def wait():
    for g in gpus:
        torch.cuda.synchronize(g)


def gate():
    """Holds products' and copies' streams until the host has queued what follows."""
    for g in gpus:
        with torch.cuda.device(g):
            torch.cuda._sleep(GATE)
            with torch.cuda.stream(sides[g.index]):
                torch.cuda._sleep(GATE)


def timed(enqueue, stream_of):
    """Events around what `enqueue` puts on a stream of each GPU."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in gpus]
    for g in gpus:
        with torch.cuda.device(g):
            stream = stream_of(g)
            events[g.index][0].record(stream)
            enqueue(g)
            events[g.index][1].record(stream)
    return events


def main():
    sent = [torch.empty(COPY, dtype=torch.uint8, device=g) for g in gpus]
    received = [torch.empty(COPY, dtype=torch.uint8, device=g) for g in gpus]

    def copies(count):
        def enqueue(g):
            with torch.cuda.stream(sides[g.index]), torch.cuda.stream(sinks[1 - g.index]):
                for _ in range(count):
                    received[1 - g.index].copy_(sent[g.index], non_blocking=True)
        return enqueue

    side = lambda g: sides[g.index]
    own = lambda g: torch.cuda.current_stream(g)
    for m, n, k in ((8192, 8192, 8192), (8192, 4096, 4096), (8192, 24576, 4096), (8192, 4096, 12288)):
        operands = []
        for g in gpus:
            a = torch.randn(m, k, device=g, dtype=torch.bfloat16)
            b = torch.randn(n, k, device=g, dtype=torch.bfloat16)
            operands.append((a, b, torch.empty(m, n, device=g, dtype=torch.bfloat16)))

        def products(count):
            def enqueue(g):
                a, b, c = operands[g.index]
                for _ in range(count):
                    torch.mm(a, b.t(), out=c)
            return enqueue

        on_both(products(3)), on_both(copies(3)), wait()
        first = timed(products(10), own)
        wait()
        many = max(int(SECONDS / (mean(first) / 10 * 1e-3)), 10)
        alone, beside, copy_alone, copy_beside = [], [], [], []
        for _ in range(RUNS):
            events = timed(products(many), own)
            wait()
            alone.append(mean(events) / many)
            events = timed(copies(20), side)
            wait()
            copy_alone.append(mean(events) / 20)
            # Copies that outlast the products, three times over.
            count = max(int(3 * alone[-1] * many / copy_alone[-1]), 20)
            within = int(count / 3 * 0.8)  # of which so many lie beside products as a whole
            gate()
            sends = timed(copies(within), side)
            rest = timed(copies(count - within), side)
            events = timed(products(many), own)
            wait()
            beside.append(mean(events) / many)
            copy_beside.append(mean(sends) / within)
            del rest
        us = lambda values: round(statistics.median(values) * 1e3, 1)
        print(json.dumps({"product": [m, n, k], "us": us(alone), "beside_us": us(beside),
                          "factor": round(statistics.median(beside) / statistics.median(alone), 3),
                          "copy_bytes": COPY, "copy_us": us(copy_alone), "copy_beside_us": us(copy_beside),
                          "copy_factor": round(statistics.median(copy_beside) / statistics.median(copy_alone), 3)}))


if __name__ == "__main__":
    main()
