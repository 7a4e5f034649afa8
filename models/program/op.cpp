#include "models/program/op.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "models/error.h"
#include "models/overloaded.h"

namespace qplan {
namespace {

// What one element of a (rows, cols) array costs: `words` reads and writes of its dtype plus
// `bytes` of a fixed format (fp32 internals, masks), in `kernels` launches.
struct Traffic {
  double words = 0, bytes = 0;
  int kernels = 1;
};

struct TrafficRow {
  Traffic fused, unfused;
};

// One fused kernel reads its inputs and writes its outputs once. The bf16 sums were checked with
// SimuMax's training measurements (norm 4h, 8-10h; SwiGLU 6f, 10f; RoPE 4; permute 4h).
// Unfused: PyTorch's own kernels behind Hugging Face's eager modules and their autograd nodes
// (transformers, modeling_llama.py), as bytes that a copy would have moved in the same time:
// measured on an H200 with torch 2.11 (docs/evidence/archive/issue3-h200.json, 16384 x 4096 bf16).
// They are more than the kernels' reads and writes: strided, broadcast and reducing kernels reach
// 30-70% of a copy's rate.
constexpr TrafficRow traffic_of(RowwiseKind kind) {
  switch (kind) {
    // x.float(), pow, mean, + eps, rsqrt, *, .to(dtype), * weight
    case RowwiseKind::rms_norm:
      return {{2, 0, 1}, {4, 47, 8}};
    // x, dy in, dx out, plus the weight gradient's second look at dy and x
    case RowwiseKind::rms_norm_backward:
      return {{4.5, 0, 2}, {8, 119, 14}};
    // PyTorch's own layer_norm is one kernel in eager mode too
    case RowwiseKind::layer_norm:
      return {{2, 0, 1}, {2, 3.3, 1}};
    case RowwiseKind::layer_norm_backward:
      return {{4.5, 0, 2}, {4.5, 8, 2}};
    // q * cos + cat(-q2, q1) * sin
    case RowwiseKind::rope:
      return {{2, 0, 1}, {10, 32, 10}};
    case RowwiseKind::rope_backward:
      return {{2, 0, 1}, {15, 32, 18}};
    // silu(gate) * up
    case RowwiseKind::swiglu:
      return {{3, 0, 1}, {5, 1, 2}};
    case RowwiseKind::swiglu_backward:
      return {{5, 0, 1}, {9, 3, 3}};
    // + bias apart; relu2: relu, square
    case RowwiseKind::gelu:
      return {{2, 0, 1}, {3, 0, 1}};
    case RowwiseKind::gelu_backward:
      return {{3, 0, 1}, {5, 0.5, 1}};
    case RowwiseKind::add:
      return {{3, 0, 1}, {3, 0, 1}};
    // One kernel of two formats (Megatron's and nanotron's hooks); or made fp32 first, then added
    // (DeepSpeed's BF16_Optimizer.update_hp_grads).
    case RowwiseKind::accumulate:
      return {{2, 2, 1}, {3, 6, 2}};
    // one byte of mask
    case RowwiseKind::dropout_add:
      return {{3, 1, 1}, {5, 4, 2}};
    case RowwiseKind::dropout_add_backward:
      return {{2, 1, 1}, {2, 3.3, 1}};
    case RowwiseKind::embedding:
      return {{2, 0, 1}, {2, 0, 1}};
    // reads dy, adds into the fp32 gradient
    case RowwiseKind::embedding_backward:
      return {{1, 8, 1}, {1, 8, 1}};
    // logits to fp32, scores, top-k, mask, probabilities. Eager: DeepSeek's trace shows 0.13 ms a
    // layer forward and backward for 4096 x 256, a launch-bound chain of small kernels.
    case RowwiseKind::router:
      return {{1, 16, 3}, {1, 40, 14}};
    case RowwiseKind::router_backward:
      return {{1, 12, 3}, {1, 32, 12}};
    // Unfused (Megatron's moe_utils.py without permute fusion; an H100, torch 2.11, 8192 to 65536
    // copies of 2048 to 7168, 2 and 8 a token): index_select, and in backward gather, move copies
    // at a copy's rate, 1.2 ps a number. Before it the routing map is transposed and what it
    // chooses is selected (masked_select), of tokens and of probabilities.
    case RowwiseKind::permute:
      return {{2, 0, 1}, {2, 0, 8}};
    case RowwiseKind::group_rows:
      return {{2, 0, 1}, {2, 0, 2}};
    // rows are token copies; the sum over top-k copies is written once a token (top-k 4 here: 1.5
    // at top-k 2, 1.125 at 8). Unfused, on the same H100: scatter_add into zeros 3.8 ps a number
    // forward, index_add into zeros 8.8 backward, atomic both; as bytes 11.7 and 26.6, here the
    // mean of the two. Hugging Face's index_add forward, and what it multiplies, takes more.
    case RowwiseKind::unpermute:
      return {{1.25, 0, 1}, {0, 19, 3}};
    // Megatron's TEGroupedMLP._apply_bias: probability times bias, the sum with the output, and
    // their concatenation in fp32, then a cast; backward two products and two sums in fp32. Two
    // and five kernels an expert, torch's own: 28 and 40 B as they are, and as bytes that a copy
    // would have moved in the same time with what our H200 says of their like: a cast to fp32 10.9
    // for 6, one from it 5.6, a product with something broadcast 1.6 times its traffic.
    case RowwiseKind::expert_bias:
      return {{2, 34, 2}, {2, 34, 2}};
    case RowwiseKind::expert_bias_backward:
      return {{2, 50, 5}, {2, 50, 5}};
    // weighted_bias_quick_geglu_impl: each half is clamped, then they are put side by side again
    case RowwiseKind::clamp:
      return {{8, 0, 3}, {8, 0, 3}};
    // ... a comparison and torch.where of the half with one limit, two comparisons, their product
    // and torch.where of the other (torch's derivatives.yaml, clamp_backward), of bf16 and one byte
    // 22 B, and both gradients side by side
    case RowwiseKind::clamp_backward:
      return {{15, 0, 7}, {15, 0, 7}};
    // One pass of a compiler. Megatron (TEGroupedMLP.forward under moe_apply_probs_on_input): a
    // product with fp32 numbers and a cast of it; backward the gradient in fp32, its product with
    // the numbers, a cast, its product with the rows and their sums. 12 and 34 B as they are; as
    // bytes that a copy would have moved in the same time by the factors above: 9.6 and 5.6; 10.9,
    // 12.8, 5.6, 10 and 4.
    case RowwiseKind::scale_rows:
      return {{2, 0, 1}, {2, 11.2, 2}};
    case RowwiseKind::scale_rows_backward:
      return {{3, 0, 1}, {3, 37.3, 5}};
    // fla's causal_conv1d, whose backward makes the convolution's result again first, then reads
    // it, x and dy (fla/modules/conv/triton/ops.py): 2 and 6 words, at a quarter and 0.4 of a
    // copy's rate. 127 and 234 us for 4096 more tokens of 8192 channels (H200, fla-core 0.6.0), as
    // words that a copy would have moved in that time.
    case RowwiseKind::causal_conv:
      return {{8.2, 0, 1}, {8.2, 0, 1}};
    case RowwiseKind::causal_conv_backward:
      return {{15, 0, 3}, {15, 0, 3}};
    // fla's l2norm keeps its result: backward reads that and dy. Both at a copy's rate (H200).
    case RowwiseKind::l2_norm:
      return {{2, 0, 1}, {2, 0, 1}};
    case RowwiseKind::l2_norm_backward:
      return {{3, 0, 1}, {3, 0, 1}};
    // Transformer Engine's norm, then its product with the SiLU of the gate as one compiled kernel
    // (Megatron's _apply_gated_norm). Eager: the norm's kernels, and the gate in fp32: cast, SiLU,
    // product, cast back, as they are, for these were not measured.
    case RowwiseKind::gated_norm:
      return {{5, 0, 2}, {4, 77, 12}};
    case RowwiseKind::gated_norm_backward:
      return {{9.5, 0, 3}, {8, 171, 20}};
    // sigmoid of one number a head, -exp(A) softplus(a + bias) in fp32 of another
    case RowwiseKind::decay_gates:
      return {{3, 4, 1}, {2, 30, 8}};
    case RowwiseKind::decay_gates_backward:
      return {{5, 4, 3}, {3, 40, 11}};
    // causal_conv1d's kernels for channels that lie beside each other: 2 and 4 words, at two thirds
    // of a copy's rate. 68.5 and 141.5 us for 8192 tokens of 6144 channels (H200, causal_conv1d
    // 0d2252d), as words that a copy would have moved in that time.
    case RowwiseKind::mamba_conv:
      return {{2.95, 0, 1}, {2.95, 0, 1}};
    case RowwiseKind::mamba_conv_backward:
      return {{6, 0, 4}, {6, 0, 4}};
    // mamba_ssm's Triton kernels, likewise: 52.2 us for 8192 tokens of 4096 columns with a gate,
    // near a copy's rate, and backward, which takes rows one after the other, 247.5; without a gate
    // a word less forward, and backward is taken to be no faster.
    case RowwiseKind::gated_group_norm:
      return {{3.3, 0, 1}, {3.3, 0, 1}};
    case RowwiseKind::group_norm:
      return {{2.2, 0, 1}, {2.2, 0, 1}};
    case RowwiseKind::group_norm_backward:
      return {{16, 0, 2}, {16, 0, 2}};
    // two reads (max; sum of exponentials), fp32 softmax kept. Eager: .float(), log_softmax, nll
    case RowwiseKind::cross_entropy:
      return {{2, 4, 2}, {1, 27, 4}};
    case RowwiseKind::cross_entropy_backward:
      return {{1, 4, 1}, {1, 27, 4}};
    // to fp8 and to its transpose
    case RowwiseKind::cast:
      return {{1, 2, 1}, {2, 3, 3}};
    // a clear of the result, and one read
    case RowwiseKind::amax:
      return {{1, 0, 2}, {1, 0, 2}};
    case RowwiseKind::quantize:
      return {{1, 1, 1}, {1, 1, 1}};
    // 4 bits and their scales; of 8 bits half a byte more, which is not told apart
    case RowwiseKind::dequantize:
      return {{1, 0.56, 1}, {1, 0.56, 1}};
    case RowwiseKind::copy:
    case RowwiseKind::scale:
      return {{2, 0, 1}, {2, 0, 1}};
    case RowwiseKind::zero_fill:
    case RowwiseKind::sum_of_squares:
      return {{1, 0, 1}, {1, 0, 1}};
  }
  return {};
}

const Traffic& pick(const TrafficRow& row, bool fused) {
  return fused ? row.fused : row.unfused;
}

// Two products of every scored pair: q.k over head_dim, p.v over v_head_dim.
double attention_forward_flops(const Attention& a, double pairs) {
  const std::int64_t v_dim = a.v_head_dim > 0 ? a.v_head_dim : a.head_dim;
  return 2 * as_double(a.batch) * as_double(a.heads) * as_double(a.head_dim + v_dim) * pairs;
}

Flops attention_flops(const Attention& a, double backward_factor) {
  const double forward = attention_forward_flops(a, score_pairs(a));
  return Flops(a.pass == Pass::forward ? forward : backward_factor * forward);
}

// Written-out scores compute the full square, masked afterwards; backward keeps the probabilities.
Flops executed_attention_flops(const Attention& a) {
  if (a.kernel != AttentionKernel::unfused) return attention_flops(a, 2.5);
  const double forward = attention_forward_flops(a, as_double(a.q_len) * as_double(a.kv_len));
  return Flops(a.pass == Pass::forward ? forward : 2 * forward);
}

Flops gemm_flops(const Gemm& g) {
  return Flops(2 * as_double(g.m) * as_double(g.n) * as_double(g.k) * as_double(g.batch));
}

Flops grouped_flops(const GroupedGemm& g) {
  return Flops(2 * as_double(g.rows) * as_double(g.n) * as_double(g.k));
}

// K K^T, V K^T, S (a (I - b K K^T)) and S Q of each token, whose sizes Megatron takes as V's.
Flops delta_rule_model_flops(const GatedDeltaRule& w) {
  const double forward = 2.0 * 4 * as_double(w.batch) * as_double(w.seq_len) *
                         as_double(w.value_heads) * as_double(w.value_dim) * as_double(w.value_dim);
  return Flops(w.pass == Pass::forward ? forward : 2 * forward);
}

// Megatron's estimate of the scan: 7 FLOPs of each number of the state and token, times three with
// backward.
Flops scan_model_flops(const StateSpaceScan& w) {
  const double forward = 7.0 * as_double(w.batch) * as_double(w.seq_len) * as_double(w.heads) *
                         as_double(w.head_dim) * as_double(w.state_size);
  return Flops(w.pass == Pass::forward ? forward : 2 * forward);
}

// FNV-style mixing of whole words; the finaliser of SplitMix64 (Steele et al., 2014).
class Hasher {
 public:
  template <class T>
  void add(T value) {
    std::uint64_t word = 0;
    if constexpr (std::is_same_v<T, Bytes>) {
      word = std::bit_cast<std::uint64_t>(value.value());
    } else {
      word = static_cast<std::uint64_t>(value);
    }
    state_ = mix(state_ ^ word);
  }
  [[nodiscard]] std::uint64_t result() const { return state_; }

