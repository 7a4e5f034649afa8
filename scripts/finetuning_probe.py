#!/usr/bin/env python3
"""Fine-tuning steps of Hugging Face's Trainer, timed on this machine's GPUs, as rows of `qplan accuracy`.

An oracle for docs/evidence/lora.md, no part of the product. Random weights of a built-in model's
config.json with fewer layers, sequences of exact length, full fine-tuning or LoRA (PEFT), on one
GPU, DDP, FSDP2 (accelerate) or DeepSpeed ZeRO-1 to 3:

    scripts/finetuning_probe.py --gpus 1 --draw 40 --seed 1 > jobs.json
    scripts/finetuning_probe.py --gpus 1 -o runs.csv jobs.json

Jobs are a list of objects: framework (single, ddp, fsdp2, ds1, ds2, ds3), model (a name under models/zoo), layers, seq,
mbs, accumulate, checkpoint (bool), lora (rank, or 0), targets (all, attention, qv), frozen (bf16, nf4), liger (bool), attention (sdpa, eager).
One process a GPU runs all of them, each after the memory of the one before was given back; where one fails on several
GPUs, they are begun anew. A row says the median step after three warm-up steps and torch's peak of
allocated and reserved memory, the largest of the ranks. A job that fails says why in `notes`.
"""

import argparse
import csv
import gc
import json
import os
import random
import select
import statistics
import subprocess
import sys
import time
import traceback

import torch
import torch.distributed as dist
import transformers
from finetuning_runs import HEADER
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

WARM_UP = 3
HARDWARE = {"H100": "h100-sxm", "H200": "h200-sxm", "A100": "a100-80gb-sxm"}
RECIPES = {"single": "ddp", "ddp": "ddp", "fsdp2": "fsdp2", "ds1": "deepspeed", "ds2": "deepspeed", "ds3": "deepspeed"}
ZERO = {"single": 0, "ddp": 0, "fsdp2": 3, "ds1": 1, "ds2": 2, "ds3": 3}
TARGETS = {
    "all": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "qv": ["q_proj", "v_proj"],
}


class Sequences(torch.utils.data.Dataset):
    """Random tokens of one length."""

    def __init__(self, count, length, vocabulary):
        self.tokens = torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, at):
        return {"input_ids": self.tokens[at], "labels": self.tokens[at]}


class Clock(TrainerCallback):
    """When each step after the warm-up had ended on the GPU."""

    def __init__(self):
        self.after = []

    def on_step_end(self, args, state, control, **_):
        if state.global_step >= WARM_UP:
            torch.cuda.synchronize()
            self.after.append(time.perf_counter())
        if state.global_step == WARM_UP:
            torch.cuda.reset_peak_memory_stats()


# Models that jobs are drawn from, with the layers that one GPU trains: those that prices were looked at beside, and
# others, trained whole.
MODELS = {"qwen3-0.6b": 28, "qwen3-1.7b": 28, "qwen3-4b": 36, "qwen3-8b": 36, "llama3-8b": 32, "phi-4": 20,
          "qwen2.5-14b": 20, "qwen3-30b-a3b": 6}
OTHER_MODELS = {"gpt-oss-20b": 6, "mixtral-8x7b": 4, "glm4.5-air": 3, "olmo2-32b": 8, "seed-oss-36b": 8,
                "nemotron4-15b": 10, "qwen2-57b-a14b": 5, "qwen3-30b-a3b": 8, "moonlight-16b-a3b": 10, "llama2-13b": 20,
                "mixtral-8x22b": 2}


