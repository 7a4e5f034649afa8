#!/usr/bin/env python3
"""Published steps of reinforcement learning beside `qplan predict --algorithm grpo`, a table in Markdown.

  scripts/rl_accuracy.py --qplan build/release/cli/qplan

Rows: tests/data/runs/rl_steps.csv. The first, third, ... were used to choose what a change of hands
takes (planner/rl/rl_job.cpp); the second, fourth, ... judge it.
"""
import argparse
import csv
import json
import pathlib
import subprocess

ROWS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "runs" / "rl_steps.csv"


def predicted(qplan, row):
    words = {"--model": "model", "--hardware": "hardware", "--gpus": "gpus", "--staleness": "staleness",
             "--rollout-gpus": "rollout_gpus", "--rollout": "rollout", "--plan": "plan", "--prompts": "prompts",
             "--samples": "samples", "--prompt-len": "prompt_len", "--response-len": "response_len",
             "--max-response-len": "max_response_len"}
    command = [qplan, "predict", "--algorithm", "grpo", "--json"]
    for option, column in words.items():
        command += [option, row[column]]
    if row["train_batch"] != "0":
        command += ["--train-batch", row["train_batch"]]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: {answer.stderr}")
    return json.loads(answer.stdout)["step"]


def median(values):
    return sorted(values)[len(values) // 2] if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qplan", default="qplan")
    options = parser.parse_args()
    print("| model | GPUs | generating | measured s | predicted s | error | rollout s | forwards s | update s | "
          "changes of hands s | fits |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    errors = []
    for row in csv.DictReader(ROWS.open()):
        step = predicted(options.qplan, row)
        parts = {"rollout": 0.0, "forwards": 0.0, "update": 0.0, "hands": 0.0}
        for phase in step["phases"]:
            name = {"log-probabilities": "forwards", "reference": "forwards"}.get(phase["name"], phase["name"])
            parts[name if name in parts else "hands"] += phase["end_s"] - phase["begin_s"]
        error = step["step_time_s"] / float(row["step_time_s"]) - 1
        errors.append(error)
        aside = row["rollout_gpus"] if row["rollout_gpus"] != "0" else "the same"
        print(f"| {row['model']} | {row['gpus']} {row['hardware']} | {aside}, {row['staleness']} steps old | "
              f"{row['step_time_s']} | {step['step_time_s']:.1f} | {100 * error:+.0f}% | {parts['rollout']:.0f} | "
              f"{parts['forwards']:.0f} | {parts['update']:.0f} | {parts['hands']:.0f} | "
              f"{'yes' if step['fits'] else 'no'} |")
    for name, part in (("all", errors), ("chosen on", errors[::2]), ("judged on", errors[1::2])):
        sizes = [abs(e) for e in part]
        print(f"\n{name}: {len(part)} steps, median {100 * median(sizes):.1f}%, "
              f"worst {100 * max(sizes):.0f}%, mean {100 * sum(part) / len(part):+.1f}%")


if __name__ == "__main__":
    main()
