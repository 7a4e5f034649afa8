// What a file changes of the machine that it extends changes prices: figures that hang together go
// with each other, and what the file itself says comes before what lies below.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "costmodel/price/price.h"
#include "costmodel/profiles/hardware.h"
#include "tests/complaint.h"
#include "tests/costmodel/machine.h"
#include "tests/temporary_folder.h"

using namespace qplan;

namespace {

HardwareProfile loaded(const std::string& json) {
  const TemporaryFolder folder;
  write_file_atomically(folder.file("rig.json"), json);
  return load_hardware(folder.file("rig.json"));
}

}  // namespace

TEST_CASE("collectives over another NVLink go by its rate, as H800's do of H100's") {
  const auto with_rate = [&](const char* below, double rate) {
    return loaded(
        fmt::format(R"({{"extends": "{}", "link": {{"nvlink_gb_per_s": {}}}}})", below, rate));
  };
  const HardwareProfile cut = with_rate("h100-sxm", 200), h800 = machine("h800");
  REQUIRE(cut.collectives.size() == h800.collectives.size());
  for (std::size_t i = 0; i < cut.collectives.size(); ++i) {
    CHECK(cut.collectives[i].alpha == h800.collectives[i].alpha);
    CHECK(cut.collectives[i].bandwidth / h800.collectives[i].bandwidth ==
          doctest::Approx(1).epsilon(0.01));  // its file rounds
  }
  CHECK(cut.collective_tables.empty());
  Seconds before(1e9);
  for (const double rate : {150.0, 200.0, 300.0, 450.0, 900.0}) {
    CAPTURE(rate);
    const Seconds time = collective_price({.kind = CollectiveKind::all_reduce, .bytes = mib(256)},
                                          {8, 8, 1, 1}, with_rate("h100-sxm", rate))
                             .time;
    CHECK(time < before);
    before = time;
  }
  CHECK(with_rate("h200-sxm-measured", 900).link.message.value() ==
        doctest::Approx(2 * machine("h200-sxm-measured").link.message.value()));
  // Times over PCIe say nothing of NVLink.
  const std::string why = complaint_of([&] { with_rate("rtx-pro-6000", 450); });
  CHECK(why.find("collectives.fits") != std::string::npos);
}

TEST_CASE("fits of a file's own are read, and not tables of the profile below") {
  const HardwareProfile h100 = machine("h100-sxm");
  const HardwareProfile products =
      loaded(R"({"extends": "h100-sxm", "gemm": {"bf16": {"efficiency": 0.4}}})");
  const Gemm square{.m = 8192, .n = 8192, .k = 8192};
  CHECK(gemm_price(square, products).time > gemm_price(square, h100).time * 1.5);
  CHECK(products.collective_tables.size() == h100.collective_tables.size());
  const HardwareProfile links = loaded(R"({"extends": "h100-sxm", "collectives": {"fits": [
      {"kind": "all_gather", "ranks": 8, "alpha_us": 10, "gb_per_s": 90,
       "gamma_ns_per_sqrt_byte": 5, "error": 0.08}]}})");
  const Collective gather{.kind = CollectiveKind::all_gather, .bytes = mib(256)};
  const GroupShape node{8, 8, 1, 1};
  CHECK(collective_price(gather, node, links).time > collective_price(gather, node, h100).time * 3);
  CHECK(links.gemm_tables.size() == h100.gemm_tables.size());
  // How long a product keeps its rate is said of both.
  const HardwareProfile sustained =
      loaded(R"({"extends": "h100-sxm", "gemm": {"bf16": {"sustain": 0.5}}})");
  CHECK(sustained.gemm_tables.size() == h100.gemm_tables.size());
}

TEST_CASE("a GPU of other memory leaves the same share of it to programs") {
  const HardwareProfile h100 = machine("h100-sxm");
  for (const int gb : {64, 80, 160}) {
    CAPTURE(gb);
    const HardwareProfile p =
        loaded(fmt::format(R"({{"extends": "h100-sxm", "gpu": {{"memory_gb": {}}}}})", gb));
    CHECK(p.gpu.usable_memory / p.gpu.memory ==
          doctest::Approx(h100.gpu.usable_memory / h100.gpu.memory));
  }
  const HardwareProfile said =
      loaded(R"({"extends": "h100-sxm", "gpu": {"memory_gb": 96, "usable_memory_gib": 90}})");
  CHECK(said.gpu.usable_memory == gib(90));
}
