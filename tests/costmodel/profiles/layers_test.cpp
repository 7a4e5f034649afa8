// Profiles that extend others: what is merged, what is refused, what is no longer measured.

#include "costmodel/profiles/layers.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>

#include "costmodel/evaluate.h"
#include "costmodel/price/price.h"
#include "models/program/recipe.h"
#include "tests/complaint.h"
#include "tests/costmodel/machine.h"
#include "tests/temporary_folder.h"

using namespace qplan;

namespace {

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Profiles in a folder of their own.
struct Files {
  TemporaryFolder folder;

  std::string write(const std::string& name, const std::string& json) const {
    write_file_atomically(folder.file(name), json);
    return folder.file(name);
  }
  HardwareProfile load(const std::string& json) const {
    return load_hardware(write("rig.json", json));
  }
  std::string complaint(const std::string& json) const {
    return complaint_of([&] { load(json); });
  }
};

// Whether all fits that prices of products, attention and recurrent kernels rest on are assumed.
void check_assumed(const HardwareProfile& p, bool assumed) {
  CHECK(p.gemm.at(Precision::bf16).assumed == assumed);
  CHECK(p.gemm.at(Precision::fp8).assumed == assumed);
  CHECK(p.grouped_gemm.assumed == assumed);
  for (const AttentionFit& fit : p.attention) CHECK(fit.assumed == assumed);
  for (const AttentionFit& fit : p.flash2_attention) CHECK(fit.assumed == assumed);
  CHECK(p.delta_rule.assumed == assumed);
  CHECK(p.scan.assumed == assumed);
  for (const CollectiveFit& fit : p.collectives) CHECK(fit.assumed == assumed);
}

}  // namespace

// Figures as each machine's own file had them when it held all of them.
TEST_CASE("built-in machines have all that the profiles below them say") {
  struct Row {
    const char* name;
    double memory_gb_per_s, kernel_launch_us, launch_factor, adam_gparams_per_s;
    double efficiency, k0;  // products in bf16
    double nic_efficiency;
    std::size_t attention_fits;
    int ranks;  // of the largest all-reduce that was fitted
    double gb_per_s;
  };
  const std::array<Row, 11> rows{{
      {"a100-40gb-sxm", 1555, 3, 1.3, 4.0, 0.882, 96, 0.91, 2, 8, 230},
      {"a800-80gb-sxm", 2040, 3, 1.3, 4.0, 0.882, 96, 0.91, 2, 8, 153},
      {"b300", 7670, 3, 1, 4.4, 0.69, 0, 0.94, 4, 8, 792},
      {"gb200", 8000, 3, 1.4, 4.0, 0.662, 0, 0.94, 4, 8, 753},
      {"gb300", 8000, 3, 1.4, 4.0, 0.662, 0, 0.94, 4, 8, 792},
      {"h100-96gb-hbm2e-500w", 2400, 3, 1, 4.4, 0.805, 101, 0.91, 4, 8, 487},
      {"h100-pcie", 2000, 3, 1, 4.4, 0.805, 101, 0.42, 4, 2, 238},
      {"h20", 4000, 3, 1, 4.4, 0.9, 101, 0.91, 1, 8, 487},
      {"h200-sxm", 4800, 3, 1, 4.4, 0.804, 95, 0.91, 4, 8, 509},
      {"h200-sxm-measured", 4800, 0.981, 1, 11.2, 0.804, 95, 0.91, 4, 8, 509},
      {"h800", 3350, 3, 1, 4.4, 0.805, 101, 0.91, 4, 8, 216},
  }};
  for (const Row& row : rows) {
    CAPTURE(std::string(row.name));
    const HardwareProfile& p = machine(row.name);
    const GemmFit& gemm = p.gemm.at(Precision::bf16);
    CHECK(p.gpu.memory_bandwidth == gb_per_s(row.memory_gb_per_s));
    CHECK(p.gpu.kernel_launch == microseconds(row.kernel_launch_us));
    CHECK(p.host.launch_factor == row.launch_factor);
    CHECK(p.host.adam_params_per_s == 1e9 * row.adam_gparams_per_s);
    CHECK(gemm.efficiency == row.efficiency);
    CHECK(gemm.k0 == row.k0);
    CHECK(p.link.nic_efficiency == row.nic_efficiency);
    CHECK(p.attention.size() == row.attention_fits);
    const CollectiveFit* largest = nullptr;
    for (const CollectiveFit& fit : p.collectives) {
      if (fit.kind == CollectiveKind::all_reduce) largest = &fit;  // sorted by ranks
    }
    REQUIRE(largest != nullptr);
    CHECK(largest->ranks == row.ranks);
    CHECK(largest->bandwidth == gb_per_s(row.gb_per_s));
  }
  CHECK(machine("h800").collective_tables.empty());  // taken away: its NVLink is not an H100's
  CHECK(machine("h800").delta_rule.assumed);
  CHECK_FALSE(machine("h100-sxm").delta_rule.assumed);
  CHECK(machine("h200-sxm-measured").gemm_tables.size() == 2);  // its own in place of h200-sxm's
}

