#!/usr/bin/env python3
"""Writes planner/frameworks/options/*.tsv: the options that frameworks' own parsers know.

Columns: spellings (separated by spaces), values it takes (0, 1, 3, ?, + or *), type, default, choices
(separated by commas). A type may say what its numbers lie between: int[0:3], float[0:]; and "!"
that it is never null. Sources, each named by an argument:
  --megatron DUMP        rows dumped from the live parser of Megatron-LM: spellings, destination,
                         action, type, number of values, default, choices as JSON
  --argparse NAME=FILE   a Python file that calls add_argument(), or a patch (.patch) of Megatron that adds
                         such calls, or switches to its configuration; may be repeated for one NAME
  --deepspeed            the installed deepspeed package's configuration classes
  --accelerate           the installed accelerate package's configuration classes
  --torchtitan FILE      torchtitan/config/configs.py
  --torchtitan-toml FILE...  torchtitan/config/job_config.py of the last release that read TOML, then the same
                         (or config_manager.py) of older ones, whose names are known too
  --nanotron DIR...      src/nanotron/config of nanotron, then the same of older releases, whose names are known too
  --torchtitan-names DIR a checkout of torchtitan: "module:name" of what modules define, and
                         "models.NAME/FLAVOR" of their registries
  --launchers            the installed accelerate's, deepspeed's and torch's launchers
  --trainer              the installed transformers' TrainingArguments, as its parser has them
  --older-trainer FILE... training_args.py of older versions, whose names are known too
  --run-clm FILE         transformers' examples/pytorch/language-modeling/run_clm.py
  --bridge-fields DIR DIR  checkouts of Megatron-Bridge and Megatron-LM: fields of its configuration
  --llama-factory DIR    a checkout of LLaMA-Factory: its src/llamafactory/hparams
  --axolotl DIR          a checkout of axolotl: its src/axolotl/utils/schemas and the arguments of its plugins
  --verl DIR             a checkout of verl: the whole configurations that it generates of its own, and the
                         classes that their sections go to
  --hydra                the installed hydra-core's own flags
  --nemo-rl DIR          a checkout of NeMo-RL: the keys of the configurations that its examples start with,
                         and the classes that they are held against
  --automodel DIR        a checkout of NeMo AutoModel: the classes of distributed, peft and step_scheduler,
                         and the names of blocks that its examples have
  --sglang FILE...       server_args.py of releases of sglang, whose arguments slime takes behind --sglang-:
                         names alone
  --trl DIR              a checkout of TRL: the classes of arguments of its commands
  --ms-swift DIR         a checkout of ms-swift: the fields of its swift/arguments and swift/megatron/arguments
  --bridge-recipes DIR   Megatron-Bridge's src/megatron/bridge/recipes: names of functions, what they
                         set of a plan (bridge_recipe_values.py) and which arguments they take
"""
import argparse
import ast
import collections
import json
import pathlib
import re

import bridge_recipe_values

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "planner" / "frameworks" / "options"
# Types that a framework's parser names itself.
NAMED_TYPES = {"_positive_int": "int[1:]", "_non_negative_int": "int[0:]", "_positive_float": "float[0:]"}
SWITCHES = ("store_true", "store_false", "store_const", "BooleanOptionalAction", "StoreTrueAction",
            "StoreFalseAction", "HelpAction")


def write(name, rows):
    lines = ["\t".join(row) for row in sorted(rows)]
    (FOLDER / f"{name}.tsv").write_text("\n".join(lines) + "\n")


def megatron_rows(dump):
    for line in pathlib.Path(dump).read_text().splitlines():
        spellings, _, action, kind, count, default, choices = line.split("\t")
        arity = "0" if any(s in action for s in SWITCHES) else "1" if count == "None" else count
        words = [] if choices == "null" else [str(c).rsplit(".", 1)[-1] if "." in str(c) else str(c)
                                              for c in json.loads(choices)]
        yield spellings, arity, "" if kind == "None" else kind, default.strip("'"), ",".join(words)


def added_calls(patch):
    """The calls of add_argument() that a patch adds, as Python."""
    calls, open_brackets = [], 0
    for line in patch.splitlines():
        if not line.startswith("+") or not (open_brackets or "add_argument(" in line):
            continue
        calls.append(line[1:].strip())
        open_brackets += line.count("(") - line.count(")")
    return "\n".join(calls)


def added_switches(patch):
    """The switches that a patch adds to TransformerConfig, of which Megatron's parser makes arguments."""
    within = False
    for line in patch.splitlines():
        if line.startswith("@@"):
            within = line.endswith("class TransformerConfig(ModelParallelConfig):")
        field = re.fullmatch(r"\+    (\w+): bool = False", line)
        if within and field:
            yield "--" + field.group(1).replace("_", "-"), "0", "", "False", ""


def megatron_has(word):
    rows = (FOLDER / "megatron.tsv").read_text().splitlines()
    return any(word in row.split("\t")[0].split() for row in rows)


def argparse_rows(path):
    text = pathlib.Path(path).read_text()
    if path.endswith(".patch"):
        yield from added_switches(text)
        text = added_calls(text)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        # slime's reset_arg() gives Megatron's options other defaults, and adds what Megatron has not.
        reset = getattr(node.func, "id", "") == "reset_arg"
        if getattr(node.func, "attr", "") != "add_argument" and not reset:
            continue
        words = [a.value for a in node.args
                 if isinstance(a, ast.Constant) and str(a.value).startswith("-")]
        if not words or (reset and megatron_has(words[0])):
            continue
        given = {k.arg: k.value for k in node.keywords}
        action = ast.unparse(given["action"]) if "action" in given else ""
        arity = "0" if any(s in action for s in SWITCHES) else "1"
        if "nargs" in given and isinstance(given["nargs"], ast.Constant):
            arity = str(given["nargs"].value)
        if "BooleanOptionalAction" in action:
            words += ["--no-" + w[2:] for w in words]
        kind = ast.unparse(given["type"]) if "type" in given else ""
        default = ast.unparse(given["default"]).strip("'") if "default" in given else ""
        choices = ""
        if isinstance(given.get("choices"), (ast.List, ast.Tuple)):
            choices = ",".join(str(c.value) for c in given["choices"].elts
                               if isinstance(c, ast.Constant))
        kind = NAMED_TYPES.get(kind.split(".")[-1], kind.split(".")[-1])
        yield " ".join(words), arity, kind, default.replace("\n", " "), choices


def type_of_field(field):
    """A pydantic field's type with its range, and choices of an enumeration."""
    import enum
    import typing
    kinds = [k for k in typing.get_args(field.annotation) or (field.annotation,) if k is not type(None)]
    if len(kinds) != 1 or not isinstance(kinds[0], type):
        return "", ""
    kind = kinds[0]
    if issubclass(kind, enum.Enum):
        return "", ",".join(str(member.value) for member in kind) if issubclass(kind, str) else ""
    # Of whole numbers, above 0 is 1 and more.
    low = [getattr(m, "ge", None) if getattr(m, "gt", None) is None else m.gt + (kind is int)
           for m in field.metadata]
    high = [getattr(m, "le", getattr(m, "lt", None)) for m in field.metadata]
    low, high = ([b for b in bounds if b is not None] for bounds in (low, high))
    name = {int: "int", float: "float", bool: "bool", str: "str"}.get(kind, "")
    if name in ("int", "float") and (low or high):
        name += "[" + ":".join(str(b[0]) if b else "" for b in (low, high)) + "]"
    optional = type(None) in typing.get_args(field.annotation) or field.default is None
    return name + ("!" if name and not optional else ""), ""


