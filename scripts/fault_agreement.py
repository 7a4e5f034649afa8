#!/usr/bin/env python3
"""Draws faults in clean jobs and asks both a framework's own validator and `qplan check`.

  QPLAN_TEST_KEEP=JOBS frameworks_test -ts='what emit writes*'      # clean jobs
  scripts/fault_agreement.py JOBS --qplan build/release/cli/qplan --half report

A fault changes one option of one job: it is left out, misspelt, off by one, contradicted, of another
type, out of range, in another case, given twice, or one more of the framework's own list of options
is added with a value of its type. The validator's refusal says that `check` must find an error; its
silence says that `check` must not, except where what is wrong shows later (LATER, with reasons).

Validators: Megatron-LM (MEGATRON_LM_DIR), DeepSpeed with transformers' TrainingArguments, accelerate,
torchtitan (TORCHTITAN_DIR), Megatron-DeepSpeed's configuration. What is missing is skipped and said so.
Seeds: the jobs of even number are `--half tune`, those of odd number `--half report`.
"""
import argparse
import collections
import contextlib
import io
import json
import logging
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fault_draw import draw_faults  # noqa: E402
from fault_validators import VALIDATORS  # noqa: E402
import validate_emitted as emitted  # noqa: E402

# What `check` says although the validator lets it pass, and why the validator cannot know.
LATER = {
    "other_model": "the validator does not know the model",
    "missing_option": "the validator does not know the model",
    "launched_world": "the launcher counts processes",
    "actor_gpus": "the launcher counts processes",
    "launched_degrees": "the launcher counts processes",
    "contradiction": "two files are not read together by the validator",
    "batch_arithmetic": "two files are not read together by the validator",
    "unknown_option": "names outside the validated blocks are ignored silently, which trains something else",
    "optimizer_instances": "refused when groups of ranks are made",
    "bad_value": "degrees and names that are looked up when groups, kernels or layers are made",
    "batch_size": "more sequences than are simulated, which is said to be so",
    "parallelism_needs_fsdp2": "refused when the Accelerator is made",
}
# Values that a framework keeps as they are and uses later: dataclasses of torchtitan, and keys of
# DeepSpeed outside its typed blocks, accelerate's switches, of which any text is true.
USED_LATER = re.compile(r"(training|parallelism|compile)\.|steps_per_print |optimizer\.|scheduler\.|data_types\.|"
                        r"gradient_clipping |activation_checkpointing\.|tensor_parallel\.|wall_clock|use_cpu |"
                        r"num_machines |memory_breakdown|prescale|sequence_parallel_size |data_parallel_size ")


# ---- one fault, two verdicts ----

def verdict(validate, texts, job):
    """Empty: accepted; else why not."""
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            validate(texts, job)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - validators raise anything
        said = str(problem)
        if isinstance(problem, SystemExit):
            said = (quiet.getvalue().strip().splitlines() or [said])[-1]
        return f"{type(problem).__name__}: {said}".split("\n")[0][:200]
    return ""