TEST_CASE("a whole profile reads as itself again") {
  for (const std::string& name : hardware_names()) {
    CAPTURE(name);
    const Json& source = machine(name).source;
    CHECK_FALSE(source.contains("extends"));
    CHECK(read_hardware(source, "profile").source == source);
  }
}

TEST_CASE("what a generation of GPUs shares is filled in by compute capability") {
  for (const std::string& name : hardware_names()) {
    CAPTURE(name);
    const HardwareProfile& p = machine(name);
    Json bare = p.source;
    for (const char* section : {"nccl", "errors", "expert_library", "stand_in"}) {
      bare.erase(section);
    }
    for (const char* key : {"tf32", "fp32_sums", "adamw", "unaligned_products", "speed_spread",
                            "fp8_needs_transposes"}) {
      bare["gpu"].erase(key);
    }
    for (const char* key : {"dropout", "fixed_order", "sinks"}) bare["attention"].erase(key);
    for (const char* key : {"in_switch_above_ranks", "all_to_all_nic_share"}) {
      bare["link"].erase(key);
    }
    bare["host"].erase("copy_start_us");
    CHECK(bare.dump() != p.source.dump());
    const HardwareProfile filled = read_hardware(bare, "profile");
    CHECK(filled.link.in_switch_above_ranks == p.link.in_switch_above_ranks);
    CHECK(filled.gpu.fp8_needs_transposes == p.gpu.fp8_needs_transposes);
    CHECK(filled.source.at("attention").at("dropout") == p.source.at("attention").at("dropout"));
    CHECK(filled.source.at("nccl") == p.source.at("nccl"));
    // Whose network and processors nobody measured have errors of their own (rented machines).
    const bool own = p.errors.network > machine("h100-sxm").errors.network;
    CHECK((filled.source.at("errors") == p.source.at("errors")) == !own);
  }
  const auto capability = [](int value) {
    Json json = machine("a100-80gb-sxm").source;
    json["gpu"]["compute_capability"] = value;
    json["gpu"].erase("fp8_needs_transposes");
    json["link"].erase("in_switch_above_ranks");
    json["attention"].erase("fixed_order");
    json["errors"].erase("assumed");
    return read_hardware(json, "profile");
  };
  for (const int before_hopper : {70, 80, 89}) {
    CHECK(capability(before_hopper).link.in_switch_above_ranks == 0);
    CHECK_FALSE(capability(before_hopper).attention_options.fixed_order_stored);
  }
  CHECK(capability(90).link.in_switch_above_ranks == 4);
  CHECK(capability(90).gpu.fp8_needs_transposes);
  for (const int blackwell : {100, 103}) {
    CHECK_FALSE(capability(blackwell).gpu.fp8_needs_transposes);
    CHECK(capability(blackwell).link.in_switch_above_ranks == 4);
  }
  // Blackwell's cards for PCIe, and AMD's CDNA: operands one way, no switch that adds.
  for (const int other : {94, 95, 120}) {
    CHECK(capability(other).gpu.fp8_needs_transposes);
    CHECK(capability(other).link.in_switch_above_ranks == 0);
  }
  CHECK(capability(94).errors.assumed > capability(90).errors.assumed);
}

TEST_CASE("objects merge key by key, lists and numbers are replaced, null takes away") {
  const Files files;
  const HardwareProfile p = files.load(R"({
    "extends": "h100-sxm",
    "link": {"nic_gb_per_s": 25, "source": {"nic_gb_per_s": "200 Gb/s"}},
    "attention": {"flex": [{"head_dim": 128, "efficiency": 0.4, "backward_rate": 0.7}]},
    "gpu": {"memory_efficiency_of": {"permute": 0.5, "unpermute": null}},
    "scan": null
  })");
  const HardwareProfile& h100 = machine("h100-sxm");
  CHECK(p.name == "rig");
  CHECK(mentions(p.description, "h100-sxm"));
  CHECK(p.link.nic == gb_per_s(25));
  CHECK(p.link.nvlink == h100.link.nvlink);
  CHECK(p.source["link"]["source"]["nic_gb_per_s"] == "200 Gb/s");
  CHECK(p.source["link"]["source"]["nic_efficiency"] ==
        h100.source["link"]["source"]["nic_efficiency"]);
  REQUIRE(p.flex_attention.size() == 1);
  CHECK(p.flex_attention[0].error == h100.errors.fit);  // it does not say
  CHECK(p.attention.size() == h100.attention.size());
  CHECK(p.gpu.memory_efficiency_of.at(RowwiseKind::permute) == 0.5);
  CHECK_FALSE(p.gpu.memory_efficiency_of.contains(RowwiseKind::unpermute));
  CHECK(p.scan.assumed);
  CHECK(p.gemm_tables.size() == h100.gemm_tables.size());
  check_assumed(machine("h100-sxm"), false);
}

