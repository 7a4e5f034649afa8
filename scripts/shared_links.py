#!/usr/bin/env python3
"""What collectives of two communicators do to each other on the same links.

    torchrun --nproc-per-node 2 scripts/shared_links.py > pairs.json

Each runs over and over on a stream of its own, alone and beside one other. Prints a line of JSON a pair: times in us
(median of five runs, the mean of all ranks) and how many times as long as alone. For docs/evidence/executor.md.
"""
import json
import os
import statistics

import torch
import torch.distributed as dist

RUNS = 5
SECONDS = 30e-3  # of the measured work alone
OUTLASTS = 5  # the company runs so many times as long as the measured work alone

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
groups = [dist.new_group(list(range(world))) for _ in range(2)]


def half(mebibytes):
    return torch.randn(mebibytes << 19, device=device, dtype=torch.bfloat16)


def all_to_all(group, mebibytes):
    sent, received = half(mebibytes), half(mebibytes)
    return lambda: dist.all_to_all_single(received, sent, group=group)


def reduce_scatter(group, mebibytes):
    whole, part = half(mebibytes).float(), half(mebibytes).float()[: (mebibytes << 19) // world].clone()
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def all_gather(group, mebibytes):
    whole, part = half(mebibytes), half(mebibytes)[: (mebibytes << 19) // world].clone()
    return lambda: dist.all_gather_into_tensor(whole, part, group=group)


def all_reduce(group, mebibytes):
    whole = half(mebibytes).float()
    return lambda: dist.all_reduce(whole, group=group)


def mean_of_ranks(value):
    x = torch.tensor([value], device=device, dtype=torch.float64)
    dist.all_reduce(x)
    return x.item() / world


def repeated(once, count):
    for _ in range(count):
        once()


def elapsed(once, stream, count, wait=()):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        for event in wait:
            stream.wait_event(event)
        first.record()
        repeated(once, count)
        last.record()
    return first, last


def time_of(work, company, alone):
    """Seconds of one `work` (name) with the works of `company` beside it."""
    streams = {name: torch.cuda.Stream() for name in WORKS}
    count = max(int(SECONDS / alone[work]), 3) if alone else 5
    times = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        dist.barrier()
        started = []
        # The company is enqueued a little at a time, in the same order on all ranks.
        enqueued = {name: int(OUTLASTS * SECONDS / alone[name]) + 2 for name in company}
        for name in company:
            with torch.cuda.stream(streams[name]):
                WORKS[name]()
                event = torch.cuda.Event()
                event.record()
                started.append(event)
                repeated(WORKS[name], enqueued[name])
        first, last = elapsed(WORKS[work], streams[work], count, started)
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) * 1e-3 / count)
    return mean_of_ranks(statistics.median(times))


WORKS = {
    "all_to_all 64 MiB": all_to_all(groups[0], 64),
    "all_gather 256 MiB": all_gather(groups[0], 256),
    "all_reduce 256 MiB": all_reduce(groups[1], 256),
    "reduce_scatter 256 MiB": reduce_scatter(groups[1], 256),
}
PAIRS = [("all_to_all 64 MiB", "all_reduce 256 MiB"), ("all_to_all 64 MiB", "reduce_scatter 256 MiB"),
         ("all_gather 256 MiB", "reduce_scatter 256 MiB")]

for once in WORKS.values():
    repeated(once, 5)
torch.cuda.synchronize()
alone = {}
for name in WORKS:
    alone[name] = time_of(name, [], alone | {name: 5e-3})
for work, other in [pair[::turn] for pair in PAIRS for turn in (1, -1)]:
    together = time_of(work, [other], alone)
    if rank == 0:
        print(json.dumps({"work": work, "beside": other, "alone_us": round(alone[work] * 1e6, 1),
                          "beside_us": round(together * 1e6, 1), "ratio": round(together / alone[work], 3)}), flush=True)
dist.destroy_process_group()
