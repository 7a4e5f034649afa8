#pragma once
// What `qplan size` is asked.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/job.h"
#include "cli/options.h"
#include "cli/plan_words.h"

namespace qplan {

enum class SizeOf : std::uint8_t { gpus, sequence, micro_batch, cost, model };

inline constexpr double kTokensOfSize = 1e12;  // of a run, where nobody says how many
struct SizeQuestion {
  JobChoices choices;
  PlanWords words;
  SearchSpace space;
  bool fewest = false, longest = false, micro = false, largest_model = false;
  std::string prices;
  std::optional<double> tokens, days;  // of the run that is priced; no days: however long it takes
  std::int64_t threads = 0;
  bool json = false, tried = false;
  SizeOf of = SizeOf::gpus;
  std::function<void(double)> progress;  // of each search
};

void add_size_options(CommandLine& line, SizeQuestion& question);

// Which question it is. Throws Error where options belong to another one.
void settle_size_question(SizeQuestion& question);

}  // namespace qplan
