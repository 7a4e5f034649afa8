#pragma once
// Files of programs that are not read here, which share names with those that are: no plan may be
// made of them.

#include "planner/frameworks/setting.h"

namespace qplan {

// Whether a file is put together of others, or says which classes its sections go to: Hydra's
// "defaults" and "_target_", Primus's "modules", and lists of files ("extends", "bases"). Arguments
// of a parser's are not.
bool is_composed(const Settings& yaml);

// Whether a YAML has Megatron's degrees or layers as keys, by themselves or in sections, of
// whatever program.
bool has_sizes_of_megatron(const Settings& yaml);

// Whether Megatron's parser has the most of its names: all of them outermost, in one section, or in
// the sections of its own YAML.
bool is_of_megatrons_names(const Settings& yaml);

// Whether accelerate has the most of its outermost names, of which it refuses any other.
bool is_of_accelerates_names(const Settings& yaml);

// Whether TRL and a Trainer have so few of its outermost names that it is of a program of its own.
bool is_foreign_to_trl(const Settings& yaml);

// What ms-swift writes of a run, for itself to read: all its arguments, and what it made of them.
bool is_written_by_swift(const Settings& json);

}  // namespace qplan
