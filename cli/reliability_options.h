#pragma once
// What `sweep` and `goodput` ask of a cluster's failures and its storage.

#include "cli/options.h"
#include "planner/search/goodput.h"

namespace qplan {

void add_failure_rate(CommandLine& line, Reliability& facts);        // --failures
void add_storage_rate(CommandLine& line, double& storage_gb_per_s);  // --storage-gb-per-s

}  // namespace qplan
