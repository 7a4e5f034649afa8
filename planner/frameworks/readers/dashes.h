#pragma once
// Dashes that are not the two of an option: "—lr" as a text processor makes them, or one of them
// lost ("-ckpt-format x"); and two that stand alone. Private to the readers.

#include <span>
#include <vector>

#include "planner/frameworks/finding.h"
#include "planner/frameworks/shell/shell.h"

namespace qplan {

// The words with options spelled as they are meant, behind the first one that starts a program or
// is an option; each that was not is a finding.
std::vector<ShellWord> with_two_dashes(std::vector<ShellWord> words,
                                       std::vector<Finding>& findings);

// A finding where the words of "ray job submit python train.py --a 1" have no "--" before the
// program: without it Ray reads the program's arguments as its own.
void find_lost_dashes(std::span<const ShellWord> words, std::vector<Finding>& findings);

}  // namespace qplan
