// `qplan run` and `qplan validate`.

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "tests/cli/run.h"

using namespace qplan;

namespace {

const std::string kReference = QPLAN_TEST_DATA "/transformers";

// With the plan as one word.
Ran run_plan(const std::string& verb, const std::string& plan, const std::string& options) {
  std::vector<std::string> args{verb, plan};
  std::istringstream in(options);
  for (std::string word; in >> word;) args.push_back(word);
  return run(args);
}

std::vector<double> losses(const Ran& ran) {
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  return ran.json()["loss"].get<std::vector<double>>();
}

}  // namespace

TEST_CASE("run says losses, gradient norms, times and memory, and what was predicted") {
  const Ran ran = run_plan("run", "tp2 dp2 gbs4 seq32", "--model tiny --steps 2 --json");
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  const Json j = ran.json();
  CHECK(j["backend"] == "cpu");
  CHECK(j["ranks"] == 4);
  CHECK(j["loss"].size() == 2);
  CHECK(j["loss"][0].get<double>() == doctest::Approx(std::log(256)).epsilon(0.02));
  CHECK(j["grad_norm"].size() == 2);
  CHECK(j["step_time_s"]["min"].get<double>() > 0);
  CHECK(j["tokens_per_s_per_gpu"].get<double>() > 0);
  CHECK(j["memory"]["arena_peak_gib"].get<double>() > 0);
  CHECK(j["predicted"]["framework"] == "qplan");
  CHECK(j["memory"]["live_peak_gib"].get<double>() ==
        doctest::Approx(j["predicted"]["memory"]["peak_gib"].get<double>()));
  const Ran text = run_plan("run", "tp2 dp2 gbs4 seq32", "--model tiny --steps 2");
  CHECK(text.says("gradient norm"));
  CHECK(text.says("on 4 threads of this machine's processor, by qplan"));
}

TEST_CASE("a plan without a batch takes one that gives each rank work, and its dp stands") {
  const auto plan_of = [](const std::string& line, const std::string& options) {
    const Ran ran = run_plan("run", line, options + " --model tiny --seq-len 16 --steps 1 --json");
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    return ran.json()["predicted"]["plan"];
  };
  CHECK(plan_of("tp2 dp2", "")["global_batch_size"] == 2);
  CHECK(plan_of("pp2 dp2 mbs2", "")["global_batch_size"] == 8);
  CHECK(plan_of("tp1", "--gpus 4")["global_batch_size"] == 4);
  CHECK(plan_of("gbs8", "--gpus 2")["global_batch_size"] == 8);
  CHECK(plan_of("gbs1", "")["global_batch_size"] == 1);
  const Ran other = run_plan("run", "tp2 dp2", "--model tiny --seq-len 16 --gpus 2");
  CHECK(other.code == 2);
  CHECK(other.says("4 ranks, not 2 GPUs"));
}

TEST_CASE("whoever looks at a terminal is told which step is done") {
  const auto said = [](bool progress) {
    std::ostringstream out, err;
    Terminal terminal;
    terminal.progress = progress;
    CHECK(run_cli({"run", "gbs1 seq16", "--model", "tiny", "--steps", "3", "--json"}, out, err,
                  terminal) == 0);
    return err.str();
  };
  CHECK(said(true).find("step 2 of 3, loss 5.5") != std::string::npos);
  CHECK(said(false).empty());
}

TEST_CASE("Hugging Face weights and a token file give transformers' losses") {
  const std::string files =
      " --weights " + kReference + "/qwen3 --tokens " + kReference + "/tokens.bin";
  const Ran ran = run_plan("run", "tp2 dp2 gbs4 seq16",
                           "--precision fp32 --model " + kReference +
                               "/qwen3 --steps 3 --json --lr 1e-3 --betas 0.9,0.95 --eps 1e-8 "
                               "--weight-decay 0.1 --clip-grad 1" +
                               files);
  const auto expected = read_json_file(kReference + "/reference.json")["models"]["qwen3"]["loss"];
  const auto actual = losses(ran);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(actual[i] == doctest::Approx(expected[i].get<double>()).epsilon(1e-5));
  }
  const std::string plan = "gbs4 seq16";
  const std::string model = "--precision fp32 --model " + kReference + "/qwen3";
  CHECK(run_plan("run", plan, model + files + " --steps 4").code == 2);
  CHECK(run_plan("run", plan, model + files + " --steps 4").says("read it again with --repeat"));
  CHECK(run_plan("run", plan, model + files + " --steps 4 --repeat").code == 0);
  const Ran other = run_plan("run", plan, "--model tiny" + files);
  CHECK(other.code == 2);
  CHECK(other.says("tiny needs ("));
}

