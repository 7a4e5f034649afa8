#pragma once
// The cross-entropy over the logits, of which frameworks have several: what each keeps, in bytes a
// logit. Logits have 16 bits.
//
// Sources (Megatron-LM d98e8a64, Transformer Engine 2.18.0, torchtitan b5bcd76c):
//   eager     torch's F.cross_entropy of logits.float(): fp32 logits and their log-softmax stay;
//             the gradient comes in fp32 (torch's log_softmax and nll_loss). transformers 5 lets
//             the logits go: the log-softmax stays, and backward has two more fp32 arrays.
//   narrow    the same of 16-bit logits, as Lightning's LitGPT has it (litgpt/utils.py,
//             chunked_cross_entropy; lightning-thunder 1e22aacb,
//             thunder/benchmarks/benchmark_litgpt.py:826): the loop holds the logits, and the
//             log-softmax and both of backward's arrays have their format.
//   unfused   core/tensor_parallel/cross_entropy.py: an fp32 copy becomes probabilities in place,
//             then their gradient, which autograd casts; nobody holds the logits once forward is
//             through.
//   native    core/fusions/fused_cross_entropy.py: the same arrays, by four functions that
//             torch.compile makes one pass each of. Gradients at the targets are put into a copy of
//             all (Inductor's code of calculate_gradients, torch 2.15), so that backward has 10
//             bytes at once: the probabilities, the copy, and the gradient in 16 bits.
//   te        pytorch/triton/cross_entropy.py: one kernel reads the logits for the sum of
//             exponentials, the next makes the gradient, in fp32 since 01bbe3ee of July 2026, which
//             backward scales and autograd casts. Before, the gradient took the logits' place;
//             measured runs have 4 bytes (SimuMax's on B200, Transformer Engine 2.11, to 0.3%).
//   fused, compiled  one kernel each way over 16-bit logits, the gradient beside them.
//   liger     linear-cross-entropy in parts (ops/fused_linear_cross_entropy.py of Liger-Kernel
//   0.3):
//             as many parts as make a part's logits about as large as the hidden states, each
//             part's gradient in the logits' place, the hidden states' put together in 16 bits.
//   chunked   components/loss.py:501: head, loss and the head's backward run over eighths of the
//             tokens one after the other, so that only a part's logits are there at once.

#include <cstdint>

#include "models/model_spec.h"
#include "models/program/recipe.h"

namespace qplan {

struct LossTraits {
  bool fused = true;          // few kernels, not torch's operation by operation
  bool keeps_logits = true;   // until backward
  double kept_bytes = 0;      // from forward to backward beside them
  double gradient_bytes = 2;  // of what leaves the loss in backward
  // ... and more where tp splits the vocabulary: DTensor's loss_parallel has four fp32 arrays at
  // once, the result of log_softmax, zeros with the targets in them, the sum of the two and its
  // product (_nll_loss_and_log_softmax_backward in torch/distributed/tensor/parallel/loss.py).
  double split_gradient_bytes = 0;
  std::int64_t chunks = 1;
  bool by_vocabulary = false;  // as many parts as the vocabulary is wider than the hidden states
};

LossTraits traits_of(LossKind loss, const Recipe& recipe);

// What a plan that asks for `asked` runs. Megatron's deterministic mode leaves its fused losses out
// (training/determinism.py).
LossKind loss_of(LossKind asked, bool deterministic, const Recipe& recipe);

// Those that a framework has: the words that its plans may say.
EnumSet<LossKind> losses_of(RecipeKind recipe);

// The word of a plan that runs `loss`: none where the framework runs it unasked, so that equal
// steps are equal plans.
LossKind loss_word(LossKind loss, bool deterministic, const Recipe& recipe);

// Parts that head and loss of a microbatch of so many tokens run in: each has `rows` of them, the
// last what is left. torchtitan's are whole where they do not divide the tokens, which it refuses;
// all are with multi-token prediction, which its parts do not know (models/deepseek_v3/mtp.py).
struct LossParts {
  std::int64_t count = 1, rows = 0;
};

LossParts loss_parts(const ModelSpec& model, const LossTraits& loss, std::int64_t tokens);

}  // namespace qplan
