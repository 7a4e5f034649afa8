#pragma once
// accelerate's yaml that names a ds_config.json. Private to check().

#include "planner/frameworks/scene.h"

namespace qplan {

void check_deepspeed_file(const Scene& scene, Findings& out);

}  // namespace qplan
