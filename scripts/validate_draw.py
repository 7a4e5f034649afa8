#!/usr/bin/env python3
"""Predicted against measured: a seeded draw of plans, stratified over axes, run on this machine's GPUs.

For docs/evidence/executor.md. Every stratum below fixes the axes; the rest (model, micro-batch,
sequence, recomputation, batch) is drawn. Models keep their width; layers are cut where one or two
GPUs cannot hold them all. Processes start once for all plans of as many GPUs (gpu_plans); what is
predicted comes from plan_prices, which needs no GPU. Prints one line a plan, then the errors and
Kendall's tau, and writes all as JSON, which can be held against other profiles later:

    qplan calibrate -o measured.json
    scripts/validate_draw.py --tests build/release/tests --hardware measured.json --gpus 4 -o draw.json
    scripts/validate_draw.py --tests build/release/tests --hardware other.json --again draw.json

With --search QPLAN plans are drawn from those that `qplan search --framework qplan` ranks, over models
of every kind that the executor runs (MODELS), instead of the strata. `--list` writes them with -o, so
that a machine without the command can run them by --plans.
"""

import argparse
import collections
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
import threading
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


# With --search: of every kind that the executor runs on GPUs. Layers are cut to what the GPUs hold.
MODELS = ["gpt-oss-20b", "llama3-8b", "mixtral-8x7b", "moonlight-16b-a3b", "qwen2.5-14b", "qwen3-14b", "qwen3-30b-a3b",
          "qwen3-4b", "qwen3-8b", "llama2-7b", "llama2-13b", "phi-4", "qwen3-32b", "glm4.5-air", "seed-oss-36b",
          "mixtral-8x22b", "llama3-70b", "qwen3-0.6b", "qwen3-1.7b", "gpt-oss-120b", "qwen3-235b-a22b",
          "llama4-scout-17b-16e", "qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b", "nemotron-h-8b", "deepseek-v3",
          "qwen3.5-9b", "qwen3.5-35b-a3b", "nemotron-3-super-120b-a12b"]
TOKENS_OF_GPU = 65536  # of a step
RANKED = 40            # plans of a search that one is drawn from
DEPTHS = [2, 4, 6, 8, 12, 16, 24]


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


def ranked(args, folder, model, layers, gpus, length):
    """Plans that a search ranks, none where it finds none."""
    batch = TOKENS_OF_GPU * gpus // length
    command = [args.search, "search", "--model", model_file(folder, model, layers), "--framework", "qplan",
               "--hardware", args.hardware or "h100-sxm", "--gpus", str(gpus), "--gpus-per-node", "8",
               "--seq-len", str(length), "--global-batch-size", str(batch), "--top", str(RANKED), "--json"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    if answer.returncode != 0:
        return []
    return [plan["short"] for plan in json.loads(answer.stdout).get("plans", [])]


def draw_from_search(args, folder):
    """As draw(): each plan of a model, a number of GPUs and a length that are drawn first. A model that has had
    its turn waits for all others; layers are drawn among the numbers with which anything fits."""
    chance, lines, waiting = random.Random(args.seed), [], []
    while len(lines) < args.plans_drawn:
        waiting = waiting or chance.sample(args.models, len(args.models))
        model = waiting.pop()
        gpus = chance.choice([args.of] if args.of else [g for g in (1, 2, 4, 8) if g <= args.gpus])
        length = chance.choice([2048, 4096, 8192])
        text = text_model(fields_of(model))
        whole = text[layers_key(text)]
        for layers in chance.sample([d for d in DEPTHS if d <= whole], len([d for d in DEPTHS if d <= whole])):
            plans = ranked(args, folder, model, layers, gpus, length)
            if plans:
                lines.append((model, layers, chance.choice(plans), gpus))
                break
    return lines


def fields_of(model):
    with open(os.path.join(ZOO, model + ".json")) as file:
        return json.load(file)


def text_model(fields):
    """What holds the layers: of a model with a tower, its text model."""
    return fields.get("text_config", fields)


def layers_key(text):
    """Models of GPT-2's kind have another word."""
    return "num_hidden_layers" if "num_hidden_layers" in text else "n_layer"


def model_file(folder, model, layers):
    fields = fields_of(model)
    text = text_model(fields)
    count = text[layers_key(text)] = layers or text[layers_key(text)]
    for each in {"layer_types", "hybrid_override_pattern"} & text.keys():
        text[each] = text[each][:count]
    path = os.path.join(folder, f"{model}-{count}.json")
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        json.dump(fields, file)
    os.replace(file.name, path)  # a run beside this one may read it now
    return path


def jobs_file(args, folder, runs):
    jobs = [{"model": model_file(folder, run["model"], run["layers"]), "plan": run["plan"], "steps": args.steps,
             "lr": 1e-3, "moe_imbalance": 1, "timeout_s": 30, "trace": True,
             "routed": run.get("measured", {}).get("routed")} for run in runs]
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".json", delete=False) as file:
        json.dump(jobs, file)
    return file.name


