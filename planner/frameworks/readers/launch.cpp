#include "planner/frameworks/readers/launch.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "models/ascii.h"
#include "models/error.h"
#include "planner/frameworks/readers/arguments.h"
#include "planner/frameworks/readers/recognise.h"
#include "planner/frameworks/shell/starts.h"

namespace qplan {
namespace {

constexpr std::array<std::string_view, 7> kLaunchers{"torchrun", "deepspeed", "accelerate", "srun",
                                                     "mpirun",   "mpiexec",   "ray"};

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

// "python", "python3", "python3.11".
bool is_python(std::string_view program) {
  return program.starts_with("python") &&
         program.find_first_not_of("0123456789.", std::string_view("python").size()) ==
             std::string_view::npos;
}

// The launcher that Python at `at` runs as a module, behind the interpreter's own options ("-u",
// "-X dev", "-W ignore"); empty: it runs none.
std::string_view module_launcher(std::span<const ShellWord> words, std::size_t at) {
  for (std::size_t i = at + 1; i + 1 < words.size() && words[i].text.starts_with('-'); ++i) {
    if (words[i].text == "-m") return launcher_of_module(words[i + 1].text);
    if (words[i].text == "-X" || words[i].text == "-W") ++i;
  }
  return {};
}

// "train.py", "train.sh", "-m package.module".
bool is_script(std::span<const ShellWord> words, std::size_t i) {
  const std::string& text = words[i].text;
  const std::string& before = words[i - 1].text;
  const bool module = before == "-m" || before == "--module";
  // Python's own modules have no dot ("-m pip"); what a launcher starts is a program.
  const bool program = text.find('.') != std::string::npos ||
                       (!is_python(base_name(words.front().text)) && !text.starts_with('-'));
  return text.ends_with(".py") || text.ends_with(".sh") ||
         (module && program && launcher_of_module(text).empty());
}

// "-N4" of Slurm's is "-N 4".
std::vector<ShellWord> with_values_apart(std::span<const ShellWord> words) {
  std::vector<ShellWord> apart;
  for (const ShellWord& word : words) {
    const bool short_name = word.text.starts_with("-N") || word.text.starts_with("-n");
    const bool joined = short_name && word.text.size() > 2 && is_digit(word.text[2]);
    apart.push_back(word);
    if (!joined) continue;
    apart.back().text.resize(2);
    apart.push_back(word);
    apart.back().text.erase(0, 2);
    apart.back().span.begin += word.span.end > 0 ? 2 : 0;
  }
  return apart;
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
    // "-n 16 python": the program stands behind it.
    const Json& value = setting->value.is_array() ? setting->value.front() : setting->value;
    return whole_of(value, 1, 1 << 20);
  } catch (const Error&) {
    return std::nullopt;  // "auto", "gpu", "1:4"
  }
}

// "8", "gpu:8", "h100:8", as Slurm counts GPUs.
std::optional<std::int64_t> gpus_said(const Setting* setting) {
  if (setting == nullptr) return std::nullopt;
  Setting count = *setting;
  std::string text = text_of(count.value);  // "lscratch:100,gpu:8(S:0)"
  const std::size_t gpu = text.find("gpu");
  if (gpu == std::string::npos && setting->key == "--gres") return std::nullopt;
  if (gpu != std::string::npos) text.erase(0, gpu);
  text.resize(std::min(text.find_first_of(",( "), text.size()));
  count.value = text.substr(text.rfind(':') + 1);  // npos + 1: the whole of it
  return number_said(&count);
}

// srun and MPI start as many of a command as they are told, which may be a launcher itself.
bool is_of_batch(std::string_view program) {
  return program == "srun" || program == "mpirun" || program == "mpiexec";
}

// The word at which a shell is started with commands of its own: "srun bash -c '...'".
std::optional<std::size_t> shell_with_commands(std::span<const ShellWord> words) {
  std::vector<std::string> spelled;
  for (const ShellWord& word : words) spelled.push_back(word.text);
  const auto start = shell_start(spelled);
  if (!start || start->kind == ShellStart::Kind::file) return std::nullopt;
  return start->shell;
}

// Of Slurm's tasks, or of MPI's processes. One task a node may start a process for each of its GPUs
// by itself, or by a launcher in the script.
void set_tasks(Launch& launch, const Settings& batch) {
  const Settings& o = launch.options;
  if (launch.program != "srun") {
    launch.processes = number_said(first_said(o, {"-np", "-n", "--np", "--n", "-c"}));
    return;
  }
  if (!launch.nodes_said) launch.nodes = launch.allocated;
  const auto of_either = [&](const auto& read, std::initializer_list<std::string_view> keys) {
    const auto own = read(first_said(o, keys));
    return own ? own : read(first_said(batch, keys));
  };
  launch.gpus_per_node = of_either(gpus_said, {"--gpus-per-node", "--gres"});
  if (launch.starts_shell) return;
  launch.processes = number_said(first_said(o, {"-n", "--ntasks"}));
  const auto tasks = of_either(number_said, {"--ntasks-per-node"});
  if (tasks && (*tasks > 1 || !launch.gpus_per_node)) launch.gpus_per_node = tasks;
  if (!launch.gpus_per_node && !launch.processes) {
    launch.processes = number_said(first_said(batch, {"--ntasks", "-n"}));
  }
}

// "localhost:0,1,2,3", "a:0,1@b:0,1": DeepSpeed's --include. Nothing: all of some host's.
std::optional<std::int64_t> included(const Setting* include) {
  if (include == nullptr || !include->resolved) return std::nullopt;
  std::int64_t count = 0;
  for (std::string hosts = text_of(include->value) + '@'; !hosts.empty();) {
    const std::size_t end = hosts.find('@');
    const std::string host = hosts.substr(0, end);
    const std::size_t slots = host.find(':');
    if (slots == std::string::npos) return std::nullopt;
    count += 1 + std::count(host.begin() + static_cast<std::ptrdiff_t>(slots), host.end(), ',');
    hosts.erase(0, end + 1);
  }
  return count;
}

// Without a filter or a hostfile DeepSpeed makes "--include localhost:0,1" of CUDA_VISIBLE_DEVICES
// (launcher/runner.py:451).
std::optional<std::int64_t> included_by_environment(const Launch& launch) {
  const Settings& o = launch.options;
  const bool filtered = first_said(o, {"--include", "-i", "--exclude", "-e", "--num_nodes",
                                       "--num_gpus", "--hostfile", "-H"}) != nullptr;
  const std::vector<std::int64_t> devices = visible_devices(launch);
  if (filtered || devices.empty()) return std::nullopt;
  return static_cast<std::int64_t>(devices.size());
}

void set_world(Launch& launch, const Settings& batch) {
  const Settings& o = launch.options;
  const Setting* const nodes = first_said(
      o, {"--nnodes", "--num_nodes", "--num_machines", "--num-machines", "-N", "--nodes"});
  if (nodes != nullptr) launch.nodes_said = *nodes;
  launch.nodes = number_said(nodes);
  if (launch.program == "accelerate") {
    launch.processes = number_said(first_said(o, {"--num_processes", "--num-processes"}));
    return;
  }
  if (launch.program == "deepspeed") {
    launch.processes = included(first_said(o, {"--include", "-i"}));
    if (!launch.processes) launch.processes = included_by_environment(launch);
  }
  const Setting* const each = first_said(o, {"--nproc-per-node", "--nproc_per_node", "--num_gpus"});
  launch.gpus_per_node = number_said(each);
  if (launch.program == "deepspeed" && launch.gpus_per_node && !launch.nodes &&
      !o.has("--hostfile") && !o.has("-H")) {
    launch.nodes = 1;
  }
  // "--nproc_per_node gpu": as many as the node has.
  if (launch.program == "torchrun" && each != nullptr && !launch.gpus_per_node) {
    launch.gpus_per_node = gpus_said(first_said(batch, {"--gpus-per-node", "--gres"}));
  }
  if (is_of_batch(launch.program)) set_tasks(launch, batch);
}

// Of a node, by Slurm's options; those of srun before the batch's.
std::optional<std::int64_t> slurm_gpus(const Settings& o, std::optional<std::int64_t> nodes) {
  if (const Setting* const each = first_said(o, {"--gpus-per-node", "--gres"})) {
    return gpus_said(each);
  }
  const auto all = gpus_said(first_said(o, {"--gpus", "-G"}));
  if (!all || !nodes || *all % *nodes != 0) return std::nullopt;
  return *all / *nodes;
}

std::optional<std::int64_t> slurm_tasks(const Settings& o, std::optional<std::int64_t> nodes) {
  if (const Setting* const each = first_said(o, {"--ntasks-per-node"})) return number_said(each);
  const auto all = number_said(first_said(o, {"--ntasks", "-n"}));
  if (!all || !nodes || *all % *nodes != 0) return std::nullopt;
  return *all / *nodes;
}

bool counts_tasks(const Settings& o) {
  return first_said(o, {"--ntasks-per-node", "--ntasks", "-n"}) != nullptr;
}

// What srun's own words say of a launch, on top of what the batch's say.
void allocate(const Settings& own, const Settings& batch, Launch& launch) {
  if (const Setting* const nodes = first_said(own, {"-N", "--nodes"})) {
    launch.allocated = number_said(nodes);
  }
  if (const auto gpus = slurm_gpus(own, launch.allocated)) launch.allocated_gpus = gpus;
  launch.tasks = slurm_tasks(counts_tasks(own) ? own : batch, launch.allocated);
}

// Where another launcher begins behind srun's or MPI's own options; 0: none does.
std::size_t inner_launcher(std::span<const ShellWord> words, std::size_t script) {
  if (!is_of_batch(base_name(words[0].text))) return 0;
  for (std::size_t i = 1; i < script; ++i) {
    const std::string program = base_name(words[i].text);
    const bool starts = is_python(program) ? !module_launcher(words, i).empty()
                                           : is_launcher(program) && !is_of_batch(program);
    if (starts) return i;
  }
  return 0;
}

}  // namespace