def model_rows(prefix, model):
    """The fields of a pydantic model; deprecated spellings are options too."""
    for name, field in model.model_fields.items():
        spellings = {name, field.alias or name}
        kind, choices = type_of_field(field)
        for spelling in spellings:
            yield prefix + spelling, "1", kind, "", choices


# What deepspeed/runtime/config.py and its neighbours ask for by name (runtime/constants.py,
# activation_checkpointing/config.py, module_inject), with the types that they are used as; ".*": a
# block whose keys are not listed.
DEEPSPEED_KEYS = """
train_batch_size=int[1:] train_micro_batch_size_per_gpu=int[1:] gradient_accumulation_steps=int[1:]
optimizer=block optimizer.type=str optimizer.params=block optimizer.params.* optimizer.params.lr=float
optimizer.params.eps=float[0:] optimizer.params.weight_decay=float optimizer.params.betas=list
optimizer.legacy_fusion=bool scheduler=block scheduler.type=str scheduler.* gradient_clipping=float[0:]
prescale_gradients=bool gradient_predivide_factor=float sparse_gradients=bool steps_per_print=int
dump_state=bool wall_clock_breakdown=bool memory_breakdown=bool disable_allgather=bool
communication_data_type seq_parallel_communication_data_type dataloader_drop_last=bool
zero_allow_untested_optimizer=bool zero_force_ds_cpu_optimizer=bool graph_harvesting=bool
use_data_before_expert_parallelism=bool data_types=block
data_types.grad_accum_dtype:fp32,fp16,bf16,float32,float16,bfloat16,torch.float32,torch.float16,torch.bfloat16,float,half
data_types.param_dtype data_types.buffer_dtype activation_checkpointing=block
activation_checkpointing.partition_activations=bool activation_checkpointing.number_checkpoints=int
activation_checkpointing.contiguous_memory_optimization=bool
activation_checkpointing.cpu_checkpointing=bool activation_checkpointing.profile=bool
activation_checkpointing.synchronize_checkpoint_boundary=bool
zero_optimization fp16 bf16 bfloat16 bfloat16.* amp amp.* torch_autocast torch_autocast.* aio aio.*
flops_profiler flops_profiler.* tensorboard tensorboard.* wandb wandb.* csv_monitor csv_monitor.*
comet comet.* comms_logger comms_logger.* autotuning autotuning.* elasticity elasticity.*
curriculum_learning curriculum_learning.* data_efficiency data_efficiency.* compression_training
compression_training.* sparse_attention sparse_attention.* progressive_layer_drop
progressive_layer_drop.* eigenvalue eigenvalue.* quantize_training quantize_training.* nebula
nebula.* hybrid_engine hybrid_engine.* checkpoint checkpoint.* data_parallel_size=int[1:]
sequence_parallel_size=int[1:] sequence_parallel sequence_parallel.* tensor_parallel=block tensor_parallel.tp.*
expert_parallel=block
expert_parallel.enabled=bool expert_parallel.autoep_size=int[1:] expert_parallel.* pipeline pipeline.*
compile compile.* timers timers.* log_level gradient_allreduce_op managed_gradient_accumulation=bool
disable_python_gc=bool vocabulary_size=int[1:] zero_optimization.mics_shard_size=int
zero_optimization.mics_hierarchical_params_gather=bool zero_optimization.leaf_module.*
zero_optimization.zenflow.* weight_quantization.*
"""


def deepspeed_rows():
    for word in DEEPSPEED_KEYS.split():
        key, _, choices = word.partition(":") if "[" not in word else (word, "", "")
        key, _, kind = key.partition("=")
        yield key, "1", kind, "", choices
    from deepspeed.runtime.zero import config as zero
    from deepspeed.runtime.zero import offload_config as offload
    from deepspeed.runtime import precision_config as precision
    yield from model_rows("zero_optimization.", zero.DeepSpeedZeroConfig)
    yield from model_rows("zero_optimization.offload_param.", offload.DeepSpeedZeroOffloadParamConfig)
    yield from model_rows("zero_optimization.offload_optimizer.",
                          offload.DeepSpeedZeroOffloadOptimizerConfig)
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    yield from model_rows("tensor_parallel.", TPTrainingConfig)
    for name, field in TPTrainingConfig.model_fields.items():
        if not type_of_field(field)[0]:
            yield f"tensor_parallel.{name}.*", "1", "", "", ""
    yield from model_rows("bf16.", precision.DeepSpeedBF16Config)
    yield from model_rows("fp16.", precision.DeepSpeedFP16Config)


def trainer_rows():
    from transformers import HfArgumentParser, TrainingArguments
    for action in HfArgumentParser([TrainingArguments])._actions:
        if "HelpAction" in type(action).__name__:
            continue
        choices = [str(getattr(c, "value", c)) for c in action.choices or ()]
        kind = getattr(action.type, "__name__", "")
        kind = {"string_to_bool": "bool", "int": "int", "float": "float", "str": "str", "dict": "dict"}.get(kind, "")
        if any(action.dest == name for name in ("logging_steps", "eval_steps", "save_steps")):
            kind = "steps"  # a number of steps, or a share of them
        arity = "0" if any(s in type(action).__name__ for s in ("StoreTrue", "StoreFalse")) \
            else "1" if action.nargs is None else str(action.nargs)
        default = action.default if not callable(action.default) else None
        default = "" if default is None else str(getattr(default, "value", default)).split("\n")[0]
        yield " ".join(action.option_strings), arity, "" if choices else kind, default, ",".join(choices)


def older_trainer_rows(paths):
    """Names that older versions of TrainingArguments have: known, and no more than that."""
    for path in paths:
        for node in ast.parse(pathlib.Path(path).read_text()).body:
            if not (isinstance(node, ast.ClassDef) and node.name == "TrainingArguments"):
                continue
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and not field.target.id.startswith("_"):
                    name = field.target.id
                    words = {"--" + name, "--" + name.replace("_", "-"), "--no_" + name}
                    # training_args.py of 4.57.1: warmup_ratio must lie in range [0,1].
                    ratio = name == "warmup_ratio"
                    yield " ".join(sorted(words)), "1" if ratio else "*", "float[0:1]" if ratio else "", "", ""


# What run_clm.py of transformers 4 had, and 5 calls otherwise.
OLDER_RUN_CLM = ("torch_dtype", "low_cpu_mem_usage", "use_auth_token")


