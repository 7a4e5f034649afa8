#!/usr/bin/env python3
"""The Python package answers as the command does. Usage: python_package_test.py PACKAGE_FOLDER PROGRAM"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

FOLDER, PROGRAM = sys.argv[1:3]
sys.path.insert(0, FOLDER)
os.environ["QPLAN_PROGRAM"] = PROGRAM

import qplan  # noqa: E402: found by the path above


def printed(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False).stdout


class PythonPackage(unittest.TestCase):
    def test_an_answer_is_what_the_command_prints_as_json(self):
        for answer, line in (
            (qplan.predict(model="tiny", gpus=8, tp=2), "predict --model tiny --gpus 8 --tp 2"),
            (qplan.search(model="tiny", gpus=8, tp=[1, 2], top=2), "search --model tiny --gpus 8 --tp 1,2 --top 2"),
            (qplan.search(model="tiny", gpus=8, offload=["none", "optimizer"], cp=1),
             "search --model tiny --gpus 8 --offload none --offload optimizer --cp 1"),
            (qplan.search(model="tiny", gpus=8, compile=True, pareto=True, timing=False),
             "search --model tiny --gpus 8 --compile --pareto"),
            (qplan.hardware(), "hardware"),
        ):
            self.assertEqual(answer, json.loads(printed(*line.split(), "--json")))
            self.assertEqual(answer.exit_code, 0)

    def test_every_verb_of_the_command_is_a_function(self):
        verbs = json.loads(printed("--help=json"))["verbs"]
        self.assertGreater(len(verbs), 15)
        for verb in verbs:
            function = getattr(qplan, verb["name"])
            self.assertEqual(function.__doc__, verb["summary"])
            self.assertIn(verb["name"], dir(qplan))
            # As many as help lists, but for --help itself: `mcp` has no other.
            self.assertEqual(bool(function.options()), verb["name"] != "mcp")
        with self.assertRaises(AttributeError):
            qplan.serach

    def test_nothing_fits_is_an_answer(self):
        answer = qplan.predict(model="llama3-405b", gpus=8)
        self.assertEqual(answer.exit_code, 1)
        self.assertFalse(answer["feasible"])

    def test_bad_input_is_an_error_with_the_commands_sentence(self):
        with self.assertRaisesRegex(qplan.InputError, "^search has no option '--modle'; did you mean '--model'"):
            qplan.search(modle="tiny")

    def test_plans_go_through_files_and_text_is_text(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = os.path.join(folder, "plan.json")
            qplan.search(model="tiny", gpus=8, output=plan)
            answer = qplan.emit(plan, framework="megatron", out=os.path.join(folder, "job"))
            self.assertIn("train.sh", [file["name"] for file in answer["files"]])
            self.assertTrue(os.path.exists(os.path.join(folder, "job", "train.sh")))
            self.assertEqual(qplan.trace(plan, text=True)["text"], printed("trace", plan, "--text"))


unittest.main(argv=sys.argv[:1])
