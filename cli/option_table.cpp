#include "cli/option_table.h"

#include <sstream>

#include "cli/options.h"
#include "models/error.h"
#include "models/json.h"

namespace qplan {

namespace {

// What a path as its value names, as help's word for the value says it; null: a path is no value.
Json path_of(const Json& row) {
  const std::string value = text_at(row, "value");
  const bool names = !row["known"].empty() && (value == "MODEL" || value.starts_with("NAME"));
  const bool word = row["positional"].get<bool>() && row["words"].empty() && value != "show";
  if (value == "DIR") return "folder";
  return names || word || value == "FILE" || value == "PLAN" ? Json("file") : Json();
}

}  // namespace

Json option_table(const Verb& verb) {
  std::ostringstream out, err;
  verb.run({"--help=json"}, {out, err, {}});
  Json table = parse_json(out.str(), verb.name);
  Json options = Json::array(), positionals = Json::array();
  for (Json& row : table["options"]) {
    row["path"] = path_of(row);
    for (const Json& word : row["known"]) row["words"].push_back(word);
    (row["positional"].get<bool>() ? positionals : options).push_back(std::move(row));
  }
  options.push_back({{"names", split_list(kHelpNames)},
                     {"group", "Output"},
                     {"help", kHelpText},
                     {"words", Json::array()},
                     {"path", nullptr},
                     {"value", nullptr},
                     {"value_optional", false},
                     {"default", nullptr},
                     {"repeatable", true},
                     {"list", false}});
  table["options"] = std::move(options);
  table["positionals"] = std::move(positionals);
  return table;
}

std::vector<Json> option_tables() {
  std::vector<Json> tables;
  for (const Verb& verb : verbs()) {
    try {
      tables.push_back(option_table(verb));
    } catch (const Error&) {
      continue;  // a verb that this program was built without
    }
  }
  return tables;
}

std::string text_at(const Json& row, const char* key) {
  return row[key].is_null() ? std::string() : row[key].get<std::string>();
}

std::vector<std::string> texts_at(const Json& row, const char* key) {
  return row[key].get<std::vector<std::string>>();
}

Json verbs_json() {
  Json list = Json::array();
  for (const Verb& verb : verbs()) {
    list.push_back({{"name", verb.name}, {"summary", verb.summary}});
  }
  return {{"version", program_version()}, {"verbs", std::move(list)}};
}

}  // namespace qplan
