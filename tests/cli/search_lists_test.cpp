#include <doctest/doctest.h>

#include <algorithm>

#include "tests/cli/run.h"

using namespace qplan;

namespace {

const std::string kSmall =
    "search --model tiny-moe --gpus 8 --seq-len 512 --global-batch-size 16 --tp 1,2 --pp 1,2 --ep "
    "1,2 --micro-batch-size 1 --recompute none --offload none --json ";

}  // namespace

TEST_CASE("a list of one is no list") {
  CHECK(run(kSmall + "--hardware h100-sxm --framework megatron --precision bf16").out ==
        run(kSmall).out);
  CHECK(run(kSmall).json()["schema"] == "qplan.search/1");
  CHECK(run(kSmall + "--precision bf16,bf16").out == run(kSmall).out);
}

TEST_CASE("each combination of a list is the search of its own") {
  const Json lists =
      run(kSmall + "--hardware h100-sxm,h200-sxm --framework megatron,torchtitan").json();
  CHECK(lists["schema"] == "qplan.search_lists/1");
  REQUIRE(lists["searches"].size() == 4);
  std::size_t i = 0;
  for (const char* hardware : {"h100-sxm", "h200-sxm"}) {
    for (const char* framework : {"megatron", "torchtitan"}) {
      CHECK(lists["searches"][i++] ==
            run(kSmall + "--hardware " + hardware + " --framework " + framework).json());
    }
  }
}

TEST_CASE("plans of all searches are ranked by what they do with a GPU") {
  const Json lists =
      run(kSmall + "--hardware a100-80gb-sxm,h100-sxm --precision bf16,fp8 --top 6").json();
  REQUIRE(lists["plans"].size() == 6);
  double last = 1e30;
  for (const Json& plan : lists["plans"]) {
    const double speed = plan["tokens_per_s_per_gpu"].get<double>();
    CHECK(speed <= last);
    last = speed;
    const Json& search = lists["searches"][plan["search"].get<std::size_t>()];
    CHECK(search["hardware"] == plan["hardware"]);
    CHECK(search["precision"] == plan["plan"]["precision"]);
    const auto& own = search["plans"];
    CHECK(std::any_of(own.begin(), own.end(),
                      [&](const Json& p) { return p["short"] == plan["short"]; }));
    CHECK(plan["usd_per_million_tokens"].is_null());
  }
  // No plan of a search that is not in the table is faster than those that are.
  for (const Json& search : lists["searches"]) {
    for (const Json& plan : search["plans"]) {
      const bool faster = plan["tokens_per_s_per_gpu"].get<double>() > last;
      const auto same = [&](const Json& p) {
        return p["short"] == plan["short"] && p["hardware"] == plan["hardware"];
      };
      CHECK((!faster || std::any_of(lists["plans"].begin(), lists["plans"].end(), same)));
    }
  }
}

TEST_CASE("a list of machines is ranked by cost where a list has prices") {
  const TemporaryFolder folder;
  const std::string prices = folder.file("prices.csv");
  write_file_atomically(prices,
                        "hardware,usd_per_gpu_hour,source\nh100-sxm,4,a test\nh200-sxm,2,a test\n");
  const std::string two = kSmall + "--hardware h100-sxm,h200-sxm ";
  const Json lists = run(two + "--objective cost --prices " + prices).json();
  const Json& best = lists["plans"][0];
  CHECK(best["hardware"] == "h200-sxm");
  const double usd =
      2.0 * best["gpus"].get<double>() / 3600 / best["tokens_per_s"].get<double>() * 1e6;
  CHECK(best["usd_per_million_tokens"].get<double>() == doctest::Approx(usd));
  double last = 0;
  for (const Json& plan : lists["plans"]) {
    CHECK(plan["usd_per_million_tokens"].get<double>() >= last);
    last = plan["usd_per_million_tokens"].get<double>();
  }
  const Ran unpriced = run(two + "--objective cost");
  CHECK(unpriced.code == 2);
  CHECK(unpriced.says("give --prices"));
  CHECK(run(kSmall + "--prices " + prices).code == 2);
}

