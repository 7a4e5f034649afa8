#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/cli/run.h"

using namespace qplan;

namespace {

const std::string kJob = " --plan tp2 --model llama3-8b --gpus 8";

std::vector<Json> lines_of(const Ran& ran) {
  std::vector<Json> lines;
  std::istringstream in(ran.out);
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, "a line"));
  return lines;
}

// A log of Megatron's whose step i takes `factor(i)` times what is predicted.
template <class Factor>
std::string log_of(int steps, Factor factor) {
  const double s = run("predict tp2 --model llama3-8b --gpus 8 --json").json()["step_time_s"];
  std::string text;
  for (int i = 1; i <= steps; ++i) {
    text += " iteration " + std::to_string(i) +
            "/ 100 | elapsed time per iteration (ms): " + std::to_string(1000 * s * factor(i)) +
            " |\n";
  }
  return text;
}

}  // namespace

TEST_CASE("a run as it was predicted raises no alert") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  write_file_atomically(log, log_of(30, [](int) { return 1.0; }));
  const Ran ran = run("watch " + log + kJob);
  CHECK(ran.code == 0);
  const auto lines = lines_of(ran);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["inside"] == true);
  CHECK(lines[0]["steps"] == 28);
}

TEST_CASE("a run that becomes slow at once is told at the step where it is sure") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  write_file_atomically(log, log_of(60, [](int i) { return i <= 40 ? 1.0 : 1.5; }));
  const Ran ran = run("watch " + log + kJob);
  CHECK(ran.code == 1);
  bool jump = false;
  for (const Json& line : lines_of(ran)) {
    if (!line.contains("alert") || line["alert"] != "jump") continue;
    jump = true;
    CHECK(line["step"] == 45);
  }
  CHECK(jump);
}

TEST_CASE("a command is watched as its log is, and its failure is a launch that failed") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  write_file_atomically(log, log_of(60, [](int i) { return i <= 40 ? 1.0 : 1.5; }));
  const Ran ran = run("watch" + kJob + " -- cat " + log);
  CHECK(ran.code == 1);
  CHECK(ran.out == run("watch " + log + kJob).out);
  CHECK(ran.err.find("iteration 60/") != std::string::npos);
  CHECK(run("watch" + kJob + " -- false").code == 3);
}

TEST_CASE("watch needs a log or a command") {
  CHECK(run("watch" + kJob).code == 2);
  const Ran absent = run("watch /nowhere.log" + kJob);
  CHECK(absent.code == 2);
  CHECK(absent.says("cannot open '/nowhere.log': No such file or directory; name a log"));
  const TemporaryFolder folder;
  CHECK(run("watch " + folder.path() + kJob).says("is a folder"));
}

TEST_CASE("a log without a step is said to be none") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  for (const char* text :
       {"", "loss: 3\n", " iteration 1/ 9 | elapsed time per iteration (ms): 0 |\n",
        " iteration 1/ 9 | elapsed time per iteration (ms): -5 |\n",
        " iteration 1/ 9 | elapsed time per iteration (ms): nan |\n"}) {
    CAPTURE(text);
    write_file_atomically(log, text);
    const Ran ran = run("watch " + log + kJob);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    CHECK(ran.says("of no step how long it took"));
    CHECK(run("watch" + kJob + " -- cat " + log).code == 2);
  }
  // Two steps are warm-up.
  write_file_atomically(log, log_of(2, [](int) { return 1.0; }));
  const Ran two = run("watch " + log + kJob);
  CHECK(two.code == 2);
  CHECK(two.out.empty());
  CHECK(two.says("tells of 2 steps"));
  write_file_atomically(log, log_of(3, [](int) { return 1.0; }));
  CHECK(run("watch " + log + kJob).code == 0);
}

