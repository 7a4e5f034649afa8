// Every answer in JSON says what describes it.

#include "cli/answer.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "models/schema_id.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

std::filesystem::path schema_file(const std::string& name) {
  return std::filesystem::path(QPLAN_TEST_DATA) / "../../docs/reference/schema" /
         (name + ".schema.json");
}

}  // namespace

TEST_CASE("each answer of a verb has its schema, and the schema its name") {
  for (const Verb& verb : verbs()) {
    std::istringstream names{std::string(verb.answers)};
    for (std::string name; names >> name;) {
      CAPTURE(name);
      REQUIRE(std::filesystem::exists(schema_file(name)));
      const std::string text = read_text_file(schema_file(name).string());
      CHECK(text.find("\"schema\": {\"const\": \"" + schema_id(name) + "\"") != std::string::npos);
    }
  }
}

TEST_CASE("answers begin with their schema") {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan.json");
  REQUIRE(run({"predict", "--model", "tiny", "--gpus", "8", "-o", plan}).code == 0);
  const std::vector<std::pair<std::string, std::string>> asked{
      {"predict", "predict --model tiny --gpus 8 --json"},
      {"models", "models --json"},
      {"model", "models show tiny"},
      {"hardware", "hardware --json"},
      {"profile", "hardware show h100-sxm"},
      {"size", "size --model tiny --gpus 1 --longest --memory-cap-gib 3 --json"},
      {"targets", "targets tp2 --model tiny --gpus 8 --json"},
      {"emit", "emit " + plan + " --framework megatron --json"},
      {"options", "search --help=json"}};
  for (const auto& [name, line] : asked) {
    CAPTURE(line);
    const Json answer = run(line).json();
    CHECK(answer.begin().key() == "schema");
    CHECK(answer["schema"] == schema_id(name));
  }
  CHECK(read_json_file(plan)["schema"] == "qplan.plan/1");
}

TEST_CASE("a file that says it is something else, or of another version, is refused") {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan.json");
  REQUIRE(run({"predict", "--model", "tiny", "--gpus", "8", "-o", plan}).code == 0);
  Json json = read_json_file(plan);
  json["schema"] = "qplan.plan/2";
  write_file_atomically(plan, json.dump());
  const Ran later = run({"predict", "--plan", plan});
  CHECK(later.code == 2);
  CHECK(later.says("says that it is qplan.plan/2, and qplan.plan/1 is read here"));
  json.erase("schema");  // of a release before there were versions
  write_file_atomically(plan, json.dump());
  CHECK(run({"predict", "--plan", plan}).code == 0);

  const std::string profile = folder.file("mine.json");
  write_file_atomically(profile, run("hardware show h200-sxm").out);
  CHECK(run({"hardware", "show", profile}).code == 0);
  Json machine = read_json_file(profile);
  machine["schema"] = "qplan.profile/9";
  write_file_atomically(profile, machine.dump());
  CHECK(run({"hardware", "show", profile}).says("qplan.profile/1 is read here"));
}

TEST_CASE("help as JSON has the options of help") {
  for (const Verb& verb : verbs()) {
    CAPTURE(verb.name);
    const Ran ran = run({std::string(verb.name), "--help=json"});
    CHECK(ran.code == 0);
    const Json table = ran.json();
    const std::string help = run({std::string(verb.name), "--help"}).out;
    CHECK(table["verb"] == verb.name);
    std::set<std::string> names;
    for (const Json& row : table["options"]) {
      const auto name = row["name"].get<std::string>();
      CAPTURE(name);
      CHECK(help.find(name) != std::string::npos);
      names.insert(name);
    }
    CHECK(names.size() == table["options"].size());
  }
  const Json search = run("search --help=json").json();
  for (const Json& row : search["options"]) {
    if (row["name"] != "--gpus") continue;
    CHECK(row["type"] == "whole");
    CHECK(row["low"] == 1);
    CHECK(row["group"] == "Cluster");
    CHECK(row["value"] == "COUNT");
  }
}

TEST_CASE("emit says its files as JSON, and writes them only where it is told to") {
  const TemporaryFolder folder;
  const std::string out = folder.file("job");
  const Ran said = run("emit tp2 --model tiny --gpus 8 --framework megatron --json");
  REQUIRE(said.code == 0);
  const Json files = said.json()["files"];
  REQUIRE(files.size() > 1);
  for (const Json& file : files) CHECK(file["path"].is_null());
  const Json written = run({"emit", "tp2", "--model", "tiny", "--gpus", "8", "--framework",
                            "megatron", "--json", "--out", out})
                           .json();
  for (std::size_t i = 0; i < files.size(); ++i) {
    CHECK(written["files"][i]["text"] == files[i]["text"]);
    CHECK(read_text_file(written["files"][i]["path"]) == files[i]["text"].get<std::string>());
  }
  CHECK(run("emit tp2 --model tiny --gpus 8 --framework megatron").code == 2);  // no --out
  CHECK(run("emit tp2 --framework megatron --json").code == 2);                 // no model
}