 private:
  static std::uint64_t mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }
  std::uint64_t state_ = 0;
};

// Every field of each kind, in order: what makes two works the same work.
constexpr Overloaded each_field{
    [](const Gemm& w, auto&& f) { f(w.m, w.n, w.k, w.batch, w.dtype, w.accumulate_fp32, w.adds); },
    [](const GroupedGemm& w, auto&& f) {
      f(w.groups, w.rows, w.n, w.k, w.dtype, w.weight_gradient, w.accumulate_fp32, w.adds);
    },
    [](const Attention& w, auto&& f) {
      f(w.batch, w.heads, w.kv_heads, w.q_len, w.kv_len, w.head_dim, w.v_head_dim, w.window,
        w.causal, w.pass, w.kernel, w.deterministic, w.dropout, w.sinks, w.latent);
    },
    [](const Rowwise& w, auto&& f) { f(w.kind, w.rows, w.cols, w.dtype, w.fused, w.groups); },
    [](const Collective& w, auto&& f) {
      f(w.kind, w.axis, w.bytes, w.expert_parallel_library, w.rank_share, w.neighbours, w.groups,
        w.groups_of_token);
    },
    [](const Muon& w, auto&& f) {
      f(w.rows, w.cols, w.matrices, w.params, w.grad, w.main_params, w.moments, w.working);
    },
    [](const SendRecv& w, auto&& f) { f(w.axis, w.bytes); },
    [](const Update& w, auto&& f) {
      f(w.params, w.grad, w.main_params, w.moments, w.working, w.fused, w.optimizer, w.factors,
        w.tensors);
    },
    [](const HostCopy& w, auto&& f) { f(w.bytes, w.to_host); },
    [](const HostAdam& w, auto&& f) { f(w.params, w.nvme); },
    [](const Join&, auto&& f) { f(0); },
    [](const GatedDeltaRule& w, auto&& f) {
      f(w.batch, w.seq_len, w.key_heads, w.value_heads, w.key_dim, w.value_dim, w.chunk, w.pass);
    },
    [](const StateSpaceScan& w, auto&& f) {
      f(w.batch, w.seq_len, w.heads, w.groups, w.head_dim, w.state_size, w.chunk, w.gated, w.pass);
    },
};

std::string bytes_text(Bytes bytes) {
  if (bytes >= mib(1)) return fmt::format("{:.1f} MiB", bytes.value() / kMiB);
  return fmt::format("{:.0f} B", bytes.value());
}

std::string attention_text(const Attention& a) {
  std::string text = fmt::format("attention b{} h{}", a.batch, a.heads);
  if (a.kv_heads != a.heads) text += fmt::format("/{}", a.kv_heads);
  text += fmt::format(" q{} kv{} d{}", a.q_len, a.kv_len, a.head_dim);
  if (a.v_head_dim > 0 && a.v_head_dim != a.head_dim) text += fmt::format("/{}", a.v_head_dim);
  if (a.window > 0) text += fmt::format(" window {}", a.window);
  if (a.causal) text += " causal";
  if (a.pass == Pass::backward) text += " backward";
  if (a.kernel == AttentionKernel::flash2) text += " flash2";
  if (a.kernel == AttentionKernel::flash1) text += " flash1";
  if (a.kernel == AttentionKernel::unfused) text += " unfused";
  if (a.kernel == AttentionKernel::flex) text += " flex";
  if (a.kernel == AttentionKernel::fused_fp8) text += " fp8";
  return text;
}

std::string delta_rule_text(const GatedDeltaRule& w) {
  return fmt::format("gated_delta_rule b{} s{} h{}/{} d{}/{}{}", w.batch, w.seq_len, w.value_heads,
                     w.key_heads, w.key_dim, w.value_dim,
                     w.pass == Pass::backward ? " backward" : "");
}

std::string scan_text(const StateSpaceScan& w) {
  return fmt::format("state_space_scan b{} s{} h{}/{} d{}/{} chunk {}{}{}", w.batch, w.seq_len,
                     w.heads, w.groups, w.head_dim, w.state_size, w.chunk, w.gated ? " gated" : "",
                     w.pass == Pass::backward ? " backward" : "");
}

Flops newton_schulz_flops(const Muon& w) {
  Flops sum;
  for (const Gemm& product : newton_schulz_products(w)) sum += gemm_flops(product);
  return sum * (kNewtonSchulzSteps * w.matrices);
}

std::string_view grouped_name(const GroupedGemm& g) {
  return g.weight_gradient ? "grouped_gemm wgrad" : "grouped_gemm";
}

}  // namespace

