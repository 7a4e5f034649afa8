#include <doctest/doctest.h>

#include "cli/plan_words.h"
#include "models/model_spec.h"
#include "models/plan/words.h"
#include "models/program/recipe.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

const std::string kPredict = "predict --model tiny --gpus 8 --seq-len 512 --global-batch-size 16 ";

double sum(const Json& object) {
  double total = 0;
  for (const auto& [key, value] : object.items()) total += value.get<double>();
  return total;
}

}  // namespace

TEST_CASE("every word of a plan is an option") {
  const Json words = plan_to_json(ParallelPlan{});
  std::vector<std::string> keys, options;
  for (const auto& [key, value] : words.items()) keys.push_back(key);
  for (const auto key : plan_option_keys()) options.emplace_back(key);
  std::sort(keys.begin(), keys.end());
  std::sort(options.begin(), options.end());
  CHECK(keys == options);
}

TEST_CASE("the object of one plan has the keys of the contract") {
  const Ran ran = run(kPredict + "--tp 2 --pp 2 --json");
  REQUIRE(ran.code == 0);
  const Json json = ran.json();
  for (const char* key :
       {"model", "hardware", "framework", "gpus", "plan", "short", "fingerprint", "feasible",
        "infeasible", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu",
        "mfu", "memory", "time", "interval", "priced_from"}) {
    CAPTURE(key);
    CHECK(json.contains(key));
  }
  for (const char* key : {"capacity_gib", "peak_gib", "reserved_peak_gib", "device_peak_gib",
                          "worst_stage", "stages", "host_gib_per_node"}) {
    CAPTURE(key);
    CHECK(json["memory"].contains(key));
  }
  CHECK(json["memory"]["stages"].size() == 2);
  CHECK(json["gpus"] == 8);
  CHECK(json["plan"]["dp"] == 2);
  CHECK(json["feasible"] == true);
}

TEST_CASE("the parts of the time sum to the step, those of memory to the peak") {
  const Json json = run(kPredict + "--tp 2 --pp 2 --json").json();
  CHECK(sum(json["time"]) == doctest::Approx(json["step_time_s"].get<double>()).epsilon(1e-9));
  for (const Json& stage : json["memory"]["stages"]) {
    double parts = 0;
    for (const char* key :
         {"weights_gib", "gradients_gib", "optimizer_gib", "activations_gib", "buffers_gib"}) {
      parts += stage[key].get<double>();
    }
    CHECK(parts == doctest::Approx(stage["peak_gib"].get<double>()).epsilon(1e-9));
  }
}

TEST_CASE("a share of a narrower format's peak is said to be one, beside bf16's") {
  const std::string line =
      "predict --model llama3-8b --gpus 8 --tp 2 --seq-len 4096 --global-batch-size 16 "
      "--recompute full ";
  const Json fp8 = run(line + "--precision fp8 --json").json();
  const Json bf16 = run(line + "--json").json();
  CHECK(fp8["mfu_peak"]["precision"] == "fp8");
  CHECK(fp8["mfu_peak"]["tflops"].get<double>() > bf16["mfu_peak"]["tflops"].get<double>());
  for (const Json& json : {fp8, bf16}) {
    const double tflops = json["model_tflops_per_gpu"].get<double>();
    CHECK(json["mfu"].get<double>() ==
          doctest::Approx(tflops / json["mfu_peak"]["tflops"].get<double>()));
    CHECK(json["mfu_bf16"].get<double>() ==
          doctest::Approx(tflops / bf16["mfu_peak"]["tflops"].get<double>()));
  }
  CHECK(run(line + "--precision fp8").says("% of the fp8 peak ("));
  CHECK_FALSE(run(line).says("peak ("));
}

