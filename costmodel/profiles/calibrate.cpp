#include "costmodel/profiles/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "costmodel/price/price.h"
#include "costmodel/price/step_ratio.h"
#include "costmodel/profiles/calibration_grid.h"
#include "models/statistics.h"

namespace qplan {
namespace {

double rounded(double value, double digits) {
  const double scale = std::pow(10, digits - std::ceil(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

const Gemm* product_in(const Work& work, DType format) {
  const auto* product = std::get_if<Gemm>(&work);
  return product != nullptr && product->dtype == format ? product : nullptr;
}

template <class T>
std::vector<std::pair<T, Seconds>> samples_of(const Calibration& c) {
  std::vector<std::pair<T, Seconds>> samples;
  for (const Sample& s : c.samples) {
    if (const T* work = std::get_if<T>(&s.work)) samples.emplace_back(*work, s.time);
  }
  return samples;
}

// Rate of products on GPUs as warm as in training / where they are measured alone; 1: not measured.
double sustain_of(const Calibration& c, DType format = DType::bf16) {
  const auto samples = samples_of<Gemm>(c);
  std::vector<double> found;
  for (const Sample& warm : c.warm) {
    if (product_in(warm.work, format) == nullptr) continue;
    const auto same = std::find_if(samples.begin(), samples.end(), [&](const auto& other) {
      return Work(other.first) == warm.work;
    });
    if (same != samples.end()) found.push_back(same->second / warm.time);
  }
  return found.empty() ? 1 : std::clamp(median_of(found), 0.5, 1.1);
}

// Ideal time over measured time, in thousandths; 0 where nothing was measured.
Json gemm_table(const Calibration& c, const HardwareProfile& base, DType format) {
  std::map<std::array<std::int64_t, 3>, Seconds> times;
  for (const auto& [work, time] : samples_of<Gemm>(c)) {
    if (work.dtype == format && !work.accumulate_fp32) times[{work.m, work.n, work.k}] = time;
  }
  const FlopsPerSecond peak =
      base.gpu.matmul.at(format == DType::fp8 ? Precision::fp8 : Precision::bf16);
  Json values = Json::array();
  for (const std::int64_t m : kRows) {
    for (const std::int64_t n : kWidths) {
      for (const std::int64_t k : kDepths) {
        const auto found = times.find({m, n, k});
        if (found == times.end()) {
          values.push_back(0);
          continue;
        }
        const auto [rows, cols, depth] =
            std::array{static_cast<double>(m), static_cast<double>(n), static_cast<double>(k)};
        const double moved =
            size_of(format) * (rows * depth + depth * cols) + size_of(DType::bf16) * rows * cols;
        const Seconds ideal = std::max(Flops(2 * rows * cols * depth) / peak,
                                       Bytes(moved) / base.gpu.memory_bandwidth);
        values.push_back(std::round(1000 * (ideal / found->second)));
      }
    }
  }
  return {{"dtype", to_word(format)},
          {"m", kRows},
          {"n", kWidths},
          {"k", kDepths},
          {"utilisation_permille", values}};
}

bool measured(const Calibration& c, DType format) {
  return std::any_of(c.samples.begin(), c.samples.end(),
                     [&](const Sample& s) { return product_in(s.work, format) != nullptr; });
}

// time = latency + traffic / rate: the line with the least squares of relative errors, its latency
// not below 0. Of traffic that is all alike: no latency.
struct TrafficLine {
  Seconds latency;
  BytesPerSecond rate;
};
TrafficLine line_of(const std::vector<std::pair<Bytes, Seconds>>& points) {
  // With u = 1/t and v = x/t the line a u + b v = 1.
  double uu = 0, uv = 0, vv = 0, u1 = 0, v1 = 0;
  for (const auto& [traffic, time] : points) {
    const double u = 1 / time.value(), v = traffic.value() / time.value();
    uu += u * u;
    uv += u * v;
    vv += v * v;
    u1 += u;
    v1 += v;
  }
  const double determinant = uu * vv - uv * uv;
  const double a = determinant > 1e-9 * uu * vv ? (u1 * vv - v1 * uv) / determinant : 0;
  const double b = a > 0 ? (v1 * uu - u1 * uv) / determinant : v1 / vv;
  return {Seconds(std::max(a, 0.0)), BytesPerSecond(1 / b)};
}

// What makes the price of each memory-bound kind its measured time: {"memory_efficiency_of": ...,
// "memory_latency_us_of": ...}.
Json memory_bound_kinds(const Calibration& c, const HardwareProfile& base) {
  std::map<RowwiseKind, std::vector<std::pair<Bytes, Seconds>>> found;
  for (const auto& [work, time] : samples_of<Rowwise>(c)) {
    if (time.value() > 0) found[work.kind].emplace_back(memory_traffic(work), time);
  }
  Json efficiency = Json::object(), latency = Json::object();
  for (const auto& [kind, points] : found) {
    const TrafficLine line = line_of(points);
    const std::string name(to_word(kind));
    const double share = line.rate / base.gpu.memory_bandwidth;
    efficiency[name] = rounded(std::clamp(share, 0.01, kMostMemoryEfficiency), 3);
    latency[name] = std::round(line.latency.value() * 1e8) / 100;
  }
  return {{"memory_efficiency_of", efficiency}, {"memory_latency_us_of", latency}};
}

// Of values `first`, `first` + step, ... up to last: the one with the least residual, which
// residual(value) leaves.
template <class Residual>
double best_of(double first, double last, double step, Residual residual) {
  double best = first, least = residual(first);
  for (double value = first + step; value <= last; value += step) {
    const double now = residual(value);
    if (now >= least) continue;
    least = now;
    best = value;
  }
  residual(best);
  return best;
}

double spread(const std::vector<double>& logs, double centre) {
  double sum = 0;
  for (const double x : logs) sum += (x - centre) * (x - centre);
  return sum;
}

// Fits a head size to what was measured: the forward pass by its rate and what short sequences and
// part-filled waves cost, the backward by its rate relative to that. With few samples rates alone.
void fit_attention(Json& section, const Calibration& c, const HardwareProfile& base) {
  const auto head_dim = section.at("head_dim").get<std::int64_t>();
  HardwareProfile trial = base;
  const auto it = std::find_if(trial.attention.begin(), trial.attention.end(),
                               [&](const AttentionFit& f) { return f.head_dim == head_dim; });
  if (it == trial.attention.end()) return;
  AttentionFit& fit = *it;
  fit.sustain = 1;  // as it was measured, in burst: the profile's sustain belongs to long runs
  const auto samples = samples_of<Attention>(c);
  const auto logs = [&](Pass pass) {
    std::vector<double> found;
    for (const auto& [work, time] : samples) {
      if (work.head_dim != head_dim || work.pass != pass) continue;
      found.push_back(std::log(attention_price(work, trial).time / time));
    }
    return found;
  };
  if (logs(Pass::forward).empty() || logs(Pass::backward).empty()) return;
  const bool many = logs(Pass::forward).size() >= 4;
  const auto scaled = [&](Pass pass, double& rate) {
    const double centre = median_of(logs(pass));
    rate *= std::exp(centre);
    return spread(logs(pass), 0);
  };
  const auto forward = [&] { return scaled(Pass::forward, fit.efficiency); };
  const auto backward = [&] { return scaled(Pass::backward, fit.backward_rate); };
  if (many) {
    best_of(0, 1000, 20, [&](double s0) {
      fit.s0 = s0;
      fit.wave = best_of(0, 3, 0.1, [&](double wave) {
        fit.wave = wave;
        return forward();
      });
      return forward();
    });
    best_of(0, 1500, 25, [&](double s0) {
      fit.backward_s0 = s0;
      return backward();
    });
  }
  const double residual = forward() + backward();
  const auto count = static_cast<double>(logs(Pass::forward).size() + logs(Pass::backward).size());
  section["efficiency"] = rounded(fit.efficiency, 3);
  section["s0"] = std::round(fit.s0);
  section["wave"] = fit.wave < 0.01 ? 0.0 : rounded(fit.wave, 3);
  section["backward_rate"] = rounded(fit.backward_rate, 3);
  section["backward_s0"] = std::round(fit.backward_s0);
  section["sustain"] = rounded(sustain_of(c), 3);
  section["error"] = rounded(std::max(std::sqrt(residual / count), 0.03), 2);
  section.erase("assumed");
}

// What a product that is added to fp32 sums takes longer than its price without them, of the time
// of their traffic: of GPUs as warm as in training, where the price has its `sustain`.
std::optional<double> accumulate_exposed(const Calibration& c, const HardwareProfile& base,
                                         DType format) {
  const auto samples = samples_of<Gemm>(c);
  const double sustain = sustain_of(c, format);
  std::vector<double> found;
  for (const Sample& warm : c.warm) {
    const Gemm* product = product_in(warm.work, format);
    if (product == nullptr || !product->accumulate_fp32) continue;
    Gemm plain = *product;
    plain.accumulate_fp32 = false;
    const auto same = std::find_if(samples.begin(), samples.end(),
                                   [&](const auto& other) { return other.first == plain; });
    if (same == samples.end()) continue;
    const Bytes traffic(8 * static_cast<double>(plain.m * plain.n));  // read and written
    const Seconds without = same->second / sustain;
    found.push_back((warm.time - without) / (traffic / base.gpu.memory_bandwidth));
  }
  if (found.empty()) return std::nullopt;
  return std::round(100 * std::clamp(median_of(found), 0.0, 10.0)) / 100;
}

// AdamW's share of the memory's bandwidth.
std::optional<double> adamw_efficiency(const Calibration& c, const HardwareProfile& base) {
  std::vector<double> found;
  for (const auto& [work, time] : samples_of<Update>(c)) {
    found.push_back(memory_traffic(work) / base.gpu.memory_bandwidth / (time - c.launch));
  }
  if (found.empty()) return std::nullopt;
  return rounded(std::clamp(median_of(found), 0.01, 1.0), 3);
}

// Efficiencies of grouped products, and how much a tile that few rows fill costs: of all that a
// grid holds, those whose prices are nearest to what was measured, in the mean of squared
// logarithms.
void fit_grouped(Json& section, const Calibration& c, const HardwareProfile& base) {
  const auto samples = samples_of<GroupedGemm>(c);
  if (samples.empty()) return;
  HardwareProfile trial = base;
  trial.gemm.at(Precision::bf16).sustain = 1;  // as it was measured, in burst
  GemmFit& fit = trial.grouped_gemm;
  fit.sustain = 1;
  GemmFit best = fit;
  double least = 0;
  for (double efficiency = 0.5; efficiency <= 1.4; efficiency *= 1.02) {
    for (double bandwidth = 0.3; bandwidth <= 1; bandwidth *= 1.04) {
      for (double m0 = 0; m0 <= 128; m0 += 16) {
        fit.efficiency = efficiency;
        fit.bandwidth_efficiency = bandwidth;
        fit.m0 = m0;
        double sum = 0;
        for (const auto& [work, time] : samples) {
          const double off = std::log(grouped_gemm_price(work, trial).time / time);
          sum += off * off;
        }
        if (least > 0 && sum >= least) continue;
        least = sum;
        best = fit;
      }
    }
  }
  section["efficiency"] = rounded(best.efficiency, 3);
  section["bandwidth_efficiency"] = rounded(best.bandwidth_efficiency, 3);
  section["m0"] = best.m0;
  section["sustain"] = 1;
  section["error"] =
      rounded(std::max(std::sqrt(least / static_cast<double>(samples.size())), 0.03), 2);
  section.erase("assumed");
}

// Start and rate of messages between GPUs.
void fit_messages(Json& link, const Calibration& c) {
  std::vector<std::pair<Bytes, Seconds>> points;
  for (const auto& [work, time] : samples_of<SendRecv>(c)) points.emplace_back(work.bytes, time);
  if (points.empty()) return;
  const TrafficLine line = line_of(points);
  link["message_start_us"] = std::round(line.latency.value() * 1e8) / 100;
  link["message_gb_per_s"] = rounded(line.rate.value() / 1e9, 3);
}

// Times of a table never fall with the bytes.
Json collective_tables(const Calibration& c) {
  std::map<std::pair<CollectiveKind, int>, std::map<double, double>> found;
  for (const Sample& s : c.samples) {
    const auto* work = std::get_if<Collective>(&s.work);
    if (work) found[{work->kind, s.ranks}][work->bytes.value()] = s.time.value() * 1e6;
  }
  Json tables = Json::array();
  for (const auto& [key, times] : found) {
    const auto& [kind, ranks] = key;
    Json bytes = Json::array(), microseconds = Json::array();
    double longest = 0;
    for (const auto& [size, time] : times) {
      longest = std::max(longest, time);
      bytes.push_back(size);
      microseconds.push_back(rounded(longest, 4));
    }
    tables.push_back({{"kind", to_word(kind)},
                      {"ranks", ranks},
                      {"bytes", bytes},
                      {"microseconds", microseconds}});
  }
  return tables;
}

// Median times of equal works of the measured steps, over what `profile` prices them.
Json step_ratios(const Calibration& c, const HardwareProfile& profile) {
  std::map<std::pair<std::string, int>, std::pair<Work, std::vector<Seconds>>> found;
  for (const Sample& s : c.steps) {
    auto& [work, times] = found[{to_string(s.work), s.ranks}];
    work = s.work;
    times.push_back(s.time);
  }
  // A kind and sizes that several works share, which differ in what a price hardly depends on.
  std::map<std::pair<std::string, std::vector<double>>, std::vector<double>> ratios;
  for (const auto& [name, measured] : found) {
    const auto& [work, times] = measured;
    const int ranks = name.second;
    const WorkPoint point = point_of(work, ranks);
    ParallelPlan plan;
    plan.dp = ranks;
    const RankGrid grid(plan, profile.link.gpus_per_node);
    Work on_world = work;
    if (auto* collective = std::get_if<Collective>(&on_world)) collective->axis = Axis::world;
    const Seconds alone = price(on_world, {&profile, &grid}).time;
    if (point.kind.empty() || alone.value() <= 0) continue;
    ratios[{point.kind, point.sizes}].push_back(median_of(times) / alone);
  }
  Json steps = Json::array();
  for (const auto& [key, values] : ratios) {
    const double ratio = std::clamp(median_of(values), 0.1, 10.0);
    steps.push_back({{"kind", key.first}, {"sizes", key.second}, {"ratio", rounded(ratio, 3)}});
  }
  return steps;
}

}  // namespace

Json calibrated_profile(const Json& base_json, const Calibration& c) {
  const HardwareProfile base = read_hardware(base_json, "base profile");
  Json profile = base_json;
  const std::string source =
      fmt::format("measured on {} x {} with {}, {}", c.ranks, c.gpu, c.driver, c.date);
  profile["name"] = base.name + "-measured";
  profile["description"] = fmt::format("{}; {}", base.description, source);

  profile["gpu"]["kernel_launch_us"] = rounded(c.launch.value() * 1e6, 3);
  if (c.graph_gain.value() > 0) {
    profile["gpu"]["graph_gain_us"] = rounded(c.graph_gain.value() * 1e6, 3);
  }
  // The slowest of these GPUs is slow for so many, not for a machine of eight.
  profile["gpu"]["speed_spread"] = {{"sigma", base.gpu.speed_spread.sigma},
                                    {"measured_ranks", c.ranks},
                                    {"source", fmt::format("sigma of {}; {}", base.name, source)}};
  if (c.waited_share > 0) {
    profile["gpu"]["speed_spread"]["waited_share"] = rounded(c.waited_share, 2);
  }
  const Json kinds = memory_bound_kinds(c, base);
  for (const auto& [key, values] : kinds.items()) {
    profile["gpu"][key] = base_json["gpu"].value(key, Json::object());
    profile["gpu"][key].update(values);
  }
  if (const auto share = adamw_efficiency(c, base)) profile["gpu"]["adamw_efficiency"] = *share;
  profile["link"]["host_to_device_gb_per_s"] = rounded(c.host_to_device.value() / 1e9, 3);
  profile["link"]["device_to_host_gb_per_s"] = rounded(c.device_to_host.value() / 1e9, 3);
  fit_messages(profile["link"], c);
  // Of one GPU's share, as the profile's is of a node's GPUs.
  const auto of_node = [&](const char* key, double of_gpu) {
    if (of_gpu <= 0) return;
    profile["host"][key] = rounded(of_gpu * base.link.gpus_per_node / 1e9, 3);
    profile["host"]["source"][key] = source;
  };
  of_node("adam_gparams_per_s", c.host_adam);
  of_node("memory_gb", c.host_memory.value());

  Json products = Json::array();
  for (const DType format : kFormats) {
    if (!measured(c, format)) continue;
    products.push_back(gemm_table(c, base, format));
    Json& fit = profile["gemm"][std::string(to_word(format))];
    fit["sustain"] = rounded(sustain_of(c, format), 3);
    if (const auto exposed = accumulate_exposed(c, base, format)) {
      fit["accumulate_exposed"] = *exposed;
    }
  }
  for (Json& fit : profile["attention"]["fits"]) fit_attention(fit, c, base);
  fit_grouped(profile["grouped_gemm"], c, base);
  profile.erase("gemm_table");
  profile["tables"]["gemm"] = products;
  const Json collectives = collective_tables(c);
  if (!collectives.empty()) {
    profile.erase("collective_table");
    profile["tables"]["collectives"] = collectives;
  }
  profile["tables"]["source"] = source;
  profile["tables"].erase("steps");
  if (const Json steps = step_ratios(c, read_hardware(profile, "measured")); !steps.empty()) {
    profile["tables"]["steps"] = steps;
  }
  return profile;
}

}  // namespace qplan
