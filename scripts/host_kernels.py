#!/usr/bin/env python3
"""Rewrites the launches of a .cu file so that the host's compiler takes it:
kernel<<<blocks, threads, 0, stream>>>(arguments) becomes a call of tests/emulated/device.h, which tests/emulated/tensor_cores.h includes.

    scripts/host_kernels.py kernels/norm.cu norm.cpp
"""
import re
import sys

PAIRS = {")": "(", ">": "<"}


def begin_of_kernel(text, end):
    """Where the expression that ends before `end` begins: a name, with template arguments or in
    parentheses."""
    at = end
    if text[at - 1] in PAIRS:
        last = text[at - 1]
        depth = 0
        while True:
            at -= 1
            depth += (text[at] == last) - (text[at] == PAIRS[last])
            if depth == 0:
                break
        if last == ")":
            return at
    return at - len(re.search(r"[\w:]*$", text[:at]).group())


def end_of_arguments(text, begin):
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at + 1
    sys.exit("a launch has no end of its arguments")


def rewritten(text):
    result, done = "", 0
    for launch in re.finditer(r"\s*<<<(.*?)>>>\s*", text, re.DOTALL):
        begin = begin_of_kernel(text, launch.start())
        end = end_of_arguments(text, launch.end())
        kernel, arguments = text[begin : launch.start()], text[launch.end() : end]
        result += text[done:begin]
        result += f"qplan::emulated::Launch({launch.group(1)})([&] {{ {kernel}{arguments}; }})"
        done = end
    return result + text[done:]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as source:
        text = source.read()
    with open(sys.argv[2], "w", encoding="utf-8") as target:
        target.write(f'#include "tests/emulated/tensor_cores.h"\n#line 1 "{sys.argv[1]}"\n{rewritten(text)}')
