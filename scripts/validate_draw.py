#!/usr/bin/env python3
"""Predicted against measured: a seeded draw of plans, stratified over axes, run with `qplan validate`.

For docs/evidence/issue6-h200.md. Every stratum below fixes the axes; the rest (model, micro-batch,
sequence, recomputation, batch) is drawn. Models keep their width; layers are cut where one or two
GPUs cannot hold them all. Prints one line a plan, then the errors and Kendall's tau, and writes all
as JSON:

    qplan calibrate -o measured.json
    scripts/validate_draw.py --qplan build/release/cli/qplan --hardware measured.json --gpus 2 -o draw.json
"""

import argparse
import functools
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_pool import GpuPool

ZOO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "zoo")
# Model, layers kept, sequences of 4096 tokens a GPU and step.
DENSE = [("qwen3-0.6b", None, 8), ("qwen3-1.7b", None, 4), ("qwen3-8b", 8, 4), ("qwen3-8b", 4, 8),
         ("qwen3-8b", 6, 4)]
CHUNKS = [("qwen3-8b", 8, 4), ("qwen3-8b", 16, 4)]
EXPERTS = [("qwen3-30b-a3b", 4, 4), ("qwen3-30b-a3b", 6, 4)]
# Axes of each stratum: words of the plan, GPUs, models it is drawn from. Experts' tokens are dealt
# equally, as in a balanced training, where the words do not say natural: an untrained router sends
# one of two ranks up to 1.6 times its share, and leaves experts without tokens.
STRATA = [
    ("", 1, DENSE), ("", 1, DENSE), ("recompute=selective", 1, DENSE), ("recompute=full", 1, DENSE),
    ("", 1, EXPERTS), ("routing=natural", 1, EXPERTS), ("recompute=full", 1, EXPERTS),
    ("dp2", 2, DENSE), ("dp2 recompute=full", 2, DENSE),
    ("dp2 zero1", 2, DENSE), ("dp2 zero1", 2, DENSE), ("dp2 zero1 overlap=grad+param", 2, DENSE),
    ("dp2 zero2", 2, DENSE), ("dp2 zero2 recompute=selective", 2, DENSE),
    ("dp2 zero3", 2, DENSE), ("dp2 zero3", 2, DENSE),
    ("tp2", 2, DENSE), ("tp2", 2, DENSE), ("tp2 sp", 2, DENSE), ("tp2 sp", 2, DENSE),
    ("tp2 sp recompute=full", 2, DENSE),
    ("cp2", 2, DENSE), ("cp2 zero1 cp_comm=all_gather", 2, DENSE), ("cp2 cp_comm=a2a", 2, DENSE),
    ("pp2", 2, DENSE), ("pp2", 2, DENSE), ("pp2 gpipe", 2, DENSE), ("pp2 vpp2 interleaved", 2, CHUNKS),
    ("pp2 recompute=full", 2, DENSE), ("pp2 zb-h1", 2, DENSE),
    ("dp2 zero1", 2, EXPERTS), ("dp2 ep2", 2, EXPERTS), ("dp2 ep2 zero1", 2, EXPERTS),
    ("dp2 ep2 zero1 recompute=full", 2, EXPERTS), ("tp2 ep2 sp", 2, EXPERTS), ("pp2", 2, EXPERTS),
]
# Of four GPUs: layers that four stages divide.
WIDE = [("qwen3-0.6b", None, 8), ("qwen3-1.7b", None, 4), ("qwen3-8b", 8, 4), ("qwen3-8b", 16, 4)]
MANY_EXPERTS = [("qwen3-30b-a3b", 8, 4), ("qwen3-30b-a3b", 12, 4)]
STRATA_OF_FOUR = [
    ("dp4 zero1 overlap=grad+param", 4, WIDE), ("dp4 zero2", 4, WIDE), ("dp4 zero3", 4, WIDE),
    ("dp4 zero3 recompute=full", 4, WIDE), ("dp4 zero1 offload=optimizer:0.3", 4, CHUNKS),
    ("tp4 sp", 4, WIDE), ("tp2 sp dp2 zero1", 4, WIDE), ("tp2 sp cp2 recompute=selective", 4, WIDE),
    ("cp4", 4, WIDE), ("cp2 dp2 zero1 cp_comm=all_gather", 4, WIDE),
    ("pp4", 4, WIDE), ("pp4 zb-h1", 4, WIDE), ("pp4 vpp2 interleaved", 4, CHUNKS), ("pp2 dp2 zero1", 4, WIDE),
    ("tp2 sp pp2 recompute=full", 4, WIDE),
    ("dp4 ep4 zero1", 4, MANY_EXPERTS), ("dp4 ep2 zero1 recompute=full", 4, MANY_EXPERTS),
    ("tp2 sp dp2 ep4", 4, MANY_EXPERTS), ("pp2 dp2 ep2", 4, MANY_EXPERTS), ("dp4 ep4 zero2", 4, MANY_EXPERTS),
]