def run_clm_rows(path):
    """The fields of its dataclasses, spelled as the parser spells them."""
    for name in OLDER_RUN_CLM:
        yield "--" + name, "*", "", "", ""
    for node in ast.parse(pathlib.Path(path).read_text()).body:
        if not (isinstance(node, ast.ClassDef) and node.name.endswith("Arguments")):
            continue
        for field in node.body:
            if not isinstance(field, ast.AnnAssign):
                continue
            kind = ast.unparse(field.annotation).replace("Optional[", "").replace(" | None", "").strip("]")
            given = {k.arg: k.value for k in getattr(field.value, "keywords", ())}
            metadata = ast.unparse(given["metadata"]) if "metadata" in given else ""
            choices = ""
            if "'choices': [" in metadata:
                choices = ",".join(ast.literal_eval(
                    "[" + metadata.split("'choices': [", 1)[1].split("]")[0] + "]"))
            default = ast.unparse(given["default"]).strip("'") if "default" in given else ""
            words = {"--" + field.target.id, "--" + field.target.id.replace("_", "-")}
            if kind == "bool" and default == "True":
                words |= {"--no_" + field.target.id, "--no-" + field.target.id.replace("_", "-")}
            yield (" ".join(sorted(words)), "?" if kind == "bool" else "1", "" if choices else kind,
                   default, choices)


def torchtitan_name_rows(folder):
    """What a configuration can import; of packages also what their __init__.py takes from others."""
    root = pathlib.Path(folder)
    for path in sorted((root / "torchtitan").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        inner = "models" in parts and parts[-1] not in ("__init__", "config_utils", "config_registry")
        foreign = {"experiments", "tests", "overrides", "observability", "flex_shard", "minimal_async_ep"}
        if foreign & set(parts) or inner:
            continue
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(t.id for t in targets if isinstance(t, ast.Name))
                if ast.unparse(targets[0]).endswith("_configs") and isinstance(node.value, ast.Dict) \
                        and parts[-1] == "__init__" and "models" in parts:
                    for key in node.value.keys:
                        yield f"{module}/{key.value}", "0", "", "", ""
            elif isinstance(node, (ast.Import, ast.ImportFrom)) and parts[-1] == "__init__":
                names.update(alias.asname or alias.name for alias in node.names)
            if isinstance(node, ast.ClassDef) and node.name == "Trainer":
                for inner in node.body:
                    if isinstance(inner, ast.ClassDef) and inner.name == "Config":
                        for field in inner.body:
                            if isinstance(field, ast.AnnAssign):
                                yield f"Trainer.Config.{field.target.id}", "0", "", "", ""
        # Modules of a package are names of it, too.
        if parts[-1] == "__init__":
            names.update(p.stem for p in path.parent.iterdir())
        for name in names:
            if name.isidentifier() and not name.startswith("_") and len(name) > 1:
                yield f"{module}:{name}", "0", "", "", ""


def torchtitan_part_rows(folder):
    """Fields of the dataclasses that stand in classes ("CheckpointManager.Config.interval"), with those that they
    inherit. Of classes of one name that differ, and of those with a base that is not found, none."""
    configs, tops = collections.defaultdict(list), {}
    for path in sorted((pathlib.Path(folder) / "torchtitan").rglob("*.py")):
        if {"experiments", "tests"} & set(path.parts):
            continue
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            tops[node.name] = node
            for inner in node.body:
                if isinstance(inner, ast.ClassDef) and inner.name == "Config":
                    configs[node.name].append(inner)

    def fields(name, above=()):
        """Null: not all are known."""
        if name == "Configurable":
            return {}
        if name in above or len(configs[name]) != 1:
            return None
        (node,) = configs[name]
        found = {}
        for base in node.bases:
            owner = ast.unparse(base).removesuffix(".Config")
            inherited = fields(owner, (*above, name)) if ast.unparse(base).endswith(".Config") else None
            if inherited is None:
                return None
            found.update(inherited)
        for item in node.body:
            if isinstance(item, ast.AnnAssign):
                found[item.target.id] = annotated_type(item.annotation, {})
        return found

    for name in sorted(configs):
        for field, (kind, choices) in (fields(name) or {}).items():
            if name != "Trainer" and not field.startswith("_"):
                yield f"{name}.Config.{field}", "1", kind, "", choices


def bridge_recipe_rows(folder):
    names = set()
    for path in pathlib.Path(folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith((".", "megatron")) or \
                    isinstance(node, ast.ImportFrom) and node.level > 0:
                names.update(alias.asname or alias.name for alias in node.names)
    # Those that set the same stand in one row: as its default what they set, as choices what they take.
    values = bridge_recipe_values.recipe_values(folder)
    rows = collections.defaultdict(set)
    for name in names:
        if name.endswith("_config") and not name.startswith("_") and \
                any(part in name for part in ("_pretrain_", "_sft_", "_peft_")):
            said, parameters = values.get(name, ("", []))
            rows[said, ",".join(parameters)].add(name)
    for (said, parameters), same in rows.items():
        yield " ".join(sorted(same)), "0", "", said, parameters


def bridge_field_rows(bridge, megatron):
    """"section.field" of a ConfigContainer: the fields of the section's class and of its bases; for
    model and dataset of every class that may stand there. A type or words where all have the same; of
    mixed_precision the names that are registered."""
    # Name: fields with their types, bases.
    classes = collections.defaultdict(lambda: [collections.defaultdict(set), set()])
    files = [*(pathlib.Path(bridge) / "src").rglob("*.py"),
             *(pathlib.Path(megatron) / "megatron").rglob("*.py")]
    of_models, of_data = set(), set()
    for path in files:
        if "tests" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        renamed = {a.asname: a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)
                   for a in n.names if a.asname}
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            fields, bases = classes[node.name]
            for f in node.body:
                if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name):
                    fields[f.target.id].add(annotated_type(f.annotation, {}))
                elif isinstance(f, ast.FunctionDef) and any("property" in ast.unparse(d) for d in f.decorator_list):
                    fields[f.name].add(("", ""))
            bases.update(renamed.get(b, b) for b in (ast.unparse(b).split(".")[-1] for b in node.bases))
            if "models" in path.parts or "transformer" in path.parts or "config" in path.name:
                of_models.add(node.name)
            if "data" in path.parts or "datasets" in path.parts or "Dataset" in node.name:
                of_data.add(node.name)

    def fields_of(name, seen=frozenset()):
        if name in seen or name not in classes:
            return {}
        fields, bases = classes[name]
        return all_of([fields, *(fields_of(b, seen | {name}) for b in bases)])

    def all_of(several):
        together = collections.defaultdict(set)
        for fields in several:
            for name, types in fields.items():
                together[name] |= types
        return together

    presets = ast.parse((pathlib.Path(bridge) / "src/megatron/bridge/training/mixed_precision.py").read_text())
    registered = [node.name for node in presets.body if isinstance(node, ast.FunctionDef)
                  and any(ast.unparse(d) == "register" for d in node.decorator_list)]

    container = pathlib.Path(bridge) / "src/megatron/bridge/training/config.py"
    for node in ast.parse(container.read_text()).body:
        if not (isinstance(node, ast.ClassDef) and node.name == "ConfigContainer"):
            continue
        for field in node.body:
            if not isinstance(field, ast.AnnAssign):
                continue
            section = field.target.id
            yield section, "1", "", "", ",".join(registered) if section == "mixed_precision" else ""
            kinds = {n.id for n in ast.walk(field.annotation) if isinstance(n, ast.Name)}
            kinds |= {"model": of_models, "dataset": of_data}.get(section, set())
            for name, types in all_of(fields_of(k) for k in kinds).items():
                kind, choices = types.pop() if len(types) == 1 else ("", "")
                if not name.startswith("_"):
                    yield f"{section}.{name}", "1", kind if kind in ("int", "float", "bool") else "", "", choices


