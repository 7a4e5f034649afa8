// Plans of two ranks in processes of their own: gpu_plans, the program beside this one.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/cuda/run.h"
#include "models/json.h"
#include "tests/temporary_folder.h"

using namespace qplan;

namespace {

// What ranks print for plans that ask for digests, as {plan, rank} -> answer.
using Answers = std::map<std::pair<int, int>, Json>;
Answers run_plans(const std::string& file, int ranks) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string command =
      (folder / "gpu_plans").string() + " " + file + " " + std::to_string(ranks);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> job(::popen(command.c_str(), "r"),
                                                            ::pclose);
  REQUIRE(job != nullptr);
  std::string text;
  for (int c = std::fgetc(job.get()); c != EOF; c = std::fgetc(job.get())) {
    text += static_cast<char>(c);
  }
  Answers answers;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const Json answer = parse_json(text.substr(at, end - at), command);
    answers[{answer.at("plan"), answer.at("rank")}] = answer;
    at = end + 1;
  }
  return answers;
}

}  // namespace

// Each plan trains in two jobs. 512 tokens: attention of fewer has no sums whose order is open.
// Stages go last, for they want another kind of queue.
TEST_CASE("deterministic plans give the same bits in every run on two GPUs") {
  if (gpu_count() < 2) {
    MESSAGE("skipped: there are no two GPUs here");
    return;
  }
  const std::vector<std::pair<std::string, std::string>> plans = {
      {"tiny", "dp2"},
      {"tiny", "dp2 zero1"},
      {"tiny", "dp2 zero2"},
      {"tiny", "dp2 zero3"},
      {"tiny", "tp2"},
      {"tiny", "tp2 sp"},
      {"tiny", "cp2"},
      {"tiny", "cp2 cp_comm=all_gather"},
      {"tiny", "cp2 cp_comm=a2a"},
      {"tiny-moe", "dp2 ep2 routing=natural"},
      {"tiny-moe", "tp2 sp ep2"},
      {"tiny-mla", "dp2 ep2 zero1"},
      {"tiny", "dp2 zero1 overlap=grad+param"},
      {"tiny", "pp2"},
      {"tiny-moe", "pp2 zb-h1"}};
  Json jobs = Json::array();
  for (const auto& [model, words] : plans) {
    jobs.push_back({{"model", model},
                    {"plan", words + " mbs2 gbs8 seq512 deterministic"},
                    {"steps", 4},
                    {"lr", 1e-3},
                    {"moe_imbalance", 2},
                    {"timeout_s", 30},
                    {"digest", true}});
  }
  const TemporaryFolder folder;
  std::ofstream(folder.file("plans.json")) << jobs;
  const Answers first = run_plans(folder.file("plans.json"), 2);
  const Answers again = run_plans(folder.file("plans.json"), 2);
  REQUIRE(first.size() == 2 * jobs.size());
  for (const auto& [which, answer] : first) {
    CAPTURE(jobs[static_cast<std::size_t>(which.first)].dump());
    CAPTURE(which.second);
    REQUIRE(again.count(which) == 1);
    for (const std::string fact : {"loss", "grad_norm", "digest"}) {
      CAPTURE(fact);
      CHECK(again.at(which).at(fact) == answer.at(fact));
    }
  }
}
