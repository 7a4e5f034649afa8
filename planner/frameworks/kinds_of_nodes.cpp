#include "planner/frameworks/kinds_of_nodes.h"

#include <fmt/format.h>

#include "costmodel/evaluate.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {
namespace {

bool ranked_by_ray(Framework framework) {
  return framework == Framework::slime || framework == Framework::verl ||
         framework == Framework::nemo_rl;
}

std::string from_to(std::int64_t first, std::int64_t count) {
  return count == 1 ? fmt::format("{}", first) : fmt::format("{} to {}", first, first + count - 1);
}

// A host's name as the file's user replaces it: letters that every host may have.
std::string placeholder(const std::string& kind, std::int64_t node) {
  std::string name;
  for (const char c : kind) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    name += plain ? c : '-';
  }
  return fmt::format("{}-node-{}", name, node);
}

}  // namespace

bool on_several_kinds(const Subject& s) {
  return s.cost != nullptr && !s.cost->kinds().empty();
}

std::optional<Infeasible> kinds_unordered(Framework framework, const ClusterLimits& limits) {
  if (limits.kinds.empty()) return std::nullopt;
  if (ranked_by_ray(framework)) {
    // By address: slime 624b824a, slime/ray/placement_group.py (sort_key), verl's
    // single_controller/ray/base.py (sort_placement_group_by_node_ip); by id: NeMo-RL's
    // distributed/virtual_cluster.py (_get_sorted_bundle_indices).
    return Infeasible{"kinds_ranked_by_ray",
                      fmt::format("{} ranks nodes by their addresses or ids in Ray, not by their "
                                  "kind of GPU, on which the stages depend; use megatron",
                                  to_word(framework))};
  }
  for (const GpusOfKind& kind : limits.kinds) {
    const int node = limits.kinds.front().gpus_per_node;
    if (kind.gpus_per_node != node) {
      return Infeasible{
          "kinds_in_like_nodes",
          fmt::format("nodes of {} have {} GPUs and those of {} {}, and one script starts as many "
                      "ranks on each; say how many with --gpus-per-node",
                      limits.kinds.front().name, node, kind.name, kind.gpus_per_node)};
    }
    if (node > 0 && kind.gpus % node != 0) {
      return Infeasible{
          "kinds_in_whole_nodes",
          fmt::format("{} GPUs of {} do not fill nodes of {}; say how many they have with "
                      "--gpus-per-node",
                      kind.gpus, kind.name, node)};
    }
  }
  return std::nullopt;
}

std::string kinds_remark(Framework framework, const Subject& s) {
  if (!on_several_kinds(s)) return "";
  const std::int64_t stage = s.plan.world() / s.plan.pp;
  std::int64_t gpus = 0;
  std::string text;
  for (const GpusOfKind& kind : s.cost->kinds()) {
    const std::string nodes = from_to(gpus / s.gpus_per_node, kind.gpus / s.gpus_per_node);
    const std::string ranks = from_to(gpus / stage, kind.gpus / stage);
    text += text.empty() ? fmt::format("node ranks {} are of {} (pipeline ranks {})", nodes,
                                       kind.name, ranks)
                         : fmt::format(", {} of {} ({})", nodes, kind.name, ranks);
    gpus += kind.gpus;
  }
  const std::string_view where = framework == Framework::megatron_deepspeed
                                     ? "DeepSpeed's hostfile has them in that order"
                                     : "under Slurm, name them in hosts.txt in that order";
  return fmt::format("{}; {}", text, where);
}

EmittedFile hosts_file(const Subject& s) {
  std::string text;
  for (const GpusOfKind& kind : s.cost->kinds()) {
    for (std::int64_t node = 0; node < kind.gpus / s.gpus_per_node; ++node) {
      text += placeholder(kind.name, node) + '\n';
    }
  }
  return {std::string(kHostsFile), text, false};
}

}  // namespace qplan
