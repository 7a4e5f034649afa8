#include <doctest/doctest.h>

#include <cmath>

#include "tests/cli/run.h"

using namespace qplan;

namespace {

const std::vector<std::string> kJob{"--plan",    "tp1 pp1 mbs2", "--model",
                                    "llama3-8b", "--gpus",       "8"};

Ran fit(std::vector<std::string> args, bool json = true) {
  args.insert(args.begin(), "fit");
  args.insert(args.end(), kJob.begin(), kJob.end());
  if (json) args.emplace_back("--json");
  return run(args);
}

double predicted_s(const std::vector<std::string>& more = {}) {
  std::vector<std::string> args{"predict", "--json"};
  args.insert(args.end(), kJob.begin(), kJob.end());
  args.insert(args.end(), more.begin(), more.end());
  return run(args).json()["step_time_s"];
}

std::string seconds_text(double seconds) {
  return std::to_string(seconds) + "s";
}

}  // namespace

TEST_CASE("a corrected profile predicts what fit says that it does, nearer to the measurement") {
  const TemporaryFolder folder;
  const std::string ours = folder.path() + "/ours.json";
  const double measured = 1.15 * predicted_s();
  const Ran ran = fit({"--measured", seconds_text(measured), "-o", ours});
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const Json found = ran.json();
  const double after = predicted_s({"--hardware", ours});
  CHECK(found["runs"][0]["corrected_s"].get<double>() == doctest::Approx(after));
  CHECK(std::abs(after - measured) < std::abs(predicted_s() - measured));
  CHECK(found["narrowed"].get<double>() < 1);
  CHECK(found["plans_after"].size() == 3);
  CHECK(found["profile"]["extends"] == "h100-sxm");
}

TEST_CASE("a corrected profile is corrected further by more runs") {
  const TemporaryFolder folder;
  const std::string once = folder.path() + "/once.json", twice = folder.path() + "/twice.json";
  const double measured = 1.15 * predicted_s();
  REQUIRE(fit({"--measured", seconds_text(measured), "-o", once, "--top", "0"}).code == 0);
  REQUIRE(fit({"--measured", seconds_text(measured), "--hardware", once, "-o", twice, "--top", "0"})
              .code == 0);
  CHECK(std::abs(predicted_s({"--hardware", twice}) - measured) <
        std::abs(predicted_s({"--hardware", once}) - measured));
}

TEST_CASE("a log says the same as its median step") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  const double ms = 1100 * predicted_s();
  std::string text = "starting\n";
  for (int i = 1; i <= 20; ++i) {
    text += " iteration " + std::to_string(i) +
            "/ 20 | elapsed time per iteration (ms): " + std::to_string(i < 3 ? 9 * ms : ms) +
            " |\n";
  }
  write_file_atomically(log, text);
  const Json of_log = fit({log, "--top", "0"}).json();
  CHECK(of_log["runs"][0]["measured_s"].get<double>() == doctest::Approx(ms / 1000).epsilon(1e-5));
  CHECK(of_log["plans_after"].empty());
  write_file_atomically(log, "nothing\n");
  const Ran ran = fit({log});
  CHECK(ran.code == 2);
  CHECK(ran.says("megatron"));
}

