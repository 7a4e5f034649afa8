#pragma once
// A training program of one's own, read for what it asks of torch and transformers; nothing of it
// runs.

#include "planner/frameworks/readers/formats.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {

// What its calls say of the job, in the order of the file:
// - "FSDP", once a call of FullyShardedDataParallel, with its keywords ("FSDP.sharding_strategy"),
//   also those of a dictionary in the file, which is read by its keys;
// - "recompute": true, false or "selective", whichever way it is said (transformers', torch's,
//   DeepSpeed's); "recompute.if": the condition that it stands under.
// Empty: none of it is there.
Settings own_script_settings(const PythonText& text, const ConfigText& file);

// Whether it wraps a model.
bool wraps_model(const Settings& own_script);

// Keywords of TrainingArguments(...) and its kind (SFTConfig, ...), as the arguments of a Trainer's
// script: "--gradient_checkpointing".
Settings training_arguments(const PythonText& text);

}  // namespace qplan
