#pragma once
// For scripts/validate_emitted.py: QPLAN_TEST_KEEP=DIR keeps what is emitted.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "planner/frameworks/emit.h"

namespace qplan {

// DIR/<framework>/<number>/, with the plan and the rules that it breaks beside the files.
inline void keep(const std::string& framework, std::int64_t number,
                 const std::vector<EmittedFile>& files, const ParallelPlan& plan,
                 const std::string& model, const std::vector<Infeasible>& broken = {}) {
  const char* const folder = std::getenv("QPLAN_TEST_KEEP");
  if (folder == nullptr) return;
  namespace fs = std::filesystem;
  const fs::path path = fs::path(folder) / framework / std::to_string(number);
  fs::create_directories(path);
  for (const EmittedFile& file : files) std::ofstream(path / file.name) << file.text;
  Json note{{"model", model}, {"gpus", plan.world()}, {"short", to_string(plan)}};
  note["plan"] = plan_to_json(plan);
  Json& rules = note["rules"] = Json::array();
  for (const Infeasible& reason : broken) rules.push_back(reason.rule);
  std::ofstream(path / "plan.json") << note.dump(2) << '\n';
}

}  // namespace qplan
