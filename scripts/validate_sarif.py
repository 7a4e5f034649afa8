#!/usr/bin/env python3
"""Holds `qplan check --format sarif` to OASIS' own schema of SARIF 2.1.0.

  scripts/validate_sarif.py build/release/cli/qplan

Checks every configuration of tests/data/configs, each as a job of its own. The schema is the file that
QPLAN_SARIF_SCHEMA names, or is fetched from OASIS; without either, or without jsonschema
(python3-jsonschema), exits 77, which ctest shows as skipped.
"""
import json
import os
import pathlib
import subprocess
import sys
import urllib.request

from with_jsonschema import SKIPPED, jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Enough kinds of findings, files and places that a shape which is wrong somewhere shows.
LEAST_RESULTS, LEAST_RULES = 20, 8


def oasis_schema(url):
    path = os.environ.get("QPLAN_SARIF_SCHEMA")
    if path:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8-sig"))
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read().decode("utf-8-sig"))
    except OSError as error:
        print(f"skipped: {url} cannot be had: {error}; QPLAN_SARIF_SCHEMA may name a copy of it")
        sys.exit(SKIPPED)


def main():
    files = sorted(str(path) for path in (ROOT / "tests/data/configs").rglob("*") if path.is_file())
    line = [sys.argv[1], "check", *files, "--each", "--skip-unknown", "--no-best", "--model", "qwen3-30b-a3b",
            "--gpus", "16", "--format", "sarif"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    if done.returncode not in (0, 1):
        sys.exit(f"exit {done.returncode}: {done.stderr}")
    log = json.loads(done.stdout)
    schema = oasis_schema(log["$schema"])
    problems = [f"/{'/'.join(str(part) for part in error.absolute_path)}: {error.message[:300]}"
                for error in jsonschema.Draft7Validator(schema).iter_errors(log)]
    results, rules = log["runs"][0]["results"], log["runs"][0]["tool"]["driver"]["rules"]
    if len(results) < LEAST_RESULTS or len(rules) < LEAST_RULES:
        problems.append(f"only {len(results)} results of {len(rules)} rules: too few to tell")
    for problem in problems:
        print(problem)
    print(f"{len(files)} files, {len(results)} results of {len(rules)} rules, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
