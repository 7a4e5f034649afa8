#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "cli/notes.h"
#include "cli/report.h"
#include "costmodel/evaluate.h"
#include "planner/frameworks/emit.h"
#include "planner/rules/feasible.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

// A small corner of the space: the tests ask about answers, not about speed.
const std::string kSmall =
    "search --model tiny-moe --gpus 8 --seq-len 512 --global-batch-size 16 --ep 1,2 "
    "--moe-dispatcher alltoall --offload none ";
const std::string kTiny =
    kSmall + "--tp 1,2 --pp 1,2 --micro-batch-size 1,4 --recompute none,full ";

}  // namespace

TEST_CASE("the counts of a search sum to the plans considered") {
  const Json json = run(kTiny + "--json").json();
  std::int64_t sum = 0;
  for (const auto& [rule, count] : json["infeasible"].items()) sum += count.get<std::int64_t>();
  for (const char* key : {"out_of_memory", "bounded_out", "simulated"}) {
    sum += json[key].get<std::int64_t>();
  }
  CHECK(json["considered"] == sum);
  CHECK(json["plans"].size() == 10);
  CHECK_FALSE(json.contains("elapsed_s"));
}

TEST_CASE("a search answers the same on any number of threads, plan by plan best first") {
  const Ran one = run(kTiny + "--json --threads 1"), three = run(kTiny + "--json --threads 3");
  CHECK(one.out == three.out);
  double last = 0;
  const Json plans = one.json()["plans"];
  for (const Json& plan : plans) {
    CHECK(plan["step_time_s"].get<double>() >= last);
    last = plan["step_time_s"].get<double>();
  }
}

TEST_CASE("a plan is a tie when its time lies within the best one's interval") {
  const Json plans = run(kTiny + "--json").json()["plans"];
  CHECK(plans[0]["tie"] == false);
  const double high = plans[0]["interval"]["step_time_s"][1].get<double>();
  for (std::size_t i = 1; i < plans.size(); ++i) {
    CHECK(plans[i]["tie"] == (plans[i]["step_time_s"].get<double>() <= high));
  }
}

TEST_CASE("constraints bind, as one value, a list or a range") {
  const Json json =
      run(kSmall + "--tp 2 --pp 1,2 --zero 0..1 --recompute none,full --micro-batch-size 1 --json")
          .json();
  REQUIRE(json["plans"].size() > 0);
  for (const Json& p : json["plans"]) {
    const Json& plan = p["plan"];
    CHECK(plan["tp"] == 2);
    CHECK(plan["pp"].get<int>() <= 2);
    CHECK(plan["zero"].get<int>() <= 1);
    CHECK(plan["micro_batch_size"] == 1);
    CHECK((plan["recompute"] == "none" || plan["recompute"] == "full"));
  }
}

TEST_CASE("a value said twice makes no second plan") {
  const std::string line = kSmall + "--tp 1 --pp 1 --recompute none --json ";
  CHECK(run(line + "--micro-batch-size 1,1..2,2").out == run(line + "--micro-batch-size 1,2").out);
  CHECK(run(line + "--overlap grad --overlap grad").out == run(line + "--overlap grad").out);
}

TEST_CASE("a default batch that splits over few ranks is said, with one that splits over more") {
  const ModelSpec model = load_model("tiny");
  SearchSpace space;
  space.gpus = 24;
  space.job.seq_len = 512;
  space.job.global_batch_size = 8193;
  const std::string sentence =
      "the default batch of 8193 sequences splits over dp 3 at most; --global-batch-size 8184 does "
      "over dp 24";
  CHECK(search_notes(model, space, {.batch = "chosen", .length = ""}) ==
        std::vector<std::string>{sentence});
  CHECK(search_notes(model, space, {}).empty());  // somebody asked for it
  space.job.global_batch_size = 8184;
  CHECK(search_notes(model, space, {.batch = "chosen", .length = ""}).empty());
}

