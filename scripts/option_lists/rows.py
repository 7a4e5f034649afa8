"""Rows of the lists of options: how they are written, and read off what frameworks declare."""
import ast
import json
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "planner" / "frameworks" / "options"
SWITCHES = ("store_true", "store_false", "store_const", "BooleanOptionalAction", "StoreTrueAction",
            "StoreFalseAction", "HelpAction")


def write(name, rows):
    lines = ["\t".join(row) for row in sorted(rows)]
    (FOLDER / f"{name}.tsv").write_text("\n".join(lines) + "\n")


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


def launcher_rows(parser):
    """The options of a launcher's own parser."""
    for action in parser._actions:
        if action.option_strings:
            arity = "0" if action.nargs == 0 else "1" if action.nargs is None else str(action.nargs)
            yield " ".join(sorted(action.option_strings)), arity, "", "", ""


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


def merged(rows):
    """One row a name: a type or choices where all that have it agree."""
    found = {}
    for row in rows:
        old = found.get(row[0])
        found[row[0]] = row if old is None or old == row else (
            row[0], "1", *(a if a == b else "" for a, b in zip(old[2:], row[2:])))
    return found.values()