TEST_CASE("a plan may stand before all options, as a line or a file, in any case") {
  const std::string job = " --model tiny --gpus 8 --json";
  const Ran named = run({"predict", "--model", "tiny", "--gpus", "8", "--json", "--plan",
                         "tp2 dp4 gbs16 seq512 recompute=full"});
  CHECK(named.code == 0);
  CHECK(run({"predict", "tp2 dp4 gbs16 seq512 recompute=full", "--model", "tiny", "--gpus", "8",
             "--json"})
            .out == named.out);
  CHECK(run({"predict", "TP2 DP4 GBS16 SEQ512 recompute=FULL", "--model", "tiny", "--gpus", "8",
             "--json"})
            .out == named.out);
  CHECK(run({"predict", "tp2", "--plan", "tp2", "--model", "tiny"}).says("give one of them"));
  CHECK(run("predict --model tiny --gpus 8 --precision BF16 --hardware H100-SXM").code == 0);
}

TEST_CASE("layers that do not divide among stages are placed as a search places them") {
  const std::string line =
      " --model qwen3-30b-a3b --gpus 20 --tp 1 --pp 5 --cp 1 --ep 4 --global-batch-size 40 "
      "--seq-len "
      "1024 --micro-batch-size 1 --schedule 1f1b --recompute none --moe-dispatcher alltoall --zero "
      "1 "
      "--json";
  const Ran predicted = run("predict" + line);
  REQUIRE(predicted.json()["step_time_s"].is_number());
  CHECK(predicted.says("48 layers do not divide among 5 stages"));
  const Json best =
      run("search" + line + " --offload none --top 1 --memory-cap-gib 1000").json()["plans"][0];
  CHECK(predicted.json()["plan"]["pipeline_layout"] == best["plan"]["pipeline_layout"]);
}

TEST_CASE("a checkpoint's bytes follow from the formats of the optimizer's states") {
  const Json wide = run(kPredict + "--json").json()["checkpoint"];
  CHECK(wide["bytes_per_parameter"] == 14);
  const Json narrow = run(kPredict + "--zero 1 --moment-dtype bf16 --json").json()["checkpoint"];
  CHECK(narrow["bytes_per_parameter"] == 10);
  CHECK(narrow["gib"].get<double>() == doctest::Approx(wide["gib"].get<double>() * 10 / 14));
}

TEST_CASE("data parallelism fills the GPUs that the other degrees leave") {
  CHECK(run(kPredict + "--tp 2 --json").json()["plan"]["dp"] == 4);
  CHECK(run(kPredict + "--tp 2 --pp 2 --json").json()["plan"]["dp"] == 2);
  CHECK(run(kPredict + "--tp 2 --vpp 2 --pp 2 --json").json()["plan"]["schedule"] == "interleaved");
  CHECK(run(kPredict + "--tp 2 --json").json()["plan"]["sequence_parallel"] == true);
}

TEST_CASE("experts without tokens cost nothing where routers are free, and nobody else less") {
  const auto step = [](const std::string& words) {
    const Ran ran =
        run("predict --model qwen3-30b-a3b --gpus 8 --hardware h200-sxm --framework qplan --tp 1 "
            "--pp 1 --ep 1 "
            "--zero 3 --micro-batch-size 1 --global-batch-size 64 --json " +
            words);
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    return ran.json()["step_time_s"].get<double>();
  };
  // Their weights are gathered all the same, which hides what is saved in part.
  CHECK(step("--routing natural --moe-active 0.25") < 0.97 * step("--routing natural"));
  CHECK(step("--routing forced --moe-active 0.25") == step("--routing forced"));
  CHECK(run("predict --model qwen3-30b-a3b --gpus 8 --moe-active 2").code == 2);
}

TEST_CASE("a plan that rules forbid is answered with every reason, and exit code 1") {
  const Ran text = run(kPredict + "--tp 3");
  CHECK(text.code == 1);
  CHECK(text.says("world_size"));
  CHECK(text.says("attention_heads"));
  const Ran ran = run(kPredict + "--tp 3 --json");
  CHECK(ran.code == 1);
  CHECK(ran.json()["feasible"] == false);
  CHECK(ran.json()["infeasible"].size() >= 2);
  const Json reasons = ran.json()["infeasible"];
  for (const Json& reason : reasons) {
    CHECK(text.says("[" + reason["source"].get<std::string>().substr(0, 40)));
  }
  CHECK(ran.json()["step_time_s"].is_null());  // every key, so that a script need not ask first
}

