#pragma once
// Corrects configurations: every correction is made, read back and judged again before it counts.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "planner/frameworks/check.h"

namespace qplan {

// What is said of files: check(), and what its caller adds to it. Throws Error for files that
// cannot be read.
using Judge = std::function<Checked(std::span<const ConfigText>)>;

struct LeftFinding {
  Finding finding;  // of the corrected files
  std::string why;  // it stands: one sentence without its full stop
};

struct FixedFiles {
  std::vector<ConfigText> files;  // all, in their order
  Checked before, checked;        // what is said of the files given, and of these
  // Corrections in the order they were made; the edits of one stand in the text before it.
  std::vector<std::vector<Edit>> steps;
  std::vector<LeftFinding> left;  // what stands, and why
};

// A correction is made if, by the judge: the files are still read, as the same framework's; there
// are fewer errors, or fewer findings where it corrects none; and no kind of finding comes up, or
// more often than before. A misspelt name comes before all else, and is corrected where errors do
// not become more: what it hid may come up. Nothing is taken out beside a name that stays unknown.
// What cannot be made so is left, and said. To fix the result again changes nothing.
FixedFiles fix(std::span<const ConfigText> files, const Judge& judge);

// Why a finding of the files that were given still stands in the corrected ones; empty: it is gone.
std::string why_left(const FixedFiles& fixed, const Finding& finding);

}  // namespace qplan
