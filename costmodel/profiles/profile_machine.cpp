#include "costmodel/profiles/pod_levels.h"
#include "costmodel/profiles/profile_parts.h"

namespace qplan::profiles {

namespace {

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
  const SpeedSpread spread{in.number("sigma", 0, 1), in.number("measured_ranks", 1, 1e6),
                           in.number_or("waited_share", 0, 0.5, 0)};
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

}  // namespace

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
    in.fail("usable_memory_gib",
            "is more than memory_gb; give it as well, a little less than that");
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
  link.ring_share_of_pcie = share(in, "ring_share_of_pcie");
  link.nics_per_node = static_cast<int>(in.integer("nics_per_node", 1, 4096));
  link.nic = gb_per_s(positive(in, "nic_gb_per_s"));
  link.nic_efficiency = in.number("nic_efficiency", 0.01, 1);
  link.all_to_all_nic_share = share(in, "all_to_all_nic_share");
  link.inter_node_latency = microseconds(in.number("inter_node_latency_us", 0, 1e6));
  link.simple_only = in.boolean_or("simple_only", false);
  link.oversubscription = in.number_or("oversubscription", 1, 1000, 1);
  if (in.has("pods")) link.pods = read_pods(in.value("pods"), in.path_of("pods"));
  check_pods(link, in.path_of("pods"));
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

}  // namespace qplan::profiles
