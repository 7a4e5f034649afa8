"""Options of Megatron-LM's parser, of files and patches that add to it, and of Megatron-Bridge."""
import ast
import collections
import json
import pathlib
import re

import bridge_recipe_values
from option_lists.rows import FOLDER, SWITCHES, annotated_type

# Types that a framework's parser names itself.
NAMED_TYPES = {"_positive_int": "int[1:]", "_non_negative_int": "int[0:]", "_positive_float": "float[0:]"}


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


def words_of(names):
    return {word for name in names for row in (FOLDER / f"{name}.tsv").read_text().splitlines()
            for word in row.split("\t")[0].split()}


def fork_rows(items):
    """Arguments of forks of Megatron, of "OWNER=FOLDER" each, which today's Megatron-LM or Megatron-DeepSpeed
    has not. As their default who has them. "own" where a name tells the fork: one that either has, or of a
    word or two, is anybody's, and other programs' and config.json's people write for Megatron's."""
    megatron, fork = words_of(["megatron"]), words_of(["megatron_deepspeed"])
    others = {"--" + word.lstrip("-").replace("_", "-") for word in words_of((
        "slime", "trainer", "run_clm", "trl", "llama_factory", "ms_swift", "ms_swift_megatron", "torchrun",
        "accelerate_launch", "deepspeed_launch", "axolotl", "sglang"))}
    for path in (FOLDER.parents[2] / "models" / "zoo").glob("*.json"):
        others.update("--" + key.replace("_", "-") for key in json.loads(path.read_text()))
    owners = collections.defaultdict(dict)
    for item in items:
        owner, folder = item.split("=", 1)
        for path in sorted(pathlib.Path(folder).rglob("*.py")):
            text = path.read_text(errors="replace")
            for word in re.findall(r"add_argument\(\s*['\"](--[\w-]+)['\"]", text):
                if word not in megatron & fork:
                    owners[word][owner] = True
    for word, found in owners.items():
        own = word not in others | megatron | fork and word.count("-") > 3
        yield word, "", "own" if own else "", ",".join(found), ""


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


def bridge_performance_rows(folder, base):
    rows = collections.defaultdict(set)
    for name, said in bridge_recipe_values.performance_values(folder, base).items():
        rows[said].add(name)
    for said, same in rows.items():
        yield " ".join(sorted(same)), "0", "", said, ""


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
