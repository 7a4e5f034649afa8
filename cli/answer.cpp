#include "cli/answer.h"

#include "models/json.h"
#include "models/schema_id.h"

namespace qplan {
namespace {

std::string text_of(std::string_view name, const Json& answer, int indent) {
  return versioned(name, answer).dump(indent, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace

Json versioned(std::string_view name, const Json& answer) {
  Json object{{"schema", schema_id(name)}};
  object.update(answer);
  return object;
}

std::string answer_text(std::string_view name, const Json& answer) {
  return text_of(name, answer, 2);
}

std::string answer_line(std::string_view name, const Json& answer) {
  return text_of(name, answer, -1);
}

}  // namespace qplan
