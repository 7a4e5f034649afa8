#pragma once
// The name of a JSON value, for headers that only pass one on: nlohmann/json takes a file 1.3 s to
// read. Who looks into a value includes models/json.h.

#include <nlohmann/json_fwd.hpp>

namespace qplan {

using Json = nlohmann::ordered_json;  // keys keep their order, so output is deterministic
class JsonReader;

}  // namespace qplan