def measure(args, folder, runs, ranks, environment):
    """Runs plans of so many ranks one after the other; a plan that fails takes its processes with it,
    and the next begins in new ones."""
    waiting = list(runs)
    while waiting and time.time() < args.until:
        command = [os.path.join(args.tests, "gpu_plans"), jobs_file(args, folder, waiting), str(ranks)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=environment) as job:
            line = "begins"
            while waiting and line and time.time() < args.until:
                alarm = threading.Timer(args.limit, job.terminate)
                alarm.start()
                line = job.stdout.readline()
                alarm.cancel()
                if line:
                    run = waiting.pop(0)
                    run["measured"] = json.loads(line)
                    print(f"{run['model']}:{run['layers']} {run['plan']}: "
                          f"{statistics.median(times_of(run)):.4f} s", flush=True)
            if not waiting:
                job.wait()
                return
            end(job)
            if not line:
                failed = waiting.pop(0)
                failed["failed"] = job.stderr.read().strip()[-400:]
                print(f"{failed['model']}:{failed['layers']} {failed['plan']}: FAILED {failed['failed']}", flush=True)
    for run in waiting:
        run["failed"] = "not begun: no time"


def end(job):
    """Not before its memory on the GPUs is free: the next plan would find none."""
    job.terminate()
    try:
        job.wait(timeout=10)
    except subprocess.TimeoutExpired:
        job.kill()


def times_of(run):
    """Steps whose time counts: the first finds cold caches, in the last every op is timed."""
    return run["measured"]["step_s"][1:-1]


def predict(args, folder, runs):
    command = [os.path.join(args.tests, "plan_prices"), jobs_file(args, folder, runs), args.hardware]
    answers = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    for run, answer in zip(runs, answers, strict=True):
        run["predicted"] = json.loads(answer)
        run["step_error"] = round(run["predicted"]["step_s"] / statistics.median(times_of(run)) - 1, 4)
        device = run["measured"]["device_gib"]
        run["memory_error"] = round(run["predicted"]["device_gib"] / device - 1, 4)
        print(f"{run['model']}:{run['layers']} {run['plan']}: {statistics.median(times_of(run)):.4f} s, predicted "
              f"{100 * run['step_error']:+.1f}%; {device:.2f} GiB, predicted {100 * run['memory_error']:+.1f}%")
        if "as_routed_s" in run["predicted"]:
            run["error_as_routed"] = round(run["predicted"]["as_routed_s"] / statistics.median(times_of(run)) - 1, 4)
            print(f"    {100 * run['error_as_routed']:+.1f}% with tokens as its routers spread them: "
                  f"{100 * run['measured']['routed']['active']:.0f}% of the experts had any")


def kinds_of(works):
    """Seconds of a step's works by kind, the first word of each; collectives' without their wait for other ranks."""
    kinds = collections.Counter()
    for work, (_, seconds, *waited) in works.items():
        kinds[work.split()[0]] += seconds - sum(waited)
    return kinds