double score_pairs(const Attention& a) {
  const double q = as_double(a.q_len);
  const double kv = as_double(a.kv_len);
  const double window = a.window > 0 ? as_double(a.window) : kv;
  if (!a.causal) return q * std::min(kv, window);
  // The query at position p sees min(p, window) keys; positions run from kv - q to kv.
  const double begin = std::max(0.0, kv - q);
  const double bend = std::clamp(window, begin, kv);
  return (bend * bend - begin * begin) / 2 + (kv - bend) * window;
}

Bytes key_value_bytes(const Attention& a, double element) {
  const std::int64_t seen = a.window > 0 ? std::min(a.kv_len, a.window + a.q_len - 1) : a.kv_len;
  const std::int64_t v_dim = a.v_head_dim > 0 ? a.v_head_dim : a.head_dim;
  const std::int64_t width = a.head_dim + (a.latent ? 0 : v_dim);
  return Bytes(element * as_double(a.batch) * as_double(a.kv_heads) * as_double(seen) *
               as_double(width));
}

Flops flops(const Work& work) {
  return std::visit(
      Overloaded{[](const Gemm& w) { return gemm_flops(w); },
                 [](const GroupedGemm& w) { return grouped_flops(w); },
                 [](const Attention& w) { return executed_attention_flops(w); },
                 [](const Rowwise&) { return Flops(); }, [](const Collective&) { return Flops(); },
                 [](const SendRecv&) { return Flops(); }, [](const Update&) { return Flops(); },
                 [](const HostCopy&) { return Flops(); }, [](const HostAdam&) { return Flops(); },
                 [](const Join&) { return Flops(); },
                 [](const GatedDeltaRule& w) {
                   const DeltaRuleParts parts = parts_of(w);
                   return parts.within_flops + parts.between_flops;
                 },
                 [](const StateSpaceScan& w) { return parts_of(w).flops; },
                 [](const Muon& w) { return newton_schulz_flops(w); }},
      work);
}

