#include "planner/runs/trainers.h"

#include <algorithm>
#include <array>

#include "models/ascii.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/runs/run_tables.h"

namespace qplan {
namespace {

constexpr std::array<std::string_view, 2> kTrainerColumns{"trainer", "runs"};

// "NeMo" of "NeMo 25.04" and of "nemo-megatron", not of "nemotron".
bool begins_with_name(std::string_view text, std::string_view name) {
  if (lower_case(text.substr(0, name.size())) != lower_case(name)) return false;
  const char next = text.size() > name.size() ? text[name.size()] : ' ';
  return !is_letter(next) && !is_digit(next);
}

}  // namespace

TrainerTable::TrainerTable(std::string_view tsv, std::string_view where) {
  read_run_table(tsv, where, kTrainerColumns, [this](const CsvTable::Row& row) {
    if (row.cells[0].empty() || row.cells[1].empty()) {
      throw Error("a trainer has a name, and runs that were looked at");
    }
    trainers_.push_back({row.cells[0], row.cells[1]});
  });
}

bool TrainerTable::knows(std::string_view framework) const {
  return framework.empty() ||
         std::any_of(trainers_.begin(), trainers_.end(), [&](const Trainer& trainer) {
           return begins_with_name(framework, trainer.name);
         });
}

const TrainerTable& known_trainers() {
  return built_in_table<TrainerTable>("trainers");
}

}  // namespace qplan