def print_kinds(runs):
    """Where a step's error comes from: of every kind that takes 2% of a plan's time, the median of those plans."""
    errors = collections.defaultdict(list)
    for run in runs:
        measured, predicted = (kinds_of(run[side].get("works", {})) for side in ("measured", "predicted"))
        for kind, seconds in measured.items():
            if seconds > 0.02 * measured.total():
                errors[kind].append(predicted[kind] / seconds - 1)
    for kind, own in sorted(errors.items(), key=lambda item: -len(item[1])):
        print(f"    {kind}: {100 * statistics.median(own):+.1f}% in {len(own)} plans")


def kendall(pairs):
    signs = [((a[0] - b[0]) * (a[1] - b[1]) > 0) * 2 - 1 for a, b in itertools.combinations(pairs, 2)]
    return sum(signs) / len(signs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tests", help="folder of gpu_plans and plan_prices")
    parser.add_argument("--hardware", help="profile to predict with; only measures without one")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--limit", type=float, default=60, help="seconds a plan may take")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds for all; then no more begin")
    parser.add_argument("--of", type=int, help="only the plans of so many GPUs")
    parser.add_argument("--list", action="store_true", help="only print the plans")
    parser.add_argument("--search", help="the qplan command: plans are drawn from what its search ranks")
    parser.add_argument("--plans-drawn", type=int, default=16, help="with --search: how many")
    parser.add_argument("--models", type=lambda names: names.split(","), default=MODELS,
                        help="with --search: of the zoo, with commas; one that the executor lacks is left out")
    parser.add_argument("--plans", help="what --list has written: the plans to run")
    parser.add_argument("--again", help="what a draw has measured, predicted again")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    args.until = time.time() + args.budget
    if args.plans:
        with open(args.plans) as file:
            runs = json.load(file)["runs"]
    else:
        with tempfile.TemporaryDirectory() as folder:
            lines = draw_from_search(args, folder) if args.search else draw(args.seed, args.gpus)
        runs = [dict(zip(("model", "layers", "plan", "gpus"), line)) for line in lines if args.of in (None, line[3])]
    if args.list:
        for run in runs:
            print(*run.values())
        if args.output:
            with open(args.output, "w") as file:
                json.dump({"seed": args.seed, "runs": runs}, file)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if args.again:
            with open(args.again) as file:
                runs = json.load(file)["runs"]
        else:
            jobs = []
            for ranks in sorted({run["gpus"] for run in runs}):
                own, places = [run for run in runs if run["gpus"] == ranks], args.gpus // ranks
                jobs += [(ranks, functools.partial(measure, args, folder, own[place::places], ranks))
                         for place in range(places)]
            for future in GpuPool(args.gpus).run(jobs):
                future.result()
        done = [run for run in runs if "measured" in run]
        if args.hardware:
            predict(args, folder, done)
    if args.output:
        with open(args.output, "w") as file:
            json.dump({"seed": args.seed, "runs": runs}, file)
    if not done or not args.hardware:
        return 0 if done else 1
    print_kinds(done)
    errors = [abs(run["step_error"]) for run in done]
    memory = [abs(run["memory_error"]) for run in done]
    # Of time for each token, so that batches of different sizes compare.
    rates = []
    for run in done:
        batch, length = (int(re.search(rf"\b{word}(\d+)", run["plan"])[1]) for word in ("gbs", "seq"))
        measured = statistics.median(times_of(run)) * run["gpus"] / (batch * length)
        rates.append((measured, measured * (1 + run["step_error"])))
    signed = statistics.mean(run["step_error"] for run in done)
    print(f"{len(done)} of {len(runs)} plans: step time error median {100 * statistics.median(errors):.1f}%, "
          f"signed mean {100 * signed:+.1f}%, "
          f"worst {100 * max(errors):.1f}%; device memory median {100 * statistics.median(memory):.1f}%, "
          f"worst {100 * max(memory):.1f}%; Kendall's tau {kendall(rates):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
