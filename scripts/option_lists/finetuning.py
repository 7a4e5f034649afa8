"""Options of those who fine-tune: transformers' Trainer and its examples, LLaMA-Factory, axolotl, ms-swift, TRL,
NeMo AutoModel."""
import ast
import collections
import pathlib

from option_lists.rows import classes_of, field_rows, merged, yaml_leaves


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


def torchtune_rows(checkout):
    """Keys of the configurations that torchtune's recipes start with, outermost and of the model, and those that
    recipes ask for."""
    import re
    import yaml
    checkout = pathlib.Path(checkout)
    names = {"model." + key for key in ("quantize_base", "use_dora", "lora_dropout")}  # of the builders of adapters
    for path in sorted((checkout / "recipes").rglob("*.yaml")):
        keys = yaml.safe_load(path.read_text())
        for section, found in (("", keys), ("model.", keys.get("model")), ("optimizer.", keys.get("optimizer"))):
            names.update(section + str(key) for key in (found if isinstance(found, dict) else {}))
    for path in sorted((checkout / "recipes").glob("*.py")):
        names.update(re.findall(r"\bcfg\.get\(\s*['\"](\w+)['\"]", path.read_text()))
    counts = {"batch_size", "gradient_accumulation_steps", "epochs"}
    for name in names:
        yield name, "1", "int[1:]" if name in counts else "", "", ""


def prime_rl_rows(folder):
    """Keys of prime-rl's TOML (packages/prime-rl-configs/src/prime_rl/configs): those of fine-tuning, and of
    reinforcement learning behind "rl.", whose trainer's stand below "rl.trainer."; "dict": any key may stand there."""
    classes, aliases = {}, {}
    for name in ("shared", "trainer", "sft", "rl"):
        own = {}
        for node in ast.parse((pathlib.Path(folder) / f"{name}.py").read_text()).body:
            if isinstance(node, ast.ClassDef):
                own[node.name] = node
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                aliases[(name, node.target.id)] = node.value
        for key, node in own.items():
            classes[(name, key)] = node
            node.module = name

    def find(table, module, name):
        return next((table[m, name] for m in (module, "trainer", "shared") if (m, name) in table), None)

    def fields_of(node):
        for base in node.bases:
            parent = find(classes, node.module, ast.unparse(base))
            if parent is not None:
                yield from fields_of(parent)
        for field in node.body:
            if isinstance(field, ast.AnnAssign):
                yield field.target.id, field.annotation, field.value

    def parts_of(annotation, module):
        """The members of a union: names of types, or words."""
        if isinstance(annotation, ast.BinOp):
            return parts_of(annotation.left, module) + parts_of(annotation.right, module)
        if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
            return parts_of(annotation.slice.elts[0], module)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            return parts_of(ast.parse(annotation.value, mode="eval").body, module)
        alias = find(aliases, module, ast.unparse(annotation))
        return parts_of(alias, module) if alias is not None else [annotation]

    def walk(prefix, node):
        for name, annotation, default in fields_of(node):
            parts = [p for p in parts_of(annotation, node.module) if ast.unparse(p) != "None"]
            inner = [find(classes, node.module, ast.unparse(p)) for p in parts]
            if any(inner):
                yield prefix + name, "1", "", "", ""
                for one in inner:
                    if one is not None:
                        yield from walk(prefix + name + ".", one)
                continue
            words = [w.value for p in parts if ast.unparse(p).startswith("Literal")
                     for w in (p.slice.elts if isinstance(p.slice, ast.Tuple) else [p.slice])]
            kind = ast.unparse(parts[0]) if len(parts) == 1 else ""
            low = [k.value for k in getattr(default, "keywords", []) if k.arg in ("ge", "gt")]
            text = {"int": "int", "float": "float", "bool": "bool", "str": "str", "Path": "str"}.get(kind, "")
            if text in ("int", "float") and low:
                text += f"[{ast.unparse(low[0])}:]"
            known = text or words or kind.startswith("list") or len(parts) > 1
            yield prefix + name, "1", "" if words else text if known else "dict", "", \
                ",".join(words) if len(parts) == 1 else ""

    rows = [*walk("", classes["sft", "SFTConfig"]), *walk("rl.", classes["rl", "RLConfig"])]
    found = {}
    for row in rows:  # of a union's members each has its own words
        before = found.setdefault(row[0], row)
        words = sorted({w for w in (before[4] + "," + row[4]).split(",") if w})
        found[row[0]] = (*before[:4], ",".join(words))
    return set(found.values())
