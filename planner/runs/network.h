#pragma once
// The network between the nodes of a measured run, as its source describes it in words: "1600 Gbps
// per node (RoCE)", "8x HDR 200Gb/s per node", "RDMA 400 Gb/s per GPU", "8x50 GB/s".

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "costmodel/profiles/hardware.h"
#include "models/words.h"

namespace qplan {

enum class Fabric : std::uint8_t { infiniband, efa, omni_path };  // RoCE is taken for InfiniBand

template <>
struct Words<Fabric> {
  static constexpr std::string_view what = "fabric";
  static constexpr auto table = std::to_array<std::pair<Fabric, std::string_view>>(
      {{Fabric::infiniband, "infiniband"}, {Fabric::efa, "efa"}, {Fabric::omni_path, "omni_path"}});
};

struct NodeNetwork {
  int nics = 0;            // 0: not said
  BytesPerSecond of_node;  // all of them, one direction
  Fabric fabric = Fabric::infiniband;
  int nvlinks = 0;  // of each GPU to the others of its node; 0: the machine's
  bool operator==(const NodeNetwork&) const = default;
};

// Nothing where the words name no rate. Which fabric it is their phrases say (phrases.tsv).
std::optional<NodeNetwork> network_of_words(std::string_view words, int gpus_per_node);

// The machine with that network in place of its own.
void set_network(HardwareProfile& hardware, const NodeNetwork& network);

}  // namespace qplan
