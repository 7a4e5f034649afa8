#include "costmodel/profiles/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <span>
#include <utility>

#include "models/embedded.h"
#include "models/error.h"

namespace qplan {

// Compiled in from profiles/ and profiles/tables/ (CMakeLists.txt).
extern const EmbeddedFile profile_files[];
extern const std::size_t profile_files_count;
extern const EmbeddedFile kernel_table_files[];
extern const std::size_t kernel_table_files_count;

namespace {

constexpr double kHuge = 1e15;

std::string_view text_of(const EmbeddedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes), file.size};
}

std::vector<std::string> names_of(std::span<const EmbeddedFile> files) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : files) names.emplace_back(file.name);
  std::sort(names.begin(), names.end());
  return names;
}

const EmbeddedFile* find(std::span<const EmbeddedFile> files, std::string_view name) {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const EmbeddedFile& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

std::span<const EmbeddedFile> profiles() {
  return {profile_files, profile_files_count};
}
std::span<const EmbeddedFile> kernel_tables() {
  return {kernel_table_files, kernel_table_files_count};
}

// Every section says where its figures come from: one sentence, or one for each key.
void read_source(JsonReader& in) {
  const Json& source = in.value("source");
  const auto is_sentence = [](const Json& v) {
    return v.is_string() && !v.get_ref<const std::string&>().empty();
  };
  if (is_sentence(source)) return;
  const bool by_key = source.is_object() && !source.empty() &&
                      std::all_of(source.begin(), source.end(), is_sentence);
  if (!by_key) in.fail("source", "must be a sentence, or an object with a sentence for each key");
}

// Calls read(JsonReader&, element) for each object of the list under `key`.
template <class F>
void each_object(JsonReader& in, std::string_view key, F&& read) {
  const Json& list = in.value(key);
  if (!list.is_array()) in.fail(key, "must be a list of objects");
  for (std::size_t i = 0; i < list.size(); ++i) {
    JsonReader item(list[i], fmt::format("{}[{}]", in.path_of(key), i));
    read(item);
    item.finish();
  }
}

// A positive quantity; zero makes no sense for a rate or a size.
double positive(JsonReader& in, std::string_view key) {
  return in.number(key, 1e-6, kHuge);
}
double share(JsonReader& in, std::string_view key, double fallback) {
  return in.number_or(key, 0.001, 2, fallback);
}

template <class E>
E word(JsonReader& in, std::string_view key) {
  const std::string text = in.string(key);
  if (const auto value = try_from_word<E>(text)) return *value;
  std::string known;
  for (const auto& [e, name] : Words<E>::table) {
    known += known.empty() ? "" : ", ";
    known += name;
  }
  in.fail(key, fmt::format("must be one of {}, not '{}'", known, shown(text)));
}

Gpu read_gpu(JsonReader in) {
  Gpu gpu;
  gpu.name = in.string("name");
  for (const auto& [precision, name] : Words<Precision>::table) {
    const std::string key = fmt::format("matmul_{}_tflops", name);
    const double peak = in.number_or(key, 1e-6, kHuge, 0);
    if (peak > 0) gpu.matmul[precision] = tflops(peak);
  }
  if (!gpu.matmul.contains(Precision::bf16)) static_cast<void>(positive(in, "matmul_bf16_tflops"));
  gpu.matmul.try_emplace(Precision::fp16, gpu.matmul[Precision::bf16]);  // equal on every GPU
  gpu.memory = Bytes(positive(in, "memory_gb") * 1e9);
  gpu.usable_memory = gib(positive(in, "usable_memory_gib"));
  if (gpu.usable_memory > gpu.memory * 1.1) {
    in.fail("usable_memory_gib", "is more than memory_gb; a process gets a little less than that");
  }
  gpu.memory_bandwidth = gb_per_s(positive(in, "memory_gb_per_s"));
  gpu.memory_efficiency = share(in, "memory_efficiency", gpu.memory_efficiency);
  if (in.has("adamw_efficiency")) gpu.adamw_efficiency = share(in, "adamw_efficiency", 0);
  if (in.has("memory_efficiency_of")) {
    JsonReader of(in.value("memory_efficiency_of"), in.path_of("memory_efficiency_of"));
    for (const auto& [kind, name] : Words<RowwiseKind>::table) {
      if (of.has(name))
        gpu.memory_efficiency_of[kind] = of.number(name, 0.001, kMostMemoryEfficiency);
    }
    of.finish();
  }
  if (in.has("memory_latency_us_of")) {
    JsonReader of(in.value("memory_latency_us_of"), in.path_of("memory_latency_us_of"));
    for (const auto& [kind, name] : Words<RowwiseKind>::table) {
      if (of.has(name)) gpu.memory_latency_of[kind] = microseconds(of.number(name, 0, 1e4));
    }
    of.finish();
  }
  gpu.multiprocessors = static_cast<int>(in.integer("multiprocessors", 1, 100000));
  gpu.compute_capability = static_cast<int>(in.integer("compute_capability", 10, 999));
  gpu.tdp_watt = in.number("tdp_watt", 1, 1e5);
  gpu.kernel_launch = microseconds(in.number("kernel_launch_us", 0, 1e4));
  if (in.has("graph_gain_us")) gpu.graph_gain = microseconds(in.number("graph_gain_us", 0, 100));
  read_source(in);
  in.finish();
  return gpu;
}

Interconnect read_link(JsonReader in) {
  Interconnect link;
  link.gpus_per_node = static_cast<int>(in.integer("gpus_per_node", 1, 4096));
  link.nvlink_domain = static_cast<int>(in.integer("nvlink_domain", 1, 4096));
  link.nvlink = gb_per_s(positive(in, "nvlink_gb_per_s"));
  link.nvls = in.boolean_or("nvls", false);
  link.message_start =
      microseconds(in.number_or("message_start_us", 0, 1e6, link.message_start.value() * 1e6));
  constexpr double kCopyShare = 0.88;  // hardware.h
  link.message = gb_per_s(
      in.number_or("message_gb_per_s", 1e-6, kHuge, link.nvlink.value() / 1e9 * kCopyShare));
  link.nics_per_node = static_cast<int>(in.integer("nics_per_node", 1, 4096));
  link.nic = gb_per_s(positive(in, "nic_gb_per_s"));
  link.nic_efficiency = in.number_or("nic_efficiency", 0.01, 1, link.nic_efficiency);
  link.inter_node_latency = microseconds(in.number("inter_node_latency_us", 0, 1e6));
  link.simple_only = in.boolean_or("simple_only", false);
  link.oversubscription = in.number_or("oversubscription", 1, 1000, 1);
  link.host_to_device = gb_per_s(positive(in, "host_to_device_gb_per_s"));
  link.device_to_host = gb_per_s(positive(in, "device_to_host_gb_per_s"));
  read_source(in);
  in.finish();
  return link;
}

Host read_host(JsonReader in) {
  Host host;
  host.memory = Bytes(positive(in, "memory_gb") * 1e9);
  host.adam_params_per_s = 1e9 * positive(in, "adam_gparams_per_s");
  host.nvme_read = gb_per_s(in.number_or("nvme_read_gb_per_s", 0, kHuge, 0));
  host.nvme_write = gb_per_s(in.number_or("nvme_write_gb_per_s", 0, kHuge, 0));
  host.watt_per_gpu = in.number_or("watt_per_gpu", 0, 1e5, 0);
  host.launch_factor = in.number_or("launch_factor", 0.01, 100, 1);
  read_source(in);
  in.finish();
  return host;
}

Contention read_contention(JsonReader in) {
  Contention contention;
  const auto slowdown = [&](std::string_view key) {
    JsonReader item(in.value(key), in.path_of(key));
    const Slowdown s{item.number("compute", 1, 10), item.number("comm", 1, 10)};
    read_source(item);
    item.finish();
    return s;
  };
  contention.nvlink = slowdown("nvlink");
  contention.network = slowdown("network");
  if (in.has("expert_library")) contention.expert_library = slowdown("expert_library");
  if (in.has("expert_library_network")) {
    contention.expert_library_network = slowdown("expert_library_network");
  }
  in.finish();
  return contention;
}

GemmFit read_gemm_fit(JsonReader in) {
  GemmFit fit;
  fit.efficiency = in.number("efficiency", 0.001, 2);
  fit.m0 = in.number_or("m0", 0, 1e6, 0);
  fit.n0 = in.number_or("n0", 0, 1e6, 0);
  fit.k0 = in.number_or("k0", 0, 1e6, 0);
  fit.bandwidth_efficiency = share(in, "bandwidth_efficiency", fit.bandwidth_efficiency);
  fit.latency = microseconds(in.number_or("latency_us", 0, 1e6, 0));
  fit.sustain = share(in, "sustain", 1);
  fit.error = in.number_or("error", 0, 1, fit.error);
  if (in.has("accumulate_exposed")) {
    fit.accumulate_exposed = in.number("accumulate_exposed", 0, 10);
  }
  fit.assumed = in.boolean_or("assumed", false);
  read_source(in);
  in.finish();
  return fit;
}

std::map<Precision, GemmFit> read_gemm(JsonReader in) {
  std::map<Precision, GemmFit> fits;
  for (const auto& [precision, name] : Words<Precision>::table) {
    if (in.has(name)) fits[precision] = read_gemm_fit({in.value(name), in.path_of(name)});
  }
  if (!fits.contains(Precision::bf16)) static_cast<void>(in.value("bf16"));
  fits.try_emplace(Precision::fp16, fits[Precision::bf16]);
  if (fits.contains(Precision::fp8)) fits.try_emplace(Precision::mxfp8, fits[Precision::fp8]);
  in.finish();
  return fits;
}

std::vector<AttentionFit> read_attention_fits(JsonReader& in, std::string_view key) {
  std::vector<AttentionFit> fits;
  each_object(in, key, [&](JsonReader& item) {
    AttentionFit fit;
    fit.head_dim = item.integer("head_dim", 1, 65536);
    fit.efficiency = item.number("efficiency", 0.001, 2);
    fit.s0 = item.number_or("s0", 0, 1e6, 0);
    fit.wave = item.number_or("wave", 0, 1e3, 0);
    fit.latency = microseconds(item.number_or("latency_us", 0, 1e6, 0));
    fit.backward_rate = item.number("backward_rate", 0.01, 2);
    fit.backward_s0 = item.number_or("backward_s0", 0, 1e6, 0);
    if (item.has("backward_wave")) fit.backward_wave = item.number("backward_wave", 0, 1e3);
    fit.sustain = share(item, "sustain", 1);
    if (item.has("sustain_alone")) fit.sustain_alone = share(item, "sustain_alone", 1);
    fit.error = item.number_or("error", 0, 1, fit.error);
    fit.assumed = item.boolean_or("assumed", false);
    fits.push_back(fit);
  });
  if (fits.empty()) in.fail(key, "must hold at least one head_dim");
  std::sort(fits.begin(), fits.end(),
            [](const AttentionFit& a, const AttentionFit& b) { return a.head_dim < b.head_dim; });
  return fits;
}

DeltaRuleFit read_delta_rule_fit(JsonReader in) {
  DeltaRuleFit fit;
  fit.efficiency = share(in, "efficiency", fit.efficiency);
  fit.bandwidth_efficiency = share(in, "bandwidth_efficiency", fit.bandwidth_efficiency);
  fit.chunk = microseconds(in.number("chunk_us", 0, 1e6));
  fit.backward_chunk = microseconds(in.number("backward_chunk_us", 0, 1e6));
  fit.blocks_per_head = in.number_or("blocks_per_head", 0.01, 1e3, fit.blocks_per_head);
  fit.error = in.number_or("error", 0, 1, fit.error);
  fit.assumed = in.boolean_or("assumed", false);
  read_source(in);
  in.finish();
  return fit;
}

ScanFit read_scan_fit(JsonReader in) {
  ScanFit fit;
  fit.efficiency = share(in, "efficiency", fit.efficiency);
  fit.bandwidth_efficiency = share(in, "bandwidth_efficiency", fit.bandwidth_efficiency);
  fit.backward_efficiency = share(in, "backward_efficiency", fit.backward_efficiency);
  fit.backward_bandwidth_efficiency =
      share(in, "backward_bandwidth_efficiency", fit.backward_bandwidth_efficiency);
  fit.chunk = microseconds(in.number("chunk_us", 0, 1e6));
  fit.backward_chunk = microseconds(in.number("backward_chunk_us", 0, 1e6));
  fit.error = in.number_or("error", 0, 1, fit.error);
  fit.assumed = in.boolean_or("assumed", false);
  read_source(in);
  in.finish();
  return fit;
}

// Gated DeltaNet's kernels are far from any peak: a tenth of the products' and, the convolution, a
// quarter of a copy's. So are Mamba-2's: its scan's products, convolution and the norm's backward.
// Where they were not measured they are taken to run as on an H200 (132
// multiprocessors, 989 TFLOP/s, copies at 0.9 of 4.8 TB/s), each multiprocessor alike.
void assume_recurrent_kernels(HardwareProfile& profile) {
  constexpr double kMultiprocessors = 132, kPeak = 989e12, kCopies = 0.9 * 4.8e12;
  Gpu& gpu = profile.gpu;
  const double share = gpu.multiprocessors / kMultiprocessors;
  const double peak = gpu.matmul.at(Precision::bf16).value();
  for (double* efficiency : {&profile.delta_rule.efficiency, &profile.scan.efficiency,
                             &profile.scan.backward_efficiency}) {
    *efficiency *= std::min(share * kPeak / peak, 1.0 / *efficiency);
  }
  for (const RowwiseKind kind :
       {RowwiseKind::causal_conv, RowwiseKind::causal_conv_backward, RowwiseKind::mamba_conv,
        RowwiseKind::mamba_conv_backward, RowwiseKind::group_norm_backward}) {
    gpu.memory_efficiency_of.try_emplace(
        kind, std::min(share * kCopies / gpu.memory_bandwidth.value(), kMostMemoryEfficiency));
  }
}

void read_attention(JsonReader in, HardwareProfile& profile) {
  profile.attention = read_attention_fits(in, "fits");
  if (in.has("flash2")) profile.flash2_attention = read_attention_fits(in, "flash2");
  if (in.has("flex")) profile.flex_attention = read_attention_fits(in, "flex");
  profile.flash1_rate = in.number_or("flash1_rate", 0.01, 1, profile.flash1_rate);
  read_source(in);
  in.finish();
}

std::vector<CollectiveFit> read_collectives(JsonReader in) {
  std::vector<CollectiveFit> fits;
  each_object(in, "fits", [&](JsonReader& item) {
    CollectiveFit fit;
    fit.kind = word<CollectiveKind>(item, "kind");
    fit.ranks = static_cast<int>(item.integer("ranks", 2, 4096));
    fit.alpha = microseconds(item.number("alpha_us", 0, 1e6));
    fit.bandwidth = gb_per_s(positive(item, "gb_per_s"));
    fit.gamma = 1e-9 * item.number_or("gamma_ns_per_sqrt_byte", 0, 1e6, 0);
    fit.error = item.number_or("error", 0, 1, fit.error);
    fit.assumed = item.boolean_or("assumed", false);
    fits.push_back(fit);
  });
  if (fits.empty()) in.fail("fits", "must hold at least one collective");
  std::sort(fits.begin(), fits.end(), [](const CollectiveFit& a, const CollectiveFit& b) {
    return std::pair(a.kind, a.ranks) < std::pair(b.kind, b.ranks);
  });
  read_source(in);
  in.finish();
  return fits;
}

// An ascending list of positive numbers.
template <class T>
std::vector<T> read_axis(JsonReader& in, std::string_view key) {
  const Json& list = in.value(key);
  if (!list.is_array() || list.empty()) in.fail(key, "must be a list of numbers");
  std::vector<T> axis;
  for (const Json& value : list) {
    const bool ok = value.is_number() && value.get<double>() > 0 && value.get<double>() <= kHuge &&
                    (axis.empty() || value.get<double>() > static_cast<double>(axis.back()));
    if (!ok) in.fail(key, "must hold positive numbers in ascending order");
    axis.push_back(value.get<T>());
  }
  return axis;
}

void read_gemm_tables(JsonReader& in, std::string_view key, std::vector<GemmTable>& tables) {
  each_object(in, key, [&](JsonReader& item) {
    GemmTable table;
    table.dtype = word<DType>(item, "dtype");
    table.m = read_axis<std::int64_t>(item, "m");
    table.n = read_axis<std::int64_t>(item, "n");
    table.k = read_axis<std::int64_t>(item, "k");
    const Json& values = item.value("utilisation_permille");
    const std::size_t expected = table.m.size() * table.n.size() * table.k.size();
    if (!values.is_array() || values.size() != expected) {
      item.fail("utilisation_permille", fmt::format("must be a list of {} numbers", expected));
    }
    table.utilisation.reserve(expected);
    for (const Json& value : values) {
      if (!value.is_number() || value.get<double>() < 0 || value.get<double>() > 2000) {
        item.fail("utilisation_permille", "must hold numbers from 0 (not measured) to 2000");
      }
      const float permille = value.get<float>();
      table.utilisation.push_back(permille > 0 ? permille / 1000
                                               : std::numeric_limits<float>::quiet_NaN());
    }
    tables.push_back(std::move(table));
  });
}

void read_collective_tables(JsonReader& in, std::string_view key,
                            std::vector<CollectiveTable>& tables) {
  each_object(in, key, [&](JsonReader& item) {
    CollectiveTable table;
    table.kind = word<CollectiveKind>(item, "kind");
    table.ranks = static_cast<int>(item.integer("ranks", 2, 4096));
    for (const double bytes : read_axis<double>(item, "bytes")) table.bytes.emplace_back(bytes);
    const Json& times = item.value("microseconds");
    if (!times.is_array() || times.size() != table.bytes.size()) {
      item.fail("microseconds", "must be a list as long as bytes");
    }
    for (const Json& time : times) {
      const bool ok =
          time.is_number() && time.get<double>() > 0 &&
          (table.times.empty() || microseconds(time.get<double>()) >= table.times.back());
      if (!ok) item.fail("microseconds", "must hold positive numbers that never fall");
      table.times.push_back(microseconds(time.get<double>()));
    }
    tables.push_back(std::move(table));
  });
}

// Measured tables: written into the profile itself (calibration does), or built in, by name.
void read_tables(JsonReader in, HardwareProfile& profile) {
  if (in.has("gemm")) read_gemm_tables(in, "gemm", profile.gemm_tables);
  if (in.has("collectives")) read_collective_tables(in, "collectives", profile.collective_tables);
  read_source(in);
  in.finish();
}

Json parse_built_in_table(JsonReader& in, std::string_view key) {
  const std::string name = in.string(key);
  const EmbeddedFile* file = find(kernel_tables(), name);
  if (file == nullptr) {
    const auto known = names_of(kernel_tables());
    in.fail(key, fmt::format("names no built-in table: '{}'; choose one of {}{}", shown(name),
                             fmt::join(known, ", "), did_you_mean(name, known)));
  }
  return parse_json(text_of(*file), fmt::format("built-in table {}", name));
}

void read_built_in_tables(JsonReader& in, HardwareProfile& profile) {
  if (in.has("gemm_table")) {
    const Json json = parse_built_in_table(in, "gemm_table");
    JsonReader table(json, in.path_of("gemm_table"));
    read_gemm_tables(table, "gemm", profile.gemm_tables);
  }
  if (in.has("collective_table")) {
    const Json json = parse_built_in_table(in, "collective_table");
    JsonReader table(json, in.path_of("collective_table"));
    read_collective_tables(table, "collectives", profile.collective_tables);
  }
}

}  // namespace

