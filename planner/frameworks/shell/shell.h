#pragma once
// Shell scripts read without running them: which commands they start, with which words. Variables,
// arrays, defaults, arithmetic, continued lines, conditions, sourced and started scripts and
// here-documents are followed as far as they can be; what only a run could tell is marked.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/finding.h"
#include "planner/frameworks/setting.h"

namespace qplan {

struct ShellWord {
  std::string text;
  Place place;
  Span span{};           // in the file of `place`; empty where the text comes from several places
  bool resolved = true;  // false: it holds what only a run can tell
};

struct ShellCommand {
  std::vector<ShellWord> words;
  std::map<std::string, std::string> environment;  // exported so far, and set before the command
};

// `cat > ds_config.json <<EOT`: a file that the script writes.
struct ShellFile {
  std::string name, text;
  Place place;  // of its first line
  Span span{};  // in that file; empty where expansion made other text of it
  bool resolved = true;
};

struct ShellScript {
  std::vector<ShellCommand> commands;
  std::vector<ShellFile> files;
  std::vector<ShellWord> directives;                     // of "#SBATCH" lines
  std::map<std::string, std::vector<ShellWord>> arrays;  // as they are at the end
  std::set<std::string> started;                         // scripts at hand that it starts
  std::vector<ShellWord> missing;                        // those that are not
  std::vector<Finding> findings;                         // broken continuations, missing files
};

// A file by its path as the script spells it, where its begin may be unknown
// ("${DIR}/models/x.sh"); nothing where it is not at hand.
struct FoundFile {
  std::string name, text;  // the name that places in it get
};
using FindFile = std::function<std::optional<FoundFile>(const std::string& name)>;

ShellScript read_shell(std::string_view text, const std::string& name, const FindFile& find_file);

}  // namespace qplan
