#include "cli/answer_schema.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>

#include "models/embedded.h"
#include "models/error.h"
#include "models/json.h"

namespace qplan {

extern const EmbeddedFile schema_files[];
extern const std::size_t schema_files_count;

namespace {

constexpr std::string_view kEnding = ".schema";  // of an embedded file's name, "search.schema"

const Json& schema_named(const std::string& name) {
  static const std::map<std::string, Json> all = [] {
    std::map<std::string, Json> read;
    for (const EmbeddedFile& file : std::span(schema_files, schema_files_count)) {
      const std::string_view stem = file.name.substr(0, file.name.size() - kEnding.size());
      read.emplace(stem, parse_json(file.text(), file.name));
    }
    return read;
  }();
  const auto found = all.find(name);
  QPLAN_CHECK(found != all.end(), "answers name schemas that there are");
  return found->second;
}

// Gathers what references mean under "definitions", and points them there.
class Bundle {
 public:
  // "parts.schema.json#/definitions/plan", or "#/definitions/found" of the file `name`.
  std::string refer(const std::string& name, const std::string& reference) {
    const std::size_t hash = std::min(reference.find('#'), reference.size());
    const std::string file = reference.substr(0, hash);
    const std::string of = file.empty() ? name : file.substr(0, file.find('.'));
    const std::string pointer = reference.substr(std::min(hash + 1, reference.size()));
    const std::string last = pointer.substr(pointer.rfind('/') + 1);
    const std::string key = last.empty() ? of : of + "." + last;
    if (!definitions_.contains(key)) {
      definitions_[key] = nullptr;  // which it may refer to itself
      const Json& whole = schema_named(of);
      Json node = pointer.empty() ? whole : whole.at(Json::json_pointer(pointer));
      definitions_[key] = inside(of, std::move(node));
    }
    return "#/definitions/" + key;
  }

  [[nodiscard]] const Json& definitions() const { return definitions_; }

 private:
  Json inside(const std::string& name, Json node) {
    if (node.is_object()) {
      // Of a whole file: they are gathered where somebody refers to them.
      for (const char* key : {"$schema", "definitions"}) node.erase(key);
      for (auto& [key, value] : node.items()) {
        value = key == "$ref" ? Json(refer(name, value.get<std::string>())) : inside(name, value);
      }
    } else if (node.is_array()) {
      for (Json& item : node) item = inside(name, item);
    }
    return node;
  }

  Json definitions_ = Json::object();
};

}  // namespace

Json whole_schema(std::span<const std::string> names) {
  Bundle bundle;
  Json any = Json::array();
  for (const std::string& name : names) {
    any.push_back({{"$ref", bundle.refer(name, name + kEnding.data())}});
  }
  Json schema{{"$schema", "http://json-schema.org/draft-07/schema#"}, {"type", "object"}};
  schema["oneOf"] = std::move(any);
  schema["definitions"] = bundle.definitions();
  return schema;
}

}  // namespace qplan