TEST_CASE("a batch too small for its ranks is one reason, not two") {
  const Json json = run("predict --model tiny --gpus 8 --global-batch-size 4 --json").json();
  REQUIRE(json["infeasible"].size() == 1);
  CHECK(json["infeasible"][0]["rule"] == "batch_divisibility");
}

TEST_CASE("a plan that does not fit says by how much, and what would make it fit") {
  const std::string line = "predict --model llama3-8b --gpus 8 --global-batch-size 16 ";
  const Ran text = run(line);
  CHECK(text.code == 1);
  CHECK(text.says("more than the"));
  CHECK(text.says("It would with:"));
  const Json json = run(line + "--json").json();
  CHECK(json["infeasible"][0]["rule"] == "out_of_memory");
  CHECK(json["infeasible"][0]["source"].is_null());
  REQUIRE(json["would_fit"].size() > 0);
  // The advice holds: what it names fits.
  const std::string plan = json["would_fit"][0]["short"].get<std::string>();
  CHECK(run({"predict", "--model", "llama3-8b", "--plan", plan}).code == 0);
}

TEST_CASE("peaks, their interval and what may be filled are of one rank, whatever the GPUs") {
  for (const char* machine :
       {"h100-sxm", "b200:8+h100-sxm:8", "h100-sxm:8+b200:8", "rtx-4090:8+h200-sxm:8"}) {
    for (const char* plan : {"tp2 pp2 dp4", "pp2 dp8 recompute=full", "pp4 dp4 tp1 mbs2"}) {
      CAPTURE(machine);
      CAPTURE(plan);
      const Json json = run({"predict", plan, "--model", "llama3-8b", "--gpus", "16", "--hardware",
                             machine, "--global-batch-size", "64", "--json"})
                            .json();
      const Json& memory = json["memory"];
      const double peak = memory["peak_gib"], reserved = memory["reserved_peak_gib"];
      const double device = memory["device_peak_gib"], capacity = memory["capacity_gib"];
      CHECK(json["feasible"].get<bool>() == (device <= capacity));
      CHECK(peak <= reserved);
      CHECK(reserved <= device);
      CHECK(json["interval"]["peak_gib"][0].get<double>() < peak);
      CHECK(json["interval"]["peak_gib"][1].get<double>() > peak);
      const Json& worst = memory["stages"][memory["worst_stage"].get<std::size_t>()];
      CHECK(worst["device_gib"] == memory["device_peak_gib"]);
    }
  }
}

TEST_CASE("a change that needs more GPUs says how many, and stands behind those that need none") {
  struct Question {
    const char *plan, *model, *gpus, *hardware;
  };
  for (const auto& [plan, model, gpus, hardware] :
       {Question{"tp2 pp2 dp3", "llama3-8b", "12", "rtx-4090"},
        Question{"tp4 pp4 dp1", "llama3-70b", "16", "b200:8+h100-sxm:8"},
        Question{"tp8 dp1", "llama3-70b", "8", "h100-sxm"}}) {
    CAPTURE(plan);
    const Json json = run({"predict", plan, "--model", model, "--gpus", gpus, "--hardware",
                           hardware, "--global-batch-size", "48", "--json"})
                          .json();
    REQUIRE(json["would_fit"].size() > 0);
    bool more = false;
    for (const Json& advice : json["would_fit"]) {
      CAPTURE(advice["change"].get<std::string>());
      const bool own = advice["gpus"] == json["gpus"];
      CHECK(own == (advice["change"].get<std::string>().find(" GPUs") == std::string::npos));
      CHECK((own && more) == false);
      more = more || !own;
    }
  }
}

