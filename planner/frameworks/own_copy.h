#pragma once
// The copy of a framework that a file stands in: names and words that its parser has, and the
// release that is checked has not.

#include <span>
#include <string_view>
#include <vector>

#include "planner/frameworks/finding.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {

// Where a repository says its arguments, below its root: a file, or a folder of them ("a/").
std::span<const std::string_view> files_of_parsers();

// Whether a file is one of these, by its path, and so none of a job's.
bool is_parser(const ConfigText& file);

// Findings of names and words that a copy's parser among the files has: a note instead. Whether
// there is one.
bool leave_to_copies(std::span<const ConfigText> files, std::vector<Finding>& findings);

}  // namespace qplan