TEST_CASE("a search says how it chose what nobody said") {
  const std::string few = "--tp 1 --pp 1 --cp 1 --micro-batch-size 1 --recompute none --top 1 ";
  const std::string line = "search --model llama2-7b --gpus 96 " + few;
  const Json both = run(line + "--json").json();
  CHECK(both["global_batch_size"] == 960);
  CHECK(both["defaults"]["global_batch_size"] ==
        "960 sequences: of the batches near 4.19M tokens a step, the one that divides among most "
        "layouts of 96 GPUs; --global-batch-size gives another");
  CHECK(both["defaults"]["seq_len"] == "4096 tokens, as is usual");
  const Json none = run(line + "--global-batch-size 96 --seq-len 512 --json").json();
  CHECK(none["defaults"]["global_batch_size"].is_null());
  CHECK(none["defaults"]["seq_len"].is_null());
  CHECK(run(line).says("default batch: 960 sequences: of the batches near 4.19M tokens a step"));
  CHECK_FALSE(run(line).says("default length"));
  // Fewer positions than is usual.
  const Json short_one = run("search --model gpt3-175b --gpus 128 --tp 8 --pp 8 --recompute full "
                             "--micro-batch-size 1 --top 1 --json")
                             .json();
  CHECK(short_one["seq_len"] == 2048);
  CHECK(short_one["plans"].size() == 1);
  CHECK(short_one["defaults"]["seq_len"] ==
        "2048 tokens, for the model has no more positions (max_position_embeddings)");
}

TEST_CASE("dualpipe is searched on request, and for its own framework") {
  const std::string four =
      "search --model tiny --gpus 4 --seq-len 512 --global-batch-size 16 --json ";
  const auto schedules = [&](const std::string& words) {
    std::set<std::string> seen;
    const Json plans = run(four + words).json()["plans"];
    for (const Json& p : plans) {
      seen.insert(p["plan"]["schedule"].get<std::string>());
    }
    return seen;
  };
  CHECK(schedules("--framework qplan --schedule dualpipe") == std::set<std::string>{"dualpipe"});
  CHECK_FALSE(schedules("--framework qplan --top 100").contains("dualpipe"));
  const Json refused = run(four + "--schedule dualpipe").json();
  CHECK(refused["plans"].empty());
  CHECK(refused["infeasible"]["schedule_available"].get<int>() > 0);
}

TEST_CASE("plans of our own executor are those that GPUs run, where there are any") {
  const std::string sinks = "search --model gpt-oss-20b --gpus 8 --framework qplan --cp 2 --json ";
  const auto exchanges = [&](const std::string& words) {
    const Json found = run(sinks + words).json();
    std::set<std::string> seen;
    for (const Json& p : found["plans"]) seen.insert(p["plan"]["cp_comm"].get<std::string>());
    return std::pair(seen, found);
  };
  // The CUDA backend has no windows and sinks over parts of sequences.
  const auto [both, found] = exchanges("--cp-comm all_gather,a2a");
  CHECK(both == std::set<std::string>{"a2a"});
  CHECK(found["infeasible"]["cuda_backend"].get<int>() > 0);
  CHECK(found["infeasible_examples"]["cuda_backend"].get<std::string>().find("use --cp-comm a2a") !=
        std::string::npos);
  const auto [asked, any] = exchanges("--cp-comm all_gather");
  CHECK(asked == std::set<std::string>{"all_gather"});
  CHECK_FALSE(any["infeasible"].contains("cuda_backend"));
}

TEST_CASE("a plan of a search is the same object that predict prints") {
  const Json best = run(kTiny + "--top 1 --json").json()["plans"][0];
  Json again =
      run({"predict", "--model", "tiny-moe", "--json", "--plan", best["short"].get<std::string>()})
          .json();
  for (const char* key : {"plan", "fingerprint", "step_time_s", "memory", "time", "mfu"}) {
    CAPTURE(key);
    CHECK(again[key] == best[key]);
  }
}

TEST_CASE("the best plan can be written and asked for again") {
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json");
  const Ran ran = run(kTiny + "--json -o " + file);
  REQUIRE(ran.code == 0);
  const Ran again = run("predict --json --plan " + file);
  CHECK(again.code == 0);
  CHECK(again.json()["short"] == ran.json()["plans"][0]["short"]);
}

