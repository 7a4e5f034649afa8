#pragma once
// What a Hugging Face Trainer, by whoever starts it, does with a plan where its files do not say:
// which checkpoints recompute, what adapters lie in, and whether every microbatch is reduced.

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "planner/frameworks/finding.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/job_files.h"

namespace qplan {

// "gradient_checkpointing_kwargs" and "use_reentrant": what a block, by its keys or as a text of
// JSON or Python, says of a word.
struct SaidWithin {
  bool value;
  Place place;
};
std::optional<SaidWithin> said_within(const Settings& settings, std::string_view block,
                                      std::string_view word);

// use_reentrant, lora_dtype and sync_each_batch of a plan whose recipe, degrees and batch are read,
// and where each of them was said.
void settle_trainer_habits(const JobFiles& files, Draft& draft,
                           std::map<std::string, Place, std::less<>>& said);

}  // namespace qplan
