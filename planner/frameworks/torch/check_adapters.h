#pragma once
// What PEFT refuses of adapters, whoever's file asks for them. Private to check().

#include "planner/frameworks/scene.h"

namespace qplan {

// A rank of none, and names of modules of which the model has none.
void check_adapters(const Scene& scene, Findings& out);

// The names alone, where a file's own key has them. `severity` is a warning's where a program may
// have put modules of its own into the model.
void check_targets(const Scene& scene, const Setting& targets, Severity severity, Findings& out);

}  // namespace qplan