def ask_check(qplan, texts, job, flags=("--no-best",)):
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        for name, text in texts.items():
            (folder / name).write_text(text)
        command = [qplan, "check", *(str(folder / name) for name in texts), "--gpus", str(job["gpus"]),
                   "--model", job["model"], *flags, "--json"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode == 2:  # a file that cannot be read at all
        return [{"severity": "error", "rule": "unreadable", "message": run.stderr.strip()[:200]}]
    if run.returncode not in (0, 1):
        raise RuntimeError(f"{command}: {run.returncode} {run.stderr[:300]}")
    return json.loads(run.stdout)["findings"]


def errors_in(findings):
    return [f for f in findings if f["severity"] == "error" and f["rule"] not in ("out_of_memory", "out_of_host_memory", "no_plan_fits")]


def judge(framework, options):
    logging.disable(logging.CRITICAL)
    validate = VALIDATORS[framework]()
    table = collections.defaultdict(collections.Counter)
    notes = []
    clean, refusals = {}, collections.Counter()
    until = time.monotonic() + options.seconds

    def is_clean(path, job):
        reason = verdict(validate, job.texts, job.about)
        findings = ask_check(options.qplan, job.texts, job.about, options.flags)
        mine = errors_in(findings)
        if reason:
            refusals[reason] += 1
        elif mine:
            notes.append(("clean job", str(path), "", [f["rule"] + ": " + f["message"] for f in mine][:2]))
            table["clean jobs"]["false alarm"] += 1
        table["clean jobs"]["jobs"] += not reason
        return {f["rule"] for f in findings} if not reason and not mine else None

    for path, job, (kind, what, texts) in draw_faults(framework, options.folder / framework, options.half,
                                                      options.per_job, options.seed, options.jobs):
        if time.monotonic() > until:
            break
        if path not in clean:
            clean[path] = is_clean(path, job)
        if clean[path] is None or texts == job.texts:
            continue
        reason = verdict(validate, texts, job.about)
        findings = ask_check(options.qplan, texts, job.about, options.flags)
        mine = errors_in(findings)
        row = table[kind]
        row["all"] += 1
        if reason:
            row["refused"] += 1
            if mine:
                row["found"] += 1
                continue
            fresh = [f["rule"] for f in findings if f["rule"] not in clean[path]]
            row["said softer" if fresh else "missed"] += 1
            notes.append(("missed", str(path), what, [reason, *fresh]))
            continue
        row["accepted"] += 1
        if not mine:
            row["agreed"] += 1
        elif all(is_later(f) for f in mine):
            row["shows later"] += 1
        else:
            row["false alarm"] += 1
            notes.append(("false alarm?", str(path), what,
                          [f["rule"] + ": " + f["message"] for f in mine if not is_later(f)][:2]))
    return table, notes, refusals


def is_later(finding):
    """A rule of plans, or what LATER names: refused when the job runs, if not when it is parsed."""
    if finding["rule"] == "refused_value":
        return USED_LATER.match(finding["message"]) is not None
    return finding["rule"] in LATER or (finding.get("source") or "").startswith("rule of")


COLUMNS = ("all", "refused", "found", "said softer", "missed", "accepted", "agreed", "shows later", "false alarm")


def print_table(framework, table):
    print(f"\n{framework}: {table['clean jobs']['jobs']} clean jobs, "
          f"{table['clean jobs']['false alarm']} of them with an error")
    print("| fault | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    total = collections.Counter()
    for kind in sorted(k for k in table if k != "clean jobs"):
        total.update(table[kind])
        print(f"| {kind} | " + " | ".join(str(table[kind][c]) for c in COLUMNS) + " |")
    print("| all | " + " | ".join(str(total[c]) for c in COLUMNS) + " |")
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--qplan", default="qplan")
    parser.add_argument("--only", default=",".join(VALIDATORS))
    parser.add_argument("--half", choices=("tune", "report"), default="tune")
    parser.add_argument("--seed", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=40, help="clean jobs of each framework")
    parser.add_argument("--per-job", type=int, default=3, help="faults of each kind and job")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each framework")
    parser.add_argument("--notes", type=pathlib.Path, help="every disagreement, a line of JSON each")
    parser.add_argument("--flags", default="--no-best", help="of qplan check; an older one has none")
    options = parser.parse_args()
    options.flags = options.flags.split()
    options.qplan = shutil.which(options.qplan) or options.qplan
    names = options.only.split(",")
    if len(names) > 1:  # each in a process of its own: their modules share names
        for name in names:
            command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
            subprocess.run(command, check=False)
        return
    try:
        table, notes, refusals = judge(names[0], options)
    except emitted.Skipped as reason:
        print(f"{names[0]}: skipped: {reason}")
        return
    for reason, count in refusals.most_common(5):
        print(f"{names[0]}: clean job refused by its validator, {count} x {reason}")
    print_table(names[0], table)
    if options.notes:
        with options.notes.open("a") as out:
            for note in notes:
                out.write(json.dumps([names[0], *note]) + "\n")


if __name__ == "__main__":
    main()
