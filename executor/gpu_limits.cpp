#include "executor/gpu_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/kernel_scratch.h"

namespace qplan {

namespace {

// Sides of a rank's fp8 products, tokens aside (planner/rules/precision.h).
bool fp8_shapes(const ModelSpec& m, const ParallelPlan& p) {
  const std::int64_t qk = m.mla ? 0 : (m.num_attention_heads + 2 * m.num_key_value_heads);
  const std::int64_t v_dim = m.mla ? m.mla->v_head_dim : m.head_dim;
  for (const std::int64_t side :
       {m.hidden_size, qk * m.head_dim / p.tp, m.num_attention_heads * v_dim / p.tp,
        m.intermediate_size / p.tp, p.micro_batch_size * p.seq_len / p.cp}) {
    if (side % 16 != 0) return false;
  }
  return true;
}

struct Unexecuted {
  const char *what, *instead;
};

// Kernels of states have rows of one width; vectors of eight numbers begin on 16 bytes where the
// numbers that a rank has of each head keep them there.
std::optional<Unexecuted> unexecuted_recurrence(const ModelSpec& m, const ParallelPlan& p) {
  constexpr std::int64_t kWidest = 128, kTaps = 4;  // kernels/recurrent.h
  const auto fits = [](std::int64_t width) { return width % 8 == 0 && width <= kWidest; };
  if (!m.delta_net && !m.mamba) return std::nullopt;
  if (p.cp > 1) {
    return Unexecuted{"Gated DeltaNet and Mamba-2 over parts of sequences", "use cp 1"};
  }
  const bool other_taps = (m.delta_net && m.delta_net->conv_kernel != kTaps) ||
                          (m.mamba && m.mamba->conv_kernel != kTaps);
  if (other_taps) return Unexecuted{"convolutions of other than 4 tokens", "use --backend cpu"};
  const bool wide =
      (m.delta_net && !(fits(m.delta_net->key_head_dim) && fits(m.delta_net->value_head_dim))) ||
      (m.mamba && !(fits(m.mamba->head_dim) && fits(m.mamba->state_size)));
  if (wide) {
    return Unexecuted{"states of heads above 128 numbers or of no multiple of 8",
                      "use --backend cpu"};
  }
  const bool uneven = (m.delta_net && m.delta_net->num_value_heads / p.tp % 4 != 0) ||
                      (m.mamba && m.mamba->num_heads / p.tp % 8 != 0);
  if (uneven) {
    return Unexecuted{"value heads that are no multiple of 4, or Mamba-2's of 8, a rank",
                      "use a smaller tp"};
  }
  return std::nullopt;
}

}  // namespace

// In one queue kernels begin in the order that the program has them, whatever their lane: what goes
// aside begins before the compute that runs beside it. In queues of their own compute wins, for it
// waits for no other lane; its blocks fill the GPU, and the message begins when they end (an
// all-gather of 64 MiB beside a product of 1157 us was done 90 us behind it). Qwen3-0.6B, tp2 sp,
// 2048 tokens: 188 ms a step, in one queue 164 (docs/evidence/archive/issue6-h200-7.json). Ranks
// without stages have the same order, so nobody waits for what is queued behind; stages have not.
// A message that waits for the one before it holds up the compute that is queued behind it: the
// gathers and reductions of a step's edge, one behind the other. Where compute waits for no message
// in its layers there is nothing to make up for that (8B's width, dp2 zero1 overlapped: 335 ms a
// step, with a queue a lane 333; Qwen3-0.6B 345 and 343: issue6-h200-8.json).
bool takes_one_queue(const ParallelPlan& plan) {
  if (plan.world() == 1 || plan.pp > 1 || plan.offload != Offload{}) return false;
  const bool waits_in_layers =
      plan.tp > 1 || plan.cp > 1 || plan.ep > 1 || plan.etp > 1 || plan.zero > 1;
  return waits_in_layers || !plan.overlap.has(OverlapKind::grad);
}

std::optional<std::string> unexecuted_on_gpu(const ModelSpec& m, const ParallelPlan& p) {
  const auto lacks = [](const char* what, const char* instead) {
    return fmt::format("the cuda backend does not execute {} yet; {}", what, instead);
  };
  if (p.precision != Precision::bf16 && p.precision != Precision::fp8) {
    return lacks("other precisions", "use precision bf16 or fp8");
  }
  if (p.precision == Precision::fp8 && !fp8_shapes(m, p)) {
    return lacks("fp8 products whose sides are no multiples of 16", "use precision bf16");
  }
  const bool plain = m.norm == Norm::rms_norm && m.mlp == MlpKind::swiglu && !m.qkv_bias &&
                     !m.attention_output_bias && !m.mlp_bias && !(m.moe && m.moe->expert_bias);
  if (p.precision == Precision::fp8 && !plain) {
    return lacks("fp8 products of models with biases, LayerNorm or GELU", "use precision bf16");
  }
  if (p.dora) return lacks("DoRA", "use --backend cpu");
  if (p.lora_embeddings) {
    return lacks("embeddings that are trained beside adapters", "use --backend cpu");
  }
  if (m.vision) return lacks("a vision tower", "use --backend cpu");
  if (const auto said = unexecuted_recurrence(m, p)) return lacks(said->what, said->instead);
  if (m.qk_norm && m.rotary_interleaved) {
    return lacks("norms with weights of heads whose neighbouring numbers turn",
                 "use --backend cpu");
  }
  if (p.micro_batch_size * p.seq_len / p.cp > (kKernelScratch - kSortScratch) / kTokenScratch) {
    return lacks("micro-batches of more than 2,708,821 tokens a rank", "use a smaller one");
  }
  if (m.moe) {
    const MoeSpec& moe = *m.moe;
    if (p.ep > 1 && p.moe_dispatcher != MoeDispatcher::alltoall) {
      return lacks("other dispatchers", "use moe_dispatcher alltoall");
    }
    if (m.mlp == MlpKind::gelu) return lacks("experts of GELUs", "use --backend cpu");
    if (p.moe_capacity_factor > 0) return lacks("experts of limited capacity", "use capacity=0");
    if (moe.num_groups > 32) return lacks("more than 32 groups of experts", "use --backend cpu");
    if (moe.router_bias && moe.num_experts % 8 != 0) {
      return lacks("biases of routers to experts that are no multiple of 8", "use --backend cpu");
    }
    if (moe.num_experts > 512 || moe.moe_intermediate_size / p.etp % 8 != 0) {
      return lacks("more than 512 experts, or widths that are no multiple of 8",
                   "use --backend cpu");
    }
  }
  const bool windows =
      std::ranges::any_of(m.layers, [](const LayerKind& l) { return l.window > 0; });
  if (p.cp > 1 && p.cp_comm != CpComm::a2a && (windows || m.attention_sinks)) {
    return lacks("sliding windows and learned sinks over parts of sequences", "use cp_comm a2a");
  }
  const bool chunks = std::ranges::any_of(
      m.layers, [&](const LayerKind& l) { return l.chunk > 0 && l.chunk < p.seq_len; });
  if (p.cp > 1 && p.cp_comm != CpComm::a2a && chunks) {
    return lacks("attention in chunks over parts of sequences", "use cp_comm a2a");
  }
  if (m.attention_sinks && m.num_attention_heads / p.tp % 8 != 0) {
    return lacks("learned sinks of heads that are no multiple of 8 a rank", "use a smaller tp");
  }
  const std::int64_t kv_heads = m.num_key_value_heads / p.tp;
  if (p.cp > 1 && p.cp_comm == CpComm::a2a && kv_heads % p.cp != 0) {
    return lacks("copies of key-value heads that ranks exchange for sequence",
                 "use cp_comm p2p or all_gather");
  }
  if (p.cp > 1 && p.seq_len % (2 * p.cp) != 0) {
    return lacks("chunks of different lengths", "use a seq_len that 2 cp divides");
  }
  if (m.num_key_value_heads % p.tp != 0) {
    return lacks("more tensor-parallel ranks than key-value heads", "use a smaller tp");
  }
  if (p.overlap.has(OverlapKind::tp)) return lacks("overlap tp", "leave it out");
  if (p.offload != Offload{.optimizer = p.offload.optimizer}) {
    return lacks("offloading other than the optimizer's", "use offload optimizer or none");
  }
  if (p.grad_dtype != DType::fp32 || p.moment_dtype != DType::fp32 ||
      p.main_params_dtype != DType::fp32) {
    return lacks("narrow gradients and optimizer states", "use fp32");
  }
  if (p.optimizer != OptimizerKind::adam) {
    return lacks("optimizers other than Adam", "use optimizer adam, or --backend cpu");
  }
  const std::int64_t turned = std::llround(static_cast<double>(m.head_dim) * m.rotary_fraction);
  if ((m.qk_norm || m.qk_l2_norm) && m.head_dim > 256) {
    return lacks("norms of such wide heads", "use --backend cpu");
  }
  if (m.mla) {
    const MlaSpec& a = *m.mla;
    for (const std::int64_t width :
         {a.q_lora_rank, a.kv_lora_rank, a.qk_nope_head_dim, a.qk_rope_head_dim, a.v_head_dim}) {
      if (width % 8 == 0) continue;
      return lacks("widths that 16-byte accesses do not divide", "use --backend cpu");
    }
  } else if (m.head_dim % 16 != 0 || turned % 16 != 0) {
    return lacks("heads that 16-byte accesses do not divide", "use --backend cpu");
  }
  if (m.hidden_size > 16384) return lacks("hidden sizes above 16384", "use --backend cpu");
  if (m.hidden_size % 8 != 0 || m.intermediate_size / p.tp % 8 != 0) {
    return lacks("widths that 16-byte accesses do not divide", "use --backend cpu");
  }
  return std::nullopt;
}

}  // namespace qplan