TEST_CASE("a file extends a file beside it, which may extend another") {
  const Files files;
  std::filesystem::create_directory(files.folder.file("machines"));
  files.write("machines/node.json",
              R"({"extends": "h200-sxm", "name": "node", "link": {"nics_per_node": 4}})");
  files.write("machines/cluster.json", R"({"extends": "node.json", "price_per_gpu_hour_usd": 3})");
  const std::string path =
      files.write("rig.json", R"({"extends": "machines/cluster.json", "name": "mine",
                                  "description": "of the lab", "host": {"memory_gb": 500}})");
  const HardwareProfile p = load_hardware(path);
  CHECK(p.name == "mine");
  CHECK(p.description == "of the lab");
  CHECK(p.link.nics_per_node == 4);
  CHECK(p.price_per_gpu_hour == 3);
  CHECK(p.host.memory == Bytes(500e9));
  CHECK(p.gpu.memory_bandwidth == gb_per_s(4800));
  // Whole, it needs none of the files.
  CHECK(read_hardware(p.source, "embedded").source == p.source);
}

TEST_CASE("an extends that leads nowhere gets one clear sentence") {
  const Files files;
  SUBCASE("a name that is not built in, with the nearest") {
    const std::string text = files.complaint(R"({"extends": "h100-smx"})");
    CHECK(mentions(text, "rig.json: extends names no built-in machine"));
    CHECK(mentions(text, "did you mean 'h100-sxm'?"));
  }
  SUBCASE("a generation is no machine") {
    CHECK(mentions(files.complaint(R"({"extends": "hopper"})"), "no built-in machine"));
  }
  SUBCASE("no name") {
    CHECK(mentions(files.complaint(R"({"extends": 3})"), "extends must be a built-in machine's"));
    CHECK(mentions(files.complaint(R"({"extends": null})"), "a file's, is null"));
  }
  SUBCASE("a file that is not there") {
    CHECK(mentions(files.complaint(R"({"extends": "gone.json"})"), "gone.json"));
  }
  SUBCASE("a file that holds no object") {
    files.write("list.json", "[1]");
    CHECK(mentions(files.complaint(R"({"extends": "list.json"})"),
                   "list.json: the file must be an object, is a list"));
  }
  SUBCASE("itself") {
    CHECK(mentions(files.complaint(R"({"extends": "rig.json"})"),
                   "rig.json: a profile cannot extend itself"));
    CHECK(mentions(files.complaint(R"({"extends": "./rig.json"})"), "cannot extend itself"));
  }
  SUBCASE("itself by way of others") {
    files.write("a.json", R"({"extends": "b.json"})");
    files.write("b.json", R"({"extends": "rig.json"})");
    const std::string text = files.complaint(R"({"extends": "a.json"})");
    CHECK(mentions(text, "rig.json extends "));
    CHECK(mentions(text, "a.json extends "));
    CHECK(mentions(text, "b.json extends "));
    CHECK(mentions(text, "cannot extend itself"));
  }
  SUBCASE("too many of them") {
    const auto chain = [&](int length) {
      files.write("0.json", R"({"extends": "h100-sxm"})");
      for (int i = 1; i < length; ++i) {
        files.write(fmt::format("{}.json", i), fmt::format(R"({{"extends": "{}.json"}})", i - 1));
      }
      return complaint_of(
          [&] { load_hardware(files.folder.file(fmt::format("{}.json", length - 1))); });
    };
    CHECK(chain(8) == "accepted");
    CHECK(mentions(chain(9), "more than 8 profiles extend each other"));
  }
  SUBCASE("a file, from a profile that is in none") {
    const Json json = {{"extends", "node.json"}};
    CHECK(mentions(complaint_of([&] { read_hardware(json, "plan.json: hardware_profile"); }),
                   "plan.json: hardware_profile.extends names a file"));
    const Json named = {{"extends", "h20"}, {"name", "mine"}};
    CHECK(read_hardware(named, "profile").gpu.name == "H20 96GB");
  }
}

