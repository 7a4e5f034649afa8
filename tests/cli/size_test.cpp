#include <doctest/doctest.h>

#include <algorithm>

#include "tests/cli/run.h"

using namespace qplan;

namespace {

// Whether some plan fits, by the search itself.
bool fits(const std::string& job) {
  return run("search --top 1 --json " + job).code == 0;
}

}  // namespace

TEST_CASE("the fewest GPUs are those of which no fewer nodes fit, in one line") {
  const std::string job =
      "--model llama3-70b --seq-len 8192 --recompute none --offload none --zero 1 ";
  const Ran text = run("size " + job);
  REQUIRE(text.code == 0);
  CHECK(std::count(text.out.begin(), text.out.end(), '\n') == 1);
  const Json found = run("size --json " + job).json();
  const Json& best = found["tried"][found["chosen"].get<std::size_t>()];
  const std::int64_t gpus = best["gpus"];
  CHECK(gpus % 8 == 0);
  CHECK(fits(job + "--gpus " + std::to_string(gpus)));
  for (std::int64_t fewer = 8; fewer < gpus; fewer += 8) {
    CAPTURE(fewer);
    CHECK_FALSE(fits(job + "--gpus " + std::to_string(fewer)));
  }
}

TEST_CASE("the longest sequence fits, and the next on the grid does not") {
  const std::string job =
      "--model llama3-8b --gpus 8 --recompute none --offload none --micro-batch-size 1 --cp 1 ";
  const Json found = run("size --longest --json " + job).json();
  const std::int64_t longest = found["tried"][found["chosen"].get<std::size_t>()]["seq_len"];
  std::int64_t power = 1024;
  while (2 * power <= longest) power *= 2;
  CHECK(found["bisected"] == true);
  CHECK(fits(job + "--seq-len " + std::to_string(longest)));
  CHECK_FALSE(fits(job + "--seq-len " + std::to_string(longest + power / 8)));
}

TEST_CASE("the largest micro-batch fits, and the next on the grid does not") {
  const std::string job =
      "--model llama3-8b --gpus 8 --recompute none --offload none --tp 1 --pp 1 ";
  const Json found = run("size --largest-micro-batch --json " + job).json();
  const Json& best = found["tried"][found["chosen"].get<std::size_t>()];
  const std::int64_t most = best["micro_batch_size"];
  CHECK(best["global_batch_size"].get<std::int64_t>() % most == 0);
  std::int64_t power = 1;
  while (2 * power <= most) power *= 2;
  const std::int64_t next = most + std::max<std::int64_t>(1, power / 8);
  CHECK_FALSE(fits(job + "--micro-batch-size " + std::to_string(next) + " --global-batch-size " +
                   std::to_string(next * 64)));
}

TEST_CASE("the cheapest cluster is the list's own by price, and every price has a source") {
  const TemporaryFolder folder;
  const std::string list = folder.path() + "/prices.csv";
  const std::string job = "size --model llama3-8b --gpus 16 --tp 1,2 --pp 1 --offload none --json ";
  const auto chosen = [&](const std::string& text) {
    write_file_atomically(list, text);
    const Json found = run(job + "--prices " + list).json();
    return found["tried"][found["chosen"].get<std::size_t>()]["hardware"].get<std::string>();
  };
  const std::string head = "hardware,usd_per_gpu_hour,source\n";
  CHECK(chosen(head + "h100-sxm,1,invented\nh200-sxm,9,invented\n") == "h100-sxm");
  CHECK(chosen(head + "h100-sxm,9,invented\nh200-sxm,1,invented\n") == "h200-sxm");
  write_file_atomically(list, head + "h100-sxm,1,\n");
  const Ran ran = run(job + "--prices " + list);
  CHECK(ran.code == 2);
  CHECK(ran.says("source"));
}

TEST_CASE("a run that has to end sooner takes more GPUs") {
  const TemporaryFolder folder;
  const std::string list = folder.path() + "/prices.csv";
  write_file_atomically(list, "hardware,usd_per_gpu_hour,source\nh100-sxm,2,invented\n");
  const std::string job =
      "size --model llama3-8b --gpus 64 --tp 1,2 --pp 1 --offload none --json "
      "--tokens 100B --prices " +
      list;
  const auto point = [](const Json& found) {
    return found["tried"][found["chosen"].get<std::size_t>()];
  };
  const Json slow = point(run(job).json());
  const double days = 0.6 * slow["days"].get<double>();
  const Json quick = point(run(job + " --days " + std::to_string(days)).json());
  CHECK(quick["gpus"].get<int>() > slow["gpus"].get<int>());
  CHECK(quick["days"].get<double>() <= days);
}

TEST_CASE("the largest model of a GPU is one that fits, and no larger one was left out") {
  const std::string job =
      "--gpus 1 --recompute full --offload none --micro-batch-size 1 --global-batch-size 8 ";
  const Json found = run("size --largest-model --json " + job).json();
  const std::size_t chosen = found["chosen"];
  CHECK(chosen + 1 == found["tried"].size());
  for (std::size_t i = 0; i < chosen; ++i) CHECK(found["tried"][i]["feasible"] == false);
}

TEST_CASE("size asks one question, of a cluster that is said") {
  CHECK(run("size --longest --fewest-gpus --model tiny --gpus 8").code == 2);
  CHECK(run("size --longest --model tiny").code == 2);
  CHECK(run("size --longest --model llama3-405b --gpus 1").code == 1);
}

TEST_CASE("days and tokens of a run that nobody prices are refused") {
  for (const char* asked : {"--days 3", "--tokens 1T", "--longest --gpus 8 --days 3"}) {
    CAPTURE(asked);
    const Ran ran = run(std::string("size --model tiny ") + asked);
    CHECK(ran.code == 2);
    CHECK(ran.says("of the run that --prices prices"));
  }
}

TEST_CASE("a cluster of two kinds says its GPUs itself, and is not counted") {
  const std::string both = " --model llama3-8b --hardware h100-sxm:8+a100-80gb-sxm:8 --json";
  const Ran longest = run("size --longest --recompute none --tp 1 --pp 2 --zero 1" + both);
  REQUIRE(longest.code == 0);
  CHECK(longest.json()["best"]["gpus"] == 16);
  const Ran fewest = run("size" + both);
  CHECK(fewest.code == 2);
  CHECK(fewest.says("size counts GPUs of one kind"));
}
