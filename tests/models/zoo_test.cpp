// Models by name, folder and file.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "models/error.h"
#include "models/json.h"
#include "models/model_spec.h"
#include "tests/complaint.h"
#include "tests/temporary_folder.h"

using namespace qplan;
namespace fs = std::filesystem;

TEST_CASE("a name is found however its case, dashes and owner are written") {
  CHECK(load_model("Qwen3-30B_A3B") == load_model("qwen3-30b-a3b"));
  CHECK(load_model("Qwen/Qwen3-30B-A3B").name == "qwen3-30b-a3b");
  CHECK(load_model("llama3.1-405b").name == "llama3-405b");
  CHECK_THROWS_WITH_AS(load_model("lama3-70b"),
                       "model 'lama3-70b' is neither built in nor a file or folder; did you mean "
                       "'llama3-70b'?",
                       Error);
  CHECK_THROWS_WITH_AS(load_model("banana"),
                       "model 'banana' is neither built in nor a file or folder; `qplan models` "
                       "lists the built-in ones",
                       Error);
  CHECK_THROWS_AS(load_model(""), Error);
}

TEST_CASE("built-in names are sorted") {
  const auto names = model_names();
  CHECK(std::is_sorted(names.begin(), names.end()));
}

TEST_CASE("a config.json is named by its folder, another file by its stem") {
  const TemporaryFolder scratch;
  const fs::path folder = fs::path(scratch.path()) / "My-8B";
  fs::create_directory(folder);
  CHECK(complaint_of([&] { load_model(folder.string()); }) ==
        "cannot open '" + (folder / "config.json").string() + "': No such file or directory");
  const std::string text = model_config("qwen3-8b").dump();
  write_file_atomically((folder / "config.json").string(), text);
  write_file_atomically((folder / "other.json").string(), text);
  CHECK(load_model(folder.string()).name == "My-8B");
  CHECK(load_model(folder.string() + "/").name == "My-8B");
  CHECK(load_model((folder / "config.json").string()).name == "My-8B");
  CHECK(load_model((folder / "other.json").string()).name == "other");
  CHECK(model_config(folder.string()) == model_config("qwen3-8b"));
  // What `qplan models show` prints is read as well.
  const Json shown{{"name", "qwen3-8b"},
                   {"parameters", {{"total", 8190735360}}},
                   {"config", model_config("qwen3-8b")}};
  write_file_atomically((folder / "shown.json").string(), shown.dump());
  CHECK(model_config((folder / "shown.json").string()) == model_config("qwen3-8b"));
  ModelSpec same = load_model(folder.string());
  same.name = "qwen3-8b";
  CHECK(same == load_model("qwen3-8b"));
}
