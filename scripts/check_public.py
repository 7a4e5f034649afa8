#!/usr/bin/env python3
"""What `qplan check` says of configurations that others published and run: their slips, or mistakes of ours.

CHECKOUTS holds a checkout of each repository below, under its name. For docs/evidence/frameworks.md those of a list
whose models and GPUs are known:

    scripts/check_public.py CHECKOUTS --qplan build/release/cli/qplan

For docs/evidence/finetuning.md of every fine-tuning framework's configurations, sorted by path, each k-th of those
whose checkpoint is of a built-in model's size, so that --each are at most (0: all of them), and half as many of others:

    scripts/check_public.py CHECKOUTS --qplan build/release/cli/qplan --each 25 --json findings.json

GPUs are those that the file states (a launcher's words, its environment, its remarks, a node count), which is
printed; where none are stated, 8 if it shards and 1 if it does not. The model is the checkpoint's, by its name; where
no built-in model has its size, a stand-in is, and what is said of its memory is a guess.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

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


def listed():
    """Of every configuration of the list: repository, files, model, GPUs, further options."""
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


# Checkpoints that are not built in, by the end of their names: what their config.json says (type, hidden size, layers,
# heads, key-value heads, MLP, vocabulary, tied embeddings).
SHAPES = {
    "qwen2(.5)?(-coder)?-0.5b": ("qwen2", 896, 24, 14, 2, 4864, 151936, True),
    "qwen2(.5)?(-coder|-math)?-1.5b": ("qwen2", 1536, 28, 12, 2, 8960, 151936, True),
    "qwen2.5(-coder)?-3b": ("qwen2", 2048, 36, 16, 2, 11008, 151936, True),
    "qwen2(.5)?(-coder|-math)?-7b": ("qwen2", 3584, 28, 28, 4, 18944, 152064, False),
    "qwen2.5(-coder)?-32b": ("qwen2", 5120, 64, 40, 8, 27648, 152064, False),
    "qwen2(.5)?-72b": ("qwen2", 8192, 80, 64, 8, 29568, 152064, False),
    "llama-3.2-1b": ("llama", 2048, 16, 32, 8, 8192, 128256, True),
    "llama-3.2-3b": ("llama", 3072, 28, 24, 8, 8192, 128256, True),
    "(mistral|zephyr|openhermes)(-2.5-mistral)?-7b": ("mistral", 4096, 32, 32, 8, 14336, 32000, False),
    "tinyllama.*1.1b": ("llama", 2048, 22, 32, 4, 5632, 32000, False),
    "smollm2-1.7b": ("llama", 2048, 24, 32, 32, 8192, 49152, True),
    "smollm3-3b": ("llama", 2048, 36, 16, 4, 11008, 128256, True),
}
STAND_IN, STAND_IN_OF_EXPERTS = "llama3-8b", "qwen3-30b-a3b"
TRAINS = re.compile(r"^\s*(?:.*\s)?(?:megatron|swift) (?:sft|pt|rlhf)\b", re.MULTILINE)
VERBS = ("sft", "dpo", "grpo", "kto", "reward", "rloo")


def text_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def below(root, folder, ends):
    """Paths relative to root, sorted."""
    found = []
    for where, _, names in os.walk(os.path.join(root, folder)):
        found += [os.path.relpath(os.path.join(where, name), root) for name in names if name.endswith(ends)]
    return sorted(found)


def product(numbers):
    result = 1
    for number in numbers:
        result *= int(number)
    return result


def said_by_swift(text):
    per_node = re.search(r"(?i)NPROC_PER_NODE=(\d+)", text)
    nodes = re.search(r"(?i)NNODES=(\d+)", text)
    visible = re.search(r"CUDA_VISIBLE_DEVICES=([\d,]+)", text)
    remark = re.search(r"#.*?\b(\d+) ?\* ?\d+(?:\.\d+)? ?G", text)
    if per_node:
        return product([per_node[1], nodes[1] if nodes else 1])
    if visible:
        return len([gpu for gpu in visible[1].split(",") if gpu])
    return int(remark[1]) if remark else None


def said_by_automodel(text):
    in_words = re.search(r"= (\d+) (?:[A-Z]+\d* )?GPUs", text)
    if in_words:
        return int(in_words[1])
    degrees = product(re.findall(r"^  (?:tp|pp|cp)_size: *(\d+)", text, re.MULTILINE))
    nodes = re.search(r"^\s+(?:num_)?nodes: *(\d+)", text, re.MULTILINE)
    per_node = re.search(r"nproc[-_]per[-_]node[= ](\d+)", text)
    each = int(per_node[1]) if per_node else 4 if "GB200" in text else 8
    if nodes and int(nodes[1]) > 1:
        return each * int(nodes[1])
    return max(each, degrees) if per_node or nodes or degrees > 8 else None


def said_by_axolotl(text):
    degrees = [re.search(rf"^{key}: *(\d+)", text, re.MULTILINE)
               for key in ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size", "context_parallel_size",
                            "expert_parallel_size")]
    degrees = [degree[1] for degree in degrees if degree]
    return product(degrees) if degrees else None


def said_by_yaml(text):
    # accelerate's count, Ray's workers.
    found = re.search(r"^\s*(?:num_processes|num_workers|ray_num_workers): *(\d+)", text, re.MULTILINE)
    nodes = re.search(r"# Config for (\d+) nodes?", text)
    if nodes:
        return 8 * int(nodes[1])
    return int(found[1]) if found else None


def shards(text):
    return re.search(r"deepspeed|fsdp|zero[123]", text) is not None


def trl_commands(root):
    """Commands in the docstrings of TRL's own scripts, as scripts of their own with what they name."""
    for path in below(root, "trl/scripts", ".py") + below(root, "examples/scripts", ".py"):
        head = re.match(r'(?s).*?"""(.*?)"""', text_of(os.path.join(root, path)))
        if not head:
            continue
        # Fences and blank lines end a command.
        command = r"(?m)^((?:accelerate launch|python|trl) .*(?:\n(?!```)\S.*|\n +.*)*)"
        for number, block in enumerate(re.findall(command, head[1].replace("\\\\\n", "\\\n"))):
            if ".py" in block and "--model" in block or block.startswith("trl "):
                yield path, number, block


