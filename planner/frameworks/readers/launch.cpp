#include "planner/frameworks/readers/launch.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "models/error.h"
#include "planner/frameworks/readers/arguments.h"
#include "planner/frameworks/readers/recognise.h"
#include "planner/frameworks/shell/starts.h"

namespace qplan {
namespace {

constexpr std::array<std::string_view, 8> kLaunchers{
    "torchrun", "deepspeed", "accelerate", "srun", "mpirun", "ray", "python", "python3"};

// "python -m torch.distributed.run" is torchrun by another name.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kLauncherModules{
    {{"torch.distributed.run", "torchrun"},
     {"torch.distributed.launch", "torchrun"},
     {"accelerate.commands.launch", "accelerate"},
     {"deepspeed.launcher.runner", "deepspeed"}}};

// Empty: the module is none of them.
std::string_view launcher_of_module(std::string_view module) {
  for (const auto& [name, launcher] : kLauncherModules) {
    if (name == module) return launcher;
  }
  return {};
}

// "train.py", "train.sh", "-m package.module".
bool is_script(std::span<const ShellWord> words, std::size_t i) {
  const std::string& text = words[i].text;
  const std::string& before = words[i - 1].text;
  const bool module = before == "-m" || before == "--module";
  return text.ends_with(".py") || text.ends_with(".sh") ||
         (module && text.find('.') != std::string::npos && launcher_of_module(text).empty());
}

// The first of these keys that is there; null: none is.
const Setting* first_said(const Settings& settings, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (const Setting* const setting = settings.find(key)) return setting;
  }
  return nullptr;
}

std::optional<std::int64_t> number_said(const Setting* setting) {
  if (setting == nullptr || !setting->resolved) return std::nullopt;
  try {
    return whole_of(setting->value, 1, 1 << 20);
  } catch (const Error&) {
    return std::nullopt;  // "auto", "gpu", "1:4"
  }
}

// "8", "gpu:8", "h100:8", as Slurm counts GPUs.
std::optional<std::int64_t> gpus_said(const Setting* setting) {
  if (setting == nullptr) return std::nullopt;
  Setting count = *setting;
  std::string text = text_of(count.value);  // "lscratch:100,gpu:8(S:0)"
  if (const auto gpu = text.find("gpu"); gpu != std::string::npos) text.erase(0, gpu);
  text.resize(std::min(text.find_first_of(",("), text.size()));
  count.value = text.substr(text.rfind(':') + 1);  // npos + 1: the whole of it
  return number_said(&count);
}

// The word at which a shell is started with commands of its own: "srun bash -c '...'".
std::optional<std::size_t> shell_with_commands(std::span<const ShellWord> words) {
  std::vector<std::string> spelled;
  for (const ShellWord& word : words) spelled.push_back(word.text);
  const auto start = shell_start(spelled);
  if (!start || start->kind == ShellStart::Kind::file) return std::nullopt;
  return start->shell;
}

void set_world(Launch& launch, const std::vector<ShellWord>& directives) {
  const Settings& o = launch.options;
  const Setting* const nodes =
      first_said(o, {"--nnodes", "--num_nodes", "--num_machines", "-N", "--nodes"});
  if (nodes != nullptr) launch.nodes_said = *nodes;
  launch.nodes = number_said(nodes);
  launch.gpus_per_node =
      number_said(first_said(o, {"--nproc-per-node", "--nproc_per_node", "--num_gpus"}));
  if (launch.program == "deepspeed" && launch.gpus_per_node && !launch.nodes &&
      !o.has("--hostfile") && !o.has("-H")) {
    launch.nodes = 1;
  }
  if (launch.program != "srun") return;
  const Settings batch = read_arguments(directives, {});
  if (!launch.nodes) launch.nodes = number_said(first_said(batch, {"--nodes", "-N"}));
  launch.gpus_per_node = gpus_said(first_said(o, {"--gpus-per-node", "--gres"}));
  if (!launch.gpus_per_node) {
    launch.gpus_per_node = gpus_said(first_said(batch, {"--gpus-per-node", "--gres"}));
  }
  // One task a node may start a process for each of its GPUs, by a launcher in the script.
  if (!launch.gpus_per_node && !launch.starts_shell) {
    launch.gpus_per_node = number_said(batch.find("--ntasks-per-node"));
  }
}

}  // namespace

bool is_launcher(const std::string& word) {
  return std::find(kLaunchers.begin(), kLaunchers.end(), base_name(word)) != kLaunchers.end();
}

std::optional<LaunchCommand> read_launch(const ShellCommand& command, std::size_t at,
                                         const std::vector<ShellWord>& directives) {
  const auto words = std::span<const ShellWord>(command.words).subspan(at);
  std::string program = base_name(words[0].text);
  if (!is_launcher(program)) return {};
  const bool module = words.size() > 2 && words[1].text == "-m";
  if (module && !launcher_of_module(words[2].text).empty()) {
    program = launcher_of_module(words[2].text);
  }
  std::size_t script = 1;
  while (script < words.size() && !is_script(words, script)) ++script;
  auto shell = shell_with_commands(words);
  if (shell && *shell < script) {
    script = std::max<std::size_t>(*shell, 1);
  } else {
    shell.reset();
  }
  if (script >= words.size()) return {};
  const auto arguments = words.subspan(shell ? words.size() : script + 1);
  const bool single = program == "python" || program == "python3";
  if (single && arguments.empty()) return {};

  LaunchCommand read{{}, {arguments.begin(), arguments.end()}};
  read.launch.program = program;
  read.launch.place = words[0].place;
  read.launch.environment = command.environment;
  read.launch.script = words[script].text;
  read.launch.starts_shell = shell || read.launch.script.ends_with(".sh");
  read.launch.script_place = words[script].place;
  read.launch.options = read_arguments(words.subspan(1, script - 1), {});
  set_world(read.launch, directives);
  return read;
}

}  // namespace qplan
