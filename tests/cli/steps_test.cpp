// `predict` and `search` of --algorithm.

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "models/files.h"
#include "models/text.h"
#include "models/words.h"
#include "planner/rl/rl_job.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

const std::string kTiny = " --model tiny --gpus 8 --prompt-len 50 --max-response-len 300 ";

Ran step(const std::string& verb, const std::string& rest) {
  return run(verb + kTiny + rest);
}

}  // namespace

TEST_CASE("every algorithm is predicted, and its phases fill the step") {
  for (const auto& [algorithm, word] : Words<Algorithm>::table) {
    CAPTURE(word);
    const Ran ran = step("predict", "--algorithm " + std::string(word) + " --json");
    REQUIRE(ran.code == 0);
    const Json answer = ran.json()["step"];
    CHECK(answer["algorithm"] == word);
    CHECK(answer["fits"] == true);
    double total = 0;
    for (const Json& phase : answer["phases"]) {
      total += phase["end_s"].get<double>() - phase["begin_s"].get<double>();
    }
    CHECK(total == doctest::Approx(answer["step_time_s"].get<double>()));
    // The plan is of the batch that the answers make.
    CHECK(ran.json()["plan"]["global_batch_size"] == answer["packed_sequences"]);
    CHECK(ran.json()["plan"]["seq_len"] == 350);
    CHECK(answer["rollout"].is_null() == (word == "sft" || word == "dpo"));
  }
}

TEST_CASE("a search's best step is predicted the same from its file") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/best.json";
  const Ran found = step("search", "--algorithm grpo --json -o " + file);
  REQUIRE(found.code == 0);
  const Json best = found.json()["steps"][0];
  CHECK(best["rollout"]["gpus"].get<int>() >= 0);
  const Json written = read_json_file(file);
  CHECK(written["step"]["step_time_s"] == best["step_time_s"]);
  CHECK(written["plan"] == best["plan"]);
  // Layout and share of the GPUs are the question's to repeat.
  const std::string line = best["rollout"]["layout"].get<std::string>();
  const Ran again = run({"predict", "--plan", file, "--algorithm", "grpo", "--prompt-len", "50",
                         "--max-response-len", "300", "--rollout", line, "--json"});
  REQUIRE(again.code == 0);
  if (best["rollout"]["gpus"] == 0) {
    CHECK(again.json()["step"]["step_time_s"].get<double>() ==
          doctest::Approx(best["step_time_s"].get<double>()));
  }
}

TEST_CASE("lengths of a file are those of the answers") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/lengths.txt";
  write_file_atomically(file, "[100, 200, 300]\n");
  const Ran ran = run("predict --model tiny --gpus 8 --algorithm sft --prompts 24 --lengths " +
                      file + " --json");
  REQUIRE(ran.code == 0);
  CHECK(ran.json()["step"]["response_len"] == 200);
  CHECK(ran.json()["step"]["max_response_len"] == 300);
  CHECK(ran.json()["plan"]["seq_len"] == 300);
  write_file_atomically(file, "12 x\n");
  const Ran wrong = run("predict --model tiny --gpus 8 --algorithm sft --lengths " + file);
  CHECK(wrong.code == 2);
  CHECK(wrong.says("'x'"));
}

TEST_CASE("what does not go together is said in one sentence") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "--prompt-len needs --algorithm"},
      {"--algorithm rloo", "algorithm"},
      {"--algorithm grpo --global-batch-size 8", "follows from --prompts"},
      {"--algorithm sft --samples 2", "--samples is for grpo and ppo"},
      {"--algorithm dpo --rollout tp1", "makes no answers"},
      {"--algorithm grpo --rollout cp2", "'cp2'"},
      {"--algorithm grpo --rollout tp16", "engines"},
      {"--algorithm grpo --train-batch 7", "optimizer steps"},
      {"--algorithm grpo --staleness 1", "--rollout-gpus"},
      {"--algorithm grpo --rollout-gpus 8", "none"},
      {"--algorithm grpo --lengths lengths.txt", "give one of them"}};
  for (const auto& [options, words] : cases) {
    CAPTURE(options);
    const Ran ran = step("predict", options);
    CHECK(ran.code == 2);
    CHECK(ran.says(words));
    CHECK(ran.out.empty());
  }
  CHECK(run("predict --model tiny --gpus 8 --padded").says("--padded needs --algorithm"));
  CHECK(run("predict --model tiny --gpus 8 --algorithm sft --lengths /nowhere").says("/nowhere"));
}

TEST_CASE("what does not fit of a step says by how much") {
  for (const std::string algorithm : {"sft", "grpo"}) {
    CAPTURE(algorithm);
    const Json json =
        step("predict", "--json --memory-cap-gib 0.05 --algorithm " + algorithm).json();
    const std::string misfit = json["step"]["misfit"];
    CAPTURE(misfit);
    CHECK(misfit.starts_with("the update takes "));
    CHECK(misfit.find(" GiB more than the 51.2 MiB that may be filled") != std::string::npos);
    CHECK(misfit.find("()") == std::string::npos);
  }
}

