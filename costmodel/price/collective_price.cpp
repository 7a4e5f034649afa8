#include <algorithm>
#include <array>
#include <cmath>

#include "costmodel/price/interpolate.h"
#include "costmodel/price/price.h"
#include "models/error.h"
#include "models/portable_math.h"

namespace qplan {
namespace {

// A figure is a measured table or a fit, of one collective among one number of ranks.
Seconds time_of(const CollectiveTable& table, Bytes bytes) {
  return time_at(table, bytes);
}
Seconds time_of(const CollectiveFit& fit, Bytes bytes) {
  const Bytes moved = bytes * bus_factor(fit.kind, fit.ranks);
  return fit.alpha + moved / fit.bandwidth + Seconds(fit.gamma * std::sqrt(moved.value()));
}
Seconds start_of(const CollectiveTable& table) {
  return table.times.front();
}
Seconds start_of(const CollectiveFit& fit) {
  return fit.alpha;
}

// The figures of one kind around a number of ranks.
template <class T>
struct Neighbours {
  const T* before = nullptr;  // the second largest with ranks <= asked
  const T* below = nullptr;   // the largest with ranks <= asked
  const T* above = nullptr;   // the smallest with ranks > asked
  [[nodiscard]] bool any() const { return below != nullptr || above != nullptr; }
};

template <class T>
Neighbours<T> neighbours(const std::vector<T>& figures, CollectiveKind kind, int ranks) {
  Neighbours<T> near;
  for (const T& figure : figures) {
    if (figure.kind != kind) continue;
    if (figure.ranks > ranks) {
      if (!near.above || figure.ranks < near.above->ranks) near.above = &figure;
    } else if (!near.below || figure.ranks > near.below->ranks) {
      near.before = near.below;
      near.below = &figure;
    } else if (!near.before || figure.ranks > near.before->ranks) {
      near.before = &figure;
    }
  }
  return near;
}

// A collective inside one domain; `start` is the part that an empty buffer takes too.
struct InNode {
  Seconds time, start;
  PriceSource source = PriceSource::formula;
  double error = 0;
};

double log_weight(int ranks, int below, int above) {
  return portable::log(static_cast<double>(ranks) / below) /
         portable::log(static_cast<double>(above) / below);
}

// Time per byte moved follows the logarithm of the rank count; beyond the last measured count it
// stays, and each rank adds latency as between the last two.
template <class T>
InNode read_figures(const Neighbours<T>& near, CollectiveKind kind, Bytes bytes, int ranks) {
  const auto at = [&](const T& figure) {
    const double factor = bus_factor(kind, ranks) / bus_factor(figure.kind, figure.ranks);
    return InNode{time_of(figure, bytes) * factor, start_of(figure) * factor, {}, 0};
  };
  if (!near.above) {
    InNode result = at(*near.below);
    if (near.before) {
      const Seconds rise = (start_of(*near.below) - start_of(*near.before)) /
                           (near.below->ranks - near.before->ranks);
      const Seconds added = std::max(rise, Seconds()) * (ranks - near.below->ranks);
      result.time += added;
      result.start += added;
    }
    return result;
  }
  if (!near.below) return at(*near.above);
  const InNode low = at(*near.below);
  if (near.below->ranks == ranks) return low;
  const InNode high = at(*near.above);
  const double weight = log_weight(ranks, near.below->ranks, near.above->ranks);
  const auto between = [&](Seconds a, Seconds b) { return a * (1 - weight) + b * weight; };
  return {between(low.time, high.time), between(low.start, high.start), {}, 0};
}

// Nobody measured a rarer kind on every machine: what moves its bytes alike stands in for it.
CollectiveKind measured_kind(CollectiveKind kind, const HardwareProfile& hardware) {
  const auto known = [&](CollectiveKind k) {
    const auto is_k = [&](const auto& figure) { return figure.kind == k; };
    return std::any_of(hardware.collective_tables.begin(), hardware.collective_tables.end(),
                       is_k) ||
           std::any_of(hardware.collectives.begin(), hardware.collectives.end(), is_k);
  };
  if (known(kind)) return kind;
  return known(CollectiveKind::all_gather) ? CollectiveKind::all_gather
                                           : CollectiveKind::all_reduce;
}

InNode in_node_as_measured(CollectiveKind kind, Bytes bytes, int ranks,
                           const HardwareProfile& hardware) {
  if (ranks <= 1) return {};
  const CollectiveKind measured = measured_kind(kind, hardware);
  const auto tables = neighbours(hardware.collective_tables, measured, ranks);
  const auto fits = neighbours(hardware.collectives, measured, ranks);
  QPLAN_CHECK(tables.any() || fits.any(), "every profile has a fit of all_gather or all_reduce");
  const CollectiveFit* fit = fits.below ? fits.below : fits.above;
  const bool assumed = measured != kind || (fit && fit->assumed);
  const double fit_error = fit ? fit->error : hardware.errors.collective_table;
  InNode result = tables.any() ? read_figures(tables, kind, bytes, ranks)
                               : read_figures(fits, kind, bytes, ranks);
  const bool from_table = tables.below && tables.below->ranks == ranks;
  result.source = assumed      ? PriceSource::assumed
                  : from_table ? PriceSource::table
                               : PriceSource::formula;
  result.error = from_table && !assumed ? hardware.errors.collective_table : fit_error;
  return result;
}

// What a pair reaches of PCIe, which passes no third GPU's root port: 0.6 to 0.8
// (docs/reference/physics.md 1.7).
constexpr double kPairOfPcie = 0.7;

// A ring over PCIe, where a node has no NVLink and nothing was measured: each rank sends and
// receives at once, at what rings reach of PCIe while all GPUs use it, by the faster of NCCL's
// protocols.
// An all-to-all is one hop of messages.
InNode over_pcie(CollectiveKind kind, Bytes bytes, int ranks, const HardwareProfile& hardware) {
  const double around = ranks - 1;
  const double hops = kind == CollectiveKind::all_to_all   ? 1
                      : kind == CollectiveKind::all_reduce ? 2 * around
                                                           : around;
  const Interconnect& link = hardware.link;
  const double share =
      ranks == 2 ? std::max(link.ring_share_of_pcie, kPairOfPcie) : link.ring_share_of_pcie;
  const Seconds transfer = bytes * bus_factor(kind, ranks) / (pcie_rate(link) * share);
  Seconds best(1e30);
  for (const NcclProtocol& p : hardware.nccl.ring) {
    if (!p.pcie_hop) continue;
    best = std::min(best, p.base + *p.pcie_hop * hops + transfer / p.bandwidth);
  }
  return {best, best - transfer, PriceSource::assumed, hardware.errors.pcie};
}

// Whether what was measured is an all-reduce that the NVLink switch added up (NVLS). A machine that
// cannot do so reduces around a ring: a reduce-scatter, then an all-gather (H200: 367 GB/s in place
// of 481, stas00/ml-engineering).
bool measured_in_switch(CollectiveKind kind, int ranks, const HardwareProfile& hardware) {
  const Interconnect& link = hardware.link;
  return kind == CollectiveKind::all_reduce && !link.over_pcie() &&
         link.in_switch_above_ranks > 0 && ranks > link.in_switch_above_ranks;
}

InNode in_node(CollectiveKind kind, Bytes bytes, int ranks, const HardwareProfile& hardware) {
  if (hardware.collectives.empty() && hardware.collective_tables.empty()) {
    return ranks <= 1 ? InNode{} : over_pcie(kind, bytes, ranks, hardware);
  }
  const InNode measured = in_node_as_measured(kind, bytes, ranks, hardware);
  if (hardware.link.nvls || !measured_in_switch(kind, ranks, hardware)) return measured;
  InNode ring = in_node_as_measured(CollectiveKind::reduce_scatter, bytes, ranks, hardware);
  const InNode gather = in_node_as_measured(CollectiveKind::all_gather, bytes, ranks, hardware);
  ring.time = std::max(ring.time + gather.time, measured.time);
  ring.start = std::max(ring.start + gather.start, measured.start);
  return ring;
}

// Bandwidth between nodes that one group has in one node: its ranks' NICs, or its part of the
// node's NICs where groups share them.
BytesPerSecond network_bandwidth(const GroupShape& group, double efficiency,
                                 const Interconnect& link) {
  const double nics_per_gpu = static_cast<double>(link.nics_per_node) / link.gpus_per_node;
  const double nics_of_domain = nics_per_gpu * link.nvlink_domain;
  const double own = group.ranks_per_node * std::max(1.0, nics_per_gpu);
  const double part = nics_of_domain / group.concurrent_groups;
  return link.nic * (std::min(own, part) * efficiency / link.oversubscription);
}

// What a pod's links to others take to carry `bytes` as often as `load` says; nothing where no byte
// takes them.
Seconds between_pods(Bytes bytes, double load, double efficiency, const Interconnect& link) {
  const double nics_per_gpu = static_cast<double>(link.nics_per_node) / link.gpus_per_node;
  return bytes * load / (link.nic * (nics_per_gpu * efficiency));
}

// Bytes that enter each node of the group, the same that leave it. A ring's edge between two nodes
// carries what every other edge does: the published bus bandwidths of 4 nodes, 365-382 of 400 GB/s,
// count it so. In an all-to-all each rank's data for ranks elsewhere leaves the node.
Bytes network_bytes(CollectiveKind kind, Bytes bytes, const GroupShape& group) {
  if (kind != CollectiveKind::all_to_all) return bytes * bus_factor(kind, group.size);
  const double inside = group.ranks_per_node;
  return bytes * (inside * (group.size - inside) / group.size);
}

// Hops that a collective's bytes take one after the other.
struct Steps {
  double network = 0, inside = 0;  // between nodes, inside one
};

Steps ring_steps(CollectiveKind kind, const GroupShape& group) {
  const double around = group.size - 1;
  if (kind == CollectiveKind::all_reduce) {
    const double network = std::min(2.0 * group.nodes, 2 * around);
    return {network, 2 * around - network};
  }
  const double network = group.nodes - 1;
  return {network, around - network};
}

// Up the tree and down again: chains inside a node, a binary tree between nodes.
Steps tree_steps(const GroupShape& group) {
  return {2 * portable::log2(static_cast<double>(group.nodes)), 2.0 * (group.ranks_per_node - 1)};
}

// `calls` of the same bytes in all: each begins anew.
Seconds fastest(const std::array<NcclProtocol, 3>& protocols, Steps steps, double calls,
                Seconds transfer, const Interconnect& link) {
  Seconds best(1e30);
  for (const NcclProtocol& p : protocols) {
    if (link.simple_only && &p != &protocols.back()) continue;
    if (link.over_pcie() && !p.pcie_hop) continue;
    const Seconds hop = link.over_pcie() ? *p.pcie_hop : p.nvlink_hop;
    const Seconds latency =
        p.base + hop * steps.inside + link.inter_node_latency * (p.network_hop * steps.network);
    best = std::min(best, latency * calls + transfer / p.bandwidth);
  }
  return best;
}

// NCCL takes the fastest of its algorithms and protocols. Bytes go at the pace of the slowest kind
// of link: inside a node, between nodes, between pods.
Seconds ring_or_tree_time(const Collective& work, const GroupShape& group,
                          const HardwareProfile& hardware) {
  const Interconnect& link = hardware.link;
  const InNode node = in_node(work.kind, work.bytes, group.ranks_per_node, hardware);
  const Bytes on_edge = network_bytes(work.kind, work.bytes, group);
  const Seconds network = on_edge / network_bandwidth(group, link.nic_efficiency, link);
  const Seconds pods = between_pods(on_edge, group.pods.edge, link.nic_efficiency, link);
  const Seconds transfer = std::max({network, pods, node.time - node.start});
  const Steps around = ring_steps(work.kind, group);
  const Seconds ring = fastest(hardware.nccl.ring, around, work.calls, transfer, link);
  if (work.kind != CollectiveKind::all_reduce) return ring;
  return std::min(ring, fastest(hardware.nccl.tree, tree_steps(group), work.calls, transfer, link));
}

// How many of the tokens that keep to some groups of ranks want a node: one that lies in a group
// does with the group; of one that holds several, some are chosen (hypergeometric).
double node_share_in_groups(const Collective& work, const GroupShape& group) {
  const double n = group.ranks_per_node;
  const auto all = as_double(work.groups), chosen = as_double(work.groups_of_token);
  const double wanted = work.rank_share * all / chosen;  // of a chosen group's ranks
  const double of_node = all * n / group.size;           // groups that a node holds
  if (of_node <= 1) return chosen / all * (1 - portable::pow(1 - wanted, n));
  double share = 0;
  const auto choose = [](double from, double k) {
    return portable::lgamma(from + 1) - portable::lgamma(k + 1) - portable::lgamma(from - k + 1);
  };
  for (double j = 1; j <= std::min(of_node, chosen); ++j) {
    if (chosen - j > all - of_node) continue;
    const double likely =
        portable::exp(choose(of_node, j) + choose(all - of_node, chosen - j) - choose(all, chosen));
    share += likely * (1 - portable::pow(1 - wanted, j * n / of_node));
  }
  return share;
}

// Copies that go to nodes / copies that go to ranks. An expert-parallel library sends a token once
// to a node, where it is copied on to those of the n ranks that want it: with a share p of ranks
// wanting it, a node does with 1 - (1 - p)^n (DeepEP README; the hypergeometric count differs by
// 1%). Ranks side by side fill as few nodes as they can.
double node_copies(const Collective& work, const GroupShape& group) {
  if (!work.expert_parallel_library || work.rank_share <= 0) return 1;
  const double n = group.ranks_per_node;
  if (work.neighbours) return std::max(1 / n, 1 / (work.rank_share * group.size));
  if (work.groups > 1) return node_share_in_groups(work, group) / (n * work.rank_share);
  return (1 - portable::pow(1 - work.rank_share, n)) / (n * work.rank_share);
}

Seconds all_to_all_time(const Collective& work, const GroupShape& group,
                        const HardwareProfile& hardware) {
  const Interconnect& link = hardware.link;
  const bool library = work.expert_parallel_library;
  const ExpertLibrary& experts = hardware.expert_library;
  const double efficiency =
      library ? experts.nic_efficiency : link.nic_efficiency * link.all_to_all_nic_share;
  // A library's copies all pass NVLink, those from other nodes too.
  const double part = library ? 1 : static_cast<double>(group.ranks_per_node) / group.size;
  const InNode node = in_node(work.kind, work.bytes * part, group.ranks_per_node, hardware);
  const Seconds inside = (node.time - node.start) / (library ? experts.nvlink_share : 1);
  const double copies = node_copies(work, group);
  const Seconds network =
      std::max(network_bytes(work.kind, work.bytes, group) * copies /
                   network_bandwidth(group, efficiency, link),
               between_pods(work.bytes * copies, group.pods.exchange, efficiency, link));
  const Seconds start = library ? experts.start : node.start;
  // What a library takes from other nodes it copies on, one after the other as far as a step shows:
  // Qwen3-30B with EP16 on 2 nodes of H100 needs 0.76 ms an exchange (24.7 s a step with HybridEP,
  // 41.25 s with NCCL; Megatron-Bridge), 0.35 ms of network and 0.35 ms of NVLink; DeepEP reaches
  // 50-75% of its standalone rate in a step (deepseek-ai/profile-data).
  const Seconds transfer = library ? inside + network : std::max(inside, network);
  return start + link.inter_node_latency + transfer;
}

Price library_in_node(const InNode& node, const HardwareProfile& hardware) {
  const ExpertLibrary& experts = hardware.expert_library;
  const Seconds transfer = (node.time - node.start) / experts.nvlink_share;
  return {experts.start + transfer, PriceSource::formula, hardware.errors.network};
}

}  // namespace

double bus_factor(CollectiveKind kind, int ranks) {
  if (ranks <= 1) return 0;
  const double n = ranks;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all:
      return (n - 1) / n;
    case CollectiveKind::broadcast:
      return 1;
  }
  return 0;
}