def draw_others(count, seed):
    """Full training of models that no price was looked at beside, on one GPU."""
    chance = random.Random(seed)
    names = sorted(OTHER_MODELS) * (1 + count // len(OTHER_MODELS))
    jobs = []
    for model in names[:count]:
        seq = chance.choice([512, 1024, 2048, 4096, 8192])
        job = dict(framework="single", model=model, layers=OTHER_MODELS[model], seq=seq,
                   mbs=chance.choice([m for m in (1, 2, 4, 8) if m * seq <= 16384]), accumulate=chance.choice([1, 1, 2]),
                   checkpoint=chance.random() < 0.5, lora=0, steps=5)
        if model == "gpt-oss-20b":  # its sinks: torch's attention has none
            job.update(attention="eager", seq=min(seq, 4096))
        jobs.append(job)
    return jobs


def draw(gpus, count, seed):
    """Jobs as users have them, at random; some will not fit, which is an answer too."""
    chance = random.Random(seed)
    models = MODELS
    jobs = []
    while len(jobs) < count:
        model = chance.choice(list(models))
        lora = chance.choice([0, 8, 16, 64]) if model != "phi-4" else 0  # its products have names of their own
        layers = models[model]
        if not lora and model in ("qwen3-4b", "qwen3-8b", "llama3-8b", "phi-4", "qwen2.5-14b"):
            layers = chance.choice([8, 12])
        seq = chance.choice([256, 512, 1024, 2048, 4096, 8192])
        job = dict(framework=chance.choice(["single"] if gpus == 1 else ["ddp", "fsdp2", "ds1", "ds2", "ds3"]), model=model,
                   layers=layers, seq=seq, mbs=chance.choice([m for m in (1, 2, 4, 8) if m * seq <= 16384]),
                   accumulate=chance.choice([1, 1, 2]), checkpoint=chance.random() < 0.6, lora=lora)
        if lora:
            # Experts' weights are no linear layers in transformers 5: PEFT's names reach attention alone.
            job["targets"] = "attention" if "a3b" in model else chance.choice(["all", "attention", "qv"])
            job["dropout"] = chance.choice([0.0, 0.05])
            if gpus == 1 and "a3b" not in model and chance.random() < 0.3:
                job["frozen"] = "nf4"
        if chance.random() < 0.25 and "a3b" not in model:
            job["liger"] = True
        jobs.append(job)
    return jobs


def build(job):
    with open(f"models/zoo/{job['model']}.json") as file:
        fields = json.load(file)
    fields["num_hidden_layers"] = job["layers"]
    for key in ("layer_types", "max_window_layers"):
        if isinstance(fields.get(key), list):
            fields[key] = fields[key][: job["layers"]]
    config = AutoConfig.for_model(**fields)
    config.use_cache = False
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=job.get("attention", "sdpa"))
    if job.get("frozen") == "nf4":
        quantise(model)
    if job.get("lora"):
        from peft import LoraConfig, get_peft_model

        if job.get("checkpoint"):
            model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(
            r=job["lora"], lora_alpha=16, lora_dropout=job.get("dropout", 0.0), target_modules=TARGETS[job["targets"]],
            task_type="CAUSAL_LM"))
    return model, config


def quantise(model):
    """Every product of a layer becomes bitsandbytes' NF4, doubly quantised, as loading in 4 bits makes it."""
    import bitsandbytes as bnb

    for _, module in list(model.model.layers.named_modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                packed = bnb.nn.Linear4bit(child.in_features, child.out_features, bias=child.bias is not None,
                                           compute_dtype=torch.bfloat16, quant_type="nf4", compress_statistics=True)
                packed.weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, quant_type="nf4",
                                                  compress_statistics=True)
                setattr(module, name, packed.to("cuda"))
    model.is_loaded_in_4bit = True


def arguments_of(job, steps, layer):
    extra = {}
    if job["framework"] == "fsdp2":
        extra = dict(fsdp="full_shard auto_wrap" if int(transformers.__version__.split(".")[0]) < 5 else True,
                     fsdp_config={"fsdp_version": 2, "version": 2, "transformer_layer_cls_to_wrap": [layer],
                                  "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": True})
    if job["framework"].startswith("ds"):
        stage = int(job["framework"][2:])
        extra = dict(deepspeed={
            "bf16": {"enabled": True}, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}})
    return TrainingArguments(
        output_dir="/tmp/finetuning_probe", max_steps=steps, per_device_train_batch_size=job["mbs"],
        gradient_accumulation_steps=job.get("accumulate", 1), gradient_checkpointing=bool(job.get("checkpoint")),
        gradient_checkpointing_kwargs={"use_reentrant": False} if job.get("checkpoint") else None, bf16=True,
        save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True, optim="adamw_torch_fused",
        use_liger_kernel=bool(job.get("liger")), ddp_find_unused_parameters=False, learning_rate=1e-5,
        dataloader_pin_memory=True, seed=1, **extra)


