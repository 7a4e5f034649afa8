#!/usr/bin/env python3
"""Runs emitted configurations through the frameworks' own validators, on a CPU.

  QPLAN_TEST_KEEP=DIR frameworks_test      # writes DIR/<framework>/<number>/; also plans that qplan's
                                           # rules accept and reject, for Megatron's verdict
  scripts/validate_emitted.py DIR [--only megatron,...]

Megatron's come from a checkout named by MEGATRON_LM_DIR; DeepSpeed, accelerate, TRL and
torchtitan's parallel_dims (TORCHTITAN_DIR) from what is installed. What is missing is skipped, and said so.
Prints one line a framework, and every refusal with its plan; exits 1 if a configuration is refused
that no known difference of versions explains, 77 if everything was skipped.
"""
import argparse
import collections
import importlib.util
import inspect
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import types


class Skipped(Exception):
    pass


# Refusals that belong to a version, not to a configuration: core 0.16 wants an inference option for
# graphs of the whole iteration with ep above 1, which 0.20 spells --cuda-graph-impl full_iteration.
KNOWN = ("--moe-pad-experts-for-cuda-graph-inference must be set",)
ALL_SKIPPED = 77  # as ctest's SKIP_RETURN_CODE


def jobs_in(folder):
    for path in sorted(folder.iterdir(), key=lambda p: int(p.name)):
        yield path, json.loads((path / "plan.json").read_text())


def bash_words(folder, script):
    """What bash itself makes of the arrays in a file."""
    text = subprocess.run(["bash", "-c", f"cd '{folder}' && source ./{script[0]} && "
                           f"printf '%s\\n' {script[1]}"], capture_output=True, text=True, check=True)
    return text.stdout.split("\n")[:-1]


def exported(folder, script):
    """The variables that a script exports for good: "export NAME=value"."""
    lines = (folder / script).read_text().splitlines()
    found = (re.fullmatch(r"export ([A-Z_0-9]+)=([\w:.]+)", line) for line in lines)
    return dict(match.groups() for match in found if match)


# ---- Megatron-LM ----

def megatron_modules():
    """Megatron's arguments and its counter of microbatches, importable without a GPU."""
    where = os.environ.get("MEGATRON_LM_DIR")
    if not where:
        raise Skipped("MEGATRON_LM_DIR names no checkout of Megatron-LM")
    sys.path.insert(0, where)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", CUDA_DEVICE_MAX_CONNECTIONS="1")
    import typing
    if not hasattr(typing, "override"):  # of Python 3.12
        typing.override = lambda method: method
    import torch
    # Arguments ask the GPU for its age; Transformer Engine's kernels are not here.
    hopper = types.SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: hopper
    from megatron.core.transformer.moe import moe_utils
    for name in ("fused_permute", "fused_permute_with_probs", "fused_sort_chunks_by_index",
                 "fused_sort_chunks_by_index_with_probs", "fused_unpermute"):
        if getattr(moe_utils, name, None) is None:
            setattr(moe_utils, name, lambda *_: None)
    from megatron.training import arguments
    from megatron.core import num_microbatches_calculator as microbatches
    from megatron.core.transformer import transformer_config
    from megatron.core import utils
    for module in (arguments, transformer_config, utils):
        if hasattr(module, "is_te_min_version"):
            module.is_te_min_version = lambda *_, **__: True
    return arguments, microbatches


def build_microbatches(microbatches, args):
    """What training builds before its first step; core 0.20 has no ramp any more."""
    build = microbatches._build_num_microbatches_calculator
    ramp = "rampup_batch_size" in inspect.signature(build).parameters
    build(rank=1, global_batch_size=args.global_batch_size,
          micro_batch_size=args.micro_batch_size, data_parallel_size=args.data_parallel_size,
          decrease_batch_size_if_needed=False, **({"rampup_batch_size": None} if ramp else {}))


