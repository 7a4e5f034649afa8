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
import ast
import collections
import contextlib
import io
import json
import logging
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import validate_emitted as emitted  # noqa: E402

OPTIONS = pathlib.Path(__file__).resolve().parent.parent / "planner" / "frameworks" / "options"

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


# ---- options in files ----

class Word:
    """One option where it stands in a file: text[begin:end] is all of it."""

    def __init__(self, file, key, values, begin, end, style, indent=""):
        self.file, self.key, self.values, self.begin, self.end = file, key, values, begin, end
        self.style, self.indent = style, indent

    def spelled(self, key, values):
        if self.style == "argument":
            return " ".join([key, *(shlex.quote(v) if "$" not in v else f'"{v}"' for v in values)])
        if self.style == "yaml":
            return f"{key}: {' '.join(values)}"
        return f"{key}={' '.join(values)}"  # Python


ARGUMENT = re.compile(r"^[ \t]+(--[\w.-]+)((?:[ \t]+(?!\\\n|\\$)\S[^\n\\]*)?)", re.M)


def words_in(file, text):
    if file.endswith((".yaml", ".yml")):
        for m in re.finditer(r"^([ \t]*)(\w+): ([^\n#]+)$", text, re.M):
            yield Word(file, m[2], [m[3].strip()], m.start(2), m.end(3), "yaml", m[1])
    elif file.endswith(".py"):
        for m in re.finditer(r"^            (\w+)=([^\n]+),$", text, re.M):
            yield Word(file, m[1], [m[2]], m.start(1), m.end(2), "python")
    elif file.endswith(".sh"):
        for m in ARGUMENT.finditer(text):
            try:
                values = shlex.split(m[2])
            except ValueError:
                continue
            yield Word(file, m[1], values, m.start(1), m.end(2), "argument")


def json_leaves(tree, path=()):
    for key, value in tree.items():
        yield path + (key,), value
        if isinstance(value, dict):
            yield from json_leaves(value, path + (key,))


# ---- faults ----

def is_whole(text):
    return re.fullmatch(r"-?\d+", text) is not None


def is_number(text):
    return re.fullmatch(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) is not None


def misspelt(draw, name):
    """A slip of the keyboard: a letter left out, doubled or two in each other's place."""
    letters = [i for i, c in enumerate(name) if c.isalpha()]
    at = draw.choice(letters[1:] or letters)
    slip = draw.randrange(4)
    if slip == 0:
        return name[:at] + name[at + 1:]
    if slip == 1:
        return name[:at] + name[at] + name[at:]
    if slip == 2 and at + 1 < len(name) and name[at + 1].isalpha() and name[at] != name[at + 1]:
        return name[:at] + name[at + 1] + name[at] + name[at + 2:]
    swap = {"_": "-", "-": "_"}
    if any(c in name[2:] for c in swap):
        return name[:2] + "".join(swap.get(c, c) for c in name[2:])
    return name[:at] + name[at + 1:]