TEST_CASE("a line that was printed is a plan again") {
  const Json json = run(kPredict + "--tp 2 --pp 2 --recompute full --json").json();
  const std::string line = json["short"].get<std::string>();
  const Ran again = run({"predict", "--model", "tiny", "--plan", line, "--json"});
  CHECK(again.json()["short"] == line);
  CHECK(again.json()["step_time_s"] == json["step_time_s"]);
}

TEST_CASE("a model of an unknown type is read as another, and answers and plan files say so") {
  const TemporaryFolder folder;
  const std::string config = folder.file("mine.json"), plan = folder.file("plan.json");
  Json mine = model_config("tiny");
  mine["model_type"] = "our_own";
  mine["our_switch"] = true;
  write_file_atomically(config, mine.dump());
  const std::string question = "predict --gpus 4 --seq-len 512 --json --model " + config;
  CHECK(run(question).says("model_type 'our_own' is unknown"));
  const Ran first = run(question + " --as qwen3 -o " + plan);
  REQUIRE(first.code == 0);
  const Json answer = first.json();
  CHECK(answer["read_as"] == Json{{"architecture", "qwen3"},
                                  {"model_type", "our_own"},
                                  {"ignored_keys", {"our_switch"}}});
  CHECK(answer["notes"].dump().find("ignored of it: our_switch") != std::string::npos);
  CHECK(answer["step_time_s"] ==
        run("predict --gpus 4 --seq-len 512 --json --model tiny").json()["step_time_s"]);
  std::filesystem::remove(config);
  CHECK(run("predict --json --plan " + plan).out == first.out);
  CHECK(run("predict --json --plan " + plan + " --model tiny").json().contains("read_as") == false);
  write_file_atomically(config, mine.dump());
  const Json shown = run("models show " + config + " --as qwen3").json();
  CHECK(shown["read_as"] == answer["read_as"]);
  CHECK(shown["parameters"] == run("models show tiny").json()["parameters"]);
  CHECK(run("models show " + config + " --as nonsense").code == 2);
}

TEST_CASE("a node of four GPUs carries tp 8 over the network") {
  // Long enough that no rank waits for its launching thread.
  const std::string line =
      "predict --model llama3-8b --gpus 16 --tp 8 --global-batch-size 16 --seq-len 16384 --json ";
  const double eight = run(line).json()["time"]["tp_s"].get<double>();
  const double four = run(line + "--gpus-per-node 4").json()["time"]["tp_s"].get<double>();
  CHECK(four > 1.5 * eight);
}

TEST_CASE("a length beyond the model's positions is noted, priced and not refused") {
  const Ran at = run("predict --model tiny --gpus 8 --seq-len 512 --global-batch-size 16 --json");
  CHECK_FALSE(at.says("positions of the model"));
  const std::string line = "predict --model tiny --gpus 8 --seq-len 1024 --global-batch-size 16 ";
  const std::string sentence =
      "sequences of 1024 are longer than the 512 positions of the model (max_position_embeddings)";
  const Ran beyond = run(line + "--json");
  CHECK(beyond.code == 0);
  CHECK(beyond.json()["notes"][0] == sentence);
  CHECK(run(line).says("\nnote: " + sentence + "\n"));
  // A plan that a rule forbids too.
  const Ran refused = run(line + "--tp 3 --json");
  CHECK(refused.code == 1);
  CHECK(refused.json()["notes"] == Json::array({sentence}));
}

TEST_CASE("a sentence names words as they were typed") {
  for_each_word([](const auto& word) {
    const std::string key(word.key), sentence = "use " + key + ", not old_" + key;
    CHECK(in_notation(sentence, Notation::file) == sentence);
    CHECK(in_notation(sentence, Notation::line) ==
          "use " + std::string(word.name()) + ", not old_" + key);
    const bool dashed = key.find('_') != std::string::npos;
    CHECK(in_notation(sentence, Notation::options) ==
          "use " + (dashed ? option_name(key) : key) + ", not old_" + key);
  });
  const std::string job = "predict --model tiny-moe --gpus 8 ";
  CHECK(run(job + "--tp 2 --sequence-parallel false").says("need --sequence-parallel"));
  CHECK(run({"predict", "tp2 sp=false", "--model", "tiny-moe", "--gpus", "8"}).says("need sp,"));
}

