// `-o -`: what would be a file is standard output, and all else stands beside it.

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/cli/run.h"

using namespace qplan;

namespace {

const std::string kJob = " --model tiny --gpus 8 --global-batch-size 16 --seq-len 512 ";

}  // namespace

TEST_CASE("standard output is the file alone, and no file is called '-'") {
  const TemporaryFolder folder;
  const std::string file = folder.file("file.json");
  const std::string search = "search --tp 1,2 --pp 1 --ep 1 --cp 1 --threads 1" + kJob;
  const std::string predict = "predict --tp 2" + kJob;
  const std::string fit = "fit --measured 20ms --tp 2 --top 0" + kJob;
  REQUIRE(run(predict + "-o " + file).code == 0);
  const std::string trace = "trace " + file + " --text";
  const std::string report = "report " + file;
  const std::string lists = search + "--hardware h100-sxm,h200-sxm ";
  const std::string other = folder.file("other.json");
  for (const std::string& verb : {search, lists, predict, fit, trace, report}) {
    CAPTURE(verb);
    const Ran to_file = run(verb + " -o " + other);
    CAPTURE(to_file.err);
    REQUIRE(to_file.code == 0);
    const Ran to_stream = run(verb + " -o -");
    CHECK(to_stream.code == 0);
    CHECK(to_stream.out == read_text_file(other, {}));
    if (!to_file.out.empty()) CHECK_FALSE(to_stream.err.empty());
    CHECK_FALSE(std::filesystem::exists("-"));
  }
  for (const std::string& verb :
       {"sweep --tp 1" + kJob, std::string("accuracy " QPLAN_TEST_DATA "/runs/published.csv")}) {
    CAPTURE(verb);
    CHECK(run(verb + " -o -").out == run(verb).out);
    CHECK_FALSE(std::filesystem::exists("-"));
  }
}

TEST_CASE("two answers are not written to one stream, nor several files") {
  for (const std::string& line :
       {"search" + kJob + "--json -o -", "predict" + kJob + "--json -o -",
        "fit --measured 20ms --json -o -" + kJob,
        std::string("emit tp2 --framework megatron --out - --model tiny --gpus 8")}) {
    CAPTURE(line);
    const Ran ran = run(line);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    CHECK(ran.says("standard output"));
    CHECK_FALSE(std::filesystem::exists("-"));
  }
}
