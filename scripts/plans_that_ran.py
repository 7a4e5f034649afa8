#!/usr/bin/env python3
"""Does a search find plans as fast as those that people ran?

    scripts/plans_that_ran.py build/test/cli/qplan tests/data/runs/published.csv

Of the measured runs of built-in models (those with all of their layers) the fastest feasible plan by prediction is taken for
each model, machine, batch, length and format, and a search is asked the same question with the run's own words that a search
leaves as they are (formats of states, loss, CUDA graphs, ...). Prints the plans that are predicted faster than what the search
finds, and by how much. Both sides are predictions: it shows holes of the search, not errors of prices.
"""

import argparse
import concurrent.futures
import csv
import json
import re
import subprocess
import sys

VALUES = {"grad_dtype", "main_params_dtype", "moment_dtype", "loss", "routing", "attention_backend", "optimizer"}
SWITCHES = {"cuda_graph", "compile", "fp8_dot_product_attention"}


def asked(program, row, plan):
    """The search for what a run was, with the words that no search tries."""
    def said(pattern, otherwise=None):
        found = re.search(pattern, plan)
        return found.group(1) if found else otherwise

    command = [program, "search", "--model", row["base_model"], "--gpus", row["num_gpus"], "--hardware", row["hardware"],
               "--framework", row["recipe"], "--global-batch-size", said(r"gbs(\d+)"), "--seq-len", said(r"seq(\d+)"),
               "--precision", said(r"precision=(\S+)", "bf16"), "--document-len", said(r"doc(\d+)", "0"), "--top", "1", "--json"]
    for word in plan.split():
        key, _, value = word.partition("=")
        if key in VALUES or key in SWITCHES:
            command += ["--" + key.replace("_", "-"), value or "true"]
    return command


def layers_of(program, model, known={}):
    if model not in known:
        answer = subprocess.run([program, "models", "--json"], capture_output=True, text=True, check=True).stdout
        known.update((m["name"], m["num_layers"]) for m in json.loads(answer)["models"])
    return known.get(model)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("runs")
    parser.add_argument("--above", type=float, default=1.005, help="ratio from which a plan is shown")
    args = parser.parse_args()
    with open(args.runs, encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(line for line in file if not line.startswith("#"))}
    judged = json.loads(subprocess.run([args.program, "accuracy", args.runs, "--json"], capture_output=True, text=True,
                                       check=True).stdout)["rows"]
    fastest = {}
    for run in judged:
        row, time = rows[run["id"]], run["predicted_step_time_s"]
        if not time or not run["feasible"] or str(layers_of(args.program, row["base_model"])) != row["layers"]:
            continue
        command = asked(args.program, row, run["plan"])
        key = tuple(command)
        if key not in fastest or time < fastest[key][0]:
            fastest[key] = (time, run["id"], run["plan"])

    def searched(item):
        command, (time, name, plan) = item
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        plans = json.loads(done.stdout)["plans"] if done.returncode == 0 else []
        if not plans:
            return float("inf"), name, plan, "nothing"
        return plans[0]["step_time_s"] / time, name, plan, plans[0]["short"]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = sorted(pool.map(searched, fastest.items()), reverse=True)
    slower = [each for each in found if each[0] > args.above]
    for ratio, name, plan, best in slower:
        print(f"{ratio:6.3f}  {name}\n        ran    {plan}\n        search {best}")
    print(f"{len(found)} questions, {len(slower)} of which the search finds a plan that is slower than one that ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