def strata(chance, most_gpus):
    """All of few GPUs; of four GPUs all, of two a drawn half."""
    if most_gpus < 4:
        return STRATA
    of_two = [s for s in STRATA if s[1] == 2]
    return STRATA_OF_FOUR + chance.sample(of_two, len(of_two) // 2) + [s for s in STRATA if s[1] == 1]


def draw(seed, most_gpus):
    """Lines (model, layers, words, gpus). Micro-batches divide each replica's share."""
    chance = random.Random(seed)
    lines = []
    for words, gpus, models in strata(chance, most_gpus):
        model, layers, sequences = chance.choice(models)
        length = chance.choice([2048, 4096, 4096, 8192])
        replicas = int((re.findall(r"\bdp(\d)", words) or [1])[0])
        pipeline = int((re.findall(r"\bpp(\d)", words) or [1])[0])
        share = max(2, sequences * 4096 // length) * gpus // replicas
        micro = chance.choice([m for m in (1, 1, 2, 4) if share % m == 0 and m * length <= 16384
                               and ("pp" not in words or share // m >= 2 * pipeline)])
        if gpus <= most_gpus:
            line = f"{words} mbs{micro} gbs{share * replicas} seq{length}".strip()
            lines.append((model, layers, line, gpus))
    return lines


def model_file(folder, model, layers):
    with open(os.path.join(ZOO, model + ".json")) as file:
        fields = json.load(file)
    fields["num_hidden_layers"] = layers or fields["num_hidden_layers"]
    path = os.path.join(folder, f"{model}-{fields['num_hidden_layers']}.json")
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        json.dump(fields, file)
    os.replace(file.name, path)  # a run beside this one may read it now
    return path


def validate(args, folder, model, layers, words, environment):
    command = [args.qplan, "validate", words, "--model", model_file(folder, model, layers),
               "--hardware", args.hardware, "--backend", "cuda", "--json",
               "--steps", str(args.steps), "--moe-imbalance", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=args.limit, env=environment)
    if result.returncode != 0:
        raise RuntimeError((result.stdout + result.stderr).strip()[-400:])
    return json.loads(result.stdout)


def summary(model, layers, words, gpus, answer):
    predicted = answer["predicted"]
    kinds = {k["kind"]: [k["executed_ops"], round(k["predicted_s"] * 1e3, 2), round(k["executed_s"] * 1e3, 2)]
             for k in answer["comparison"]["kinds"] if k["executed_s"] > 1e-4}
    step = answer["step_time_s"]
    return {
        "model": model, "layers": layers, "plan": words, "gpus": gpus,
        "step_s": {"measured": round(step["median"], 5), "min": round(step["min"], 5),
                   "max": round(step["max"], 5),
                   "predicted": round(step["median"] * (1 + answer["comparison"]["step_time_error"]), 5)},
        "step_error": round(answer["comparison"]["step_time_error"], 4),
        "tokens_per_s_per_gpu": round(answer["tokens_per_s_per_gpu"]),
        "memory_gib": {"device": round(answer["memory"]["device_peak_gib"], 3),
                       "arena": round(answer["memory"]["arena_peak_gib"], 3),
                       "live": round(answer["memory"]["live_peak_gib"], 3),
                       "predicted_device": round(predicted["memory"]["stages"][0]["device_gib"], 3)},
        "traced_step_s": round(answer["comparison"]["traced_step_s"], 5),
        "busy_s": round(answer["comparison"]["busy_s"], 5),
        "loss": [round(x, 5) for x in answer["loss"]], "kinds": kinds,
    }


def kendall(pairs):
    signs = [((a[0] - b[0]) * (a[1] - b[1]) > 0) * 2 - 1 for a, b in itertools.combinations(pairs, 2)]
    return sum(signs) / len(signs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--qplan", default="qplan")
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--limit", type=float, default=90, help="seconds a plan may take")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds for all; then no more begin")
    parser.add_argument("--of", type=int, help="only the plans of so many GPUs")
    parser.add_argument("--list", action="store_true", help="only print the plans")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    lines = [line for line in draw(args.seed, args.gpus) if args.of in (None, line[3])]
    if args.list:
        for line in lines:
            print(*line)
        return 0
    begin, runs = time.time(), []

    def one(model, layers, words, gpus, environment):
        if time.time() - begin > args.budget:
            runs.append({"model": model, "layers": layers, "plan": words, "failed": "not begun: no time"})
            return
        try:
            answer = validate(args, folder, model, layers, words, environment)
            run = summary(model, layers, words, gpus, answer)
            memory = run["memory_gib"]
            print(f"{model}:{layers} {words}: {run['step_s']['measured']:.4f} s, predicted "
                  f"{100 * run['step_error']:+.1f}%; {memory['device']:.2f} GiB, predicted "
                  f"{100 * (memory['predicted_device'] / memory['device'] - 1):+.1f}%; loss "
                  f"{run['loss'][0]}", flush=True)
        except (RuntimeError, subprocess.TimeoutExpired, KeyError, TypeError) as error:
            run = {"model": model, "layers": layers, "plan": words, "failed": str(error)[-400:]}
            print(f"{model}:{layers} {words}: FAILED {run['failed']}", flush=True)
        runs.append(run)
        if args.output:
            with open(args.output, "w") as file:
                json.dump({"seed": args.seed, "runs": list(runs)}, file, indent=None)

    with tempfile.TemporaryDirectory() as folder:
        for future in GpuPool(args.gpus).run([(line[3], functools.partial(one, *line)) for line in lines]):
            future.result()
    done = [r for r in runs if "step_error" in r]
    if not done:
        return 1
    errors = [abs(r["step_error"]) for r in done]
    memory = [abs(r["memory_gib"]["predicted_device"] / r["memory_gib"]["device"] - 1) for r in done]
    # Of time for each token and GPU, so that batches of different sizes compare.
    rates = []
    for r in done:
        measured = 1 / r["tokens_per_s_per_gpu"]
        rates.append((measured, measured * (1 + r["step_error"])))
    print(f"{len(done)} of {len(runs)} plans: step time error median {100 * statistics.median(errors):.1f}%, "
          f"worst {100 * max(errors):.1f}%; device memory median {100 * statistics.median(memory):.1f}%, "
          f"worst {100 * max(memory):.1f}%; Kendall's tau {kendall(rates):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
