#pragma once
// The files that `qplan check` reads: those named, and what they read in turn.

#include <string>
#include <vector>

#include "planner/frameworks/readers/recognise.h"

namespace qplan {

// The files named; of what lies beside a script, the scripts that it sources or starts, and the
// configurations that its commands name ("--deepspeed ds_config.json").
std::vector<ConfigText> read_check_files(const std::vector<std::string>& names);

// Why none of a job's files is a configuration; empty: one is. Files that cannot be read are none.
std::string why_no_config(const std::vector<ConfigText>& files);

// What a remark in one of the files says of its job, as options: "--model qwen3-8b --gpus 64" of
// "# qplan: --model qwen3-8b --gpus 64".
struct JobRemark {
  Place place;
  std::vector<std::string> words;  // empty: there is no such remark
};
JobRemark job_remark(const std::vector<ConfigText>& files);

}  // namespace qplan
