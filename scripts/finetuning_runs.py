#!/usr/bin/env python3
"""Makes `qplan accuracy`'s table of published fine-tuning runs out of one with a row a metric.

    scripts/finetuning_runs.py RAW.csv > finetuning.csv
    scripts/finetuning_runs.py RAW.csv --mlperf > mlperf_lora.csv     # MLPerf's Llama 2 70B LoRA alone
    ... --half find|judge          # one half of the runs, by a hash of what was run
    scripts/finetuning_runs.py RAW.csv --without qwen > tests/data/runs/finetuning.csv

RAW has the columns source (repository@commit:path), model, gpus, gpu_type, tp, pp, cp, dp, zero, mbs, gbs, seq,
precision, framework, metric, value and notes. Every run becomes one row; what the header of `qplan accuracy` has no
column for is said in `plan_words`.

Traps of the sources, and what is made of them:

* fms-acceleration reports torch's peak of allocated memory and what nvidia-smi shows. The peak is taken (allocated);
  nvidia-smi's figure holds context, NCCL and all that the allocator keeps, so it stands in where there is no peak, as
  memory of unknown kind. MiB and bytes become GiB.
* A run without a throughput failed (mostly out of memory): status `failed`, and no figure of it is one.
* Its padding-free, multipack and MoE files train on documents of any length: a sequence is as long as the tokens that
  were counted make it on average, padding included where there is any. Time is comparable, memory is not (the longest
  batch decides), so that those rows carry none.
* QwenLM/Qwen sums memory over the GPUs: divided here. What measured it is not said.
* PEFT's sequences are as long as a question is, 768 at most: its mean tokens a step are taken, and no memory. The GPU
  is in each file's meta_info, which the table does not have: graded C.
* fsdp_qlora times 1024 samples of exact length: a step is that over 1024 / batch. Cards that no profile describes
  are left out.
"""

import argparse
import csv
import hashlib
import re
import sys

GIB = 2.0**30

HEADER = """id grade hardware recipe base_model mlp norm head_dim zero fsdp recompute_words offload_words precision_words
routing dispatcher overlap cuda_graph mem_gib mem_kind source_repo_or_paper source_path_or_table model params_b
active_params_b layers hidden heads kv_heads ffn experts topk moe_ffn vocab seq_len gpu num_gpus gpus_per_node
intra_node_link inter_node_link framework precision tp sp pp vpp cp ep etp dp zero_or_fsdp micro_batch global_batch
recompute offload other_flags step_time_s tokens_per_s_per_gpu tflops_per_gpu mfu mem_gb_per_gpu notes
tied_embeddings status plan_words""".split()

# Architectures by the end of the model's name, from each one's config.json; a base_model is one that qplan has.
MODELS = {
    "Mistral-7B-v0.1": dict(base_model="llama3-8b", vocab=32000),
    "mistral-7b": dict(base_model="llama3-8b", vocab=32000),
    "Mixtral-8x7B-Instruct-v0.1": dict(base_model="mixtral-8x7b"),
    "Meta-Llama-3-8B": dict(base_model="llama3-8b"),
    "Llama-2-70b-hf": dict(base_model="llama2-70b"),
    "llama2-70b": dict(base_model="llama2-70b"),
    "llama2-7b": dict(base_model="llama2-7b"),
    "yi-34b": dict(base_model="llama2-70b", layers=60, hidden=7168, heads=56, kv_heads=8, ffn=20480, vocab=64000),
    "gpt_bigcode-santacoder": dict(mlp="gelu", norm="layernorm", layers=24, hidden=2048, heads=16, kv_heads=1, ffn=8192,
                                   vocab=49280, tied_embeddings=1),
    "PowerLM-3b": dict(base_model="llama2-7b", layers=40, hidden=2304, heads=36, kv_heads=36, head_dim=64, ffn=9216,
                       vocab=49152, tied_embeddings=1),
    "granite-3.0-3b-a800m-instruct": dict(base_model="mixtral-8x7b", layers=32, hidden=1536, heads=24, kv_heads=8,
                                          head_dim=64, ffn=512, experts=40, topk=8, moe_ffn=512, vocab=49155,
                                          tied_embeddings=1),
    "Qwen-1.8B": dict(base_model="qwen2.5-14b", layers=24, hidden=2048, heads=16, kv_heads=16, head_dim=128, ffn=5504,
                      vocab=151936),
    "Qwen-7B": dict(base_model="qwen2.5-14b", layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=11008,
                    vocab=151936),
    "Qwen-14B": dict(base_model="qwen2.5-14b", layers=40, hidden=5120, heads=40, kv_heads=40, head_dim=128, ffn=13696,
                     vocab=152064),
    "Qwen-72B": dict(base_model="qwen2.5-14b", layers=80, hidden=8192, heads=64, kv_heads=64, head_dim=128, ffn=24576,
                     vocab=152064),
    "Llama-3.2-3B": dict(base_model="llama3-8b", layers=28, hidden=3072, heads=24, kv_heads=8, head_dim=128, ffn=8192,
                         vocab=128256, tied_embeddings=1),
}