HardwareProfile read_hardware(const Json& json, std::string_view path) {
  JsonReader in(json, std::string(path));
  const auto section = [&](std::string_view key) {
    return JsonReader(in.value(key), in.path_of(key));
  };
  HardwareProfile profile;
  profile.name = in.string("name");
  profile.description = in.string_or("description", "");
  profile.gpu = read_gpu(section("gpu"));
  profile.link = read_link(section("link"));
  profile.host = read_host(section("host"));
  profile.contention = read_contention(section("contention"));
  profile.gemm = read_gemm(section("gemm"));
  profile.grouped_gemm = read_gemm_fit(section("grouped_gemm"));
  read_attention(section("attention"), profile);
  assume_recurrent_kernels(profile);
  if (in.has("delta_rule")) profile.delta_rule = read_delta_rule_fit(section("delta_rule"));
  if (in.has("scan")) profile.scan = read_scan_fit(section("scan"));
  profile.collectives = read_collectives(section("collectives"));
  if (in.has("tables")) read_tables(section("tables"), profile);
  read_built_in_tables(in, profile);
  profile.price_per_gpu_hour = in.number_or("price_per_gpu_hour_usd", 0, 1e6, 0);
  in.finish();
  profile.source = json;
  return profile;
}

HardwareProfile load_hardware(const std::string& name_or_path) {
  if (const EmbeddedFile* file = find(profiles(), name_or_path)) {
    return read_hardware(parse_json(text_of(*file), name_or_path), name_or_path + ":");
  }
  const bool is_path = name_or_path.find('/') != std::string::npos ||
                       name_or_path.ends_with(".json") || std::filesystem::exists(name_or_path);
  if (is_path) return read_hardware(read_json_file(name_or_path), name_or_path + ":");
  const auto known = hardware_names();
  throw Error(fmt::format("hardware '{}' is unknown; choose one of {}, or a profile's path{}",
                          shown(name_or_path), fmt::join(known, ", "),
                          did_you_mean(name_or_path, known)));
}

std::vector<std::string> hardware_names() {
  return names_of(profiles());
}

void set_gpus_per_node(HardwareProfile& hardware, int count) {
  Interconnect& link = hardware.link;
  const int before = link.gpus_per_node;
  if (link.nvlink_domain == before) link.nvlink_domain = count;
  if (link.nvlink_domain < before) link.nvlink_domain = std::min(link.nvlink_domain, count);
  link.nics_per_node = std::max(1, link.nics_per_node * count / before);
  const double ratio = static_cast<double>(count) / before;
  hardware.host.memory *= ratio;
  hardware.host.adam_params_per_s *= ratio;
  hardware.host.nvme_read *= ratio;
  hardware.host.nvme_write *= ratio;
  link.gpus_per_node = count;
}

}  // namespace qplan