# What accelerate/commands/launch.py and utils/dataclasses.py take of a key that they read.
ACCELERATE_TYPES = {
    "compute_environment": ("", "LOCAL_MACHINE,AMAZON_SAGEMAKER"),
    "mixed_precision": ("", "no,fp16,bf16,fp8"),
    "num_processes": ("int[1:]", ""), "num_machines": ("int[1:]", ""), "use_cpu": ("bool", ""),
    "main_process_port": ("int", ""),
    "fsdp_config.fsdp_version": ("int[1:2]", ""),
    # utils/constants.py (DEEPSPEED_MULTINODE_LAUNCHERS); str_to_bool reads the other.
    "deepspeed_config.deepspeed_multinode_launcher": ("", "pdsh,standard,openmpi,mvapich,mpich,nossh,slurm"),
    "fsdp_config.fsdp_forward_prefetch": ("bool", ""),
    "fsdp_config.fsdp_auto_wrap_policy": ("any case", "TRANSFORMER_BASED_WRAP,SIZE_BASED_WRAP,NO_WRAP"),
    "fsdp_config.fsdp_state_dict_type": ("any case", "FULL_STATE_DICT,LOCAL_STATE_DICT,SHARDED_STATE_DICT"),
    "fsdp_config.fsdp_backward_prefetch": ("any case", "BACKWARD_PRE,BACKWARD_POST,NO_PREFETCH"),
    "parallelism_config.parallelism_config_cp_comm_strategy": ("", "allgather,alltoall"),
    "parallelism_config.parallelism_config_cp_backend": ("", "torch"),
    "parallelism_config.parallelism_config_sp_backend": ("", "deepspeed"),
}


def accelerate_rows():
    def typed(key):
        kind, choices = ACCELERATE_TYPES.get(key, ("", ""))
        if key == "distributed_type":
            from accelerate.utils import DistributedType
            choices = ",".join(str(kind.value) for kind in DistributedType)
        if key.endswith("_size"):
            kind = "int[1:]"
        if key.startswith("fsdp_config.") and any(word in key for word in (
                "offload_params", "activation_checkpointing", "cpu_ram", "sync_module", "use_orig")):
            kind = "bool"
        return kind, "", choices

    # Keys of older files, which config_args.process_config makes others of, and one that
    # utils/launch.py reads and the launcher has no argument for.
    for key in ("megatron_lm_config.*", "dynamo_config.*", "fp8_config.*", "mpirun_config.*",
                "dynamo_backend", "fp16", "fsdp_config.fsdp_ignored_modules"):
        yield key, "1", "bool" if key == "fp16" else "", "", ""
    import dataclasses
    import inspect
    from accelerate.commands.config import config_args
    from accelerate.commands import launch
    for kind in (config_args.ClusterConfig,):
        for field in dataclasses.fields(kind):
            yield (field.name, "1", *typed(field.name))
    parser = launch.launch_command_parser()
    groups = {group.title: group._group_actions for group in parser._action_groups}
    for action in groups["DeepSpeed Arguments"]:
        yield "deepspeed_config." + action.dest, "1", "", "", ""
    for action in parser._actions:
        for word in action.option_strings:
            name = word.lstrip("-").replace("-", "_")
            if name.startswith("fsdp_"):
                yield ("fsdp_config." + name, "1", *typed("fsdp_config." + name))
            if name.startswith("parallelism_config_"):
                yield ("parallelism_config." + name, "1", *typed("parallelism_config." + name))


def launcher_rows(parser):
    """The options of a launcher's own parser."""
    for action in parser._actions:
        if action.option_strings:
            arity = "0" if action.nargs == 0 else "1" if action.nargs is None else str(action.nargs)
            yield " ".join(sorted(action.option_strings)), arity, "", "", ""


def launchers():
    from accelerate.commands import launch
    from deepspeed.launcher import runner
    from torch.distributed import run
    import argparse as python
    yield "accelerate_launch", launcher_rows(launch.launch_command_parser())
    yield "torchrun", launcher_rows(run.get_args_parser())
    made = []
    parse = python.ArgumentParser.parse_args
    python.ArgumentParser.parse_args = lambda self, *_, **__: made.append(self) or parse(self, ["x.py"])
    runner.parse_args(["x.py"])
    python.ArgumentParser.parse_args = parse
    yield "deepspeed_launch", launcher_rows(made[0])


