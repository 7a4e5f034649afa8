#include <algorithm>
#include <cmath>
#include <optional>

#include "costmodel/price/interpolate.h"
#include "costmodel/price/price.h"
#include "costmodel/price/step_ratio.h"
#include "models/error.h"
#include "models/overloaded.h"
#include "models/portable_math.h"

namespace qplan {
namespace {

// An fp32 sum is read, added to and written.
constexpr double kAccumulateBytes = 8;

// Peak and fit of a matrix product's number format.
struct Engine {
  FlopsPerSecond peak;
  const GemmFit* fit = nullptr;
  bool assumed = false;
};

Precision precision_of(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return Precision::fp16;
    case DType::fp8:
    case DType::fp8_e5m2:
      return Precision::fp8;
    case DType::fp4:
      return Precision::nvfp4;
    case DType::fp32:
    case DType::bf16:
    case DType::int64:
    case DType::int32:
    case DType::boolean:
      return Precision::bf16;
  }
  return Precision::bf16;
}

Engine engine_of(DType dtype, const HardwareProfile& hardware) {
  const Precision precision = precision_of(dtype);
  auto peak = hardware.gpu.matmul.find(precision);
  auto fit = hardware.gemm.find(precision);
  const bool lacking = peak == hardware.gpu.matmul.end() || fit == hardware.gemm.end();
  if (lacking) {
    peak = hardware.gpu.matmul.find(Precision::bf16);
    fit = hardware.gemm.find(Precision::bf16);
    QPLAN_CHECK(peak != hardware.gpu.matmul.end() && fit != hardware.gemm.end(),
                "every profile has a bf16 peak and a bf16 fit");
  }
  const double share = dtype == DType::fp32 ? hardware.gpu.tf32_share : 1;
  return {peak->second * share, &fit->second, fit->second.assumed || lacking};
}

// A batch of equal products; m counts the rows of one.
struct Product {
  double m = 0, n = 0, k = 0, batch = 1;
  double input_bytes = 2;  // an element of A and B; C is written in 2 bytes (fp32: 4)