TEST_CASE("text says what limits the best plan, why the second lost and what was refused") {
  const Ran ran = run(kTiny + "--timing --pareto");
  CHECK(ran.code == 0);
  for (const char* text : {"limits:", "second:", "plans considered",
                           "batch_divisibility:", "elapsed", "best:", "all with:", "Less memory"}) {
    CAPTURE(text);
    CHECK(ran.says(text));
  }
}

TEST_CASE("who refuses plans is said beside each rule") {
  const Json json = run(kTiny + "--json").json();
  const Ran text = run(kTiny);
  CHECK(json["infeasible"].size() > 0);
  CHECK(json["infeasible_sources"].size() == json["infeasible"].size());
  for (const auto& [rule, source] : json["infeasible_sources"].items()) {
    CAPTURE(rule);
    CHECK(json["infeasible"].contains(rule));
    CHECK(source == source_of_rule(rule, RecipeKind::megatron));
    // Its first line, wherever that is wrapped.
    const std::string begin = source.get<std::string>().substr(0, 40);
    CHECK(text.says("\n            [" + begin));
  }
}

TEST_CASE("the plans of a search can be written for its framework") {
  for (const std::string job :
       {"--framework deepspeed --model qwen3-32b --gpus 32",
        "--framework deepspeed --model llama3-70b --gpus 8",
        "--framework deepspeed --model qwen3-8b --gpus 16 --seq-len 32768",
        "--framework fsdp2 --model qwen3-8b --gpus 8",
        "--framework fsdp2 --model qwen3-8b --gpus 1",
        "--framework fsdp2 --model llama3-8b --gpus 16 --seq-len 131072",
        "--framework fsdp2-compile --model llama3-405b --gpus 512 --seq-len 8192",
        "--framework fsdp2-compile --model llama3-8b --gpus 8 --seq-len 8192",
        "--framework megatron-deepspeed --model megatron-175b --gpus 256 --seq-len 2048",
        "--framework megatron --model qwen3-30b-a3b --gpus 16"}) {
    CAPTURE(job);
    const Json plans = run("search --json --top 5 " + job).json()["plans"];
    REQUIRE_FALSE(plans.empty());
    for (const Json& plan : plans) {
      CAPTURE(plan["short"].get<std::string>());
      for (const Json& note : plan["notes"]) {
        CAPTURE(note.get<std::string>());
        CHECK_FALSE(note.get<std::string>().starts_with("`qplan emit"));
      }
    }
  }
}

TEST_CASE("NeMo AutoModel spreads the experts of its own layers, and racks take HybridEP") {
  const auto best = [](const std::string& framework, const std::string& machine) {
    const std::string job = " --model qwen3-30b-a3b --global-batch-size 512 --top 1 --json";
    const Json answer =
        run("search --framework " + framework + " --hardware " + machine + job).json();
    return answer["plans"][0]["short"].get<std::string>();
  };
  CHECK(best("automodel", "h100-sxm --gpus 8").find(" ep8 ") != std::string::npos);
  CHECK(best("torchtitan", "h100-sxm --gpus 8").find("moe_dispatcher=deepep") != std::string::npos);
  CHECK(best("megatron", "gb200 --gpus 16").find("moe_dispatcher=hybridep") != std::string::npos);
}

TEST_CASE("tp and cp beside no data parallelism are searched unasked, where files can say them") {
  const auto degrees = [](const std::string& framework) {
    std::set<std::string> found;
    const std::string job =
        " --model qwen3-1.7b --gpus 2 --seq-len 8192 --global-batch-size 8 --top 100 --json";
    const Json answer = run("search --framework " + framework + job).json();
    for (const Json& plan : answer["plans"]) {
      const Json& p = plan["plan"];
      found.insert("tp" + p["tp"].dump() + " cp" + p["cp"].dump() + " dp" + p["dp"].dump());
    }
    return found;
  };
  const std::set<std::string> automodel = degrees("automodel"), accelerate = degrees("fsdp2");
  CHECK(automodel.contains("tp2 cp1 dp1"));
  CHECK(automodel.contains("tp1 cp2 dp1"));
  // accelerate's mesh has no axis for FSDP where tp is alone.
  CHECK_FALSE(accelerate.contains("tp2 cp1 dp1"));
  CHECK(accelerate.contains("tp1 cp2 dp1"));
}

