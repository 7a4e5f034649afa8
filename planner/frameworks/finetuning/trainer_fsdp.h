#pragma once
// The file that a Trainer's --fsdp_config names, beside its --fsdp (transformers 5.23.0,
// src/transformers/training_args.py:2775, _process_fsdp_args).

#include <string>
#include <vector>

#include "planner/frameworks/setting.h"

namespace qplan {

// Keys that stand in a Trainer's settings, once its file was found, begin with it.
inline constexpr std::string_view kTrainersFsdp = "fsdp_config.";

// What a Trainer reads of such a file, without the "fsdp_" that each may begin with.
const std::vector<std::string>& fsdp_keys_of_trainer();

// A key's own name: "version" of "fsdp_version".
std::string without_fsdp(const std::string& key);

// Whether a file's keys are all such, of no other file's name.
bool is_fsdp_of_trainer(const Settings& json);

// What accelerate is told by --fsdp and the file's keys, in the words of its yaml. Empty: --fsdp is
// off, and nobody reads the file.
Settings accelerate_of_trainer(const Settings& trainer);

}  // namespace qplan
