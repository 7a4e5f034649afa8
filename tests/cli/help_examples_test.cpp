// Every example that a verb's --help prints does what it says.

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/option_table.h"
#include "models/text.h"
#include "tests/cli/run.h"

using namespace qplan;
namespace fs = std::filesystem;

namespace {

// Examples name files of the folder that they are run in.
class InFolder {
 public:
  InFolder() : before_(fs::current_path()) { fs::current_path(folder_.path()); }
  ~InFolder() { fs::current_path(before_); }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;

 private:
  TemporaryFolder folder_;
  fs::path before_;
};

// The words of the first command, as a shell splits them; what is printed goes nowhere.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false, any = false;
  for (const char c : line + " ") {
    if (c == '"') {
      quoted = !quoted;
      any = true;
    } else if (c != ' ' || quoted) {
      word += c;
    } else if (any || !word.empty()) {
      if (word == "|" || word == ">" || word == "<" || word.starts_with('(')) break;
      words.push_back(word);
      word.clear();
      any = false;
    }
  }
  return words;
}

// What asks for a GPU, a trainer, a repository or standard input.
bool runs_here(const std::vector<std::string>& words) {
  if (words.front() != "qplan" || words[1] == "calibrate" || words[1] == "mcp") return false;
  for (const std::string& word : words) {
    if (word == "torchrun" || word == "cuda" || word == "-") return false;
  }
  return true;
}

void write_plan() {
  const Ran made =
      run("search --model tiny --gpus 4 --framework qplan --tp 2 --pp 2 --global-batch-size 8 "
          "--seq-len "
          "64 --top 1 -o plan.json");
  REQUIRE(made.code == 0);
}

void write_files() {
  write_plan();
  const double s = run("predict --plan plan.json --json").json()["step_time_s"];
  std::string log;
  for (int i = 1; i <= 20; ++i) {
    log += " iteration " + std::to_string(i) +
           "/ 20 | elapsed time per iteration (ms): " + std::to_string(1000 * s) + " |\n";
  }
  write_file_atomically("train.log", log);
  const std::string us = std::to_string(std::llround(s * 1e6));
  write_file_atomically(
      "rank0.pt.trace.json",
      R"({"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "ts": 0, "dur": )" +
          us + R"(}, {"ph": "X", "cat": "kernel", "name": "nvjet_tst", "ts": 0, "dur": 1}]})");
  const Ran job = run({"emit", "zero3 mbs1 ep1 recompute=full", "--model", "qwen3-30b-a3b",
                       "--gpus", "64", "--framework", "deepspeed", "--out", "ds"});
  CAPTURE(job.err);
  REQUIRE(job.code == 0);
  for (const auto& file : fs::directory_iterator("ds")) {
    const std::string name = file.path().filename().string();
    fs::copy_file(file.path(), name.ends_with(".sh") ? "train.sh" : name);
  }
  fs::copy_file(QPLAN_TEST_DATA "/runs/published.csv", "runs.csv");
}

}  // namespace

TEST_CASE("every example of --help runs, and ends with exit code 0") {
  const InFolder folder;
  write_files();
  int ran_here = 0;
  for (const Json& table : option_tables()) {
    const std::string examples = text_at(table, "example");
    for (const std::string_view text : split(examples, '\n')) {
      // A range of 512 searches says no more than one of three.
      std::string line(trimmed(text));
      if (const auto at = line.find("8..4096"); at != std::string::npos)
        line.replace(at, 7, "8..32");
      const std::vector<std::string> words = words_of(line);
      REQUIRE(words.size() > 1);
      if (!runs_here(words)) continue;
      ++ran_here;
      write_plan();
      const Ran ran = run(std::vector<std::string>(words.begin() + 1, words.end()));
      CAPTURE(line);
      CAPTURE(ran.err);
      CHECK(ran.code == 0);
    }
  }
  CHECK(ran_here > 20);
}
