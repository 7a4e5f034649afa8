// Memory-bound work: bytes and kernels of each kind, as one fused kernel and as PyTorch's own.

#include "models/program/work.h"

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
    // transformers' experts, whose product makes gate and up side by side: silu and a product of
    // halves of rows; backward silu's, two products and the halves put together.
    case RowwiseKind::halves_swiglu:
      return {{5, 0, 2}, {5, 0, 2}};
    case RowwiseKind::halves_swiglu_backward:
      return {{13, 0, 4}, {13, 0, 4}};
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
    // A product with a number a row; backward what the sum's gradient is spread to, that times the
    // number, times the rows, and sums of these.
    case RowwiseKind::weigh_rows:
      return {{2, 0, 1}, {2, 0, 1}};
    case RowwiseKind::weigh_rows_backward:
      return {{7, 0, 4}, {7, 0, 4}};
    // indices sorted, then rows added in their order
    case RowwiseKind::index_put:
      return {{2, 0, 12}, {2, 0, 12}};
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
    // to fp8 one way round
    case RowwiseKind::quantize:
      return {{1, 1, 1}, {1, 1, 1}};
    // 4 bits and their scales; of 8 bits half a byte more, which is not told apart
    case RowwiseKind::dequantize:
      return {{1, 0.56, 1}, {1, 0.56, 1}};
    case RowwiseKind::copy:
    case RowwiseKind::scale:
      return {{2, 0, 1}, {2, 0, 1}};
    // torch 2.11's kernel in a step on two H200 (docs/evidence/archive/
    // steps-2026-11-29-two-h200.json): 13 bytes of a copy for each 4 that are written.
    case RowwiseKind::chunk_cat:
      return {{1, 2, 1}, {1, 9, 1}};
    case RowwiseKind::masked_fill:
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

}  // namespace

Bytes memory_traffic(const Rowwise& w) {
  const TrafficRow row = traffic_of(w.kind);
  const Traffic& t = pick(row, w.fused);
  return Bytes(as_double(w.rows) * as_double(w.cols) * (t.words * size_of(w.dtype) + t.bytes));
}

int kernel_count(const Rowwise& w) {
  const TrafficRow row = traffic_of(w.kind);
  return pick(row, w.fused).kernels * static_cast<int>(w.groups);
}

}  // namespace qplan