TEST_CASE("a short profile is told all that it lacks, and what it could extend") {
  const auto complaint = [](const Json& json) {
    return complaint_of([&] { read_hardware(json, "profile"); });
  };
  const std::string text = complaint(
      {{"name", "rig"},
       {"gpu", {{"name", "NVIDIA GB200"}, {"compute_capability", 100}, {"memory_gbs", 186}}},
       {"attention", {{"fits", Json::array({{{"head_dim", 128}}})}}}});
  for (const char* key : {"gpu.matmul_bf16_tflops",
                          "gpu.memory_gb,",
                          "gpu.memory_gb_per_s",
                          "gpu.tdp_watt",
                          "gpu.source",
                          "link.gpus_per_node",
                          "link.nvlink_gb_per_s",
                          "link.source",
                          "host.memory_gb",
                          "host.adam_gparams_per_s",
                          "contention.nvlink.compute",
                          "contention.network.source",
                          "gemm.bf16.efficiency",
                          "gemm.bf16.source",
                          "grouped_gemm.efficiency",
                          "attention.fits[0].efficiency",
                          "attention.fits[0].backward_rate",
                          "attention.source",
                          "collectives.fits",
                          "collectives.source"}) {
    CAPTURE(std::string(key));
    CHECK(mentions(text, key));
  }
  CHECK_FALSE(mentions(text, "fits[0].head_dim"));
  CHECK_FALSE(mentions(text, "nccl"));
  CHECK(mentions(text, R"("extends": "gb200")"));
  CHECK(mentions(text, "gpu.memory_gbs is not a known key; did you mean 'memory_gb'?"));

  Json two = machine("h100-pcie").source;
  two["gpu"].erase("memory_gb");
  two["host"].erase("source");
  CHECK(mentions(complaint(two), "profile lacks gpu.memory_gb, host.source; write them in"));
  CHECK(mentions(complaint(Json::object()), R"("extends": "h100-sxm")"));
}

// Each key is read, has a meaning when absent, or is named as missing: whatever is taken out of a
// profile, it is read or complains of that alone.
TEST_CASE("no key of a profile can be left out unnoticed") {
  int required = 0;
  const Json whole = machine("h100-sxm").source;
  const auto without = [&](const std::string& path, const Json& json) {
    CAPTURE(path);
    const std::string text = complaint_of([&] { read_hardware(json, "profile"); });
    if (text == "accepted") return;
    ++required;
    CHECK(mentions(text, "profile lacks " + path));
    CHECK_FALSE(mentions(text, "Besides"));
  };
  for (const auto& [section, values] : whole.items()) {
    Json json = whole;
    json.erase(section);
    without(section, json);
    if (!values.is_object()) continue;
    for (const auto& [key, value] : values.items()) {
      Json lacking = whole;
      lacking[section].erase(key);
      without(section + "." + key, lacking);
    }
  }
  CHECK(required > 40);
}

