#pragma once
// Findings of `qplan check` as other programs read them: SARIF 2.1.0 (code scanning) and GitHub's
// workflow commands (annotations of a pull request).

#include <cstdint>
#include <string>
#include <vector>

#include "models/words.h"
#include "planner/frameworks/finding.h"

namespace qplan {

enum class CheckFormat : std::uint8_t { text, json, sarif, github };

template <>
struct Words<CheckFormat> {
  static constexpr std::string_view what = "format";
  static constexpr auto table =
      std::to_array<std::pair<CheckFormat, std::string_view>>({{CheckFormat::text, "text"},
                                                               {CheckFormat::json, "json"},
                                                               {CheckFormat::sarif, "sarif"},
                                                               {CheckFormat::github, "github"}});
};

struct ShownFinding {
  Finding finding;
  bool fixable = false;  // by its own edits
  std::string file;      // on which it is shown: its own, or the job's first if it is of the job
  std::string line;      // the text of its line; empty: the file as a whole
};

// Paths below the working folder are relative to it, as code scanning and annotations want them of
// the root of a repository.
std::string sarif_text(const std::vector<ShownFinding>& findings);
std::string github_text(const std::vector<ShownFinding>& findings);

}  // namespace qplan