MACHINES = {"A100-80": "a100-80gb-sxm", "A100-80GB": "a100-80gb-sxm", "A100": "a100-80gb-sxm", "A100-40": "a100-40gb-sxm",
            "H100": "h100-sxm", "H200": "h200-sxm", "B200": "b200", "B300": "b300", "GB200": "gb200", "GB300": "gb300"}

# Weights, gradients and moments of a program that loads its model in 16 bits and trains all of it.
ALL_IN_16_BITS = ["main_params_dtype=bf16", "moment_dtype=bf16", "grad_dtype=bf16"]


def repository(row):
    return row["source"].split(":")[0].split("@")[0]


def runs_of(rows):
    """Rows that differ in the metric alone, as one run: (any of them, {metric: value})."""
    runs = {}
    for row in rows:
        key = tuple(v for k, v in row.items() if k not in ("metric", "value"))
        runs.setdefault(key, (row, {}))[1][row["metric"].split("(")[0]] = row["value"]
    return list(runs.values())


def number(text):
    return float(text) if text else None


def blank(row, identity, grade="B"):
    model = row["model"].split("/")[-1]
    out = dict.fromkeys(HEADER, "")
    out.update(
        id=identity, grade=grade, hardware=MACHINES.get(row["gpu_type"], ""), gpu=row["gpu_type"], model=row["model"],
        source_repo_or_paper=repository(row), source_path_or_table=row["source"], mlp="swiglu", norm="rmsnorm",
        num_gpus=row["gpus"], framework=row["framework"], precision=row["precision"], precision_words="bf16", tp=1, pp=1,
        cp=1, micro_batch=row["mbs"], global_batch=row["gbs"], recompute=row["recompute"], zero_or_fsdp=row["zero"],
        notes=row["notes"])
    out.update(MODELS.get(model.removesuffix("-GPTQ"), {}))
    return out


def lora_words(rank, targets, alpha=None):
    words = [f"lora{rank}"]
    if targets:
        words.append("lora_targets=" + "+".join(targets))
    if alpha:
        words.append(f"lora_alpha={alpha}")
    return words


# ---- foundation-model-stack/fms-acceleration ----

