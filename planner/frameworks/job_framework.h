#pragma once
// Which framework trains a job, by its files. Private to check().

#include <optional>

#include "planner/frameworks/emit.h"
#include "planner/frameworks/readers/job_files.h"

namespace qplan {

// Nothing: no file speaks of a plan.
std::optional<Framework> framework_of(const JobFiles& files);

// Who hands the job to another framework's code, by whose words it is read.
std::optional<Framework> named_by(const JobFiles& files);

// Whether one of the job's programs wraps its model itself.
bool wraps_model(const JobFiles& files);

}  // namespace qplan