def jobs(root):
    """Of every configuration: framework, name, files, GPUs that are stated (None: unsaid), the text that states it."""
    swift = os.path.join(root, "ms-swift")
    for path in below(swift, "examples", ".sh"):
        text = text_of(os.path.join(swift, path))
        if TRAINS.search(text):
            named = re.search(r"--config (\S+\.yaml)", text)
            beside = [os.path.join(swift, os.path.dirname(path), named[1])] if named else []
            files = [os.path.join(swift, path), *filter(os.path.exists, beside)]
            yield "ms-swift", path, files, said_by_swift(text), text
    nemo = os.path.join(root, "Automodel")
    for folder in ("llm_finetune", "llm_pretrain", "llm_kd", "llm_benchmark", "vlm_finetune", "vlm_kd", "convergence",
                   "long_context_validation"):
        for path in below(nemo, f"examples/{folder}", (".yaml", ".yml")):
            text = text_of(os.path.join(nemo, path))
            if re.search(r"^(step_scheduler|distributed):", text, re.MULTILINE):
                yield "NeMo AutoModel", path, [os.path.join(nemo, path)], said_by_automodel(text), text
    trl = os.path.join(root, "trl")
    for path, number, command in trl_commands(trl):
        named = re.search(r"--config_file (\S+)", command)
        files = [os.path.join(trl, named[1])] if named and os.path.exists(os.path.join(trl, named[1])) else []
        said = said_by_yaml("".join(map(text_of, files)) + command.replace("num_processes ", "num_processes: "))
        yield "TRL", f"{path}, command {number + 1}", [*files, command], said, command + "".join(map(text_of, files))
    for repository in ("alignment-handbook", "open-r1"):
        recipes = os.path.join(root, repository, "recipes")
        for path in below(recipes, "", (".yaml",)):
            verb = os.path.basename(os.path.dirname(path))
            if verb not in VERBS:
                continue
            text = text_of(os.path.join(recipes, path))
            shape = "ddp" if "qlora" in path else "fsdp" if "FSDP" in text else "zero3"
            config = os.path.join(recipes, "accelerate_configs", f"{shape}.yaml")
            said = said_by_yaml(text) or said_by_yaml(text_of(config))
            command = (f"accelerate launch --config_file {shape}.yaml --num_processes {said} scripts/{verb}.py "
                       f"--config {os.path.basename(path)}\n")
            yield "TRL", f"{repository}/recipes/{path}", [os.path.join(recipes, path), config, command], said, text
    factory = os.path.join(root, "LLaMA-Factory")
    for path in below(factory, "examples", (".yaml", ".yml")):
        text = text_of(os.path.join(factory, path))
        if re.search(r"^do_train: *true", text, re.MULTILINE):
            named = re.search(r"^deepspeed: *(\S+)", text, re.MULTILINE)
            started = re.search(r"^# .*--config_file (\S+)", text, re.MULTILINE)  # by accelerate, as its remark says
            more = [os.path.join(factory, file[1]) for file in (named, started) if file]
            more = list(filter(os.path.exists, more))
            said = said_by_yaml(text + "".join(map(text_of, more)))
            yield "LLaMA-Factory", path, [os.path.join(factory, path), *more], said, text
    for path in below(os.path.join(root, "open-thoughts"), "train", ".yaml"):
        full = os.path.join(root, "open-thoughts", path)
        yield "LLaMA-Factory", f"open-thoughts/{path}", [full], None, text_of(full)
    for repository, folder in (("axolotl", "examples"), ("llm-finetuning", "config")):
        base = os.path.join(root, repository)
        for path in below(base, folder, (".yaml", ".yml")):
            text = text_of(os.path.join(base, path))
            if not re.search(r"^base_model:", text, re.MULTILINE):
                continue
            named = re.search(r"^deepspeed: *(\S+\.json)", text, re.MULTILINE)
            more = [os.path.join(root, "axolotl", named[1])] if named else []
            files = [os.path.join(base, path), *[file for file in more if os.path.exists(file)]]
            name = path if folder == "examples" else f"llm-finetuning/{path}"
            yield "axolotl", name, files, said_by_axolotl(text), text


