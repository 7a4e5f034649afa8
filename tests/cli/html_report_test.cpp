// The page of `qplan report`: the very answers that --json prints, in one file that needs nothing.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <iostream>
#include <set>
#include <sstream>

#include "cli/html_page.h"
#include "cli/report.h"
#include "cli/timeline.h"
#include "models/model_spec.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

constexpr std::string_view kBegin = "<script type=\"application/json\" id=\"answers\">";

// What a page has between these.
std::string between(const std::string& page, std::string_view begin, std::string_view end) {
  const std::size_t from = page.find(begin);
  REQUIRE(from != std::string::npos);
  const std::size_t to = page.find(end, from + begin.size());
  REQUIRE(to != std::string::npos);
  return page.substr(from + begin.size(), to - from - begin.size());
}

std::string data_text(const std::string& page) {
  return between(page, kBegin, "</script>");
}

Json data_of(const std::string& file) {
  return parse_json(data_text(read_text_file(file)), "the page");
}

// The only answer of a page that `report` makes of these words.
Json reported(const std::string& words, const std::string& file, int code = 0) {
  CAPTURE(words);
  const Ran ran = run("report " + words + " -o " + file);
  CAPTURE(ran.err);
  REQUIRE(ran.code == code);
  CHECK(ran.out.empty());
  CHECK(ran.err.starts_with(file));
  const Json data = data_of(file);
  REQUIRE(data["answers"].size() == 1);
  return data["answers"][0];
}

std::size_t count_of(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) {
    ++count;
  }
  return count;
}

// Standard input for as long as this lives.
class Piped {
 public:
  explicit Piped(const std::string& text) : in_(text), before_(std::cin.rdbuf(in_.rdbuf())) {}
  Piped(const Piped&) = delete;
  Piped& operator=(const Piped&) = delete;
  ~Piped() { std::cin.rdbuf(before_); }

 private:
  std::istringstream in_;
  std::streambuf* before_;
};

const std::string kSearch = "search --model tiny --gpus 8 --top 3 --pareto";

}  // namespace

TEST_CASE("a page has the very answer that the verb prints with --json") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  const std::string runs = QPLAN_TEST_DATA "/measured_runs.csv";
  for (const std::string& words :
       std::vector<std::string>{kSearch, "predict --model tiny --gpus 8 --tp 2",
                                "sweep --model tiny --gpus 1..4 --price 2", "accuracy " + runs,
                                "search --model tiny --gpus 8 --algorithm grpo --max-response-len "
                                "300 --prompt-len 50"}) {
    const Json entry = reported(words, file);
    CHECK(entry["verb"] == words.substr(0, words.find(' ')));
    CHECK(entry["asked"] == "qplan " + words);
    CHECK(entry["answer"] == run(words + " --json").json());
  }
}

TEST_CASE("what was executed is reported beside what was predicted of it") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  for (const std::string verb : {"run", "validate"}) {
    const Ran ran = run({"report", verb, "pp2 gbs4 seq32", "--model", "tiny", "-o", file});
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    const Json entry = data_of(file)["answers"][0];
    CHECK(entry["verb"] == verb);
    CHECK(entry["asked"] == "qplan " + verb + " 'pp2 gbs4 seq32' --model tiny");
    CHECK(entry["answer"].contains("comparison") == (verb == "validate"));
    CHECK(entry["answer"]["loss"].size() > 0);
    REQUIRE(entry["timelines"].size() == 1);
    CHECK(entry["timelines"][0]["ranks"] == 2);
  }
}

TEST_CASE("a page needs no network, and says so to the browser") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  reported(kSearch, file);
  const std::string page = read_text_file(file);
  CHECK(page.find("content=\"default-src 'none'; script-src 'unsafe-inline'") != std::string::npos);
  for (const char* loads : {"<link", " src=", "@import", "url(", "<iframe", "<img", "fetch(",
                            "XMLHttpRequest", "import(", "{{"}) {
    CAPTURE(loads);
    CHECK(page.find(loads) == std::string::npos);
  }
  // Addresses stand in comments and licences alone.
  CHECK(page.find("href=\"http") == std::string::npos);
}

TEST_CASE("a page is the same in every run and on every number of threads") {
  const TemporaryFolder folder;
  reported(kSearch, folder.file("first.html"));
  reported(kSearch, folder.file("second.html"));
  const std::string first = read_text_file(folder.file("first.html"));
  CHECK(first == read_text_file(folder.file("second.html")));
  const Json one = reported(kSearch + " --threads 1", folder.file("one.html"));
  const Json four = reported(kSearch + " --threads 4", folder.file("four.html"));
  CHECK(one["answer"] == four["answer"]);
  CHECK(one["timelines"] == four["timelines"]);
}

