#include "cli/reliability_options.h"

#include "models/text.h"

namespace qplan {

void add_failure_rate(CommandLine& line, Reliability& facts) {
  line.option({"--failures", "RATE", "unexpected failures per 1000 node-days",
               significant(facts.failures_per_1000_node_days)},
              set_number(facts.failures_per_1000_node_days, 0, 1e5));
}

void add_storage_rate(CommandLine& line, double& storage_gb_per_s) {
  line.option(
      {"--storage-gb-per-s", "GB_PER_S", "rate at which one node writes a checkpoint (assumed)",
       significant(storage_gb_per_s)},
      set_number(storage_gb_per_s, 0.001, 1e5));
}

}  // namespace qplan