TEST_CASE("a Trainer's log that has the mean alone is judged by it") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  const Json predicted = run("predict tp2 --model llama3-8b --gpus 8 --json").json();
  const double s = predicted["step_time_s"];
  const auto mean = [&](double factor) {
    const double batch = predicted["plan"]["global_batch_size"];
    write_file_atomically(
        log, "{'loss': 2.1, 'epoch': 0.1}\n{'train_runtime': 100.0, 'train_samples_per_second': " +
                 std::to_string(batch / s / factor) + ", 'train_steps_per_second': " +
                 std::to_string(1 / s / factor) + ", 'train_loss': 2.0}\n");
    return run("watch " + log + kJob);
  };
  const Ran as_predicted = mean(1);
  CHECK(as_predicted.code == 0);
  REQUIRE(lines_of(as_predicted).size() == 1);
  CHECK(lines_of(as_predicted)[0]["inside"] == true);
  CHECK(lines_of(as_predicted)[0]["steps"] == 1);
  const Ran slow = mean(3);
  CHECK(slow.code == 1);
  CHECK(lines_of(slow)[0]["alert"] == "slow");
  CHECK(lines_of(slow)[1]["inside"] == false);
}

TEST_CASE("Megatron-Bridge's two lines of a step are one step, for watch and for fit") {
  const TemporaryFolder folder;
  const std::string alone = folder.path() + "/alone.log", both = folder.path() + "/both.log",
                    ranks = folder.path() + "/ranks.log";
  const std::string text = log_of(60, [](int i) { return i % 20 == 0 ? 1.4 : 1.0; });
  std::string twice, often;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const double ms = std::stod(line.substr(line.find("(ms): ") + 6));
    twice += "Step Time : " + std::to_string(ms / 1000) + "s GPU utilization: 402.1MODEL_TFLOP\n" +
             line + "\n";
    for (int rank = 0; rank < 4; ++rank)
      often += "[rank" + std::to_string(rank) + "]: " + line + "\n";
  }
  write_file_atomically(alone, text);
  write_file_atomically(both, twice);
  write_file_atomically(ranks, often);
  const Ran ran = run("watch " + alone + kJob);
  CHECK(ran.code == 0);
  CHECK(lines_of(ran)[0]["steps"] == 58);
  CHECK(run("watch " + both + kJob).out == ran.out);
  CHECK(run("watch " + ranks + kJob).out == ran.out);
  const auto fitted = [](const std::string& log) {
    return run({"fit", log, "--plan", "tp2", "--model", "llama3-8b", "--gpus", "8", "--top", "0",
                "--json"})
        .json()["factors"];
  };
  CHECK(fitted(both) == fitted(alone));
  CHECK(fitted(ranks) == fitted(alone));
}

TEST_CASE("what is over is said, and is no alert") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  write_file_atomically(log, log_of(90, [](int i) { return i > 40 && i <= 70 ? 1.15 : 1.0; }));
  const auto lines = lines_of(run("watch " + log + kJob));
  REQUIRE(lines.size() >= 3);
  CHECK(lines.back()["alerts"] == (lines.size() - 1) / 2);
  bool over = false;
  for (const Json& line : lines) {
    if (!line.contains("over") || line["over"] != "jump") continue;
    over = true;
    CHECK(line["since"] == 45);
    CHECK(line["step"] == 75);
  }
  CHECK(over);
}

TEST_CASE("a log of another batch is refused, and a command that logs it runs on") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  std::string text;
  for (int i = 1; i <= 9; ++i) {
    text += " iteration " + std::to_string(i) +
            "/ 9 | elapsed time per iteration (ms): 900 | global batch size: 96 |\n";
  }
  write_file_atomically(log, text);
  const std::string batch = " --global-batch-size 48";
  const Ran ran = run("watch " + log + kJob + batch);
  CHECK(ran.code == 2);
  CHECK(ran.out.empty());
  CHECK(ran.says("a global batch of 96, and the plan has 48"));
  const Ran command = run("watch" + kJob + batch + " -- cat " + log);
  CHECK(command.code == 2);
  CHECK(command.says("iteration 9/"));
  CHECK(run("watch " + log + kJob + " --global-batch-size 96").code != 2);
}

