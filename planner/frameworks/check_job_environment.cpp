// Variables of the environment that a job starts with: devices, hardware queues, libraries.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/check_launch.h"
#include "planner/frameworks/finetuning/finetuning.h"

namespace qplan {
namespace {

using enum Severity;

// The statement that sets a variable, where the script has it once and does not read it: its line,
// or its word among others.
Correction without_variable(const Scene& scene, const Launch& launch, const std::string& name) {
  Correction correction;
  const std::string& text = scene.text_of(launch.place.file);
  const std::string sets = name + "=";
  std::vector<std::size_t> places;
  for (std::size_t at = 0; (at = text.find(sets, at)) != std::string::npos; ++at) {
    if (at == 0 || std::string_view(" \t\n;").find(text[at - 1]) != std::string_view::npos) {
      places.push_back(at);
    }
  }
  if (places.size() != 1) {
    correction.why_not = "it is not set in one place of this file";
    return correction;
  }
  if (text.find("$" + name) != std::string::npos || text.find("${" + name) != std::string::npos) {
    correction.why_not = "the script reads it itself";
    return correction;
  }
  const std::size_t begin = places.front();
  const std::size_t end = std::min(text.find_first_of(" \t\r\n;#", begin), text.size());
  const std::size_t line = text.rfind('\n', begin) + 1;  // npos + 1: the first
  const std::size_t line_end = std::min(text.find('\n', begin), text.size());
  const std::string_view before = std::string_view(text).substr(line, begin - line);
  std::string_view after = std::string_view(text).substr(end, line_end - end);
  after.remove_prefix(std::min(after.find_first_not_of(" \t\r"), after.size()));
  const bool quoted = text.substr(begin, end - begin).find_first_of("\"'`$\\") != std::string::npos;
  if (quoted) {
    correction.why_not = "its value is more than a word";
    return correction;
  }
  const std::size_t word = std::min(before.find_first_not_of(" \t"), before.size());
  const bool alone = before.substr(word) == "export " || before.substr(word).empty();
  if (alone && after.empty()) {
    correction.push_back({launch.place.file, line, std::min(line_end + 1, text.size()), ""});
    return correction;
  }
  if (alone && after.starts_with('#')) {  // which stays
    correction.push_back({launch.place.file, line + word, text.find('#', end), ""});
    return correction;
  }
  const std::size_t next = std::min(text.find_first_not_of(" \t", end), text.size());
  const std::size_t last = next < text.size() && text[next] != '\n' ? next : end;
  if (text[end] == ';' || (before.substr(word) == "export " && text[last] == ';')) {
    correction.why_not = "another command stands on its line";
    return correction;
  }
  correction.push_back({launch.place.file, begin, last, ""});
  return correction;
}

void check_environment(const Scene& scene, const Launch& launch, Findings& out) {
  const auto world = launch.environment.find("WORLD_SIZE");
  const bool sets_it = launch.program == "deepspeed" || launch.program == "torchrun" ||
                       launch.program == "accelerate";
  if (world != launch.environment.end() && sets_it) {
    const std::int64_t started = launch.nodes.value_or(1) * launch.gpus_per_node.value_or(0);
    if (started == 0 || world->second != fmt::format("{}", started)) {
      out.push_back(
          {warning, "world_size_exported", launch.place,
           fmt::format("WORLD_SIZE={} is exported, and {} sets its own{}", world->second,
                       launch.program, started > 0 ? fmt::format(": {}", started) : std::string()),
           "leave it to the launcher", launcher_of(launch),
           without_variable(scene, launch, "WORLD_SIZE")});
    }
  }
}

// More processes of a node than CUDA_VISIBLE_DEVICES leaves it devices.
void check_devices(const Launch& launch, Findings& out) {
  const auto visible = launch.environment.find("CUDA_VISIBLE_DEVICES");
  constexpr std::array<std::string_view, 4> kOnePerDevice{"torchrun", "accelerate", "swift",
                                                          "megatron"};
  const bool takes =
      std::find(kOnePerDevice.begin(), kOnePerDevice.end(), launch.program) != kOnePerDevice.end();
  if (visible == launch.environment.end() || !launch.gpus_per_node || !takes) return;
  const std::string& list = visible->second;
  const bool numbers = !list.empty() && list.find_first_not_of("0123456789,") == std::string::npos;
  const auto devices = std::count(list.begin(), list.end(), ',') + 1;
  if (!numbers || list.ends_with(',') || devices >= *launch.gpus_per_node) return;
  out.push_back({error,
                 "visible_devices",
                 launch.place,
                 fmt::format("{} starts {} processes on a node, and CUDA_VISIBLE_DEVICES={} leaves "
                             "it {} of its devices",
                             launch.program, *launch.gpus_per_node, list, devices),
                 fmt::format("as many devices as processes, or {} processes", devices),
                 "arithmetic: a process of its own for each device",
                 {}});
}

constexpr std::string_view kQueues = "Megatron-LM d98e8a64, megatron/training/arguments.py:1477";

bool needs_one_queue(const Scene& scene) {
  const ParallelPlan& p = scene.draft.plan;
  const int capability = scene.question.limits.compute_capability;
  // Megatron only advises where experts' exchanges run beside compute, or FSDP2 shards.
  const bool advised =
      std::any_of(scene.files.parts.begin(), scene.files.parts.end(), [](const ConfigPart& part) {
        return part.settings.has("--overlap-moe-expert-parallel-comm") ||
               part.settings.has("--use-torch-fsdp2");
      });
  return scene.draft.recipe != RecipeKind::megatron_fsdp && !advised && (p.tp > 1 || p.cp > 1) &&
         capability > 0 && capability < 100;
}

// `known`: whether nobody else may say another value.
void check_queues_of(const Scene& scene, const std::string& value, const Place& place, bool known,
                     Findings& out) {
  const bool fsdp = scene.draft.recipe == RecipeKind::megatron_fsdp;
  if (fsdp && value == "1") {
    out.push_back({error, "queues_of_fsdp", place,
                   "Megatron-FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1", "unset it",
                   "Megatron-LM d98e8a64, megatron/training/arguments.py:1166"});
  }
  if (value == "1" || !needs_one_queue(scene)) return;
  out.push_back(
      {known ? error : warning, "queues", place,
       known ? fmt::format("tp and cp need CUDA_DEVICE_MAX_CONNECTIONS=1 on this GPU, not {}; "
                           "Megatron asserts it",
                           shown(value))
             : "tp and cp need CUDA_DEVICE_MAX_CONNECTIONS=1 on this GPU, which the script does "
               "not set; Megatron asserts it",
       "export CUDA_DEVICE_MAX_CONNECTIONS=1", std::string(kQueues)});
}

// Hopper and older order tp's and cp's communication by one hardware queue.
void check_queues(const Scene& scene, const Launch& launch, Findings& out) {
  const bool core = scene.files.find(Dialect::megatron) != nullptr;
  // Of a script that starts another one, the other one sets it.
  if (!core || launch.program == "ray" || launch.starts_shell) return;
  const auto queues = launch.environment.find("CUDA_DEVICE_MAX_CONNECTIONS");
  if (queues != launch.environment.end()) {
    // Where the script leaves it alone, the environment that it runs in may say it.
    const bool known = queues->second.find('$') == std::string::npos;
    return check_queues_of(scene, queues->second, launch.place, known, out);
  }
  if (!needs_one_queue(scene)) return;
  out.push_back({warning, "queues", launch.place,
                 "tp and cp need CUDA_DEVICE_MAX_CONNECTIONS=1 on this GPU, which the script does "
                 "not set; Megatron asserts it",
                 "export CUDA_DEVICE_MAX_CONNECTIONS=1", std::string(kQueues)});
}

// What --deterministic-mode takes of the libraries' variables.
struct DeterministicValues {
  std::string_view name;
  bool list;  // of words between commas, each one of these
  std::array<std::string_view, 4> values;
};
constexpr std::array<DeterministicValues, 3> kDeterministic{
    {{"NCCL_ALGO", true, {"Ring", "CollnetDirect", "CollnetChain", "^NVLS"}},
     {"NVTE_ALLOW_NONDETERMINISTIC_ALGO", false, {"0"}},
     {"CUBLAS_WORKSPACE_CONFIG", false, {":4096:8", ":16:8"}}}};

bool is_deterministic(const Scene& scene) {
  return std::any_of(
      scene.files.parts.begin(), scene.files.parts.end(), [](const ConfigPart& part) {
        const Setting* const mode = part.settings.find("--deterministic-mode");
        return (part.dialect == Dialect::megatron || part.dialect == Dialect::slime) &&
               !part.derived && mode != nullptr && mode->resolved &&
               is_switched_on(part.settings, mode->key);
      });
}

bool is_taken(const DeterministicValues& row, const std::string& text) {
  bool any = false;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = row.list ? std::min(text.find(',', at), text.size()) : text.size();
    const std::string_view word = trimmed(std::string_view(text).substr(at, end - at));
    at = end + 1;
    if (word.empty() && row.list) continue;
    any = true;
    if (std::find(row.values.begin(), row.values.end(), word) == row.values.end()) return false;
  }
  return any;
}

void check_deterministic(const std::string& name, const std::string& value, const Place& place,
                         Findings& out) {
  const auto row = std::find_if(kDeterministic.begin(), kDeterministic.end(),
                                [&](const DeterministicValues& r) { return r.name == name; });
  if (row == kDeterministic.end() || value.find('$') != std::string::npos) return;
  if (is_taken(*row, value)) return;
  std::vector<std::string_view> taken(row->values.begin(), row->values.end());
  std::erase(taken, std::string_view());
  out.push_back(
      {error, "deterministic_environment", place,
       fmt::format("--deterministic-mode refuses {}={}", name, shown(value)),
       fmt::format("{}{}, or leave it out", row->list ? "of " : "", fmt::join(taken, ", ")),
       "Megatron-LM d98e8a64, megatron/training/determinism.py:87"});
}

}  // namespace

void check_launch_environment(const Scene& scene, const Launch& launch, Findings& out) {
  check_environment(scene, launch, out);
  check_devices(launch, out);
  check_queues(scene, launch, out);
}

void check_variables(const Scene& scene, Findings& out) {
  const bool core =
      scene.files.find(Dialect::megatron) != nullptr || scene.files.find(Dialect::slime) != nullptr;
  const bool deterministic = is_deterministic(scene);
  for (const JobVariable& variable : scene.files.environment) {
    if (core && variable.name == "CUDA_DEVICE_MAX_CONNECTIONS") {
      check_queues_of(scene, variable.value, variable.place, true, out);
    }
    if (deterministic) check_deterministic(variable.name, variable.value, variable.place, out);
  }
  for (const Launch& launch : scene.files.launches) {
    if (!deterministic || launch.program == "ray") continue;  // whose workers have their own
    for (const auto& [name, value] : launch.environment) {
      check_deterministic(name, value, launch.place, out);
    }
  }
}

}  // namespace qplan
