#!/usr/bin/env python3
"""Holds every --json answer, and the files that qplan writes as JSON, to docs/reference/schema.

  scripts/validate_answers.py build/release/cli/qplan

Runs each verb on small questions and validates what it prints. The schemas name every key and close
every object, so that a key without its description fails here; and every key that a schema names must
stand in some answer, so that none is left behind. Needs jsonschema 3.2 or newer (python3-jsonschema);
without it exits 77, which ctest shows as skipped, in CI 1.
"""
import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

from with_jsonschema import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "docs/reference/schema"
DATA = ROOT / "tests/data"

# What only a machine with GPUs can answer, and keys of files that one writes oneself.
UNSEEN = {
    "profile.schema.json": ["#part"],
    "validate.schema.json": ["as_routed"],  # natural routing on GPUs
}


def questions(folder):
    """Schema, command line, exit code (none: any), and the file that holds the answer (none: standard output)."""
    tiny = "--model tiny --gpus 8"
    moe = "--model qwen3-30b-a3b --gpus 16"
    changed = ("--gpus-per-node 4 --nics-per-node 4 --nic-gb-per-s 25 --oversubscription 2 --memory-cap-gib 70 "
               "--price 2 --pods 8:2:rails,64:7")
    natural = "--routing natural --moe-imbalance 4 --moe-active 0.9"
    strange = "--model strange-model --as llama"  # a model_type that nobody knows, read as another's

    yield "predict", f"predict {tiny} --timing --json", 0, None
    yield "predict", f"predict {tiny} --tp 3 --json", 1, None  # a rule forbids it
    yield "predict", "predict --model llama3-70b --gpus 8 --tp 8 --json", 1, None  # does not fit
    yield "predict", f"predict {moe} --pp 2 --ep 4 {natural} {changed} --json", None, None
    yield "predict", ("predict --model llama3-8b --gpus 64 --tp 2 --pp 4 --vpp 2 --cp 2 --schedule interleaved "
                      "--pipeline-layout 3,5,4,4,4,4,4,4 --recompute selective:core_attn+mlp "
                      "--offload optimizer:0.5 --json"), 0, None
    yield "predict", "predict --model qwen3-vl-30b-a3b --gpus 32 --framework fsdp2 --zero 3 --images 2 --image-size 1024 --json", 0, None
    yield "predict", f"predict {tiny} --framework torchtitan --json", 0, None
    yield "predict", f"predict {tiny} --framework qplan --precision fp32 --json", 0, None

    yield "predict", f"predict {tiny} --algorithm grpo --max-response-len 300 --prompt-len 50 --rollout tp2 --json", 0, None
    yield "search_steps", f"search {tiny} --algorithm grpo --max-response-len 300 --prompt-len 50 --timing --json", 0, None
    yield "search_steps", f"search {tiny} --algorithm sft --max-response-len 300 --json", 0, None
    yield "search_steps", "search --model llama3-70b --gpus 1 --algorithm grpo --json", 1, None  # nothing fits
    yield "plan", (f"search {tiny} --algorithm grpo --max-response-len 300 --prompt-len 50 "
                   f"-o {folder}/steps.json"), 0, "steps.json"
    yield "predict", f"predict {folder}/steps.json --json", 0, None
    yield "plan", (f"search {tiny} --algorithm sft --prompts 16 --lengths {folder}/lengths.txt "
                   f"-o {folder}/lengths.json"), 0, "lengths.json"
    yield "search", f"search {tiny} --top 3 --timing --json", 0, None
    yield "search", (f"search {moe} --pp 2 --cp 1 --ep 8 --micro-batch-size 1 --vpp 1,2 {natural} {changed} "
                     f"--pareto --top 4 --json -o {folder}/moe.json"), 0, None
    yield "plan", None, 0, "moe.json"
    yield "search", "search --model llama3-405b --gpus 8 --json", 1, None  # nothing fits
    yield "search", f"search {tiny} --tp 3 --json", 1, None  # nothing to look at
    yield "search", "search --model tiny --gpus 3 --hardware our.json --json", 0, None

    yield "sweep", "sweep --model tiny --gpus 1..4 --seq-len 64,128 --price 2 --timing --json", 0, None
    yield "sweep", "sweep --model llama3-70b --gpus 8,64 --tp 8 --pp 1 --cp 1 --hardware h100-sxm,b200 --json", 0, None
    yield "sweep", "sweep --model llama3-405b --gpus 8 --json", 1, None
    yield "sweep", "sweep --model llama3-70b --gpus 8,64 --memory-cap-gib 30 --json", 0, None

    yield "check", ("check megatron_config.yaml deepspeed_config.json train.sh --model qwen3-30b-a3b --gpus 16 "
                    f"--memory-cap-gib 70 --fix {folder}/fixed --json"), 1, None
    yield "check", "check hostfile --model tiny --gpus 8 --json", None, None  # no plan in it
    yield "check", "check emitted/train.sh --model tiny --gpus 8 --json", 0, None
    yield "check", "check remarked/ds_config.json --model tiny --gpus 8 --json", 0, None  # a warning, no error
    yield "check", "check big/ds_config.json --model llama3-405b --gpus 8 --json", 1, None  # no plan fits

    yield "check", "check emitted/train.sh prices.csv --skip-unknown --model tiny --gpus 8 --json", 0, None
    yield "check_each", ("check emitted/train.sh big/ds_config.json hostfile prices.csv --each --skip-unknown --model "
                         "tiny --gpus 8 --no-best --json"), None, None
    yield "emit", "emit small.json --framework megatron --json", 0, None
    yield "emit", f"emit tp2 --model tiny --gpus 8 --framework megatron --json --out {folder}/line", 0, None
    yield "search_lists", (f"search {tiny} --hardware h100-sxm,h200-sxm --precision bf16,fp8 --prices prices.csv --top 3 "
                           "--timing --json"), 0, None
    yield "search_lists", f"search {strange} --gpus 2 {changed} --framework megatron,fsdp2 --top 2 --json", None, None
    yield "options", "search --help=json", 0, None
    yield "options", "check --help=json", 0, None
    yield "watch", "watch slow.log --plan tp2 --model tiny --gpus 8", 1, None

    yield "run", "run 'tp2 pp2 dp2 gbs8 seq32' --model tiny --steps 2 --json", 0, None
    yield "run", (f"run 'dp2 ep2 gbs4 seq32' --model tiny-moe --steps 3 {natural} --trace {folder}/ran.json "
                  "--json"), 0, None
    yield "trace", None, 0, "ran.json"
    yield "run", "run 'pp2 gbs4 seq32' --model our-mtp --steps 1 --json", 0, None
    yield "run", "run 'dp2 gbs4 seq64' --model tiny-vl --steps 1 --json", 0, None
    yield "validate", "validate 'tp2 pp2 gbs4 seq32' --model tiny --json", 0, None
    yield "validate", f"validate 'dp2 ep2 gbs4 seq32' --model tiny-moe {natural} --json", 0, None
    yield "validate", "validate 'pp2 gbs4 seq32' --model our-mtp --json", 0, None

    yield "accuracy", f"accuracy {DATA}/measured_runs.csv --rows --json --by recipe,hardware,model,source", 0, None
    yield "accuracy", f"accuracy {DATA}/measured_runs.csv --json --grade C", 0, None
    yield "trace", f"trace small.json -o {folder}/passes.json", 0, "passes.json"
    yield "trace", f"trace small.json --ops -o {folder}/ops.json", 0, "ops.json"
    yield "plan", f"predict --model our-model --gpus 8 --hardware our.json -o {folder}/ours.json", 0, "ours.json"
    yield "models", "models --json", 0, None
    yield "model", "models show our-model", 0, None
    yield "model", "models show strange-model --as llama", 0, None
    yield "predict", f"predict {strange} --gpus 8 --tp 8 --json", 0, None
    yield "search", f"search {strange} --gpus 2 --top 2 --json -o {folder}/strange.json", 0, None
    yield "plan", None, 0, "strange.json"
    yield "check", f"check emitted/train.sh {strange} --gpus 8 --json", None, None
    yield "sweep", f"sweep {strange} --gpus 1,2 --json", 0, None
    yield "sweep", f"sweep {strange} --gpus 1,2 --memory-cap-gib 0.5 --json", None, None
    yield "compare", "compare tp1 'tp2 mbs2 sp' --model tiny --gpus 8 --json", 0, None
    yield "compare", "compare small.json --best --json", 0, None
    yield "compare", "compare tp1 tp3 --model tiny --gpus 8 --json", 1, None  # no such plan
    yield "size", "size --model llama3-70b --seq-len 8192 --json", 0, None
    yield "size", "size --longest --model tiny --gpus 1 --memory-cap-gib 3 --json", 0, None
    yield "size", "size --longest --model llama3-405b --gpus 1 --json", 1, None  # nothing fits
    yield "size", "size --model tiny --gpus 2 --prices prices.csv --json", 0, None
    yield "fit", "fit --measured 2s --plan tp2 --model tiny --gpus 8 --json", 0, None
    trace = os.path.join(folder, "trace.json")
    with open(trace, "w") as file:
        json.dump({"traceEvents": [
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "ts": 0, "dur": 2_000_000},
            {"ph": "X", "cat": "kernel", "name": "nvjet_tst", "ts": 0, "dur": 1000}]}, file)
    yield "fit", f"fit {trace} --plan tp2 --model tiny --gpus 8 --json", 0, None
    yield "profile", f"fit --measured 2s --plan tp2 --model tiny --gpus 8 --top 0 -o {folder}/ours.json", 0, "ours.json"
    yield "fit", f"fit --runs {DATA}/runs/published.csv --rows titan-llama3-8b-h100-96gb-hbm2e-64 --leave-one-out --json", 0, None
    yield "targets", "targets small.json --json", 0, None
    yield "goodput", f"goodput tp2 {tiny} --tokens 1B --runs 5 --json", 0, None
    yield "goodput", f"goodput {tiny} --failures 0 --step-time-s 2 --json", 0, None
    yield "goodput", ("goodput 'tp8 pp4 zero1' --model llama3-70b --gpus 1024 --sites 2 --outer-bits 4 --asynchronous "
                      "--recovery replica --runs 5 --json"), 0, None
    yield "hardware", "hardware --json", 0, None
    yield "profile", "hardware show our.json", 0, None
    yield "profile", "hardware show slower.json", 0, None
    yield "profile", "hardware show no_nvlink.json", 0, None
    yield "verbs", "--help=json", 0, None