  [[nodiscard]] Flops flops() const { return Flops(2 * m * n * k * batch); }
  [[nodiscard]] Bytes bytes() const {
    return Bytes(batch * (input_bytes * (m * k + k * n) + std::max(2.0, input_bytes) * m * n));
  }
  // Equal products side by side fill the GPU as one with all their rows.
  [[nodiscard]] GemmPoint point() const { return {m * batch, n, k}; }
};

Product scaled_to(const Product& product, GemmPoint point) {
  return {point.m, point.n, point.k, 1, product.input_bytes};
}

// The closed form that GemmFit is of, in bursts: before `sustain`.
Seconds closed_form(const Product& p, const Engine& engine, BytesPerSecond bandwidth) {
  const GemmFit& fit = *engine.fit;
  const GemmPoint at = p.point();
  const double tiles = (1 + fit.m0 / at.m) * (1 + fit.n0 / at.n) * (1 + fit.k0 / at.k);
  const Seconds compute = p.flops() / (engine.peak * fit.efficiency) * tiles;
  const Seconds memory = p.bytes() / (bandwidth * fit.bandwidth_efficiency);
  return fit.latency + overlapped(compute, memory);
}

Seconds ideal_time(const Product& p, const Engine& engine, BytesPerSecond bandwidth) {
  return std::max(p.flops() / engine.peak, p.bytes() / bandwidth);
}

const GemmTable* table_of(DType dtype, const HardwareProfile& hardware) {
  const DType measured = dtype == DType::fp16 ? DType::bf16 : dtype;
  for (const GemmTable& table : hardware.gemm_tables) {
    if (table.dtype == measured) return &table;
  }
  return nullptr;
}

bool inside(GemmPoint a, GemmPoint clamped) {
  return a.m == clamped.m && a.n == clamped.n && a.k == clamped.k;
}

// In bursts, before `sustain`. Inside the table's range of m, n and k: the table. Outside: the
// closed form, times what the table says over what the form says at the nearest point inside, so
// that there is no step where the two meet.
Price burst_price(const Product& p, DType dtype, const Engine& engine,
                  const HardwareProfile& hardware) {
  const BytesPerSecond bandwidth = hardware.gpu.memory_bandwidth;
  const Price formula{closed_form(p, engine, bandwidth), PriceSource::formula, engine.fit->error};
  const GemmTable* table = table_of(dtype, hardware);
  if (table == nullptr) return formula;
  const GemmPoint nearest = clamp_to(*table, p.point());
  const auto utilisation = utilisation_at(*table, nearest);
  if (!utilisation) return formula;
  if (inside(p.point(), nearest)) {
    return {ideal_time(p, engine, bandwidth) / *utilisation, PriceSource::table,
            hardware.errors.gemm_table};
  }
  const Product edge = scaled_to(p, nearest);
  const Seconds measured = ideal_time(edge, engine, bandwidth) / *utilisation;
  const double residual = measured / closed_form(edge, engine, bandwidth);
  return {formula.time * residual, PriceSource::formula,
          std::max(hardware.errors.beyond_gemm_table, engine.fit->error)};
}

// How much longer a product takes in a long run than in a burst: its arithmetic waits for a clock
// that falls with the power it draws, what it reads and writes does not.
double long_run_share(const Product& p, const Engine& engine, BytesPerSecond bandwidth) {
  const Seconds compute = p.flops() / engine.peak, memory = p.bytes() / bandwidth;
  return overlapped(compute / engine.fit->sustain, memory) / overlapped(compute, memory);
}

Price marked(Price price, bool assumed, double error) {
  if (!assumed) return price;
  return {price.time, PriceSource::assumed, std::max(price.error, error)};
}

double rows_of_one(const GroupedGemm& g) {
  return as_double(g.rows) / as_double(g.groups);
}

// All experts' compute time. A weight gradient contracts over the rows: they take k's place.
Seconds grouped_compute(const GroupedGemm& g, const Engine& engine, const GemmFit& grouped) {
  const GemmFit& fit = *engine.fit;
  // (rows + m0)(rows + grouped.m0) / rows is least at the root of their product. Fewer rows never
  // take longer: below, that least time stands (kernels have smaller tiles for few rows).
  const double own_rows = rows_of_one(g);
  const double rows =
      g.weight_gradient ? own_rows : std::max(own_rows, std::sqrt(fit.m0 * grouped.m0));
  const double n = as_double(g.n);
  const double k = as_double(g.k);
  const double tiles = g.weight_gradient ? (1 + fit.m0 / n) * (1 + fit.n0 / k) * (1 + fit.k0 / rows)
                                         : (1 + fit.m0 / rows) * (1 + fit.n0 / n) *
                                               (1 + fit.k0 / k) * (1 + grouped.m0 / rows);
  const double efficiency = fit.efficiency * fit.sustain * grouped.efficiency * grouped.sustain;
  return flops(Work(g)) * (rows / own_rows) / (engine.peak * efficiency) * tiles;
}

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
    return marked({fused_attention_time(a, fit, hardware) / rate, PriceSource::formula, fit.error},
                  fit.assumed, fit.error);
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

Price memory_bound(Bytes traffic, double efficiency, int kernels, const HardwareProfile& hardware) {
  const Seconds busy = traffic / (hardware.gpu.memory_bandwidth * efficiency);
  return {busy + kernels * hardware.gpu.kernel_launch, PriceSource::formula,
          hardware.errors.memory_bound};
}

// Other optimizers' passes over long arrays are taken to be as quick as AdamW's.
Price update_price(const Update& work, const HardwareProfile& hardware) {
  if (work.params <= 0) return {Seconds(), PriceSource::formula, 0};
  const Gpu& gpu = hardware.gpu;
  const double efficiency =
      gpu.adamw_efficiency.value_or(gpu.memory_efficiency * gpu.adamw_share_of_copy);
  return memory_bound(memory_traffic(work), efficiency,
                      static_cast<int>(std::ceil(kernel_count(work))), hardware);
}

// Its products one after the other, as matrices of that size are multiplied in a layer.
Price muon_price(const Muon& work, const HardwareProfile& hardware) {
  if (work.rows <= 0 || work.cols <= 0 || work.matrices <= 0) return {Seconds(), {}, 0};
  Price sum{Seconds(), PriceSource::table, 0};
  for (const Gemm& product : newton_schulz_products(work)) {
    const Price one = gemm_price(product, hardware);
    sum.time += one.time * (kNewtonSchulzSteps * work.matrices);
    sum.source = std::max(sum.source, one.source);
    sum.error = std::max(sum.error, one.error);
  }
  const double launches = kernel_count(work) - 3 * kNewtonSchulzSteps * work.matrices;
  const Price passes =
      memory_bound(memory_traffic(work), hardware.gpu.memory_efficiency, 0, hardware);
  sum.time += passes.time + hardware.gpu.kernel_launch * launches;
  sum.error = std::max(sum.error, passes.error);
  return sum;
}

Price host_copy_price(const HostCopy& work, const HardwareProfile& hardware) {
  if (work.bytes <= Bytes()) return {Seconds(), PriceSource::formula, 0};
  const BytesPerSecond rate =
      work.to_host ? hardware.link.device_to_host : hardware.link.host_to_device;
  return {hardware.host.copy_start + work.bytes / rate, PriceSource::formula,
          hardware.errors.host_copy};
}

// All GPUs of a node step their shards at the same time, and each has its share of the node's
// cores, drives and memory: a job that has some of a node's GPUs does not get the others' share.
// That is how the cores' rate was measured (docs/evidence/archive/issue6-four-h200.md).
Price host_adam_price(const HostAdam& work, const HardwareProfile& hardware) {
  if (work.params <= 0) return {Seconds(), PriceSource::formula, 0};
  const double params_of_node = as_double(work.params) * hardware.link.gpus_per_node;
  Seconds time(params_of_node / hardware.host.adam_params_per_s);
  if (work.nvme) {
    QPLAN_CHECK(hardware.host.nvme_read.value() > 0 && hardware.host.nvme_write.value() > 0,
                "a plan with NVMe offload needs nvme_read and nvme_write");
    // ZeRO-Infinity moves 12 B in (p, m, v) and 12-14 B out (and the bf16 copy) a parameter,
    // pipelined with the cores' work.
    const Seconds streamed = Bytes(12 * params_of_node) / hardware.host.nvme_read +
                             Bytes(14 * params_of_node) / hardware.host.nvme_write;
    time = std::max(time, streamed);
  }
  return {hardware.host.copy_start + time, PriceSource::formula, hardware.errors.host};
}

}  // namespace

