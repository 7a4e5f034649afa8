#!/usr/bin/env python3
"""Writes planner/frameworks/options/*.tsv: the options that frameworks' own parsers know.

Columns: spellings (separated by spaces), values it takes (0, 1, 3, + or *), type, default, choices
(separated by commas). Sources, each named by an argument:
  --megatron DUMP        rows dumped from the live parser of Megatron-LM: spellings, destination,
                         action, type, number of values, default, choices as JSON
  --argparse NAME=FILE   a Python file that calls add_argument(), or a patch (.patch) that adds such
                         calls; may be repeated for one NAME
  --deepspeed            the installed deepspeed package's configuration classes
  --accelerate           the installed accelerate package's configuration classes
  --torchtitan FILE      torchtitan/config/configs.py
"""
import argparse
import ast
import collections
import json
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "planner" / "frameworks" / "options"
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


def argparse_rows(path):
    text = pathlib.Path(path).read_text()
    for node in ast.walk(ast.parse(added_calls(text) if path.endswith(".patch") else text)):
        if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"):
            continue
        words = [a.value for a in node.args
                 if isinstance(a, ast.Constant) and str(a.value).startswith("-")]
        if not words:
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
        yield " ".join(words), arity, kind.split(".")[-1], default.replace("\n", " "), choices


def model_rows(prefix, model):
    """The fields of a pydantic model; deprecated spellings are options too."""
    for name, field in model.model_fields.items():
        spellings = {name, field.alias or name}
        for spelling in spellings:
            yield prefix + spelling, "1", "", "", ""


# What deepspeed/runtime/config.py and its neighbours ask for by name (runtime/constants.py,
# activation_checkpointing/config.py, module_inject); ".*": a block whose keys are not listed.
DEEPSPEED_KEYS = """
train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps optimizer optimizer.type
optimizer.params optimizer.params.* optimizer.legacy_fusion scheduler scheduler.* gradient_clipping
prescale_gradients gradient_predivide_factor sparse_gradients steps_per_print dump_state
wall_clock_breakdown memory_breakdown disable_allgather communication_data_type
seq_parallel_communication_data_type dataloader_drop_last zero_allow_untested_optimizer
zero_force_ds_cpu_optimizer graph_harvesting use_data_before_expert_parallelism data_types
data_types.grad_accum_dtype data_types.param_dtype data_types.buffer_dtype activation_checkpointing
activation_checkpointing.partition_activations activation_checkpointing.number_checkpoints
activation_checkpointing.contiguous_memory_optimization activation_checkpointing.cpu_checkpointing
activation_checkpointing.profile activation_checkpointing.synchronize_checkpoint_boundary
zero_optimization fp16 bf16 bfloat16 bfloat16.* amp amp.* torch_autocast torch_autocast.* aio aio.*
flops_profiler flops_profiler.* tensorboard tensorboard.* wandb wandb.* csv_monitor csv_monitor.*
comet comet.* comms_logger comms_logger.* autotuning autotuning.* elasticity elasticity.*
curriculum_learning curriculum_learning.* data_efficiency data_efficiency.* compression_training
compression_training.* sparse_attention sparse_attention.* progressive_layer_drop
progressive_layer_drop.* eigenvalue eigenvalue.* quantize_training quantize_training.* nebula
nebula.* hybrid_engine hybrid_engine.* checkpoint checkpoint.* data_parallel_size
sequence_parallel_size sequence_parallel sequence_parallel.* tensor_parallel tensor_parallel.*
expert_parallel expert_parallel.* pipeline pipeline.* compile compile.* timers timers.*
log_level gradient_allreduce_op managed_gradient_accumulation disable_python_gc vocabulary_size
zero_optimization.mics_shard_size zero_optimization.mics_hierarchical_params_gather
zero_optimization.leaf_module.* zero_optimization.zenflow.* weight_quantization.*
"""


def deepspeed_rows():
    for key in DEEPSPEED_KEYS.split():
        yield key, "1", "", "", ""
    from deepspeed.runtime.zero import config as zero
    from deepspeed.runtime.zero import offload_config as offload
    from deepspeed.runtime import precision_config as precision
    yield from model_rows("zero_optimization.", zero.DeepSpeedZeroConfig)
    yield from model_rows("zero_optimization.offload_param.", offload.DeepSpeedZeroOffloadParamConfig)
    yield from model_rows("zero_optimization.offload_optimizer.",
                          offload.DeepSpeedZeroOffloadOptimizerConfig)
    yield from model_rows("bf16.", precision.DeepSpeedBF16Config)
    yield from model_rows("fp16.", precision.DeepSpeedFP16Config)


def accelerate_rows():
    for key in ("deepspeed_config.*", "megatron_lm_config.*", "dynamo_config.*", "fp8_config.*",
                "mpirun_config.*"):
        yield key, "1", "", "", ""
    import dataclasses
    import inspect
    from accelerate.commands.config import config_args
    from accelerate.commands import launch
    for kind in (config_args.ClusterConfig,):
        for field in dataclasses.fields(kind):
            yield field.name, "1", "", "", ""
    for action in launch.launch_command_parser()._actions:
        for word in action.option_strings:
            name = word.lstrip("-").replace("-", "_")
            if name.startswith("fsdp_"):
                yield "fsdp_config." + name, "1", "", "", ""
            if name.startswith("parallelism_config_"):
                yield "parallelism_config." + name, "1", "", "", ""


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
                    default = ast.unparse(field.value).strip("'") if field.value else ""
                    yield (f"{sections[node.name]}.{field.target.id}", "1",
                           "" if words else kind, default, ",".join(words))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron")
    parser.add_argument("--argparse", action="append", default=[])
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--accelerate", action="store_true")
    parser.add_argument("--torchtitan")
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
    if args.torchtitan:
        write("torchtitan", set(torchtitan_rows(args.torchtitan)))


if __name__ == "__main__":
    main()
