#pragma once
// Parts of check_launch (scene.h), to which they are private.

#include <fmt/format.h>

#include <string>

#include "planner/frameworks/scene.h"

namespace qplan {

// Where what is said of a launcher comes from.
inline std::string launcher_of(const Launch& launch) {
  return fmt::format("launcher: {}", launch.program);
}

// The environment that a script has set before a launch.
void check_launch_environment(const Scene& scene, const Launch& launch, Findings& out);
// The same that configurations set, and what deterministic runs ask of either.
void check_variables(const Scene& scene, Findings& out);
// Configurations that are named: whether they are there, by that name.
void check_named_files(const Scene& scene, Findings& out);

}  // namespace qplan