def changed_values(draw, value):
    """Faults of one value: (kind, value)."""
    if is_whole(value):
        number = int(value)
        return [("off by one", str(number + draw.choice((-1, 1)))),
                ("wrong type", draw.choice(("many", f"{number}.5", f"{number}k", "auto?", "None"))),
                ("out of range", draw.choice(("0", "-1", "-8", str(number * 1000 + 7)))),
                ("contradiction", str(max(1, number * draw.choice((2, 3)) if draw.random() < .6 else number // 2)))]
    if is_number(value):
        return [("wrong type", draw.choice(("fast", "0,1", "1e-", "3e-4x"))),
                ("out of range", draw.choice(("-1.0", "-0.5", "100.0"))),
                ("contradiction", repr(float(value) * 10))]
    if value.lower() in ("true", "false"):
        return [("wrong type", draw.choice(("maybe", "2", "on/off"))),
                ("contradiction", "false" if value.lower() == "true" else "true")]
    if re.fullmatch(r'"?[A-Za-z][\w-]*"?', value):
        bare = value.strip('"')
        other = bare.upper() if bare != bare.upper() else bare.lower()
        return [("wrong case", value.replace(bare, other)),
                ("wrong type", value.replace(bare, misspelt(draw, bare))),
                ("wrong type", draw.choice(("7", '"7"')))]
    return []


def value_of_type(draw, kind, choices):
    if choices:
        return draw.choice(choices)
    name = kind.split(" ")[0]
    return {"int": lambda: draw.choice(("1", "2", "4", "8", "100")),
            "float": lambda: draw.choice(("0.1", "0.5", "1.0", "2.0")),
            "bool": lambda: draw.choice(("true", "false"))}.get(name, lambda: "name")()


def options_of(framework):
    lists = {"megatron": ["megatron"], "slime": ["slime", "megatron"], "fsdp2": ["accelerate"],
             "torchtitan": ["torchtitan"], "megatron-deepspeed": ["megatron_deepspeed"],
             "deepspeed": ["trainer"]}
    rows = []
    for name in lists.get(framework, ()):
        path = OPTIONS / f"{name}.tsv"
        for line in path.read_text().splitlines() if path.exists() else ():
            spellings, arity, kind, _, choices = line.split("\t")
            if name == "trainer" and arity == "*":
                continue  # of an older version, known and no more than that
            for spelling in spellings.split(" "):
                rows.append((spelling, arity, kind, choices.split(",") if choices else []))
    return rows


class Job:
    def __init__(self, folder):
        self.folder = folder
        self.about = json.loads((folder / "plan.json").read_text())
        self.texts = {p.name: p.read_text() for p in sorted(folder.iterdir())
                      if p.is_file() and p.name not in ("plan.json", "README.md", "train.sbatch")}

    def with_file(self, name, text):
        return {**self.texts, name: text}

    def faults(self, framework, draw):
        """Kind, what was done, files: in no order, as many as there are."""
        for name, text in self.texts.items():
            if name.endswith(".json"):
                yield from self.json_faults(name, text, draw)
                continue
            words = list(words_in(name, text))
            for word in words:
                for kind, key, values in self.word_faults(word, draw):
                    new = "" if key is None else word.spelled(key, values)
                    end = word.end + (key is None and word.style == "python")  # with its comma
                    yield (kind, f"{name}: {text[word.begin:word.end]} -> {new}",
                           self.with_file(name, text[:word.begin] + new + text[end:]))
                for again in self.repeated(word, draw):
                    yield ("duplicate", f"{name}: {again} after {text[word.begin:word.end]}",
                           self.with_file(name, text[:word.end] + again + text[word.end:]))
            if words:
                yield from self.added(framework, name, text, words, draw)

    def word_faults(self, word, draw):
        required = not word.values or "$" not in word.values[0]
        if word.style != "argument" or required:
            yield "left out", None, []
        yield "misspelt", misspelt(draw, word.key), word.values
        if word.style == "argument" and not word.values:
            yield "wrong type", word.key, [draw.choice(("1", "true", "yes"))]
            return
        if not required:
            return
        if word.style == "argument":
            yield "wrong type", word.key, []
        at = draw.randrange(len(word.values))
        for kind, value in changed_values(draw, word.values[at]):
            if word.style == "python" and kind == "wrong type" and not is_number(value) and '"' not in value:
                value = f'"{value}"'
            if word.style == "python" and value in ("true", "false"):
                value = value.capitalize()
            yield kind, word.key, [*word.values[:at], value, *word.values[at + 1:]]

    def repeated(self, word, draw):
        for kind, value in changed_values(draw, word.values[0]) if word.values else ():
            if kind != "contradiction":
                continue
            if word.style == "argument":
                yield " " + word.spelled(word.key, [value, *word.values[1:]])
            elif word.style == "python":
                yield f", {word.key}={word.values[0]}"
            else:
                yield f"\n{word.indent}{word.key}: {value}"

    def added(self, framework, name, text, words, draw):
        options = options_of(framework)
        taken = {word.key for word in words}
        for key, arity, kind, choices in draw.sample(options, min(len(options), 60)):
            word = draw.choice(words)
            if key in taken or key.split(".")[-1] in taken or ".*" in key:
                continue
            if word.style == "argument" and key.startswith("--"):
                if name == "train.sh" and framework in ("megatron", "slime", "fsdp2"):
                    continue
                values = [] if arity == "0" else [value_of_type(draw, kind, choices)]
                new = " " + word.spelled(key, values)
            elif word.style == "yaml" and "." in key and word.key.startswith(key.split(".")[0].split("_config")[0]):
                new = f"\n{word.indent}{key.split('.')[1]}: {value_of_type(draw, kind, choices)}"
            else:
                continue
            yield ("added", f"{name}: {new.strip()}",
                   self.with_file(name, text[:word.end] + new + text[word.end:]))

    def json_faults(self, name, text, draw):
        tree = json.loads(text)
        for path, value in list(json_leaves(tree)):
            for kind, change in self.json_changes(path, value, draw):
                copy = json.loads(text)
                at = copy
                for key in path[:-1]:
                    at = at[key]
                done = change(at, path[-1])
                yield (kind, f"{name}: {'.'.join(path)} = {json.dumps(value)[:60]} -> {done}",
                       self.with_file(name, json.dumps(copy, indent=2) + "\n"))
        first = next(iter(tree))
        yield ("duplicate", f"{name}: {first} twice", self.with_file(
            name, text.replace("{", "{\n  " + json.dumps(first) + ": " + json.dumps(tree[first]) + ",", 1)))

    @staticmethod
    def json_changes(path, value, draw):
        def drop(at, key):
            del at[key]
            return "left out"

        def put(new):
            def change(at, key):
                at[key] = new
                return json.dumps(new)
            return change

        def rename(at, key):
            new = misspelt(draw, key)
            at[new] = at.pop(key)
            return new

        yield "left out", drop
        if any(c.isalpha() for c in path[-1]):
            yield "misspelt", rename
        if isinstance(value, bool):
            yield "wrong type", put(draw.choice(["maybe", 2, "enabled"]))
            yield "contradiction", put(not value)
        elif isinstance(value, (int, float)):
            yield "wrong type", put(draw.choice(["many", "5e8x", [value], None, "1GB"]))
            yield "out of range", put(draw.choice([-1, -8, 0, value * 1000 + 7]))
            if isinstance(value, int):
                yield "off by one", put(value + draw.choice((-1, 1)))
            yield "contradiction", put(value * 2 if value else 1)
        elif isinstance(value, str):
            yield "wrong case", put(value.upper() if value != value.upper() else value.lower())
            yield "wrong type", put(misspelt(draw, value) if any(map(str.isalpha, value)) else "x")
            yield "wrong type", put(draw.choice([7, True, "gpu"]))
        elif isinstance(value, dict):
            yield "wrong type", put(draw.choice([True, "on", [1]]))


# ---- validators: each takes the files as texts, and raises what the framework raises ----

def shell_words(text):
    """The words of a bash file's arrays, and of its last command."""
    arrays = {}
    for name, body in re.findall(r"^(\w+)=\(\n(.*?)^\)", text, re.M | re.S):
        arrays[name] = shlex.split(body)
    return arrays


def command_words(text, program):
    """Arguments behind the word that ends with `program`."""
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        if program in line and not line.startswith("#"):
            try:
                words = shlex.split(line)
            except ValueError as problem:
                raise SystemExit(f"bash: {problem}") from problem
            for i, word in enumerate(words):
                if word.endswith(program):
                    return words[i + 1:]
    raise SystemExit("no command")


def megatron_validator():
    arguments, microbatches = emitted.megatron_modules()

    def validate(texts, job):
        words = [w for array in shell_words(texts["args.sh"]).values() for w in array]
        os.environ["WORLD_SIZE"] = str(job["gpus"])
        fsdp = "--use-megatron-fsdp" in words
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8" if fsdp else "1"
        os.environ["NVTE_CPU_OFFLOAD_V1"] = "1"
        sys.argv = ["pretrain_gpt.py", *words, "--no-rope-fusion", "--no-persist-layer-norm"]
        args = arguments.parse_args()
        arguments.validate_args(args)
        arguments.core_transformer_config_from_args(args)
        emitted.build_microbatches(microbatches, args)

    return validate


def trainer_arguments():
    """transformers' own parser of run_clm.py's arguments, with the world of the job."""
    import torch
    from transformers import HfArgumentParser, TrainingArguments
    where = os.environ.get("TRANSFORMERS_DIR", "")
    script = pathlib.Path(where) / "examples/pytorch/language-modeling/run_clm.py"
    classes = []
    if script.exists():
        tree = ast.parse(script.read_text())
        tree.body = [n for n in tree.body if isinstance(n, ast.ClassDef)
                     or (isinstance(n, ast.Assign) and "MODEL" in ast.unparse(n.targets[0]))
                     or (isinstance(n, (ast.Import, ast.ImportFrom)) and "datasets" not in ast.unparse(n)
                         and "evaluate" not in ast.unparse(n) and "testing_utils" not in ast.unparse(n))]
        module = types.ModuleType("run_clm")
        sys.modules["run_clm"] = module
        exec(compile(tree, str(script), "exec"), module.__dict__)
        classes = [module.ModelArguments, module.DataTrainingArguments]
    TrainingArguments._setup_devices = property(lambda self: torch.device("cpu"))
    TrainingArguments.device = property(lambda self: torch.device("cpu"))
    world = {"size": 1}
    TrainingArguments.world_size = property(lambda self: world["size"])
    import transformers.utils
    import transformers.training_args as module
    for name in ("is_torch_bf16_gpu_available", "is_torch_bf16_available_on_device"):
        if hasattr(module, name):
            setattr(module, name, lambda *_: True)
    parser = HfArgumentParser([*classes, TrainingArguments])

    def parse(words, folder, gpus, data_ranks=None):
        world["size"] = gpus
        words = [str(folder / "ds_config.json") if w == "ds_config.json" else
                 w.replace("${DATA_PATH}", "data.txt").replace("${CHECKPOINT_PATH}", str(folder / "out"))
                 for w in words]
        return parser.parse_args_into_dataclasses(words)[-1]

    return parse


def deepspeed_validator():
    if emitted.importlib.util.find_spec("deepspeed") is None:
        raise emitted.Skipped("the package deepspeed is not installed")
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig
    comm.get_rank = lambda *_: 0
    parse = trainer_arguments()
    from deepspeed.runtime import engine
    known = [v for k, v in vars(engine).items() if k.endswith("_OPTIMIZER") and isinstance(v, str)]

    def validate(texts, job):
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            (folder / "ds_config.json").write_text(texts["ds_config.json"])
            script = next(s for s in ("run_clm.py", "sft_vlm.py") if s in texts["train.sh"])
            args = parse(command_words(texts["train.sh"], script), folder, job["gpus"])
            if args.deepspeed is None:
                return
            config = args.hf_deepspeed_config
            model = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=4096))
            config.trainer_config_finalize(args, model, args.max_steps)
            (folder / "final.json").write_text(json.dumps(config.config, indent=2))
            # DeepSpeed reads the file itself where no Trainer fills it in: keys that stand twice.
            plan = job["plan"]
            ranks = types.SimpleNamespace(get_data_parallel_world_size=lambda: plan["dp"])
            DeepSpeedConfig(str(folder / "final.json"), mpu=ranks)
            optimizer = config.config.get("optimizer", {}).get("type")
            if optimizer is not None:
                import torch
                if str(optimizer).lower() not in known and not hasattr(torch.optim, str(optimizer)):
                    raise ValueError(f"optimizer {optimizer}")

    return validate


def fork_config_validator():
    if emitted.importlib.util.find_spec("deepspeed") is None:
        raise emitted.Skipped("the package deepspeed is not installed")
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig
    comm.get_rank = lambda *_: 0
    where = os.environ.get("MEGATRON_DEEPSPEED_DIR")
    if not where:
        raise emitted.Skipped("MEGATRON_DEEPSPEED_DIR names no checkout of Megatron-DeepSpeed")
    arguments = emitted.fork_arguments(where)

    def validate(texts, job):
        words = [w for array in shell_words(texts["train.sh"]).values() for w in array]
        os.environ.update(WORLD_SIZE=str(job["gpus"]), RANK="0", LOCAL_RANK="0")
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        with tempfile.TemporaryDirectory() as place:
            path = pathlib.Path(place) / "ds_config.json"
            path.write_text(texts["ds_config.json"])
            sys.argv = ["pretrain_gpt.py", "--deepspeed", "--deepspeed_config", str(path), *words]
            args = arguments.parse_args()
            arguments.validate_args(args, {})
            ranks = types.SimpleNamespace(get_data_parallel_world_size=lambda: args.data_parallel_size)
            read = DeepSpeedConfig(str(path), mpu=ranks)
            assert read.train_micro_batch_size_per_gpu == args.micro_batch_size or True

    return validate


def slime_validator():
    """slime's own arguments and their validation, over Megatron's; sglang's part is not here."""
    where = os.environ.get("SLIME_DIR")
    if not where:
        raise emitted.Skipped("SLIME_DIR names no checkout of slime")
    arguments, microbatches = emitted.megatron_modules()
    sys.path.insert(0, where)
    for name in ("slime.backends.sglang_utils.arguments", "slime.backends.sglang_utils.external",
                 "slime.observability.logging_utils"):
        module = types.ModuleType(name)
        for function in ("sglang_parse_args", "validate_args", "apply_external_engine_info_to_args",
                         "configure_logger"):
            setattr(module, function, lambda *_, **__: None)
        sys.modules[name] = module
    from slime.utils import arguments as slime
    provider = slime.get_slime_extra_args_provider()
    exists = os.path.exists
    os.path.exists = lambda path: str(path).startswith("/path/to") or exists(path)

    def validate(texts, job):
        words = [w for name in ("model.sh", "run.sh") for array in shell_words(texts[name]).values() for w in array]
        after = texts["run.sh"].split('/train.py"', 1)[1].replace("\\\n", " ")
        words += [w for w in shlex.split(after) if "[@]" not in w]
        words = ["/path/to/x" if "$" in w else w for w in words]
        os.environ["WORLD_SIZE"] = str(job["gpus"])
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        os.environ["NVTE_CPU_OFFLOAD_V1"] = "1"
        sys.argv = ["train.py", *words, "--no-rope-fusion", "--no-persist-layer-norm"]
        args = arguments.parse_args(extra_args_provider=provider, ignore_unknown_args=True)
        for name in ("debug_rollout_only", "debug_train_only"):
            setattr(args, name, getattr(args, name, False))
        args.load_debug_rollout_data = getattr(args, "load_debug_rollout_data", None)
        args.train_backend = "megatron"
        slime.slime_validate_args(args)
        # What slime sets before Megatron's own validation (backends/megatron_utils/arguments.py).
        args.bf16 = not args.fp16
        args.seq_length = args.seq_length or 4096
        args.max_position_embeddings = max(args.max_position_embeddings or 0, args.seq_length)
        args.micro_batch_size = args.micro_batch_size or 1
        args.use_distributed_optimizer = True
        args.rank, args.world_size = 0, args.actor_num_nodes * args.actor_num_gpus_per_node
        arguments.validate_args(args)
        arguments.core_transformer_config_from_args(args)

    return validate


def accelerate_validator():
    if emitted.importlib.util.find_spec("accelerate") is None:
        raise emitted.Skipped("the package accelerate is not installed")
    import torch
    from accelerate.commands import launch
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin, launch as launching
    parser = launch.launch_command_parser()
    parse = trainer_arguments()
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 8
    torch.cuda.current_device = lambda: 0
    hopper = types.SimpleNamespace(major=9, minor=0)
    torch.cuda.get_device_properties = lambda *_: hopper
    clean = dict(os.environ)

    def validate(texts, job):
        os.environ.clear()
        os.environ.update(clean)
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            (folder / "accelerate.yaml").write_text(texts["accelerate.yaml"])
            words = command_words(texts["train.sh"], "launch")
            words = [str(folder / w) if w == "accelerate.yaml" else w for w in words]
            words = [w for w in words if not w.startswith("${MASTER") and not w.startswith("${NODE")]
            words = [w for w in words if w not in ("--machine_rank", "--main_process_ip", "--main_process_port")]
            args = parser.parse_args(words)
            args, _, _ = launch._validate_launch_command(args)
            if args.use_fsdp or args.multi_gpu:
                environment = launching.prepare_multi_gpu_env(args)
            else:
                _, environment = launching.prepare_simple_launcher_cmd_env(args)
            os.environ.update(environment)
            if args.use_fsdp:
                FullyShardedDataParallelPlugin()
            if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true":
                mesh = ParallelismConfig()
                # build_device_mesh() refuses it when the job runs.
                assert mesh.total_size == job["gpus"], f"a mesh of {mesh.total_size}"
            assert args.num_processes == job["gpus"], "num_processes"
            os.environ.pop("ACCELERATE_USE_FSDP", None)
            parse(args.training_script_args, folder, job["gpus"])

    return validate


def torchtitan_validator():
    configs, dims = emitted.torchtitan_modules()
    where = pathlib.Path(os.environ["TORCHTITAN_DIR"])

    def flavors(module):
        tree = ast.parse((where / f"torchtitan/models/{module}/__init__.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("_configs"):
                return {k.value for k in node.value.keys}
        raise ImportError(module)

    def validate(texts, job):
        tree = ast.parse(texts["qplan_config.py"])
        made = {}
        module = None
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchtitan.models."):
                name = node.module.split(".")[2]
                module = name if name != "common" else module
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", "")
            if name in ("TrainingConfig", "ParallelismConfig", "CompileConfig"):
                seen = [k.arg for k in node.keywords]
                assert len(seen) == len(set(seen)), "keyword argument repeated"
                made[name] = getattr(configs, name)(
                    **{k.arg: ast.literal_eval(k.value) for k in node.keywords})
            if name == "model_registry":
                assert node.args[0].value in flavors(module), "flavor"
        parallel = made.get("ParallelismConfig") or configs.ParallelismConfig()
        mesh = dims.ParallelDims.from_config(parallel, job["gpus"])
        training = made.get("TrainingConfig") or configs.TrainingConfig()
        tokens = training.num_tokens_per_microbatch_per_dp_rank
        ranks = mesh.dp_replicate * mesh.dp_shard
        if training.num_tokens_per_train_step > 0:
            assert training.num_tokens_per_train_step % (tokens * ranks) == 0, "tokens a step"

    return validate


VALIDATORS = {"megatron": megatron_validator, "deepspeed": deepspeed_validator,
              "megatron-deepspeed": fork_config_validator, "fsdp2": accelerate_validator,
              "torchtitan": torchtitan_validator, "slime": slime_validator}


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


def draw_faults(framework, folder, half, per_job, seed, most):
    jobs = [p for p in sorted(folder.iterdir(), key=lambda p: int(p.name))
            if int(p.name) % 2 == (0 if half == "tune" else 1)]
    for path in jobs[:most]:
        draw = random.Random(f"{seed}/{framework}/{path.name}")
        job = Job(path)
        by_kind = collections.defaultdict(list)
        for fault in job.faults(framework, draw):
            by_kind[fault[0]].append(fault)
        for kind in sorted(by_kind):
            for fault in draw.sample(by_kind[kind], min(per_job, len(by_kind[kind]))):
                yield path, job, fault


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