std::optional<std::int64_t> Launch::world() const {
  if (processes) return processes;
  if (!gpus_per_node) return std::nullopt;
  if (nodes) return *nodes * *gpus_per_node;
  // torchrun's own default, where nothing else speaks of nodes.
  return program == "torchrun" && !nodes_said ? gpus_per_node : std::nullopt;
}

std::vector<std::int64_t> visible_devices(const Launch& launch) {
  const auto said = launch.environment.find("CUDA_VISIBLE_DEVICES");
  if (said == launch.environment.end()) return {};
  const std::string& list = said->second;
  std::vector<std::int64_t> devices;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string number = list.substr(at, end - at);
    const bool digits =
        !number.empty() && number.size() < 5 && std::all_of(number.begin(), number.end(), is_digit);
    if (!digits) return {};
    devices.push_back(std::stoi(number));
    at = end + 1;
  }
  return devices;
}

bool is_launcher(const std::string& word) {
  const std::string program = base_name(word);
  return is_python(program) ||
         std::find(kLaunchers.begin(), kLaunchers.end(), program) != kLaunchers.end();
}

std::optional<LaunchCommand> read_launch(const ShellCommand& command, std::size_t at,
                                         const std::vector<ShellWord>& directives) {
  const auto words = std::span<const ShellWord>(command.words).subspan(at);
  std::string program = base_name(words[0].text);
  if (!is_launcher(program)) return {};
  const std::string_view module = is_python(program) ? module_launcher(words, 0) : "";
  if (!module.empty()) program = module;
  std::size_t script = 1;
  while (script < words.size() && !is_script(words, script)) ++script;
  auto shell = shell_with_commands(words);
  if (shell && *shell < script) {
    script = std::max<std::size_t>(*shell, 1);
  } else {
    shell.reset();
  }
  if (script >= words.size()) return {};
  const Settings batch = read_arguments(with_values_apart(directives), {});
  if (const std::size_t inner = shell ? 0 : inner_launcher(words, script)) {
    auto started = read_launch(command, at + inner, directives);
    const Settings outer = read_arguments(with_values_apart(words.subspan(1, inner - 1)), {});
    if (started && program == "srun") allocate(outer, batch, started->launch);
    return started;
  }
  const auto arguments = words.subspan(shell ? words.size() : script + 1);
  if (is_python(program) && arguments.empty()) return {};

  LaunchCommand read{{}, {arguments.begin(), arguments.end()}};
  read.launch.program = program;
  read.launch.place = words[0].place;
  read.launch.environment = command.environment;
  read.launch.script = words[script].text;
  read.launch.starts_shell = shell || read.launch.script.ends_with(".sh");
  read.launch.script_place = words[script].place;
  const auto options = words.subspan(1, script - 1);
  read.launch.options = is_of_batch(program) ? read_arguments(with_values_apart(options), {})
                                             : read_arguments(options, {});
  read.launch.allocated = number_said(first_said(batch, {"--nodes", "-N"}));
  read.launch.allocated_gpus = slurm_gpus(batch, read.launch.allocated);
  if (program == "srun") allocate(read.launch.options, batch, read.launch);
  set_world(read.launch, batch);
  return read;
}

Launch launch_of_options(std::string program, std::span<const ShellWord> options, Place place) {
  Launch launch;
  launch.program = std::move(program);
  launch.place = std::move(place);
  launch.options = read_arguments(options, {});
  set_world(launch, {});
  return launch;
}

std::optional<std::int64_t> world_of(std::span<const Launch> launches, bool by_shells) {
  for (const Launch& launch : launches) {
    if (launch.starts_shell != by_shells || !launch.world()) continue;
    if (by_shells && launch.processes && is_counted_inside(launches, launch)) continue;
    return launch.world();
  }
  return std::nullopt;
}

bool is_counted_inside(std::span<const Launch> launches, const Launch& launch) {
  return launch.starts_shell &&
         std::any_of(launches.begin(), launches.end(), [](const Launch& other) {
           return !other.starts_shell && !other.program.starts_with("python") &&
                  !is_of_batch(other.program);
         });
}

}  // namespace qplan
