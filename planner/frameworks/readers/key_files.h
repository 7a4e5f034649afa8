#pragma once
// Files of keys: whose a JSON, a YAML or a TOML is, and which part of the job it makes.

#include <string>

#include "planner/frameworks/readers/gathered_job.h"

namespace qplan {

// A file, or a here-document of a script, whose first line is that one's.
void read_json(const std::string& text, const std::string& name, int first_line, GatheredJob& job);
void read_yaml(const ConfigText& file, GatheredJob& job);
void read_toml(const ConfigText& file, GatheredJob& job);

// LLaMA-Factory's keys, from whatever names them. Its files for chatting, exporting and evaluating
// have the same.
void add_llama_factory(Settings settings, Place place, GatheredJob& job);

// "env_vars" of what Ray is handed by --runtime-env-json.
void add_runtime_environment(const Setting& json, GatheredJob& job);

// ds_config.json's keys of what starts DeepSpeed by accelerate's.
void add_deepspeed_of(const Settings& accelerate, Place place, GatheredJob& job);

}  // namespace qplan
