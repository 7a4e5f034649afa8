#include "costmodel/profiles/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <limits>
#include <span>
#include <utility>

#include "costmodel/profiles/layers.h"
#include "models/embedded.h"
#include "models/error.h"
#include "models/text.h"

namespace qplan {

// Compiled in from profiles/tables/ (CMakeLists.txt).
extern const EmbeddedFile kernel_table_files[];
extern const std::size_t kernel_table_files_count;

namespace {

constexpr double kHuge = 1e15;

// ---- a reader that goes on after a missing key, to name them all ----

// What is wrong with a profile's keys, each with its path.
struct KeyComplaints {
  std::vector<std::string> missing, unknown;
};

// As JsonReader, but a missing key is noted and read as something harmless: read_hardware() throws
// what was noted in the end.
class Section : public JsonReader {
 public:
  Section(const Json& object, std::string path, KeyComplaints& complaints)
      : JsonReader(object, std::move(path)), complaints_(&complaints) {}

  // One section in another. All that a missing one should hold is missing.
  [[nodiscard]] Section section(std::string_view key) {
    static const Json nothing = Json::object();
    ignore({key});
    const Json& object = has(key) ? JsonReader::value(key) : nothing;
    return {object, path_of(key), *complaints_};
  }
  // An object that is no section of the profile's own, such as a list's.
  [[nodiscard]] Section of(const Json& object, std::string path) const {
    return {object, std::move(path), *complaints_};
  }

  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) {
    return lacks(key) ? low : JsonReader::integer(key, low, high);
  }
  double number(std::string_view key, double low, double high) {
    return lacks(key) ? low : JsonReader::number(key, low, high);
  }
  bool boolean(std::string_view key) { return lacks(key) ? false : JsonReader::boolean(key); }
  std::string string(std::string_view key) { return lacks(key) ? "" : JsonReader::string(key); }
  bool lacks(std::string_view key) {
    if (has(key)) return false;
    complaints_->missing.push_back(path_of(key));
    ignore({key});  // known, and so the nearest name of a misspelt one
    return true;
  }

  void finish() {
    try {
      JsonReader::finish();
    } catch (const Error& unknown) {
      complaints_->unknown.emplace_back(unknown.what());
    }
  }

