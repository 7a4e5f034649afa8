#include "planner/runs/network.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace qplan {
namespace {

// The number that begins at `at`, and where it ends.
struct Number {
  double value = 0;
  std::size_t end = 0;
};

std::optional<Number> number_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) != 0 ||
                               (text[end] == '.' && end > at))) {
    ++end;
  }
  if (end == at) return std::nullopt;
  int whole = 0;
  const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, whole);
  if (error != std::errc()) return std::nullopt;
  double value = whole;
  double digit = 0.1;
  for (const char* c = stop + 1; c < text.data() + end; ++c, digit /= 10) {
    value += digit * (*c - '0');
  }
  return Number{value, end};
}

}  // namespace

std::optional<NodeNetwork> network_of_words(std::string_view words, int gpus_per_node) {
  int count = 0;
  for (std::size_t at = 0; at < words.size();) {
    const auto number = number_at(words, at);
    if (!number) {
      ++at;
      continue;
    }
    std::string_view rest = words.substr(number->end);
    at = number->end;
    const bool glued = rest.starts_with("x");  // "8x400 Gb/s", "4x HDR 200Gb/s"
    while (rest.starts_with(" ")) rest.remove_prefix(1);
    if (glued || rest.starts_with("x ")) {  // "8 x 400 Gb/s"
      count = static_cast<int>(number->value);
      continue;
    }
    const bool bytes = rest.starts_with("GB");
    if (!bytes && !rest.starts_with("Gb")) continue;
    const double rate = number->value * (bytes ? 1e9 : 1e9 / 8);
    const bool per_gpu = words.find("per GPU") != std::string_view::npos;
    const int nics = per_gpu ? gpus_per_node : count;
    if (rate <= 0) return std::nullopt;
    return NodeNetwork{nics, BytesPerSecond(rate * std::max(1, nics)), Fabric::infiniband};
  }
  return std::nullopt;
}

namespace {

// Messages and collectives inside a node go as much slower as there are fewer links; measured
// tables are of all of them.
void set_nvlinks(HardwareProfile& hardware, int links) {
  Interconnect& link = hardware.link;
  if (links <= 0 || link.over_pcie() || hardware.collectives.empty()) return;
  // NVLink 2 to 4 carry 25 GB/s a link and direction, NVLink 5 50 (data sheets).
  const BytesPerSecond one(hardware.gpu.compute_capability >= 100 ? 50e9 : 25e9);
  const double share = one * static_cast<double>(links) / link.nvlink;
  if (share >= 1) return;
  link.nvlink *= share;
  link.message *= share;
  hardware.collective_tables.clear();
  for (CollectiveFit& fit : hardware.collectives) fit.bandwidth *= share;
}

}  // namespace

void set_network(HardwareProfile& hardware, const NodeNetwork& network) {
  set_nvlinks(hardware, network.nvlinks);
  Interconnect& link = hardware.link;
  if (network.nics > 0) link.nics_per_node = network.nics;
  link.nic = network.of_node / static_cast<double>(link.nics_per_node);
  switch (network.fabric) {
    case Fabric::infiniband:
      break;
    case Fabric::efa:
      // All-reduce of 32 B200 over EFA starts at 350 us (stas00/ml-engineering): a tree of 4 hops.
      // EFA delivers out of order, so NCCL has neither LL nor LL128 there (aws-ofi-nccl).
      link.inter_node_latency = microseconds(80);
      link.simple_only = true;
      break;
    case Fabric::omni_path:
      // NCCL 2.10 speaks verbs to it: a ring of 32 A100 on 4 nodes, over one port of 12.5 GB/s,
      // moves 5.06 GB/s (bigscience-workshop/bigscience, experiments/bandwidth, all_reduce_bench-
      // a100-n4.txt: 4 GB in 1.53 s).
      link.nic_efficiency = 0.41;
      break;
  }
}

}  // namespace qplan
