#include <algorithm>
#include <array>
#include <cmath>

#include "costmodel/price/interpolate.h"
#include "costmodel/price/price.h"
#include "costmodel/price/step_ratio.h"
#include "models/error.h"
#include "models/overloaded.h"

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

Price memory_bound(Bytes traffic, double efficiency, int kernels, const HardwareProfile& hardware) {
  const Seconds busy = traffic / (hardware.gpu.memory_bandwidth * efficiency);
  return {busy + kernels * hardware.gpu.kernel_launch, PriceSource::formula,
          hardware.errors.memory_bound};
}

// index_put adds the rows of one sum one after the other (torch's indexing_backward_kernel),
// however wide they are: 1.1 to 1.4 us a row on an H200, of 128 to 8192 rows
// (scripts/torch_kernels.py; docs/evidence/archive/huggingface-2026-12-01.md). Each waits for
// memory: elsewhere taken alike.
constexpr Seconds kRowOfSum(1.3e-6);

// torch's eager kernels that read strided halves, one array beside a broadcast one, or lists of
// 16-bit arrays are held up by their instructions, not by memory. Picoseconds a number of unfused
// kinds on 132 multiprocessors, all kernels of a kind together (H200, torch 2.11, steps of
// transformers 5.17; docs/evidence/archive/huggingface-2026-12-01.md).
constexpr double kMeasuredMultiprocessors = 132;
constexpr std::array<std::pair<RowwiseKind, double>, 8> kInstructionBound{
    {{RowwiseKind::halves_swiglu, 5.5},            // silu 2.7, the product taken alike
     {RowwiseKind::halves_swiglu_backward, 10.7},  // 3.3, products 2.7 each, the halves' copy 2.0
     {RowwiseKind::weigh_rows, 3.1},
     {RowwiseKind::weigh_rows_backward, 7.8},  // spread 2.4, products 3.1 and 1.5, sums 0.8
     {RowwiseKind::index_put, 2.4},
     {RowwiseKind::masked_fill, 3.1},  // 2.7 here, 3.1 to 3.8 on two H200 on 2026-11-29
     {RowwiseKind::scale, 1.35},       // clip_grad_norm_'s product of a list
     {RowwiseKind::sum_of_squares, 0.85}}};
constexpr double kNarrowAdamW = 5.7;  // of 16-bit weights and states; 5.3 alone to 6.8 in a step

Seconds instructions_time(double numbers, double picoseconds, const Gpu& gpu) {
  return Seconds(numbers * picoseconds * 1e-12 * kMeasuredMultiprocessors / gpu.multiprocessors);
}

Seconds instructions_time(const Rowwise& work, const Gpu& gpu) {
  const auto found = std::find_if(kInstructionBound.begin(), kInstructionBound.end(),
                                  [&](const auto& entry) { return entry.first == work.kind; });
  if (work.fused || found == kInstructionBound.end()) return {};
  return instructions_time(as_double(work.rows) * as_double(work.cols), found->second, gpu);
}

// Other optimizers' passes over long arrays are taken to be as quick as AdamW's.
Price update_price(const Update& work, const HardwareProfile& hardware) {
  if (work.params <= 0) return {Seconds(), PriceSource::formula, 0};
  const Gpu& gpu = hardware.gpu;
  const double efficiency =
      gpu.adamw_efficiency.value_or(gpu.memory_efficiency * gpu.adamw_share_of_copy);
  Price price = memory_bound(memory_traffic(work), efficiency,
                             static_cast<int>(std::ceil(kernel_count(work))), hardware);
  const bool narrow = size_of(work.main_params) == 2 && size_of(work.moments) == 2;
  if (narrow && work.optimizer == OptimizerKind::adam) {
    price.time = std::max(price.time, instructions_time(as_double(work.params), kNarrowAdamW, gpu));
  }
  return price;
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
// That is how the cores' rate was measured (docs/evidence/archive/issue6-four-h200.md). A step is
// held up by the host's memory (a loop over vectors does some 15 operations a parameter), so that a
// profile's rate, of HostAdam's own formats as our kernel has them, is one of bytes.
Price host_adam_price(const HostAdam& work, const HardwareProfile& hardware) {
  if (work.params <= 0) return {Seconds(), PriceSource::formula, 0};
  const double ranks = hardware.link.gpus_per_node;
  const BytesPerSecond memory(hardware.host.adam_params_per_s *
                              memory_traffic(HostAdam{.params = 1}).value());
  Seconds time = memory_traffic(work) * ranks / memory;
  if (work.nvme) {
    QPLAN_CHECK(hardware.host.nvme_read.value() > 0 && hardware.host.nvme_write.value() > 0,
                "a plan with NVMe offload needs nvme_read and nvme_write");
    // ZeRO-Infinity moves main weights and moments in (12 bytes a parameter in fp32) and these and
    // the working copy out, pipelined with the cores' work.
    const Bytes in = state_bytes(work) * ranks;
    const Bytes copy(as_double(work.params) * size_of(work.working) * ranks);
    time = std::max(time, in / hardware.host.nvme_read + (in + copy) / hardware.host.nvme_write);
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
  price.time = std::max(
      {price.time, instructions_time(work, hardware.gpu), kRowOfSum * as_double(work.chain)});
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
                   const GroupShape& group = shape(w.axis);
                   return send_recv_price(w.bytes, group.nodes > 1, hardware, group.pods.edge);
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
  const StepRatios& ratios = context.hardware->step_ratios;
  price.time = price.time * (context.step_ratios != nullptr
                                 ? context.step_ratios->of(work, group.size, ratios)
                                 : step_ratio(point_of(work, group.size), ratios));
  return price;
}

}  // namespace qplan