TEST_CASE("a plan that files cannot say counts as refused, with who refuses it") {
  const Json searched =
      run("search --framework deepspeed --model gpt-oss-20b --gpus 16 --top 1 --json").json();
  CHECK(searched["plans"][0]["plan"]["ep"] == 1);
  CHECK(searched["infeasible"]["autoep_presets"] > 0);
  CHECK(searched["infeasible_sources"]["autoep_presets"] ==
        "qplan: emit has no words for it in deepspeed's files");
  std::int64_t refused = 0;
  for (const auto& [rule, count] : searched["infeasible"].items()) refused += count.get<int>();
  CHECK(searched["considered"] == refused + searched["out_of_memory"].get<std::int64_t>() +
                                      searched["bounded_out"].get<std::int64_t>() +
                                      searched["simulated"].get<std::int64_t>());
  const Ran text = run("search --framework deepspeed --model gpt-oss-20b --gpus 16 --top 1");
  CHECK(text.says("autoep_presets: DeepSpeed's AutoEP has no preset for gpt_oss; use ep 1"));
}

TEST_CASE("what a framework's files cannot say is searched on request, and said") {
  const Ran ran =
      run("search --framework fsdp2 --model qwen3-8b --gpus 8 --tp 2 --sequence-parallel --top 1");
  CHECK(ran.code == 0);
  CHECK(ran.says("`qplan emit --framework fsdp2` has no words for this plan: accelerate's tp"));
}

TEST_CASE("a default batch that is too large says what to give") {
  const Ran ran = run("search --model llama3-8b --gpus 8 --seq-len 1");
  CHECK(ran.code == 2);
  CHECK(ran.says("about 4.19M tokens a step are 4194304 sequences of 1"));
  CHECK(ran.says("give --global-batch-size"));
}

TEST_CASE("text says what the best plan needs of the host, and when memory is full") {
  const Ran ran = run("search --model llama3-70b --gpus 8 --tp 4 --pp 2 --schedule 1f1b --top 1");
  CHECK(ran.code == 0);
  CHECK(ran.says("the host holds 1.03 TiB a"));
  CHECK(ran.says("memory is full on stage 0, the allocator's cache being"));
  CHECK(ran.says("within 5% of what may be filled"));
  const Ran more =
      run("search --model llama3-8b --gpus 8 --hardware a100-40gb-sxm --memory-cap-gib 80 --top 1");
  CHECK(more.says("more than the 39.4 GiB that the device has"));
}

TEST_CASE("with nothing feasible a search says what would fit, having tried it") {
  const std::string line =
      "search --model llama3-8b --gpus 2 --pp 1 --cp 1 --micro-batch-size 1 --recompute none "
      "--offload none --global-batch-size 16 ";
  const Ran text = run(line);
  CHECK(text.code == 1);
  CHECK(text.says("Nothing fits"));
  CHECK(text.says("It would fit with:"));
  const Ran ran = run(line + "--json");
  CHECK(ran.code == 1);
  const Json json = ran.json();
  CHECK(json["plans"].empty());
  CHECK(json["smallest"]["device_peak_gib"].get<double>() > 75);
  CHECK(json["smallest"]["step_time_s"].is_null());  // never timed
  REQUIRE(json["would_fit"].size() > 0);
  const std::string plan = json["would_fit"][0]["short"].get<std::string>();
  CHECK(run({"predict", "--model", "llama3-8b", "--plan", plan}).code == 0);
}

