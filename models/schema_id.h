#pragma once
// What a JSON file or answer of qplan's says of itself, as its key "schema".

#include <string>
#include <string_view>

#include "models/json_fwd.h"

namespace qplan {

// "qplan.search/1": the file docs/reference/schema/search.schema.json, and its version. Keys may be
// added within a version; one that is renamed, removed or means something else makes another.
std::string schema_id(std::string_view name);

// Throws Error for a file that says it is of another kind or version. Files from before there were
// versions say nothing, and pass. `where` names the file.
void check_schema(const Json& file, std::string_view name, std::string_view where);

}  // namespace qplan