# ---- the schemas ----

class Schemas:
    def __init__(self):
        self.files = {path.name: json.loads(path.read_text()) for path in sorted(SCHEMAS.glob("*.schema.json"))}
        self.seen = set()  # ids of the property nodes that some answer had
        self.judges = {}  # of alternatives

    def follow(self, name, node):
        """The node that a reference means, and its file."""
        while "$ref" in node:
            file, _, pointer = node["$ref"].partition("#")
            name = file or name
            node = self.files[name]
            for part in pointer.strip("/").split("/") if pointer.strip("/") else []:
                node = node[part]
        return name, node

    def validator(self, name, node=None):
        root = {"$ref": name} if node is None else node
        try:
            from referencing import Registry, Resource
            from referencing.jsonschema import DRAFT7
            resources = [(n, Resource.from_contents(s, default_specification=DRAFT7)) for n, s in self.files.items()]
            return jsonschema.Draft7Validator(root, registry=Registry().with_resources(resources))
        except ImportError:  # jsonschema before 4.18
            resolver = jsonschema.RefResolver(name, self.files[name], store=dict(self.files))
            return jsonschema.Draft7Validator(self.files[name] if node is None else node, resolver=resolver)

    def nodes(self, name, node, path=""):
        """Every schema below this one: its file, its path and itself."""
        yield name, path, node
        for key in ("properties", "definitions"):
            for word, child in node.get(key, {}).items():
                yield from self.nodes(name, child, f"{path}/{word}" if key == "properties" else f"{path}#{word}")
        for key in ("items", "additionalProperties"):
            if isinstance(node.get(key), dict):
                yield from self.nodes(name, node[key], f"{path}/*")
        for child in node.get("oneOf", []):
            yield from self.nodes(name, child, path)

    def all_nodes(self):
        for name, schema in self.files.items():
            yield from self.nodes(name, schema)

    def faults(self):
        """What a schema forgets to say."""
        for name, schema in self.files.items():
            jsonschema.Draft7Validator.check_schema(schema)
        for name, path, node in self.all_nodes():
            where = f"{name}: {path or '/'}"
            const = node.get("properties", {}).get("schema", {}).get("const")
            if const is not None and not const.startswith(f"qplan.{name.split('.', maxsplit=1)[0]}/"):
                yield f"{where}: its answers say that they are {const}"
            if "$ref" in node:
                if len(node) > 1:
                    yield f"{where}: what stands beside a $ref is not read"
                self.follow(name, node)  # there is such a thing
            if "properties" in node:
                if node.get("additionalProperties") is not False:
                    yield f"{where}: the object is not closed"
                for word in node.get("required", ["(nothing)"]):
                    if word not in node["properties"]:
                        yield f"{where}: requires {word}, which it does not describe"
                for word, child in node["properties"].items():
                    if "description" not in self.follow(name, child)[1]:
                        yield f"{where}/{word}: no description"

    def branch(self, name, node, value):
        """The alternative of a oneOf that the value is."""
        for child in node.get("oneOf", []):
            file, target = self.follow(name, child)
            if id(target) not in self.judges:
                inside = {**target, "definitions": self.files[file].get("definitions", {})}
                self.judges[id(target)] = self.validator(file, inside)
            if self.judges[id(target)].is_valid(value):
                return file, target
        return name, node

    def mark(self, name, node, value):
        """Notes which properties an answer has."""
        name, node = self.branch(*self.follow(name, node), value)
        if isinstance(value, dict):
            for word, item in value.items():
                child = node.get("properties", {}).get(word)
                if child is not None:
                    self.seen.add(id(child))
                    self.mark(name, child, item)
        elif isinstance(value, list) and isinstance(node.get("items"), dict):
            for item in value[:100]:  # a trace has thousands, alike
                self.mark(name, node["items"], item)

    def never_seen(self):
        for name, path, node in self.all_nodes():
            for word, child in node.get("properties", {}).items():
                spared = any(part in f"{path}/{word}".split("/") for part in UNSEEN.get(name, []))
                if id(child) not in self.seen and not spared:
                    yield f"{name}: no answer has {path}/{word}"


