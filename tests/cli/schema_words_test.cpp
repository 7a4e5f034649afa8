// The words that docs/reference/schema lists are those that the program has: a word added to one
// and not the other fails here, whether or not an answer happens to hold it.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cli/execution/execution.h"
#include "cli/options.h"
#include "models/program/op.h"
#include "models/program/recipe.h"
#include "planner/frameworks/emit.h"
#include "planner/frameworks/finding.h"
#include "planner/runs/measured_runs.h"
#include "planner/runs/step_watch.h"
#include "planner/search/search.h"
#include "tests/cli/run.h"

namespace qplan {
namespace {

Json schema(const std::string& name) {
  return read_json_file(QPLAN_TEST_DATA "/../../docs/reference/schema/" + name + ".schema.json");
}

// What follows "properties" at each step of "a/b"; "*" are a list's items.
const Json& property(const Json& root, const std::string& path) {
  const Json* node = &root;
  for (const std::string& word : split_list(path)) {
    node = word == "*" ? &node->at("items") : &node->at("properties").at(word);
  }
  return *node;
}

template <class E>
void check_words(const Json& node, std::vector<std::string> besides = {}) {
  std::vector<std::string> words, listed;
  for (const auto& [e, word] : Words<E>::table) words.emplace_back(word);
  words.insert(words.end(), besides.begin(), besides.end());
  for (const Json& word : node.at("enum")) listed.push_back(word.is_null() ? "null" : word);
  CHECK(listed == words);
}

TEST_CASE("schemas list the words of plans, as they are") {
  const Json parts = schema("parts")["definitions"];
  const Json& plan = parts["plan"];
  check_words<ScheduleKind>(property(plan, "schedule"));
  check_words<CpComm>(property(plan, "cp_comm"));
  check_words<AttentionBackend>(property(plan, "attention_backend"));
  check_words<Precision>(property(plan, "precision"));
  check_words<MoeDispatcher>(property(plan, "moe_dispatcher"));
  check_words<Routing>(property(plan, "routing"));
  check_words<TokenDropPolicy>(property(plan, "moe_token_drop_policy"));
  check_words<CudaGraphScope>(property(plan, "cuda_graph_scope"));
  check_words<LossKind>(property(plan, "loss"));
  check_words<OptimizerKind>(property(plan, "optimizer"));
  check_words<OverlapKind>(property(plan, "overlap,*"));
  for (const char* dtype : {"grad_dtype", "main_params_dtype", "moment_dtype"}) {
    check_words<DType>(property(plan, dtype));
  }
  check_words<RecipeKind>(parts["framework"]);
  check_words<Axis>(property(parts["groups"]["items"], "axis"));
}

TEST_CASE("schemas list the words of answers, as they are") {
  check_words<Precision>(property(schema("search"), "precision"));
  const Json check = schema("check");
  check_words<Framework>(property(check, "framework"), {"null"});
  check_words<Severity>(property(check, "findings,*,severity"));
  std::vector<std::string> written;
  for (const auto& [framework, word] : Words<Framework>::table) {
    if (is_written(framework)) written.emplace_back(word);
  }
  CHECK(property(schema("emit"), "written_for").at("enum") == Json(written));
  check_words<Objective>(property(schema("search_lists"), "objective"));
  check_words<Holds>(property(schema("options"), "options,*,type"));
  check_words<StepAlert>(property(schema("watch")["definitions"]["alert"], "alert"));
  check_words<StepAlert>(property(schema("watch")["definitions"]["over"], "over"));
  check_words<BackendKind>(property(schema("run"), "backend"));
  check_words<BackendKind>(property(schema("validate"), "backend"));
  check_words<MemoryKind>(property(schema("accuracy"), "rows,*,mem_kind"), {"null"});
  const Json profile = schema("profile")["definitions"]["whole"];
  check_words<CollectiveKind>(property(profile, "collectives,fits,*,kind"));
  for (const auto& [precision, word] : Words<Precision>::table) {
    CHECK(property(profile, "gpu")
              .at("properties")
              .contains("matmul_" + std::string(word) + "_tflops"));
    CHECK(property(profile, "gemm").at("properties").contains(std::string(word)));
  }
}

}  // namespace
}  // namespace qplan