TEST_CASE("what cannot be is said of a list's combination, and the others answered") {
  std::string text = kSmall;
  text.erase(text.find("--json "), 7);
  const Ran ran = run(text + "--hardware a100-80gb-sxm,h100-sxm --precision fp8,bf16");
  CHECK(ran.code == 0);
  CHECK(ran.says("a100-80gb-sxm, megatron, fp8: nothing fits"));
  CHECK(ran.says("best:   h100-sxm"));
  const Ran two = run(text + "--hardware a100-80gb-sxm,h100-sxm --top 1");
  CHECK(two.says("a100-80gb-sxm, megatron, bf16: at best "));  // no plan of it is in the table
  const Ran none = run(text + "--hardware a100-80gb-sxm,a100-40gb-sxm --precision fp8");
  CHECK(none.code == 1);
  CHECK(none.says("Nothing fits."));
}

TEST_CASE("words of a list are read as one by one, and what lists cannot say is refused") {
  for (const std::string words :
       {"--precision bf16,nosuch", "--framework megatron,nosuch", "--hardware h100-sxm,nosuch",
        "--hardware h100-sxm,,h200-sxm", "--precision bf16,fp8 --algorithm sft",
        "--precision bf16,fp8 --pareto"}) {
    CAPTURE(words);
    const Ran ran = run(kSmall + words);
    CHECK(ran.code == 2);
    CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == 1);
  }
}

TEST_CASE("a plan file of a list's search is the best plan over all") {
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json");
  const Json lists = run(kSmall + "--hardware h100-sxm,h200-sxm -o " + file).json();
  const Json plan = read_json_file(file);
  CHECK(plan["schema"] == "qplan.plan/1");
  for (const char* key : {"hardware", "framework", "short", "step_time_s"}) {
    CHECK(plan[key] == lists["plans"][0][key]);
  }
}

TEST_CASE("a price list with two prices of one machine is refused with the second's line") {
  const TemporaryFolder folder;
  const std::string prices = folder.file("prices.csv");
  write_file_atomically(prices,
                        "hardware,usd_per_gpu_hour,source\nh100-sxm,2.5,a test\n"
                        "h200-sxm,4,a test\nh100-sxm,3.5,a test\n");
  for (const std::string& line : {kSmall + "--hardware h100-sxm,h200-sxm --prices " + prices,
                                  "size --model tiny --gpus 8 --tokens 1B --prices " + prices}) {
    CAPTURE(line);
    const Ran ran = run(line);
    CHECK(ran.code == 2);
    CHECK(ran.says(prices + ":4: h100-sxm"));
  }
}

TEST_CASE("a machine is one machine by whatever name, in lists and in price lists") {
  const Json once = run(kSmall + "--hardware h100-sxm,h200-sxm").json();
  CHECK(run(kSmall + "--hardware h100,h200-sxm,H100-SXM").json()["plans"] == once["plans"]);
  CHECK(run(kSmall + "--hardware h100,h100-sxm").json()["schema"] == "qplan.search/1");

  const TemporaryFolder folder;
  const std::string list = folder.file("prices.csv");
  write_file_atomically(list,
                        "hardware,usd_per_gpu_hour,source\nh100-sxm,2.5,a list\nh200,3.5,a list\n");
  const std::string by_cost = " --objective cost --prices " + list;
  const Ran named = run(kSmall + "--hardware h100-sxm,h200-sxm" + by_cost);
  REQUIRE(named.code == 0);
  CHECK_FALSE(named.json()["plans"][0]["usd_per_million_tokens"].is_null());
  CHECK(run(kSmall + "--hardware h100,h200" + by_cost).json()["plans"] == named.json()["plans"]);
  write_file_atomically(list, "hardware,usd_per_gpu_hour,source\nh100-sxm,2.5,x\nH100,3,x\n");
  CHECK(run(kSmall + "--hardware h100,h200" + by_cost).says("list each machine once"));
}