# ---- the answers ----

def complaints(schemas, name, value, most=5):
    def deepest(error):
        inner = sorted(error.context or [], key=lambda e: len(e.absolute_path), reverse=True)
        return deepest(inner[0]) if inner else error
    for error in list(schemas.validator(name).iter_errors(value))[:most]:
        found = deepest(error)
        path = "/".join(str(part) for part in found.absolute_path)
        yield f"/{path}: {found.message[:300]}"


class Runner:
    def __init__(self, qplan, folder):
        self.qplan, self.folder = os.path.abspath(qplan), folder

    def __call__(self, line):
        return subprocess.run([self.qplan, *shlex.split(line)], cwd=self.folder, capture_output=True, text=True)


def write_profile(profile, path):
    """A machine that says whatever a profile may say."""
    profile["name"] = "our"
    profile["price_per_gpu_hour_usd"] = 2.5
    profile["gpu"].update(matmul_fp16_tflops=989, matmul_mxfp8_tflops=1979, matmul_nvfp4_tflops=1979, matmul_fp32_tflops=67,
                          adamw_efficiency=0.8, graph_gain_us=0.5, memory_latency_us_of={"swiglu": 3})
    profile["link"].update(message_start_us=8, message_gb_per_s=390, simple_only=False,
                           pods=[{"gpus": 3072, "oversubscription": 7, "rails": True}])
    profile["host"]["launch_factor"] = 1
    slowdown = {"compute": 1.1, "comm": 1.2, "source": "invented"}
    profile["contention"].update(expert_library=slowdown, expert_library_network=slowdown)
    product = {**profile["gemm"]["bf16"], "accumulate_exposed": 0.5, "assumed": True}
    profile["gemm"].update(fp16=product, mxfp8=product, nvfp4=product, fp32=product)
    for section in ("scan", "delta_rule"):
        profile[section]["assumed"] = True
    fit = {**profile["attention"]["fits"][0], "backward_wave": 1, "sustain_alone": 0.9, "assumed": True}
    profile["attention"].update(flash2=[fit], flex=[fit], flash1_rate=0.5)
    profile["collectives"]["fits"][0].update(gamma_ns_per_sqrt_byte=1, error=0.1, assumed=True)
    profile["tables"] = {
        "gemm": [{"dtype": "bf16", "m": [1, 2], "n": [1], "k": [1], "utilisation_permille": [0, 500]}],
        "collectives": [{"kind": "all_reduce", "ranks": 2, "bytes": [1, 2], "microseconds": [1, 2]}],
        "steps": [{"kind": "gemm bf16", "sizes": [4096, 4096, 4096], "ratio": 1.1}],
        "source": "invented"}
    path.write_text(json.dumps(profile))


