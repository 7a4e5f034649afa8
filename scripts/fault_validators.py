"""Frameworks' own validators, for fault_agreement.py: each takes a job's files as texts, and raises what the
framework raises."""
import ast
import json
import os
import pathlib
import re
import shlex
import sys
import tempfile
import types

import validate_emitted as emitted


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
