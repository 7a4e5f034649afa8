#include "planner/frameworks/emit.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "cli/job.h"
#include "models/model_spec.h"
#include "tests/cli/run.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

// A plan file of `predict -o`.
std::string plan_file(const TemporaryFolder& folder, const std::string& question) {
  const std::string path = folder.file("plan.json");
  const Ran made = run("predict " + question + " -o " + path);
  REQUIRE(made.code == 0);
  return path;
}

constexpr const char* kMoe =
    "--model qwen3-30b-a3b --gpus 64 --tp 1 --pp 1 --ep 8 --zero 1 --recompute full "
    "--global-batch-size 512";

TEST_CASE("without --framework the files are of the first framework that has the model") {
  const TemporaryFolder folder;
  const std::string plan =
      plan_file(folder,
                "--model qwen3-vl-30b-a3b --gpus 16 --tp 1 --pp 2 --ep 8 --zero 1 --recompute full "
                "--global-batch-size 64");
  const Ran ran = run("emit " + plan + " --out " + folder.file("job"));
  CHECK(ran.code == 0);
  CHECK(ran.says("pretrain.py"));
}

TEST_CASE("emit writes the files it names, with the plan and what is predicted of it") {
  const TemporaryFolder folder;
  const std::string plan = plan_file(folder, kMoe);
  const Ran ran = run("emit " + plan + " --framework megatron --out " + folder.file("job"));
  CHECK(ran.code == 0);
  for (const std::string name : {"args.sh", "train.sh", "train.sbatch"}) {
    const std::string path = folder.file("job/" + name);
    CHECK(ran.says(path));
    const std::string text = read_text_file(path);
    CHECK(text.find("# plan: tp1 pp1 dp64 ep8") != std::string::npos);
    CHECK(text.find("# predicted: ") != std::string::npos);
    CHECK(text.find("tokens/s a GPU") != std::string::npos);
  }
  const auto mode = fs::status(folder.file("job/train.sh")).permissions();
  CHECK((mode & fs::perms::owner_exec) != fs::perms::none);
}

TEST_CASE("files of a plan on two kinds of GPU say so, and check judges them on both") {
  const TemporaryFolder folder;
  const std::string kinds = "h100-sxm:16+a100-80gb-sxm:16";
  const std::string plan = plan_file(
      folder, "--model llama3-8b --hardware " + kinds + " --pp 2 --pipeline-layout 23,9 --zero 1");
  REQUIRE(run("emit " + plan + " --framework megatron --out " + folder.file("job")).code == 0);
  CHECK(read_text_file(folder.file("job/hosts.txt")) ==
        "h100-sxm-node-0\nh100-sxm-node-1\na100-80gb-sxm-node-0\na100-80gb-sxm-node-1\n");
  std::string files;
  for (const char* name : {"train.sh", "args.sh", "train.sbatch", "hosts.txt"}) {
    files += ' ' + folder.file(std::string("job/") + name);
  }
  const Ran checked = run("check --no-best --json" + files);
  CHECK(checked.code == 0);
  const Json job = checked.json()["this_job"];
  CHECK(job["hardware"] == kinds);
  CHECK(job["plan"] == read_json_file(plan)["plan"]);
  CHECK(job["step_time_s"] == read_json_file(plan)["step_time_s"]);
}

TEST_CASE("emit says that packing is the reader's to do") {
  const TemporaryFolder folder;
  const std::string plan = plan_file(folder, std::string(kMoe) + " --document-len 500");
  CHECK(run("emit " + plan + " --framework megatron --out " + folder.file("job")).code == 0);
  const std::string text = read_text_file(folder.file("job/args.sh"));
  CHECK(text.find("pack documents of some 500 tokens, and keep attention within each of them; no "
                  "file here asks for either, and qplan check reads the plan back without doc\n") !=
        std::string::npos);
}

