#pragma once
// A profile is laid over others: over the one that it `extends`, which may extend another, and all
// of them over what its generation of GPUs has in common (profiles/generations).
//
// Objects are merged key by key; anything else (a number, a list) takes the place of what lies
// below, and null takes it away. Measured tables of products, or of collectives, take the place of
// those below, whether they are a file's own or built in by name.

#include <array>
#include <string>
#include <vector>

#include "models/json.h"

namespace qplan {

// What `attention` holds fits of, a list for each kind of kernel.
inline constexpr auto kAttentionKernels =
    std::to_array<const char*>({"fits", "flash2", "flex", "fp8"});

// Where a profile comes from.
struct ProfileOrigin {
  std::string where;  // what messages begin with, as JsonReader takes it
  std::string file;   // its path, from which those that it extends are found; empty: no file
  bool built_in = false;
};

// The whole profile, as if all of it had been written in one. A file that extends the profile of
// another GPU takes over fits and tables that were not measured on its own: they are marked
// `assumed`. Throws Error for an `extends` that cannot be followed.
Json layered_profile(const Json& own, const ProfileOrigin& origin);

// A profile's file and those that it extends, one after the other; none: it is built in.
std::vector<std::string> files_of_profile(const std::string& name_or_path);

// A built-in profile's, or null where there is none of this name.
const Json* built_in_profile(const std::string& name);
std::vector<std::string> built_in_profile_names();

}  // namespace qplan
