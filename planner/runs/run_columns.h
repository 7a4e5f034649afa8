#pragma once
// The columns of a file of measured runs (docs/reference/contract.md 7).

#include <span>
#include <string>
#include <string_view>

#include "models/csv.h"

namespace qplan {

struct RunColumn {
  std::string_view name;
  bool needed;               // a file without it is refused
  std::string_view example;  // of a run that was published
};

std::span<const RunColumn> run_columns();  // in the order of the header

// ... or one that a file may have besides.
bool is_run_column(std::string_view name);

// Throws Error naming every column that is missing.
void require_run_columns(const CsvTable& table);

// A file to begin with: the header, and one run behind a '#', which makes it a remark.
std::string run_template();

}  // namespace qplan