def shape_of(text, folder):
    """A config.json of the checkpoint that is named first, if its shape is known; empty: it is not."""
    keys = "base_model|model_name_or_path|pretrained_model_name_or_path|--model|MODEL_NAME"
    named = re.search(rf"(?:{keys})[:= ]+['\"]?([\w./-]+)", text)
    if not named:
        return ""
    for name, (kind, hidden, layers, heads, groups, inner, words, tied) in SHAPES.items():
        if not re.search(rf"(^|/|-){name}(\b|-|_)", named[1], re.IGNORECASE):
            continue
        path = os.path.join(folder, "config.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump({"model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers,
                       "num_attention_heads": heads, "num_key_value_heads": groups,
                       "intermediate_size": inner, "vocab_size": words,
                       "tie_word_embeddings": tied, "hidden_act": "silu", "max_position_embeddings": 32768,
                       "rope_theta": 1000000, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16"}, out)
        return path
    return ""


def asked(qplan, paths, gpus, more):
    return subprocess.run([qplan, "check", *paths, "--gpus", str(gpus), *more, "--no-best", "--json"],
                          capture_output=True, text=True, check=False)


def judged(qplan, job):
    """What `check` answers of a configuration, by its own model's size or by a stand-in's."""
    framework, name, files, said, text = job
    gpus = said or (8 if shards(text) else 1)
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for file in files:
            if not os.path.exists(file):  # a command's own text
                with open(os.path.join(folder, "train.sh"), "w", encoding="utf-8") as out:
                    out.write(file)
                file = os.path.join(folder, "train.sh")
            paths.append(file)
        more = ["--hardware", "gb200"] if "gb200" in name.lower() else []
        answer = asked(qplan, paths, gpus, more)
        model = "its own"
        if answer.returncode not in (0, 1) and "--model" in answer.stderr:
            experts = re.search(r"expert|moe|a3b|8x7b|ep_size: *[2-9]", text, re.IGNORECASE)
            shape = shape_of(text, folder)
            model = "its own" if shape else STAND_IN_OF_EXPERTS if experts else STAND_IN
            answer = asked(qplan, paths, gpus, [*more, "--model", shape or model])
    result = {"framework": framework, "name": name, "files": files, "gpus": gpus, "gpus_said": said is not None,
              "model": model}
    return answered(result, answer)


def answered(result, answer):
    """`result` with what check answered."""
    result["exit"] = answer.returncode
    if answer.returncode in (0, 1):
        found = json.loads(answer.stdout)
        result["read_as"] = found["framework"]
        result["job"] = found["this_job"]
        result["findings"] = [f for f in found["findings"] if f["severity"] != "note"]
        result["notes"] = [f for f in found["findings"] if f["severity"] == "note"]
        result["assumed"] = found["assumed"]
    else:
        result["findings"] = [{"severity": "error", "rule": "unread", "line": None, "message": answer.stderr.strip()}]
    return result


def report(results):
    """Errors and warnings of each, a line a finding."""
    for result in results:
        unsaid = "" if result["gpus_said"] else " (unsaid)"
        print(f"{result['framework']}: {result['name']}: {result['gpus']} GPUs{unsaid}, "
              f"model {result['model']}: exit {result['exit']}{'' if result['findings'] else ', nothing'}")
        for finding in result["findings"]:
            print(f"    {finding['severity']}, {finding['rule']}, line {finding['line']}: {finding['message']}")


def judged_of_list(qplan, job, checkouts):
    """The same of a configuration of the list."""
    repository, files, model, gpus, options = job
    paths = [os.path.join(checkouts, repository, file) for file in files]
    return answered({"framework": repository, "name": files[0], "files": files, "gpus": gpus, "gpus_said": True,
                     "model": model}, asked(qplan, paths, gpus, [*options, "--model", model]))


def chosen(results, each):
    """Every k-th of those of a built-in model's size, and of the others, in the order of their paths."""
    strata = collections.defaultdict(list)
    for result in results:
        strata[result["framework"], result["model"] == "its own"].append(result)
    for (framework, own), found in sorted(strata.items()):
        wanted = each if own else each // 2
        step = max(1, -(-len(found) // wanted)) if each else 1
        picked = found[::step]
        print(f"{framework}, {'built-in sizes' if own else 'stand-ins'}: {len(picked)} of {len(found)}, each {step}.")
        yield from picked


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkouts")
    parser.add_argument("--qplan", default="qplan")
    parser.add_argument("--each", type=int, help="of fine-tuning frameworks' configurations, of each at most so many")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.each is None:
        results = [judged_of_list(args.qplan, job, args.checkouts) for job in listed()]
        report(results)
        read = [result for result in results if result["exit"] in (0, 1)]
        clean = sum(not result["findings"] for result in read)
        print(f"{len(read)} read, {clean} of them with neither error nor warning")
        return 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda job: judged(args.qplan, job), jobs(args.checkouts)))
    picked = list(chosen(results, args.each))
    report(picked)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"all": results, "picked": [result["name"] for result in picked]}, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