Flops model_flops(const Work& work) {
  if (const auto* attention = std::get_if<Attention>(&work)) {
    return attention_flops(*attention, 2);
  }
  if (const auto* rule = std::get_if<GatedDeltaRule>(&work)) return delta_rule_model_flops(*rule);
  if (const auto* scan = std::get_if<StateSpaceScan>(&work)) return scan_model_flops(*scan);
  if (std::holds_alternative<Muon>(work)) return Flops();  // an optimizer's are not the model's
  return flops(work);
}

Bytes memory_traffic(const Rowwise& w) {
  const TrafficRow row = traffic_of(w.kind);
  const Traffic& t = pick(row, w.fused);
  return Bytes(as_double(w.rows) * as_double(w.cols) * (t.words * size_of(w.dtype) + t.bytes));
}

int kernel_count(const Rowwise& w) {
  const TrafficRow row = traffic_of(w.kind);
  return pick(row, w.fused).kernels * static_cast<int>(w.groups);
}

bool fused_softmax(const Attention& a) {
  return (a.batch * a.heads) % 4 == 0 && a.q_len % 4 == 0 && a.kv_len % 4 == 0;
}

Bytes memory_traffic(const Update& w) {
  const double params = as_double(w.params);
  // In and out of the flat array, into fp32, and read there.
  const double flat = w.flattens ? 3 * size_of(w.grad) + 2 * size_of(DType::fp32) : 0;
  const Bytes once =
      Bytes(params * (size_of(w.grad) + 2 * size_of(w.main_params) + size_of(w.working) + flat)) +
      2 * state_bytes(w);
  if (w.optimizer == OptimizerKind::adafactor) {
    // Passes of transformers' Adafactor (optimization.py) over fp32 numbers beside the gradient and
    // the weight itself: a gradient in fp32, its square and that plus epsilon (5 words), means of
    // rows and of columns (2), their product, times the gradient (4), its mean square and the
    // scaling by it (3), by the learning rate (2), minus, and the weight's own mean square (3).
    constexpr double kWords = 5 + 2 + 4 + 3 + 2 + 3;
    return once + Bytes(params * kWords * size_of(DType::fp32));
  }
  // torch.optim.AdamW(foreach=True) walks the lists for decay, lerp, mul, addcmul, sqrt, div, add
  // and addcdiv: 2.7 times the fused kernel's time in fp32 (H200,
  // docs/evidence/archive/issue3-h200.json). Of other optimizers assumed.
  constexpr double kForeach = 2.7;
  return once * (w.fused ? 1 : kForeach);
}

