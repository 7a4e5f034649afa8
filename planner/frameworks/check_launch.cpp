// What starts the job: how many processes on how many GPUs, by which options.

#include "planner/frameworks/check_launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/finetuning/openrlhf.h"
#include "planner/frameworks/readers/recognise.h"
#include "planner/frameworks/scene.h"

namespace qplan {
namespace {

using enum Severity;

// Whether a shell script's value is the word of a "${NAME:-word}": what a run takes whose
// environment does not say otherwise.
bool is_default(const Scene& scene, const Setting& setting) {
  const std::string& script = scene.text_of(setting.place.file);
  if (setting.text.begin >= script.size()) return false;
  const std::size_t brace = script.find_last_of("{}\n", setting.text.begin);
  return brace != std::string::npos && brace > 0 && script.substr(brace - 1, 2) == "${";
}

// "4 x 8 = 32", "32".
std::string world_text(const Launch& launch) {
  const std::int64_t world = launch.world().value_or(0);
  if (launch.processes) return fmt::format("{}", world);
  return fmt::format("{} x {} = {}", launch.nodes.value_or(1), launch.gpus_per_node.value_or(0),
                     world);
}

// How many nodes the environment says, or nobody, so that torchrun takes one: the job's own number
// of them may be meant.
bool leaves_nodes_open(const Scene& scene, const Launch& launch) {
  if (launch.processes || !launch.gpus_per_node) return false;
  return launch.nodes_said ? is_default(scene, *launch.nodes_said) : !launch.nodes;
}

// accelerate's own check of its yaml or arguments tells it already.
bool is_told_of_accelerate(const Scene& scene, const Launch& launch) {
  return launch.program == "accelerate" &&
         std::any_of(scene.files.parts.begin(), scene.files.parts.end(), [](const auto& part) {
           return part.dialect == Dialect::accelerate && part.settings.has("num_processes");
         });
}

// Whether the launch stands in the shell that the other one starts.
bool is_started_by(const Launch& launch, const Launch& outer) {
  if (!outer.starts_shell) return false;
  if (outer.script.ends_with(".sh")) {
    return base_name(outer.script) == base_name(launch.place.file);
  }
  return outer.place.file == launch.place.file && outer.place.line == launch.place.line;
}

// The processes of a shell that each of Slurm's tasks starts, and that starts Python itself.
// Nothing: a launcher may count in it.
std::optional<std::int64_t> tasks_of_shell(const Scene& scene, const Launch& launch) {
  if (launch.program != "srun" || !launch.starts_shell || !launch.tasks || !launch.nodes) return {};
  // What a shell starts comes behind it, wherever its words were written.
  const auto& launches = scene.files.launches;
  const auto next = static_cast<std::size_t>(&launch - launches.data()) + 1;
  const bool plain = next < launches.size() && launches[next].program.starts_with("python") &&
                     launches[next].place.file == launch.place.file;
  return plain ? std::optional(*launch.nodes * *launch.tasks) : std::nullopt;
}

// verl's, NeMo-RL's and OpenRLHF's program is one process, which asks Ray for workers: whatever
// starts it, its processes are none of the job's.
bool starts_by_ray(const Scene& scene, const Launch& launch) {
  return std::any_of(scene.files.parts.begin(), scene.files.parts.end(), [&](const auto& part) {
    const bool step =
        part.dialect == Dialect::verl || part.dialect == Dialect::nemo_rl ||
        (part.dialect == Dialect::openrlhf && word_of(part.settings, "verb") == "ppo_ray");
    const bool starts_it = launch.starts_shell || part.script == launch.script;
    return step && starts_it && !part.script.empty() &&
           part.script.find("sft") == std::string::npos;
  });
}

void check_world(const Scene& scene, const Launch& launch, Findings& out) {
  const std::int64_t gpus = scene.question.limits.gpus;
  if (starts_by_ray(scene, launch)) return;
  if (!launch.world() || gpus == 0 || is_counted_inside(scene.files.launches, launch) ||
      is_told_of_accelerate(scene, launch)) {
    return;
  }
  const auto of_tasks = tasks_of_shell(scene, launch);
  std::int64_t world = of_tasks.value_or(*launch.world());
  if (of_tasks && world != gpus) {
    out.push_back({error, "launched_world", launch.place,
                   fmt::format("srun starts {} x {} = {} tasks, which are the processes, and the "
                               "job has {} GPUs",
                               *launch.nodes, *launch.tasks, world, gpus),
                   fmt::format("{} tasks in all: one for each GPU", gpus), launcher_of(launch)});
    return;
  }
  if (world != gpus && leaves_nodes_open(scene, launch) && gpus % *launch.gpus_per_node == 0) {
    out.push_back(
        {note, "nodes_by_environment", launch.nodes_said ? launch.nodes_said->place : launch.place,
         fmt::format("the environment says how many nodes start; without it, {} processes of the "
                     "job's {}",
                     world_text(launch), gpus),
         launch.nodes_said ? fmt::format("let it say {}", gpus / *launch.gpus_per_node)
                           : fmt::format("--nnodes {}", gpus / *launch.gpus_per_node),
         launcher_of(launch)});
    world = gpus;
  }
  if (world != gpus) {
    out.push_back({error, "launched_world", launch.place,
                   fmt::format("{} starts {} processes, not the job's {}", launch.program,
                               world_text(launch), gpus),
                   fmt::format("{} GPUs in all", gpus), launcher_of(launch)});
  }
  const ParallelPlan& p = scene.draft.plan;
  const std::int64_t model = std::int64_t{p.tp} * p.pp * p.cp;
  if (world % model != 0) {
    out.push_back({error, "launched_degrees", launch.place,
                   fmt::format("{} processes are not a multiple of tp {} x pp {} x cp {} = {}",
                               world, p.tp, p.pp, p.cp, model),
                   fmt::format("start a multiple of {}", model),
                   "Megatron-LM d98e8a64, megatron/training/arguments.py:432"});
  }
}

// The nodes that Slurm starts it on: those of an srun around its shell before the batch's.
std::optional<std::int64_t> nodes_of_slurm(const Scene& scene, const Launch& launch) {
  std::optional<std::int64_t> nodes = launch.allocated;
  for (const Launch& outer : scene.files.launches) {
    if (&outer == &launch) break;
    if (outer.starts_shell && outer.program == "srun" && outer.nodes_said) nodes = outer.nodes;
  }
  return nodes;
}

// Nodes that the launcher counts otherwise than Slurm, which starts it on each of them.
void check_allocation(const Scene& scene, const Launch& launch, Findings& out) {
  const auto given = nodes_of_slurm(scene, launch);
  if (!given || !launch.world() || launch.starts_shell) return;
  const bool torch = launch.program == "torchrun";
  // accelerate's yaml may say them, too.
  if (!torch && (launch.program != "accelerate" || !launch.nodes)) return;
  const std::int64_t nodes = launch.nodes.value_or(1);  // where nobody says
  if (nodes == *given) return;
  const std::string_view option = torch ? "--nnodes" : "--num_machines";
  const bool waits = nodes > *given;
  out.push_back({waits ? error : warning, "allocated_nodes",
                 launch.nodes_said ? launch.nodes_said->place : launch.place,
                 fmt::format("{}, and Slurm gives the job {}: {}",
                             launch.nodes_said ? fmt::format("{} says {} nodes", option, nodes)
                                               : fmt::format("without {} {} starts on one node",
                                                             option, launch.program),
                             *given,
                             waits ? "those that are missing are waited for"
                                   : "the others have no part in it"),
                 fmt::format("{} $SLURM_NNODES", option), launcher_of(launch)});
}

// A launcher starts a node's processes itself, and so once a node.
void check_tasks(const Scene& scene, const Launch& launch, Findings& out) {
  const bool starts_all = launch.program == "torchrun" || launch.program == "accelerate";
  if (!starts_all || launch.starts_shell) return;
  std::optional<std::int64_t> tasks = launch.tasks;
  for (const Launch& outer : scene.files.launches) {
    if (&outer == &launch) break;
    if (!tasks && outer.program == "srun" && is_started_by(launch, outer)) tasks = outer.tasks;
  }
  const std::int64_t each = launch.gpus_per_node.value_or(
      launch.processes.value_or(0) / launch.nodes.value_or(launch.allocated.value_or(1)));
  if (!tasks || *tasks < 2 || each < 2) return;
  out.push_back({error, "launcher_of_each_task", launch.place,
                 fmt::format("srun starts {} tasks on a node, and each of them starts {} with {} "
                             "processes: {} on a node",
                             *tasks, launch.program, each, *tasks * each),
                 "--ntasks-per-node=1: the launcher starts a node's processes itself",
                 "launcher: Slurm, srun (--ntasks-per-node)"});
}

// More processes of a node than GPUs that Slurm gives the job there.
void check_allocated_gpus(const Launch& launch, Findings& out) {
  const bool starts_all = launch.program == "torchrun" || launch.program == "accelerate" ||
                          launch.program == "deepspeed";
  if (!starts_all || !launch.allocated_gpus || launch.starts_shell) return;
  const std::int64_t nodes = launch.nodes.value_or(launch.allocated.value_or(1));
  const std::int64_t each = launch.gpus_per_node.value_or(launch.processes.value_or(0) / nodes);
  // What counts all machines is given one machine's number.
  const bool counts_all = launch.program == "accelerate" && launch.processes && nodes > 1;
  if (counts_all && *launch.processes == *launch.allocated_gpus) {
    out.push_back(
        {warning, "allocated_gpus", launch.place,
         fmt::format("{} processes on {} nodes are {} on each, and Slurm gives the job {} "
                     "GPUs of each",
                     *launch.processes, nodes, each, *launch.allocated_gpus),
         fmt::format("{} processes: all nodes' are counted", nodes * *launch.allocated_gpus),
         "accelerate 16cb6eb8, src/accelerate/utils/launch.py:217"});
  }
  if (each <= *launch.allocated_gpus) return;
  out.push_back({error, "allocated_gpus", launch.place,
                 fmt::format("{} starts {} processes on a node, and Slurm gives the job {} GPUs of "
                             "each",
                             launch.program, each, *launch.allocated_gpus),
                 fmt::format("{} processes, or --gpus-per-node={}", *launch.allocated_gpus, each),
                 "launcher: Slurm, sbatch (--gpus-per-node, --gres)"});
}

// The first of these options that says anything; null: none does.
const Setting* deepspeed_filter(const Settings& o,
                                std::initializer_list<std::string_view> spellings) {
  for (const std::string_view name : spellings) {
    const Setting* const said = o.find(name);
    if (said != nullptr && said->resolved && !text_of(said->value).empty()) return said;
  }
  return nullptr;
}

// Devices of this node that DeepSpeed's launcher takes; empty: all, or they are not known.
std::vector<std::int64_t> taken_devices(const Settings& o) {
  std::vector<std::int64_t> taken;
  if (const Setting* const include = deepspeed_filter(o, {"--include", "-i"})) {
    const std::string text = text_of(include->value);
    const std::size_t slots = text.find(':');
    if (slots == std::string::npos || text.find('@') != std::string::npos) return {};
    Launch listed;
    listed.environment["CUDA_VISIBLE_DEVICES"] = text.substr(slots + 1);
    return visible_devices(listed);
  }
  const Setting* const count = deepspeed_filter(o, {"--num_gpus"});
  if (count == nullptr || deepspeed_filter(o, {"--exclude", "-e"}) != nullptr) return {};
  try {
    taken.resize(static_cast<std::size_t>(whole_of(count->value, 1, 1024)));
  } catch (const Error&) {
    return {};
  }
  std::iota(taken.begin(), taken.end(), 0);
  return taken;
}

// Ways to name a part of the nodes' GPUs, of which DeepSpeed's launcher takes one.
void check_deepspeed_filters(const Scene& scene, const Launch& launch, Findings& out) {
  const Settings& o = launch.options;
  const Setting* const include = deepspeed_filter(o, {"--include", "-i"});
  const Setting* const exclude = deepspeed_filter(o, {"--exclude", "-e"});
  const Setting* const counts = deepspeed_filter(o, {"--num_gpus", "--num_nodes"});
  const Setting* const names = include != nullptr ? include : exclude;
  if (names != nullptr && counts != nullptr) {
    out.push_back(
        {error, "options_exclude", counts->place,
         fmt::format("{} and {} exclude each other, and deepspeed stops", counts->key, names->key),
         fmt::format("keep {}", names->key),
         "DeepSpeed edaa7221, deepspeed/launcher/runner.py:464"});
  }
  if (include != nullptr && exclude != nullptr) {
    out.push_back({error, "options_exclude", exclude->place,
                   fmt::format("{} and {} exclude each other, and deepspeed stops", include->key,
                               exclude->key),
                   "keep one of them", "DeepSpeed edaa7221, deepspeed/launcher/runner.py:326"});
  }
  const std::vector<std::int64_t> devices = visible_devices(launch), taken = taken_devices(o);
  const bool hosts = o.has("--hostfile") || o.has("-H") || scene.files.host_slots;
  if (hosts || devices.empty() || launch.nodes.value_or(1) > 1) return;
  const bool others = std::any_of(taken.begin(), taken.end(), [&](std::int64_t device) {
    return std::find(devices.begin(), devices.end(), device) == devices.end();
  });
  if (!others) return;
  out.push_back(
      {warning, "visible_devices", launch.place,
       fmt::format("deepspeed ignores CUDA_VISIBLE_DEVICES={} beside {}: it starts on "
                   "devices {}",
                   launch.environment.at("CUDA_VISIBLE_DEVICES"),
                   include != nullptr ? include->key : counts->key, fmt::join(taken, ",")),
       fmt::format("--include localhost:{}", fmt::join(devices, ",")),
       "DeepSpeed edaa7221, deepspeed/launcher/runner.py:455"});
}

void check_deepspeed_launch(const Scene& scene, const Launch& launch, Findings& out) {
  const Settings& o = launch.options;
  const bool include = o.has("--include") || o.has("-i");
  const bool hosts = o.has("--hostfile") || o.has("-H") || o.has("--no_ssh") || include;
  if (launch.nodes.value_or(1) > 1 && !hosts && !scene.files.host_slots) {
    out.push_back({error, "no_hostfile", launch.place,
                   fmt::format("deepspeed on {} nodes needs to know them: without a hostfile it "
                               "starts on this one alone",
                               *launch.nodes),
                   "--hostfile FILE with a line \"<host> slots=<GPUs>\" a node; or --no_ssh with "
                   "--node_rank on each",
                   "DeepSpeed edaa7221, deepspeed/launcher/runner.py:230"});
  }
  const bool some =
      include || o.has("--exclude") || o.has("-e") || launch.nodes || launch.gpus_per_node;
  const std::int64_t slots = scene.files.host_slots.value_or(0);
  const std::int64_t gpus = scene.question.limits.gpus;
  if (slots > 0 && gpus > 0 && slots != gpus && !some) {
    out.push_back({error, "launched_world", launch.place,
                   fmt::format("deepspeed starts a process on each of the hostfile's {} GPUs, not "
                               "the job's {}",
                               slots, gpus),
                   fmt::format("{} GPUs in all", gpus),
                   "DeepSpeed edaa7221, deepspeed/launcher/runner.py:230"});
  }
}

// What other launchers call an option of this one.
struct OthersName {
  std::string_view launcher, written, real;
  bool same = true;  // it means the same number
};
constexpr auto kOthersNames = std::to_array<OthersName>({
    {"torchrun", "--num_gpus", "--nproc-per-node"},
    {"torchrun", "--num_nodes", "--nnodes"},
    {"torchrun", "--num_machines", "--nnodes"},
    {"torchrun", "--num_processes", "--nproc-per-node", false},
    {"torchrun", "--machine_rank", "--node-rank"},
    {"torchrun", "--main_process_ip", "--master-addr"},
    {"torchrun", "--main_process_port", "--master-port"},
    {"deepspeed", "--nproc_per_node", "--num_gpus"},
    {"deepspeed", "--nproc-per-node", "--num_gpus"},
    {"deepspeed", "--nnodes", "--num_nodes"},
    {"deepspeed", "--num_machines", "--num_nodes"},
    {"deepspeed", "--num_processes", "--num_gpus", false},
    {"accelerate", "--nproc_per_node", "--num_processes", false},
    {"accelerate", "--nproc-per-node", "--num_processes", false},
    {"accelerate", "--num_gpus", "--num_processes", false},
    {"accelerate", "--nnodes", "--num_machines"},
    {"accelerate", "--num_nodes", "--num_machines"},
    {"accelerate", "--node_rank", "--machine_rank"},
    {"accelerate", "--node-rank", "--machine_rank"},
    {"accelerate", "--master_addr", "--main_process_ip"},
    {"accelerate", "--master-addr", "--main_process_ip"},
    {"accelerate", "--master_port", "--main_process_port"},
    {"accelerate", "--master-port", "--main_process_port"},
});

// Null: no other launcher calls one so.
const OthersName* others_name(const Launch& launch, const std::string& written) {
  const auto* const row =
      std::find_if(kOthersNames.begin(), kOthersNames.end(), [&](const OthersName& other) {
        return other.launcher == launch.program && other.written == written;
      });
  return row == kOthersNames.end() ? nullptr : row;
}

Correction renamed_option(const Setting& setting, std::string_view name) {
  if (setting.name.end <= setting.name.begin) return {};
  Correction fix{{setting.place.file, setting.name.begin, setting.name.end, std::string(name)}};
  fix.renames = true;
  return fix;
}

// Options of the launcher itself, which its own parser refuses.
void check_launcher_options(const Launch& launch, Findings& out) {
  const std::string_view name = launch.program == "accelerate"  ? "accelerate_launch"
                                : launch.program == "deepspeed" ? "deepspeed_launch"
                                : launch.program == "torchrun"  ? "torchrun"
                                                                : "";
  if (name.empty()) return;
  const OptionList& list = known_options(name);
  for (const Setting& setting : launch.options) {
    if (!setting.key.starts_with("--") || setting.key.size() < 4) continue;
    // Of a name that is whole, whatever its value.
    if (!setting.resolved && setting.key.find('$') != std::string::npos) continue;
    const auto begins =
        std::count_if(list.names().begin(), list.names().end(),
                      [&](const std::string& known) { return known.starts_with(setting.key); });
    // argparse takes a beginning for the whole, but accelerate's is told not to.
    const bool short_for = launch.program != "accelerate" && begins > 0;
    if (list.find(setting.key) != nullptr || short_for) continue;
    if (const OthersName* const other = others_name(launch, setting.key)) {
      out.push_back(
          {error, "unknown_option", setting.place,
           fmt::format("{}: {} has no such option and stops", setting.key, launch.program),
           other->same ? fmt::format("write {}", other->real)
                       : fmt::format("write {}, which counts otherwise", other->real),
           fmt::format("qplan: planner/frameworks/options/{}.tsv, the options of its parser", name),
           other->same ? renamed_option(setting, other->real) : Correction{}});
      continue;
    }
    const std::string near = nearest_name(setting.key, list.names());
    if (near.empty() || !is_slip(setting.key, near)) continue;  // another version's
    out.push_back(
        {error, "unknown_option", setting.place,
         fmt::format("{}: {} has no such option and stops", setting.key, launch.program),
         fmt::format("did you mean {}?", near),
         fmt::format("qplan: planner/frameworks/options/{}.tsv, the options of its parser", name),
         renamed_option(setting, near)});
  }
}

// "verl.trainer.main_pop": verl's folder of programs has few, and no other adds to it.
void check_module(const Launch& launch, Findings& out) {
  constexpr std::string_view kFolder = "verl.trainer.";
  constexpr auto kPrograms = std::to_array<std::string_view>(
      {"verl.trainer.main_ppo", "verl.trainer.sft_trainer", "verl.trainer.fsdp_sft_trainer",
       "verl.trainer.main_eval", "verl.trainer.main_generation"});
  if (!launch.script.starts_with(kFolder)) return;
  const bool known =
      std::find(kPrograms.begin(), kPrograms.end(), launch.script) != kPrograms.end();
  const auto* const near =
      std::find_if(kPrograms.begin(), kPrograms.end(),
                   [&](std::string_view program) { return is_slip(launch.script, program); });
  if (known || near == kPrograms.end()) return;
  out.push_back({error,
                 "unknown_module",
                 launch.script_place,
                 fmt::format("verl has no module {}, and Python stops", shown(launch.script)),
                 fmt::format("did you mean {}?", *near),
                 "verl b178a3cd, verl/trainer/main_ppo.py",
                 {}});
}

void check_script(const Launch& launch, Findings& out) {
  const Settings& o = launch.options;
  if (o.has("--no-python") || o.has("--no_python")) return;  // any program
  if (!launch.script.ends_with(".sh") || launch.program == "srun" || launch.program == "ray" ||
      launch.program.starts_with("mpi")) {
    return;
  }
  out.push_back({error, "launches_shell", launch.script_place,
                 fmt::format("{} starts Python programs, and {} is a shell script", launch.program,
                             shown(launch.script)),
                 "start the Python program; a script that calls the launcher itself is run by bash",
                 launcher_of(launch)});
}

// A rank that is written out, where every node needs its own.
void check_node_rank(const Scene& scene, const Launch& launch, Findings& out) {
  for (const std::string_view key : {"--node_rank", "--node-rank", "--machine_rank"}) {
    const Setting* const rank = launch.options.find(key);
    if (rank == nullptr || !rank->resolved || launch.nodes.value_or(1) < 2) continue;
    const bool written = rank->text.end > rank->text.begin && !is_default(scene, *rank);
    if (!written) continue;
    out.push_back({note, "one_node_rank", rank->place,
                   fmt::format("every node runs this with a rank of its own, and here it is {}",
                               text_of(rank->value)),
                   fmt::format("{} $NODE_RANK", key), "launcher: torchrun"});
  }
}

void check_installs(const Scene& scene, Findings& out) {
  for (const ShellWord& word : scene.files.installs) {
    if (word.text.starts_with("megatron-lm")) {
      out.push_back({error, "package_name", word.place,
                     "PyPI's package is called megatron-core, and holds no training scripts",
                     "megatron-core, and a checkout of Megatron-LM", "PyPI: megatron-core"});
    }
    const bool old = word.text.starts_with("deepspeed==0.") && word.text.size() > 13;
    if (!old) continue;
    const std::string version = word.text.substr(11);
    const int minor = std::atoi(version.c_str() + 2);
    const std::size_t dot = version.find('.', 2);
    const int patch = dot == std::string::npos ? 0 : std::atoi(version.c_str() + dot + 1);
    if (minor < 10 || (minor == 10 && patch < 2)) {
      out.push_back({error, "deepspeed_version", word.place,
                     "sequence parallelism (Ulysses) needs deepspeed 0.10.2", "deepspeed>=0.10.2",
                     "Megatron-DeepSpeed 4efb479d, megatron/arguments.py:99"});
    }
  }
}

}  // namespace

void check_launch(const Scene& scene, Findings& out) {
  for (const Launch& launch : scene.files.launches) {
    check_world(scene, launch, out);
    check_allocation(scene, launch, out);
    check_tasks(scene, launch, out);
    check_allocated_gpus(launch, out);
    if (launch.program == "deepspeed") {
      check_deepspeed_launch(scene, launch, out);
      check_deepspeed_filters(scene, launch, out);
    }
    check_launcher_options(launch, out);
    check_script(launch, out);
    check_module(launch, out);
    check_node_rank(scene, launch, out);
    check_launch_environment(scene, launch, out);
  }
  check_variables(scene, out);
  check_named_files(scene, out);
  check_installs(scene, out);
}

}  // namespace qplan
