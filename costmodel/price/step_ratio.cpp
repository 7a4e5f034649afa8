#include "costmodel/price/step_ratio.h"

#include <fmt/format.h>

#include <variant>

#include "models/overloaded.h"
#include "models/portable_math.h"
#include "models/statistics.h"

namespace qplan {
namespace {

// A size that is twice another's, or half, has exp(-1/2) of the weight of one that is equal.
constexpr double kOctave = 1;
// ... and the kind's median ratio, or 1, as much as a ratio some two octaves away.
constexpr double kMedianWeight = 0.1;

// Of what is so far away that it has no weight: nothing is left of 1e-11 beside kMedianWeight.
constexpr double kFarSquare = 50 * kOctave * kOctave;

double nearness(const std::vector<double>& a, const std::vector<double>& b) {
  double square = 0;
  for (std::size_t i = 0; i < a.size(); ++i) square += (a[i] - b[i]) * (a[i] - b[i]);
  return square > kFarSquare ? 0 : portable::exp(-square / (2 * kOctave * kOctave));
}

std::string_view sums_of(bool accumulate_fp32, bool adds) {
  return accumulate_fp32 ? " +fp32" : adds ? " +=" : "";
}

WorkPoint point(const Gemm& w) {
  const std::string family = fmt::format("gemm {}", to_word(w.dtype));
  return {family,
          fmt::format("{}{}", family, sums_of(w.accumulate_fp32, w.adds)),
          {as_double(w.m * w.batch), as_double(w.n), as_double(w.k)}};
}

WorkPoint point(const GroupedGemm& w) {
  if (w.groups <= 0) return {};
  const std::string family = fmt::format("grouped_gemm {}", to_word(w.dtype));
  return {family,
          fmt::format("{}{}{}", family, w.weight_gradient ? " wgrad" : "",
                      sums_of(w.accumulate_fp32, w.adds)),
          {as_double(w.rows) / as_double(w.groups), as_double(w.groups), as_double(w.n),
           as_double(w.k)}};
}

WorkPoint point(const Attention& w) {
  if (w.kernel != AttentionKernel::fused) return {};
  const std::string family =
      fmt::format("attention {}", w.pass == Pass::forward ? "forward" : "backward");
  const std::int64_t v_dim = w.v_head_dim > 0 ? w.v_head_dim : w.head_dim;
  return {family,
          fmt::format("{} {}/{}{}{}", family, w.head_dim, v_dim, w.window > 0 ? " window" : "",
                      w.sinks ? " sinks" : ""),
          {as_double(w.q_len), as_double(w.batch * w.heads)}};
}

WorkPoint point(const Rowwise& w) {
  if (!w.fused) return {};
  const std::string kind = fmt::format("{} {}", to_word(w.kind), to_word(w.dtype));
  return {kind, kind, {as_double(w.rows), as_double(w.cols)}};
}

// Of our executor's kernels: a machine whose steps were measured runs others' as it did.
WorkPoint point(const GatedDeltaRule& w) {
  if (!w.own) return {};
  const std::string family = "gated_delta_rule own";
  return {family,
          fmt::format("{} {}", family, w.pass == Pass::forward ? "forward" : "backward"),
          {as_double(w.seq_len), as_double(w.batch * w.value_heads),
           as_double(w.key_dim * w.value_dim)}};
}

WorkPoint point(const StateSpaceScan& w) {
  if (!w.own) return {};
  const std::string family = "state_space_scan own";
  return {
      family,
      fmt::format("{} {}", family, w.pass == Pass::forward ? "forward" : "backward"),
      {as_double(w.seq_len), as_double(w.batch * w.heads), as_double(w.head_dim * w.state_size)}};
}

// At a step's end its kernels find the GPU's power limit far away.
WorkPoint point(const Update& w) {
  if (!w.fused) return {};
  const std::string kind = fmt::format("update {}", to_word(w.optimizer));
  return {kind, kind, {as_double(w.params)}};
}

WorkPoint point(const Collective& w, int ranks) {
  if (w.expert_parallel_library || ranks < 2) return {};
  const std::string kind = fmt::format("{} {}", to_word(w.kind), ranks);
  return {kind, kind, {w.bytes.value()}, /*far_sizes_count=*/false};
}

}  // namespace

WorkPoint point_of(const Work& work, int ranks) {
  return std::visit(Overloaded{[](const Gemm& w) { return point(w); },
                               [](const GroupedGemm& w) { return point(w); },
                               [](const Attention& w) { return point(w); },
                               [](const Rowwise& w) { return point(w); },
                               [](const GatedDeltaRule& w) { return point(w); },
                               [](const StateSpaceScan& w) { return point(w); },
                               [](const Update& w) { return point(w); },
                               [&](const Collective& w) { return point(w, ranks); },
                               [](const auto&) { return WorkPoint(); }},
                    work);
}

double log2_size(double size) {
  return portable::log2(std::max(size, 1.0));
}

double step_ratio(const WorkPoint& point, const StepRatios& ratios) {
  if (point.kind.empty()) return 1;
  double sum = 0, weights = 0;
  std::vector<double> logs;
  const auto add = [&](const StepRatio& measured, double weight) {
    logs.push_back(measured.log_ratio);
    sum += weight * measured.log_ratio;
    weights += weight;
  };
  if (const auto own = ratios.find(point.kind); own != ratios.end()) {
    std::vector<double> sizes;
    for (const double size : point.sizes) sizes.push_back(log2_size(size));
    for (const StepRatio& r : own->second) add(r, nearness(sizes, r.log2_sizes));
  } else {
    // Relatives: how near is not known.
    for (const auto& [kind, measured] : ratios) {
      if (kind != point.family && kind.rfind(point.family + " ", 0) != 0) continue;
      for (const StepRatio& r : measured) add(r, 0);
    }
  }
  if (logs.empty()) return 1;
  const double far = point.far_sizes_count ? median_of(logs) : 0;
  return portable::exp((sum + kMedianWeight * far) / (weights + kMedianWeight));
}

double StepRatioMemo::of(const Work& work, int ranks, const StepRatios& ratios) {
  return known_.get({work, ranks}, [&] { return step_ratio(point_of(work, ranks), ratios); });
}

}  // namespace qplan
