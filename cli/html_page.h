#pragma once
// Answers as one HTML file that needs nothing else: cli/report has its template, its style and the
// script that draws it.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/job.h"
#include "models/json.h"

namespace qplan {

// What a verb printed with --json.
struct PageAnswer {
  std::string verb;
  std::string asked;  // the command line, or the file that it was read from
  Json answer;
  // Model and machine as they were asked for (files, or what a plan file holds): an answer has only
  // their names.
  JobChoices given = {};
};

// The verb that an answer is of; none where the page draws nothing of its kind.
std::optional<std::string> verb_of(const Json& answer);
// "search, predict, ...": what verb_of() knows.
std::string drawn_verbs();
bool is_drawn(std::string_view verb);

// Whether this program has the library that draws plots; without, a page has tables alone.
bool has_plots();

// Timelines are made for the plans whose step program is still the one that the answer was made
// from.
std::string html_page(const std::vector<PageAnswer>& answers);

}  // namespace qplan
