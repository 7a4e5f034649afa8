#pragma once
// Names and choices that were plainly meant, where another was typed. Private to check().

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/option.h"
#include "planner/frameworks/setting.h"

namespace qplan {

// The one name of these lists that is a slip away from `written`: two letters of a long name, one
// of a short one, or another case; other words ("decoder" for "encoder") and digits are no slips.
// Empty: none is, or several.
std::string certain_name(std::string_view written, std::span<const OptionList* const> lists);

// The same of an option's choices, or the one that is the same format by another name ("float16":
// "fp16").
std::string certain_choice(std::string_view written, const std::vector<std::string>& choices);

// A key with dots, of which one part, a section's name or its own, is a slip of what the list has
// there ("cluster.num_nodes" of "clusetr.num_nodes"). Empty: none is, or the list has it.
std::string slip_of_key(const std::string& name, const OptionList& list);

// Whether keys may stand in a block of that name, whichever they are.
bool has_block(const OptionList& list, const std::string& name);

// Whether a section of which only some keys are listed, or none, holds the key.
bool in_open_section(const OptionList& list, const std::string& name);

// The same where nothing else can be meant: the part is a slip of one name alone, and the list has
// the whole key then, or a section that may hold it.
std::string certain_key(const std::string& name, const OptionList& list);

// The one block of keys that a block of this name is meant to be: a slip of its name, or its
// beginning ("activation_checkpoint"). Empty: the list has the name, or several or none are alike.
std::string certain_block(const std::string& name, const OptionList& list);

// Of a key the outermost block that the list does not have; empty: it has them all.
std::string unknown_block(const std::string& key, const OptionList& list);

// A section, or an outermost key, that was misspelt: all that stands in it is read by nobody.
struct SectionSlip {
  const Setting* first;  // of those that stand in it
  std::string written, real;
};
// Each once, unless the same file has the real one, too: it means both.
std::vector<SectionSlip> slipped_sections(const Settings& settings, const OptionList& list);

}  // namespace qplan
