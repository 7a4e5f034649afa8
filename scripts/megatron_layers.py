#!/usr/bin/env python3
"""Times Megatron-Core's own layers on one GPU, an oracle for qplan's launch times and activations.

Needs PyTorch, Transformer Engine and megatron-core (pip install megatron-core
transformer-engine[pytorch]); builds nothing. Of each kind of layer, four in a row and one rank:

  host_ms            what the launching thread takes a layer, forward and backward, with 128 tokens
                     (the least of the rounds: other processes only add to it), and its two halves
  wall_ms            what a layer takes at its own size, after two seconds of warming up
  activation_bytes   what a layer's forward leaves for its backward, by the allocator
  kernels            the kernels of a layer's forward and backward, [name, count, microseconds]

and of attention alone, with learned logits (gpt-oss) and without, its kernels.

    python3 scripts/megatron_layers.py -o layers.json [CASE...]
"""
import argparse
import collections
import gc
import json
import os
import statistics
import sys
import time

for key, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0",
                   "WORLD_SIZE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}.items():
    os.environ.setdefault(key, value)

import torch
import torch.nn.functional as F
import transformer_engine.pytorch as te
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.profiler import ProfilerActivity, profile

LAYERS = 4
FEW_TOKENS = 128

LLAMA3_8B = dict(hidden=4096, heads=32, kv=8, head_dim=128, ffn=14336, seq=8192)
# One rank's share of Llama-3 70B on tp 4, its sequence whole.
LLAMA3_70B_TP4 = dict(hidden=8192, heads=16, kv=2, head_dim=128, ffn=7168, seq=4096)
QWEN3_30B = dict(hidden=2048, heads=32, kv=4, head_dim=128, qk_norm=True, moe_ffn=768, topk=8,
                 seq=4096)
GPT_OSS_20B = dict(hidden=2880, heads=64, kv=8, head_dim=64, gpt_oss=True, moe_ffn=2880, topk=4,
                   experts=8, seq=4096)
DEEPSEEK_V3 = dict(hidden=7168, heads=128, mla=True, qk_norm=True, moe_ffn=2048, topk=8,
                   experts=8, seq=2048)


def cases():
    found = {}
    for fp8 in (None, "tensorwise", "delayed", "blockwise"):
        found["llama3-8b " + (fp8 or "bf16")] = dict(LLAMA3_8B, fp8=fp8)
    for fp8 in (None, "tensorwise"):
        for experts in (2, 4, 8, 16, 32, 64):
            found[f"qwen3-30b {experts} experts {fp8 or 'bf16'}"] = dict(
                QWEN3_30B, experts=experts, topk=min(8, experts), fp8=fp8)
    for fp8 in ("delayed", "blockwise"):
        found[f"qwen3-30b 8 experts {fp8}"] = dict(QWEN3_30B, experts=8, fp8=fp8)
    found["llama3-70b-tp4 tensorwise"] = dict(LLAMA3_70B_TP4, fp8="tensorwise")
    found["llama3-70b-tp4 tensorwise recompute mlp"] = dict(
        LLAMA3_70B_TP4, fp8="tensorwise", recompute=["mlp"])
    found["llama3-70b-tp4 bf16 recompute mlp"] = dict(LLAMA3_70B_TP4, recompute=["mlp"])
    qwen3 = dict(QWEN3_30B, experts=8)
    for name, case, modules in (("llama3-8b", LLAMA3_8B, ("layernorm", "core_attn", "mlp")),
                                ("qwen3-30b 8 experts", qwen3, ("layernorm", "moe_act", "moe")),
                                ("deepseek-v3 8 experts", DEEPSEEK_V3,
                                 ("layernorm", "mla_up_proj", "moe"))):
        for module in modules:
            found[f"{name} bf16 recompute {module}"] = dict(case, recompute=[module])
    found["gpt-oss-20b 8 experts bf16"] = GPT_OSS_20B
    found["deepseek-v3 8 experts bf16"] = DEEPSEEK_V3
    found["deepseek-v3 8 experts tensorwise"] = dict(DEEPSEEK_V3, fp8="tensorwise")
    return found