Price gemm_price(const Gemm& work, const HardwareProfile& hardware) {
  if (work.m <= 0 || work.n <= 0 || work.k <= 0 || work.batch <= 0) return {Seconds(), {}, 0};
  const Engine engine = engine_of(work.dtype, hardware);
  const Product product{as_double(work.m), as_double(work.n), as_double(work.k),
                        as_double(work.batch), size_of(work.dtype)};
  Price price = burst_price(product, work.dtype, engine, hardware);
  price.time = price.time * long_run_share(product, engine, hardware.gpu.memory_bandwidth);
  if (work.accumulate_fp32) {
    const Bytes traffic(kAccumulateBytes * product.m * product.n * product.batch);
    if (const auto exposed = engine.fit->accumulate_exposed) {
      price.time += traffic / hardware.gpu.memory_bandwidth * *exposed;
    } else {
      const Fp32Sums& sums = hardware.gpu.fp32_sums;
      const Seconds extra = traffic / (hardware.gpu.memory_bandwidth * sums.bandwidth_efficiency);
      price.time = overlapped(price.time / sums.rate, extra);
    }
  }
  // What is added to is read; the result leaves as any product's.
  if (work.adds) {
    const Bytes sums(size_of(work.dtype) * product.m * product.n * product.batch);
    price.time += sums / hardware.gpu.memory_bandwidth;
  }
  return marked(price, engine.assumed, engine.fit->error);
}

// Off by 4.8% in the mean and 16% at worst on an H200 (torch grouped_mm, 30 timings), by 4.5 and
// 15% on a B200 (SimuMax, 16 timings): tests/costmodel/price/compute_price_test.cpp.
Price grouped_gemm_price(const GroupedGemm& work, const HardwareProfile& hardware) {
  if (work.groups <= 0 || work.rows <= 0) return {Seconds(), {}, 0};
  const Engine engine = engine_of(work.dtype, hardware);
  const GemmFit& grouped = hardware.grouped_gemm;
  const double element = size_of(work.dtype);
  const double rows = as_double(work.rows);
  const double n = as_double(work.n);
  const double k = as_double(work.k);
  const double weights = as_double(work.groups) * n * k;
  const BytesPerSecond bandwidth = hardware.gpu.memory_bandwidth * grouped.bandwidth_efficiency;
  const Seconds compute = grouped_compute(work, engine, grouped);
  Price price{engine.fit->latency + grouped.latency, PriceSource::formula, grouped.error};
  if (work.weight_gradient) {
    const Bytes inputs(element * rows * (n + k));
    // The gradients leave after the products: the sum fits, the maximum does not.
    const Bytes output(weights * (work.accumulate_fp32 ? kAccumulateBytes : 2));
    price.time += overlapped(compute, inputs / bandwidth) + output / bandwidth;
  } else {
    const Bytes traffic(element * (rows * k + weights) + std::max(2.0, element) * rows * n);
    const Bytes sums(work.adds ? std::max(2.0, element) * rows * n : 0);
    price.time += overlapped(compute, (traffic + sums) / bandwidth);
  }
  price.error = std::max(price.error, engine.fit->error);
  return marked(price, engine.assumed || grouped.assumed, price.error);
}

