// Parameters by config.json, against transformers' own classes.

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "models/json.h"
#include "models/model_spec.h"

using namespace qplan;

// Oracle: transformers 5.23.0 on torch 2.15.0's meta device (tests/data/make_parameter_counts.py).
TEST_CASE("every config.json has the parameters of its class in transformers") {
  const Json counts = read_json_file(QPLAN_TEST_DATA "/parameter_counts.json");
  CHECK(counts["transformers"] == "5.23.0");
  REQUIRE(counts["counts"].size() >= 40);
  std::set<std::string> architectures;
  for (const Json& entry : counts["counts"]) {
    CAPTURE(entry["of"].get<std::string>());
    CAPTURE(entry["config"].dump());
    const ModelSpec model = read_model(entry["config"], "config.json");
    architectures.insert(model.architecture);
    const ParameterCount count = count_parameters(model);
    CHECK(count.total() == entry["total"].get<std::int64_t>());
    CHECK(count.active() == entry["active"].get<std::int64_t>());
  }
  CHECK(architectures.size() == 17);
}
