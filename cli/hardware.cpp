// `qplan hardware`: the built-in machines, and one of them whole, to copy and edit.

#include "costmodel/hardware.h"

#include <fmt/format.h>

#include <ostream>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/report.h"
#include "models/error.h"
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

std::string list_text() {
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
  return table.text();
}

Json list_json() {
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
  std::string action, name;
  bool json = false;
  CommandLine line(
      "hardware",
      "The built-in machines. `hardware show NAME` prints one whole: copy it, edit it, "
      "and give the file to --hardware.",
      "qplan hardware show h100-sxm");
  line.group("Output");
  line.flag("--json", "the list as JSON (show always prints JSON)", json);
  line.positional("show", "`show` prints one machine's profile", action);
  line.positional("NAME", "built-in name, or path of a profile", name);
  if (!line.parse(args, console.out)) return Exit::done;

  if (action.empty()) {
    console.out << (json ? json_text(list_json()) : list_text());
    return Exit::done;
  }
  if (action != "show") {
    throw Error(
        fmt::format("hardware does not know '{}'; it lists, or shows one: `qplan hardware "
                    "show {}`",
                    shown(action), name.empty() ? "NAME" : shown(name)));
  }
  if (name.empty()) throw Error("hardware show needs a name; `qplan hardware` lists them");
  console.out << json_text(load_hardware(name).source);
  return Exit::done;
}

}  // namespace qplan