Seconds overlapped(Seconds a, Seconds b) {
  const double high = std::max(a.value(), b.value());
  if (high <= 0) return Seconds();
  const double ratio = std::min(a.value(), b.value()) / high;
  const double square = ratio * ratio;
  return Seconds(high * std::sqrt(std::sqrt(1 + square * square)));
}

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

// A machine's own figure for a kind, if it has one. Grouping received rows by expert and sorting
// tokens before they are sent are kernels alike: where the first was not measured apart, the
// second's figure stands for it.
template <class Figures>
typename Figures::const_iterator own_figure(const Figures& figures, RowwiseKind kind) {
  const auto found = figures.find(kind);
  const bool missing = found == figures.end() && kind == RowwiseKind::group_rows;
  return missing ? figures.find(RowwiseKind::permute) : found;
}

Price rowwise_price(const Rowwise& work, const HardwareProfile& hardware) {
  if (work.rows <= 0 || work.cols <= 0) return {Seconds(), {}, 0};
  const auto& exceptions = hardware.gpu.memory_efficiency_of;
  // These are fused kernels' efficiencies. An unfused kind's traffic is counted as that of the
  // copies which take as long.
  const auto found = work.fused ? own_figure(exceptions, work.kind) : exceptions.end();
  const double efficiency =
      found == exceptions.end() ? hardware.gpu.memory_efficiency : found->second;
  Price price = memory_bound(memory_traffic(work), efficiency, kernel_count(work), hardware);
  const auto latency = own_figure(hardware.gpu.memory_latency_of, work.kind);
  if (work.fused && latency != hardware.gpu.memory_latency_of.end()) {
    price.time += latency->second - kernel_count(work) * hardware.gpu.kernel_launch;
  }
  return price;
}

namespace {

// As measured alone, or by closed forms.
Price price_alone(const Work& work, const PriceContext& context) {
  QPLAN_CHECK(context.hardware != nullptr, "a price needs a machine");
  const HardwareProfile& hardware = *context.hardware;
  const auto shape = [&](Axis axis) -> const GroupShape& {
    QPLAN_CHECK(context.grid != nullptr, "a price of communication needs the ranks' layout");
    return context.grid->shape(axis);
  };
  return std::visit(
      Overloaded{[&](const Gemm& w) { return gemm_price(w, hardware); },
                 [&](const GroupedGemm& w) { return grouped_gemm_price(w, hardware); },
                 [&](const Attention& w) { return attention_price(w, hardware); },
                 [&](const GatedDeltaRule& w) { return delta_rule_price(w, hardware); },
                 [&](const StateSpaceScan& w) { return scan_price(w, hardware); },
                 [&](const Rowwise& w) { return rowwise_price(w, hardware); },
                 [&](const Collective& w) { return collective_price(w, shape(w.axis), hardware); },
                 [&](const SendRecv& w) {
                   return send_recv_price(w.bytes, shape(w.axis).nodes > 1, hardware);
                 },
                 [&](const Update& w) { return update_price(w, hardware); },
                 [&](const Muon& w) { return muon_price(w, hardware); },
                 [&](const HostCopy& w) { return host_copy_price(w, hardware); },
                 [&](const HostAdam& w) { return host_adam_price(w, hardware); },
                 [](const Join&) {
                   return Price{Seconds(), PriceSource::formula, 0};
                 }},
      work);
}

}  // namespace

Price price(const Work& work, const PriceContext& context) {
  Price price = price_alone(work, context);
  if (context.hardware->step_ratios.empty()) return price;
  GroupShape group;
  if (const auto* collective = std::get_if<Collective>(&work)) {
    group = context.grid->shape(collective->axis);
    if (group.nodes > 1) return price;  // steps were measured on one node
  }
  price.time = price.time * step_ratio(point_of(work, group.size), context.hardware->step_ratios);
  return price;
}

}  // namespace qplan
