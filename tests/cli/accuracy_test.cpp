#include <doctest/doctest.h>

#include <cmath>

#include "models/csv.h"
#include "tests/cli/run.h"

namespace qplan {
namespace {

// Hand-written: one small model on 8 GPUs in a few plans, two runs that failed, two that cannot be
// asked about, one of grade C, two ZeRO twins far apart, and one of a built-in model. The times are
// invented.
const std::string kRuns = QPLAN_TEST_DATA "/measured_runs.csv";

// The id is a literal: gcc 13 calls a reference dangling that a temporary std::string helped find.
const Json& row(const Json& json, const char* id) {
  for (const Json& r : json["rows"]) {
    if (r["id"] == id) return r;
  }
  FAIL("no row " << id);
  return json;
}

TEST_CASE("accuracy judges the rows of grades A and B, each with its prediction") {
  const Ran ran = run("accuracy " + kRuns + " --json");
  REQUIRE(ran.code == 0);
  const Json json = ran.json();
  CHECK(json["all"]["rows"] == 11);
  CHECK(json["left_out"] == 1);
  CHECK(json["rows"].size() == 11);
  const Json& first = row(json, "hand-1");
  CHECK(first["measured_step_time_s"] == 0.3);
  CHECK(first["error"].get<double>() ==
        doctest::Approx(first["predicted_step_time_s"].get<double>() / 0.3 - 1));
  CHECK(first["memory_error"].get<double>() ==
        doctest::Approx(first["predicted_peak_gib"].get<double>() / 6 - 1));
  CHECK(first["feasible"] == true);
  CHECK(first["status"] == "ok");
  CHECK(first["unpriced"].is_null());
  CHECK(row(json, "hand-4")["measured_step_time_s"] == 0.4);  // 64 x 2048 / (40960 x 8)
}

TEST_CASE("a run's prediction is what predict says of its plan") {
  const Json json = run("accuracy " + kRuns + " --json").json();
  const Json& judged = row(json, "zoo-1");
  const Json predicted =
      run("predict --model qwen3-0.6b --gpus 8 --tp 2 --global-batch-size 64 --json").json();
  CHECK(judged["plan"] == predicted["short"]);
  CHECK(judged["predicted_step_time_s"] == predicted["step_time_s"]);
  CHECK(judged["interval_s"] == predicted["interval"]["step_time_s"]);
  CHECK(judged["time"] == predicted["time"]);
  CHECK(judged["predicted_peak_gib"] == predicted["memory"]["peak_gib"]);
}

TEST_CASE("a row's machine may be the file of a profile, or a reason why it is not priced") {
  const TemporaryFolder folder;
  const std::string profile = folder.file("ours.json");
  const std::string runs = folder.file("runs.csv");
  const auto judged = [&] {
    std::string text = read_text_file(kRuns);
    for (std::size_t at = 0; (at = text.find("h100-sxm", at)) != std::string::npos;) {
      text.replace(at, std::string("h100-sxm").size(), profile);
    }
    write_file_atomically(runs, text);
    return row(run("accuracy " + runs + " --json").json(), "zoo-1");
  };
  const auto step = [](const Json& r) { return r["predicted_step_time_s"].get<double>(); };
  Json slow = run("hardware show h100-sxm --json").json();
  write_file_atomically(profile, slow.dump());
  const Json as_built_in = judged();
  CHECK(step(as_built_in) == step(row(run("accuracy " + kRuns + " --json").json(), "zoo-1")));
  slow["gpu"]["memory_gb_per_s"] = 300;
  write_file_atomically(profile, slow.dump());
  CHECK(step(judged()) > 1.1 * step(as_built_in));
  write_file_atomically(profile, "{");
  CHECK(judged()["unpriced"].get<std::string>().find("ours.json") != std::string::npos);
}

TEST_CASE("accuracy counts what it cannot price with the reason, never as right") {
  const Json json = run("accuracy " + kRuns + " --json").json();
  CHECK(json["all"]["priced"] == 9);
  CHECK(json["all"]["unpriced"]["recipe 'jax' is none of those predicted"] == 1);
  CHECK(
      json["all"]["unpriced"]["no base_model, and the architecture columns lack layers, hidden"] ==
      1);
  CHECK(row(json, "other-1")["predicted_step_time_s"].is_null());
  CHECK(row(json, "other-1")["feasible"].is_null());
  CHECK(row(json, "other-1")["time"].is_null());
  CHECK(json["all"]["step_time"]["rows"] == 7);
}

TEST_CASE("runs that failed are judged by feasibility alone") {
  const Json json = run("accuracy " + kRuns + " --json").json();
  CHECK(row(json, "hand-5")["feasible"] == false);  // more stages than layers
  CHECK(row(json, "hand-5")["unpriced"].is_null());
  CHECK(row(json, "hand-6")["feasible"] == false);  // 2 Mi tokens a microbatch on one GPU
  const Json& fits = json["all"]["fits"];
  CHECK(fits["failed_called_infeasible"] == 2);
  CHECK(fits["failed_called_feasible"] == 0);
  CHECK(fits["ok_called_feasible"] == 7);
}

TEST_CASE("memory is judged like with like, and of unknown kind apart") {
  const Json json = run("accuracy " + kRuns + " --json").json();
  CHECK(json["all"]["memory"]["rows"] == 2);
  CHECK(json["memory_of_unknown_kind"]["rows"] == 1);
  // The allocator holds more than is allocated.
  CHECK(row(json, "hand-2")["mem_kind"] == "reserved");
}

TEST_CASE("ZeRO twins far apart are set aside, and both figures are shown") {
  const Ran ran = run("accuracy " + kRuns + " --json");
  const Json json = ran.json();
  CHECK(json["set_aside"]["ids"] == Json{"twin-1", "twin-2"});
  CHECK(json["set_aside"]["all"]["step_time"]["rows"] == 5);
  CHECK(json["all"]["step_time"]["rows"] == 7);
  CHECK(run("accuracy " + kRuns).says("all but set aside"));
}

TEST_CASE("groups share the words of --by") {
  const Json by_source = run("accuracy " + kRuns + " --json --by source").json();
  REQUIRE(by_source["groups"].size() == 4);
  CHECK(by_source["groups"][0]["by"] == Json{{"source", "hand"}});
  CHECK(by_source["groups"][0]["rows"] == 6);
  CHECK(by_source["groups"][0]["ranking"]["sets"] == 1);
  const Json usual = run("accuracy " + kRuns + " --json").json();
  CHECK(usual["groups"][0]["by"] == Json{{"recipe", "jax"}, {"hardware", "h100-sxm"}});
  CHECK(run("accuracy " + kRuns + " --by colour").code == 2);
}

TEST_CASE("--grade says which rows count") {
  CHECK(run("accuracy " + kRuns + " --json --grade C").json()["all"]["rows"] == 1);
  CHECK(run("accuracy " + kRuns + " --json --grade A,B,C").json()["all"]["rows"] == 12);
  CHECK(run("accuracy " + kRuns + " --json --grade c").json()["all"]["rows"] == 1);
  const Ran unknown = run("accuracy " + kRuns + " --grade Z");
  CHECK(unknown.code == 2);
  CHECK(unknown.says("choose one of A, B, C"));
}

TEST_CASE("--max-error exits 1 above the median, and where nothing was timed") {
  CHECK(run("accuracy " + kRuns + " --max-error 1000").code == 0);
  CHECK(run("accuracy " + kRuns + " --max-error 0").code == 1);
  // Without its row of grade C.
  const TemporaryFolder folder;
  std::istringstream lines(read_text_file(kRuns));
  std::string others;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(",C,") == std::string::npos) others += line + '\n';
  }
  write_file_atomically(folder.file("runs.csv"), others);
  const Ran none = run("accuracy " + folder.file("runs.csv") + " --grade C --max-error 1000");
  CHECK(none.code == 1);
}

