#include "planner/frameworks/torch/check_machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/readers/accelerate_keys.h"

namespace qplan {
namespace {

using enum Severity;

class Machines {
 public:
  Machines(const Scene& scene, const ConfigPart& part) : part_(part) {
    for (const Launch& launch : scene.files.launches) {
      if (launch.program == "accelerate") launches_.push_back(&launch);
    }
  }

  [[nodiscard]] bool launched() const { return !launches_.empty() || part_.place.line > 0; }

  // Null: nobody says it.
  [[nodiscard]] const Setting* said(const std::string& key) const {
    std::string dashed = key;
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    for (const Launch* const launch : launches_) {
      for (const std::string& name : {"--" + key, "--" + dashed}) {
        if (const Setting* const own = launch->options.find(name)) return own;
      }
    }
    const Setting* const own = part_.settings.find(key);
    return own == nullptr || own->value.is_null() ? nullptr : own;
  }

  // Nothing: nobody says it, or only a run can tell.
  [[nodiscard]] std::optional<std::int64_t> number(const std::string& key) const {
    const Setting* const found = said(key);
    if (found == nullptr || !found->resolved) return std::nullopt;
    try {
      return whole_of(found->value, 1, 1 << 20);
    } catch (const Error&) {
      return std::nullopt;  // refused elsewhere
    }
  }