// Gradient and momentum in, momentum and what is orthogonalised out; that in again, its norm and
// the division by it; what the iterations give onto master weight and working copy.
Bytes memory_traffic(const Muon& w) {
  const double own = size_of(w.grad) + 2 * size_of(w.moments) + 2 * size_of(w.main_params) +
                     size_of(w.working) + 2 * size_of(DType::fp32);
  const double whole = 3 * size_of(DType::fp32) + 2 * size_of(DType::bf16);
  return Bytes(as_double(w.params) * own +
               as_double(w.rows) * as_double(w.cols) * w.matrices * whole);
}

Bytes state_bytes(const Update& w) {
  const double params = as_double(w.params), moments = params * size_of(w.moments);
  switch (w.optimizer) {
    case OptimizerKind::adam:
      return Bytes(2 * moments);
    case OptimizerKind::adam8bit:
      // A byte each, and an fp32 scale for each 256 (bitsandbytes' blockwise states, block size
      // 256 since 0.45).
      return Bytes(2 * (params + std::ceil(params / 256) * size_of(DType::fp32)));
    case OptimizerKind::adafactor:
      return Bytes(as_double(w.factors) * size_of(DType::fp32));
    case OptimizerKind::sgd:
    case OptimizerKind::muon:
    case OptimizerKind::lion:
      return Bytes(moments);
  }
  return {};
}