TEST_CASE("a context's exchange is one that the framework has, where nobody says") {
  for (const std::string model : {"llama3-8b", "gpt-oss-20b"}) {
    for (const auto& [framework, word] : Words<RecipeKind>::table) {
      CAPTURE(word);
      const std::string job = "--model " + model + " --gpus 16 --framework " + std::string(word);
      const Json plain = run("predict " + job + " --json").json();
      const Json json = run("predict " + job + " --cp 2 --json").json();
      const Json line = run({"predict", "cp2", "--model", model, "--gpus", "16", "--framework",
                             std::string(word), "--json"})
                            .json();
      CHECK(line["plan"]["cp_comm"] == json["plan"]["cp_comm"]);
      const auto kind = from_word<CpComm>(json["plan"]["cp_comm"].get<std::string>());
      CHECK(recipe_of(framework).can.cp_exchanges.has(kind));
      for (const Json& reason : json["infeasible"]) {
        CHECK(reason["message"].get<std::string>().find("cp_comm") == std::string::npos);
      }
      CHECK(plain["plan"]["cp_comm"] == "p2p");  // says nothing
    }
  }
}

TEST_CASE("what would fit leaves out each word that was given") {
  const std::string job =
      "--model qwen3-8b --framework fsdp1 --gpus 8 --hardware a100-80gb-sxm --recompute full";
  const auto changes = [](const Ran& ran) {
    CHECK(ran.code == 1);
    std::vector<std::string> found;
    const Json json = ran.json();
    for (const Json& advice : json["would_fit"]) found.push_back(advice["change"]);
    return found;
  };
  const std::vector<std::string> option = changes(run("predict " + job + " --fsdp-shard 1 --json"));
  CHECK(std::count(option.begin(), option.end(), "without --fsdp-shard") == 1);
  const std::vector<std::string> line =
      changes(run({"predict", "fsdp_shard=1 recompute=full", "--model", "qwen3-8b", "--framework",
                   "fsdp1", "--gpus", "8", "--hardware", "a100-80gb-sxm", "--json"}));
  CHECK(std::count(line.begin(), line.end(), "without fsdp_shard=1") == 1);
  // The job itself stays: without its batch and length it would be another.
  const std::vector<std::string> long_job = changes(
      run("predict --model qwen3-8b --gpus 8 --seq-len 131072 --global-batch-size 8 --json"));
  for (const std::string& change : long_job) {
    CHECK(change.find("--seq-len") == std::string::npos);
    CHECK(change.find("--global-batch-size") == std::string::npos);
  }
}

TEST_CASE("images of a sequence may be counted, and cost what they are") {
  const std::string line = "predict --model qwen3-vl-30b-a3b --gpus 32 --framework fsdp2 --zero 3 ";
  const auto time = [&](const std::string& rest) {
    const Ran ran = run(line + rest + " --json");
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    return ran.json()["step_time_s"].get<double>();
  };
  // The default: a quarter of 4096 tokens, four images of 512 pixels.
  CHECK(time("") == time("--images 4 --image-size 512x512"));
  CHECK(time("--images 8") > time("--images 1"));
  // The same tokens in larger images: attention of the tower sees more.
  CHECK(time("--images 2 --image-size 1024") > time("--images 8 --image-size 512"));
  const Ran many = run(line + "--images 40");
  CHECK(many.code == 2);
  CHECK(many.says("--seq-len 10240"));
  CHECK(run("predict --model llama3-8b --gpus 8 --images 2").says("no vision tower"));
}