def train(job):
    """A job's measurements on this rank."""
    steps = WARM_UP + job.get("steps", 8)
    model, config = build(job)
    blocks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    args = arguments_of(job, steps, type(blocks[0][0]).__name__)
    count = job["mbs"] * job.get("accumulate", 1) * args.world_size * steps
    clock = Clock()
    trainer = Trainer(model=model, args=args, train_dataset=Sequences(count, job["seq"], config.vocab_size),
                      callbacks=[clock])
    trainer.train()
    took = [b - a for a, b in zip(clock.after, clock.after[1:])]
    return dict(step=statistics.median(took), spread=max(took) / min(took) - 1,
                allocated=torch.cuda.max_memory_allocated() / 2**30, reserved=torch.cuda.max_memory_reserved() / 2**30)


def forget():
    """Gives back what a job held: what is left of it would count as the next one's."""
    from accelerate.state import AcceleratorState, GradientState
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    unset_hf_deepspeed_config()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def work(rank, world, deepspeed):
    """One rank: a job a line of standard input, its measurements a line after it."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if world > 1 or deepspeed:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    import peft  # noqa: F401

    torch.cuda.set_device(rank)
    if deepspeed:
        import deepspeed as package

        package.init_distributed(dist_backend="nccl")
    elif world > 1:
        dist.init_process_group("nccl")
    for line in sys.stdin:
        held = forget()
        held = held if held > 2**29 else 0  # workspaces of products are the next job's, too
        try:
            answer = train(json.loads(line))
        except (RuntimeError, ValueError, TypeError, torch.OutOfMemoryError) as error:
            answer = dict(why=f"{type(error).__name__}: {error}".splitlines()[0][:300])
            traceback.print_exc()
            del error
        answers.write(json.dumps(dict(answer, held=held)) + "\n")


class Ranks:
    """One process a GPU."""

    def __init__(self, world, deepspeed, log):
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29500 + os.getpid() % 1000 + Ranks.begun))
        Ranks.begun += 1
        self.processes = [
            subprocess.Popen([sys.executable, __file__, "--worker", str(rank), "--gpus", str(world)]
                             + (["--deepspeed"] if deepspeed else []), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=log, text=True, env=environment)
            for rank in range(world)]

    begun = 0

    def run(self, job):
        """The largest of the ranks' measurements, or the reason why there are none."""
        for process in self.processes:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        deadline = time.time() + job.get("limit_s", 60)
        waiting, answers = {process.stdout: process for process in self.processes}, []
        while waiting:
            ready = select.select(list(waiting), [], [], max(0.0, deadline - time.time()))[0]
            if not ready:
                return None, "no answer within its time"
            for stdout in ready:
                line = stdout.readline()
                answers.append(json.loads(line) if line else dict(why="the process ended"))
                waiting.pop(stdout)
                if "why" in answers[-1]:  # the other ranks wait for this one
                    return None, answers[-1]["why"]
        for answer in answers:  # DeepSpeed's engines stay in memory when their Trainer goes
            answer["allocated"] -= answer["held"] / 2**30
        return {key: max(answer[key] for answer in answers) for key in answers[0]}, ""

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