def torchtitan_rows(path):
    sections = {"TrainingConfig": "training", "ParallelismConfig": "parallelism",
                "CompileConfig": "compile"}
    for node in ast.parse(pathlib.Path(path).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name in sections:
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    kind = ast.unparse(field.annotation)
                    words = ast.literal_eval(kind[7:]) if kind.startswith("Literal") else ()
                    words = [words] if isinstance(words, str) else words
                    kind = {"float | int": "float", "int | None": "int", "str | None": "str",
                            "list[list[str]] | None": "list", "list[str]": "list"}.get(kind, kind)
                    default = ast.unparse(field.value).strip("'") if field.value else ""
                    yield (f"{sections[node.name]}.{field.target.id}", "1",
                           "" if words else kind, default, ",".join(words))


# What is nothing, or divides by nothing, below this.
LEAST = {"training.local_batch_size": 1, "training.seq_len": 1, "training.steps": 1, "training.batch_size": 1,
         "parallelism.pipeline_parallel_microbatch_size": 1, "checkpoint.interval": 1, "metrics.log_freq": 1,
         "parallelism.pipeline_parallel_layers_per_stage": 1,
         "tokens.micro_batch_size": 1, "tokens.batch_accumulation_per_replica": 1, "tokens.sequence_length": 1,
         "tokens.train_steps": 1, "model.model_config.num_hidden_layers": 1, "model.model_config.hidden_size": 1,
         "model.model_config.num_attention_heads": 1, "model.model_config.vocab_size": -1,
         "checkpoints.checkpoint_interval": 1}


def at_least(key, kind):
    if key not in LEAST or not kind.startswith("int"):
        return kind
    return f"int[{LEAST[key]}:]" + kind[len("int"):]


def torchtitan_toml_rows(path, name="JobConfig", prefix=""):
    """Keys of a TOML job file: the fields of JobConfig's sections."""
    classes = {n.name: n for n in ast.parse(pathlib.Path(path).read_text()).body if isinstance(n, ast.ClassDef)}
    for field in classes[name].body:
        if not isinstance(field, ast.AnnAssign):
            continue
        kind = ast.unparse(field.annotation)
        if kind in classes:
            yield from torchtitan_toml_rows(path, kind, f"{prefix}{field.target.id}.")
            continue
        words = annotated_type(field.annotation, {})[1]
        kind = {"float | int": "float", "list[list[str]]": "list", "list[str]": "list"}.get(
            kind.removesuffix(" | None"), kind.removesuffix(" | None"))
        default = field.value.value if isinstance(field.value, ast.Constant) else None
        text = "" if default is None else str(default)
        key = f"{prefix}{field.target.id}"
        yield key, "1", "" if words or " | " in kind else at_least(key, kind), text, words


def torchtitan_toml_names(paths):
    """The same of older releases, of which the first ones had arguments: "--training.batch_size"."""
    for path in paths:
        if "class JobConfig:" in (text := pathlib.Path(path).read_text()) and "@dataclass" in text:
            yield from torchtitan_toml_rows(path)
            continue
        for names, arity, kind, _, choices in argparse_rows(path):
            name = names.split()[0].removeprefix("--")
            yield name, "1", "bool" if arity == "0" else at_least(name, kind) if arity == "1" else "", "", choices


# Words that classes ask for when they are made (config.py, __post_init__), and those that texts become.
NANOTRON_WORDS = {
    "logging.log_level": "debug,info,warning,error,critical,passive",
    "logging.log_level_replica": "debug,info,warning,error,critical,passive",
    "optimizer.learning_rate_scheduler.lr_warmup_style": "linear,constant",
    "optimizer.learning_rate_scheduler.lr_decay_style": "linear,cosine,1-sqrt",
    "optimizer.optimizer_factory.name": "adamW,sgd",
    "parallelism.pp_engine": "afab,1f1b",
    "parallelism.tp_mode": "ALL_REDUCE,REDUCE_SCATTER",
    "model.init_method.scaling_method": "NONE,NUM_LAYERS,LAYER_INDEX,MODEL_SCALE",
    "model.dtype": "bfloat16,float16,float32,float64,complex64,complex128,uint8,int8,int16,int32,int64,bool",
    "model.model_config._attn_implementation":
        "flash_attention_2,flex_attention,sdpa,ring_flash_triton,ring,llama3_ring_attention",
    "model.model_config.flex_attention_mask": "sliding_window,document,sliding_window_document",
    "model.model_config.moe_config.token_dispatcher_type": "alltoall,allgather",
}


def nanotron_merged(rows):
    """One row a name: whole numbers of one class may be null in another."""
    found = {}
    for row in rows:
        old = found.get(row[0])
        if old and {old[2], row[2]} == {"int", "int!"}:
            row = (*row[:2], "int", *row[3:4], row[4])
            found[row[0]] = row
            continue
        found[row[0]] = next(iter(merged([old, row]))) if old else row
    return found.values()


def nanotron_rows(folder, name="Config", prefix="", classes=None):
    """Keys of its YAML: the fields of Config and of what it is made of; of unions all fields."""
    classes = classes or classes_of(pathlib.Path(folder).glob("*.py"))[0]
    for base in classes[name].bases if name in classes else []:
        yield from nanotron_rows(folder, ast.unparse(base), prefix, classes)
    for field in classes[name].body if name in classes else []:
        if not isinstance(field, ast.AnnAssign):
            continue
        kind = ast.unparse(field.annotation)
        if kind == "NanotronConfigs":
            kind = "Union[LlamaConfig, Starcoder2Config, Qwen2Config]"
        key = f"{prefix}{field.target.id}"
        made_of = [word for word in re.findall(r"[A-Za-z0-9_]+", kind) if word in classes]
        for inner in made_of:
            if inner != name:
                yield from nanotron_rows(folder, inner, key + ".", classes)
        null = kind.startswith("Optional[")
        bare = kind[9:-1] if null else kind
        known = {"int": "int", "float": "float", "bool": "bool", "str": "str"}.get(bare, "")
        default = field.value.value if isinstance(field.value, ast.Constant) else None
        if known and not null and default is not None or known and field.value is None and not null:
            known += "!"
        words = NANOTRON_WORDS.get(key, "")
        enumerated = key in ("parallelism.tp_mode", "model.init_method.scaling_method")
        yield (key, "1", "any case" if enumerated else "" if words else at_least(key, known),
               "" if default is None else str(default), words)
        if "dict" in kind.lower():
            yield key + ".*", "1", "", "", ""


def annotated_type(annotation, enums):
    """A field's type and choices, of its annotation as Python: of one type alone, beside None."""
    parts, todo = [], [annotation]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.BinOp):
            todo += [node.left, node.right]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("Optional", "Union", "Annotated", "NotRequired"):
            # Of Annotated the type comes first, and remarks behind it.
            several = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            todo += several[:1] if ast.unparse(node.value) == "Annotated" else several
        elif not (isinstance(node, ast.Constant) and node.value is None):
            parts.append(node)
    kinds = [ast.unparse(part) for part in parts]
    words = []
    for part, kind in zip(parts, kinds):
        if kind.startswith("Literal["):
            words += part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]
    choices = [str(ast.literal_eval(word)) for word in words]
    if len(parts) == 1 and kinds[0] in enums:
        choices = enums[kinds[0]]
    if set(kinds) - {"bool"} and all(kind == "bool" or kind.startswith("Literal[") for kind in kinds) and choices:
        return "", ",".join(choices + (["true", "false"] if "bool" in kinds else []))
    if choices:
        return "", ",".join(choices) if len(parts) == 1 else ""
    named = {"PositiveInt": "int[1:]", "NonNegativeInt": "int[0:]", "PositiveFloat": "float[0:]",
             "NonNegativeFloat": "float[0:]"}
    kind = named.get(kinds[0], kinds[0]) if len(kinds) == 1 else "float" if set(kinds) == {"int", "float"} else ""
    return (kind if kind in ("int", "int[1:]", "int[0:]", "float", "float[0:]", "bool", "str") else ""), ""


def classes_of(paths):
    """Classes of Python files by name, and the words of those that are enumerations of texts."""
    classes = {node.name: node for path in sorted(paths) for node in ast.parse(path.read_text()).body
               if isinstance(node, ast.ClassDef)}
    enums = {name: [n.value.value for n in node.body
                    if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)]
             for name, node in classes.items() if {"str", "StrEnum"} & {ast.unparse(b) for b in node.bases}}
    return classes, {name: words for name, words in enums.items() if words}


