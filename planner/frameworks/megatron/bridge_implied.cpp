#include "planner/frameworks/megatron/bridge_implied.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace qplan {
namespace {

// comm_overlap, where there is one, overlaps data parallelism unless it says otherwise, and what
// ddp says counts where there is none (training/comm_overlap.py, setup()).
std::vector<PythonAssignment> with_overlaps(std::vector<PythonAssignment> fields) {
  constexpr std::string_view kSection = "comm_overlap";
  const auto find = [&](const std::string& field) {
    return std::find_if(fields.begin(), fields.end(),
                        [&](const PythonAssignment& a) { return a.target == field; });
  };
  const auto section = std::find_if(fields.begin(), fields.end(), [&](const auto& assignment) {
    const bool none = assignment.value.resolved && assignment.value.value.is_null();
    return assignment.target.starts_with(kSection) && !none;
  });
  std::vector<PythonAssignment> overlaps;
  for (const std::string name : {"overlap_grad_reduce", "overlap_param_gather"}) {
    const std::string field = fmt::format("{}.{}", kSection, name);
    const auto ddp = find("ddp." + name);
    if (find(field) != fields.end()) continue;
    if (section != fields.end()) {
      overlaps.push_back({field, section->value});
      overlaps.back().value.value = true;
      overlaps.back().value.resolved = true;
    } else if (ddp != fields.end()) {
      overlaps.push_back({field, ddp->value});
    }
  }
  fields.insert(fields.end(), overlaps.begin(), overlaps.end());
  return fields;
}

// A section ddp that is made whole shards nothing by Megatron-FSDP unless it says so
// (megatron/core/distributed/distributed_data_parallel_config.py:103); recipes say that all is.
std::vector<PythonAssignment> with_strategy(std::vector<PythonAssignment> fields) {
  const auto find = [&](std::string_view field) {
    return std::find_if(fields.begin(), fields.end(),
                        [&](const PythonAssignment& a) { return a.target == field; });
  };
  const auto whole = find("ddp");
  const bool made = whole != fields.end() && whole->value.text.find('(') != std::string::npos;
  if (!made || find("ddp.data_parallel_sharding_strategy") != fields.end()) return fields;
  PythonAssignment none{"ddp.data_parallel_sharding_strategy", whole->value};
  none.value.value = "no_shard";
  none.value.resolved = true;
  fields.push_back(std::move(none));
  return fields;
}

}  // namespace

std::vector<PythonAssignment> with_implied(std::vector<PythonAssignment> fields) {
  return with_strategy(with_overlaps(std::move(fields)));
}

}  // namespace qplan