 private:
  const ConfigPart& part_;
  std::vector<const Launch*> launches_;
};

void check_shares(const Machines& m, Findings& out) {
  const auto machines = m.number("num_machines"), processes = m.number("num_processes");
  if (!machines || !processes || *processes % *machines == 0) return;
  const std::int64_t each = *processes / *machines;
  out.push_back(
      {error,
       "uneven_machines",
       m.said("num_processes")->place,
       fmt::format(
           "{} processes do not fall on {} machines alike: accelerate starts {} on each, {} "
           "in all",
           *processes, *machines, each, each * *machines),
       fmt::format("num_processes: a multiple of {}, which counts all machines", *machines),
       "accelerate 16cb6eb8, src/accelerate/utils/launch.py:217",
       {}});
}

// "0,1" of gpu_ids becomes CUDA_VISIBLE_DEVICES on each machine.
void check_ids(const Machines& m, Findings& out) {
  const Setting* const said = m.said("gpu_ids");
  const auto processes = m.number("num_processes");
  if (said == nullptr || !said->resolved || !processes) return;
  if (m.said("num_machines") != nullptr && !m.number("num_machines")) return;
  const std::string ids = text_of(said->value);
  if (ids.empty() || ids.find_first_not_of("0123456789, ") != std::string::npos) return;
  const std::int64_t each = *processes / m.number("num_machines").value_or(1);
  const std::int64_t devices = std::count(ids.begin(), ids.end(), ',') + 1;
  if (each <= devices) return;
  out.push_back(
      {error,
       "visible_devices",
       said->place,
       fmt::format("accelerate starts {} processes on a machine, and gpu_ids {} leaves it "
                   "{} of its devices",
                   each, ids, devices),
       fmt::format("gpu_ids: all, or {} processes", devices),
       "accelerate 16cb6eb8, src/accelerate/utils/launch.py:260",
       {}});
}

// Of a yaml alone the command may say it. DeepSpeed's own launchers know the hosts by their
// hostfile.
void check_address(const Machines& m, const ConfigPart& part, Findings& out) {
  const auto machines = m.number("num_machines");
  if (!m.launched() || !machines || *machines < 2) return;
  if (m.said("main_process_ip") != nullptr) return;
  const std::string type = distributed_type_of(part.settings).meant;
  const Setting* launcher = m.said("deepspeed_multinode_launcher");
  if (launcher == nullptr) {
    launcher = part.settings.find("deepspeed_config.deepspeed_multinode_launcher");
  }
  const bool standard =
      launcher != nullptr && launcher->resolved && same_value(launcher->value, "standard");
  if (type != "FSDP" && type != "MULTI_GPU" && !(type == "DEEPSPEED" && standard)) return;
  out.push_back({error,
                 "no_main_process_ip",
                 m.said("num_machines")->place,
                 fmt::format("nothing says where {} machines meet: accelerate hands \"None\" on as "
                             "the address",
                             *machines),
                 "main_process_ip: the address of the machine of rank 0",
                 "accelerate 16cb6eb8, src/accelerate/utils/launch.py:221",
                 {}});
}

// Machines count from 0, and one beyond the last waits for a place that nobody has.
void check_rank(const Machines& m, Findings& out) {
  const auto machines = m.number("num_machines"), rank = m.number("machine_rank");
  if (!machines || !rank || *machines < 1 || *rank < *machines) return;
  out.push_back({error,
                 "machine_rank",
                 m.said("machine_rank")->place,
                 fmt::format("machine_rank is {}, and {} machines have the ranks 0 to {}", *rank,
                             *machines, *machines - 1),
                 "a rank of its own for each machine, from 0",
                 "arithmetic: ranks of machines, which torchrun is handed as --node_rank",
                 {}});
}

// What the simple launcher alone hands on (ACCELERATE_USE_CPU, line 133).
void check_cpu(const Machines& m, const ConfigPart& part, Findings& out) {
  const Setting* const cpu = m.said("use_cpu");
  if (cpu == nullptr || !cpu->resolved || !same_value(cpu->value, Json(true))) return;
  const std::string type = distributed_type_of(part.settings).meant;
  if (type != "FSDP" && type != "MULTI_GPU" && type != "DEEPSPEED") return;
  out.push_back(
      {note,
       "cpu_of_other_types",
       cpu->place,
       fmt::format("use_cpu means nothing to distributed_type {}, which runs on GPUs", type),
       "use_cpu: false",
       "accelerate 16cb6eb8, src/accelerate/utils/launch.py:133",
       {}});
}

// A section that a job of this type does not read.
void check_other_section(const ConfigPart& part, Findings& out) {
  const std::string type = distributed_type_of(part.settings).meant;
  for (const auto& [section, reader] :
       {std::pair{"fsdp_config.", "FSDP"}, {"deepspeed_config.", "DEEPSPEED"}}) {
    const bool other = (type == "FSDP" || type == "DEEPSPEED") && type != reader;
    if (!other || !part.settings.has_section(section)) continue;
    const auto first =
        std::find_if(part.settings.begin(), part.settings.end(),
                     [&, name = section](const Setting& s) { return s.key.starts_with(name); });
    out.push_back(
        {warning,
         "idle_section",
         first->place,
         fmt::format("{} means nothing to distributed_type {}",
                     std::string_view(section).substr(0, std::string_view(section).size() - 1),
                     type),
         fmt::format("leave it out, or distributed_type: {}", reader),
         "accelerate 16cb6eb8, src/accelerate/commands/launch.py:1218",
         {}});
  }
}

// int() of what PyYAML has read: 1e8 is a text to it, and 1.0e+8 becomes "100000000.0".
void check_smallest_unit(const Scene& scene, const ConfigPart& part, Findings& out) {
  const Settings& s = part.settings;
  const Setting* const size = s.find("fsdp_config.fsdp_min_num_params");
  const Setting* const policy = s.find("fsdp_config.fsdp_auto_wrap_policy");
  const bool by_size = policy != nullptr && same_value(policy->value, Json("SIZE_BASED_WRAP"));
  if (size == nullptr || !size->resolved || !by_size) return;
  if (distributed_type_of(s).meant != "FSDP" || size->value.is_number_integer()) return;
  const std::string written = text_of(size->value);
  const bool digits = size->value.is_string() && !written.empty() &&
                      written.find_first_not_of("0123456789") == std::string::npos;
  if (digits) return;
  Correction fix;
  try {
    fix =
        with_value(scene, *size, fmt::format("{}", static_cast<std::int64_t>(std::stod(written))));
  } catch (const std::exception&) {
    fix = {};  // no number at all
  }
  out.push_back({error, "refused_value", size->place,
                 fmt::format("fsdp_min_num_params is {}, and must be a whole number in digits",
                             shown(written)),
                 "", "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py:1922",
                 std::move(fix)});
}

// num_processes counts all machines. Of FSDP's and DDP's yaml it is compared where their degrees
// are.
void check_world(const Scene& scene, const Machines& m, const ConfigPart& part, Findings& out) {
  const Setting* const said = m.said("num_processes");
  const auto processes = m.number("num_processes");
  const std::int64_t gpus = scene.question.limits.gpus;
  if (!has_names_alone(part) || !processes || gpus <= 0 || *processes == gpus) return;
  out.push_back({error, "launched_world", said->place,
                 fmt::format("num_processes counts the GPUs of all nodes: {}, not the job's {}",
                             *processes, gpus),
                 fmt::format("num_processes: {}", gpus),
                 "accelerate 16cb6eb8, src/accelerate/commands/config/config_args.py:180",
                 with_value(scene, *said, fmt::format("{}", gpus))});
}

}  // namespace

void check_machines(const Scene& scene, const ConfigPart& part, Findings& out) {
  const Machines machines(scene, part);
  check_shares(machines, out);
  check_world(scene, machines, part, out);
  check_ids(machines, out);
  check_address(machines, part, out);
  check_rank(machines, out);
  check_cpu(machines, part, out);
  check_other_section(part, out);
  check_smallest_unit(scene, part, out);
}

}  // namespace qplan