def field_rows(classes, name, enums, prefix=""):
    """The fields of a class and of those that it is made of; of fsdp_config, what stands in it."""
    node = classes.get(name)
    for base in reversed(node.bases) if node else []:
        yield from field_rows(classes, ast.unparse(base), enums, prefix)
    for item in node.body if node else []:
        if not isinstance(item, ast.AnnAssign) or item.target.id.startswith("_"):
            continue
        given = {k.arg: k.value for k in getattr(item.value, "keywords", [])}
        if ast.unparse(given.get("init", ast.Constant(True))) == "False":
            continue  # set by the program alone
        kind, choices = annotated_type(item.annotation, enums)
        default = given.get("default", None if isinstance(item.value, ast.Call) else item.value)
        text = str(default.value) if isinstance(default, ast.Constant) else ""
        text = "" if text == "None" or "\n" in text else text
        spellings = {item.target.id}
        alias = given.get("validation_alias", given.get("alias"))
        if alias is not None:
            spellings |= {n.value for n in ast.walk(alias) if isinstance(n, ast.Constant)}
        blocks = [n.id for n in ast.walk(item.annotation) if isinstance(n, ast.Name) and n.id == "FSDPConfig"]
        for spelling in spellings:
            yield prefix + spelling, "1", kind, text, choices
            for block in blocks:
                yield from field_rows(classes, block, enums, f"{prefix}{spelling}.")


# Of transformers' Seq2SeqTrainingArguments, beside TrainingArguments.
SEQ2SEQ = (("predict_with_generate", "bool"), ("generation_max_length", "int"),
           ("generation_num_beams", "int"), ("sortish_sampler", "bool"), ("generation_config", ""))


def llama_factory_rows(folder):
    source = pathlib.Path(folder) / "src" / "llamafactory"
    classes, enums = classes_of([*(source / "hparams").glob("*.py"), source / "extras" / "constants.py"])
    roots = ["ModelArguments", "DataArguments", "TrainingArguments", "FinetuningArguments",
             "GeneratingArguments", "EvaluationArguments", "MegatronBridgeArguments"]
    for root in roots:
        yield from field_rows(classes, root, enums)
    # Of the fork of transformers for KTransformers, too.
    for name, kind in (*SEQ2SEQ, ("kt_config", "")):
        yield name, "1", kind, "", ""


def axolotl_rows(folder):
    source = pathlib.Path(folder) / "src" / "axolotl"
    schemas = [p for p in (source / "utils" / "schemas").glob("*.py")]
    classes, enums = classes_of(schemas)
    yield from field_rows(classes, "AxolotlInputConfig", enums)
    for path in sorted((source / "integrations").glob("*/args.py")):
        of_plugin, _ = classes_of([path])
        for name in of_plugin:
            if not name.endswith("Args") and name != "SwanLabConfig":
                continue  # what stands in a field
            yield from field_rows(of_plugin, name, enums)


def yaml_leaves(path):
    """Keys and values of a whole configuration; "{}" and "[]" are values, too."""
    import yaml

    def walk(value, key):
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                yield from walk(inner, f"{key}.{name}" if key else str(name))
        else:
            yield key, value

    return list(walk(yaml.safe_load(pathlib.Path(path).read_text()), ""))


def yaml_rows(path, types):
    """Keys with the defaults that a whole configuration gives them, and the types and choices that
    `types` has for them. Of others the default tells whether a number, a truth or a text is meant:
    that it is whole tells nothing."""
    for key, value in yaml_leaves(path):
        kind = {bool: "bool", int: "float", float: "float", str: "str"}.get(type(value), "")
        if isinstance(value, str) and value.startswith("${"):
            kind = ""  # what another key says
        text = "" if value is None else json.dumps(value) if isinstance(value, (dict, list)) else str(value)
        kind, choices = types.get(key, (kind, ""))
        yield key, "1", kind, text, choices


