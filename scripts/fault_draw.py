"""Faults of clean jobs, for fault_agreement.py: one option of one file is left out, misspelt, changed, given
twice or added."""
import collections
import json
import pathlib
import random
import re
import shlex

OPTIONS = pathlib.Path(__file__).resolve().parent.parent / "planner" / "frameworks" / "options"


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
