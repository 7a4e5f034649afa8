#pragma once
// What each verb's command line takes, as the verb itself says it (`qplan VERB --help=json`).
// Completions and pages walk these tables; there is no other list of options.

#include <string>
#include <vector>

#include "cli/commands.h"
#include "models/json_fwd.h"

namespace qplan {

// The object of docs/reference/schema/options.schema.json; words without an option are apart
// ("positionals"), `words` has what is `known` too, and `path` says whether a path may stand there.
Json option_table(const Verb& verb);
// Of all verbs, in their order.
std::vector<Json> option_tables();
std::string text_at(const Json& row, const char* key);  // empty where it is null
std::vector<std::string> texts_at(const Json& row, const char* key);

// `{"version", "verbs": [{"name", "summary"}]}`
Json verbs_json();

// Scripts that complete qplan's command line.
std::string bash_completions(const std::vector<Json>& tables);
std::string zsh_completions(const std::vector<Json>& tables);
std::string fish_completions(const std::vector<Json>& tables);

// Pages for man(1), as roff: of the command, and of one verb.
std::string command_page(const std::vector<Json>& tables);
std::string verb_page(const Json& table);

}  // namespace qplan