def config_of(case):
    c = dict(num_layers=LAYERS, hidden_size=case["hidden"], num_attention_heads=case["heads"],
             num_query_groups=case.get("kv", case["heads"]),
             ffn_hidden_size=case.get("ffn", 1024), bf16=True, params_dtype=torch.bfloat16,
             pipeline_dtype=torch.bfloat16, normalization="RMSNorm", gated_linear_unit=True,
             activation_func=F.silu, add_bias_linear=False, hidden_dropout=0.0,
             attention_dropout=0.0, bias_activation_fusion=True, bias_dropout_fusion=True,
             apply_rope_fusion=not case.get("mla"), gradient_accumulation_fusion=True,
             attention_softmax_in_fp32=False, qk_layernorm=case.get("qk_norm", False))
    if "head_dim" in case:
        c["kv_channels"] = case["head_dim"]
    if "experts" in case:
        c.update(num_moe_experts=case["experts"], moe_router_topk=case["topk"],
                 moe_ffn_hidden_size=case["moe_ffn"], moe_grouped_gemm=True,
                 moe_token_dispatcher_type="alltoall", moe_permute_fusion=True,
                 moe_router_load_balancing_type="none", moe_router_dtype="fp32",
                 moe_router_force_load_balancing=True)
    if case.get("gpt_oss"):
        c.update(add_bias_linear=True, add_qkv_bias=True, activation_func=quick_gelu,
                 glu_linear_offset=1.0, activation_func_clamp_value=7.0,
                 softmax_type="learnable", window_size=(127, 0), window_attn_skip_freq=2,
                 apply_rope_fusion=False, bias_dropout_fusion=False)
    if case.get("fp8"):
        c.update(fp8="hybrid", fp8_recipe=case["fp8"])
    if case.get("recompute"):
        c.update(recompute_granularity="selective", recompute_modules=case["recompute"])
    if case.get("mla"):
        return MLATransformerConfig(multi_latent_attention=True, q_lora_rank=1536,
                                    kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64,
                                    v_head_dim=128, rope_type="rope", **c)
    config = TransformerConfig(**c)
    if case.get("gpt_oss"):  # what GPTModel reads off the model
        config.yarn_rotary_scaling_factor = 32.0
        config.yarn_mscale = config.yarn_mscale_all_dim = None
    return config


class Layers:
    """Four layers under Megatron's data parallelism, and their passes."""

    def __init__(self, case):
        self.case = case
        config = config_of(case)
        spec = get_gpt_layer_with_transformer_engine_spec(
            num_experts=case.get("experts"), moe_grouped_gemm="experts" in case,
            qk_layernorm=case.get("qk_norm", False),
            multi_latent_attention=case.get("mla", False))
        block = TransformerBlock(config=config, spec=spec, pre_process=True, post_process=False)
        self.block = block.cuda().bfloat16()
        self.model = DistributedDataParallel(
            config, DistributedDataParallelConfig(overlap_grad_reduce=True,
                                                  use_distributed_optimizer=True), self.block)
        self.model.zero_grad_buffer()
        self.model.train()
        for module in self.block.modules():
            if hasattr(module, "is_first_microbatch"):
                module.is_first_microbatch = True

    def rotation(self, seq):
        case = self.case
        if case.get("mla"):
            return None
        if case.get("gpt_oss"):
            return YarnRotaryEmbedding(case["head_dim"], rotary_base=150000, scaling_factor=32.0,
                                       original_max_position_embeddings=4096, mscale=1.0,
                                       mscale_all_dim=0.0)(seq)[0]
        return RotaryEmbedding(case["head_dim"], rotary_percent=1.0)(seq)

    def data(self, seq):
        x = torch.randn(seq, 1, self.case["hidden"], device="cuda", dtype=torch.bfloat16)
        return self.rotation(seq), x, torch.randn_like(x) * 1e-3

    def forward(self, data):
        y = self.model(hidden_states=data[1].detach().requires_grad_(True), attention_mask=None,
                       rotary_pos_emb=data[0])
        return y[0] if isinstance(y, tuple) else y

    def passes(self, data, count, halves=None):
        with self.model.no_sync():
            for _ in range(count):
                start = time.perf_counter()
                y = self.forward(data)
                middle = time.perf_counter()
                y.backward(data[2])
                if halves is not None:
                    halves.append((middle - start, time.perf_counter() - middle))
                del y
        for p in self.block.parameters():
            p.grad = None
            p.grad_added_to_main_grad = False

    def milliseconds(self, data, count, halves=None):
        torch.cuda.synchronize()
        start = time.perf_counter()
        self.passes(data, count, halves)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count / LAYERS * 1e3


