#pragma once
// "params" of ds_config.json's optimizer and scheduler, which DeepSpeed hands on as they are.

#include "planner/frameworks/scene.h"

namespace qplan {

void check_parameters(const Scene& scene, const ConfigPart& part, Findings& out);

// What ms-swift says on top of a ds_config.json that was not given, and nothing of the file itself.
bool has_degrees_alone(const ConfigPart& part);

}  // namespace qplan