TEST_CASE("accuracy says the same as text, as Markdown and into a file") {
  const Ran text = run("accuracy " + kRuns + " --rows");
  CHECK(text.code == 0);
  CHECK(text.says("Step time, predicted/measured - 1"));
  CHECK(text.says("not priced because"));
  CHECK(text.says("hand-3"));
  CHECK(run("accuracy " + kRuns + " --markdown").says("| recipe | hardware | rows |"));
  const TemporaryFolder folder;
  CHECK(run("accuracy " + kRuns + " -o " + folder.file("a.txt")).out.empty());
  CHECK(run("accuracy " + kRuns + " --json").out == run("accuracy " + kRuns + " --json").out);
}

// Cells of a line of the template, none of which holds a quote.
std::vector<std::string> cells_of(const std::string& line) {
  const CsvTable table = parse_csv(line + '\n', "the template");
  return table.columns;
}

TEST_CASE("--template prints the header and an example behind a '#'") {
  const Ran ran = run("accuracy --template");
  REQUIRE(ran.code == 0);
  const std::size_t end = ran.out.find('\n');
  const std::string header = ran.out.substr(0, end);
  const std::string example = ran.out.substr(end + 1);
  CHECK(header.starts_with("id,grade,hardware,recipe,base_model,"));
  CHECK(header.ends_with(
      ",step_time_s,tokens_per_s_per_gpu,tflops_per_gpu,mfu,mem_gb_per_gpu,notes"));
  REQUIRE(example.starts_with('#'));
  CHECK(example.find('\n') == example.size() - 1);
  CHECK(cells_of(header).size() == 61);
}

