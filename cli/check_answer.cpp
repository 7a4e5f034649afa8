#include "cli/check_answer.h"

#include <algorithm>
#include <sstream>

#include "models/text.h"

namespace qplan {
namespace {

// A line without the space around it; line 0 is none.
std::string line_text(const std::string& text, int line) {
  std::istringstream lines(text);
  std::string found;
  for (int i = 0; i < line && std::getline(lines, found);) ++i;
  if (line == 0) return "";
  return std::string(trimmed(found));
}

}  // namespace

std::string why_stands(const FoundInFiles& found, const Finding& finding) {
  if (finding.rule == kNoPlanFits) return "no text of these files makes the job smaller";
  return why_left(found.fixed, finding);
}

std::vector<ShownFinding> shown_findings(const CheckAnswer& answer) {
  std::vector<ShownFinding> shown;
  for (const FoundInFiles& found : answer.jobs) {
    for (const Finding& finding : found.checked.findings) {
      const auto file =
          std::find_if(found.files.begin(), found.files.end(),
                       [&](const ConfigText& f) { return f.name == finding.place.file; });
      const bool known = file != found.files.end();
      shown.push_back({finding, why_stands(found, finding).empty(),
                       known ? file->name : found.files.front().name,
                       known ? line_text(file->text, finding.place.line) : ""});
    }
  }
  return shown;
}

}  // namespace qplan