TEST_CASE("where no change alone is enough, two or three are found, and they hold") {
  for (const std::string line :
       {// No pipeline, and parameters that fill all of the 32 GPUs.
        "--model gpt-1.3t --gpus 32 --framework deepspeed --hardware a100-80gb-sxm "}) {
    CAPTURE(line);
    const Ran ran = run("search " + std::string(line) + "--json");
    REQUIRE(ran.code == 1);
    const Json json = ran.json();
    const Json list = json["would_fit"];
    int several = 0;
    for (const Json& advice : list) {
      const std::string change = advice["change"].get<std::string>();
      CAPTURE(change);
      const bool home = advice["gpus"] == json["gpus"] && advice["framework"] == json["framework"];
      if (home) several += change.find(" and ") != std::string::npos ? 1 : 0;
      const std::vector<std::string> predict = {"predict",
                                                "--model",
                                                json["model"].get<std::string>(),
                                                "--hardware",
                                                json["hardware"].get<std::string>(),
                                                "--framework",
                                                advice["framework"].get<std::string>(),
                                                "--plan",
                                                advice["short"].get<std::string>()};
      CHECK(run(predict).code == 0);
    }
    // With the same GPUs and framework, which nothing does alone.
    CHECK(several > 0);
  }
}

TEST_CASE("degrees that cannot make the world are said to be so") {
  const Ran ran = run(kSmall + "--tp 3");
  CHECK(ran.code == 1);
  CHECK(ran.says("tp x cp x pp must divide them"));
}

TEST_CASE("the cheapest plan may use fewer GPUs than there are") {
  const Json json = run(kSmall + "--pp 1 --tp 1 --objective gpus --top 1 --json").json();
  REQUIRE(json["plans"].size() == 1);
  CHECK(json["plans"][0]["gpus"] == 1);
  CHECK(json["gpus"] == 8);
}

TEST_CASE("a search beyond the model's positions says so once in text, and in JSON of every plan") {
  const std::string line =
      "search --model tiny --gpus 8 --seq-len 1024 --global-batch-size 16 --tp 1 --pp 1 --cp 1 "
      "--micro-batch-size 1 --offload none --top 2 ";
  const std::string sentence =
      "sequences of 1024 are longer than the 512 positions of the model (max_position_embeddings)";
  const std::string text = run(line).out;
  CHECK(text.find("note: " + sentence) != std::string::npos);
  CHECK(text.find("longer than") == text.rfind("longer than"));
  const Json json = run(line + "--json").json();
  CHECK(json["notes"] == Json::array({sentence}));
  REQUIRE(json["plans"].size() == 2);
  for (const Json& plan : json["plans"]) CHECK(plan["notes"][0] == sentence);
  CHECK(run(kTiny + "--json").json()["notes"].empty());
  CHECK_FALSE(run(kTiny + "--json").says("positions of the model"));
}

TEST_CASE("where the host's memory is what lacks, that is what is said") {
  const Ran ran =
      run("search --model qwen3-32b --framework fsdp2 --gpus 2 --hardware a100-40gb-sxm --offload "
          "optimizer,params --seq-len 2048 --global-batch-size 8");
  CHECK(ran.code == 1);
  CHECK(ran.says("in the memory of a node"));
  CHECK_FALSE(ran.says(" -"));
}

TEST_CASE("what does not fit names the limit that it breaks, by amounts above zero") {
  const TemporaryFolder folder;
  const std::string small_host = folder.file("small-host.json");
  write_file_atomically(
      small_host, R"({"extends": "h100-sxm", "host": {"memory_gb": 8, "source": "a small host"}})");
  int of_device = 0, of_host = 0;
  for (const std::string model : {"qwen3-30b-a3b", "llama3-70b"}) {
    for (const auto& [framework, word] : Words<RecipeKind>::table) {
      for (const std::string& hardware : {std::string("a100-40gb-sxm"), small_host}) {
        for (const Offload& offload :
             {Offload{}, Offload{.optimizer = 1}, Offload{.optimizer = 1, .params = true}}) {
          JobChoices choices;
          choices.model = model;
          choices.framework = framework;
          choices.hardware = hardware;
          choices.gpus = 8;
          const auto job = make_job(choices);
          SearchSpace space;
          space.gpus = 8;
          space.job.global_batch_size = 8;
          space[&ParallelPlan::tp] = {1, 8};
          space[&ParallelPlan::pp] = {1};
          space[&ParallelPlan::cp] = {1};
          space[&ParallelPlan::micro_batch_size] = {1};
          space[&ParallelPlan::recompute] = {{RecomputeKind::full, {}, 0}};
          space[&ParallelPlan::offload] = {offload};
          const SearchResult result = search_offered(*job, space, {});
          if (!result.plans.empty() || !result.smallest) continue;
          const std::string text = excess_text(*job, *result.smallest);
          CAPTURE(std::string(word) + ": " + text);
          const bool device = result.smallest->device_peak > job->cost->capacity();
          ++(device ? of_device : of_host);
          CHECK((text.find("memory of a node") == std::string::npos) == device);
          CHECK(text.find("too much") != std::string::npos);
          CHECK(text.find('-') == std::string::npos);
          CHECK(text.find(" 0 ") == std::string::npos);
        }
      }
    }
  }
  CHECK(of_device > 10);
  CHECK(of_host > 3);
}

