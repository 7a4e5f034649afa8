// `qplan hardware`: the built-in machines, and one of them whole, to copy and edit.

#include "costmodel/profiles/hardware.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/catalog.h"
#include "cli/commands.h"
#include "cli/page.h"
#include "costmodel/profiles/other_names.h"
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

// What else a machine is called, where that is no other machine's name.
std::vector<std::string> also_called(const std::string& machine) {
  std::vector<std::string> names;
  for (const OtherName& other : other_names()) {
    if (other.machines.size() == 1 && other.machines.front() == machine) {
      names.push_back(other.name);
    }
  }
  return names;
}

std::string other_names_text() {
  std::string text;
  for (const std::string& machine : hardware_names()) {
    const std::vector<std::string> names = also_called(machine);
    if (names.empty()) continue;
    text +=
        fmt::format("{}{} for {}", text.empty() ? "also: " : "; ", fmt::join(names, ", "), machine);
  }
  return wrapped(text, page().text, 6);
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
  return table.text(page().table) + other_names_text();
}

Json machines_json() {
  Json list = Json::array();
  for (const std::string& name : hardware_names()) {
    const HardwareProfile p = load_hardware(name);
    list.push_back({{"name", name},
                    {"other_names", also_called(name)},
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
