#include "cli/reliability_options.h"

#include <fmt/format.h>

#include "models/text.h"

namespace qplan {

void add_failure_rate(CommandLine& line, Reliability& facts) {
  line.option({"--failures", "RATE", "unexpected failures per 1000 node-days",
               significant(facts.failures_per_1000_node_days)},
              set_number(facts.failures_per_1000_node_days, 0, 1e5));
}

void add_storage_rates(CommandLine& line, StorageRates& rates) {
  line.option(
      {"--storage-gb-per-s", "GB_PER_S", "rate at which one node writes a checkpoint (assumed)",
       significant(rates.node_gb_per_s)},
      set_number(rates.node_gb_per_s, 0.001, 1e5));
  line.option({"--storage-total-gb-per-s", "GB_PER_S", "rate of the storage for all nodes together",
               significant(rates.total_gb_per_s, 4)},
              set_number(rates.total_gb_per_s, 0.001, 1e7));
}

std::string rate_text(const StorageRates& rates, std::int64_t nodes) {
  const bool all = rates.node_gb_per_s * static_cast<double>(nodes) > rates.total_gb_per_s;
  return fmt::format("{} GB/s a node", significant(rates.node_gb_per_s)) +
         (all ? fmt::format(", {} GB/s in all", significant(rates.total_gb_per_s, 4)) : "");
}

}  // namespace qplan