TEST_CASE("whatever emit calls a framework, a prediction takes by that name") {
  for (const std::string_view word : files_words()) {
    CAPTURE(word);
    const Framework framework = *files_named(word);
    const std::string recipe(to_word(recipe_for(framework, RecipeKind::megatron)));
    const std::string model =
        framework == Framework::megatron_deepspeed ? "llama2-7b" : "llama3-8b";
    const std::string line = "--model " + model + " --gpus 16 --tp 2 --recompute full --framework ";
    const Ran ran = run("predict " + line + std::string(word));
    REQUIRE_MESSAGE(ran.code == 0, ran.err);
    CHECK(ran.says(", by " + recipe));
    const bool renamed = !try_from_word<RecipeKind>(word) && to_word(framework) != recipe;
    CHECK(ran.says(", which " + std::string(word) + "'s files run") == renamed);
    const Json json = run("predict " + line + std::string(word) + " --json").json();
    CHECK(json["framework"] == recipe);
    CHECK(json.contains("overrides") == renamed);
  }
  const Ran unknown = run("search --model tiny --gpus 8 --framework slimy");
  CHECK(unknown.code == 2);
  CHECK(unknown.says("torchtitan"));
}

TEST_CASE("a search for a framework's files offers what those files can say") {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan.json");
  const std::string line =
      "search --model qwen3-30b-a3b --gpus 16 --tp 1 --pp 1,2 --ep 8 --micro-batch-size 1 "
      "--recompute full --global-batch-size 64 --top 3 ";
  const auto dispatchers = [&](const std::string& framework) {
    std::set<std::string> found;
    const Json json = run(line + framework + " --json").json();
    for (const Json& answer : json["plans"]) {
      found.insert(answer["plan"]["moe_dispatcher"].get<std::string>());
    }
    return found;
  };
  CHECK(dispatchers("--framework megatron").count("deepep") == 1);
  CHECK(dispatchers("--framework slime") == std::set<std::string>{"alltoall"});
  // What was searched for is what is written.
  REQUIRE(run(line + "--framework slime -o " + plan).code == 0);
  const Ran emitted = run("emit " + plan + " --out " + folder.file("job"));
  CHECK_MESSAGE(emitted.code == 0, emitted.err);
  CHECK(emitted.says("run.sh"));
}

TEST_CASE("bf16 is tried where narrower products were asked for") {
  for (const std::string machine :
       {"--hardware a100-80gb-sxm --precision fp8", "--hardware h100-sxm --precision mxfp8"}) {
    CAPTURE(machine);
    const Ran ran = run("search --model tiny --gpus 8 --json " + machine);
    CHECK(ran.code == 1);
    const Json list = ran.json()["would_fit"];
    const bool found = std::any_of(list.begin(), list.end(), [](const Json& advice) {
      return advice["change"] == "precision=bf16";
    });
    CHECK(found);
  }
}

TEST_CASE("a list of a search's values is held to the word's own bounds") {
  for (const char* list : {"1,,2", "0", "1..9000"}) {
    CAPTURE(list);
    const Ran ran = run(kSmall + "--tp " + list);
    CHECK(ran.code == 2);
    CHECK(ran.says("--tp must be a whole number from 1 to 8192, not '"));
  }
}
