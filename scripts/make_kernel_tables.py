#!/usr/bin/env python3
"""Reduces measured kernel tables to the compact files in costmodel/profiles/tables.

usage: make_kernel_tables.py FOLDER OUTPUT_FOLDER

FOLDER holds gemm.csv.gz (hardware,library,dtype,m,n,k,latency_us) and nccl.csv.gz
(...,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency), facts taken from
ai-dynamo/aiconfigurator (Apache-2.0), commit 095f58a; see NOTICE.md in the output folder.

GEMM: utilisation = ideal time / measured time, in thousandths, 0 where not measured, with
ideal = max(2mnk / peak, bytes / bandwidth); peaks below must equal the profile's.
The fp8 rows of the source time the activation's quantisation too. It is a work of its own here,
so it is taken out: what fp8 at the smallest n takes longer than bf16's share of it.
Collectives: median microseconds against bytes of the full buffer, made non-decreasing.
"""
import csv
import gzip
import json
import statistics
import sys
from collections import defaultdict

M = [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
NK = [64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 10240, 12288,
      16384, 51200, 65536]
GPUS = {  # table: (hardware column, bytes/s, {dtype: peak FLOP/s})
    "a100-sxm": ("a100-80gb-sxm", 2.04e12, {"bf16": 312e12}),
    "h100-sxm": ("h100-sxm", 3.35e12, {"bf16": 989e12, "fp8": 1979e12}),
    "h200-sxm": ("h200-sxm", 4.8e12, {"bf16": 989e12, "fp8": 1979e12}),
    # Its bf16 rows scatter by 10% where Transformer Engine's products on a B200 do by 4 (NOTICE.md).
    "b200": ("b200", 7.7e12, {"fp8": 4500e12}),
    "gb200": ("gb200", 8.0e12, {"bf16": 2500e12, "fp8": 5000e12}),
    # Products of these two are priced as their smaller siblings', whose steps were measured.
    "b300": ("b300", 7.67e12, {}),
    "gb300": ("gb300", 8.0e12, {}),
    "l40s": ("l40s", 864e9, {"bf16": 362.05e12, "fp8": 733e12}),
    "rtx-pro-6000": ("rtx-pro-6000", 1792e9, {"bf16": 467.8e12, "fp8": 935.6e12}),
}
SOURCE_DTYPE = {"bf16": "bfloat16", "fp8": "fp8"}
ELEMENT = {"bf16": 2, "fp8": 1}
KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather",
         "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
SMALLEST_N = NK[0]
# Compute-bound products of the bf16 rows stay below this share of the peak (H100: 0.83).
BEST_UTILISATION = 0.90


def read(path):
    with gzip.open(path, "rt") as file:
        yield from csv.DictReader(file)


def gemm_times(folder):
    """The faster library's time of each (hardware, dtype, m, n, k), in seconds."""
    best = {}
    for row in read(f"{folder}/gemm.csv.gz"):
        key = (row["hardware"], row["dtype"], int(row["m"]), int(row["n"]), int(row["k"]))
        time = float(row["latency_us"]) * 1e-6
        best[key] = min(time, best.get(key, time))
    return best


def quantisation(times, hardware, m, k):
    fp8 = times.get((hardware, "fp8", m, SMALLEST_N, k))
    bf16 = times.get((hardware, "bfloat16", m, SMALLEST_N, k))
    if fp8 is None or bf16 is None:
        return None
    return max(0.0, fp8 - bf16 / 1.5)  # half the bytes to read, the same launch


def utilisation(times, hardware, dtype, peak, bandwidth, m, n, k):
    time = times.get((hardware, SOURCE_DTYPE[dtype], m, n, k))
    if time is None:
        return 0
    size = ELEMENT[dtype]
    ideal = max(2 * m * n * k / peak, (size * (m * k + k * n) + 2 * m * n) / bandwidth)
    if dtype == "fp8":
        extra = quantisation(times, hardware, m, k)
        if extra is None:
            return 0
        time = max(time - extra, ideal / BEST_UTILISATION)
    return min(999, max(1, round(1000 * ideal / time)))


def gemm_table(times, hardware, dtype, peak, bandwidth):
    have = {key[2:] for key in times if key[:2] == (hardware, SOURCE_DTYPE[dtype])}
    m_axis = [m for m in M if any(key[0] == m for key in have)]
    n_axis = [n for n in NK if any(key[1] == n for key in have)]
    k_axis = [k for k in NK if any(key[2] == k for key in have)]
    values = [[utilisation(times, hardware, dtype, peak, bandwidth, m, n, k) for k in k_axis]
              for m in m_axis for n in n_axis]
    return {"dtype": dtype, "m": m_axis, "n": n_axis, "k": k_axis,
            "utilisation_permille": [v for row in values for v in row]}


def collective_tables(folder, hardware):
    samples = defaultdict(list)
    for row in read(f"{folder}/nccl.csv.gz"):
        if row["hardware"] == hardware and row["nccl_dtype"] == "half":
            key = (row["op_name"], int(row["num_gpus"]), 2 * int(row["message_size"]))
            samples[key].append(1000 * float(row["latency"]))
    groups = defaultdict(list)
    for (kind, ranks, size), times in sorted(samples.items()):
        groups[(KINDS[kind], ranks)].append((size, statistics.median(times)))
    tables = []
    for (kind, ranks), points in sorted(groups.items()):
        longest = 0.0
        times = []
        for _, time in points:
            longest = max(longest, time)
            times.append(round(longest, 2))
        tables.append({"kind": kind, "ranks": ranks, "bytes": [p[0] for p in points],
                       "microseconds": times})
    return tables


def write(path, table):
    """One line a list: compact, and still a readable diff."""
    def line(value):
        return json.dumps(value, separators=(",", ":"))

    def entry(item):
        return "{" + ",\n ".join(f"{line(k)}:{line(v)}" for k, v in item.items()) + "}"

    parts = [f'"source":{line(table["source"])}']
    for key in ("gemm", "collectives"):
        parts.append(f'"{key}":[\n' + ",\n".join(entry(item) for item in table[key]) + "\n]")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{" + ",\n".join(parts) + "}\n")


def main():
    folder, output = sys.argv[1:3]
    times = gemm_times(folder)
    for name, (hardware, bandwidth, peaks) in GPUS.items():
        write(f"{output}/{name}.json", {
            "source": "ai-dynamo/aiconfigurator 095f58a (Apache-2.0), reduced by "
                      "scripts/make_kernel_tables.py",
            "gemm": [gemm_table(times, hardware, dtype, peak, bandwidth)
                     for dtype, peak in peaks.items()],
            "collectives": collective_tables(folder, hardware)})


if __name__ == "__main__":
    main()