Bytes state_bytes(const Muon& w) {
  return Bytes(as_double(w.params) * size_of(w.moments));
}

// Adafactor's torch operations on one tensor: 20 (transformers, optimization.py).
double kernel_count(const Update& w) {
  constexpr double kAdafactor = 20;
  return as_double(w.tensors) * (w.optimizer == OptimizerKind::adafactor ? kAdafactor : 1);
}

// Of each matrix its iterations' products, and decay, two interpolations, norm, division, cast and
// addition.
double kernel_count(const Muon& w) {
  return w.matrices * (3 * kNewtonSchulzSteps + 7);
}

std::array<Gemm, 3> newton_schulz_products(const Muon& w) {
  const std::int64_t small = std::min(w.rows, w.cols), large = std::max(w.rows, w.cols);
  return {Gemm{.m = small, .n = small, .k = large}, Gemm{.m = small, .n = small, .k = small},
          Gemm{.m = small, .n = large, .k = small}};
}

Bytes newton_schulz_bytes(const Muon& w) {
  const double small = as_double(std::min(w.rows, w.cols));
  const double large = as_double(std::max(w.rows, w.cols));
  return Bytes(size_of(DType::bf16) * (2 * small * large + 2 * small * small));
}

std::string_view kind_name(const Work& work) {
  return std::visit(
      Overloaded{[](const Gemm&) -> std::string_view { return "gemm"; },
                 [](const GroupedGemm&) -> std::string_view { return "grouped_gemm"; },
                 [](const Attention&) -> std::string_view { return "attention"; },
                 [](const Rowwise& w) { return to_word(w.kind); },
                 [](const Collective& w) { return to_word(w.kind); },
                 [](const SendRecv&) -> std::string_view { return "send_recv"; },
                 [](const Update& w) -> std::string_view {
                   return w.optimizer == OptimizerKind::adam ? "adamw" : to_word(w.optimizer);
                 },
                 [](const HostCopy&) -> std::string_view { return "host_copy"; },
                 [](const HostAdam&) -> std::string_view { return "host_adam"; },
                 [](const Join&) -> std::string_view { return "join"; },
                 [](const GatedDeltaRule&) -> std::string_view { return "gated_delta_rule"; },
                 [](const StateSpaceScan&) -> std::string_view { return "state_space_scan"; },
                 [](const Muon&) -> std::string_view { return "muon"; }},
      work);
}