def megatron_validator():
    arguments, microbatches = megatron_modules()
    known, ours = set(), {}
    # What later versions call otherwise, and what only later ones know.
    renamed = {"--cuda-graph-modules": "--cuda-graph-scope"}

    def validate(folder, job, unknown):
        words = bash_words(folder, ("args.sh", '"${MODEL_ARGS[@]}" "${PLAN_ARGS[@]}" '
                                    '"${TRAINING_ARGS[@]}" "${DATA_ARGS[@]}"'))
        os.environ["WORLD_SIZE"] = str(job["gpus"])
        fsdp = "--use-megatron-fsdp" in words
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8" if fsdp else "1"
        for name in ours:
            os.environ.pop(name, None)
        ours.clear()
        ours.update(exported(folder, "train.sh"))
        os.environ.update(ours)
        if not known:
            import argparse as ap
            parser = arguments.add_megatron_arguments(ap.ArgumentParser(allow_abbrev=False))
            known.update(s for action in parser._actions for s in action.option_strings)
        kept, skip = [], False
        for word in words:
            if word not in known:
                word = renamed.get(word, word)
            if word.startswith("--"):
                skip = word not in known
                if skip:
                    unknown[word] += 1
            if not skip:
                kept.append(word)
        # 0.16 spells a graph of the whole iteration by its scope.
        if "full_iteration" in kept and "--cuda-graph-modules" not in known:
            at = kept.index("full_iteration")
            kept[at:at + 1] = ["local", "--cuda-graph-scope", "full_iteration"]
        sys.argv = ["pretrain_gpt.py", *kept, "--no-rope-fusion", "--no-persist-layer-norm"]
        args = arguments.parse_args()
        arguments.validate_args(args)
        config = arguments.core_transformer_config_from_args(args)
        plan = job["plan"]
        assert args.data_parallel_size == plan["dp"], "data_parallel_size"
        assert config.pipeline_model_parallel_size == plan["pp"], "pp"
        if args.num_experts:
            assert config.expert_tensor_parallel_size == plan["etp"], "etp"
        build_microbatches(microbatches, args)
        assert (args.virtual_pipeline_model_parallel_size or 1) == plan["vpp"], "vpp"

    return validate


# ---- DeepSpeed ----

def deepspeed_validator():
    if importlib.util.find_spec("deepspeed") is None:
        raise Skipped("the package deepspeed is not installed")
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig
    comm.get_rank = lambda *_: 0  # without a process group it takes the world for one rank

    def validate(folder, job, unknown):
        plan = job["plan"]
        config = json.loads((folder / "ds_config.json").read_text())
        mpu = types.SimpleNamespace(get_data_parallel_world_size=lambda: plan["dp"])
        read = DeepSpeedConfig(config, mpu=mpu)
        assert read.train_batch_size == plan["global_batch_size"], "train_batch_size"
        assert read.train_micro_batch_size_per_gpu == plan["micro_batch_size"], "micro batch"
        assert read.zero_config.stage == plan["zero"], "stage"
        assert read.zero_optimization_stage == plan["zero"], "stage"

    return validate


