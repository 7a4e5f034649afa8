#pragma once
// What verl and NeMo-RL share of a check: values of a configuration by their types, and the words
// of a command line that Hydra reads.

#include <string_view>

#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"

namespace qplan {

// Values that are not of their key's type, range or choices, of those that count (the last of a
// key). `choices` false: the program may have words of its own. A word that is no slip of the
// list's is a warning where a later release than `release` may have it; empty: none may.
void check_omega_values(const Scene& scene, const ConfigPart& part, const OptionList& list,
                        bool choices, std::string_view release, std::string_view source,
                        Findings& out);

// Whether a file is missing below the one that is checked: what it does not say itself is not known
// then.
bool lacks_parent(const Findings& out);

// Of YAML: a section by its real name.
Correction renamed_section(const Scene& scene, const SectionSlip& slip);

// Words that are no override ("a.b = c" in three pieces).
void check_stray_words(const ConfigPart& part, std::string_view source, Findings& out);

// Flags that Hydra has not.
void check_hydra_flags(const Scene& scene, const ConfigPart& part, Findings& out);

// A word among the settings that is neither an override nor a flag; its value is the word.
inline constexpr std::string_view kStrayWord = "(word)";

// Hydra's flag of that spelling, or that the beginning of one is, as Python's argparse takes it;
// null: it has none, or several begin so.
const KnownOption* hydra_flag(std::string_view name);
// How it is kept: by its long spelling.
std::string hydra_name(std::string_view name);

}  // namespace qplan
