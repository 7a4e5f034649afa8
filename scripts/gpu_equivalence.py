#!/usr/bin/env python3
"""Losses of the same model and batch under many plans: on GPUs against the reference backend.

For docs/evidence/executor.md. Small models, so that the reference backend can run them:

    scripts/gpu_equivalence.py --qplan build/release/cli/qplan --backend cpu -o cpu.json
    scripts/gpu_equivalence.py --qplan build/release/cli/qplan --backend cuda --against cpu.json -o gpu.json
    scripts/gpu_equivalence.py --backend cuda --together build/release/tests/gpu_plans --gpus 4 --against cpu.json
"""

import argparse
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

from gpu_pool import GpuPool, ranks_of

ZOO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "zoo")
BATCH = "gbs4 seq128"
# Llama 4's parts, of which no built-in model is small. Scout's: norms of queries and keys, and chunks that leave 32 of
# 128 tokens; Maverick's: two equal chunks, and every other layer has experts.
LLAMA4 = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16,
          "intermediate_size": 32, "intermediate_size_mlp": 128, "num_local_experts": 8, "vocab_size": 256,
          "max_position_embeddings": 512, "rope_theta": 10000, "floor_scale": 16}
# Of models that have no tiny one among the built-in: whose parts they have, and how large.
SMALL = {
    "tiny-scout": ("llama4-scout-17b-16e", {
        **LLAMA4, "num_experts_per_tok": 2, "use_qk_norm": True, "attention_chunk_size": 48,
        "no_rope_layers": [1, 1, 0, 0], "moe_layers": [1, 2]}),
    "tiny-maverick": ("llama4-maverick-17b-128e", {
        **LLAMA4, "num_experts_per_tok": 1, "use_qk_norm": False, "attention_chunk_size": 64,
        "interleave_moe_layer_step": 2}),
    "tiny-next": ("qwen3-next-80b-a3b", {
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 40,
        "intermediate_size": 128, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
        "num_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.0, "vocab_size": 256,
        "max_position_embeddings": 512}),
    "tiny-nemotron": ("nemotron-3-super-120b-a12b", {
        "hidden_size": 64, "num_hidden_layers": 6, "hybrid_override_pattern": "MEM*-E", "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 128, "mamba_num_heads": 16, "mamba_head_dim": 16,
        "n_groups": 4, "ssm_state_size": 40, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "moe_latent_size": 32, "moe_shared_expert_intermediate_size": 64,
        "router_aux_loss_coef": 0.0, "num_nextn_predict_layers": 1, "vocab_size": 256,
        "max_position_embeddings": 512}),
    # Predicts another token, as tiny-nemotron does.
    "tiny-glm": ("glm4.5-air", {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 256, "max_position_embeddings": 512}),
}
SHARDED = ["", "zero1", "zero2", "zero3"]
NARROW = [f"{words} precision=fp8".strip()
          for words in ("", "recompute=full", "mbs2 recompute=selective:mlp+layernorm", "dp2 zero1 overlap=grad+param",
                        "dp2 zero3", "tp2", "tp2 sp", "tp2 sp recompute=full zero1", "pp2", "cp2", "cuda_graph")]
GRAPHS = [f"{words} cuda_graph".strip()
          for words in ("", "mbs2 recompute=full", "dp2", "dp2 zero1 overlap=grad+param", "offload=optimizer:0.5")]
