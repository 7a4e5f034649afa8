#include "cli/option_table.h"

#include <sstream>

#include "cli/options.h"
#include "models/json.h"

namespace qplan {

Json option_table(const Verb& verb) {
  std::ostringstream out, err;
  verb.run({std::string(kHelpJson)}, {out, err, {}});
  return parse_json(out.str(), verb.name);
}

std::vector<Json> option_tables() {
  std::vector<Json> tables;
  for (const Verb& verb : verbs()) tables.push_back(option_table(verb));
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