TEST_CASE("predict of a search's plan file alone says of the step what the search said") {
  const TemporaryFolder folder;
  const std::string file = folder.file("best.json"), lengths = folder.file("lengths.txt");
  write_file_atomically(lengths, "[40, 90, 100, 120, 300]\n");
  const std::vector<std::string> questions = {
      "sft --max-response-len 300",
      "dpo --max-response-len 300 --padded",
      "grpo --max-response-len 300 --rollout-gpus 0",
      "grpo --max-response-len 300 --rollout-gpus 4 --staleness 1",
      "ppo --max-response-len 300 --no-reference --unbalanced --ppo-epochs 2 --keep-trainer",
      "grpo --prompts 16 --samples 4 --train-batch 16 --response-spread 0.2 --rollout-gpus 2",
      "sft --prompts 24 --lengths " + lengths,
      "grpo --prompts 16 --samples 4 --rollout-gpus 4 --lengths " + lengths,
  };
  for (const std::string& question : questions) {
    CAPTURE(question);
    const Ran found = run("search --model tiny --gpus 8 --json --prompt-len 50 -o " + file +
                          " --algorithm " + question);
    REQUIRE(found.code == 0);
    Json best = found.json()["steps"][0];
    best.erase("plan");
    best.erase("short");
    const Ran again = run("predict " + file + " --json");
    CHECK(again.code == 0);
    REQUIRE(again.json().contains("step"));
    CHECK(again.json()["step"] == best);
    CHECK(run("predict " + file).says("One optimizer step of the update:"));
    // What predict writes is the same file again.
    const std::string copy = folder.file("copy.json");
    REQUIRE(run("predict " + file + " -o " + copy).code == 0);
    CHECK(read_json_file(copy)["step"] == read_json_file(file)["step"]);
  }
}

TEST_CASE("what takes a step's update alone says so, and no run of tokens is played of it") {
  const TemporaryFolder folder;
  const std::string file = folder.file("best.json");
  REQUIRE(step("search", "--algorithm grpo -o " + file).code == 0);
  const std::string alone = "one optimizer step of grpo's update";
  CHECK(run("compare " + file + " " + file).says(alone));
  CHECK(run("targets " + file).says(alone));
  CHECK(run("fit --plan " + file + " --measured 0.5 -o " + folder.file("own.json")).says(alone));
  const std::string log = folder.file("train.log");
  write_file_atomically(log, "iteration 1/ 10 | elapsed time per iteration (ms): 500.0 |\n");
  CHECK(run("watch " + log + " --plan " + file).says(alone));
  const Ran played = run("goodput " + file + " --tokens 1B");
  CHECK(played.code == 2);
  CHECK(played.says("is of a step of grpo"));
  REQUIRE(step("search", "--algorithm sft -o " + file).code == 0);
  CHECK(run("goodput " + file + " --tokens 1B").code == 0);
}

TEST_CASE("files of a step predict the whole step, and files of its update alone say so") {
  const TemporaryFolder folder;
  const std::string file = folder.file("best.json");
  const std::string asked = " --model qwen3-0.6b --gpus 8 --algorithm ";
  REQUIRE(run("search --framework verl --rollout-gpus 0 -o " + file + asked + "grpo").code == 0);
  const Ran whole = run("emit " + file + " --framework verl --json");
  REQUIRE(whole.code == 0);
  const double seconds = run("predict " + file + " --json").json()["step"]["step_time_s"];
  const std::string text = whole.json()["files"][0]["text"];
  CAPTURE(text);
  CHECK(text.find(", " + human_seconds(Seconds(seconds)) + " a step of grpo, ") !=
        std::string::npos);
  const std::string alone = "these files are of grpo's update alone";
  CHECK_FALSE(whole.says(alone));

  // A plan of another recipe, whose files know no engines.
  REQUIRE(run("search --framework fsdp2 --rollout-gpus 0 -o " + file + asked + "grpo").code == 0);
  const Ran launched = run("emit " + file + " --framework fsdp2 --json");
  REQUIRE(launched.code == 0);
  CHECK(launched.says(alone));
  CHECK(launched.json()["files"].dump().find(alone) != std::string::npos);
  REQUIRE(run("search --framework fsdp2 -o " + file + asked + "sft").code == 0);
  const Ran examples = run("emit " + file + " --framework fsdp2 --json");
  REQUIRE(examples.code == 0);
  CHECK_FALSE(examples.says("update alone"));
  CHECK(examples.json()["files"].dump().find("a step of sft") != std::string::npos);
}

TEST_CASE("a step that files have no words for is refused at once") {
  const TemporaryFolder folder;
  const std::string file = folder.file("best.json");
  // Trainer and engines in turn, on GPUs of their own: verl's trainer beside engines is a step
  // late.
  REQUIRE(run("search --model qwen3-0.6b --gpus 8 --algorithm grpo --rollout-gpus 4 --pp 2 "
              "--pipeline-layout 20+8 -o " +
              file)
              .code == 0);
  const auto begin = std::chrono::steady_clock::now();
  const Ran refused = run("emit " + file + " --framework verl --json");
  CHECK(refused.code == 2);
  CHECK(refused.says("use staleness 1"));
  // All ways to change its plan took three minutes.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
}

TEST_CASE("the line that a search of steps prints is predicted as that step") {
  const Ran found = step("search", "--algorithm grpo --rollout-gpus 0 --json");
  REQUIRE(found.code == 0);
  const Json best = found.json()["steps"][0];
  const std::string line = best["short"], layout = best["rollout"]["layout"];
  const std::size_t batch = line.find(" gbs"), length = line.find(" seq");
  REQUIRE(batch < length);
  const auto predicted = [&](const std::string& plan) {
    return run(std::vector<std::string>{"predict", plan, "--model", "tiny", "--gpus", "8",
                                        "--prompt-len", "50", "--max-response-len", "300",
                                        "--algorithm", "grpo", "--rollout-gpus", "0", "--rollout",
                                        layout, "--json"});
  };
  const Ran again = predicted(line);
  REQUIRE(again.code == 0);
  CHECK(again.json()["step"]["step_time_s"] == best["step_time_s"]);
  const Ran other = predicted(line.substr(0, batch) + " gbs8000" + line.substr(length));
  CHECK(other.code == 2);
  CHECK(other.says("gbs8000 is not the "));
}