TEST_CASE("the template is a file of no runs, and of one when its '#' is taken away") {
  const TemporaryFolder folder;
  const std::string file = folder.file("runs.csv");
  CHECK(run("accuracy --template -o " + file).out.empty());
  CHECK(run("accuracy " + file + " --json").json()["all"]["rows"] == 0);
  std::string text = read_text_file(file);
  text.erase(text.find('#'), 1);
  write_file_atomically(file, text);
  const Json json = run("accuracy " + file + " --json").json();
  REQUIRE(json["rows"].size() == 1);
  CHECK(json["rows"][0]["unpriced"].is_null());
  CHECK(json["rows"][0]["measured_step_time_s"] == 25.07032);
  CHECK(json["unknown_flags"].empty());
  CHECK(std::abs(json["rows"][0]["error"].get<double>()) < 0.3);
}

TEST_CASE("columns that a file lacks are named at once, and those that may be misspelt") {
  const TemporaryFolder folder;
  const std::string file = folder.file("runs.csv");
  const auto answer = [&](std::string_view header) {
    write_file_atomically(file, std::string(header) + "\n");
    const Ran ran = run("accuracy " + file);
    CHECK(ran.code == 2);
    return ran.err;
  };
  std::string header = run("accuracy --template").out;
  header.resize(header.find('\n'));
  const auto without = [&](std::string_view column, std::string_view instead) {
    std::string changed = header;
    changed.replace(changed.find(column), column.size(), instead);
    return changed;
  };
  CHECK(
      answer(without(",base_model", ",base-modl"))
          .find(
              "a column of measured runs is missing: 'base_model' (or is it 'base-modl'?); `qplan "
              "accuracy --template` prints") != std::string::npos);
  CHECK(answer(without(",mlp,norm", ""))
            .find("2 columns of measured runs are missing: 'mlp', "
                  "'norm'; ") != std::string::npos);
  // Nothing reads these.
  CHECK(run("accuracy " + file).err.find("mfu") == std::string::npos);
  write_file_atomically(file, without(",tflops_per_gpu,mfu", "") + '\n');
  CHECK(run("accuracy " + file).code == 0);
  const Ran none = run("accuracy " QPLAN_TEST_DATA "/simumax_b200.csv");
  CHECK(none.says("columns of measured runs are missing: 'id', 'grade', 'hardware', "));
}

TEST_CASE("accuracy refuses what it cannot read") {
  CHECK(run("accuracy").says("accuracy needs at least one CSV file"));
  CHECK(run("accuracy /no/such/file.csv").code == 2);
  CHECK(run("accuracy " + kRuns + " --template").says("--template takes no files"));
}

}  // namespace
}  // namespace qplan
