#include "costmodel/profiles/other_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "costmodel/profiles/layers.h"
#include "models/csv.h"
#include "models/embedded.h"
#include "models/error.h"
#include "models/plan/plan_text.h"
#include "models/text.h"

namespace qplan {

// Compiled in from profiles/other_names.tsv (costmodel/CMakeLists.txt).
extern const EmbeddedFile other_name_files[];
extern const std::size_t other_name_files_count;

namespace {

std::vector<OtherName> read_other_names() {
  QPLAN_CHECK(other_name_files_count == 1, "one table has the other names");
  std::vector<OtherName> names;
  for (const CsvTable::Row& row : parse_tsv(other_name_files[0].text(), "other_names.tsv").rows) {
    OtherName name{.name = row.cells[0], .machines = {}, .why = row.cells[2]};
    if (!row.cells[1].empty()) {
      for (const std::string_view machine : split(row.cells[1], ',')) {
        name.machines.emplace_back(machine);
      }
    }
    QPLAN_CHECK(name.machines.empty() != name.why.empty(), "a name has machines or a reason");
    names.push_back(std::move(name));
  }
  return names;
}

bool is_meant(const OtherName& other, std::string_view name) {
  std::string_view known = other.name;
  if (!known.ends_with('*')) return name == known;
  known.remove_suffix(1);
  return name.starts_with(known);
}

const OtherName* find_other(std::string_view name) {
  const auto& all = other_names();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const OtherName& known) { return is_meant(known, name); });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

const std::vector<OtherName>& other_names() {
  static const std::vector<OtherName> all = read_other_names();
  return all;
}

std::string plain_machine_name(const std::string& name) {
  if (std::filesystem::exists(name)) return name;
  const std::string lower = lower_case(name);
  if (built_in_profile(lower) != nullptr) return lower;
  const OtherName* const other = find_other(lower);
  return other != nullptr && other->machines.size() == 1 ? other->machines.front() : name;
}

std::string machine_meant(std::string_view name) {
  const OtherName* const other = find_other(name);
  if (other == nullptr) return "";
  if (other->machines.empty()) {
    throw Error(fmt::format("hardware '{}' is refused: {}", shown(std::string(name)), other->why));
  }
  if (other->machines.size() > 1) {
    throw Error(fmt::format("hardware '{}' may be several machines; choose one of {}",
                            shown(std::string(name)), fmt::join(other->machines, ", ")));
  }
  return other->machines.front();
}

}  // namespace qplan