def fork_arguments(where):
    """Megatron-DeepSpeed's own parser; its kernels and apex are not here."""
    import importlib

    def absent(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return object

    sys.path.insert(0, where)
    for name in ("apex", "apex.multi_tensor_apply", "apex.optimizers", "amp_C"):
        module = types.ModuleType(name)
        module.__getattr__ = absent
        module.__path__ = []
        sys.modules.setdefault(name, module)
    import torch
    hopper = types.SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    torch.cuda.get_device_properties = lambda *_: hopper
    return importlib.import_module("megatron.arguments")


# ---- accelerate ----

def accelerate_validator():
    if importlib.util.find_spec("accelerate") is None:
        raise Skipped("the package accelerate is not installed")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.parallelism_config import ParallelismConfig

    def validate(folder, job, unknown):
        plan = job["plan"]
        config = load_config_from_file(str(folder / "accelerate.yaml"))
        assert config.num_processes == job["gpus"], "num_processes"
        prefix = "parallelism_config_"
        mesh = {k[len(prefix):]: v for k, v in config.parallelism_config.items()
                if k.endswith("_size")}
        read = ParallelismConfig(**mesh)
        assert read.total_size == job["gpus"], "the product of the degrees"
        assert config.fsdp_config["fsdp_reshard_after_forward"] is (plan["zero"] == 3)

    return validate


# ---- TRL ----

def trl_validator():
    """TRL's own parser of arguments and YAML, accelerate's of what it hands on, and their classes."""
    for package in ("trl", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise Skipped(f"the package {package} is not installed")
    import torch
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    from accelerate.commands import launch
    from trl import (DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser,
                     get_peft_config, get_quantization_config)
    try:
        from trl.cli.accelerate_config import resolve_accelerate_config_argument as resolve
    except ImportError:  # as its release 1 has it
        from trl.cli.main import resolve_accelerate_config_argument as resolve
    deepspeed = None
    if importlib.util.find_spec("deepspeed") is not None:
        deepspeed = deepspeed_validator()

    def validate(folder, job, unknown):
        plan = job["plan"]
        # What bash makes of the command; each node has a rank of its own.
        words = subprocess.run(
            ["bash", "-c", f"trl() {{ printf '%s\\n' \"$@\"; }}; source '{folder}/train.sh'"],
            capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
        assert words[0] == "sft", words[0]
        parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig))
        here = os.getcwd()
        os.chdir(folder)
        try:
            *parsed, of_yaml, rest = parser.parse_args_and_config(
                words[1:] + ["--use_cpu"], return_remaining_strings=True,
                separate_remaining_strings=True)
            assert not of_yaml, f"keys that TRL does not know: {of_yaml}"
            arguments = launch.launch_command_parser().parse_args(resolve(rest) + ["sft.py"])
            arguments, _, _ = launch._validate_launch_command(arguments)
        finally:
            os.chdir(here)
        _, training, model, _ = parsed
        assert arguments.num_processes == job["gpus"], "num_processes"
        sequences = training.per_device_train_batch_size * training.gradient_accumulation_steps
        assert sequences * plan["dp"] == plan["global_batch_size"], "the batch"
        assert training.max_length == plan["seq_len"] and training.packing, "length"
        full = plan["recompute"] == "full"
        sharded = arguments.use_fsdp
        assert training.gradient_checkpointing is (full and not sharded), "gradient_checkpointing"
        if sharded:
            assert arguments.fsdp_activation_checkpointing in (full, str(full).lower())
        peft = get_peft_config(model)
        assert (peft.r if peft else 0) == plan["lora_rank"], "lora_rank"
        quantized = get_quantization_config(model)
        frozen = "computed"
        if quantized is not None:
            double = quantized.bnb_4bit_use_double_quant
            frozen = "int8" if quantized.load_in_8bit else "nf4-double" if double else "nf4"
        assert frozen == plan["frozen_weights"], frozen
        has_config = (folder / "ds_config.json").exists()
        assert arguments.use_deepspeed == has_config, "DeepSpeed"
        if has_config and deepspeed is not None:
            deepspeed(folder, job, unknown)

    return validate


# ---- torchtitan ----

def torchtitan_modules():
    """torchtitan's configuration classes, and its mesh."""
    where = os.environ.get("TORCHTITAN_DIR")
    if not where:
        raise Skipped("TORCHTITAN_DIR names no checkout of torchtitan")

    def load(name, path):
        spec = importlib.util.spec_from_file_location(name, pathlib.Path(where) / path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    # Two files alone, without what they import of the rest: the mesh, the tracer, the device.
    import ast
    configs = load("torchtitan_configs", "torchtitan/config/configs.py")
    path = pathlib.Path(where) / "torchtitan/distributed/parallel_dims.py"
    tree = ast.parse(path.read_text())

    def foreign(node):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [
            a.name for a in node.names] if isinstance(node, ast.Import) else []
        return any(n.split(".")[0] in ("torchtitan", "spmd_types") for n in names)

    class Anything:
        def __getattr__(self, _):
            return Anything()

        def __call__(self, *_, **__):
            return Anything()

    module = types.ModuleType("parallel_dims")
    sys.modules["parallel_dims"] = module
    for node in filter(foreign, tree.body):
        for alias in node.names:
            setattr(module, alias.asname or alias.name, Anything())
    module.ParallelismConfig = configs.ParallelismConfig
    tree.body = [node for node in tree.body if not foreign(node)]
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return configs, module


def torchtitan_validator():
    configs, module = torchtitan_modules()

    def validate(folder, job, unknown):
        tree = ast.parse((folder / "qplan_config.py").read_text())
        made = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                    "TrainingConfig", "ParallelismConfig", "CompileConfig"):
                fields = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
                made[node.func.id] = getattr(configs, node.func.id)(**fields)
        dims = module.ParallelDims.from_config(made["ParallelismConfig"], job["gpus"])
        plan, training = job["plan"], made["TrainingConfig"]
        assert dims.dp_replicate * dims.dp_shard == plan["dp"], "dp"
        tokens = training.num_tokens_per_microbatch_per_dp_rank
        assert training.num_tokens_per_train_step % (tokens * plan["dp"]) == 0, "tokens a step"

    return validate


VALIDATORS = {"megatron": megatron_validator, "megatron-accepted": megatron_validator,
              "megatron-rejected": megatron_validator, "deepspeed": deepspeed_validator,
              "megatron-deepspeed": deepspeed_validator, "fsdp2": accelerate_validator,
              "trl": trl_validator, "torchtitan": torchtitan_validator}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--probe", action="store_true",
                        help="only say which validators are here; 77 if none is")
    parser.add_argument("--only", default=",".join(VALIDATORS))
    parser.add_argument("--most", type=int, default=10, help="refusals to print of each framework")
    options = parser.parse_args()
    refused_any, skipped_all = False, True
    for name in options.only.split(","):
        try:
            validate = VALIDATORS[name]()
        except Skipped as reason:
            print(f"{name}: skipped: {reason}")
            continue
        skipped_all = False
        if options.probe:
            continue
        passed = collections.Counter()
        accepted, refused, unknown = 0, collections.Counter(), collections.Counter()
        for folder, job in jobs_in(options.folder / name):
            quiet, sys.stdout = sys.stdout, io.StringIO()
            try:
                validate(folder, job, unknown)
                accepted += 1
                passed.update(job["rules"][:1])
                continue
            except (Exception, SystemExit) as problem:  # noqa: BLE001 - validators raise anything
                reason = f"{type(problem).__name__}: {problem}".split("\n")[0][:300]
            finally:
                sys.stdout = quiet
            refused[reason] += 1
            if refused[reason] == 1 and len(refused) <= options.most:
                print(f"{name} {folder.name}: {job['model']} {job['short']}\n    {reason}")
        print(f"{name}: {accepted} accepted, {sum(refused.values())} refused"
              + (f"; not known to this version: {dict(unknown)}" if unknown else ""))
        for reason, count in refused.most_common(options.most):
            print(f"    {count} x {reason}")
        if name.endswith("-rejected"):
            # The other way round: what the rules reject and the validator lets pass.
            for rule, count in passed.most_common():
                print(f"    passes the validator, rejected by {rule}: {count}")
            continue
        refused_any = refused_any or any(
            not any(known in reason for known in KNOWN) for reason in refused)
    sys.exit(ALL_SKIPPED if skipped_all else 1 if refused_any else 0)


if __name__ == "__main__":
    main()