TEST_CASE("no text of an answer can end its script or begin another") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  reported("predict --model tiny --gpus 8", file);
  const std::size_t ends = count_of(read_text_file(file), "</script");
  const std::string model = folder.file("a<!--<script>alert(1)<b>.json");
  write_file_atomically(model, model_config("tiny").dump());
  const Json entry = reported("predict --gpus 8 --model " + model, file);
  CHECK(entry["answer"]["model"].get<std::string>().find("<script>") != std::string::npos);
  const std::string page = read_text_file(file);
  CHECK(data_text(page).find('<') == std::string::npos);
  CHECK(count_of(page, "</script") == ends);
  CHECK(count_of(page, "alert(1)") == count_of(data_text(page), "alert(1)"));
}

TEST_CASE("saved answers, piped ones and plan files make pages") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html"), saved = folder.file("answer.json");
  const std::string answer = run(kSearch + " --json -o " + folder.file("plan.json")).out;
  write_file_atomically(saved, answer);
  const Json asked = reported(kSearch, file);
  const Json read = reported(saved, file);
  CHECK(read["asked"] == saved);
  CHECK(read["answer"] == asked["answer"]);
  CHECK(read["timelines"] == asked["timelines"]);
  {
    const Piped piped(answer);
    CHECK(reported("-", file)["answer"] == asked["answer"]);
  }
  // Options without a verb are search's; a line and a plan file are predict's.
  CHECK(reported("--model tiny --gpus 8 --top 3 --pareto", file)["answer"] == asked["answer"]);
  const Json best = reported(folder.file("plan.json"), file);
  CHECK(best["verb"] == "predict");
  CHECK(best["answer"]["step_time_s"] == asked["answer"]["plans"][0]["step_time_s"]);
  CHECK(best["answer"].contains("checkpoint"));
  const Ran line = run({"report", "tp2 pp2 mbs1", "--model", "tiny", "--gpus", "8", "-o", file});
  CHECK(line.code == 0);
  CHECK(data_of(file)["answers"][0]["answer"]["plan"]["pp"] == 2);
  const Json other = reported(folder.file("plan.json") + " --hardware h200-sxm", file);
  CHECK(other["answer"]["hardware"] == "h200-sxm");
}

TEST_CASE("several answers stand on one page, in the order that they are given") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  write_file_atomically(folder.file("a.json"), run("predict --model tiny --gpus 8 --json").out);
  write_file_atomically(folder.file("b.json"), run("sweep --model tiny --gpus 1..2 --json").out);
  const std::string both = folder.file("b.json") + " " + folder.file("a.json");
  CHECK(run("report " + both + " -o " + file).code == 0);
  const Json answers = data_of(file)["answers"];
  REQUIRE(answers.size() == 2);
  CHECK(answers[0]["verb"] == "sweep");
  CHECK(answers[1]["verb"] == "predict");
}

TEST_CASE("a search may have the curves of a sweep beside it") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  CHECK(run("report " + kSearch + " --objective cost --price 2 --scaling 2..8 -o " + file).code ==
        0);
  const Json answers = data_of(file)["answers"];
  REQUIRE(answers.size() == 2);
  CHECK(answers[1]["answer"] == run("sweep --model tiny --price 2 --gpus 2..8 --json").json());
  CHECK(run("report predict --model tiny --gpus 8 --scaling 2..8 -o " + file).code == 2);
}

TEST_CASE("a page draws the step of its plans, and of no plan that has changed since") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  // Two stages and four microbatches.
  const std::string plan =
      "predict --model tiny --gpus 2 --pp 2 --seq-len 512 --global-batch-size 4";
  const Json timeline = reported(plan, file)["timelines"][0];
  REQUIRE(timeline.is_object());
  CHECK(timeline["ranks"] == 2);
  CHECK(timeline["left_out"].is_null());
  std::size_t forwards = 0;
  for (const Json& row : timeline["rows"]) {
    CHECK(row["begin"].size() == row["end"].size());
    CHECK(row["begin"].size() == row["name"].size());
    if (row["category"] == "forward") forwards += row["name"].size();
  }
  CHECK(forwards == 8);
  // A model of one's own: its file is named, or in the plan file.
  const std::string model = folder.file("mine.json"), saved = folder.file("plan.json");
  write_file_atomically(model, model_config("tiny").dump());
  const std::string mine = "predict --gpus 2 --pp 2 --model " + model;
  CHECK(reported(mine, file)["timelines"][0].is_object());
  REQUIRE(run(mine + " -o " + saved).code == 0);
  CHECK(reported(saved, file)["timelines"][0].is_object());
  // The answer alone has the model's name, and no more.
  write_file_atomically(saved, run(mine + " --json").out);
  CHECK(reported(saved, file)["timelines"][0].is_string());
  Json changed = run(plan + " --json").json();
  changed["fingerprint"] = "0123456789abcdef";
  write_file_atomically(saved, changed.dump());
  const Json none = reported(saved, file)["timelines"][0];
  REQUIRE(none.is_string());
  CHECK(none.get<std::string>().find("changed") != std::string::npos);
}

