#include "planner/runs/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "costmodel/profiles/layers.h"
#include "models/error.h"
#include "models/portable_math.h"
#include "models/text.h"

namespace qplan {
namespace {

constexpr std::size_t kFactors = 3;
using Logs = std::array<double, kFactors>;  // logarithms of the factors
using Square = std::array<Logs, kFactors>;

constexpr std::size_t kCompute = 0;  // of which traces tell
constexpr std::array<FitFactor, kFactors> kList{
    {{"compute", "rate of products and attention", &FitFactors::compute},
     {"communication", "rate of links", &FitFactors::communication},
     {"launch", "time to launch an op", &FitFactors::launch}}};

// The share of a run's squared error that its siblings (runs of one source, machine, framework and
// model) have too, and so a machine's factors may take: 0.51, of 377 runs in 63 groups of three and
// more (tests/data/runs/published.csv; docs/evidence/archive/doors-2026-11-29.md).
constexpr double kShared = 0.5;

// One sigma of what a trace says of products and attention. An assumption: runs of one machine have
// clocks that differ by 2 to 3% (docs/evidence/executor.md), and names of kernels can be misread.
constexpr double kTraceNoise = 0.03;

FitFactors factors_of(const Logs& logs) {
  FitFactors factors;
  for (std::size_t k = 0; k < kFactors; ++k) factors.*kList[k].value = portable::exp(logs[k]);
  return factors;
}

// ---- the profile ----

// Of figures that a generation has below: a section says itself where it is from.
constexpr const char* kSource = "the profile below, corrected by runs of one's own (qplan fit)";

void scale(Json& object, const char* key, double factor) {
  if (object.contains(key) && object[key].is_number()) {
    object[key] = object[key].get<double>() * factor;
  }
}

// A share of a peak or of a line rate cannot pass 1.
void scale_share(Json& object, const char* key, double factor, double fallback = 0) {
  const bool known = object.contains(key) && object[key].is_number();
  if (!known && fallback == 0) return;
  const double share = known ? object[key].get<double>() : fallback;
  object[key] = std::min(1.0, share * factor);
}

Json attention_overlay(const Json& source, double compute, double narrowed) {
  Json overlay = Json::object();
  for (const char* list : kAttentionKernels) {
    if (!source.contains(list)) continue;
    Json fits = source[list];
    for (Json& fit : fits) {
      scale_share(fit, "sustain", compute, 1);
      if (fit.contains("sustain_alone")) scale_share(fit, "sustain_alone", compute);
      scale(fit, "error", narrowed);
    }
    overlay[list] = std::move(fits);
  }
  return overlay;
}

// Times inside a node: fits, and the table that stands before them where there is one.
void add_collectives(Json& overlay, const HardwareProfile& base, double rate, double narrowed) {
  if (base.source.contains("collectives")) {
    Json fits = base.source["collectives"].value("fits", Json::array());
    for (Json& fit : fits) {
      scale(fit, "gb_per_s", rate);
      scale(fit, "alpha_us", 1 / rate);
      scale(fit, "gamma_ns_per_sqrt_byte", 1 / rate);
      scale(fit, "error", narrowed);
    }
    overlay["collectives"] = {{"fits", std::move(fits)}};
  }
  if (base.collective_tables.empty() || rate == 1) return;
  Json tables = Json::array();
  for (const CollectiveTable& table : base.collective_tables) {
    Json bytes = Json::array(), times = Json::array();
    for (std::size_t i = 0; i < table.bytes.size(); ++i) {
      bytes.push_back(table.bytes[i].value());
      times.push_back(table.times[i].value() * 1e6 / rate);
    }
    tables.push_back({{"kind", to_word(table.kind)},
                      {"ranks", table.ranks},
                      {"bytes", std::move(bytes)},
                      {"microseconds", std::move(times)}});
  }
  overlay["tables"] = {{"collectives", std::move(tables)},
                       {"source", "the table of the profile below, times one factor"}};
}

// Figures of the profile below that the factors change, and its errors. What is not there stays.
Json overlay_of(const HardwareProfile& base, const FitFactors& factors, double narrowed) {
  const Json& source = base.source;
  Json overlay = Json::object();
  const Json products = source.value("gemm", Json::object());
  for (const auto& [format, fit] : products.items()) {
    if (!fit.is_object()) continue;
    Json changed = {{"sustain", fit.value("sustain", 1.0)}, {"error", fit.value("error", 0.0)}};
    scale_share(changed, "sustain", factors.compute);
    scale(changed, "error", narrowed);
    if (!fit.contains("error")) changed.erase("error");
    overlay["gemm"][format] = std::move(changed);
  }
  for (const char* section : {"scan", "delta_rule"}) {
    if (!source.contains(section) || !source[section].is_object()) continue;
    Json changed = Json::object();
    for (const char* key : {"efficiency", "backward_efficiency"}) {
      if (!source[section].contains(key)) continue;
      changed[key] = source[section][key];
      scale_share(changed, key, factors.compute);
    }
    overlay[section] = std::move(changed);
  }
  overlay["attention"] =
      attention_overlay(source.value("attention", Json::object()), factors.compute, narrowed);
  add_collectives(overlay, base, factors.communication, narrowed);
  overlay["link"] = {
      {"nic_efficiency", std::min(1.0, base.link.nic_efficiency * factors.communication)}};
  overlay["expert_library"] = {
      {"nic_efficiency", std::min(1.0, base.expert_library.nic_efficiency * factors.communication)},
      {"source", kSource}};
  overlay["host"] = {{"launch_factor", base.host.launch_factor * factors.launch}};
  Json errors{{"source", kSource}};
  const Json known = source.value("errors", Json::object());
  for (const auto& [key, error] : known.items()) {
    if (error.is_number()) errors[key] = error.get<double>() * narrowed;
  }
  overlay["errors"] = std::move(errors);
  return overlay;
}

// ---- the fit ----

// What a factor may be: the shares that it multiplies stay below 1, and it below what is a mistake
// of the measurement rather than of a machine.
std::pair<Logs, Logs> bounds_of(const HardwareProfile& base) {
  constexpr double kMost = 4;
  double sustain = 0;
  for (const auto& [format, fit] : base.gemm) sustain = std::max(sustain, fit.sustain);
  const double compute = sustain > 0 ? 1 / sustain : kMost;
  const double links = base.link.nic_efficiency > 0 ? 1 / base.link.nic_efficiency : kMost;
  return {{portable::log(1 / kMost), portable::log(1 / kMost), portable::log(1 / kMost)},
          {portable::log(compute), portable::log(std::min(links, kMost)), portable::log(kMost)}};
}

// Solves A x = b for a symmetric positive matrix, by elimination.
Logs solved(Square a, Logs b) {
  for (std::size_t i = 0; i < kFactors; ++i) {
    for (std::size_t j = i + 1; j < kFactors; ++j) {
      const double ratio = a[j][i] / a[i][i];
      for (std::size_t k = i; k < kFactors; ++k) a[j][k] -= ratio * a[i][k];
      b[j] -= ratio * b[i];
    }
  }
  for (std::size_t i = kFactors; i-- > 0;) {
    for (std::size_t k = i + 1; k < kFactors; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

// A step cannot do its model's operations faster than the GPUs can.
void refuse_above_peak(const FitRun& run, const Estimate& estimate) {
  const double share = estimate.mfu * (estimate.step_time / run.measured);
  if (share <= 1) return;
  throw Error(
      fmt::format("{}: a step of {} is {:.0f}% of the GPUs' peak, which no run reaches; is it one "
                  "optimizer step of this plan?",
                  run.name, human_seconds(run.measured), 100 * share));
}

class Fitter {
 public:
  Fitter(const std::string& base, const std::vector<FitRun>& runs,
         const std::vector<TracedCompute>& traces)
      : base_(base), machine_(load_hardware(base)), bounds_(bounds_of(machine_)) {
    for (const TracedCompute& trace : traces) {
      told_.push_back(std::clamp(-portable::log(trace.ratio), bounds_.first[kCompute],
                                 bounds_.second[kCompute]));
    }
    for (const FitRun& run : runs) {
      const auto estimate = run.predict(machine_);
      if (!estimate) continue;
      refuse_above_peak(run, *estimate);
      runs_.push_back(&run);
      sigmas_.push_back(half_width(*estimate) / kIntervalSigmas);
    }
    if (runs_.empty()) throw Error("none of the runs can be predicted; nothing is fitted");
    start_ = predicted({});
    set_prior();
  }

  ProfileFit fit() {
    Logs at{};
    double least = loss(start_, at);
    std::vector<double> times = start_;
    for (int round = 0; round < kMostRounds; ++round) {
      slopes_at(at, times);
      Logs step = newton_step(at, times);
      bool better = false;
      for (int half = 0; half < 4 && !better; ++half) {
        const Logs tried = clamped(at, step);
        const std::vector<double> there = predicted(tried);
        const double value = loss(there, tried);
        better = value < least - 1e-6;
        if (better) {
          at = tried;
          times = there;
          least = value;
        }
        for (double& s : step) s /= 2;
      }
      if (!better) break;
    }
    if (!told_.empty() && squares(times) > squares(start_)) {
      told_.clear();
      return fit();
    }
    slopes_at(at, times);
    return result(at, times);
  }

 private:
  static constexpr int kMostRounds = 5;  // the logarithm of time is nearly linear in the factors'

  std::vector<double> predicted(const Logs& logs) {
    const HardwareProfile machine = corrected_machine(base_, factors_of(logs));
    std::vector<double> times;
    for (const FitRun* run : runs_) times.push_back(run->predict(machine)->step_time.value());
    return times;
  }

  // Change of the logarithm of each run's time by that of each factor.
  void slopes_at(const Logs& at, const std::vector<double>& times) {
    slopes_.assign(runs_.size(), {});
    for (std::size_t k = 0; k < kFactors; ++k) {
      constexpr double kStep = 0.02;  // towards the side that bounds leave
      Logs beside = at;
      const double step = at[k] + kStep > bounds_.second[k] ? -kStep : kStep;
      beside[k] += step;
      const std::vector<double> there = predicted(beside);
      for (std::size_t i = 0; i < runs_.size(); ++i) {
        slopes_[i][k] = portable::log(there[i] / times[i]) / step;
      }
    }
  }

  // The factors' spreads such that they make up the shared part of the interval, the same for each.
  void set_prior() {
    slopes_at({}, start_);
    double square = 0, reach = 0;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      square += kShared * sigmas_[i] * sigmas_[i];
      for (const double slope : slopes_[i]) reach += slope * slope;
    }
    prior_ = std::sqrt(square / std::max(reach, 1e-9));
  }

  [[nodiscard]] double noise(std::size_t i) const { return sigmas_[i] * std::sqrt(1 - kShared); }

  [[nodiscard]] double residual(std::size_t i, const std::vector<double>& times) const {
    return portable::log(runs_[i]->measured.value() / times[i]);
  }

  // Of the runs, each over its noise.
  [[nodiscard]] double squares(const std::vector<double>& times) const {
    double sum = 0;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const double off = residual(i, times) / noise(i);
      sum += off * off;
    }
    return sum;
  }

  [[nodiscard]] double loss(const std::vector<double>& times, const Logs& at) const {
    double sum = squares(times);
    for (const double log : at) sum += (log / prior_) * (log / prior_);
    for (const double told : told_) {
      const double off = (at[kCompute] - told) / kTraceNoise;
      sum += off * off;
    }
    return sum;
  }

  [[nodiscard]] Square precision() const {
    Square a{};
    for (std::size_t k = 0; k < kFactors; ++k) a[k][k] = 1 / (prior_ * prior_);
    a[kCompute][kCompute] += static_cast<double>(told_.size()) / (kTraceNoise * kTraceNoise);
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const double weight = 1 / (noise(i) * noise(i));
      for (std::size_t k = 0; k < kFactors; ++k) {
        for (std::size_t l = 0; l < kFactors; ++l) {
          a[k][l] += weight * slopes_[i][k] * slopes_[i][l];
        }
      }
    }
    return a;
  }

  [[nodiscard]] Logs newton_step(const Logs& at, const std::vector<double>& times) const {
    Logs b{};
    for (std::size_t k = 0; k < kFactors; ++k) {
      b[k] = -at[k] / (prior_ * prior_);
      for (std::size_t i = 0; i < runs_.size(); ++i) {
        b[k] += slopes_[i][k] * residual(i, times) / (noise(i) * noise(i));
      }
    }
    for (const double told : told_) {
      b[kCompute] += (told - at[kCompute]) / (kTraceNoise * kTraceNoise);
    }
    return solved(precision(), b);
  }

  [[nodiscard]] Logs clamped(const Logs& at, const Logs& step) const {
    Logs there = at;
    for (std::size_t k = 0; k < kFactors; ++k) {
      there[k] = std::clamp(at[k] + step[k], bounds_.first[k], bounds_.second[k]);
    }
    return there;
  }

  // The variance of a run's logarithm that the factors leave.
  [[nodiscard]] double shared_left(std::size_t i) const {
    const Logs x = solved(precision(), slopes_[i]);
    double sum = 0;
    for (std::size_t k = 0; k < kFactors; ++k) sum += slopes_[i][k] * x[k];
    return sum;
  }

  ProfileFit result(const Logs& at, const std::vector<double>& times) {
    ProfileFit fit;
    fit.factors = factors_of(at);
    fit.traces_count = !told_.empty();
    for (std::size_t k = 0; k < kFactors; ++k) {
      Logs unit{};
      unit[k] = 1;
      fit.spread.*kList[k].value = std::sqrt(solved(precision(), unit)[k]);
      fit.spread_before.*kList[k].value = prior_;
    }
    double before = 0, after = 0;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const double own = noise(i) * noise(i);
      const double left = std::sqrt(std::min(own + shared_left(i), sigmas_[i] * sigmas_[i]));
      before += sigmas_[i] * sigmas_[i];
      after += left * left;
      fit.runs.push_back(
          {runs_[i]->name, runs_[i]->measured.value(), start_[i], times[i], sigmas_[i], left});
    }
    fit.narrowed = std::sqrt(after / before);
    if (std::any_of(fit.runs.begin(), fit.runs.end(),
                    [](const FittedRun& run) { return run.stays_outside(); })) {
      fit.narrowed = 1;
      fit.spread = fit.spread_before;
      for (FittedRun& run : fit.runs) run.sigma_after = run.sigma_before;
    }
    fit.overlay = overlay_of(machine_, fit.factors, fit.narrowed);
    return fit;
  }

