"""qplan's verbs as functions: which parallel plan for training a large language model, at what cost.

    import qplan
    answer = qplan.search(model="qwen3-30b-a3b", gpus=256)
    print(answer["plans"][0]["short"], answer["plans"][0]["step_time_s"])

Each verb of the command is a function here; words are its arguments, options its keywords: True is a
flag, a list is `1,2,4` or the option several times, None is left out. A name that Python keeps for itself
takes an underscore: as_="llama". The command that comes with the package answers; verbs and options are
its own (`dir(qplan)`, `qplan.search.options()`), and so are the keys of the answer
(docs/reference/contract.md 4 and 5).
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
from typing import Any, Mapping, Sequence, Union

Scalar = Union[str, int, float, bool, "os.PathLike[str]"]
Value = Union[Scalar, Sequence[Scalar], None]

_BUNDLED = pathlib.Path(__file__).with_name("bin") / "qplan"


class InputError(ValueError):
    """Exit code 2: one sentence with what is wrong, where, and what to say instead."""


class DeviceError(RuntimeError):
    """Exit code 3: a device or a launch failed."""


class Answer(dict[str, Any]):
    """What a verb printed as JSON; other text stands under "text".

    exit_code is 0, or 1 where the answer is "nothing fits" or "falls short"; messages is what the command
    said beside it.
    """

    exit_code: int = 0
    messages: str = ""


def command() -> str:
    """The program that answers: the one named by QPLAN_PROGRAM (a build folder's), else the package's own."""
    return os.environ.get("QPLAN_PROGRAM") or str(_BUNDLED)


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([command(), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode in (0, 1):
        return done
    sentence = done.stderr.strip().removeprefix("qplan: ") or f"qplan ended with {done.returncode}"
    raise InputError(sentence) if done.returncode == 2 else DeviceError(sentence)


@functools.lru_cache(maxsize=None)
def _table(*words: str) -> Mapping[str, Any]:
    table: dict[str, Any] = json.loads(_run([*words, "--help=json"]).stdout)
    return table


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Verb:
    """One verb of the command."""

    def __init__(self, name: str, summary: str) -> None:
        self.__name__ = name
        self.__doc__ = summary

    def __repr__(self) -> str:
        return f"<qplan {self.__name__}: {self.__doc__}>"

    def options(self) -> list[dict[str, Any]]:
        """What --help lists, as data: names, value, default, help."""
        options: list[dict[str, Any]] = _table(self.__name__)["options"]
        return options

    def _words_of(self, name: str, value: Value) -> list[str]:
        option = "--" + name.rstrip("_").replace("_", "-")
        row = next((row for row in self.options() if option in row["names"]), None)
        if value is None or (value is False and row is not None and row["value"] is None):
            return []
        if value is True and (row is None or row["value"] is None):
            return [option]
        if isinstance(value, (str, int, float, os.PathLike)):
            return [f"{option}={_text(value)}"]
        if row is not None and row["repeatable"]:
            return [f"{option}={_text(each)}" for each in value]
        return [f"{option}=" + ",".join(_text(each) for each in value)]

    def __call__(self, *words: Scalar, **options: Value) -> Answer:
        line = [self.__name__]
        for name, value in options.items():
            line += self._words_of(name, value)
        if any("--json" in row["names"] for row in self.options()) and "--json" not in line:
            line.append("--json")
        done = _run([*line, *(_text(word) for word in words)])
        try:
            parsed = json.loads(done.stdout)
        except json.JSONDecodeError:
            parsed = None
        answer = Answer(parsed) if isinstance(parsed, dict) else Answer(text=done.stdout)
        answer.exit_code = done.returncode
        answer.messages = done.stderr
        return answer


def _verbs() -> dict[str, str]:
    return {row["name"]: row["summary"] for row in _table()["verbs"]}


def __getattr__(name: str) -> Verb:
    if not name.startswith("_"):
        verbs = _verbs()
        if name in verbs:
            verb = Verb(name, verbs[name])
            globals()[name] = verb
            return verb
    raise AttributeError(f"qplan has no verb '{name}'; `dir(qplan)` lists them", name=name, obj=None)


def __dir__() -> list[str]:
    return sorted({"Answer", "DeviceError", "InputError", "command", *_verbs()})