TEST_CASE("rows of measured runs correct one machine, and each is judged by the others") {
  const std::string runs = QPLAN_TEST_DATA "/runs/published.csv";
  const Ran ran = run("fit --runs " + runs +
                      " --rows titan-llama3-8b-h100-96gb-hbm2e-64 --leave-one-out --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const Json found = ran.json();
  CHECK(found["hardware"] == "h100-96gb-hbm2e-500w");
  CHECK(found["runs"].size() == 4);
  CHECK(found["left_out"].size() == 4);
  double before = 0, after = 0;
  for (const Json& row : found["runs"]) {
    const double measured = row["measured_s"];
    before += std::pow(std::log(row["predicted_s"].get<double>() / measured), 2);
    after += std::pow(std::log(row["corrected_s"].get<double>() / measured), 2);
  }
  CHECK(after <= before);
  const Ran mixed = run("fit --runs " + runs);
  CHECK(mixed.code == 2);
  CHECK(mixed.says("--rows"));
}

TEST_CASE("a trace tells of products alone, and its step counts where nobody measured another") {
  const TemporaryFolder folder;
  const std::string trace = folder.path() + "/rank0.pt.trace.json";
  const double step = predicted_s();
  // One step as long as predicted, products all the way: longer than those of the prediction.
  const std::string us = std::to_string(std::llround(step * 1e6));
  const std::string head = R"({"distributedInfo": {"rank": 0, "world_size": 8}, "traceEvents": [)";
  const std::string step_event =
      R"({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "ts": 0, "dur": )" + us +
      "}";
  const auto kernel = [&](double share) {
    return R"(, {"ph": "X", "cat": "kernel", "name": "nvjet_tst", "ts": 0, "dur": )" +
           std::to_string(std::llround(step * share * 1e6)) + "}]}";
  };
  write_file_atomically(trace, head + step_event + kernel(1));
  const Ran ran = fit({trace, "--top", "0"});
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const Json alone = ran.json();
  CHECK(alone["runs"].size() == 1);
  CHECK(alone["runs"][0]["measured_s"].get<double>() == doctest::Approx(step).epsilon(1e-4));
  REQUIRE(alone["traces"].size() == 1);
  const Json& found = alone["traces"][0];
  CHECK(found["kinds"][0]["recorded_s"].get<double>() == doctest::Approx(step).epsilon(1e-4));
  double predicted = found["predicted_idle_s"];
  for (const Json& kind : found["kinds"]) predicted += kind["predicted_alone_s"].get<double>();
  CHECK(predicted == doctest::Approx(found["predicted_step_s"].get<double>()));
  // The step is as long as predicted; what the trace says of products cannot be, too.
  CHECK(alone["notes"].size() == 1);
  // Beside a measured step that is as much slower, it can.
  const Json both = fit({trace, "--measured", seconds_text(1.2 * step), "--top", "0"}).json();
  CHECK(both["runs"].size() == 1);
  CHECK(both["runs"][0]["measured_s"].get<double>() == doctest::Approx(1.2 * step).epsilon(1e-4));
  CHECK(both["notes"].empty());
  // Then the factor is what the trace says.
  double ratio = 0;
  for (const std::size_t k : {std::size_t{0}, std::size_t{1}})
    ratio += found["kinds"].at(k)["predicted_s"].get<double>();
  ratio = step / ratio;
  CHECK(both["factors"][0]["factor"].get<double>() == doctest::Approx(1 / ratio).epsilon(0.02));
  CHECK(both["factors"][0]["sigma"].get<double>() < 0.03);
  // Of other GPUs, it is no trace of this plan.
  std::string other = head + step_event + kernel(1);
  other.replace(other.find(": 8}"), 4, ": 16}");
  write_file_atomically(trace, other);
  CHECK(fit({trace}).code == 2);
  CHECK(fit({trace}).says("16 GPUs"));
  write_file_atomically(trace, "\x1f\x8b\x08");
  CHECK(fit({trace}).says("gunzip"));
}

TEST_CASE("fit needs a run") {
  CHECK(run("fit --model tiny --gpus 8").code == 2);
  CHECK(run("fit --model tiny --gpus 8 --measured fast").code == 2);
}

TEST_CASE("a log of another batch or length is no run of the plan, and a growing batch's last is") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  const double ms = 1100 * predicted_s({"--global-batch-size", "64"});
  const auto steps = [&](int batch, double factor) {
    std::string text;
    for (int i = 1; i <= 8; ++i) {
      text += " iteration " + std::to_string(i) +
              "/ 20 | elapsed time per iteration (ms): " + std::to_string(factor * ms) +
              " | global batch size:  " + std::to_string(batch) + " |\n";
    }
    return text;
  };
  const auto fitted = [&](const std::string& text) {
    write_file_atomically(log, text);
    return fit({log, "--global-batch-size", "64", "--top", "0"});
  };
  const Ran other = fitted(steps(128, 1));
  CHECK(other.code == 2);
  CHECK(other.says("128"));
  CHECK(other.says("64"));
  const Ran grown = fitted(steps(16, 0.3) + steps(64, 1));
  CAPTURE(grown.err);
  REQUIRE(grown.code == 0);
  CHECK(grown.json()["runs"][0]["measured_s"].get<double>() ==
        doctest::Approx(ms / 1000).epsilon(1e-5));
  const Ran longer = fitted("  seq_length ............ 512\n" + steps(64, 1));
  CHECK(longer.code == 2);
  CHECK(longer.says("512"));
  const Ran wider = fitted("using world size: 32, data-parallel size: 16\n" + steps(64, 1));
  CHECK(wider.code == 2);
  CHECK(wider.says("is of another plan: it says 32 GPUs, and the plan has"));
}

