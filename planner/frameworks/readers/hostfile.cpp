#include "planner/frameworks/readers/hostfile.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "models/ascii.h"

namespace qplan {
namespace {

// What Python's str.strip() takes off and \s matches.
constexpr std::string_view kPythonsBlanks = " \t\r\f\v";
constexpr std::string_view kSource =
    "DeepSpeed edaa7221, deepspeed/launcher/runner.py (_parse_hostfile)";

struct ListedHost {
  std::string_view name;
  std::int64_t slots = 0;
};

// ^(\S+)\s+slots=(\d+), whatever follows.
std::optional<ListedHost> host_of(std::string_view line) {
  const std::size_t end = line.find_first_of(kPythonsBlanks);
  if (end == std::string_view::npos) return std::nullopt;
  ListedHost host{line.substr(0, end)};
  line.remove_prefix(std::min(line.find_first_not_of(kPythonsBlanks, end), line.size()));
  constexpr std::string_view kSlots = "slots=";
  if (!line.starts_with(kSlots) || line.size() == kSlots.size() || !is_digit(line[kSlots.size()])) {
    return std::nullopt;
  }
  for (const char c : line.substr(kSlots.size())) {
    if (!is_digit(c) || host.slots >= 1 << 20) break;
    host.slots = 10 * host.slots + (c - '0');
  }
  return host;
}

}  // namespace

Hostfile read_hostfile(const ConfigText& file) {
  Hostfile hosts;
  std::map<std::string, int, std::less<>> lines;  // by host
  const auto refuse = [&](int line, std::string message, std::string instead) {
    hosts.findings.push_back({Severity::error,
                              "hostfile_line",
                              {file.name, line},
                              std::move(message),
                              std::move(instead),
                              std::string(kSource)});
  };
  int number = 0;
  std::string_view rest = file.text;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    line.remove_prefix(std::min(line.find_first_not_of(kPythonsBlanks), line.size()));
    line = line.substr(0, line.find_last_not_of(kPythonsBlanks) + 1);  // npos + 1: none is left
    if (line.empty() || line.starts_with('#')) continue;
    const auto host = host_of(line);
    if (!host) {
      refuse(number,
             fmt::format("{} is no line of a hostfile, and DeepSpeed stops at it",
                         shown(std::string(line))),
             "\"<host> slots=<GPUs>\", or # before a remark");
      continue;
    }
    const auto [before, is_new] = lines.emplace(std::string(host->name), number);
    if (!is_new) {
      refuse(number,
             fmt::format("{} stands in line {} too, and DeepSpeed stops at the second",
                         shown(std::string(host->name)), before->second),
             "one line a host, with all of its GPUs");
      continue;
    }
    hosts.slots += host->slots;
  }
  if (lines.empty() && hosts.findings.empty()) {
    refuse(0, "the hostfile names no host, and DeepSpeed stops",
           "a line \"<host> slots=<GPUs>\" a node");
  }
  return hosts;
}

}  // namespace qplan