def row_of(job, world, measured, why):
    accumulate = job.get("accumulate", 1)
    words = []
    in_place = RECIPES[job["framework"]] == "ddp"  # accelerate's FSDP2 makes what is trained fp32
    if job.get("lora"):
        words += [f"lora{job['lora']}", "lora_targets=" + "+".join(TARGETS[job["targets"]]), "lora_alpha=16"]
        if job.get("dropout"):
            words.append(f"lora_dropout={job['dropout']}")
        # PEFT makes adapters of a model in bf16 fp32; DeepSpeed's engine makes them bf16 again.
        if in_place:
            words.append("lora_dtype=fp32")
    elif in_place:
        words += ["main_params_dtype=bf16", "moment_dtype=bf16", "grad_dtype=bf16"]
    if job.get("frozen") == "nf4":
        words.append("frozen_weights=nf4-double")
    if job.get("attention") == "eager":
        words.append("attention_backend=unfused")
    if job.get("liger"):
        words += ["module_kernels=all", "loss=liger"]
    gpu = torch.cuda.get_device_name(0)
    return dict(
        id="probe-" + "-".join(str(job.get(k, "")) for k in ("framework", "model", "layers", "seq", "mbs", "accumulate",
                                                              "checkpoint", "lora", "targets", "frozen", "liger")),
        grade="A", hardware=next((v for k, v in HARDWARE.items() if k in gpu), ""), recipe=RECIPES[job["framework"]],
        base_model=job["model"], layers=job["layers"], num_gpus=world, gpus_per_node=max(world, 1), precision_words="bf16",
        tp=1, pp=1, cp=1, zero=ZERO[job["framework"]], seq_len=job["seq"], micro_batch=job["mbs"],
        global_batch=job["mbs"] * accumulate * world, recompute_words="full" if job.get("checkpoint") else "none",
        step_time_s=round(measured["step"], 6) if measured else "", mem_gib=round(measured["allocated"], 4) if measured else "",
        mem_kind="allocated" if measured else "", source_repo_or_paper="qplan/finetuning_probe",
        framework=f"HF Trainer {transformers.__version__}", model=job["model"], other_flags="",
        notes=f"reserved {measured['reserved']:.3f} GiB; spread {measured['spread']:.3f}" if measured else why,
        status="" if measured else "failed", plan_words=" ".join(words))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("jobs", nargs="?", help="JSON: a list of jobs")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--draw", type=int, help="print so many random jobs instead")
    parser.add_argument("--others", action="store_true", help="of models that no price was looked at beside")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=480, help="seconds after which no job is begun")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--deepspeed", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", default="finetuning_probe.csv")
    args = parser.parse_args()
    if args.draw:
        jobs = draw_others(args.draw, args.seed) if args.others else draw(args.gpus, args.draw, args.seed)
        print("[\n" + ",\n".join(json.dumps(job) for job in jobs) + "\n]")
        return
    if args.worker is not None:
        work(args.worker, args.gpus, args.deepspeed)
        return
    # Liger's kernels replace those of a model's module for good: what has none of them comes first.
    jobs = sorted(json.load(open(args.jobs)), key=lambda job: bool(job.get("liger")))
    deepspeed = any(job["framework"].startswith("ds") for job in jobs)
    begin = time.time()
    rows = []
    log = open(args.output + ".log", "w")
    ranks = Ranks(args.gpus, deepspeed, log)
    for at, job in enumerate(jobs):
        if time.time() - begin > args.budget:
            print(f"stopped before job {at}: the budget of {args.budget:.0f} s is spent")
            break
        since = time.time()
        measured, why = ranks.run(job)
        rows.append(dict(job=job, measured=measured, why=why))
        print(f"{time.time() - since:5.1f} s  {json.dumps(job)}  {measured or why}", flush=True)
        with open(args.output + ".json", "w") as file:
            json.dump(rows, file, indent=1)
        if not measured:
            ranks.stop()
            ranks = Ranks(args.gpus, deepspeed, log)
    ranks.stop()
    with open(args.output, "w", newline="") as file:
        writer = csv.DictWriter(file, HEADER, restval="")
        writer.writeheader()
        for row in rows:
            # Only what ran out of memory is a run that failed; the rest is none.
            if not row["measured"] and "OutOfMemory" not in row["why"]:
                continue
            writer.writerow(row_of(row["job"], args.gpus, row["measured"], row["why"]))


if __name__ == "__main__":
    main()
