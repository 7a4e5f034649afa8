// `qplan hardware`: the built-in machines, and one of them whole, to copy and edit.

#include "costmodel/profiles/hardware.h"

#include <fmt/format.h>

#include "cli/catalog.h"
#include "cli/commands.h"
#include "cli/page.h"
#include "models/text.h"

namespace qplan {
namespace {

double peak_tflops(const HardwareProfile& profile, Precision precision) {
  const auto found = profile.gpu.matmul.find(precision);
  return found == profile.gpu.matmul.end() ? 0 : found->second.value() / 1e12;
}

// Where its prices come from, in a word.
std::string_view basis(const HardwareProfile& profile) {
  if (!profile.gemm_tables.empty()) return "tables";
  const auto bf16 = profile.gemm.find(Precision::bf16);
  return bf16 != profile.gemm.end() && bf16->second.assumed ? "assumed" : "fitted";
}

std::string machines_text() {
  Table table({{"hardware", "", Align::left},
               {"bf16", "TFLOP/s"},
               {"fp8", "TFLOP/s"},
               {"memory", "GB"},
               {"bandwidth", "GB/s"},
               {"NVLink", "GB/s"},
               {"domain", "GPUs"},
               {"node", "GPUs"},
               {"NICs", "a node"},
               {"each", "GB/s"},
               {"prices", "", Align::left}});
  for (const std::string& name : hardware_names()) {
    const HardwareProfile p = load_hardware(name);
    const double fp8 = peak_tflops(p, Precision::fp8);
    table.row({name, fixed(peak_tflops(p, Precision::bf16), 0), fp8 > 0 ? fixed(fp8, 0) : "-",
               fixed(p.gpu.memory.value() / 1e9, 0), fixed(p.gpu.memory_bandwidth.value() / 1e9, 0),
               fixed(p.link.nvlink.value() / 1e9, 0), fmt::format("{}", p.link.nvlink_domain),
               fmt::format("{}", p.link.gpus_per_node), fmt::format("{}", p.link.nics_per_node),
               significant(p.link.nic.value() / 1e9), std::string(basis(p))});
  }
  return table.text(page().table);
}

Json machines_json() {
  Json list = Json::array();
  for (const std::string& name : hardware_names()) {
    const HardwareProfile p = load_hardware(name);
    list.push_back({{"name", name},
                    {"description", p.description},
                    {"gpu", p.gpu.name},
                    {"matmul_bf16_tflops", peak_tflops(p, Precision::bf16)},
                    {"memory_gb", p.gpu.memory.value() / 1e9},
                    {"memory_gb_per_s", p.gpu.memory_bandwidth.value() / 1e9},
                    {"gpus_per_node", p.link.gpus_per_node},
                    {"nvlink_domain", p.link.nvlink_domain},
                    {"basis", basis(p)}});
  }
  return {{"hardware", std::move(list)}};
}

}  // namespace

Exit run_hardware(const Args& args, const Console& console) {
  return run_catalog(
      {.verb = "hardware",
       .summary = "The built-in machines. `hardware show NAME` prints one whole. For a machine of "
                  "your own give --hardware a JSON file with what differs from one of them: "
                  "{\"extends\": \"h100-sxm\", \"link\": {\"nic_gb_per_s\": 25}}.",
       .example = "qplan hardware show h100-sxm",
       .shown = "profile",
       .shows = "`show` prints one machine's profile",
       .names = "built-in name, or path of a profile",
       .list_text = machines_text,
       .list_json = machines_json,
       .built_in = hardware_names,
       .one = [](const std::string& name,
                 const std::string&) { return load_hardware(name).source; }},
      args, console);
}

}  // namespace qplan
