#include "costmodel/profiles/hardware.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "costmodel/price/price.h"
#include "costmodel/profiles/other_names.h"
#include "models/error.h"
#include "tests/complaint.h"

using namespace qplan;

namespace {

Json h100() {
  return load_hardware("h100-sxm").source;
}

std::string complaint(const Json& json) {
  return complaint_of([&] { read_hardware(json, "profile"); });
}

std::string complaint_about_name(const std::string& name) {
  return complaint_of([&] { load_hardware(name); });
}

bool has_part(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every built-in profile loads under its own name and states its sources") {
  CHECK(hardware_names().size() == 37);
  for (const std::string& name : hardware_names()) {
    CAPTURE(name);
    const HardwareProfile profile = load_hardware(name);
    CHECK(profile.name == name);
    CHECK_FALSE(profile.description.empty());
    for (const char* section : {"gpu", "link", "host", "grouped_gemm", "attention"}) {
      CHECK(profile.source.at(section).contains("source"));
    }
    // Rings over PCIe are priced by a generation's figures where nothing was measured.
    const bool over_pcie = profile.link.over_pcie() && profile.collectives.empty();
    CHECK((over_pcie || profile.source.at("collectives").contains("source")));
    for (const auto& [where, slowdown] : profile.source.at("contention").items()) {
      CHECK(slowdown.contains("source"));
    }
    for (const auto& [precision, fit] : profile.source.at("gemm").items()) {
      CHECK(fit.contains("source"));
    }
  }
}

TEST_CASE("what is sold is more than a process may use, and NVLink is faster than a NIC") {
  for (const std::string& name : hardware_names()) {
    CAPTURE(name);
    const HardwareProfile p = load_hardware(name);
    CHECK(in_gib(p.gpu.usable_memory) * kGiB < p.gpu.memory.value() * 1.075);  // GB as sold: GiB
    CHECK((p.link.over_pcie() || p.link.nvlink > p.link.nic));
    CHECK(p.link.nvlink_domain * p.link.nics_per_node > 0);
    CHECK(p.gpu.matmul.at(Precision::fp16) == p.gpu.matmul.at(Precision::bf16));
    CHECK(p.gemm.at(Precision::bf16).sustain <= 1);
    CHECK(p.attention.front().head_dim <= 128);
  }
}

// Measured on 2 H200 (docs/evidence/archive/issue6-eighth-round.md): a message that a network
// bounds keeps its multiprocessors, if little of the memory, and compute does not make it slower.
TEST_CASE("compute slows beside a network's messages, not more than beside NVLink's; they do not") {
  for (const std::string& name : hardware_names()) {
    CAPTURE(name);
    const Contention c = load_hardware(name).contention;
    CHECK(c.network.compute >= 1.17);
    CHECK(c.network.compute <= c.nvlink.compute);
    CHECK(c.network.comm == 1);
    CHECK(c.nvlink.comm > 1);
  }
}

// SimuMax's A100 at 300 W ran at 0.78 of what it did at 400 W.
TEST_CASE("an H100 held to 500 W loses what the A100's law of power says") {
  const HardwareProfile whole = load_hardware("h100-sxm"),
                        held = load_hardware("h100-96gb-hbm2e-500w");
  const double power = std::log(0.78) / std::log(300.0 / 400);
  const double share = std::pow(held.gpu.tdp_watt / whole.gpu.tdp_watt, power);
  for (const Precision p : {Precision::bf16, Precision::fp8}) {
    CHECK(held.gemm.at(p).sustain ==
          doctest::Approx(whole.gemm.at(p).sustain * share).epsilon(0.01));
  }
  // cuDNN's attention is at the limit of 700 W as well.
  REQUIRE(held.attention.size() == whole.attention.size());
  for (std::size_t i = 0; i < held.attention.size(); ++i) {
    CHECK(held.attention[i].sustain ==
          doctest::Approx(whole.attention[i].sustain * share).epsilon(0.01));
  }
}

// The A10's and L40S's tensor cores add fp32 at full rate, GeForce's and the A10G's at half.
TEST_CASE("what the data sheets of cards for PCIe and of AMD say") {
  const auto bf16 = [](const char* name) {
    return load_hardware(name).gpu.matmul.at(Precision::bf16).value() / 1e12;
  };
  CHECK(bf16("rtx-4090") == doctest::Approx(165.2));
  CHECK(bf16("rtx-5090") == doctest::Approx(209.5));
  CHECK(bf16("l40s") == doctest::Approx(362.05));
  CHECK(bf16("a10") == doctest::Approx(125));
  CHECK(bf16("a10g") == doctest::Approx(70));
  CHECK(bf16("mi300x") == doctest::Approx(1307.4));
  CHECK(bf16("mi325x") == bf16("mi300x"));  // one chip, two limits of power
  CHECK(bf16("mi355x") == doctest::Approx(2516.6));
  CHECK_FALSE(load_hardware("a10").gpu.matmul.contains(Precision::fp8));
  CHECK_FALSE(load_hardware("a10").gemm.contains(Precision::fp8));
  CHECK(load_hardware("mi355x").gpu.matmul.contains(Precision::mxfp8));
  CHECK_FALSE(load_hardware("mi300x").gpu.matmul.contains(Precision::mxfp8));
  for (const char* card : {"rtx-4090", "rtx-5090", "l40s", "l40s-no-p2p", "rtx-6000-ada",
                           "rtx-pro-6000", "a10", "a10g", "a100-pcie"}) {
    CAPTURE(card);
    const HardwareProfile p = load_hardware(card);
    CHECK(p.link.over_pcie());
    CHECK(p.link.nvlink_domain == p.link.gpus_per_node);
    CHECK_FALSE(p.link.nvls);
    CHECK(p.gpu.fp8_needs_transposes);
  }
}

// ROCm/rocm-blogs, measuring-max-achievable-flops-part2: 708, 843 in bf16, 1273 and 1519 in fp8.
TEST_CASE("an MI300X multiplies large matrices at most of the best that AMD found, no faster") {
  const auto rate = [](const char* name, DType dtype) {
    const HardwareProfile p = load_hardware(name);
    const Gemm product{.m = 16384, .n = 16384, .k = 16384, .dtype = dtype};
    return flops(Work(product)).value() / gemm_price(product, p).time.value() / 1e12;
  };
  for (const auto& [name, dtype, best] : {std::tuple{"mi300x", DType::bf16, 708.0},
                                          {"mi300x", DType::fp8, 1273.0},
                                          {"mi325x", DType::bf16, 843.0},
                                          {"mi325x", DType::fp8, 1519.0}}) {
    CAPTURE(name);
    CHECK(rate(name, dtype) < best);
    CHECK(rate(name, dtype) > 0.85 * best);
  }
}

// Llama 70B's shapes: SemiAnalysis, MI300X vs H100 vs H200, part 1 (December 2024). Others: Azure's
// ND MI300X v5 (samuel-bohman/AI-benchmarking-guide).
TEST_CASE("an MI300X multiplies training's matrices as torch and hipBLASLt do") {
  const HardwareProfile p = load_hardware("mi300x");
  const auto rate = [&p](std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) {
    const Gemm product{.m = m, .n = n, .k = k, .dtype = dtype};
    return flops(Work(product)).value() / gemm_price(product, p).time.value() / 1e12;
  };
  const auto mean = [&rate](DType dtype) {
    return (rate(16384, 1280, 8192, dtype) + rate(16384, 8192, 1024, dtype) +
            rate(16384, 7168, 8192, dtype) + rate(16384, 8192, 3584, dtype) +
            rate(8192, 8192, 8192, dtype)) /
           5;
  };
  CHECK(mean(DType::bf16) / p.gemm.at(Precision::bf16).sustain ==
        doctest::Approx(620).epsilon(0.02));
  CHECK(mean(DType::fp8) == doctest::Approx(990).epsilon(0.04));
  for (const auto& [side, measured] : {std::pair{4096, 955.17}, std::pair{8192, 1159.23},
                                       std::pair{16384, 1015.1}, std::pair{32768, 1029.14}}) {
    CAPTURE(side);
    CHECK(rate(side, side, side, DType::fp8) == doctest::Approx(measured).epsilon(0.09));
  }
}

TEST_CASE(
    "machines that clouds rent are the GPUs that they have, on their own networks, known less") {
  for (const auto& [rented, own] :
       std::vector<std::pair<std::string, std::string>>{{"aws-p4d", "a100-40gb-sxm"},
                                                        {"aws-p5", "h100-sxm"},
                                                        {"aws-p5en", "h200-sxm"},
                                                        {"aws-p6-b200", "b200"},
                                                        {"aws-p6-b300", "b300"},
                                                        {"gcp-a3-high", "h100-sxm"},
                                                        {"gcp-a3-mega", "h100-sxm"},
                                                        {"gcp-a3-ultra", "h200-sxm"}}) {
    CAPTURE(rented);
    const HardwareProfile there = load_hardware(rented), here = load_hardware(own);
    CHECK(there.gpu.name == here.gpu.name);
    CHECK(there.gemm.at(Precision::bf16).sustain == here.gemm.at(Precision::bf16).sustain);
    CHECK(there.link.nvlink == here.link.nvlink);
    const auto node = [](const Interconnect& link) { return link.nic * link.nics_per_node; };
    CHECK(node(there.link) * there.link.nic_efficiency <=
          node(here.link) * here.link.nic_efficiency * 1.05);
    CHECK(there.errors.network > here.errors.network);
    CHECK(there.errors.launch > here.errors.launch);
  }
  // NVIDIA's switches and AWS's: what DeepEP writes to, and what it does not.
  CHECK_FALSE(load_hardware("h100-sxm").link.simple_only);
  CHECK(load_hardware("aws-p5").link.simple_only);
}

TEST_CASE("a profile that was written before it had an error of launching has the usual one") {
  Json whole = load_hardware("h100-sxm").source;
  whole["errors"].erase("launch");
  CHECK(read_hardware(whole, "old").errors.launch == load_hardware("h100-sxm").errors.launch);
}

TEST_CASE("the H100 has the data sheet's figures") {
  const HardwareProfile p = load_hardware("h100-sxm");
  CHECK(p.gpu.matmul.at(Precision::bf16) == tflops(989));
  CHECK(p.gpu.matmul.at(Precision::fp8) == tflops(1979));
  CHECK(p.gpu.memory_bandwidth == gb_per_s(3350));
  CHECK(p.gpu.usable_memory == gib(79.1));
  CHECK(p.link.nic == gb_per_s(50));
  CHECK_FALSE(p.gpu.matmul.contains(Precision::nvfp4));
}

TEST_CASE("a GB200 rack is one NVLink domain of 72 over trays of 4") {
  const HardwareProfile p = load_hardware("gb200");
  CHECK(p.link.nvlink_domain == 72);
  CHECK(p.link.gpus_per_node == 4);
}

TEST_CASE("built-in tables have ascending axes, whole grids and times that never fall") {
  for (const char* name :
       {"a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200", "gb200", "l40s-no-p2p", "rtx-pro-6000"}) {
    CAPTURE(name);
    const HardwareProfile p = load_hardware(name);
    // The A100 has no fp8; of the B200 fp8 alone (tables/NOTICE.md).
    CHECK(p.gemm_tables.size() == (p.gpu.compute_capability == 80 || p.name == "b200" ? 1 : 2));
    CHECK(p.collective_tables.size() >= 8);
    for (const GemmTable& table : p.gemm_tables) {
      CHECK(table.utilisation.size() == table.m.size() * table.n.size() * table.k.size());
      for (const float u : table.utilisation) CHECK_FALSE(u > 1.0F);
    }
  }
}

TEST_CASE("a profile written back and read again is the same profile") {
  const HardwareProfile once = read_hardware(h100(), "profile");
  const HardwareProfile twice = read_hardware(once.source, "profile");
  CHECK(once.source == twice.source);
  CHECK(once.gemm_tables.size() == twice.gemm_tables.size());
}

TEST_CASE("a misspelt name offers the nearest") {
  CHECK(has_part(complaint_about_name("h100-smx"), "h100-sxm"));
  CHECK(has_part(complaint_about_name("no/such/profile.json"), "no/such"));
}

TEST_CASE("names of families, of several machines and of none") {
  CHECK(load_hardware("h100").name == "h100-sxm");
  CHECK(load_hardware("H200").name == "h200-sxm");
  CHECK(load_hardware("a100").name == "a100-80gb-sxm");
  CHECK(load_hardware("4090").name == "rtx-4090");
  CHECK(complaint_about_name("hopper") ==
        "hardware 'hopper' may be several machines; choose one of h100-sxm, h100-pcie, h200-sxm, "
        "h800, h20");
  for (const char* name :
       {"tpu-v5p", "v6e-8", "trn2", "trainium", "gaudi3", "ascend-910b", "910b"}) {
    CAPTURE(name);
    CHECK(has_part(complaint_about_name(name), "is refused: "));
  }
  CHECK(has_part(complaint_about_name("v100"), "is unknown"));
}

TEST_CASE("other names are of machines that there are, and of no machine's own name") {
  const std::vector<std::string> machines = hardware_names();
  const auto is_machine = [&](const std::string& name) {
    return std::find(machines.begin(), machines.end(), name) != machines.end();
  };
  std::set<std::string> seen;
  for (const OtherName& other : other_names()) {
    CAPTURE(other.name);
    CHECK(seen.insert(other.name).second);
    CHECK_FALSE(is_machine(other.name));
    CHECK(other.machines.empty() != other.why.empty());
    for (const std::string& machine : other.machines) CHECK(is_machine(machine));
    if (!other.name.ends_with('*')) continue;
    const std::string_view begin = std::string_view(other.name).substr(0, other.name.size() - 1);
    for (const std::string& machine : machines) CHECK_FALSE(machine.starts_with(begin));
  }
}

TEST_CASE("hostile profiles get one clear sentence") {
  SUBCASE("an unknown key, with the nearest known one") {
    Json json = h100();
    json["gpu"]["memory_gbs_per_s"] = 1;
    const std::string text = complaint(json);
    CHECK(has_part(text, "profile.gpu"));
    CHECK(has_part(text, "memory_gb_per_s"));
  }
  SUBCASE("a missing key") {
    Json json = h100();
    json["gpu"].erase("memory_gb");
    CHECK(has_part(complaint(json), "profile lacks gpu.memory_gb; "));
  }
  SUBCASE("a negative rate") {
    Json json = h100();
    json["link"]["nic_gb_per_s"] = -50;
    CHECK(has_part(complaint(json), "profile.link.nic_gb_per_s"));
  }
  SUBCASE("a zero peak") {
    Json json = h100();
    json["gpu"]["matmul_bf16_tflops"] = 0;
    CHECK(has_part(complaint(json), "matmul_bf16_tflops"));
  }
  SUBCASE("a figure without a source") {
    Json json = h100();
    json["host"].erase("source");
    CHECK(has_part(complaint(json), "profile lacks host.source; "));
    json["host"]["source"] = "";
    CHECK(has_part(complaint(json), "profile.host.source"));
  }
  SUBCASE("more usable memory than there is") {
    Json json = h100();
    json["gpu"]["usable_memory_gib"] = 800;
    CHECK(has_part(complaint(json), "usable_memory_gib"));
  }
  SUBCASE("a table that is not built in") {
    Json json = h100();
    json["gemm_table"] = "h100";
    CHECK(has_part(complaint(json), "h100-sxm"));
  }
  SUBCASE("a collective nobody knows") {
    Json json = h100();
    json["collectives"]["fits"][0]["kind"] = "all_shuffle";
    CHECK(has_part(complaint(json), "profile.collectives.fits[0].kind"));
    CHECK(has_part(complaint(json), "all_gather"));
  }
  SUBCASE("sections of another type") {
    for (const char* key : {"gpu", "link", "host", "gemm", "attention", "collectives"}) {
      CAPTURE(key);
      Json json = h100();
      json[key] = 3;
      CHECK(has_part(complaint(json), key));
    }
  }
  SUBCASE("no precision at all") {
    Json json = h100();
    json["gemm"] = Json::object();
    CHECK(has_part(complaint(json), "profile lacks gemm.bf16.efficiency, "));
  }
  SUBCASE("not an object") {
    CHECK(complaint(Json::array()) == "profile must be an object, is a list");
  }
}

TEST_CASE("a profile may carry its own measured tables, and bad ones are refused") {
  Json json = h100();
  json.erase("gemm_table");
  json.erase("collective_table");
  json["tables"] = {
      {"gemm",
       {{{"dtype", "bf16"},
         {"m", {128, 256}},
         {"n", {64}},
         {"k", {64, 128}},
         {"utilisation_permille", {100, 200, 0, 400}}}}},
      {"collectives",
       {{{"kind", "all_reduce"}, {"ranks", 8}, {"bytes", {1, 2}}, {"microseconds", {5, 6}}}}},
      {"source", "measured here"}};
  const HardwareProfile p = read_hardware(json, "profile");
  REQUIRE(p.gemm_tables.size() == 1);
  CHECK(p.gemm_tables[0].utilisation[3] == doctest::Approx(0.4));
  CHECK(std::isnan(p.gemm_tables[0].utilisation[2]));
  CHECK(p.collective_tables[0].times[1] == microseconds(6));

  Json bad = json;
  bad["tables"]["gemm"][0]["m"] = {256, 128};
  CHECK(has_part(complaint(bad), "profile.tables.gemm[0].m"));
  bad = json;
  bad["tables"]["gemm"][0]["utilisation_permille"] = {1, 2, 3};
  CHECK(has_part(complaint(bad), "list of 4 numbers"));
  bad = json;
  bad["tables"]["collectives"][0]["microseconds"] = {6, 5};
  CHECK(has_part(complaint(bad), "never fall"));
  bad = json;
  bad["tables"]["collectives"][0]["bytes"] = {0, 1e300};
  CHECK(has_part(complaint(bad), "ascending"));
}