TEST_CASE("a saved run goes on under another plan") {
  const TemporaryFolder folder;
  const std::string job = "--model tiny --precision fp32 --json --steps ";
  const auto whole = losses(run_plan("run", "dp2 gbs4 seq16", job + "4"));
  losses(run_plan("run", "dp2 zero1 gbs4 seq16", job + "2 --save " + folder.file("c")));
  const Ran second = run_plan("run", "tp2 gbs4 seq16", job + "2 --load " + folder.file("c"));
  const auto resumed = losses(second);
  CHECK(second.json()["first_step"] == 3);
  CHECK(resumed[0] == doctest::Approx(whole[2]).epsilon(1e-5));
  CHECK(resumed[1] == doctest::Approx(whole[3]).epsilon(1e-5));
  // The plan that is kept beside the checkpoint is a plan file.
  const std::string plan_file = folder.file("c") + "/step-00000002/plan.json";
  CHECK(run("predict --plan " + plan_file).code == 0);
  CHECK(run("run " + plan_file + " --steps 1").code == 0);
  const Ran other = run_plan("run", "gbs4 seq16", "--model tiny-moe --load " + folder.file("c"));
  CHECK(other.code == 2);
  CHECK(other.says("is a checkpoint of tiny (230080 parameters), not of tiny-moe"));
}

TEST_CASE("a plan of another framework is executed as qplan's, and that is said") {
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json");
  REQUIRE(run("predict --model tiny --gpus 2 --tp 2 --global-batch-size 4 --seq-len 32 "
              "--framework megatron -o " +
              file)
              .code == 0);
  const Ran ran = run("run " + file + " --steps 1");
  CHECK(ran.code == 0);
  CHECK(ran.says("the plan was made for megatron"));
}

TEST_CASE("validate lays prediction and execution side by side; memory and op counts are equal") {
  const Ran ran =
      run_plan("validate", "tp2 pp2 dp2 zero1 gbs8 seq32 sp", "--model tiny --json --max-error 0");
  REQUIRE_MESSAGE(ran.code == 0, ran.err);
  const Json comparison = ran.json()["comparison"];
  CHECK(comparison["memory_error"] == 0);
  CHECK(comparison["stages"].size() == 2);
  CHECK(comparison["kinds"].size() > 10);
  CHECK(comparison["as_routed"].is_null());  // no GPU has traced its routers
  for (const Json& kind : comparison["kinds"]) {
    CAPTURE(kind.dump());
    CHECK(kind["predicted_ops"] == kind["executed_ops"]);
  }
  CHECK(run_plan("validate", "gbs2 seq16", "--model tiny").says("kind of op"));
  // Of three steps the first is cold and the last is traced.
  const Json three = run_plan("validate", "gbs2 seq16", "--model tiny --steps 3 --json").json();
  CHECK(three["step_time_s"]["min"] == three["step_time_s"]["max"]);
}

TEST_CASE(
    "a GPU that is not there is a device failure, a backend that was not built is bad input") {
  const Ran ran = run_plan("run", "gbs2 seq16", "--model tiny --backend cuda --steps 1");
  CAPTURE(ran.err);
  const bool not_built = ran.code == 2 && ran.says("this build has no CUDA part");
  const bool no_gpu = ran.code == 3 && ran.says("which has 0; start one process a GPU");
  CHECK((ran.code == 0 || not_built || no_gpu));
}

