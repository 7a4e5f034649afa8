#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "cli/plan_words.h"
#include "models/plan/word_values.h"
#include "models/text.h"
#include "tests/cli/run.h"

using namespace qplan;

TEST_CASE("help is an answer, and no verb at all is bad input") {
  CHECK(run("--help").code == 0);
  CHECK(run("help search").out == run("search --help").out);
  CHECK(run("--version").out.starts_with("qplan "));
  const Ran nothing = run("");
  CHECK(nothing.code == 2);
  CHECK(nothing.out.empty());
}

TEST_CASE("every verb's help names its options and ends with an example") {
  for (const Verb& verb : verbs()) {
    CAPTURE(verb.name);
    const Ran help = run({std::string(verb.name), "--help"});
    CHECK(help.code == 0);
    CHECK(help.err.empty());
    CHECK(help.says("Usage: qplan " + std::string(verb.name)));
    CHECK(help.says("\nExample: qplan " + std::string(verb.name)));
    CHECK(help.says("--help"));
  }
}

TEST_CASE("an unknown verb or option is bad input, and the nearest one is offered") {
  const Ran verb = run("serach --model tiny");
  CHECK(verb.code == 2);
  CHECK(verb.err == "qplan: verb 'serach' is unknown; did you mean 'search'?\n");
  CHECK(verb.out.empty());
  const Ran option = run("search --modle tiny");
  CHECK(option.code == 2);
  CHECK(option.err == "qplan: search has no option '--modle'; did you mean '--model'?\n");
  CHECK(run("emitt").says("did you mean 'emit'?"));
  CHECK(run("xyzzy").says("choose one of search, predict"));
}

TEST_CASE("bad input of every kind is exit code 2 and one sentence") {
  for (const std::string line : {"search",
                                 "search --model tiny",
                                 "search --gpus 8",
                                 "predict --model nosuch --gpus 8",
                                 "predict --model tiny --gpus 8 --tp x",
                                 "predict --model tiny --gpus 8 --schedule 1f2b",
                                 "predict --model tiny --gpus 8 --hardware nosuch",
                                 "predict --plan nosuch.json",
                                 "predict --model tiny --gpus 8 --global-batch-size 1000000000",
                                 "sweep --model tiny",
                                 "sweep --model tiny --gpus 8..4",
                                 "trace",
                                 "trace nosuch.json --text",
                                 "models shw",
                                 "models show",
                                 "models show nosuch",
                                 "hardware show nosuch",
                                 "predict --model tiny --gpus 8 --overlap tp,tp",
                                 "predict --model tiny --gpus 8 --recompute selective:nosuch",
                                 "search --model tiny --gpus 8 --zero 1..x",
                                 "predict --model / --gpus 8"}) {
    CAPTURE(line);
    const Ran ran = run(line);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    CHECK(ran.err.starts_with("qplan: "));
    CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == 1);
  }
}

TEST_CASE(
    "a plan word given twice is refused, except where repeating is how a search takes several") {
  for (const WordText& word : word_texts()) {
    const std::string option = option_name(word.key);
    const bool repeats = word.given == Given::again;  // one value is a list already
    for (const std::string verb : {"predict", "search", "sweep"}) {
      CAPTURE(verb);
      CAPTURE(option);
      const Ran ran = run({verb, "--model", "tiny", "--gpus", "8", option + "=1", option + "=2"});
      CHECK(ran.code == 2);
      const bool twice =
          ran.err.starts_with("qplan: " + option + " is given 2 times; give it once");
      CHECK(twice == (verb == "predict" || !repeats));
    }
  }
  CHECK(run("search --model tiny --gpus 8 --tp 4 --tp 2").err ==
        "qplan: --tp is given 2 times; give it once, as a list: --tp 4,2\n");
  CHECK(run("search --model tiny --gpus 8 --schedule 1f1b --schedule=interleaved").err ==
        "qplan: --schedule is given 2 times; give it once, as a list: --schedule "
        "1f1b,interleaved\n");
}

TEST_CASE("a name that the file system cannot follow is said in words, whoever asks") {
  const TemporaryFolder folder;
  const std::string link = folder.file("link");
  std::filesystem::create_symlink(link, link);
  const Ran ran = run({"predict", "--model", "tiny", "--gpus", "8", "--hardware", link});
  CHECK(ran.code == 2);
  CHECK(ran.err == "qplan: cannot use '" + link + "': Too many levels of symbolic links\n");
}

