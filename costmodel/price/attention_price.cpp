// Attention in one kernel, and attention that writes its scores out: products, passes, and what a
// fixed order, dropout and sinks take besides.

#include <algorithm>
#include <cmath>

#include "costmodel/price/price.h"
#include "models/error.h"
#include "models/portable_math.h"

namespace qplan {
namespace {

// How long a causal sequence would be whose queries look at as many keys in the mean as these do:
// in one of length s they look at s/2.
double effective_length(const Attention& a) {
  const double longest = as_double(std::max(a.q_len, a.kv_len));
  return std::clamp(2 * score_pairs(a) / as_double(a.q_len), 1.0, longest);
}

// The vendor's own kernel, not one of FlashAttention's or torch's.
bool of_vendor(AttentionKernel kernel) {
  return kernel == AttentionKernel::fused || kernel == AttentionKernel::fused_fp8;
}

// How much longer backward takes when it adds up the queries' gradients in a fixed order. A kernel
// may store the scores' gradients and multiply them on their own, by a share that does not depend
// on the shape; or it splits the sum, a part for each share of the GPU that one head's blocks of
// keys get, and adds the parts up.
double fixed_order_share(const Attention& a, const HardwareProfile& hardware) {
  if (!a.deterministic) return 1;
  const AttentionOptions& options = hardware.attention_options;
  const bool flash = !of_vendor(a.kernel);
  if (!flash && options.fixed_order_stored) return *options.fixed_order_stored;
  const double heads = as_double(a.batch) * as_double(a.heads);
  return 1 + options.fixed_order_each_part * std::ceil(hardware.gpu.multiprocessors / heads);
}

// Dropout draws a random number for each score, in work that all multiprocessors share.
Seconds dropout_time(const Attention& a, const HardwareProfile& hardware) {
  if (!a.dropout) return {};
  const AttentionOptions& options = hardware.attention_options;
  const bool fused = of_vendor(a.kernel);
  const bool forward = a.pass == Pass::forward;
  const Seconds each = fused ? (forward ? options.dropout_fused : options.dropout_fused_backward)
                       : forward ? options.dropout_flash
                                 : options.dropout_flash_backward;
  const double pairs = as_double(a.batch) * as_double(a.heads) * score_pairs(a);
  return each * pairs * options.dropout_multiprocessors / hardware.gpu.multiprocessors;
}

// Attention with learned logits ("sinks"): their gradient is one more sum over each head's queries.
Seconds sinks_time(const Attention& a, const HardwareProfile& hardware) {
  if (!a.sinks || !of_vendor(a.kernel) || a.pass == Pass::forward) return {};
  return hardware.attention_options.sinks_backward * as_double(a.batch) * as_double(a.heads) *
         as_double(a.q_len);
}

// What a long run leaves of attention's rate (AttentionFit::sustain): between what it keeps among
// products and what it keeps alone, by the square of attention's part of the time that it and the
// model's products take, forward and backward.
double sustained_share(const Attention& a, const AttentionFit& fit,
                       const HardwareProfile& hardware) {
  if (!fit.sustain_alone) return fit.sustain;
  const GemmFit& gemm = hardware.gemm.at(Precision::bf16);
  const double attention = (1 + 2.5 / fit.backward_rate) / fit.efficiency;
  const double products = 3 * a.products / gemm.efficiency;
  const double share = attention / (attention + products);
  return fit.sustain + (*fit.sustain_alone - fit.sustain) * share * share;
}

Seconds fused_attention_time(const Attention& a, const AttentionFit& fit,
                             const HardwareProfile& hardware) {
  Attention forward = a;
  forward.pass = Pass::forward;
  const double length = effective_length(a);
  const double tiles =
      as_double(a.batch) * as_double(a.heads) * std::ceil(as_double(a.q_len) / 128);
  const double wave = a.pass == Pass::forward ? fit.wave : fit.backward_wave.value_or(fit.wave);
  const double waves = 1 + wave * hardware.gpu.multiprocessors / tiles;
  const FlopsPerSecond peak = hardware.gpu.matmul.at(Precision::bf16);
  const Seconds busy = flops(Work(forward)) /
                       (peak * fit.efficiency * sustained_share(a, fit, hardware)) *
                       (1 + fit.s0 / length) * waves;
  if (a.pass == Pass::forward) return fit.latency + busy;
  const double rate = fit.backward_rate / (1 + fit.backward_s0 / length);
  return fit.latency + busy * (2.5 / rate) * fixed_order_share(a, hardware);
}

Price fused_attention_price(const Attention& a, const HardwareProfile& hardware) {
  QPLAN_CHECK(!hardware.attention.empty(), "every profile has an attention fit");
  const bool older = !of_vendor(a.kernel) && !hardware.flash2_attention.empty();
  const bool flex = a.kernel == AttentionKernel::flex && !hardware.flex_attention.empty();
  const double rate = a.kernel == AttentionKernel::flash1 ? hardware.flash1_rate : 1;
  const std::int64_t v_dim = a.v_head_dim > 0 ? a.v_head_dim : a.head_dim;
  const double head_dim = as_double(a.head_dim + v_dim) / 2;
  const auto at = [&](const AttentionFit& fit) {
    return Price{fused_attention_time(a, fit, hardware) / rate,
                 fit.assumed ? PriceSource::assumed : PriceSource::formula, fit.error};
  };
  const bool fp8 = a.kernel == AttentionKernel::fused_fp8 && !hardware.fp8_attention.empty();
  const auto& fits = flex    ? hardware.flex_attention
                     : older ? hardware.flash2_attention
                     : fp8   ? hardware.fp8_attention
                             : hardware.attention;
  const auto above = std::find_if(fits.begin(), fits.end(), [&](const AttentionFit& fit) {
    return as_double(fit.head_dim) >= head_dim;
  });
  if (above == fits.end()) return at(fits.back());
  if (above == fits.begin() || as_double(above->head_dim) == head_dim) return at(*above);
  const auto below = above - 1;
  const double low = portable::log2(as_double(below->head_dim));
  const double weight =
      (portable::log2(head_dim) - low) / (portable::log2(as_double(above->head_dim)) - low);
  const Price a_price = at(*below);
  const Price b_price = at(*above);
  const bool nearer_above = weight > 0.5;
  return {a_price.time * (1 - weight) + b_price.time * weight,
          (nearer_above ? b_price : a_price).source, std::max(a_price.error, b_price.error)};
}

// A batch of products, one a head. Where a head's matrix begins off the alignment that tensor cores
// need they run on the GPU's other cores.
Price head_product_price(const Gemm& work, std::int64_t head_dim, const HardwareProfile& hardware) {
  const UnalignedProducts& unaligned = hardware.gpu.unaligned;
  const double bytes = size_of(work.dtype) * as_double(head_dim);
  if (std::fmod(bytes, unaligned.alignment_bytes) == 0) return gemm_price(work, hardware);
  const FlopsPerSecond rate = hardware.gpu.matmul.at(Precision::bf16) * unaligned.share_of_bf16;
  return {flops(Work(work)) / rate, PriceSource::assumed, unaligned.error};
}

// Attention that writes its scores out, in 16 bits: two products a head, over all pairs whether
// masked or not, and passes over the scores between them, at a copy's rate. Bytes a score:
// - softmax in one kernel with scale and mask (Megatron's) reads and writes the scores, 4; backward
//   reads two and writes one, 6;
// - else each of these is a kernel in fp32: cast to it 6, scale, mask and softmax 8 each (softmax
//   backward 12), cast from it 6: 36 and 40;
// - dropout is a kernel in either pass.
// Backward has two products for each of forward's.
Price unfused_attention_price(const Attention& a, const HardwareProfile& hardware) {
  const std::int64_t v_dim = a.v_head_dim > 0 ? a.v_head_dim : a.head_dim;
  const std::int64_t batch = a.batch * a.heads;
  Price scores = head_product_price({.m = a.q_len, .n = a.kv_len, .k = a.head_dim, .batch = batch},
                                    a.head_dim, hardware);
  const Price values = head_product_price({.m = a.q_len, .n = v_dim, .k = a.kv_len, .batch = batch},
                                          v_dim, hardware);
  const bool forward = a.pass == Pass::forward;
  const double elements = as_double(batch) * as_double(a.q_len) * as_double(a.kv_len);
  const bool fused = fused_softmax(a);
  const double softmax = fused ? (forward ? 4 : 6) : (forward ? 36 : 40);
  const Bytes traffic(elements * (softmax + hardware.attention_options.dropout_unfused.value()));
  const Seconds passes =
      traffic / (hardware.gpu.memory_bandwidth * hardware.gpu.memory_efficiency) +
      (fused ? 2 : 6) * hardware.gpu.kernel_launch;
  scores.time = (scores.time + values.time) * (forward ? 1 : 2) + passes;
  scores.error = std::max({scores.error, values.error, hardware.errors.memory_bound});
  return scores;
}

}  // namespace

Price attention_price(const Attention& work, const HardwareProfile& hardware) {
  if (work.batch <= 0 || work.heads <= 0 || work.q_len <= 0 || work.kv_len <= 0) {
    return {Seconds(), {}, 0};
  }
  if (work.kernel == AttentionKernel::unfused) return unfused_attention_price(work, hardware);
  Price price = fused_attention_price(work, hardware);
  // Few queries of many cached keys: reading those takes longer than the products.
  if (work.kv_len > work.q_len) {
    const BytesPerSecond rate = hardware.gpu.memory_bandwidth * hardware.gpu.memory_efficiency;
    price.time = overlapped(price.time, key_value_bytes(work) / rate);
    price.error = std::max(price.error, hardware.errors.memory_bound);
  }
  price.time += dropout_time(work, hardware) + sinks_time(work, hardware);
  return price;
}

}  // namespace qplan