TEST_CASE("a step above the GPUs' peak is no run, and one that stays far off makes nothing surer") {
  const double predicted = predicted_s();
  const Ran fast = fit({"--measured", seconds_text(predicted / 100)});
  CHECK(fast.code == 2);
  CHECK(fast.says("of the GPUs' peak"));
  CHECK(fast.out.empty());
  const Ran slow = fit({"--measured", seconds_text(5 * predicted), "--top", "0"});
  REQUIRE(slow.code == 0);
  const Json found = slow.json();
  CHECK(found["narrowed"] == 1);
  CHECK(found["notes"].dump().find("is not narrowed") != std::string::npos);
  for (const Json& factor : found["factors"]) CHECK(factor["sigma"] == factor["sigma_before"]);
  const Json near = fit({"--measured", seconds_text(1.1 * predicted), "--top", "0"}).json();
  CHECK(near["narrowed"].get<double>() < 1);
  CHECK(near["notes"].empty());
}

TEST_CASE("a profile that is corrected is not written over, nor what it extends") {
  const TemporaryFolder folder;
  const std::string once = folder.path() + "/once.json", twice = folder.path() + "/twice.json";
  const std::string measured = seconds_text(1.15 * predicted_s());
  REQUIRE(fit({"--measured", measured, "-o", once, "--top", "0"}).code == 0);
  REQUIRE(fit({"--measured", measured, "--hardware", once, "-o", twice, "--top", "0"}).code == 0);
  const std::string before = read_text_file(once);
  for (const std::string& output : {once, folder.path() + "/./once.json"}) {
    for (const std::string& base : {once, twice}) {
      const Ran ran = fit({"--measured", measured, "--hardware", base, "-o", output, "--top", "0"});
      CHECK(ran.code == 2);
      CHECK(ran.says("name another file"));
      CHECK(read_text_file(once) == before);
    }
  }
  CHECK(run({"predict", "tp2", "--model", "llama3-8b", "--gpus", "8", "--hardware", once}).code ==
        0);
}

TEST_CASE("rows that are none are said to be none") {
  const std::string table = QPLAN_TEST_DATA "/measured_runs.csv";
  const Ran ran = run({"fit", "--runs", table, "--rows", "nosuch"});
  CHECK(ran.code == 2);
  CHECK(ran.says("whose id begins with 'nosuch'"));
  // Of rows that cannot be predicted the first says why.
  const TemporaryFolder folder;
  std::string text = read_text_file(table);
  const std::size_t line = text.find('\n') + 1;
  for (std::size_t at = line; (at = text.find(",h100-sxm,", at)) != text.npos;) {
    text.replace(at, 10, ",nosuch.json,");
  }
  write_file_atomically(folder.file("runs.csv"), text);
  const Ran machine = run({"fit", "--runs", folder.file("runs.csv")});
  CHECK(machine.code == 2);
  CHECK(machine.says("cannot open 'nosuch.json'"));
}