  std::string base_;
  HardwareProfile machine_;
  std::pair<Logs, Logs> bounds_;
  std::vector<const FitRun*> runs_;  // that can be predicted
  std::vector<double> sigmas_;       // relative, of the stated intervals
  std::vector<double> told_;         // the first factor's logarithm, by traces
  std::vector<double> start_;        // predicted with factors of 1
  std::vector<Logs> slopes_;
  double prior_ = 0;
};

}  // namespace

bool FittedRun::stays_outside() const {
  constexpr double kFar = 2;  // times the interval's reach
  return std::abs(portable::log(measured_s / after_s)) > kFar * kIntervalSigmas * sigma_before;
}

std::span<const FitFactor> fit_factors() {
  return kList;
}

ProfileFit fit_profile(const std::string& base, const std::vector<FitRun>& runs,
                       const std::vector<TracedCompute>& traces) {
  return Fitter(base, runs, traces).fit();
}

HardwareProfile corrected_machine(const std::string& base, const FitFactors& factors,
                                  double narrowed) {
  const HardwareProfile below = load_hardware(base);
  const Json overlay = overlay_of(below, factors, narrowed);
  Json whole = below.source;  // with all that it extends itself
  whole.merge_patch(overlay);
  if (overlay.contains("tables")) whole.erase("collective_table");
  return read_hardware(whole, "the corrected profile");
}

}  // namespace qplan
