#pragma once
// torchtitan's TOML job files, of releases up to 0.2.1 (81af8833d): what they say in the words of
// the functions in Python that took their place.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/setting.h"

namespace qplan {

TrainerJob job_of_titan_toml(const Settings& toml, const Place& place);

// The built-in model that "model.name" and "model.flavor" are, if its shapes are exactly theirs;
// else their own names.
std::string model_of_titan_toml(const Settings& toml);

// Ranks that its degrees multiply to, where all are said; nothing: one is what the others leave.
std::optional<std::int64_t> ranks_of_titan_toml(const Settings& toml);

// A name of older releases, and what 0.2.1 has in its place; empty: nothing.
struct OldTitanName {
  std::string_view written, now;
};
std::span<const OldTitanName> old_titan_names();

}  // namespace qplan