TEST_CASE("underscores in an option are dashes") {
  const Ran dashes = run("predict --model tiny --gpus 8 --seq-len 512 --micro-batch-size 2 --json");
  CHECK(dashes.code == 0);
  CHECK(dashes.out ==
        run("predict --model tiny --gpus 8 --seq_len 512 --micro_batch_size=2 --json").out);
}

TEST_CASE("text stays within 120 columns") {
  for (const std::string line :
       {"models", "hardware",
        "search --model tiny-moe --gpus 8 --seq-len 512 --global-batch-size 16 --cp 1 --offload "
        "none --micro-batch-size 1",
        "search --model llama3-8b --gpus 2 --tp 1,2 --cp 1 --pp 1 --micro-batch-size 1 --recompute "
        "none --offload none",
        "predict --model llama3-405b --gpus 1024 --tp 8 --pp 16",
        "predict --model qwen3-30b-a3b --gpus 8 --tp 3 --ep 5",
        "sweep --model tiny-moe --gpus 4,8 --seq-len 256,512 --global-batch-size 16 --price 2 "
        "--hardware h100-sxm,h200-sxm --tp 1,2 --cp 1 --pp 1 --offload none --micro-batch-size 1 "
        "--ep 2",
        "search --help", "predict --help", "sweep --help", "trace --help"}) {
    std::istringstream text(run(line).out);
    for (std::string row; std::getline(text, row);) {
      CAPTURE(line);
      CAPTURE(row);
      CHECK(display_width(row) <= 120);
    }
  }
}

TEST_CASE("text fits the terminal") {
  const std::vector<std::vector<std::string>> questions = {
      {"predict", "tp2 pp2 dp2", "--model", "qwen3-8b", "--gpus", "8"},
      {"predict", "tp2 pp2 dp2", "--model", "qwen3-8b", "--gpus", "8", "--offload", "optimizer"},
      {"predict", "tp1 pp8", "--model", "deepseek-v3", "--gpus", "256", "--hardware", "gb300"},
      {"predict", "tp2 dp4", "--model", "qwen3-8b", "--gpus", "8", "--framework", "verl",
       "--algorithm", "grpo"},
      {"goodput", "tp1 pp1 dp24", "--model", "llama3-8b", "--gpus", "24", "--runs", "3"}};
  for (const std::vector<std::string>& question : questions) {
    for (const int columns : {70, 80, 100, 200}) {
      std::ostringstream out, err;
      Terminal terminal;
      terminal.page = columns;
      run_cli(question, out, err, terminal);
      std::istringstream text(out.str());
      for (std::string row; std::getline(text, row);) {
        CAPTURE(question.front());
        CAPTURE(columns);
        CAPTURE(row);
        CHECK(display_width(row) <= static_cast<std::size_t>(columns));
      }
    }
  }
}

TEST_CASE("what is built in is listed, and shown whole") {
  CHECK(run("models").says("qwen3-30b-a3b"));
  CHECK(run("hardware").says("h100-sxm"));
  const Json model = run("models show llama3-8b").json();
  CHECK(model["config"]["hidden_size"] == 4096);
  CHECK(model["parameters"]["total"].get<double>() == doctest::Approx(8.03e9).epsilon(0.001));
  CHECK(model["notes"].empty());
  CHECK(run("models show gemma3-27b").says("the model's vision tower is left out"));
  CHECK(run("models --json").json()["models"].size() > 10);
  CHECK(run("hardware --json").json()["hardware"].size() > 5);
}

TEST_CASE("a machine that is shown can be given back as a profile") {
  const TemporaryFolder folder;
  const std::string file = folder.file("mine.json");
  write_file_atomically(file, run("hardware show h200-sxm").out);
  CHECK(run("hardware show " + file).out == run("hardware show h200-sxm").out);
  const Ran built_in = run("predict --model tiny --gpus 8 --seq-len 512 --hardware h200-sxm");
  CHECK(run({"predict", "--model", "tiny", "--gpus", "8", "--seq-len", "512", "--hardware", file})
            .out == built_in.out);
}
