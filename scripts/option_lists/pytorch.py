"""Options of what trains by PyTorch's own means: DeepSpeed, accelerate, launchers, torchtitan and nanotron."""
import ast
import collections
import pathlib
import re

from option_lists.megatron import argparse_rows
from option_lists.rows import (annotated_type, at_least, classes_of, launcher_rows, merged, model_rows, type_of_field)

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
