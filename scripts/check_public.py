#!/usr/bin/env python3
"""What `qplan check` says of configurations that others published and run.

For docs/evidence/frameworks.md. A finding here is either a slip of theirs or a mistake of ours.
CHECKOUTS holds a checkout of each repository below, under its name:

    scripts/check_public.py CHECKOUTS --qplan build/release/cli/qplan
"""

import argparse
import json
import os
import subprocess
import sys

SLIME = [("run-deepseek-r1", "deepseek-v3", "deepseek-v3", 128), ("run-glm4.7-355B-A32B", "glm4.5-355B-A32B", "glm4.5", 64),
         ("run-kimi-k2-Instruct", "kimi-k2", "kimi-k2", 256), ("run-kimi-k2-Thinking", "kimi-k2-thinking", "kimi-k2", 256),
         ("run-minimax-m2", "minimax-m2", "minimax-m2", 128), ("run-moonlight-16B-A3B", "moonlight", "moonlight-16b-a3b", 8),
         ("run-qwen3-235B-A22B", "qwen3-235B-A22B", "qwen3-235b-a22b", 64),
         ("run-qwen3-235B-A22B-sft", "qwen3-235B-A22B", "qwen3-235b-a22b", 32),
         ("run-qwen3-next-80B-A3B", "qwen3-next-80B-A3B", "qwen3-next-80b-a3b", 32),
         ("run-qwen3.5-35B-A3B-sft", "qwen3.5-35B-A3B", "qwen3.5-35b-a3b", 8), ("run-qwen3.5-27B", "qwen3.5-27B", "qwen3.5-27b", 32),
         ("run-qwen3-30B-A3B", "qwen3-30B-A3B", "qwen3-30b-a3b", 8), ("run-qwen3-32B", "qwen3-32B", "qwen3-32b", 8),
         ("run-qwen3-4B", "qwen3-4B", "qwen3-4b", 8), ("run-qwen3-4B-base-sft", "qwen3-4B", "qwen3-4b", 8),
         ("low_precision/run-kimi-k2-Thinking-int4", "kimi-k2-thinking", "kimi-k2", 256),
         ("low_precision/run-moonlight-16B-A3B-int4", "moonlight", "moonlight-16b-a3b", 4),
         ("low_precision/run-qwen3-235B-A22B-int4", "qwen3-235B-A22B", "qwen3-235b-a22b", 64),
         ("low_precision/run-qwen3-30B-A3B-int4", "qwen3-30B-A3B", "qwen3-30b-a3b", 8),
         ("low_precision/run-qwen3-30b-a3b-fp8", "qwen3-30B-A3B", "qwen3-30b-a3b", 16),
         ("low_precision/run-qwen3-4b-fp8", "qwen3-4B", "qwen3-4b", 8)]
MEGATRON = [("llama/train_llama3_8b_h100_fp8", "llama3-8b", 8), ("megatron_fsdp/train_llama3_8b_fsdp_h100_fp8", "llama3-8b", 8),
            ("megatron_fsdp/sbatch_mfsdp_deepseek_v3", "deepseek-v3", 256),
            ("mixtral/train_mixtral_8x7b_distributed", "mixtral-8x7b", 32), ("gpt3/train_gpt3_175b_distributed", "gpt3-175b", 128),
            ("gptoss/02_train", "gpt-oss-20b", 8)]
BATCH = ["--global-batch-size", "128"]  # none of these files has one
DEEPSPEED = ["ds_z0_config", "ds_z2_config", "ds_z2_autotp_config", "ds_z2_offload_config", "ds_z3_config",
             "ds_z3_fp8_config", "ds_z3_offload_config"]
LLAMA_FACTORY_ACCELERATE = [("fsdp2_config", 2), ("fsdp_config", 2), ("fsdp_config_multiple_nodes", 16), ("fsdp_config_offload", 2)]


def jobs():
    """Of every configuration: repository, files, model, GPUs, further options."""
    for script, described, model, gpus in SLIME:
        yield "slime", [f"scripts/{script}.sh", f"scripts/models/{described}.sh"], model, gpus, []
    for script, model, gpus in MEGATRON:
        yield "Megatron-LM", [f"examples/{script}.sh"], model, gpus, []
    for name in DEEPSPEED:
        yield "LLaMA-Factory", [f"examples/deepspeed/{name}.json"], "qwen3-8b", 16, BATCH
    for name, gpus in LLAMA_FACTORY_ACCELERATE:
        yield "LLaMA-Factory", [f"examples/accelerate/{name}.yaml"], "qwen3-8b", gpus, BATCH
    for repository, names in (("alignment-handbook", ("ddp", "fsdp", "zero3")), ("open-r1", ("ddp", "fsdp", "zero2", "zero3"))):
        for name in names:
            yield repository, [f"recipes/accelerate_configs/{name}.yaml"], "qwen3-8b", 8, BATCH


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkouts")
    parser.add_argument("--qplan", default="qplan")
    args = parser.parse_args()
    read = clean = 0
    for repository, files, model, gpus, options in jobs():
        paths = [os.path.join(args.checkouts, repository, file) for file in files]
        answer = subprocess.run([args.qplan, "check", *paths, "--model", model, "--gpus", str(gpus), *options, "--json"],
                                capture_output=True, text=True, check=False)
        name = f"{repository}/{files[0]}, {model}, {gpus} GPUs"
        if answer.returncode not in (0, 1):
            print(f"{name}: {answer.stderr.strip()}")
            continue
        read += 1
        findings = [f for f in json.loads(answer.stdout)["findings"] if f["severity"] != "note"]
        clean += not findings
        print(f"{name}: {'nothing' if not findings else ''}")
        for finding in findings:
            print(f"    {finding['severity']}, {finding['rule']}: {finding['message']}")
    print(f"{read} read, {clean} of them with neither error nor warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