TEST_CASE("of a step of too many events the middle is left out of the drawing") {
  Trace trace{.ranks = 1, .end = Seconds(10), .events = {}};
  for (int i = 0; i < 10; ++i) {
    TraceEvent event;
    event.name = std::to_string(i);
    event.category = "forward";
    event.begin = Seconds(i);
    event.end = Seconds(i + 1);
    trace.events.push_back(event);
  }
  CHECK(timeline_json(trace, 10)["left_out"].is_null());
  const Json part = timeline_json(trace, 4);
  CHECK(part["events"] == 10);
  CHECK(part["rows"][0]["name"] == Json({"0", "1", "8", "9"}));
  CHECK(part["left_out"] == Json({200'000, 800'000}));
  CHECK(part["rows"][0]["end"][3] == part["ticks"]);
}

TEST_CASE("a page of several machines and frameworks has each plan's own") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html"), saved = folder.file("answer.json");
  const std::string lists =
      "search --model tiny --gpus 8 --hardware h100,h200 --framework "
      "megatron,torchtitan --top 6";
  const Json asked = reported(lists, file);
  CHECK(asked["verb"] == "search");
  CHECK(asked["answer"] == run(lists + " --json").json());
  REQUIRE(asked["timelines"].size() == 6);
  std::set<std::size_t> searches;
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(asked["timelines"][i].is_object());
    searches.insert(asked["answer"]["plans"][i]["search"].get<std::size_t>());
  }
  CHECK(asked["sources_of"].size() == searches.size());
  CHECK(searches.size() > 1);
  write_file_atomically(saved, asked["answer"].dump());
  const Json read = reported(saved, file);
  CHECK(read["verb"] == "search");
  CHECK(read["timelines"] == asked["timelines"]);
}

TEST_CASE("where nothing fits the page says so, and so does the exit code") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  const Json entry = reported("search --model llama3-405b --gpus 8", file, 1);
  CHECK(entry["answer"]["plans"].empty());
  CHECK(entry["answer"]["would_fit"].size() > 0);
  // A rule forbids it: no step, and no timeline.
  const Json forbidden = reported("predict --model tiny --gpus 6 --tp 3", file, 1);
  CHECK(forbidden["timelines"][0].is_string());
}

TEST_CASE("what report cannot use is one sentence, and nothing is written") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html"), bad = folder.file("bad.json");
  const std::string list = folder.file("list.json"), models = folder.file("models.json");
  write_file_atomically(bad, "{\"plans\": [");
  write_file_atomically(list, "[1, 2]");
  write_file_atomically(models, run("models --json").out);
  const std::string to = " -o " + file;
  for (const std::string& words : std::vector<std::string>{
           "report", "report -o", "report" + to, "report search --model tiny" + to,
           "report search --model tiny --gpus 8", "report nosuch.json" + to, "report " + bad + to,
           "report " + list + to, "report " + models + to, "report models" + to,
           "report watch" + to, "report tp3x --model tiny --gpus 8" + to,
           "report search --model tiny --gpus 8 -o " + folder.file("no/such/folder.html")}) {
    CAPTURE(words);
    const Ran ran = run(words);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    CHECK(ran.err.starts_with("qplan: "));
    CHECK(count_of(ran.err, "\n") == 1);
    CHECK_FALSE(std::filesystem::exists(file));
  }
  CHECK(run("report search --help").says("Usage: qplan search"));
}

TEST_CASE("plots come with the licence of who draws them, or a sentence says that there are none") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  const Ran ran = run("report predict --model tiny --gpus 8 -o " + file);
  const std::string page = read_text_file(file);
  CHECK(ran.says("tables without plots") != has_plots());
  const bool licensed = page.find("Permission is hereby granted") != std::string::npos;
  CHECK(licensed == has_plots());
  CHECK((page.find("Chart.js Contributors") != std::string::npos) == has_plots());
}

TEST_CASE("every part of time and memory has a colour in the page's script") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  reported("predict --model tiny --gpus 8", file);
  const std::string colors = between(read_text_file(file), "const COLOR_OF = {", "};");
  for (const TimePart& part : time_parts()) {
    CAPTURE(part.key);
    CHECK(colors.find(fmt::format("{}: ", part.key)) != std::string::npos);
  }
  for (const MemoryPart& part : memory_parts()) {
    CAPTURE(part.key);
    CHECK(colors.find(fmt::format("{}: ", part.key)) != std::string::npos);
  }
}