TEST_CASE("without ZeRO no default hides a gather, and one that was asked for is refused") {
  for (const char* framework : {"megatron", "slime"}) {
    CAPTURE(framework);
    const std::string job = std::string(" --model tiny --gpus 8 --json --framework ") + framework;
    const Ran line = run({"predict", "dp8 zero0", "--model", "tiny", "--gpus", "8", "--json",
                          "--framework", framework});
    CHECK(line.code == 0);
    CHECK(line.json()["plan"]["overlap"] == Json{"grad"});
    CHECK(run("predict --zero 0" + job).out == line.out);
  }
  CHECK(run("predict --zero 0 --overlap grad,param --model tiny --gpus 8").says("overlap_param"));
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json");
  REQUIRE(run("predict --zero 1 --model tiny --gpus 8 -o " + file).code == 0);
  CHECK(run("predict --zero 0 --plan " + file).code == 0);
}

TEST_CASE("layers are placed where other rules are broken, too") {
  const auto rules = [](const std::string& words) {
    const Ran ran = run("predict --json " + words);
    CHECK(ran.code == 1);
    const Json json = ran.json();
    std::vector<std::string> list;
    for (const Json& reason : json["infeasible"]) list.push_back(reason["rule"]);
    return list;
  };
  using Rules = std::vector<std::string>;
  CHECK(rules("--model llama3-405b --gpus 32 --tp 8 --pp 4 --precision mxfp8") ==
        Rules{"precision_gpu"});
  CHECK(rules("--model llama3-405b --gpus 32 --tp 16 --pp 4 --dp 1") == Rules{"world_size"});
  // Chunks of layers that no placement makes stay refused.
  CHECK(rules("--model llama3-405b --gpus 512 --tp 1 --pp 256 --precision mxfp8").size() > 1);
}

TEST_CASE("an option that gives a word of the line another value is refused with both") {
  const auto said = [](const std::string& line, std::vector<std::string> options) {
    options.insert(options.begin(), {"predict", line, "--model", "tiny", "--gpus", "8"});
    return run(options);
  };
  CHECK(said("dp8", {"--dp", "4"}).says("the plan says dp8 and --dp says 4"));
  CHECK(said("dp8", {"--dp", "4"}).code == 2);
  CHECK(
      said("dp8 lora0", {"--lora-rank", "16"}).says("the plan says lora0 and --lora-rank says 16"));
  CHECK(said("dp8 precision=fp8", {"--precision", "bf16"}).code == 2);
  CHECK(said("dp8 gbs64", {"--global-batch-size", "32"}).code == 2);
  CHECK(said("dp8 gbs64", {"--global-batch-size", "64", "--tp", "1"}).code == 0);
  CHECK(run({"run", "dp2 gbs8 seq64", "--model", "tiny", "--dp", "4"}).says("give one of them"));
  CHECK(run({"targets", "dp8", "--model", "tiny", "--gpus", "8", "--dp", "4"}).code == 2);
}

TEST_CASE("a list may be written with commas, + or, as an option, blanks") {
  const auto with = [](const std::string& list) {
    return run({"predict", "--model", "tiny", "--gpus", "8", "--lora-rank", "8", "--lora-targets",
                list, "--json"});
  };
  const Ran joined = with("q_proj+v_proj");
  REQUIRE(joined.json()["plan"]["lora_targets"].size() == 2);
  for (const char* list : {"q_proj,v_proj", "q_proj, v_proj", "q_proj v_proj"}) {
    CAPTURE(list);
    CHECK(with(list).out == joined.out);
  }
  CHECK(with("q_proj,,v_proj").code == 2);
  const Ran line = run({"predict", "dp8 lora8 lora_targets=q_proj,v_proj overlap=grad,param",
                        "--model", "tiny", "--json"});
  CHECK(line.json()["plan"]["lora_targets"] == joined.json()["plan"]["lora_targets"]);
  CHECK(line.json()["plan"]["overlap"].size() == 2);
}
