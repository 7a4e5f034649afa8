#pragma once
// The files of one job, told apart and read: which framework each speaks to, and what starts it.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "planner/frameworks/readers/formats.h"
#include "planner/frameworks/readers/launch.h"
#include "planner/frameworks/readers/recognise.h"
#include "planner/frameworks/setting.h"
#include "planner/frameworks/shell/shell.h"

namespace qplan {

// A block of keys whose name was misspelt: what stands in it is read as the one that is meant.
struct MeantBlock {
  std::string written, meant;  // "zero_optmization", "zero_optimization"
  Place place;
  Span name;  // in the file; empty: it does not stand there in one piece
};

// Settings of one dialect, of one file or command.
struct ConfigPart {
  Dialect dialect = Dialect::megatron;
  Settings settings;
  Place place;
  std::string script;          // that takes the arguments; empty: not known, or no arguments
  bool of_accelerate = false;  // what accelerate makes ds_config.json's keys of, and those
  std::string open_word{};     // that only a run can tell: it may be more arguments; empty: none
  // Of another part, in the words of the framework that it hands them to: no names of its own.
  bool derived = false;
  std::vector<MeantBlock> meant_blocks{};
};

// accelerate's yaml that starts DeepSpeed: what it says is read as ds_config.json's keys, and its
// own names are held against accelerate's.
bool has_names_alone(const ConfigPart& part);

// Of the environment of all that a job starts, where a configuration says it.
struct JobVariable {
  std::string name, value;
  Place place;
};

struct JobFiles {
  std::vector<ConfigText> texts;
  std::vector<ConfigPart> parts;
  std::vector<Launch> launches;
  std::vector<JobVariable> environment;  // what launches have of their scripts is not among it
  std::vector<PythonText> python;
  // Of Megatron-Bridge a program, the YAML on top of it and the words of a command on top of that,
  // as one program; empty: there is a program alone, or none.
  PythonText bridge;
  bool bridge_is_whole = false;      // a run wrote it, whatever release it was
  std::vector<ShellWord> installs;   // "deepspeed==0.10.0" of pip install
  std::vector<ShellWord> functions;  // that make a configuration: torchtitan's --config
  ShellWord gpu;                     // that a command names: "gb300"
  std::vector<ShellWord> missing;    // scripts that are started and were not given
  std::vector<Finding> findings;
  std::optional<std::int64_t> host_slots;  // GPUs that a hostfile lists
  // What derived parts are judged as where no plan says what theirs do, in sentences.
  std::vector<std::string> assumed;
  bool takes_less = false;  // memory, they do, than what they are judged as
  bool shorter = false;     // sequences may be, than what they are judged as

  [[nodiscard]] const ConfigPart* find(Dialect dialect) const;
};

// Throws Error for a file that is no text, or cannot be read as what it plainly is.
JobFiles read_job_files(std::span<const ConfigText> files);

}  // namespace qplan
