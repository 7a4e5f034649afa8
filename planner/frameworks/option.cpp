#include "planner/frameworks/option.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "models/embedded.h"
#include "models/error.h"

namespace qplan {

extern const EmbeddedFile option_files[];
extern const std::size_t option_files_count;

namespace {

std::vector<std::string> pieces_of(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t from = 0;;) {
    const std::size_t to = text.find(separator, from);
    parts.emplace_back(text.substr(from, to == std::string_view::npos ? to : to - from));
    if (to == std::string_view::npos) return parts;
    from = to + 1;
  }
}

}  // namespace

namespace {

// "int[0:3]": a type and what its numbers lie between, either of which may be left out.
void set_range(KnownOption& option) {
  if (option.type.ends_with('!')) {
    option.never_null = true;
    option.type.pop_back();
  }
  const std::size_t bracket = option.type.find('[');
  const std::size_t colon = option.type.find(':');
  if (bracket == std::string::npos || colon == std::string::npos) return;
  const std::string low = option.type.substr(bracket + 1, colon - bracket - 1);
  const std::string high = option.type.substr(colon + 1, option.type.size() - colon - 2);
  if (!low.empty()) option.low = std::stod(low);
  if (!high.empty()) option.high = std::stod(high);
  option.type.resize(bracket);
}

}  // namespace

OptionList::OptionList(std::string_view name, std::string_view tsv) {
  std::vector<std::pair<std::string, std::size_t>> found;
  for (const std::string& line : pieces_of(tsv, '\n')) {
    if (line.empty()) continue;
    const auto columns = pieces_of(line, '\t');
    QPLAN_CHECK(columns.size() == 5, "an option list has five columns: " + std::string(name));
    KnownOption option{pieces_of(columns[0], ' '), columns[1], columns[2], columns[3], {}};
    if (!columns[4].empty()) option.choices = pieces_of(columns[4], ',');
    set_range(option);
    for (const std::string& spelling : option.spellings) {
      found.emplace_back(spelling, options_.size());
    }
    options_.push_back(std::move(option));
  }
  std::sort(found.begin(), found.end());
  for (auto& [spelling, at] : found) {
    names_.push_back(std::move(spelling));
    index_.push_back(at);
  }
}

const KnownOption* OptionList::find(std::string_view spelling) const {
  const auto at = std::lower_bound(names_.begin(), names_.end(), spelling);
  if (at == names_.end() || *at != spelling) return nullptr;
  return &options_[index_[static_cast<std::size_t>(at - names_.begin())]];
}

const OptionList& known_options(std::string_view name) {
  static const auto* const lists = [] {
    auto* all = new std::map<std::string, OptionList, std::less<>>;
    for (std::size_t i = 0; i < option_files_count; ++i) {
      const EmbeddedFile& file = option_files[i];
      all->emplace(file.name, OptionList(file.name, file.text()));
    }
    return all;
  }();
  const auto found = lists->find(name);
  QPLAN_CHECK(found != lists->end(), "an option list of that name is built in");
  return found->second;
}

}  // namespace qplan
