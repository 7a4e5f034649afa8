#pragma once
// "params" of ds_config.json's optimizer and scheduler, which DeepSpeed hands on as they are.

#include "planner/frameworks/scene.h"

namespace qplan {

void check_parameters(const Scene& scene, const ConfigPart& part, Findings& out);

}  // namespace qplan