def set_up(run, folder):
    """Files that the questions are about."""
    configs = DATA / "configs"
    for path in [*(configs / "megatron_yaml_and_deepspeed").iterdir(), configs / "megatron_deepspeed/hostfile"]:
        (folder / path.name).write_text(path.read_text())
    write_profile(json.loads(run("hardware show h100-sxm").stdout), folder / "our.json")
    (folder / "prices.csv").write_text("hardware,usd_per_gpu_hour,source\nh100-sxm,2,invented\n")
    (folder / "lengths.txt").write_text("[40, 90, 300]\n")
    # What is shown of files that extend others is whole.
    for name, own in (("slower", {"extends": "our.json", "gpu": {"tdp_watt": 500}}),
                      ("no_nvlink", {"extends": "slower.json", "link": {"nvlink_gb_per_s": 0}, "scan": None})):
        (folder / f"{name}.json").write_text(json.dumps(own))
    for name, base, more in (("our-model", "tiny", {}), ("our-mtp", "tiny-mla", {"num_nextn_predict_layers": 1}),
                             ("strange-model", "llama3-8b", {"model_type": "strange", "twists": 3})):
        config = json.loads(run(f"models show {base}").stdout)["config"]
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({**config, **more}))
    for line in ("predict --model tiny --gpus 8 --pp 2 -o small.json",
                 "predict --model llama3-405b --gpus 8 --framework deepspeed --zero 3 -o large.json",
                 "predict --model tiny --gpus 8 --framework deepspeed --zero 2 -o sharded.json",
                 "emit small.json --framework megatron --out emitted",
                 "emit sharded.json --framework deepspeed --out remarked",
                 "emit large.json --framework deepspeed --out big"):
        done = run(line)
        if done.returncode > 1:
            sys.exit(f"{line}: {done.stderr}")
    (folder / "slow.log").write_text("".join(
        f" iteration {i}/ 60 | elapsed time per iteration (ms): {900000.0 if i <= 30 else 0.1} |\n"
        for i in range(1, 61)))
    config = folder / "remarked/ds_config.json"
    config.write_text("/* ours */" + config.read_text())


