#pragma once
// What `predict`, `sweep` and `goodput` ask of a cluster's failures and its storage.

#include <cstdint>
#include <string>

#include "cli/options.h"
#include "planner/search/goodput.h"

namespace qplan {

void add_failure_rate(CommandLine& line, Reliability& facts);  // --failures

struct StorageRates {
  double node_gb_per_s = CheckpointStorage{}.per_node.value() / 1e9;
  double total_gb_per_s = CheckpointStorage{}.total.value() / 1e9;

  [[nodiscard]] CheckpointStorage storage() const {
    return {gb_per_s(node_gb_per_s), gb_per_s(total_gb_per_s)};
  }
};
// --storage-gb-per-s and --storage-total-gb-per-s
void add_storage_rates(CommandLine& line, StorageRates& rates);
// "2.00 GB/s a node", and what the storage takes in all where so many nodes reach it.
std::string rate_text(const StorageRates& rates, std::int64_t nodes);

}  // namespace qplan