PLANS = {
    "tiny": ["", "recompute=full", "recompute=selective", "mbs2", "offload=optimizer",
             *[f"dp2 {z}" for z in SHARDED], "dp2 zero1 overlap=grad+param", "dp2 zero3 recompute=full",
             "dp2 zero1 offload=optimizer:0.5", "dp2 zero3 offload=optimizer",
             "tp2", "tp2 sp", "tp2 sp recompute=full", "tp2 sp mbs2 zero1",
             "pp2", "pp2 gpipe", "pp2 vpp2 interleaved", "pp2 zb-h1", "pp2 vpp2 zbv",
             "pp2 recompute=full mbs2", "pp2 offload=optimizer",
             "cp2", "cp2 mbs2", "cp2 cp_comm=all_gather", "cp2 mbs2 cp_comm=all_gather", "cp2 cp_comm=a2a",
             "cp2 mbs2 cp_comm=a2a", "cp2 zero1 recompute=full", "cp2 zero3", *NARROW, *GRAPHS],
    "tiny-tied": ["", *[f"dp2 {z}" for z in SHARDED], "tp2 sp", "pp2", "pp2 zero1"],
    "tiny-moe": ["", "recompute=full", "dp2", "dp2 ep2", "dp2 ep2 zero1", "dp2 ep2 zero3", "dp2 etp2", "tp2 sp ep2",
                 "tp2 sp etp2", "cp2 ep2", "cp2", "pp2", "dp2 ep2 recompute=full mbs2",
                 "dp2 ep2 precision=fp8", "tp2 sp ep2 precision=fp8", "cuda_graph"],
    "tiny-mla": ["", "recompute=full", "dp2 ep2 zero1", "tp2 sp", "cp2", "cp2 cp_comm=a2a", "pp2", "tp2 sp precision=fp8"],
    "tiny-scout": ["", "mbs2", "mbs2 recompute=full", "mbs2 recompute=selective:core_attn+moe_act", "cuda_graph",
                   "mbs2 precision=fp8", "offload=optimizer:0.5", "dp2 ep2 zero1", "dp2 zero3", "dp2 etp2",
                   "tp2 sp", "tp2 sp ep2", "tp2 sp recompute=full", "pp2", "pp2 vpp2 interleaved", "cp2 mbs2 cp_comm=a2a",
                   "cp2 ep2 cp_comm=a2a"],
    "tiny-maverick": ["", "mbs2 recompute=full", "dp2 ep2", "tp2 sp", "pp2 zb-h1", "cp2 mbs2 cp_comm=a2a"],
    "tiny-next": ["", "mbs2", "recompute=full", "mbs2 recompute=selective", "lora8", "dp2 ep2", "dp2 ep2 zero1",
                  "dp2 zero3", "dp2 ep2 zero3 recompute=full mbs2", "tp2 sp", "tp2 sp ep2 mbs2", "pp2",
                  "pp2 zb-h1 mbs2"],
    "tiny-nemotron": ["", "mbs2", "recompute=full", "mbs2 recompute=selective", "lora8", "dp2 ep2", "dp2 ep2 zero1",
                      "dp2 zero3", "dp2 ep2 zero3 recompute=full mbs2", "tp2 sp", "tp2 sp ep2 mbs2", "pp2",
                      "pp2 zb-h1 mbs2"],
    "tiny-glm": ["", "mbs2", "recompute=full", "mbs2 recompute=selective", "cuda_graph",
                 "offload=optimizer:0.5", "dp2 ep2 zero1", "dp2 zero3", "tp2 sp", "tp2 sp mbs2", "cp2 ep2", "pp2",
                 "pp2 zb-h1 mbs2"],
}
# Of four ranks: axes together.
PLANS_OF_FOUR = {
    "tiny": ["pp4", "pp4 zb-h1", "pp2 vpp2 interleaved dp2", "tp2 pp2", "tp2 sp pp2 zb-h1", "pp2 dp2 zero1",
             "pp2 dp2 zero2", "pp2 cp2", *[f"dp4 {z}" for z in SHARDED], "dp4 zero1 overlap=grad+param",
             "dp4 zero3 offload=optimizer:0.5", "tp2 dp2 zero1", "tp2 sp dp2 zero3", "cp2 dp2 zero1",
             "cp4", "cp4 cp_comm=all_gather", "tp2 sp cp2", "tp2 sp pp2 recompute=full"],
    "tiny-tied": ["dp4 zero3", "tp2 sp pp2", "pp2 dp2 zero1", "pp4"],
    "tiny-moe": ["dp4 ep4", "dp4 ep4 zero1 recompute=full", "dp4 ep2 zero1", "dp4 ep2 zero3", "tp2 sp dp2 ep2",
                 "tp2 sp dp2 ep4 zero1", "pp2 dp2 ep2", "cp2 dp2 ep4", "tp2 sp pp2 ep2", "dp4 etp2 ep2",
                 "dp4 ep4 offload=optimizer:0.3"],
    "tiny-mla": ["dp4 ep4 zero1", "tp2 sp dp2 ep2", "pp2 dp2 ep2", "cp2 dp2 ep2"],
    "tiny-scout": ["tp2 sp dp2 ep2 etp2 zero1", "pp2 dp2 ep2", "tp2 sp cp2 cp_comm=a2a", "cp4 cp_comm=a2a"],
    "tiny-next": ["tp2 sp pp2", "tp2 sp dp2 ep2 zero1", "dp4 ep4 zero3", "pp2 dp2 ep2"],
    "tiny-nemotron": ["tp2 sp pp2", "tp2 sp dp2 ep2 zero1", "dp4 ep4 zero3", "pp2 dp2 ep2"],
    "tiny-glm": ["tp2 sp pp2", "dp4 ep4 zero3", "pp2 dp2 ep2"],
}


def model_file(folder, name):
    built_in, sizes = SMALL.get(name, (name.replace("-tied", ""), {}))
    with open(os.path.join(ZOO, built_in + ".json")) as file:
        fields = {**json.load(file), **sizes}
    fields["tie_word_embeddings"] = name.endswith("-tied")
    path = os.path.join(folder, name + ".json")
    with open(path, "w") as file:
        json.dump(fields, file)
    return path


