#pragma once
// What transformers' Trainer refuses of a program's arguments, and of them and accelerate's FSDP
// together. Private to check().

#include "planner/frameworks/scene.h"

namespace qplan {

void check_training(const Scene& scene, Findings& out);

}  // namespace qplan
