#pragma once
// A training program of one's own, read for what it asks of torch and transformers; nothing of it
// runs.

#include <string_view>

#include "planner/frameworks/readers/formats.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {

// What its calls say of the job, in the order of the file:
// - "FSDP", "fully_shard", "DDP": a call that wraps the model, with its keywords
//   ("FSDP.sharding_strategy"), also those of a dictionary in the file, which is read by its keys.
//   "<call>.layer": one wraps a part of it, with the keywords of one in a loop
//   ("fully_shard.layer.mesh"); "<call>.*": keywords that are not in the file;
// - "mixed_precision.param_dtype" and the like, of MixedPrecision and MixedPrecisionPolicy;
// - "mesh": the sizes of init_device_mesh, null where only a run can tell one, "mesh.names";
// - "weights": "bf16", "fp16", "fp32" or "auto", as they are loaded or made; "loads": what loads
//   them without a word of it; "autocast": products run by it; "tensor_parallel": modules are
//   split;
// - "recompute": true, false or "selective", whichever way it is said (transformers', torch's,
//   DeepSpeed's); "recompute.if": the condition that it stands under.
// - "lora": peft's LoraConfig, where it is used, with "lora.r", "lora.lora_alpha",
//   "lora.lora_dropout", "lora.use_dora", "lora.modules_to_save" (a list) and "lora.target_modules"
//   (a list, or a word);
// - "frozen": what weights are quantised to, as a plan names it ("nf4-double"), "frozen.fp4" where
//   fp4 is in its place; "kbit": peft's prepare_model_for_kbit_training is called.
// - "optimizer": its class, or what a file that is read as a program calls it
//   (optimizer_names.h);
// - "compression": a communication hook of DDP's that makes gradients smaller ("PowerSGD");
// - "pairs", of such files (finetuning/finetuning.h): samples of two sequences.
// Empty: none of it is there.
Settings own_script_settings(const PythonText& text, const ConfigText& file);

// How a program wraps its model: "FSDP", "fully_shard" or "DDP"; empty: it does not.
std::string_view wrapper_of(const Settings& own_script);

// Whether all of the model is one unit, whose weights are gathered at once.
bool is_one_unit(const Settings& own_script);

// Keywords of TrainingArguments(...) and its kind (SFTConfig, ...), as the arguments of a Trainer's
// script: "--gradient_checkpointing".
Settings training_arguments(const PythonText& text, const ConfigText& file);

}  // namespace qplan
