#pragma once
// Forks of Megatron: whose arguments a job has that neither Megatron-LM nor Megatron-DeepSpeed
// knows, and what is said of such a job.

#include <string>
#include <vector>

#include "planner/frameworks/scene.h"

namespace qplan {

// What a part says in a fork's own words.
struct ForkWords {
  std::string owner;                  // "MindSpeed-LLM"; empty: no fork's
  std::vector<const Setting*> words;  // in the order of the part
};

// The fork whose program a part's arguments are for: two of its own at least tell it, one of them
// by a name that nobody else has (options/megatron_forks.tsv).
ForkWords fork_of(const ConfigPart& part);

// Where a job is a fork's: its arguments are one note, and what may be otherwise there is no error.
// Whether there is such a part.
bool leave_to_forks(const JobFiles& files, Findings& findings);

}  // namespace qplan