def run(args, model, words, environment):
    command = [args.qplan, "run", f"{words} {BATCH}".strip(), "--model", model, "--hardware", "h200-sxm",
               "--backend", args.backend, "--steps", str(args.steps), "--lr", "1e-3", "--json",
               "--moe-imbalance", "2", "--timeout", "30"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=args.limit, env=environment)
    if result.returncode:
        raise RuntimeError((result.stderr + result.stdout).strip()[-400:])
    answer = json.loads(result.stdout)
    return {"loss": answer["loss"], "grad_norm": answer["grad_norm"]}


def run_together(args, folder, ranks, jobs):
    """Of (model, words): what each gave, in that order; those behind the first that fails are left out."""
    plans = os.path.join(folder, f"plans-{ranks}.json")
    with open(plans, "w") as file:
        json.dump([{"model": model, "plan": f"{words} {BATCH}".strip(), "steps": args.steps, "lr": 1e-3,
                    "moe_imbalance": 2, "timeout_s": 30} for model, words in jobs], file)
    with subprocess.Popen([args.together, plans, str(ranks)], stdout=subprocess.PIPE, text=True) as job:
        for line in job.stdout:
            yield json.loads(line)


def answers(args, folder, chosen):
    """Of (name, model, words): a plan's key, and what it gave or why it gave nothing."""
    keys = [f"{name}: {words}".strip() for name, _, words in chosen]
    if args.together:
        for ranks in sorted({ranks_of(words) for _, _, words in chosen}):
            own = [i for i, (_, _, words) in enumerate(chosen) if ranks_of(words) == ranks]
            lost = itertools.repeat(RuntimeError("not run"))
            given = itertools.chain(run_together(args, folder, ranks, [chosen[i][1:] for i in own]), lost)
            yield from zip([keys[i] for i in own], given)
        return
    jobs = [(ranks_of(words), functools.partial(run, args, model, words)) for _, model, words in chosen]
    for key, future in zip(keys, GpuPool(args.gpus, args.runs).run(jobs)):
        error = future.exception()
        if error and not isinstance(error, (RuntimeError, subprocess.TimeoutExpired, ValueError)):
            raise error
        yield key, error or future.result()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--qplan", default="qplan")
    parser.add_argument("--backend", required=True, choices=["cpu", "cuda"])
    parser.add_argument("--against", help="what another backend gave")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--limit", type=float, default=60, help="seconds a plan may take")
    parser.add_argument("--gpus", type=int, default=2, help="of this machine; plans of no more ranks")
    parser.add_argument("--runs", type=int, default=1, help="at once on each GPU")
    parser.add_argument("--of", type=int, help="only the plans of so many ranks")
    parser.add_argument("--together", help="gpu_plans, a program of the tests, whose processes start once")
    parser.add_argument("--models", nargs="+", default=[*PLANS], help="only the plans of these")
    parser.add_argument("--only", help="plans with this word")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    known = {}
    if args.against:
        with open(args.against) as file:
            known = json.load(file)["runs"]
    runs, failed, worst, begin = {}, [], {"loss": 0, "grad_norm": 0}, time.time()
    with tempfile.TemporaryDirectory() as folder:
        chosen = [(name, model_file(folder, name), words)
                  for name, plans in [*PLANS.items(), *PLANS_OF_FOUR.items()] for words in plans
                  if name in args.models and ranks_of(words) <= args.gpus and args.of in (None, ranks_of(words))
                  and (args.only is None or args.only in words.split())]
        for key, answer in answers(args, folder, chosen):
            if isinstance(answer, Exception):
                failed.append(key)
                print(f"{key}: FAILED {answer}", flush=True)
                continue
            runs[key] = answer
            if key not in known:
                continue
            # Later steps drift: AdamW turns the smallest gradients' signs into whole steps.
            off = {"loss": max(abs(a / b - 1) for a, b in zip(runs[key]["loss"], known[key]["loss"])),
                   "grad_norm": abs(runs[key]["grad_norm"][0] / known[key]["grad_norm"][0] - 1)}
            runs[key]["relative_difference"] = off
            worst = {what: max(worst[what], off[what]) for what in worst}
            print(f"{key}: loss {off['loss']:.1e}, first gradient norm {off['grad_norm']:.1e}", flush=True)
    if args.output:
        with open(args.output, "w") as file:
            json.dump({"backend": args.backend, "runs": runs, "failed": failed}, file)
    print(f"{len(runs)} plans ran, {len(failed)} did not, in {time.time() - begin:.0f} s; most different: "
          f"loss {worst['loss']:.1e}, first gradient norm {worst['grad_norm']:.1e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