TEST_CASE("emit predicts the loss that it writes") {
  const TemporaryFolder folder;
  const auto predicted = [&](const std::string& line, const std::string& framework) {
    const std::string plan = plan_file(folder, line);
    const std::string out = folder.file(framework);
    REQUIRE(run("emit " + plan + " --framework " + framework + " --out " + out + " --force").code ==
            0);
    const std::string text = read_text_file(out + "/train.sh");
    const std::size_t at = text.find("# predicted: ");
    return text.substr(at, text.find('\n', at) - at);
  };
  // 8192 tokens by 128256 words: 6 bytes a logit, native as by Transformer Engine 2.18, 8 unfused
  // kernels' passes more.
  const std::string llama =
      "--model llama3-8b --gpus 8 --hardware h200-sxm --seq-len 8192 --tp 1 --zero 1";
  const std::string native = predicted(llama, "megatron");
  CHECK(native == predicted(llama + " --loss native", "megatron"));
  CHECK(native == predicted(llama, "megatron-bridge"));
  CHECK(native != predicted(llama + " --loss te", "megatron-bridge"));
  const std::string te = plan_file(folder, llama + " --loss te");
  const Ran refused = run("emit " + te + " --framework megatron --out " + folder.file("no"));
  CHECK(refused.code == 2);
  CHECK(refused.says("refuses Transformer Engine's loss"));
}

TEST_CASE("emit never overwrites without --force, and then writes nothing") {
  const TemporaryFolder folder;
  const std::string plan = plan_file(folder, kMoe);
  fs::create_directories(folder.file("job"));
  std::ofstream(folder.file("job/train.sh")) << "mine\n";
  const std::string line = "emit " + plan + " --framework megatron --out " + folder.file("job");
  const Ran refused = run(line);
  CHECK(refused.code == 2);
  CHECK(refused.says("--force"));
  CHECK_FALSE(fs::exists(folder.file("job/args.sh")));
  CHECK(read_text_file(folder.file("job/train.sh")) == "mine\n");
  CHECK(run(line + " --force").code == 0);
  CHECK(read_text_file(folder.file("job/train.sh")) != "mine\n");
}

TEST_CASE("a plan that the framework cannot say leaves no folder behind") {
  const TemporaryFolder folder;
  const std::string plan = plan_file(folder, kMoe);
  const Ran ran = run("emit " + plan + " --framework fsdp2 --out " + folder.file("job"));
  CHECK(ran.code == 2);
  CHECK(ran.says("use ep 1"));
  CHECK(ran.says("The nearest plan that it can: tp1 pp1 dp64"));
  CHECK_FALSE(fs::exists(folder.file("job")));
}

TEST_CASE("every framework's files come out of a plan of its own, and check finds nothing") {
  for (const auto& [framework, word] : Words<Framework>::table) {
    if (!is_written(framework)) continue;
    CAPTURE(word);
    const TemporaryFolder folder;
    const bool fork = framework == Framework::megatron_deepspeed;
    const std::string model = fork ? "llama2-7b" : "llama3-8b";
    const std::string recipe(to_word(recipe_for(framework, RecipeKind::megatron)));
    const std::string plan =
        plan_file(folder, "--model " + model +
                              " --gpus 16 --seq-len 4096 --recompute full --framework " + recipe);
    const std::string job = folder.file("job");
    const Ran ran = run("emit " + plan + " --framework " + std::string(word) + " --out " + job);
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    // All of them together, and what starts them alone: the rest lies beside it.
    std::vector<std::string> given(1);
    for (const auto& entry : fs::directory_iterator(job)) {
      const std::string name = entry.path().filename().string();
      if (name != "README.md") given[0] += entry.path().string() + " ";
      const bool starts = name == "train.sh" || name == "train.sbatch" || name == "run.sh";
      if (starts) given.push_back(entry.path().string() + " ");
    }
    for (const std::string& files : given) {
      CAPTURE(files);
      const Ran checked = run("check " + files + "--model " + model + " --gpus 16 --json");
      CAPTURE(checked.out);
      CHECK(checked.code == 0);
      // What a Trainer does with several microbatches under FSDP no file of a plan can say.
      const Json answer = checked.json();
      for (const auto& found : answer["findings"]) CHECK(found["rule"] == "whole_gradients");
      CHECK(answer["this_job"]["short"] == parse_json(read_text_file(plan), "plan.json")["short"]);
    }
  }
}