TEST_CASE("fits of another GPU are assumed, whatever its own profile thinks of them") {
  const Files files;
  const HardwareProfile& h100 = machine("h100-sxm");
  SUBCASE("another host, price or NIC is no other GPU") {
    check_assumed(files.load(R"({"extends": "h100-sxm", "name": "h100-sxm",
                                 "host": {"memory_gb": 1}, "link": {"nic_gb_per_s": 100},
                                 "price_per_gpu_hour_usd": 2})"),
                  false);
  }
  SUBCASE("another name, peak, bandwidth or power is") {
    for (const char* gpu : {R"("name": "H100 of ours")", R"("matmul_bf16_tflops": 1200)",
                            R"("matmul_nvfp4_tflops": 5000)", R"("memory_gb_per_s": 4000)",
                            R"("multiprocessors": 144)", R"("tdp_watt": 500)"}) {
      CAPTURE(std::string(gpu));
      const HardwareProfile p =
          files.load(fmt::format(R"({{"extends": "h100-sxm", "gpu": {{{}}}}})", gpu));
      check_assumed(p, true);
      for (const auto& [precision, fit] : p.gemm) CHECK(fit.error >= p.errors.assumed);
      CHECK(gemm_price({.m = 4096, .n = 4096, .k = 4096}, p).source == PriceSource::assumed);
      // It stays so where the profile is embedded, and in a file that extends it.
      check_assumed(read_hardware(p.source, "embedded"), true);
      files.write("base.json", p.source.dump());
      check_assumed(files.load(R"({"extends": "base.json"})"), true);
    }
  }
  SUBCASE("what it says itself is its own") {
    const HardwareProfile p = files.load(R"({
      "extends": "h100-sxm", "gpu": {"name": "other"},
      "gemm": {"bf16": {"efficiency": 0.7, "error": 0.05, "source": "measured"}},
      "attention": {"fits": [{"head_dim": 128, "efficiency": 0.5, "backward_rate": 0.8}]},
      "collective_table": "h100-sxm"
    })");
    CHECK_FALSE(p.gemm.at(Precision::bf16).assumed);
    CHECK(p.gemm.at(Precision::bf16).error == 0.05);
    CHECK(p.gemm.at(Precision::fp8).assumed);
    CHECK(p.grouped_gemm.assumed);
    CHECK_FALSE(p.attention[0].assumed);
    CHECK(p.flash2_attention[0].assumed);
    CHECK_FALSE(p.collectives[0].assumed);
  }
  SUBCASE("a fit of its own over an assumed one is measured, unless it says otherwise") {
    const char* own = R"({{"extends": "b300", "gpu": {{"name": "other"}},
                           "gemm": {{"bf16": {{"efficiency": 0.7{}}}}}}})";
    CHECK_FALSE(files.load(fmt::format(fmt::runtime(own), "")).gemm.at(Precision::bf16).assumed);
    CHECK(files.load(fmt::format(fmt::runtime(own), R"(, "assumed": true)"))
              .gemm.at(Precision::bf16)
              .assumed);
  }
  SUBCASE("tables of its own take the place of those below") {
    const HardwareProfile p = files.load(R"({
      "extends": "h100-sxm", "gpu": {"name": "other"},
      "tables": {"gemm": [{"dtype": "bf16", "m": [128, 8192], "n": [128, 8192], "k": [128, 8192],
                           "utilisation_permille": [9, 9, 9, 9, 9, 9, 9, 700]}],
                 "source": "measured"}
    })");
    REQUIRE(p.gemm_tables.size() == 1);
    CHECK_FALSE(p.gemm.at(Precision::bf16).assumed);
    CHECK(p.gemm.at(Precision::fp8).assumed);
    CHECK(gemm_price({.m = 8192, .n = 8192, .k = 8192}, p).source == PriceSource::table);
    CHECK(p.collective_tables.size() == h100.collective_tables.size());
    const HardwareProfile named =
        files.load(R"({"extends": "h200-sxm-measured", "gemm_table": "h200-sxm"})");
    CHECK(named.gemm_tables.size() == machine("h200-sxm").gemm_tables.size());
  }
  SUBCASE("another NVLink has another GPU's collectives, but its own products") {
    const HardwareProfile p =
        files.load(R"({"extends": "h100-sxm", "link": {"nvlink_gb_per_s": 300}})");
    for (const CollectiveFit& fit : p.collectives) CHECK(fit.assumed);
    CHECK_FALSE(p.gemm.at(Precision::bf16).assumed);
    const Price price =
        collective_price({.kind = CollectiveKind::all_gather, .bytes = mib(64)}, {8, 8, 1, 1}, p);
    CHECK(price.source == PriceSource::assumed);
  }
}

TEST_CASE("an estimate by another GPU's fits says so, and its interval is wider") {
  const Files files;
  const HardwareProfile same = files.load(R"({"extends": "h100-sxm"})");
  const HardwareProfile other =
      files.load(R"({"extends": "h100-sxm", "gpu": {"name": "H100 of another maker"}})");
  const ModelSpec model = load_model("llama3-8b");
  const ParallelPlan plan = parse_plan("tp2 dp4 gbs64 seq4096 sp");
  const auto estimate = [&](const HardwareProfile& hardware) {
    const CostModel cost(model, recipe_of(RecipeKind::megatron), hardware, {});
    return cost.evaluate(plan);
  };
  const Estimate measured = estimate(same), assumed = estimate(other);
  CHECK(measured.step_time == estimate(machine("h100-sxm")).step_time);
  CHECK(assumed.step_time == measured.step_time);
  CHECK(measured.priced_from.assumed == 0);
  CHECK(assumed.priced_from.assumed > 0.8);
  CHECK(assumed.priced_from.table == 0);
  const auto width = [](const Estimate& e) { return e.step_time_high - e.step_time_low; };
  CHECK(width(assumed) > width(measured) * 1.1);
}

TEST_CASE("a profile's collectives hold one that stands for those that were not measured") {
  const Files files;
  CHECK(mentions(files.complaint(R"({"extends": "h100-sxm", "collectives": {"fits": [
                          {"kind": "broadcast", "ranks": 8, "alpha_us": 20, "gb_per_s": 10}]}})"),
                 "collectives.fits must hold an all_gather or an all_reduce"));
}
