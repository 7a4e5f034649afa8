#pragma once
// One search of `qplan search`: what is asked, and what was found. A question with lists of
// machines, frameworks or precisions is several (search_lists.cpp).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/job.h"
#include "cli/plan_words.h"
#include "cli/report.h"
#include "cli/rl.h"
#include "planner/search/search.h"

namespace qplan {

struct SearchQuestion {
  JobChoices choices;
  PlanWords words;
  SearchSpace space;
  JobDefaults defaults;
  std::int64_t top = 10, threads = 0;
  Objective objective = Objective::tokens;
  std::string output, prices;
  RlQuestion rl;
  bool json = false, timing = false, pareto = false;
  // Lists, as they were given; a list of one is in `choices` or `words`, too.
  std::vector<std::string> hardware, precisions;
  std::vector<NamedFramework> frameworks;
  [[nodiscard]] bool has_lists() const {
    return hardware.size() > 1 || precisions.size() > 1 || frameworks.size() > 1;
  }
};

struct FoundPlans {
  SearchResult result;
  std::vector<Answer> plans;
  std::vector<UntriedSetting> untried;  // of the best
  double elapsed_s = 0;
};

// `from` and `to`: which share of the whole answer this search is.
FoundPlans find_plans(Job& job, const SearchQuestion& question, const Console& console,
                      double from = 0, double to = 1);

// Whether the prediction cannot tell the i-th plan from the best.
bool is_tie(const FoundPlans& found, std::size_t i);

// What `search --json` says of one search.
Json search_json(const Job& job, const SearchQuestion& question, const FoundPlans& found);

// Writes a plan file.
void write_plan(const Job& job, const Answer& answer, const std::string& path,
                const Console& console);

// The same question of every machine, framework and precision that was listed, in one table.
Exit search_lists(const SearchQuestion& question, const Console& console);

}  // namespace qplan