def fms(row, metrics, at):
    file = re.search(r"a100_80gb(\w*)\.csv", row["source"]).group(1).strip("_") or "base"
    out = blank(row, f"fms_accel-{file}-{at}")
    kernels = row["framework"].split(": ")[-1]
    gpus = int(row["gpus"])
    sharded = "FSDP" in row["zero"]
    out.update(hardware="a100-80gb-sxm", recipe="fsdp1" if sharded else "ddp", zero=3 if sharded else 0,
               recompute_words="full", seq_len=4096)
    words = []
    lora = re.search(r"lora r=(\d+)\S* alpha=(\d+)", row["notes"])
    if lora:
        words += lora_words(lora.group(1), ["q_proj", "k_proj", "v_proj", "o_proj"], lora.group(2)) + ["lora_dropout=0.1"]
        if "gptq" not in kernels:
            # PEFT 0.13.2 (requirements.txt beside the figures) makes adapters fp32 (autocast_adapter_dtype), with
            # bf16: True and without; GPTQ's layers leave it to autocast what an adapter reads.
            words.append("lora_dtype=fp32")
        if "gptq" in kernels:
            words.append("frozen_weights=int4")
        elif "bnb" in kernels:
            words.append("frozen_weights=nf4-double")
        # TRL leaves a model that FSDP shards as it is (its sharded_qlora).
        if "baseline" in kernels and not sharded:
            words.append("fp32_norms=true")
    elif not sharded or file not in ("liger", "moe"):
        # accelerate makes fp32 what FSDP trains in mixed precision, which scenarios-liger.yaml asks for (bf16: True);
        # without that flag, and on one GPU, weights are trained in the format that they were loaded in.
        words += ALL_IN_16_BITS
    # Fused operations and kernels: rotary embeddings, norms and the loss; SwiGLU is torch's.
    if "foak" in kernels:
        words += ["module_kernels=norms", "loss=liger" if kernels.endswith("liger") else "loss=fused"]
    if "scattermoe" in kernels:
        out["grade"] = "C"  # its kernels are none that a plan names
    steps, batch = 100, int(row["gbs"])
    runtime, rate = number(metrics.get("train_runtime_s")), number(metrics.get("tokens_per_s_per_gpu"))
    exact = file in ("base", "liger", "granite")
    if not runtime or not rate:
        out["status"] = "failed"
    elif exact:
        # Tokens that were counted: a model of shorter positions takes shorter sequences.
        out["seq_len"] = round(rate * runtime * gpus / (steps * batch))
        out["step_time_s"] = round(runtime / steps, 6)
    else:
        # A whole epoch of so many documents (Orca-Math's subsets; 100 steps of the MoE file).
        samples = {"pf": 8000, "mp": 2000}.get(file, steps * batch)
        out["seq_len"] = max(1, round(rate * runtime * gpus / samples))
        out["step_time_s"] = round(runtime * batch / samples, 6)
        out["notes"] += f"; seq derived from tokens over {samples} samples"
    if exact and not out["status"]:
        peak, smi = number(metrics.get("peak_allocated_bytes")), number(metrics.get("nvidia_smi_memory_MiB"))
        if peak:
            out.update(mem_gib=round(peak / GIB, 4), mem_kind="allocated")
        elif smi:
            out.update(mem_gib=round(smi / 1024, 4), mem_kind="unknown")
    out["plan_words"] = " ".join(words)
    return out


# ---- QwenLM/Qwen ----

def qwen(row, metrics, at):
    kind = row["framework"].removeprefix("HF Trainer + PEFT ")
    out = blank(row, f"qwen-{row['model']}-{at}")
    # Its script trains whole models by DeepSpeed (finetune/finetune_ds.sh), on one GPU, too; Qwen-7B's 69.6 GB a GPU are
    # ZeRO-3's on two: ZeRO-2's step takes 12 bytes a parameter there, 92 GB.
    full = "LoRA" not in kind
    gpus, zero3 = int(row["gpus"]), full or "Zero3" in kind or row["zero"] == "3"
    sharded = gpus > 1 or full
    out.update(hardware="a100-80gb-sxm", recipe="deepspeed" if sharded else "ddp", recompute_words="full", seq_len=row["seq"],
               zero=3 if zero3 else 2 if sharded else 0, step_time_s=metrics.get("step_time_s", ""))
    if "emb" in kind:
        out["grade"] = "C"  # embeddings are trained beside adapters, which no plan says
    words = []
    if "LoRA" in kind:
        words += lora_words(64, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], 16)
        words.append("lora_dropout=0.05")
    if "Q-LoRA" in kind:
        words.append("frozen_weights=int4")
    out["plan_words"] = " ".join(words)
    memory = number(metrics.get("total_memory_GB"))
    if memory:
        out.update(mem_gib=round(memory / gpus, 4), mem_kind="unknown")
    return out


# ---- AnswerDotAI/fsdp_qlora ----

def fsdp_qlora(row, metrics, at):
    if row["gpu_type"] not in MACHINES:
        return None
    out = blank(row, f"fsdp_qlora-{row['model']}-{at}", "A")
    gpus, mbs = int(row["gpus"]), int(row["mbs"])
    batch = gpus * mbs
    sharded = "FSDP" in row["zero"]
    out.update(recipe="fsdp1" if sharded else "ddp", zero=3 if sharded else 0, recompute_words="full", seq_len=row["seq"],
               global_batch=batch, step_time_s=round(float(metrics["seconds_for_1024_samples"]) * batch / 1024, 5))
    if "offload" in row["zero"]:
        out["offload_words"] = "optimizer,params"
    words = lora_words(64, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], 16)
    words.append("lora_dropout=0.1")
    if "nf4" in row["precision"]:
        words.append("frozen_weights=nf4")
    out["plan_words"] = " ".join(words)
    peak = number(metrics.get("peak_memory_GiB"))
    if peak:
        out.update(mem_gib=peak, mem_kind="unknown")
    return out


# ---- huggingface/peft ----

