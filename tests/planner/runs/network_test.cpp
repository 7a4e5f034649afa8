#include "planner/runs/network.h"

#include <doctest/doctest.h>

using namespace qplan;

TEST_CASE("a network's words become links and their rate") {
  const auto rate = [](std::string_view words) {
    const auto network = network_of_words(words, 8);
    return network ? network->of_node.value() / 1e9 : 0;
  };
  CHECK(rate("4x Omni-Path 100Gb per node") == doctest::Approx(50));
  CHECK(rate("8x HDR 200Gb/s per node (Selene)") == doctest::Approx(200));
  CHECK(rate("1600 Gbps per node (RoCE)") == doctest::Approx(200));
  CHECK(rate("RDMA 400 Gb/s per GPU") == doctest::Approx(400));
  CHECK(rate("InfiniBand 8x50 GB/s per node") == doctest::Approx(400));
  CHECK(rate("8 x 400 Gb/s") == doctest::Approx(400));
  CHECK(rate("Slingshot-11, 4 x 200Gb/s a node") == doctest::Approx(100));
  CHECK(rate("12.5 GB/s") == doctest::Approx(12.5));
  CHECK(network_of_words("4x Omni-Path 100Gb per node", 8)->nics == 4);
}

TEST_CASE("words without a rate say nothing") {
  for (const auto* words : {"", "NVLink", "n/a (single node)", "8x HDR", "0 Gb/s"}) {
    CAPTURE(words);
    CHECK_FALSE(network_of_words(words, 8).has_value());
  }
}

TEST_CASE("a node with fewer NVLinks carries less inside, and tables of all links go") {
  const HardwareProfile whole = load_hardware("a100-80gb-sxm");
  HardwareProfile third = whole;
  NodeNetwork network = *network_of_words("4x Omni-Path 100Gb per node", 8);
  network.nvlinks = 4;
  set_network(third, network);
  CHECK(third.link.nvlink.value() == doctest::Approx(100e9));
  CHECK(third.link.message.value() == doctest::Approx(whole.link.message.value() / 3));
  CHECK(third.collective_tables.empty());
  CHECK(third.collectives.front().bandwidth.value() ==
        doctest::Approx(whole.collectives.front().bandwidth.value() / 3));
  // As many as the GPU has, or more, change nothing.
  HardwareProfile same = whole;
  network.nvlinks = 12;
  set_network(same, network);
  CHECK(same.link.nvlink == whole.link.nvlink);
  CHECK(same.collective_tables.size() == whole.collective_tables.size());
}

TEST_CASE("a run's network takes the place of the machine's") {
  HardwareProfile machine = load_hardware("a100-80gb-sxm");
  NodeNetwork network = *network_of_words("4x Omni-Path 100Gb per node", 8);
  network.fabric = Fabric::omni_path;
  set_network(machine, network);
  CHECK(machine.link.nics_per_node == 4);
  CHECK(machine.link.nic.value() == doctest::Approx(12.5e9));
  CHECK_FALSE(machine.link.simple_only);
  CHECK(machine.link.nic_efficiency < 0.5);
  network = *network_of_words("EFA 3200 Gb/s per node", 8);
  network.fabric = Fabric::efa;
  set_network(machine, network);
  CHECK(machine.link.nic.value() == doctest::Approx(100e9));  // four links share it
  CHECK(machine.link.simple_only);
}