std::string to_string(const Work& work) {
  return std::visit(
      Overloaded{
          [](const Gemm& w) {
            const std::string batch = w.batch > 1 ? fmt::format("{} x ", w.batch) : "";
            return fmt::format("gemm {}{}x{}x{} {}{}", batch, w.m, w.n, w.k, to_word(w.dtype),
                               w.accumulate_fp32 ? " +fp32"
                               : w.adds          ? " +="
                                                 : "");
          },
          [](const GroupedGemm& w) {
            return fmt::format("{} {} experts {}x{}x{} {}{}", grouped_name(w), w.groups, w.rows,
                               w.n, w.k, to_word(w.dtype),
                               w.accumulate_fp32 ? " +fp32"
                               : w.adds          ? " +="
                                                 : "");
          },
          [](const Attention& w) { return attention_text(w); },
          [](const Rowwise& w) {
            return fmt::format("{} {}x{} {}{}", to_word(w.kind), w.rows, w.cols, to_word(w.dtype),
                               w.fused ? "" : " unfused");
          },
          [](const Collective& w) {
            return fmt::format("{} {} {}{}", to_word(w.kind), to_word(w.axis), bytes_text(w.bytes),
                               w.expert_parallel_library ? " ep-library" : "");
          },
          [](const SendRecv& w) {
            return fmt::format("send_recv {} {}", to_word(w.axis), bytes_text(w.bytes));
          },
          [](const Update& w) { return fmt::format("{} {} params", kind_name(w), w.params); },
          [](const HostCopy& w) {
            return fmt::format("host_copy {} {}", w.to_host ? "to host" : "to device",
                               bytes_text(w.bytes));
          },
          [](const HostAdam& w) {
            return fmt::format("host_adam {} params{}", w.params, w.nvme ? " nvme" : "");
          },
          [](const Join&) { return std::string("join"); },
          [](const GatedDeltaRule& w) { return delta_rule_text(w); },
          [](const StateSpaceScan& w) { return scan_text(w); },
          [](const Muon& w) {
            return fmt::format("muon {:.3g} x {}x{}", w.matrices, w.rows, w.cols);
          }},
      work);
}

std::uint64_t hash_of(const Work& work) {
  Hasher hasher;
  hasher.add(work.index());
  std::visit(
      [&](const auto& w) {
        each_field(w, [&](const auto&... field) { (hasher.add(field), ...); });
      },
      work);
  return hasher.result();
}

void SlotList::add(SlotId id) {
  QPLAN_CHECK(count < ids.size(), "an op reads or writes at most eight slots");
  ids[count++] = id;
}

}  // namespace qplan