def kernels_of(run, per):
    """[name, count, microseconds] of what `run` enqueues, over `per`."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    total = collections.defaultdict(lambda: [0, 0.0])
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            entry = total[event.name[:100]]
            entry[0] += 1
            entry[1] += event.time_range.end - event.time_range.start
    return sorted(([n, c / per, round(us / per, 1)] for n, (c, us) in total.items()),
                  key=lambda k: -k[2])


def measure(case):
    torch._dynamo.reset()  # else fused kernels are compiled for any shape, and slower
    layers = Layers(case)
    data = layers.data(case["seq"])
    layers.passes(data, 3)
    once = layers.milliseconds(data, 2) * LAYERS
    count = max(4, int(2000 / once))
    layers.milliseconds(data, count)
    wall = layers.milliseconds(data, count)
    held, marks = [], []
    for _ in range(3):
        held.append(layers.forward(data))
        torch.cuda.synchronize()
        marks.append(torch.cuda.memory_allocated())
    kept = (marks[2] - marks[1]) / LAYERS
    for y in held:
        y.backward(data[2])
    del held, y
    layers.passes(data, 1)
    kernels = kernels_of(lambda: layers.passes(data, 2), 2 * LAYERS)
    torch._dynamo.reset()
    few = layers.data(FEW_TOKENS)
    gc.disable()
    layers.passes(few, 4)
    halves = []
    least = min(layers.milliseconds(few, 6, halves) for _ in range(8))
    gc.enable()
    half = [round(statistics.median(h[i] for h in halves) / LAYERS * 1e3, 2) for i in (0, 1)]
    return dict(host_ms=round(least, 2), host_forward_backward_ms=half, wall_ms=round(wall, 2),
                activation_bytes=int(kept), kernels=kernels[:24])


def attention(heads, kv, dim, batch, seq, softmax, window):
    core = te.DotProductAttention(heads, dim, num_gqa_groups=kv, qkv_format="sbhd",
                                  attn_mask_type="causal", window_size=(window, 0),
                                  softmax_type=softmax, attention_dropout=0.0).cuda()
    def tensor(n):
        return torch.randn(seq, batch, n, dim, device="cuda", dtype=torch.bfloat16,
                           requires_grad=True)
    q, k, v = tensor(heads), tensor(kv), tensor(kv)
    def run(times=10):
        for _ in range(times):
            y = core(q, k, v)
            y.backward(torch.ones_like(y))
    run(5)
    return kernels_of(run, 10)[:8]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("cases", nargs="*", help="all, if none is named")
    options = parser.parse_args()
    known = cases()
    for name in options.cases:
        if name not in known:
            sys.exit(f"no case {name!r}; there are: {', '.join(known)}")
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    import megatron.core
    import transformer_engine
    small = torch.randn(64, 64, device="cuda")
    def add(n=2000):
        start = time.perf_counter()
        for _ in range(n):
            torch.add(small, small)
        return (time.perf_counter() - start) / n * 1e6
    add(100)
    result = dict(gpu=torch.cuda.get_device_name(0), torch=torch.__version__,
                  transformer_engine=transformer_engine.__version__,
                  megatron_core=megatron.core.__version__, eager_add_us=round(add(), 1),
                  layers={}, attention={})
    def write():
        with open(options.output, "w") as out:
            json.dump(result, out, indent=1)
    for name in options.cases or known:
        result["layers"][name] = measured = measure(known[name])
        print(name, {k: v for k, v in measured.items() if k != "kernels"}, flush=True)
        write()
        gc.collect()
        torch.cuda.empty_cache()
    for heads, kv, dim in ((64, 8, 64), (32, 8, 128)):
        for batch, window in ((1, -1), (1, 127), (4, -1)):
            for softmax in ("vanilla", "learnable"):
                name = f"{heads}/{kv} x {dim} batch {batch} seq 4096 window {window} {softmax}"
                result["attention"][name] = attention(heads, kv, dim, batch, 4096, softmax, window)
    write()


if __name__ == "__main__":
    main()
