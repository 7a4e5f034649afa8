#pragma once
// What of a job stands on top of what: commands on the YAMLs that they name, NeMo-RL's files on
// their "defaults", verl's overrides on its YAML; and the jobs that fine-tuners make of it.

#include "planner/frameworks/readers/gathered_job.h"

namespace qplan {

// One part of each job is left, and the parts that follow from it are added (ConfigPart::derived).
void put_together(GatheredJob& job);

// Parts of a job of which some say something else now, with what follows from them.
std::vector<ConfigPart> derived_again(std::vector<ConfigPart> parts);

}  // namespace qplan