TEST_CASE("a log of another number of GPUs is another plan's") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  const std::string steps = log_of(9, [](int) { return 1.0; });
  write_file_atomically(log, "using world size: 8, data-parallel size: 4\n" + steps);
  CHECK(run("watch " + log + kJob).code == 0);
  write_file_atomically(log, "using world size: 32, data-parallel size: 16\n" + steps);
  const Ran ran = run("watch " + log + kJob);
  CHECK(ran.code == 2);
  CHECK(ran.says("32 GPUs, and the plan has 8"));
}

namespace {

// `qplan watch LOG --follow` in a thread, until it is interrupted.
class Following {
 public:
  explicit Following(const std::string& log)
      : thread_([this, log] { ran_ = run("watch " + log + " --follow" + kJob); }) {
    // It takes signals once it reads.
    struct sigaction now {};
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      sigaction(SIGTERM, nullptr, &now);
    } while (now.sa_handler == SIG_DFL);
    pause();
  }
  // It reads once a second.
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(1500)); }
  Ran interrupted() {
    kill(getpid(), SIGTERM);
    thread_.join();
    return ran_;
  }

 private:
  Ran ran_{};
  std::thread thread_;
};

void append(const std::string& file, const std::string& text) {
  std::ofstream(file, std::ios::app) << text;
}

}  // namespace

TEST_CASE("a line that is half written is none yet, and an interrupted watch says what it saw") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  const std::string text = log_of(9, [](int) { return 3.0; });
  const std::size_t middle = text.find("iteration (ms): ", text.size() / 2) + 18;
  write_file_atomically(log, text.substr(0, middle));
  Following following(log);
  append(log, text.substr(middle));
  const Ran ran = following.interrupted();
  CHECK(ran.code == 1);
  const auto lines = lines_of(ran);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["alert"] == "slow");
  CHECK(lines[0]["step"] == 7);
  CHECK(lines[1]["steps"] == 7);
}

TEST_CASE("a log that was cut, or has another's name, is read from its start") {
  for (const bool cut : {true, false}) {
    CAPTURE(cut);
    const TemporaryFolder folder;
    const std::string log = folder.path() + "/train.log";
    write_file_atomically(log, log_of(10, [](int) { return 1.0; }));
    Following following(log);
    const std::string next = log_of(4, [](int) { return 1.0; });
    if (cut) {
      std::ofstream(log) << next;
    } else {
      write_file_atomically(log, next);
    }
    Following::pause();
    const Ran ran = following.interrupted();
    CHECK(ran.code == 0);
    REQUIRE(lines_of(ran).size() == 1);
    CHECK(lines_of(ran)[0]["steps"] == (10 - 2) + (4 - 2));  // two of each are warm-up
  }
}

TEST_CASE(
    "a command that tells of no step any more hangs, and one that ends without a newline does "
    "not") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log", script = folder.path() + "/train.sh";
  std::string text = log_of(10, [](int) { return 1.0; });
  text.pop_back();
  write_file_atomically(log, text);
  const Ran calm = run("watch --hang-after 1" + kJob + " -- cat " + log);
  CHECK(calm.code == 0);
  CHECK(lines_of(calm).back()["steps"] == 8);
  write_file_atomically(script, "cat " + log +
                                    "; echo; sleep 3; echo ' iteration 11/ 100 | elapsed"
                                    " time per iteration (ms): 1.0 |'\n");
  const Ran ran = run("watch --hang-after 1" + kJob + " -- sh " + script);
  CHECK(ran.code == 1);
  const auto lines = lines_of(ran);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0]["alert"] == "hang");
  CHECK(lines[0]["step"] == 10);
  CHECK(lines[0]["threshold"] == 1);
  CHECK(lines[1]["over"] == "hang");
  CHECK(lines[2]["alerts"] == 1);
}

TEST_CASE("what ends the watch ends its command") {
  std::vector<std::string> args{"watch", "--plan", "tp2", "--model", "llama3-8b", "--gpus", "8"};
  // The command's parent is this process.
  args.insert(args.end(), {"--", "sh", "-c", "kill -TERM $PPID; exec sleep 60"});
  const Ran ran = run(args);
  CHECK(ran.code == 3);
  CHECK(ran.says("sh ended with exit code 143"));
}
