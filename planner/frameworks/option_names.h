#pragma once
// Names of options: whether a part of a job may use one, and which one is meant where it may not.
// Private to check().

#include <string>

#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/job_files.h"

namespace qplan {

bool is_known(const ConfigPart& part, const std::string& key);
// The same in the place where it stands: a parser that takes a YAML's keys for the fields of its
// classes knows none with a dash, which its command line has.
bool is_known(const ConfigPart& part, const Setting& setting);

// What the lists say of it; null: they say nothing, as of some names that are known.
const KnownOption* known_option(const ConfigPart& part, const std::string& written);

// The name that is certainly meant, and the one that is spelled most alike; empty: none is.
std::string certain_key(const ConfigPart& part, const Setting& written);
std::string nearest_key(const ConfigPart& part, const Setting& written);

// "data_stages.name" of "data_stages.0.name", an entry of a list.
std::string without_indices(const std::string& key);

}  // namespace qplan