def sglang_rows(paths):
    """Names of the arguments of any of these releases: calls of add_argument, aliases, and fields of ServerArgs."""
    names = set()
    for path in paths:
        for node in ast.walk(ast.parse(pathlib.Path(path).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.update(re.findall(r"^--([a-z0-9][a-z0-9-]+)$", node.value))
            if isinstance(node, ast.ClassDef) and node.name == "ServerArgs":
                names.update(item.target.id.replace("_", "-") for item in node.body
                             if isinstance(item, ast.AnnAssign))
    return {("--sglang-" + name, "*", "", "", "") for name in names}


# What keys of verl are used as where no class says it: lengths of lists, of ranges and of batches
# (trainer/main_ppo.py:init_resource_pool_mgr, trainer/ppo/ray_trainer.py, utils/dataset/rl_dataset.py).
VERL_TYPES = """
trainer.nnodes=int[1:] trainer.n_gpus_per_node=int[1:] trainer.total_epochs=int trainer.save_freq=int
trainer.test_freq=int data.train_batch_size=int[0:] data.max_prompt_length=int[1:] data.max_response_length=int[1:]
critic.rollout_n=int[1:] actor_rollout_ref.rollout.n=int[1:]
"""
# Words that raise an error elsewhere than in a class: main_ppo.py (NotImplementedError), the registry of
# workers/rollout/base.py, workers/config/actor.py (valid_loss_agg_modes).
KL_WORDS = ",".join(word + end for word in "kl,k1,abs,mse,k2,low_var_kl,k3".split(",") for end in ("", "+"))
VERL_CHOICES = {
    "actor_rollout_ref.actor.strategy": "fsdp,fsdp2,megatron",
    "critic.strategy": "fsdp,fsdp2,megatron",
    "reward_model.strategy": "fsdp,fsdp2,megatron",
    "actor_rollout_ref.rollout.name": "vllm,sglang,trtllm",
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean,seq-mean-token-sum,seq-mean-token-mean,seq-mean-token-sum-norm",
    "trainer.use_legacy_worker_impl": "auto,enable,disable",
    # trainer/ppo/core_algos.py: the registry of estimators, kl_penalty and kl_penalty_forward ("+": straight through).
    "algorithm.adv_estimator": "gae,grpo,reinforce_plus_plus,reinforce_plus_plus_baseline,remax,rloo,opo,grpo_passk,gpg,"
                               "rloo_vectorized,grpo_vectorized,optimal_token_baseline,tir_optimal_token_baseline",
    "actor_rollout_ref.actor.kl_loss_type": KL_WORDS,
    "algorithm.kl_penalty": KL_WORDS,
}
# vLLM's gpu_memory_utilization lies there (vllm/config/cache.py); SGLang's share of memory, too.
SHARES = ("gpu_memory_utilization", "mem_fraction_static", "top_p")
# Counts and sizes that a batch is cut by, or made of (verl/workers/fsdp_workers.py, utils/seqlen_balancing.py;
# NeMo-RL's distributed/batched_data_dict.py, distributed/virtual_cluster.py; vLLM's SchedulerConfig).
COUNTS = set("""
ppo_mini_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu forward_micro_batch_size
forward_micro_batch_size_per_gpu log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu
ppo_max_token_len_per_gpu forward_max_token_len_per_gpu log_prob_max_token_len_per_gpu ppo_epochs max_num_seqs
max_num_batched_tokens rollout_n num_prompts_per_step num_generations_per_prompt train_global_batch_size
train_micro_batch_size logprob_batch_size max_total_sequence_length train_mb_tokens logprob_mb_tokens max_new_tokens
cluster.num_nodes cluster.gpus_per_node
""".split())


def with_range(key, kind, choices):
    """Degrees of parallelism and counts are 1 or more; shares of memory between 0 and 1."""
    name = key.rsplit(".", 1)[-1]
    if name in SHARES and kind == "float":
        kind = "float[0:1]"
    if kind == "int" and (name.endswith("parallel_size") or name in COUNTS or key in COUNTS):
        kind = "int[1:]"
    return kind, choices


def verl_types(folder, leaves):
    """Of sections with a _target_: the types of the fields of its class."""
    source = pathlib.Path(folder) / "verl"
    classes, enums = classes_of([*(source / "workers" / "config").glob("*.py"),
                                 *(source / "trainer" / "config").glob("*.py"),
                                 *(source / "utils" / "profiler").glob("*.py"), source / "base_config.py"])
    types = {}
    for key, target in leaves:
        if key.endswith("._target_"):
            prefix = key.removesuffix("_target_")
            for name, _, kind, _, choices in field_rows(classes, str(target).rsplit(".", 1)[-1], enums, prefix):
                types[name] = with_range(name, kind, choices)
    for words in VERL_TYPES.split():
        key, kind = words.split("=")
        types[key] = kind, ""
    types.update((key, ("", choices)) for key, choices in VERL_CHOICES.items())
    return types


# Words that raise an error elsewhere than in a class: models/policy/workers/dtensor_policy_worker.py and
# models/automodel/setup.py (Unknown precision).
NEMO_RL_CHOICES = {"policy.precision": "float32,bfloat16,float16",
                   # algorithms/grpo.py:1275, by which engine answers are made
                   "policy.generation.backend": "vllm,sglang,trtllm,megatron,dynamo"}
# Megatron-LM's core/optimizer_param_scheduler.py and core/transformer/moe/moe_layer.py raise an error at others.
for whose in ("policy", "teacher", "value"):
    NEMO_RL_CHOICES[f"{whose}.megatron_cfg.scheduler.lr_decay_style"] = "constant,linear,cosine,inverse-square-root,WSD"
    NEMO_RL_CHOICES[f"{whose}.megatron_cfg.scheduler.weight_decay_incr_style"] = "constant,linear,cosine"
    NEMO_RL_CHOICES[f"{whose}.megatron_cfg.moe_token_dispatcher_type"] = "alltoall,allgather,flex"
    NEMO_RL_CHOICES[f"{whose}.megatron_cfg.optimizer.optimizer"] = "adam,sgd,lion,muon,dist_muon"


def nemo_rl_types(folder):
    """What the class of a whole configuration, MasterConfig, and those that it is made of say of a key;
    of several that speak of one key (a section that is on or off, several algorithms) what agrees."""
    source = pathlib.Path(folder) / "nemo_rl"
    classes, enums = classes_of(sorted(source.rglob("*.py")))
    heirs = collections.defaultdict(list)
    for name, node in classes.items():
        for base in node.bases:
            heirs[ast.unparse(base)].append(name)
    found = collections.defaultdict(set)

    def walk(node, prefix, above):
        for base in node.bases:
            if ast.unparse(base) in classes and ast.unparse(base) not in above:
                walk(classes[ast.unparse(base)], prefix, above)
        for item in node.body:
            if not isinstance(item, ast.AnnAssign):
                continue
            key = prefix + item.target.id
            named = [n.id for n in ast.walk(item.annotation) if isinstance(n, ast.Name) and n.id in classes]
            inner = {heir for name in named for heir in (name, *heirs[name])} - above
            for name in inner:
                if name not in enums:
                    walk(classes[name], key + ".", above | {name})
            if not set(named) - set(enums):
                kind, choices = annotated_type(item.annotation, enums)
                if choices and set(choices.split(",")) <= {"True", "False"}:
                    kind, choices = "bool", ""
                found[key].add(with_range(key, kind, choices))

    for path in sorted((source / "algorithms").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name == "MasterConfig":
                walk(node, "", frozenset())
    types = {key: said.pop() if len(said) == 1 else ("", "") for key, said in found.items()}
    types.update((key, ("", choices)) for key, choices in NEMO_RL_CHOICES.items())
    return types


def spelled_as_arguments(rows, annotations):
    """Fields as transformers' parser makes arguments of them."""
    for name, _, kind, default, choices in rows:
        words = {"--" + name, "--" + name.replace("_", "-")}
        if kind == "bool" and default == "True":
            words |= {"--no_" + name, "--no-" + name.replace("_", "-")}
        several = any(a.startswith(("List[", "Optional[List[", "list[")) for a in annotations.get(name, ()))
        arity = "*" if several else "?" if kind == "bool" else "1"
        yield " ".join(sorted(words)), arity, kind, default, choices


def ms_swift_rows(folder, root):
    """All fields of one class of arguments. Those of a Trainer are transformers' own."""
    source = pathlib.Path(folder) / "swift"
    classes, enums = classes_of([*(source / "megatron" / "arguments").glob("*.py"),
                                 *(source / "arguments").rglob("*.py"), source / "ray_utils" / "arguments.py",
                                 source / "rlhf_trainers" / "args_mixin.py", source / "trainers" / "arguments.py"])
    annotations = collections.defaultdict(set)
    for node in classes.values():
        for item in node.body:
            if isinstance(item, ast.AnnAssign):
                annotations[item.target.id].add(ast.unparse(item.annotation))
    # A class's own fields come last, and are what its parser has.
    rows = list({row[0]: row for row in field_rows(classes, root, enums)}.values())
    if root == "RLHFArguments":
        rows += [(name, "1", kind, "", "") for name, kind in SEQ2SEQ]
    return spelled_as_arguments(rows, annotations)


def trl_rows(folder):
    source = pathlib.Path(folder) / "trl"
    # vllm_serve.py has ScriptArguments of its own, of another command.
    scripts = [path for path in (source / "scripts").glob("*.py") if path.name != "vllm_serve.py"]
    classes, enums = classes_of([*(source / "trainer").glob("*_config.py"), *scripts])
    annotations = collections.defaultdict(set)
    for node in classes.values():
        for item in node.body:
            if isinstance(item, ast.AnnAssign):
                annotations[item.target.id].add(ast.unparse(item.annotation))
    rows = [row for name in sorted(classes) if name.endswith(("Config", "Arguments"))
            for row in field_rows(classes, name, enums)]
    # Of the commands themselves (trl/cli/commands/training.py).
    rows += [(name, "1", "", "", "") for name in ("config", "accelerate_config", "datasets")]
    return spelled_as_arguments(merged(rows), annotations)


def automodel_rows(folder):
    """Of blocks whose keys are the fields of a class. Of "distributed" the strategy is one of three, and
    sizes and what runs beside it stand there too (recipes/_dist_utils.py)."""
    source = pathlib.Path(folder) / "nemo_automodel" / "components"
    classes, enums = classes_of([source / "distributed" / "config.py", source / "distributed" / "pipelining" / "config.py",
                                 source / "_peft" / "lora.py", source / "training" / "step_scheduler.py"])
    blocks = {"distributed.": ("FSDP2Config", "MegatronFSDPConfig", "DDPConfig"), "peft.": ("PeftConfig",),
              "distributed.pipeline.": ("PipelineConfig",), "distributed.moe.": ("MoEParallelizerConfig",),
              "step_scheduler.": ("StepSchedulerConfig",)}
    for prefix, names in blocks.items():
        for name in names:
            for key, arity, kind, default, choices in field_rows(classes, name, enums, prefix):
                yield key, arity, kind, "", choices  # a default is one strategy's
    for size in ("tp", "pp", "cp", "ep", "dp", "dp_replicate"):
        yield f"distributed.{size}_size", "1", "int[1:]", "", ""
    yield "distributed.strategy", "1", "any case", "", "fsdp2,megatron_fsdp,megatron-fsdp,mfsdp,ddp"
    for key in ("distributed.pipeline", "distributed.moe", "step_scheduler.dataloader"):
        yield key, "1", "", "", ""
    for key in ("step_scheduler.local_batch_size", "step_scheduler.dp_size"):
        yield key, "1", "int[1:]", "", ""
    # Blocks of its recipes by name alone: what stands in them goes to classes of all kinds.
    import yaml
    values = collections.defaultdict(list)
    for path in sorted((pathlib.Path(folder) / "examples").rglob("*.yaml")):
        for name in yaml.safe_load(path.read_text()) or ():
            if not name.startswith("_"):
                yield name, "1", "", "", ""
        for key, value in yaml_leaves(path):
            values[key].append(value)
    # Keys of those blocks, where three recipes have them: what their values are, if all agree.
    for key, said in values.items():
        block, _, name = key.rpartition(".")
        known = block.split(".")[0] in ("distributed", "peft", "step_scheduler", "ci", "")
        if known or len(said) < 3 or not key.replace(".", "").replace("_", "").isalnum() or name.startswith("_"):
            continue
        kinds = {type(value) for value in said}
        yield key, "1", "bool" if kinds == {bool} else "float" if kinds <= {int, float} else "", "", ""


def merged(rows):
    """One row a name: a type or choices where all that have it agree."""
    found = {}
    for row in rows:
        old = found.get(row[0])
        found[row[0]] = row if old is None or old == row else (
            row[0], "1", *(a if a == b else "" for a, b in zip(old[2:], row[2:])))
    return found.values()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron")
    parser.add_argument("--argparse", action="append", default=[])
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--accelerate", action="store_true")
    parser.add_argument("--torchtitan")
    parser.add_argument("--torchtitan-toml", nargs="*", default=[])
    parser.add_argument("--nanotron", nargs="*", default=[])
    parser.add_argument("--torchtitan-names")
    parser.add_argument("--launchers", action="store_true")
    parser.add_argument("--trainer", action="store_true")
    parser.add_argument("--older-trainer", nargs="*", default=[])
    parser.add_argument("--run-clm")
    parser.add_argument("--bridge-recipes")
    parser.add_argument("--bridge-fields", nargs=2)
    parser.add_argument("--llama-factory")
    parser.add_argument("--axolotl")
    parser.add_argument("--verl")
    parser.add_argument("--hydra", action="store_true")
    parser.add_argument("--nemo-rl")
    parser.add_argument("--ms-swift")
    parser.add_argument("--automodel")
    parser.add_argument("--trl")
    parser.add_argument("--sglang", nargs="*", default=[])
    args = parser.parse_args()
    if args.megatron:
        write("megatron", megatron_rows(args.megatron))
    files = collections.defaultdict(set)
    for item in args.argparse:
        name, path = item.split("=", 1)
        files[name].update(argparse_rows(path))
    for name, rows in files.items():
        write(name, rows)
    if args.deepspeed:
        write("deepspeed", set(deepspeed_rows()))
    if args.accelerate:
        write("accelerate", set(accelerate_rows()))
    if args.bridge_fields:
        write("bridge_fields", set(bridge_field_rows(*args.bridge_fields)))
    if args.torchtitan_names:
        write("torchtitan_names", {*torchtitan_name_rows(args.torchtitan_names),
                                   *torchtitan_part_rows(args.torchtitan_names)})
    if args.launchers:
        for name, rows in launchers():
            write(name, set(rows))
    if args.trainer:
        rows = list(trainer_rows())
        known = {word for row in rows for word in row[0].split()}
        for row in set(older_trainer_rows(args.older_trainer)):
            words = [word for word in row[0].split() if word not in known]
            if not set(row[0].split()) & known:
                rows.append((" ".join(words), *row[1:]))
                known.update(words)
        write("trainer", rows)
    if args.run_clm:
        write("run_clm", set(run_clm_rows(args.run_clm)))
    if args.bridge_recipes:
        write("bridge_recipes", set(bridge_recipe_rows(args.bridge_recipes)))
    if args.llama_factory:
        write("llama_factory", merged(llama_factory_rows(args.llama_factory)))
    if args.axolotl:
        write("axolotl", merged(axolotl_rows(args.axolotl)))
    if args.hydra:
        from hydra._internal.utils import get_args_parser
        write("hydra", set(launcher_rows(get_args_parser())))
    if args.verl:
        for name, file in (("verl", "ppo_trainer"), ("verl_megatron", "ppo_megatron_trainer")):
            path = pathlib.Path(args.verl) / "verl" / "trainer" / "config" / f"_generated_{file}.yaml"
            write(name, set(yaml_rows(path, verl_types(args.verl, yaml_leaves(path)))))
    if args.sglang:
        write("sglang", sglang_rows(args.sglang))
    if args.trl:
        write("trl", trl_rows(args.trl))
    if args.nemo_rl:
        files = sorted((pathlib.Path(args.nemo_rl) / "examples" / "configs").glob("*.yaml"))
        types = nemo_rl_types(args.nemo_rl)
        write("nemo_rl", merged(row for file in files for row in yaml_rows(file, types)))
    if args.automodel:
        write("automodel", merged(automodel_rows(args.automodel)))
    if args.ms_swift:
        write("ms_swift", ms_swift_rows(args.ms_swift, "RLHFArguments"))
        write("ms_swift_megatron", ms_swift_rows(args.ms_swift, "MegatronSftArguments"))
    if args.nanotron:
        write("nanotron", nanotron_merged(nanotron_rows(args.nanotron[0])))
        names = {row[0] for row in nanotron_rows(args.nanotron[0])}
        older = (row for folder in args.nanotron[1:] for row in nanotron_rows(folder))
        write("nanotron_older", nanotron_merged(row for row in older if row[0] not in names))
    if args.torchtitan_toml:
        latest = set(torchtitan_toml_rows(args.torchtitan_toml[0]))
        names = {row[0] for row in latest}
        write("torchtitan_toml", latest)
        older = torchtitan_toml_names(args.torchtitan_toml[1:])
        write("torchtitan_toml_older", merged(row for row in older if row[0] not in names))
    if args.torchtitan:
        write("torchtitan", set(torchtitan_rows(args.torchtitan)))


if __name__ == "__main__":
    main()