def answers(run, folder):
    """Schema, what was asked, the answer or a complaint."""
    for schema, line, code, file in questions(folder):
        if line is not None:
            done = run(line)
            if code is not None and done.returncode != code:
                yield schema, line, None, f"exit {done.returncode} instead of {code}: {done.stderr.strip()}"
                continue
        try:
            text = done.stdout if file is None else (folder / file).read_text()
            if schema == "watch":  # an answer a line
                for row in text.splitlines():
                    yield schema, line, json.loads(row), None
                continue
            yield schema, line or f"... -o {file}", json.loads(text), None
        except (ValueError, OSError) as error:
            yield schema, line or file, None, f"no JSON: {error} {done.stderr.strip()}"
    for verb, schema, key in (("models", "model", "models"), ("hardware", "profile", "hardware")):
        for one in json.loads(run(f"{verb} --json").stdout)[key]:
            line = f"{verb} show {one['name']}"
            yield schema, line, json.loads(run(line).stdout), None
    for verb in json.loads(run("--help=json").stdout)["verbs"]:
        line = f"{verb['name']} --help=json"
        yield "options", line, json.loads(run(line).stdout), None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("qplan")
    args = parser.parse_args()
    schemas = Schemas()
    problems = list(schemas.faults())
    count = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run = Runner(args.qplan, folder)
        set_up(run, folder)
        for schema, line, value, problem in answers(run, folder):
            count += 1
            file = f"{schema}.schema.json"
            found = [problem] if problem else list(complaints(schemas, file, value))
            problems += [f"qplan {line}: {file}: {what}" for what in found]
            if not found:
                schemas.mark(file, schemas.files[file], value)
    problems += schemas.never_seen()
    for problem in problems:
        print(problem)
    print(f"{count} answers by {len(schemas.files)} schemas, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
