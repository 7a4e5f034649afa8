// What starts the job: how many GPUs, which files, which environment.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "planner/frameworks/readers/recognise.h"
#include "planner/frameworks/scene.h"

namespace qplan {
namespace {

using enum Severity;

std::string launcher_of(const Launch& launch) {
  return fmt::format("launcher: {}", launch.program);
}

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

void check_world(const Scene& scene, const Launch& launch, Findings& out) {
  const std::int64_t gpus = scene.question.limits.gpus;
  if (!launch.world() || gpus == 0 || is_counted_inside(scene.files.launches, launch) ||
      is_told_of_accelerate(scene, launch)) {
    return;
  }
  std::int64_t world = *launch.world();
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

// Options of the launcher itself, which its own parser refuses.
void check_launcher_options(const Launch& launch, Findings& out) {
  const std::string_view name = launch.program == "accelerate"  ? "accelerate_launch"
                                : launch.program == "deepspeed" ? "deepspeed_launch"
                                : launch.program == "torchrun"  ? "torchrun"
                                                                : "";
  if (name.empty()) return;
  const OptionList& list = known_options(name);
  for (const Setting& setting : launch.options) {
    if (!setting.key.starts_with("--") || setting.key.size() < 4 || !setting.resolved) continue;
    const auto begins =
        std::count_if(list.names().begin(), list.names().end(),
                      [&](const std::string& known) { return known.starts_with(setting.key); });
    // argparse takes a beginning for the whole, but accelerate's is told not to.
    const bool short_for = launch.program != "accelerate" && begins > 0;
    if (list.find(setting.key) != nullptr || short_for) continue;
    const std::string near = nearest_name(setting.key, list.names());
    if (near.empty() || !is_slip(setting.key, near)) continue;  // another version's
    out.push_back(
        {error,
         "unknown_option",
         setting.place,
         fmt::format("{}: {} has no such option and stops", setting.key, launch.program),
         fmt::format("did you mean {}?", near),
         fmt::format("qplan: planner/frameworks/options/{}.tsv, the options of its parser", name),
         {}});
  }
}

void check_script(const Launch& launch, Findings& out) {
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

// Hopper and older order tp's and cp's communication by one hardware queue.
void check_queues(const Scene& scene, const Launch& launch, Findings& out) {
  const bool core = scene.files.find(Dialect::megatron) != nullptr;
  const ParallelPlan& p = scene.draft.plan;
  const int capability = scene.question.limits.compute_capability;
  // Of a script that starts another one, the other one sets it.
  if (!core || launch.program == "ray" || launch.starts_shell) return;
  const auto queues = launch.environment.find("CUDA_DEVICE_MAX_CONNECTIONS");
  const bool one = queues != launch.environment.end() && queues->second == "1";
  const bool fsdp = scene.draft.recipe == RecipeKind::megatron_fsdp;
  if (fsdp && one) {
    out.push_back({error, "queues_of_fsdp", launch.place,
                   "Megatron-FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1", "unset it",
                   "Megatron-LM d98e8a64, megatron/training/arguments.py:1166"});
  }
  // Megatron only advises where experts' exchanges run beside compute.
  const ConfigPart* const part = scene.files.find(Dialect::megatron);
  const bool advised = part->settings.has("--overlap-moe-expert-parallel-comm");
  const bool needed = !fsdp && !advised && (p.tp > 1 || p.cp > 1) && capability < 100;
  if (needed && !one && capability > 0) {
    // Where the script leaves it alone, the environment that it runs in may say it.
    const bool another =
        queues != launch.environment.end() && queues->second.find('$') == std::string::npos;
    out.push_back(
        {another ? error : warning, "queues", launch.place,
         another ? fmt::format("tp and cp need CUDA_DEVICE_MAX_CONNECTIONS=1 on this GPU, not {}; "
                               "Megatron asserts it",
                               shown(queues->second))
                 : "tp and cp need CUDA_DEVICE_MAX_CONNECTIONS=1 on this GPU, which the script "
                   "does not set; Megatron asserts it",
         "export CUDA_DEVICE_MAX_CONNECTIONS=1",
         "Megatron-LM d98e8a64, megatron/training/arguments.py:1477"});
  }
}

void note_missing(const Setting& named, Findings& out) {
  const std::string file = text_of(named.value);
  if (!named.resolved) {
    out.push_back({note, "config_missing", named.place,
                   fmt::format("{} names {}, which only a run can tell: what it says is not judged",
                               named.key, shown(file.empty() ? "a value" : file)),
                   "give the configuration too", ""});
    return;
  }
  out.push_back({note, "config_missing", named.place,
                 fmt::format("{} names {}, which is not among the files given: what it says is not "
                             "judged",
                             named.key, shown(file)),
                 fmt::format("give {} too", shown(base_name(file))), ""});
}

// Configurations that nobody gave, so that the plan below lacks what they say.
void check_missing_configs(const Scene& scene, Findings& out) {
  if (scene.files.find(Dialect::ds_config) != nullptr) return;
  const auto is_file = [](const Setting* s) {
    return s != nullptr && (s->value.is_string() || (!s->resolved && s->value.is_null()));
  };
  for (const ConfigPart& part : scene.files.parts) {
    for (const std::string_view key : {"--deepspeed_config", "--deepspeed-config", "--deepspeed"}) {
      const Setting* const named = part.settings.find(key);
      if (is_file(named)) note_missing(*named, out);
    }
  }
  if (scene.files.find(Dialect::accelerate) != nullptr) return;
  for (const Launch& launch : scene.files.launches) {
    for (const std::string_view key : {"--config_file", "--deepspeed_config_file"}) {
      const Setting* const named = launch.options.find(key);
      if (launch.program == "accelerate" && is_file(named)) note_missing(*named, out);
    }
  }
}

// "--deepspeed_config ds_config.json" beside a file of another name.
void check_named_files(const Scene& scene, Findings& out) {
  const ConfigPart* const config = scene.files.find(Dialect::ds_config);
  for (const ConfigPart& part : scene.files.parts) {
    for (const std::string_view key : {"--deepspeed_config", "--deepspeed-config", "--deepspeed"}) {
      const Setting* const named = part.settings.find(key);
      if (config == nullptr || named == nullptr || !named->value.is_string() || !named->resolved) {
        continue;
      }
      const std::string given = base_name(config->place.file);
      // A block of the same file, or a configuration that a framework brings by a name of its own.
      const bool here =
          config->place.line > 0 || config->place.file == named->place.file || config->derived;
      const std::string written = text_of(named->value);
      if (base_name(written) == given || here) continue;
      // In the folder that is written.
      const std::string meant = written.substr(0, written.rfind('/') + 1) + given;
      out.push_back(
          {error, "other_file_name", named->place,
           fmt::format("{} reads {}, and the file is called {}", key, shown(written), given),
           fmt::format("{} {}", key, meant), "", with_value(scene, *named, meant)});
    }
    const Setting* const yaml = part.settings.find("--megatron_config");
    if (yaml == nullptr) continue;
    out.push_back(
        {error, "no_such_file_argument", yaml->place,
         "neither Megatron-LM nor DeepSpeed reads a file by --megatron_config",
         "pass Megatron's arguments themselves (`qplan emit` writes them)",
         "qplan: planner/frameworks/options/megatron.tsv has what Megatron-LM d98e8a64 reads"});
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
    if (launch.program == "deepspeed") check_deepspeed_launch(scene, launch, out);
    check_launcher_options(launch, out);
    check_script(launch, out);
    check_environment(scene, launch, out);
    check_devices(launch, out);
    check_node_rank(scene, launch, out);
    check_queues(scene, launch, out);
  }
  check_named_files(scene, out);
  check_missing_configs(scene, out);
  check_installs(scene, out);
}

}  // namespace qplan
