#include "costmodel/profiles/hardware.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "costmodel/profiles/layers.h"
#include "costmodel/profiles/other_names.h"
#include "costmodel/profiles/profile_parts.h"
#include "models/error.h"
#include "models/text.h"

namespace qplan {
namespace {

using namespace profiles;

// The built-in machine that a profile may mean to change: "b200" for a "GB200" is no match if there
// is a "gb200". The first of "h100-sxm" and "h100-pcie" is the plainer one.
std::string machine_like(const std::string& gpu) {
  std::string lower = gpu;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::string best = "h100-sxm";
  std::size_t matched = 0;
  for (const std::string& name : hardware_names()) {
    const std::size_t length = std::min(name.find('-'), name.size());
    if (length < matched || lower.find(name.substr(0, length)) == std::string::npos) continue;
    if (length == matched && name.size() >= best.size()) continue;
    best = name;
    matched = length;
  }
  return best;
}

// One sentence for all of them. `top` is the profile.
[[noreturn]] void throw_complaints(const KeyComplaints& complaints, const Section& top,
                                   const std::string& gpu) {
  const std::string unknown = fmt::format("{}", fmt::join(complaints.unknown, "; "));
  if (complaints.missing.empty()) throw Error(unknown);
  const std::size_t prefix = top.path_of("").size();
  std::vector<std::string> keys;
  for (const std::string& path : complaints.missing) keys.push_back(path.substr(prefix));
  std::string_view where = top.path();
  if (where.ends_with(':')) where.remove_suffix(1);
  throw Error(fmt::format(
      "{} lacks {}; write {} in, or let it extend a built-in machine and say what differs: "
      "\"extends\": \"{}\"{}{}",
      where, fmt::join(keys, ", "), keys.size() == 1 ? "it" : "them", machine_like(gpu),
      unknown.empty() ? "" : ". Besides, ", unknown));
}

// A profile that lies over all others already.
HardwareProfile read_whole(const Json& json, std::string_view path) {
  KeyComplaints complaints;
  Section in(json, std::string(path), complaints);
  HardwareProfile profile;
  profile.name = in.string("name");
  profile.description = in.string_or("description", "");
  profile.errors = read_errors(in.section("errors"));
  const Errors& errors = profile.errors;
  profile.gpu = read_gpu(in.section("gpu"));
  profile.link = read_link(in.section("link"));
  profile.host = read_host(in.section("host"));
  profile.contention = read_contention(in.section("contention"));
  profile.gemm = read_gemm(in.section("gemm"), errors);
  profile.grouped_gemm = read_gemm_fit(in.section("grouped_gemm"), errors);
  read_attention(in.section("attention"), profile);
  read_stand_in(in.section("stand_in"), profile);
  if (in.has("delta_rule")) {
    profile.delta_rule = read_delta_rule_fit(in.section("delta_rule"), errors);
  }
  if (in.has("scan")) profile.scan = read_scan_fit(in.section("scan"), errors);
  profile.nccl = read_nccl(in.section("nccl"));
  profile.expert_library = read_expert_library(in.section("expert_library"));
  if (!profile.link.over_pcie() || in.has("collectives")) {
    profile.collectives = read_collectives(in.section("collectives"), errors);
  }
  if (in.has("tables")) read_tables(in.section("tables"), profile);
  read_built_in_tables(in, profile);
  profile.price_per_gpu_hour = in.number_or("price_per_gpu_hour_usd", 0, 1e6, 0);
  in.finish();
  if (!complaints.missing.empty() || !complaints.unknown.empty()) {
    throw_complaints(complaints, in, profile.gpu.name);
  }
  profile.source = json;
  return profile;
}

}  // namespace

HardwareProfile read_hardware(const Json& json, std::string_view path) {
  const std::string where(path);
  return read_whole(layered_profile(json, {.where = where, .file = "", .built_in = false}), where);
}

HardwareProfile load_hardware(const std::string& name_or_path) {
  // Built-in names have no capitals; a file that is called so comes first.
  const std::string name =
      std::filesystem::exists(name_or_path) ? name_or_path : lower_case(name_or_path);
  if (const Json* built_in = built_in_profile(name)) return read_whole(*built_in, name + ":");
  const bool is_path = name_or_path.find('/') != std::string::npos ||
                       name_or_path.ends_with(".json") || std::filesystem::exists(name_or_path);
  if (is_path) {
    const std::string where = name_or_path + ":";
    const Json own = read_json_file(name_or_path);
    return read_whole(layered_profile(own, {.where = where, .file = name_or_path}), where);
  }
  if (const std::string meant = machine_meant(name); !meant.empty()) return load_hardware(meant);
  const auto known = hardware_names();
  throw Error(fmt::format("hardware '{}' is unknown; choose one of {}, or a profile's path{}",
                          shown(name_or_path), fmt::join(known, ", "), did_you_mean(name, known)));
}

std::vector<std::string> hardware_names() {
  return built_in_profile_names();
}

BytesPerSecond pcie_rate(const Interconnect& link) {
  return std::min(link.host_to_device, link.device_to_host);
}

void set_gpus_per_node(HardwareProfile& hardware, int count) {
  Interconnect& link = hardware.link;
  const int before = link.gpus_per_node;
  if (link.nvlink_domain == before) link.nvlink_domain = count;
  if (link.nvlink_domain < before) link.nvlink_domain = std::min(link.nvlink_domain, count);
  link.nics_per_node = std::max(1, link.nics_per_node * count / before);
  const double ratio = static_cast<double>(count) / before;
  hardware.host.memory *= ratio;
  hardware.host.adam_params_per_s *= ratio;
  hardware.host.nvme_read *= ratio;
  hardware.host.nvme_write *= ratio;
  link.gpus_per_node = count;
}

}  // namespace qplan
