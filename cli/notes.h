#pragma once
// What a person should know before trusting an answer: each note a sentence without its full stop.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/report.h"

namespace qplan {

// Of sequences of this length, whatever the plan.
std::vector<std::string> length_notes(const ModelSpec& model, std::int64_t seq_len);
// Of a whole search: the length, and a batch near the default one where that splits over fewer
// data-parallel ranks than there are sequences for.
std::vector<std::string> search_notes(const ModelSpec& model, const SearchSpace& space,
                                      const JobDefaults& defaults);
// Of one plan, the length included.
std::vector<std::string> notes_of(const Job& job, const Answer& answer);
// Above this share of assumed efficiencies ("a fifth", below).
inline constexpr double kMuchAssumed = 0.2;
// Whether so much of the step is priced from assumed efficiencies that its rank is to be marked.
bool rests_on_assumptions(const Estimate& estimate);
inline constexpr const char* kAssumedMark =
    "* more than a fifth of the step is priced from assumed efficiencies, not from measurements of "
    "this GPU: its time, MFU and rank may be far off";

// What keeps our own executor from running a plan on GPUs: one sentence, or none.
std::vector<std::string> backend_notes(const Job& job, const ParallelPlan& plan);

// "note: ..." for each, or nothing.
std::string notes_text(const std::vector<std::string>& notes);

}  // namespace qplan