def peft(row, metrics, at):
    if not re.search(r"/lora--", row["source"]) or re.search("dora|lorafa", row["source"]):
        return None  # methods that no plan says
    out = blank(row, f"peft-{at}", "C")
    tokens = float(metrics["tokens_per_s"]) * float(metrics["step_time_s"])
    rank = re.search(r"r=(\d+)", row["notes"]).group(1)
    out.update(hardware="a100-80gb-sxm", recipe="ddp", zero=0, recompute_words="none", seq_len=round(tokens / int(row["gbs"])),
               step_time_s=metrics["step_time_s"], plan_words=" ".join(lora_words(rank, ["q_proj", "v_proj"])))
    return out


# ---- MLPerf, Llama 2 70B LoRA ----

def mlperf(row, metrics, at):
    if "LoRA" not in row["model"] or not row["tp"] or row["gpu_type"] not in MACHINES:
        return None
    round_ = re.search(r"training_results_(v[\d.]+)", row["source"]).group(1)
    notes = row["notes"]
    grade = re.search(r"Q=(\w)", notes).group(1)
    out = blank(row, f"mlperf-{round_}-{row['gpu_type']}-{row['gpus']}-{at}", grade)
    nvfp4 = "nvfp4" in row["precision"]
    tp, cp = int(row["tp"]), int(row["cp"])
    graphs = re.search(r"(LAYER|MCORE|FULL)_CUDA_GRAPH=1", notes)
    out.update(recipe="megatron", base_model="llama2-70b", zero=1, tp=tp, pp=row["pp"], cp=cp, sp=int(tp > 1), vpp=row["vpp"],
               seq_len=row["seq"], recompute_words="none", precision_words="nvfp4" if nvfp4 else "fp8",
               cuda_graph="layer" if graphs else "",
               overlap="tp" if tp > 1 and re.search("TP_COMM_OVERLAP=(1|True)", notes) else "",
               step_time_s=metrics["step_time_s"])
    words = lora_words(16, ["q_proj", "k_proj", "v_proj", "o_proj"], 32) + ["lora_dropout=0.1"]
    if re.search(r"FP8_DPA=(1|True)", notes):
        words.append("fp8_dot_product_attention=true")
    # CP_COMM_TYPE of their configuration from v5.0 on (conf/megatron_gpt_peft_tuning_config.yaml); before, NeMo's ring.
    if cp > 1 and round_ >= "v5.0" and not row["gpu_type"].startswith("MI"):
        words.append("cp_comm=a2a")
    if tp > 1 and "LORA_A2A=1" in notes:
        words.append("lora_a2a=true")
    # (FP8_PARAM_GATHER is of weights that are trained: frozen ones lie in fp8 alone, or 144 GiB would not leave
    # the 80 GiB that some of these cards have.)
    out["plan_words"] = " ".join(words)
    if "peak_memory_GB" in metrics:
        out.update(mem_gib=metrics["peak_memory_GB"], mem_kind="allocated")
    return out


READERS = {"foundation-model-stack/fms-acceleration": fms, "QwenLM/Qwen": qwen, "AnswerDotAI/fsdp_qlora": fsdp_qlora,
           "huggingface/peft": peft}


def half_of(out):
    """Runs that differ in kernels alone fall into the same half, so that nearly the same run is never in both."""
    what = "|".join(str(out[k]) for k in ("source_repo_or_paper", "model", "hardware", "num_gpus", "micro_batch", "seq_len"))
    return "find" if int(hashlib.sha256(what.encode()).hexdigest(), 16) % 2 else "judge"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw")
    parser.add_argument("--mlperf", action="store_true", help="MLPerf's Llama 2 70B LoRA, and nothing else")
    parser.add_argument("--without", default="", help="a source to leave out, as ids begin: qwen")
    parser.add_argument("--half", choices=("find", "judge"))
    options = parser.parse_args()
    with open(options.raw, newline="") as file:
        rows = list(csv.DictReader(file))
    writer = csv.DictWriter(sys.stdout, HEADER, lineterminator="\n")
    writer.writeheader()
    count = {}
    for row, metrics in runs_of(rows):
        source = repository(row)
        reader = (mlperf if options.mlperf and source.startswith("mlcommons/") else
                  READERS.get(source) if not options.mlperf else None)
        if reader is None:
            continue
        count[source] = count.get(source, 0) + 1
        out = reader(row, metrics, count[source])
        if out is not None and out["id"].split("-")[0] == options.without:
            continue
        if out is not None and (options.half is None or half_of(out) == options.half):
            writer.writerow(out)


if __name__ == "__main__":
    main()
