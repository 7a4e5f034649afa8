#!/usr/bin/env python3
"""Drives `qplan mcp` by the protocol's own client library.

  scripts/mcp_client.py build/release/cli/qplan

Needs mcp (PyPI) 1.10 or newer; without it exits 77, which ctest shows as skipped. Each call's answer is
held to the tool's outputSchema by that library; what is compared besides is `qplan VERB --json`.
"""
import asyncio
import json
import subprocess
import sys
import tempfile

SKIPPED = 77  # as ctest's SKIP_RETURN_CODE

try:
    import jsonschema
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
except ImportError as missing:
    print(f"skipped: {missing}; pip install mcp jsonschema")
    sys.exit(SKIPPED)

# A call, and the command line that answers the same.
CALLS = [
    ("models", {}, "models --json"),
    ("models", {"show": "tiny"}, "models tiny"),
    ("hardware", {"show": "show", "name": "h100-sxm"}, "hardware show h100-sxm"),
    ("predict", {"model": "tiny", "gpus": 8, "tp": 2}, "predict --model tiny --gpus 8 --tp 2 --json"),
    ("predict", {"model": "tiny", "gpus": 8, "plan": "tp2 pp2"}, "predict --model tiny --gpus 8 --plan 'tp2 pp2' --json"),
    ("search", {"model": "tiny", "gpus": 8, "tp": [1, 2], "top": 2}, "search --model tiny --gpus 8 --tp 1,2 --top 2 --json"),
    ("search", {"model": "tiny", "gpus": 8, "top": 2, "precision": ["bf16", "fp8"]},
     "search --model tiny --gpus 8 --top 2 --precision bf16,fp8 --json"),
    ("search", {"model": "llama3-405b", "gpus": 8}, "search --model llama3-405b --gpus 8 --json"),
    ("sweep", {"model": "tiny", "gpus": "1..4"}, "sweep --model tiny --gpus 1..4 --json"),
    ("compare", {"model": "tiny", "gpus": 8, "plan": ["tp1", "tp2 mbs2 sp"]},
     "compare tp1 'tp2 mbs2 sp' --model tiny --gpus 8 --json"),
    ("size", {"model": "tiny", "gpus": 1, "longest": True, "memory_cap_gib": 3},
     "size --longest --model tiny --gpus 1 --memory-cap-gib 3 --json"),
    ("targets", {"model": "tiny", "gpus": 8, "plan": "tp2"}, "targets tp2 --model tiny --gpus 8 --json"),
    ("emit", {"model": "tiny", "gpus": 8, "plan": "tp2", "framework": "megatron"},
     "emit tp2 --model tiny --gpus 8 --framework megatron --json"),
]


def field(thing, *names):
    """A field that releases of the library call otherwise."""
    for name in names:
        if hasattr(thing, name):
            return getattr(thing, name)
    raise AttributeError(f"{type(thing).__name__} has none of {names}")


class Checks:
    def __init__(self):
        self.count, self.problems = 0, []

    def __call__(self, what, true):
        self.count += 1
        if not true:
            self.problems.append(what)


async def ask(session, name, arguments, checks, tools, line, qplan):
    result = await session.call_tool(name, arguments)
    error = field(result, "is_error", "isError")
    answer = field(result, "structured_content", "structuredContent")
    checks(f"{name} {arguments} is answered: {result.content}", not error)
    if error:
        return
    done = subprocess.run(f"{qplan} {line}", shell=True, capture_output=True, text=True)
    checks(f"{name} {arguments} answers what `{line}` does", answer == json.loads(done.stdout))
    checks(f"{name}'s text is its structured content", json.loads(result.content[0].text) == answer)
    jsonschema.validate(answer, field(tools[name], "output_schema", "outputSchema"))


async def check_configuration(session, checks):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write('{"train_batch_size": 30, "train_micro_batch_sizes_per_gpu": 1, "zero_optimization": {"stage": 2}}')
        file.flush()
        result = await session.call_tool("check", {"file": [file.name], "model": "tiny", "gpus": 8})
        answer = field(result, "structured_content", "structuredContent")
        checks("check finds that 30 sequences are none of 8 ranks'", answer["errors"] > 0)
        checks("check says where", any(f["line"] == 1 for f in answer["findings"]))


async def refusals(session, checks):
    for name, arguments, says in [("predict", {"model": "tiny"}, "--gpus"),
                                  ("predict", {"model": "tiny", "gpsu": 8}, "gpus"),
                                  ("predict", {"model": "nosuch", "gpus": 8}, "nosuch"),
                                  ("emit", {"plan": "--out=/tmp/x"}, "plan")]:
        result = await session.call_tool(name, arguments)
        checks(f"{name} {arguments} is a tool's error", field(result, "is_error", "isError"))
        checks(f"{name} {arguments} says {says}: {result.content[0].text}", says in result.content[0].text)
    try:
        await session.call_tool("nosuch", {})
        checks("an unknown tool is refused", False)
    except Exception as error:  # the library's own, which releases call otherwise
        checks(f"an unknown tool is refused by name: {error}", "nosuch" in str(error))


async def drive(qplan, mode):
    checks = Checks()
    parameters = StdioServerParameters(command=qplan, args=["mcp"])
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
        if mode == "handshake":
            hello = await session.initialize()
            checks("the server says who it is", field(hello, "server_info", "serverInfo").name == "qplan")
            revision = field(hello, "protocol_version", "protocolVersion")
            await session.send_ping()
        else:
            from mcp_types import DiscoverResult
            raw = await session.send_discover(mode)
            found = DiscoverResult.model_validate(raw)
            session.adopt(found)
            revision = mode
            checks("the server lists the revision", mode in found.supported_versions)
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        checks(f"there are tools: {sorted(tools)}", {"search", "predict", "check", "compare", "emit", "size"} <= set(tools))
        for tool in tools.values():
            for schema in (field(tool, "input_schema", "inputSchema"), field(tool, "output_schema", "outputSchema")):
                jsonschema.validators.validator_for(schema).check_schema(schema)
        for name, arguments, line in CALLS:
            await ask(session, name, arguments, checks, tools, line, qplan)
        await check_configuration(session, checks)
        await refusals(session, checks)
    for problem in checks.problems:
        print(problem)
    print(f"revision {revision}: {checks.count} checks, {len(checks.problems)} problems")
    return not checks.problems


def main():
    qplan = sys.argv[1]
    good = asyncio.run(drive(qplan, "handshake"))
    if hasattr(ClientSession, "send_discover"):
        good = asyncio.run(drive(qplan, "2026-07-28")) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
