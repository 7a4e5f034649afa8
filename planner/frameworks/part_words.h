#pragma once
// Words of a plan, as single parts of a job say them. Private to check().

#include <map>
#include <string>

#include "planner/frameworks/scene.h"

namespace qplan {

// What this part says, read on top of the draft; which words is added to `said`.
void read_part(const ConfigPart& part, Draft& draft,
               std::map<std::string, Place, std::less<>>& said, Findings& out);

// Of slime's batches of varying sequences: tokens a GPU may hold.
void read_slime(const Settings& settings, Draft& draft, Findings& out);

// Two files that say the same word otherwise. `unsaid` is the draft before any is read.
void check_contradictions(const Scene& scene, const Draft& unsaid, Findings& out);

// Whether activations are recomputed, where a program says so in a way that only a run can tell.
void note_recompute(const Settings& own_script, Findings& out);

}  // namespace qplan
