#pragma once
// Configurations as check() takes them, for tests.

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/frameworks/emit.h"

namespace qplan {

inline CheckQuestion question_of(const ModelSpec& model, const Json& config, std::int64_t gpus) {
  return {model, config, {.gpus = gpus, .compute_capability = 90}, 8, {}, {}, {}};
}

inline std::vector<ConfigText> texts_of(const std::vector<EmittedFile>& files) {
  std::vector<ConfigText> texts;
  for (const EmittedFile& file : files) {
    if (file.name != "README.md") texts.push_back({file.name, file.text});
  }
  return texts;
}

inline std::string findings_text(const Checked& checked) {
  std::string text;
  for (const Finding& f : checked.findings) {
    text += to_string(f.place) + ": [" + f.rule + "] " + f.message + "\n";
  }
  return text;
}

// Words that say nothing here, at their default: what no configuration can tell apart.
inline ParallelPlan canonical(ParallelPlan p, const ModelSpec& model) {
  const ParallelPlan defaults;
  p.routing = defaults.routing;  // a question of the data, not of a configuration
  if (p.cp == 1) p.cp_comm = defaults.cp_comm;
  if (!model.moe) p.moe_dispatcher = defaults.moe_dispatcher;
  if (!p.cuda_graph) p.cuda_graph_scope = defaults.cuda_graph_scope;
  if (p.tp == 1) p.overlap.remove(OverlapKind::tp);
  if (p.pp == 1) p.schedule = ScheduleKind::one_f_one_b;
  if (p.fsdp_shard == p.dp * p.cp) p.fsdp_shard = 0;
  return p;
}

}  // namespace qplan
