#include "models/schema_id.h"

#include <fmt/format.h>

#include "models/error.h"
#include "models/json.h"
#include "models/text.h"

namespace qplan {
namespace {

// Of all of them so far: no key was ever renamed or removed.
constexpr int kVersion = 1;

}  // namespace

std::string schema_id(std::string_view name) {
  return fmt::format("qplan.{}/{}", name, kVersion);
}

void check_schema(const Json& file, std::string_view name, std::string_view where) {
  if (!file.is_object() || !file.contains("schema")) return;
  const Json& said = file["schema"];
  if (said == schema_id(name)) return;
  throw Error(fmt::format("{} says that it is {}, and {} is read here", where,
                          shown(said.is_string() ? said.get<std::string>() : said.dump()),
                          schema_id(name)));
}

}  // namespace qplan