TEST_CASE("files that are only read are not written, and nothing is done in silence") {
  const TemporaryFolder folder;
  const std::string plan =
      plan_file(folder, "--model llama3-8b --gpus 8 --framework nanotron --tp 2 --pp 1");
  const std::string out = " --out " + folder.file("job");
  const Ran asked = run("emit " + plan + " --framework nanotron" + out);
  CHECK(asked.code == 2);
  CHECK(asked.says("nanotron's files are read by `qplan check` and not written; choose one of"));
  const Ran unasked = run("emit " + plan + out);
  CHECK(unasked.code == 2);
  CHECK(unasked.says("a plan of nanotron has no framework of its own"));
  CHECK_FALSE(unasked.says("trl, nanotron"));
  CHECK_FALSE(fs::exists(folder.file("job")));
}

TEST_CASE("what emit cannot use it says in a sentence") {
  CHECK(run("emit").code == 2);
  CHECK(run("emit /nowhere.json --out x").code == 2);
  const TemporaryFolder folder;
  const std::string plan = plan_file(folder, kMoe);
  CHECK(run("emit " + plan).says("--out"));
  CHECK(run("emit " + plan + " --out x --framework megatronn").says("did you mean"));
  std::ofstream(folder.file("file")) << "x";
  CHECK(run("emit " + plan + " --out " + folder.file("file")).says("give a folder"));
}

TEST_CASE(
    "what predict takes where nobody says, emit writes, or refuses for the precision itself") {
  int written = 0;
  for (const auto& [framework, word] : Words<Framework>::table) {
    if (!is_written(framework)) continue;
    for (const auto& [precision, format] : Words<Precision>::table) {
      CAPTURE(word);
      CAPTURE(format);
      const TemporaryFolder folder;
      const bool fork = framework == Framework::megatron_deepspeed;
      const std::string model = fork ? "llama2-7b" : "llama3-8b", path = folder.file("plan.json");
      for (const std::string verb :
           {"predict", "search --tp 1 --pp 1 --cp 1 --micro-batch-size 1 --top 1"}) {
        const Ran asked =
            run(verb + " --model " + model +
                " --gpus 8 --hardware b200 --recompute full --global-batch-size 16 --framework " +
                std::string(word) + " --precision " + std::string(format) + " -o " + path);
        // Nothing that is searched for has such a precision.
        if (asked.code == 1 && verb != "predict") continue;
        const PlanFile file = read_plan_file(path);
        const ModelSpec spec = load_model(model);
        const Json config = model_config(model);
        const RecipeKind recipe = recipe_for(framework, RecipeKind::megatron);
        const auto reasons =
            why_inexpressible(framework, {spec, config, file.plan, recipe, 8}, {8, 100});
        written += reasons.empty() ? 1 : 0;
        for (const Infeasible& reason : reasons) {
          CAPTURE(reason.message);
          const std::string_view rule = reason.rule;
          CHECK(rule.find("precision") != std::string_view::npos);
          CHECK(reason.message.find(format) != std::string::npos);
        }
      }
    }
  }
  CHECK(written > 20);
}