 private:
  KeyComplaints* complaints_;
};

// The built-in machine that a profile may mean to change: "b200" for a "GB200" is no match if there
// is a "gb200". The first of "h100-sxm" and "h100-pcie" is the plainer one.
std::string machine_like(const std::string& gpu) {
  std::string lower = gpu;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::string best = "h100-sxm";
  std::size_t matched = 0;
  for (const std::string& name : hardware_names()) {
    const std::size_t length = std::min(name.find('-'), name.size());
    if (length < matched || lower.find(name.substr(0, length)) == std::string::npos) continue;
    if (length == matched && name.size() >= best.size()) continue;
    best = name;
    matched = length;
  }
  return best;
}

// One sentence for all of them. `top` is the profile.
[[noreturn]] void throw_complaints(const KeyComplaints& complaints, const Section& top,
                                   const std::string& gpu) {
  const std::string unknown = fmt::format("{}", fmt::join(complaints.unknown, "; "));
  if (complaints.missing.empty()) throw Error(unknown);
  const std::size_t prefix = top.path_of("").size();
  std::vector<std::string> keys;
  for (const std::string& path : complaints.missing) keys.push_back(path.substr(prefix));
  std::string_view where = top.path();
  if (where.ends_with(':')) where.remove_suffix(1);
  throw Error(fmt::format(
      "{} lacks {}; write {} in, or let it extend a built-in machine and say what differs: "
      "\"extends\": \"{}\"{}{}",
      where, fmt::join(keys, ", "), keys.size() == 1 ? "it" : "them", machine_like(gpu),
      unknown.empty() ? "" : ". Besides, ", unknown));
}

// Every section says where its figures come from: one sentence, or one for each key.
void read_source(Section& in) {
  if (in.lacks("source")) return;
  const Json& source = in.value("source");
  const auto is_sentence = [](const Json& v) {
    return v.is_string() && !v.get_ref<const std::string&>().empty();
  };
  if (is_sentence(source)) return;
  const bool by_key = source.is_object() && !source.empty() &&
                      std::all_of(source.begin(), source.end(), is_sentence);
  if (!by_key) in.fail("source", "must be a sentence, or an object with a sentence for each key");
}

// Calls read(Section&) for each object of the list under `key`.
template <class F>
void each_object(Section& in, std::string_view key, F&& read) {
  if (in.lacks(key)) return;
  const Json& list = in.value(key);
  if (!list.is_array()) in.fail(key, "must be a list of objects");
  for (std::size_t i = 0; i < list.size(); ++i) {
    Section item = in.of(list[i], fmt::format("{}[{}]", in.path_of(key), i));
    read(item);
    item.finish();
  }
}

// A positive quantity; zero makes no sense for a rate or a size.
double positive(Section& in, std::string_view key) {
  return in.number(key, 1e-6, kHuge);
}
double share(Section& in, std::string_view key) {
  return in.number(key, 0.001, 2);
}
double share_or(Section& in, std::string_view key, double fallback) {
  return in.number_or(key, 0.001, 2, fallback);
}
Seconds time_us(Section& in, std::string_view key) {
  return microseconds(in.number(key, 0, 1e6));
}
// A relative error, one sigma.
double error_of(Section& in, std::string_view key) {
  return in.number(key, 0, 1);
}

// What a fit says of its own error. One that was not measured on this GPU is as uncertain as
// others of the kind at least.
template <class Fit>
void read_error(Section& in, const Errors& errors, Fit& fit) {
  fit.error = in.number_or("error", 0, 1, errors.fit);
  fit.assumed = in.boolean_or("assumed", false);
  if (fit.assumed) fit.error = std::max(fit.error, errors.assumed);
}

template <class E>
E word(Section& in, std::string_view key) {
  if (in.lacks(key)) return Words<E>::table.front().first;
  const std::string text = in.string(key);
  if (const auto value = try_from_word<E>(text)) return *value;
  std::string known;
  for (const auto& [e, name] : Words<E>::table) {
    known += known.empty() ? "" : ", ";
    known += name;
  }
  in.fail(key, fmt::format("must be one of {}, not '{}'", known, shown(text)));
}

Fp32Sums read_fp32_sums(Section in) {
  const Fp32Sums sums{share(in, "rate"), share(in, "bandwidth_efficiency")};
  read_source(in);
  in.finish();
  return sums;
}

UnalignedProducts read_unaligned(Section in) {
  const UnalignedProducts products{in.number("alignment_bytes", 1, 4096),
                                   share(in, "share_of_bf16"), error_of(in, "error")};
  read_source(in);
  in.finish();
  return products;
}

SpeedSpread read_speed_spread(Section in) {
  // Below two ranks nobody waits for another, and the law of many does not hold.
  const SpeedSpread spread{in.number("sigma", 0, 1), in.number("measured_ranks", 2, 1e6)};
  read_source(in);
  in.finish();
  return spread;
}

// A section with one figure.
double read_share(Section in, std::string_view key) {
  const double found = share(in, key);
  read_source(in);
  in.finish();
  return found;
}

Gpu read_gpu(Section in) {
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
  if (in.has("memory_gb") && gpu.usable_memory > gpu.memory * 1.1) {
    in.fail("usable_memory_gib", "is more than memory_gb; a process gets a little less than that");
  }
  gpu.memory_bandwidth = gb_per_s(positive(in, "memory_gb_per_s"));
  gpu.memory_efficiency = share(in, "memory_efficiency");
  if (in.has("adamw_efficiency")) gpu.adamw_efficiency = share(in, "adamw_efficiency");
  gpu.adamw_share_of_copy = read_share(in.section("adamw"), "share_of_copy");
  gpu.tf32_share = read_share(in.section("tf32"), "share_of_bf16");
  gpu.fp32_sums = read_fp32_sums(in.section("fp32_sums"));
  gpu.unaligned = read_unaligned(in.section("unaligned_products"));
  gpu.speed_spread = read_speed_spread(in.section("speed_spread"));
  if (in.has("memory_efficiency_of")) {
    Section of = in.section("memory_efficiency_of");
    for (const auto& [kind, name] : Words<RowwiseKind>::table) {
      if (of.has(name))
        gpu.memory_efficiency_of[kind] = of.number(name, 0.001, kMostMemoryEfficiency);
    }
    of.finish();
  }
  if (in.has("memory_latency_us_of")) {
    Section of = in.section("memory_latency_us_of");
    for (const auto& [kind, name] : Words<RowwiseKind>::table) {
      if (of.has(name)) gpu.memory_latency_of[kind] = microseconds(of.number(name, 0, 1e4));
    }
    of.finish();
  }
  gpu.multiprocessors = static_cast<int>(in.integer("multiprocessors", 1, 100000));
  gpu.compute_capability = static_cast<int>(in.integer("compute_capability", 10, 999));
  gpu.fp8_needs_transposes = in.boolean("fp8_needs_transposes");
  gpu.tdp_watt = in.number("tdp_watt", 1, 1e5);
  gpu.kernel_launch = microseconds(in.number("kernel_launch_us", 0, 1e4));
  if (in.has("graph_gain_us")) gpu.graph_gain = microseconds(in.number("graph_gain_us", 0, 100));
  read_source(in);
  in.finish();
  return gpu;
}

Interconnect read_link(Section in) {
  Interconnect link;
  link.gpus_per_node = static_cast<int>(in.integer("gpus_per_node", 1, 4096));
  link.nvlink_domain = static_cast<int>(in.integer("nvlink_domain", 1, 4096));
  // 0 says that there is none; a missing one does not.
  link.nvlink = gb_per_s(in.lacks("nvlink_gb_per_s") ? 1 : in.number("nvlink_gb_per_s", 0, kHuge));
  link.host_to_device = gb_per_s(positive(in, "host_to_device_gb_per_s"));
  link.device_to_host = gb_per_s(positive(in, "device_to_host_gb_per_s"));
  if (link.over_pcie()) link.nvlink_domain = link.gpus_per_node;
  link.nvls = in.boolean_or("nvls", false);
  link.in_switch_above_ranks = static_cast<int>(in.integer_or("in_switch_above_ranks", 1, 4096, 0));
  link.message_start = time_us(in, "message_start_us");
  const double nvlink_share = share(in, "message_share_of_nvlink");
  if (in.has("message_gb_per_s")) {
    link.message = gb_per_s(positive(in, "message_gb_per_s"));
  } else if (link.over_pcie()) {
    link.message = pcie_rate(link);
  } else {
    link.message = gb_per_s(link.nvlink.value() / 1e9 * nvlink_share);
  }
  link.nics_per_node = static_cast<int>(in.integer("nics_per_node", 1, 4096));
  link.nic = gb_per_s(positive(in, "nic_gb_per_s"));
  link.nic_efficiency = in.number("nic_efficiency", 0.01, 1);
  link.all_to_all_nic_share = share(in, "all_to_all_nic_share");
  link.inter_node_latency = microseconds(in.number("inter_node_latency_us", 0, 1e6));
  link.simple_only = in.boolean_or("simple_only", false);
  link.oversubscription = in.number_or("oversubscription", 1, 1000, 1);
  read_source(in);
  in.finish();
  return link;
}

Host read_host(Section in) {
  Host host;
  host.memory = Bytes(positive(in, "memory_gb") * 1e9);
  host.adam_params_per_s = 1e9 * positive(in, "adam_gparams_per_s");
  host.nvme_read = gb_per_s(in.number_or("nvme_read_gb_per_s", 0, kHuge, 0));
  host.nvme_write = gb_per_s(in.number_or("nvme_write_gb_per_s", 0, kHuge, 0));
  host.watt_per_gpu = in.number_or("watt_per_gpu", 0, 1e5, 0);
  host.launch_factor = in.number("launch_factor", 0.01, 100);
  host.copy_start = time_us(in, "copy_start_us");
  read_source(in);
  in.finish();
  return host;
}

Contention read_contention(Section in) {
  Contention contention;
  const auto slowdown = [&](std::string_view key) {
    Section item = in.section(key);
    const Slowdown s{item.number("compute", 1, 10), item.number("comm", 1, 10)};
    read_source(item);
    item.finish();
    return s;
  };
  contention.nvlink = slowdown("nvlink");
  contention.network = slowdown("network");
  contention.expert_library = slowdown("expert_library");
  contention.expert_library_network = slowdown("expert_library_network");
  in.finish();
  return contention;
}

GemmFit read_gemm_fit(Section in, const Errors& errors) {
  GemmFit fit;
  fit.efficiency = in.number("efficiency", 0.001, 2);
  fit.m0 = in.number_or("m0", 0, 1e6, 0);
  fit.n0 = in.number_or("n0", 0, 1e6, 0);
  fit.k0 = in.number_or("k0", 0, 1e6, 0);
  fit.bandwidth_efficiency = share(in, "bandwidth_efficiency");
  fit.latency = microseconds(in.number_or("latency_us", 0, 1e6, 0));
  fit.sustain = share_or(in, "sustain", 1);
  if (in.has("accumulate_exposed")) {
    fit.accumulate_exposed = in.number("accumulate_exposed", 0, 10);
  }
  read_error(in, errors, fit);
  read_source(in);
  in.finish();
  return fit;
}

std::map<Precision, GemmFit> read_gemm(Section in, const Errors& errors) {
  std::map<Precision, GemmFit> fits;
  for (const auto& [precision, name] : Words<Precision>::table) {
    const bool required = precision == Precision::bf16;
    if (required || in.has(name)) fits[precision] = read_gemm_fit(in.section(name), errors);
  }
  fits.try_emplace(Precision::fp16, fits[Precision::bf16]);
  if (fits.contains(Precision::fp8)) fits.try_emplace(Precision::mxfp8, fits[Precision::fp8]);
  in.finish();
  return fits;
}

std::vector<AttentionFit> read_attention_fits(Section& in, std::string_view key,
                                              const Errors& errors) {
  std::vector<AttentionFit> fits;
  each_object(in, key, [&](Section& item) {
    AttentionFit fit;
    fit.head_dim = item.integer("head_dim", 1, 65536);
    fit.efficiency = item.number("efficiency", 0.001, 2);
    fit.s0 = item.number_or("s0", 0, 1e6, 0);
    fit.wave = item.number_or("wave", 0, 1e3, 0);
    fit.latency = microseconds(item.number_or("latency_us", 0, 1e6, 0));
    fit.backward_rate = item.number("backward_rate", 0.01, 2);
    fit.backward_s0 = item.number_or("backward_s0", 0, 1e6, 0);
    if (item.has("backward_wave")) fit.backward_wave = item.number("backward_wave", 0, 1e3);
    fit.sustain = share_or(item, "sustain", 1);
    if (item.has("sustain_alone")) fit.sustain_alone = share(item, "sustain_alone");
    read_error(item, errors, fit);
    fits.push_back(fit);
  });
  if (fits.empty() && in.has(key)) in.fail(key, "must hold at least one head_dim");
  std::sort(fits.begin(), fits.end(),
            [](const AttentionFit& a, const AttentionFit& b) { return a.head_dim < b.head_dim; });
  return fits;
}

DeltaRuleFit read_delta_rule_fit(Section in, const Errors& errors) {
  DeltaRuleFit fit;
  fit.efficiency = share(in, "efficiency");
  fit.bandwidth_efficiency = share(in, "bandwidth_efficiency");
  fit.chunk = time_us(in, "chunk_us");
  fit.backward_chunk = time_us(in, "backward_chunk_us");
  fit.blocks_per_head = in.number("blocks_per_head", 0.01, 1e3);
  read_error(in, errors, fit);
  read_source(in);
  in.finish();
  return fit;
}

ScanFit read_scan_fit(Section in, const Errors& errors) {
  ScanFit fit;
  fit.efficiency = share(in, "efficiency");
  fit.bandwidth_efficiency = share(in, "bandwidth_efficiency");
  fit.backward_efficiency = share(in, "backward_efficiency");
  fit.backward_bandwidth_efficiency = share(in, "backward_bandwidth_efficiency");
  fit.chunk = time_us(in, "chunk_us");
  fit.backward_chunk = time_us(in, "backward_chunk_us");
  read_error(in, errors, fit);
  read_source(in);
  in.finish();
  return fit;
}

// Kernels that a profile has no figures of are taken to run as on another GPU, each multiprocessor
// alike: far from any peak, they gain nothing from a higher one. What is said of them there is a
// share of that GPU's rates, here of this one's. No kernel beats a peak.
void read_stand_in(Section in, HardwareProfile& profile) {
  Gpu& gpu = profile.gpu;
  const double share = gpu.multiprocessors / in.number("multiprocessors", 1, 1e5);
  const double peak = gpu.matmul.at(Precision::bf16).value();
  const double other_peak = tflops(positive(in, "matmul_bf16_tflops")).value();
  const double copies = gb_per_s(positive(in, "copy_gb_per_s")).value();
  profile.delta_rule = read_delta_rule_fit(in.section("delta_rule"), profile.errors);
  profile.scan = read_scan_fit(in.section("scan"), profile.errors);
  for (double* efficiency : {&profile.delta_rule.efficiency, &profile.scan.efficiency,
                             &profile.scan.backward_efficiency}) {
    *efficiency *= std::min(share * other_peak / peak, 1.0 / *efficiency);
  }
  const Json& kinds = in.value("copied_kinds");
  if (!kinds.is_array()) in.fail("copied_kinds", "must be a list of kinds of row-wise kernels");
  for (const Json& kind : kinds) {
    const auto known =
        kind.is_string() ? try_from_word<RowwiseKind>(kind.get<std::string>()) : std::nullopt;
    if (!known) in.fail("copied_kinds", fmt::format("holds {}, which is no kind", kind.dump()));
    gpu.memory_efficiency_of.try_emplace(
        *known, std::min(share * copies / gpu.memory_bandwidth.value(), kMostMemoryEfficiency));
  }
  read_source(in);
  in.finish();
}

// A time in picoseconds or nanoseconds, `per_second` of which make a second.
Seconds small_time(Section& in, std::string_view key, double per_second) {
  return Seconds(in.number(key, 0, 1e9) / per_second);
}

void read_attention_options(Section& in, AttentionOptions& options) {
  Section order = in.section("fixed_order");
  if (order.has("stored")) options.fixed_order_stored = order.number("stored", 0.1, 100);
  options.fixed_order_each_part = order.number("each_part", 0, 100);
  read_source(order);
  order.finish();
  Section dropout = in.section("dropout");
  constexpr double kPicoseconds = 1e12, kNanoseconds = 1e9;
  options.dropout_multiprocessors = dropout.number("multiprocessors", 1, 1e5);
  options.dropout_fused = small_time(dropout, "fused_ps", kPicoseconds);
  options.dropout_fused_backward = small_time(dropout, "fused_backward_ps", kPicoseconds);
  options.dropout_flash = small_time(dropout, "flash_ps", kPicoseconds);
  options.dropout_flash_backward = small_time(dropout, "flash_backward_ps", kPicoseconds);
  options.dropout_unfused = Bytes(dropout.number("unfused_bytes", 0, 1e3));
  read_source(dropout);
  dropout.finish();
  Section sinks = in.section("sinks");
  options.sinks_backward = small_time(sinks, "backward_ns", kNanoseconds);
  read_source(sinks);
  sinks.finish();
}

void read_attention(Section in, HardwareProfile& profile) {
  const Errors& errors = profile.errors;
  profile.attention = read_attention_fits(in, "fits", errors);
  if (in.has("flash2")) profile.flash2_attention = read_attention_fits(in, "flash2", errors);
  if (in.has("flex")) profile.flex_attention = read_attention_fits(in, "flex", errors);
  profile.flash1_rate = in.number("flash1_rate", 0.01, 1);
  read_attention_options(in, profile.attention_options);
  read_source(in);
  in.finish();
}

// The protocols of one algorithm. A hop's share of the network's latency is over `network_us`, what
// NCCL takes that latency for.
std::array<NcclProtocol, 3> read_nccl_protocols(Section& in, double network_us, double bandwidth) {
  std::array<NcclProtocol, 3> protocols;
  std::size_t i = 0;
  for (const char* name : {"ll", "ll128", "simple"}) {
    Section item = in.section(name);
    NcclProtocol& p = protocols[i++];
    p.base = time_us(item, "base_us");
    p.nvlink_hop = time_us(item, "nvlink_hop_us");
    if (item.has("pcie_hop_us")) p.pcie_hop = time_us(item, "pcie_hop_us");
    p.network_hop = item.number("network_hop_us", 0, 1e6) / network_us;
    p.bandwidth = share(item, "bandwidth_share") * bandwidth;
    item.finish();
  }
  return protocols;
}

Nccl read_nccl(Section in) {
  Nccl nccl;
  Section ring = in.section("ring"), tree = in.section("tree");
  Section simple = ring.section("simple");
  const double network_us = positive(simple, "network_hop_us");
  nccl.ring = read_nccl_protocols(ring, network_us, 1);
  nccl.tree = read_nccl_protocols(tree, network_us, share(tree, "bandwidth_share"));
  if (!nccl.ring.back().pcie_hop) ring.fail("simple.pcie_hop_us", "is missing");
  ring.finish();
  tree.finish();
  Section memory = in.section("memory");
  const auto held = [&](std::string_view key) { return gib(memory.number(key, 0, 1e3)); };
  nccl.first_communicator = held("first_communicator_gib");
  nccl.group = held("group_gib");
  nccl.more_blocks = mib(memory.number("more_blocks_mib", 0, 1e6));
  nccl.edge = held("edge_gib");
  nccl.expert_peer = held("expert_peer_gib");
  nccl.ring_neighbours = held("ring_neighbours_gib");
  read_source(memory);
  memory.finish();
  read_source(in);
  in.finish();
  return nccl;
}

ExpertLibrary read_expert_library(Section in) {
  ExpertLibrary library;
  library.nic_efficiency = share(in, "nic_efficiency");
  library.nvlink_share = share(in, "nvlink_share");
  library.start = time_us(in, "start_us");
  library.nvlink_peers = static_cast<int>(in.integer("nvlink_peers", 1, 4096));
  read_source(in);
  in.finish();
  return library;
}

Errors read_errors(Section in) {
  Errors errors;
  errors.fit = error_of(in, "fit");
  errors.gemm_table = error_of(in, "gemm_table");
  errors.beyond_gemm_table = error_of(in, "beyond_gemm_table");
  errors.memory_bound = error_of(in, "memory_bound");
  errors.host_copy = error_of(in, "host_copy");
  errors.host = error_of(in, "host");
  errors.collective_table = error_of(in, "collective_table");
  errors.network = error_of(in, "network");
  errors.network_all_to_all = error_of(in, "network_all_to_all");
  errors.pcie = error_of(in, "pcie");
  errors.sustained = error_of(in, "sustained");
  errors.assumed = error_of(in, "assumed");
  read_source(in);
  in.finish();
  return errors;
}

std::vector<CollectiveFit> read_collectives(Section in, const Errors& errors) {
  std::vector<CollectiveFit> fits;
  each_object(in, "fits", [&](Section& item) {
    CollectiveFit fit;
    fit.kind = word<CollectiveKind>(item, "kind");
    fit.ranks = static_cast<int>(item.integer("ranks", 2, 4096));
    fit.alpha = microseconds(item.number("alpha_us", 0, 1e6));
    fit.bandwidth = gb_per_s(positive(item, "gb_per_s"));
    fit.gamma = 1e-9 * item.number_or("gamma_ns_per_sqrt_byte", 0, 1e6, 0);
    read_error(item, errors, fit);
    fits.push_back(fit);
  });
  // One that was not measured is priced by one of these.
  const bool usable = std::any_of(fits.begin(), fits.end(), [](const CollectiveFit& fit) {
    return fit.kind == CollectiveKind::all_gather || fit.kind == CollectiveKind::all_reduce;
  });
  if (!usable && in.has("fits")) in.fail("fits", "must hold an all_gather or an all_reduce");
  std::sort(fits.begin(), fits.end(), [](const CollectiveFit& a, const CollectiveFit& b) {
    return std::pair(a.kind, a.ranks) < std::pair(b.kind, b.ranks);
  });
  read_source(in);
  in.finish();
  return fits;
}

// An ascending list of positive numbers.
template <class T>
std::vector<T> read_axis(Section& in, std::string_view key) {
  if (in.lacks(key)) return {};
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

void read_gemm_tables(Section& in, std::string_view key, std::vector<GemmTable>& tables) {
  each_object(in, key, [&](Section& item) {
    GemmTable table;
    table.dtype = word<DType>(item, "dtype");
    table.m = read_axis<std::int64_t>(item, "m");
    table.n = read_axis<std::int64_t>(item, "n");
    table.k = read_axis<std::int64_t>(item, "k");
    if (item.lacks("utilisation_permille")) return;
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

void read_collective_tables(Section& in, std::string_view key,
                            std::vector<CollectiveTable>& tables) {
  each_object(in, key, [&](Section& item) {
    CollectiveTable table;
    table.kind = word<CollectiveKind>(item, "kind");
    table.ranks = static_cast<int>(item.integer("ranks", 2, 4096));
    for (const double bytes : read_axis<double>(item, "bytes")) table.bytes.emplace_back(bytes);
    if (item.lacks("microseconds")) return;
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
void read_tables(Section in, HardwareProfile& profile) {
  if (in.has("gemm")) read_gemm_tables(in, "gemm", profile.gemm_tables);
  if (in.has("collectives")) read_collective_tables(in, "collectives", profile.collective_tables);
  read_source(in);
  in.finish();
}

Json parse_built_in_table(Section& in, std::string_view key) {
  const std::span<const EmbeddedFile> files{kernel_table_files, kernel_table_files_count};
  const std::string name = in.string(key);
  std::vector<std::string> known;
  for (const EmbeddedFile& file : files) {
    if (file.name == name) {
      return parse_json({reinterpret_cast<const char*>(file.bytes), file.size},
                        fmt::format("built-in table {}", name));
    }
    known.emplace_back(file.name);
  }
  std::sort(known.begin(), known.end());
  in.fail(key, fmt::format("names no built-in table: '{}'; choose one of {}{}", shown(name),
                           fmt::join(known, ", "), did_you_mean(name, known)));
}

void read_built_in_tables(Section& in, HardwareProfile& profile) {
  if (in.has("gemm_table")) {
    const Json json = parse_built_in_table(in, "gemm_table");
    Section table = in.of(json, in.path_of("gemm_table"));
    read_gemm_tables(table, "gemm", profile.gemm_tables);
  }
  if (in.has("collective_table")) {
    const Json json = parse_built_in_table(in, "collective_table");
    Section table = in.of(json, in.path_of("collective_table"));
    read_collective_tables(table, "collectives", profile.collective_tables);
  }
}

// A profile that lies over all others already.
HardwareProfile read_whole(const Json& json, std::string_view path) {
  KeyComplaints complaints;
  Section in(json, std::string(path), complaints);
  HardwareProfile profile;
  profile.name = in.string("name");
  profile.description = in.string_or("description", "");
  profile.errors = read_errors(in.section("errors"));
  const Errors& errors = profile.errors;
  profile.gpu = read_gpu(in.section("gpu"));
  profile.link = read_link(in.section("link"));
  profile.host = read_host(in.section("host"));
  profile.contention = read_contention(in.section("contention"));
  profile.gemm = read_gemm(in.section("gemm"), errors);
  profile.grouped_gemm = read_gemm_fit(in.section("grouped_gemm"), errors);
  read_attention(in.section("attention"), profile);
  read_stand_in(in.section("stand_in"), profile);
  if (in.has("delta_rule")) {
    profile.delta_rule = read_delta_rule_fit(in.section("delta_rule"), errors);
  }
  if (in.has("scan")) profile.scan = read_scan_fit(in.section("scan"), errors);
  profile.nccl = read_nccl(in.section("nccl"));
  profile.expert_library = read_expert_library(in.section("expert_library"));
  if (!profile.link.over_pcie() || in.has("collectives")) {
    profile.collectives = read_collectives(in.section("collectives"), errors);
  }
  if (in.has("tables")) read_tables(in.section("tables"), profile);
  read_built_in_tables(in, profile);
  profile.price_per_gpu_hour = in.number_or("price_per_gpu_hour_usd", 0, 1e6, 0);
  in.finish();
  if (!complaints.missing.empty() || !complaints.unknown.empty()) {
    throw_complaints(complaints, in, profile.gpu.name);
  }
  profile.source = json;
  return profile;
}

}  // namespace

HardwareProfile read_hardware(const Json& json, std::string_view path) {
  const std::string where(path);
  return read_whole(layered_profile(json, {.where = where, .file = "", .built_in = false}), where);
}

HardwareProfile load_hardware(const std::string& name_or_path) {
  // Built-in names have no capitals; a file that is called so comes first.
  const std::string name =
      std::filesystem::exists(name_or_path) ? name_or_path : lower_case(name_or_path);
  if (const Json* built_in = built_in_profile(name)) return read_whole(*built_in, name + ":");
  const bool is_path = name_or_path.find('/') != std::string::npos ||
                       name_or_path.ends_with(".json") || std::filesystem::exists(name_or_path);
  if (is_path) {
    const std::string where = name_or_path + ":";
    const Json own = read_json_file(name_or_path);
    return read_whole(layered_profile(own, {.where = where, .file = name_or_path}), where);
  }
  const auto known = hardware_names();
  throw Error(fmt::format("hardware '{}' is unknown; choose one of {}, or a profile's path{}",
                          shown(name_or_path), fmt::join(known, ", "), did_you_mean(name, known)));
}

std::vector<std::string> hardware_names() {
  return built_in_profile_names();
}

BytesPerSecond pcie_rate(const Interconnect& link) {
  return std::min(link.host_to_device, link.device_to_host);
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
