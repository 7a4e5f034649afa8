#pragma once
// The model that Megatron's arguments describe, for a job whose files say all of its shapes.

#include <optional>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "planner/frameworks/readers/job_files.h"

namespace qplan {

struct ModelOfFiles {
  Json config;                       // as a Hugging Face config.json says it
  std::vector<std::string> assumed;  // what no argument says: sentences
};

// Nothing: no part describes a model by arguments, or a model of a kind that is not told by them
// (latent attention, layers without attention).
std::optional<ModelOfFiles> model_of_files(const JobFiles& files);

// Why Megatron's arguments describe none, with what may be misspelt and where: the end of a
// sentence. Empty: there are none that would.
std::string why_no_model(const JobFiles& files);

// The same as shapes, of more kinds than a config.json tells: rotation without a gate, biases in
// experts, latent attention, patterns of Mamba-2 layers. The vocabulary is padded as Megatron pads
// it. Throws Error saying what is not stated or not modelled (encoders).
ModelSpec shapes_of_files(const JobFiles& files);

// The checkpoint that a YAML of LLaMA-Factory's or axolotl's names ("Qwen/Qwen3-8B-Base"); empty:
// none does.
std::string model_id_of_files(const JobFiles& files);

// The built-in model of a checkpoint's size, by its name; empty: there is none.
std::string built_in_of_id(const std::string& id);

}  // namespace qplan