TEST_CASE("files say the machine that they are for, and check judges them on it") {
  const TemporaryFolder folder;
  int job = 0;
  for (const std::string& machine : std::vector<std::string>{
           "--hardware h200-sxm", "--nic-gb-per-s 12.5 --pods 16:2:rails,32:7",
           "--hardware a100-80gb --gpus-per-node 4 --oversubscription 2 --memory-cap-gib 70"}) {
    CAPTURE(machine);
    const std::string plan =
        plan_file(folder, "--model llama3-8b --gpus 32 --tp 2 --pp 2 --zero 1 " + machine);
    const std::string out = folder.file("job" + std::to_string(job++));
    REQUIRE(run("emit " + plan + " --framework megatron --out " + out).code == 0);
    const Ran checked =
        run("check --no-best --json --model llama3-8b " + out + "/train.sh " + out + "/args.sh");
    CHECK(checked.code == 0);
    const Json of_files = checked.json()["this_job"], of_plan = read_json_file(plan);
    CHECK(of_files["hardware"] == of_plan["hardware"]);
    CHECK(of_files["step_time_s"] == of_plan["step_time_s"]);
    CHECK(of_files["memory"]["capacity_gib"] == of_plan["memory"]["capacity_gib"]);
  }
  // What check takes by itself is not said.
  const std::string usual =
      plan_file(folder, "--model llama3-8b --gpus 32 --tp 2 --pp 2 --hardware h100");
  REQUIRE(run("emit " + usual + " --framework megatron --out " + folder.file("usual")).code == 0);
  CHECK(read_text_file(folder.file("usual/train.sh")).find("# qplan:") == std::string::npos);
}

TEST_CASE("what emit writes beside a job's files is no file that check complains of") {
  const TemporaryFolder folder;
  const std::string plan =
      plan_file(folder, "--model llama3-8b --gpus 8 --framework deepspeed --zero 3");
  REQUIRE(run("emit " + plan + " --out " + folder.file("job")).code == 0);
  const std::string job = folder.file("job/");
  const Ran checked = run("check --no-best --json --model llama3-8b " + job + "README.md " + job +
                          "ds_config.json " + job + "train.sh");
  CHECK(checked.code == 0);
  CHECK(checked.json()["findings"].empty());
  write_file_atomically(job + "NOTES.md", "What we tried.");
  CHECK(run("check --no-best --model llama3-8b " + job + "NOTES.md " + job + "train.sh")
            .says("prose is not read"));
}

TEST_CASE("the nearest plan keeps what no refusal is about, and fits where one that near does") {
  const TemporaryFolder folder;
  const std::string plan = plan_file(
      folder,
      "--model gpt-217b --framework megatron-deepspeed --gpus 256 --hardware a100-80gb-sxm --tp 8 "
      "--pp 16 --precision fp16 --recompute full --grad-dtype bf16");
  const Ran ran = run("emit " + plan + " --out " + folder.file("job"));
  CHECK(ran.code == 2);
  CHECK(ran.says("nearest plan that it can: tp8 pp8 dp4 "));
  CHECK(ran.says("precision=fp16"));
  CHECK_FALSE(ran.says("it does not fit"));
}

TEST_CASE("a plan that leaves GPUs idle has a nearest one, and so has an odd batch of pairs") {
  const TemporaryFolder folder;
  const Ran idle =
      run({"emit", "tp3", "--model", "llama3-70b", "--gpus", "8", "--out", folder.file("a")});
  CHECK(idle.code == 2);
  CHECK(idle.says("The nearest plan that it can: tp4 pp1 dp2 "));
  const std::string plan = folder.file("pairs.json");
  REQUIRE(run("predict --model llama3-8b --gpus 8 --framework fsdp2 --algorithm dpo --zero 3 "
              "--micro-batch-size 1 --max-response-len 1024 -o " +
              plan)
              .code == 0);
  const Ran odd = run("emit " + plan + " --framework trl --out " + folder.file("b"));
  CHECK(odd.code == 2);
  CHECK(odd.says("use an even micro_batch_size"));
  CHECK(odd.says("The nearest plan that it can: tp1 pp1 dp8 zero3 mbs2 "));
}

TEST_CASE("of pairs of answers search offers a plan that emit writes") {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan.json");
  REQUIRE(
      run("search --framework trl --algorithm dpo --model llama3-8b --gpus 8 -o " + plan).code ==
      0);
  const Ran written = run("emit " + plan + " --framework trl --out " + folder.file("job"));
  CAPTURE(written.err);
  CHECK(written.code == 0);
}

}  // namespace
}  // namespace qplan