TEST_CASE("calibrate tells a CUDA part that is missing from GPUs that are") {
  const Ran ran = run("calibrate --ranks 65536");
  CAPTURE(ran.err);
  const bool not_built = ran.code == 2 && ran.says("this build has no CUDA part");
  const bool too_few = ran.code == 3 && (ran.says("no GPU that CUDA can use") ||
                                         ran.says("65536 ranks need as many GPUs"));
  CHECK((not_built || too_few));
}

TEST_CASE("the same bits in every run are a word of the plan") {
  const Ran ran = run_plan("run", "gbs2 seq16", "--model tiny --steps 1 --deterministic --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  CHECK(ran.json()["predicted"]["plan"]["deterministic"] == true);
}

TEST_CASE("words alone are a plan, and a number of GPUs decides its data parallelism") {
  const std::string job = "run --model tiny --seq-len 16 --global-batch-size 4 --steps 1 --json ";
  const Ran words = run(job + "--tp 2 --dp 2"), gpus = run(job + "--tp 2 --gpus 4");
  CAPTURE(words.err);
  CHECK(words.code == 0);
  CHECK(words.json()["ranks"] == 4);
  CHECK(gpus.json()["loss"] == words.json()["loss"]);
  CHECK(gpus.json()["predicted"]["short"] == words.json()["predicted"]["short"]);
}

TEST_CASE("what cannot be executed is refused with a reason") {
  const auto refused = [](const std::string& plan, const std::string& options,
                          const std::string& words) {
    const Ran ran = run_plan("run", plan, options);
    CAPTURE(ran.err);
    CHECK(ran.code == 2);
    CHECK(ran.says(words));
  };
  refused("tp3 gbs2 seq16", "--model tiny", "the plan cannot be executed");
  refused("dp512 gbs512 seq16", "--model tiny", "at most 256");
  refused("gbs1 seq4096", "--model llama3-405b", "this machine has");
  CHECK(run("run --model tiny").says("a plan is missing"));
  refused("tp2 gbs2 seq16", "--model tiny --gpus 3", "the plan cannot be executed");
  refused("gbs2 seq16", "--model tiny --betas 0.9", "must be two numbers");
  refused("gbs2 seq16", "--model tiny --load /nowhere", "holds no checkpoint");
  refused("gbs2 seq16", "--model tiny --weights /nowhere", "cannot open '/nowhere'");
  refused("gbs2 seq16", "--model tiny --lr 1e3 --steps 50 --clip-grad 0 --precision fp32",
          "use a smaller --lr");
}

TEST_CASE("a refusal says what the executor lacks, and never to use what was asked for") {
  for (const std::string verb : {"run", "validate"}) {
    const Ran params = run_plan(verb, "dp2 zero3 gbs8 seq64 offload=optimizer,params",
                                "--model tiny --framework deepspeed");
    CHECK(params.code == 2);
    CHECK(params.says("qplan's executor runs no parameter offload"));
    CHECK(params.says("run it with offload=optimizer"));
    CHECK_FALSE(params.says("use deepspeed"));
    const Ran nvme = run_plan(verb, "dp2 zero3 gbs8 seq64 offload=optimizer,nvme", "--model tiny");
    CHECK(nvme.says("qplan's executor runs no offload to NVMe"));
    const Ran line = run_plan(verb, "tp2 dp2 ep4 etp1 zero1 gbs16 seq64", "--model tiny-moe");
    CHECK(line.says("need sp,"));
    const Ran options = run(verb + " --tp 2 --dp 2 --sequence-parallel false --model tiny-moe");
    CHECK(options.says("need --sequence-parallel,"));
  }
}

TEST_CASE("a run by another framework's name says that it is our own executor's") {
  const std::string job = "--model tiny --steps 1 ";
  CHECK(
      run_plan("run", "dp2 gbs2 seq16", job + "--framework deepspeed").says("made for deepspeed"));
  CHECK_FALSE(run_plan("run", "dp2 gbs2 seq16", job + "--framework qplan").says("note: the plan"));
  CHECK_FALSE(run_plan("run", "dp2 gbs2 seq16", job).says("note: the plan"));
}
