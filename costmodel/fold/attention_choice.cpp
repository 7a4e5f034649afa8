#include "costmodel/fold/attention_choice.h"

namespace qplan {
namespace {

// Whether the library of attention is torch's choice: a recipe that names one has made it.
bool calls_torch_attention(const Recipe& recipe) {
  return kHuggingFace.has(recipe.kind) && recipe.kernels.attention == AttentionKernel::fused;
}

}  // namespace

// Left to itself, Transformer Engine takes cuDNN's attention from Hopper on and FlashAttention-2
// before. cuDNN's backward has no fixed order with dropout on Blackwell
// (nvte_get_fused_attn_backend in Transformer Engine d0067d0d, common/fused_attn/fused_attn.cpp;
// get_attention_backend in its pytorch/attention/dot_product_attention/utils.py), and neither
// FlashAttention-3 nor 4 has dropout.
// torch's scaled_dot_product_attention, which Hugging Face's modules call, takes cuDNN's on compute
// capability 9.0 and 10.0, not on 10.3 (check_prefer_cudnn_attention in PyTorch v2.11.0,
// aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
ParallelPlan plan_on(const HardwareProfile& hardware, const ParallelPlan& plan,
                     const Recipe& recipe) {
  ParallelPlan runs = plan;
  if (plan.attention_backend != AttentionBackend::automatic) return runs;
  const int generation = hardware.gpu.compute_capability;
  const bool engine_has_none =
      generation < 90 || (generation >= 100 && plan.deterministic && plan.dropout);
  const bool torch_has_none = generation != 90 && generation != 100;
  if ((recipe.has_engine_layers() && engine_has_none) ||
      (calls_torch_attention(recipe) && torch_has_none)) {
    runs.attention_backend = AttentionBackend::flash;
  }
  return runs;
}

}  // namespace qplan
