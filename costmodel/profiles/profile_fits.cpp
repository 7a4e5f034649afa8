#include <algorithm>
#include <array>
#include <optional>

#include "costmodel/profiles/profile_parts.h"

namespace qplan::profiles {

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

namespace {

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

}  // namespace

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
// share of that GPU's rates, here of this one's. No kernel beats a peak, and none reads tiles
// nearer to what copies reach than it does there.
void read_stand_in(Section in, HardwareProfile& profile) {
  Gpu& gpu = profile.gpu;
  const double share = gpu.multiprocessors / in.number("multiprocessors", 1, 1e5);
  const double peak = gpu.matmul.at(Precision::bf16).value();
  const double other_peak = tflops(positive(in, "matmul_bf16_tflops")).value();
  const double copies = gb_per_s(positive(in, "copy_gb_per_s")).value();
  const double other_memory = gb_per_s(positive(in, "memory_gb_per_s")).value();
  profile.delta_rule = read_delta_rule_fit(in.section("delta_rule"), profile.errors);
  profile.scan = read_scan_fit(in.section("scan"), profile.errors);
  for (double* efficiency : {&profile.delta_rule.efficiency, &profile.scan.efficiency,
                             &profile.scan.backward_efficiency}) {
    *efficiency *= std::min(share * other_peak / peak, 1.0 / *efficiency);
  }
  const double copied = gpu.memory_efficiency * other_memory / copies;
  for (double* of_memory :
       {&profile.delta_rule.bandwidth_efficiency, &profile.scan.bandwidth_efficiency,
        &profile.scan.backward_bandwidth_efficiency}) {
    *of_memory *= std::min(copied, 1.0 / *of_memory);
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

namespace {

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

}  // namespace

void read_attention(Section in, HardwareProfile& profile) {
  const Errors& errors = profile.errors;
  profile.attention = read_attention_fits(in, "fits", errors);
  if (in.has("flash2")) profile.flash2_attention = read_attention_fits(in, "flash2", errors);
  if (in.has("flex")) profile.flex_attention = read_attention_fits(in, "flex", errors);
  if (in.has("fp8")) profile.fp8_attention = read_attention_fits(in, "fp8", errors);
  profile.flash1_rate = in.number("flash1_rate", 0.01, 1);
  read_attention_options(in, profile.attention_options);
  read_source(in);
  in.finish();
}

namespace {

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

}  // namespace

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
  constexpr double kLaunch = 0.2;  // as generations/any.json, of profiles written before it had it
  errors.launch = in.has("launch") ? error_of(in, "launch") : kLaunch;
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

}  // namespace qplan::profiles