Price collective_price(const Collective& work, const GroupShape& group,
                       const HardwareProfile& hardware) {
  if (group.size <= 1 || work.bytes <= Bytes()) return {Seconds(), PriceSource::formula, 0};
  if (group.nodes <= 1) {
    const InNode node = in_node(work.kind, work.bytes, group.size, hardware);
    if (work.expert_parallel_library) return library_in_node(node, hardware);
    return {node.time, node.source, node.error};
  }
  const bool to_all = work.kind == CollectiveKind::all_to_all;
  Seconds time =
      to_all ? all_to_all_time(work, group, hardware) : ring_or_tree_time(work, group, hardware);
  if (!work.expert_parallel_library) {
    // The tuner's latencies leave out what a launch takes; leaving a node is no shortcut.
    const int together = std::min(group.size, hardware.link.nvlink_domain);
    time = std::max(time, in_node(work.kind, work.bytes, together, hardware).time);
  }
  return {time, PriceSource::formula,
          to_all ? hardware.errors.network_all_to_all : hardware.errors.network};
}

Seconds ring_in_nodes(const Collective& work, const GroupShape& group,
                      const HardwareProfile& hardware) {
  const bool ring = work.kind != CollectiveKind::all_to_all && !work.expert_parallel_library;
  if (!ring || group.nodes <= 1 || group.ranks_per_node <= 1) return {};
  const InNode node = in_node(work.kind, work.bytes, group.ranks_per_node, hardware);
  return (node.time - node.start) *
         (bus_factor(work.kind, group.size) / bus_factor(work.kind, group.ranks_per_node));
}

Price send_recv_price(Bytes bytes, bool crosses_nodes, const HardwareProfile& hardware,
                      double pod_load) {
  if (bytes <= Bytes()) return {Seconds(), PriceSource::formula, 0};
  const Interconnect& link = hardware.link;
  if (!crosses_nodes) {
    return {link.message_start + bytes / link.message, PriceSource::formula,
            hardware.errors.network};
  }
  // Every GPU of the node sends to its neighbour at the same time.
  const double nics = std::min(1.0, static_cast<double>(link.nics_per_node) / link.gpus_per_node);
  const BytesPerSecond rate = link.nic * (nics * link.nic_efficiency / link.oversubscription);
  const Seconds pods = between_pods(bytes, pod_load, link.nic_efficiency, link);
  return {link.inter_node_latency + std::max(bytes / rate, pods), PriceSource::formula,
          hardware.errors.network};
}

}  // namespace qplan
