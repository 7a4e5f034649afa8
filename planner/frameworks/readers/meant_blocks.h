#pragma once
// Blocks of keys whose names were misspelt ("zero_optmization"), read as those that are meant.

#include <string>
#include <vector>

#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/job_files.h"

namespace qplan {

// The blocks of `settings`, all of one file, that the list does not have and that can be one of it
// alone, unless the file has that one, too. Their keys are then those of the block that is meant.
std::vector<MeantBlock> mend_block_names(Settings& settings, const OptionList& list,
                                         const std::string& text);

// The parts without what stands in such blocks: what a reader makes of them that passes it over.
std::vector<ConfigPart> without_blocks(std::vector<ConfigPart> parts);

}  // namespace qplan
