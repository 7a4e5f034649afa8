// Faults whose verdict is known by how they are made, drawn in clean jobs of every framework; and
// each class of mistakes by an example of its own.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "planner/frameworks/model_of_files.h"
#include "planner/frameworks/readers/python_syntax.h"
#include "planner/frameworks/relations.h"
#include "tests/planner/frameworks/jobs.h"
#include "tests/properties/random_plans.h"

namespace qplan {
namespace {

bool has_error(const Checked& checked) {
  return checked.has(Severity::error);
}

// A job of two models, as `emit` writes it.
struct Clean {
  std::string model;
  Framework framework;
  std::vector<ConfigText> files;
  std::int64_t gpus = 0;

  [[nodiscard]] Checked checked() const {
    const ModelSpec spec = load_model(model);
    const Json config = model_config(model);
    return check(files, question_of(spec, config, gpus));
  }
};

std::vector<Clean> clean_jobs() {
  std::vector<Clean> jobs;
  for (const std::string name : {"qwen3-30b-a3b", "llama3-8b"}) {
    const ModelSpec model = load_model(name);
    const Json config = model_config(name);
    for (const Framework framework : {Framework::megatron, Framework::megatron_bridge,
                                      Framework::deepspeed, Framework::megatron_deepspeed,
                                      Framework::fsdp2, Framework::torchtitan, Framework::slime}) {
      const RecipeKind recipe = recipe_for(framework, RecipeKind::megatron);
      ParallelPlan plan;
      plan.dp = 16;
      plan.zero = 1;
      plan.seq_len = 4096;
      plan.global_batch_size = 64;
      const Subject subject{model, config, plan, recipe, 8};
      const ClusterLimits limits{.gpus = 16, .compute_capability = 90};
      ParallelPlan nearest = plan;
      if (!why_inexpressible(framework, subject, limits).empty() &&
          !nearest_expressible(framework, subject, limits, nearest)) {
        continue;
      }
      nearest = canonical(nearest, model, recipe);
      const Subject written{model, config, nearest, recipe, 8};
      Clean job{name, framework, texts_of(emit(framework, written, {"a remark"})), nearest.world()};
      const Checked checked = job.checked();
      CHECK_MESSAGE(!has_error(checked), findings_text(checked));
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

// An option where a line of a file has it: "  --flag value", "  key: value", "    key=value,".
struct Written {
  std::size_t file = 0, begin = 0, end = 0;  // of the name
  std::string name, value;                   // value: empty: a switch
};

std::vector<Written> options_in(const Clean& job) {
  std::vector<Written> found;
  for (std::size_t i = 0; i < job.files.size(); ++i) {
    const std::string& text = job.files[i].text;
    const std::string& name = job.files[i].name;
    std::size_t line = 0;
    while (line < text.size()) {
      const std::size_t end = std::min(text.find('\n', line), text.size());
      std::size_t at = text.find_first_not_of(' ', line);
      const bool indented = at != std::string::npos && at > line && at < end;
      const bool flag = indented && text.compare(at, 2, "--") == 0;
      const bool keyed = indented && !flag &&
                         (name.ends_with(".yaml") ||
                          (name.ends_with(".py") && job.framework == Framework::torchtitan));
      if (flag || keyed) {
        const std::size_t stop = text.find_first_of(flag ? " \n" : ":=", at);
        std::size_t from = text.find_first_not_of(" :=", stop);
        std::string value;
        if (from != std::string::npos && from < end) {
          value = text.substr(from, std::min(text.find_first_of(" ,\\\n", from), end) - from);
        }
        const bool nested = value.find_first_of("($\"") != std::string::npos && !flag;
        if (stop < end + 1 && !nested) {
          found.push_back({i, at, stop, text.substr(at, stop - at), value});
        }
      }
      line = end + 1;
    }
  }
  return found;
}

Clean changed(Clean job, const Written& option, const std::string& name, const std::string& value) {
  std::string& text = job.files[option.file].text;
  const std::size_t from = text.find_first_not_of(" :=", option.end);
  if (!option.value.empty()) text.replace(from, option.value.size(), value);
  text.replace(option.begin, option.end - option.begin, name);
  return job;
}

const KnownOption* known_in(const Clean& job, const std::string& name) {
  for (const std::string_view list : {"megatron", "slime", "megatron_deepspeed", "trainer"}) {
    const bool of_list =
        (list == "megatron" &&
         (job.framework == Framework::megatron || job.framework == Framework::slime)) ||
        (list == "slime" && job.framework == Framework::slime) ||
        (list == "megatron_deepspeed" && job.framework == Framework::megatron_deepspeed) ||
        (list == "trainer" &&
         (job.framework == Framework::deepspeed || job.framework == Framework::fsdp2));
    if (!of_list) continue;
    if (const KnownOption* const known = known_options(list).find(name)) return known;
  }
  return nullptr;
}

TEST_SUITE("faults") {
  TEST_CASE("a name with a letter left out is an error, in every framework's words") {
    std::mt19937 random(25);
    int drawn = 0;
    for (const Clean& job : clean_jobs()) {
      for (const Written& option : options_in(job)) {
        const bool flag = option.name.starts_with("--");
        if (flag && known_in(job, option.name) == nullptr) continue;  // the launcher's
        const bool section = !flag && option.name.find('_') == std::string::npos;
        if (section || option.name.size() < 6) continue;
        const std::size_t at = 3 + random() % (option.name.size() - 4);
        if (option.name[at] == '-' || option.name[at] == '_') continue;
        std::string name = option.name;
        name.erase(at, 1);
        const bool another = flag && known_in(job, name) != nullptr;
        if (another) continue;
        const Clean broken = changed(job, option, name, option.value);
        CAPTURE(to_word(job.framework));
        CAPTURE(option.name);
        CAPTURE(name);
        CHECK(has_error(broken.checked()));
        ++drawn;
      }
    }
    CHECK(drawn > 200);
  }

  TEST_CASE("a word in a number's place is an error") {
    int drawn = 0;
    for (const Clean& job : clean_jobs()) {
      for (const Written& option : options_in(job)) {
        const KnownOption* const known = known_in(job, option.name);
        const bool number = known != nullptr && (known->type == "int" || known->type == "float");
        if (!number || option.value.empty() || option.value.find('$') != std::string::npos)
          continue;
        for (const std::string value : {"many", "4k", "1,000"}) {
          const Clean broken = changed(job, option, option.name, value);
          CAPTURE(to_word(job.framework));
          CAPTURE(option.name);
          CAPTURE(value);
          CHECK(has_error(broken.checked()));
          ++drawn;
        }
      }
    }
    CHECK(drawn > 200);
  }

  TEST_CASE("a choice in another case is an error") {
    int drawn = 0;
    for (const Clean& job : clean_jobs()) {
      for (const Written& option : options_in(job)) {
        const KnownOption* const known = known_in(job, option.name);
        if (known == nullptr || known->choices.empty() || option.value.empty()) continue;
        std::string value = option.value;
        for (char& c : value) {
          if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
        }
        if (value == option.value) continue;
        const Clean broken = changed(job, option, option.name, value);
        CAPTURE(to_word(job.framework));
        CAPTURE(option.name);
        CHECK(has_error(broken.checked()));
        ++drawn;
      }
    }
    CHECK(drawn > 15);
  }

  TEST_CASE("every relation of options cites what a reader can open, and asks for known options") {
    for (const Dialect dialect :
         {Dialect::megatron, Dialect::slime, Dialect::megatron_deepspeed, Dialect::trainer}) {
      for (const Relation& relation : relations_of(dialect)) {
        CAPTURE(relation.when);
        const std::string both = std::string(relation.when) + " " + std::string(relation.must);
        std::istringstream words(both);
        for (std::string word; words >> word;) {
          if (word.starts_with('!')) word.erase(0, 1);
          if (!word.starts_with("--")) continue;
          word.resize(std::min(word.find_first_of("=!<>%"), word.size()));
          CAPTURE(word);
          const bool known = known_options("megatron").find(word) != nullptr ||
                             known_options("slime").find(word) != nullptr ||
                             known_options("megatron_deepspeed").find(word) != nullptr ||
                             known_options("trainer").find(word) != nullptr ||
                             known_options("run_clm").find(word) != nullptr ||
                             word.starts_with("--sglang-");
          CHECK(known);
        }
      }
    }
  }
}

// ---- one class each ----

Checked ask(std::vector<ConfigText> files, const std::string& name = "qwen3-8b",
            std::int64_t gpus = 8) {
  const ModelSpec model = load_model(name);
  const Json config = model_config(name);
  return check_cited(files, question_of(model, config, gpus));
}

const std::string kLaunch =
    "deepspeed --num_gpus 8 --num_nodes 1 run_clm.py --model_name_or_path m --train_file a.txt "
    "--output_dir o --deepspeed ds_config.json --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 4 --learning_rate 3e-4 --max_grad_norm 1.0 ";

std::string config_with(const std::string& more) {
  return "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 4, " + more +
         "\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2}}";
}

TEST_SUITE("a trainer beside ds_config.json") {
  TEST_CASE("what agrees is clean") {
    const Checked checked = ask({{"ds_config.json", config_with("\"gradient_clipping\": 1.0, ")},
                                 {"train.sh", kLaunch + "--bf16 true\n"}});
    CHECK_MESSAGE(!has_error(checked), findings_text(checked));
  }

  TEST_CASE("a block without enabled leaves its format off, whatever the Trainer says") {
    const auto with = [](const std::string& block, const std::string& more) {
      return ask({{"ds_config.json", with_words(config_with(""), "{\"enabled\": true}", block)},
                  {"train.sh", kLaunch + more}});
    };
    const Checked empty = with("{}", "--bf16 true\n");
    const Finding* const found = find(empty, "format_left_off");
    REQUIRE_MESSAGE(found != nullptr, findings_text(empty));
    CHECK(found->place.file == "ds_config.json");
    REQUIRE(found->fix.size() == 1);
    CHECK(found->fix[0].text == "{\"enabled\": \"auto\"}");
    CHECK(find(with("{\"immediate_grad_update\": true}", "--bf16 true\n"), "format_left_off") !=
          nullptr);
    CHECK(find(with("{\"enabled\": \"auto\"}", "--bf16 true\n"), "format_left_off") == nullptr);
    CHECK(find(with("{}", "\n"), "format_left_off") == nullptr);
  }

  TEST_CASE("what differs is an error, defaults included") {
    const std::string bf16 = "--bf16 true\n";
    const auto mismatch = [&](const std::string& config, const std::string& more) {
      return find(ask({{"ds_config.json", config_with(config)}, {"train.sh", kLaunch + more}}),
                  "trainer_mismatch") != nullptr;
    };
    CHECK(mismatch("\"gradient_clipping\": 0.5, ", bf16));
    CHECK(mismatch("\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-5}}, ", bf16));
    CHECK(mismatch("\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"weight_decay\": 0.1}}, ",
                   bf16));
    CHECK(mismatch("", "\n"));  // --bf16 is off unless said
    CHECK(
        !mismatch("\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}}, ", bf16));
  }

  TEST_CASE("names, formats and ways of sharding are told") {
    const std::vector<std::pair<std::string, std::string>> faults = {
        {"--learning_rte 3e-4 --bf16 true\n", "unknown_option"},
        {"--bf16 true --fp16 true\n", "options_exclude"},
        {"--bf16 true --fsdp full_shard\n", "options_exclude"},
        {"--bf16 true --warmup_steps many\n", "refused_value"},
        {"--bf16 perhaps\n", "bad_value"}};
    for (const auto& [more, rule] : faults) {
      const Checked checked =
          ask({{"ds_config.json", config_with("")}, {"train.sh", kLaunch + more}});
      CAPTURE(more);
      CHECK_MESSAGE(find(checked, rule) != nullptr, findings_text(checked));
    }
  }
}

TEST_SUITE("values of ds_config.json") {
  TEST_CASE("types, choices and ranges are DeepSpeed's") {
    const auto error = [](const std::string& zero) {
      const Checked checked =
          ask({{"ds_config.json",
                "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\":"
                " true}, \"zero_optimization\": {" +
                    zero + "}}"}});
      return has_error(checked);
    };
    CHECK(!error("\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"}"));
    CHECK(!error("\"stage\": 3, \"reduce_bucket_size\": \"auto\""));
    CHECK(!error("\"stage\": 3, \"reduce_bucket_size\": 5e8"));
    CHECK(error("\"stage\": 3, \"offload_optimizer\": {\"device\": \"gpu\"}"));
    CHECK(error("\"stage\": 3, \"offload_param\": {\"device\": \"CPU\"}"));
    CHECK(error("\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"}"));
    CHECK(error("\"stage\": 3, \"reduce_bucket_size\": \"5e8x\""));
    CHECK(error("\"stage\": 3, \"reduce_bucket_size\": -1"));
    CHECK(error("\"stage\": 4"));
    CHECK(error("\"stage\": 2, \"overlap_comm\": \"perhaps\""));
  }
}

TEST_SUITE("Python that is a configuration") {
  TEST_CASE("what Python reads has no slip") {
    for (const std::string text :
         {"x = 1\n",
          "def f(a, *, b=1):\n    return {'a': [a, b]}\n",
          "x = ('a'\n     'b')\n",
          "if x:\n  pass\nelse:\n  y = f'{x[\"a\"]}'\n",
          "class A: pass\n",
          "@d\nasync def f():\n    await g()\n",
          "match x:\n    case 1:\n        pass\n",
          "x = [i for i in range(3) if i not in (1,)]\n",
          "x: int = 1\n",
          "f(**a, b=1)\n",
          "\"\"\"text\nof lines\"\"\"\nx = lambda a: a + 1\n",
          "x = 1 if y else 2\n",
          "for i in x:\n    if i:\n        pass\n    # remark\n\ny = 2\n",
          "print(not x, -1)\n",
          "x = a \\\n    + b\n",
          "try:\n    import a\nexcept ImportError as e:\n    raise\n",
          "g(x := 1)\n",
          "d = {**a, 'b': 1}\n",
          "x = y = 1\n",
          "with a as b, c:\n    pass\n",
          "return_value = r'\\d' rb'\\x'\n",
          "x = 0xFFe+1\n",
          "f(a, b)(c=1)(c=2)\n",
          "type = 3\n",
          "def f(x=1, *a, y: int = 2) -> dict[str, int]:\n    yield from x\n",
          ""}) {
      const auto slip = python_slip(text);
      CAPTURE(text);
      CHECK_MESSAGE(!slip, (slip ? slip->message : std::string()));
    }
  }

  TEST_CASE("what Python refuses is found, on its line") {
    const std::vector<std::pair<std::string, int>> slips = {
        {"x = f(1\ny = 2\n", 1},    {"x = 1)\n", 1},        {"x = 'a\n", 1},
        {"def f()\n    pass\n", 1}, {"f(a=1\n  b=2)\n", 1}, {"def f():\npass\n", 2},
        {"x = 1\n  y = 2\n", 2},    {"f(a=1, a=2)\n", 1},   {"f(a=, b=1)\n", 1},
        {"x = [1, 2)\n", 1},        {"x = a b\n", 1},       {"if x:\n    y\n  z\n", 3},
        {"x = \"\"\"never\n", 1},   {"x = 5 k\n", 1},       {"f(a, , b)\n", 1},
        {"f(a-b=1)\n", 1},          {"x = $y\n", 1}};
    for (const auto& [text, line] : slips) {
      const auto slip = python_slip(text);
      CAPTURE(text);
      REQUIRE(slip);
      CHECK(slip->line == line);
    }
  }

  TEST_CASE("a name that is called has to come from somewhere") {
    CHECK(undefined_calls("from a import F\nx = F(1)\n").empty());
    CHECK(undefined_calls("import a.b\nx = a.b.F(len([1]))\n").empty());
    CHECK(undefined_calls("from a import *\nx = F(1)\n").empty());
    CHECK(undefined_calls("def f(g):\n    return g(1)\n").empty());
    CHECK(undefined_calls("for g, h in x:\n    h(1)\n").empty());
    const auto missing = undefined_calls("from a import Form\nx = From(1)\n");
    REQUIRE(missing.size() == 1);
    CHECK(missing.front().name == "From");
    CHECK(missing.front().line == 2);
  }
}

TEST_SUITE("a model that the arguments state") {
  JobFiles files_of(const std::string& text) {
    const std::vector<ConfigText> texts{{"train.sh", text}};
    return read_job_files(texts);
  }

  TEST_CASE("dense models and models with experts are read from Megatron's arguments") {
    const auto dense = model_of_files(files_of(
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
        "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu "
        "--position-embedding-type rope --rotary-base 500000 --disable-bias-linear "
        "--untie-embeddings-and-output-weights --max-position-embeddings 8192 "
        "--vocab-size 128256 --micro-batch-size 1 --seq-length 8192\n"));
    REQUIRE(dense);
    const ModelSpec spec = read_model(dense->config, "test");
    CHECK(count_parameters(spec).total() == count_parameters(load_model("llama3-8b")).total());
    CHECK(dense->assumed.empty());
    const auto experts = model_of_files(files_of(
        "torchrun pretrain_gpt.py --num-layers 48 --hidden-size 2048 --num-attention-heads 32 "
        "--kv-channels 128 --group-query-attention --num-query-groups 4 --swiglu --qk-layernorm "
        "--position-embedding-type rope --disable-bias-linear --num-experts 128 "
        "--moe-router-topk 8 --moe-ffn-hidden-size 768 --untie-embeddings-and-output-weights "
        "--vocab-size 151936 --micro-batch-size 1 --seq-length 4096\n"));
    REQUIRE(experts);
    CHECK(count_parameters(read_model(experts->config, "test")).total() ==
          count_parameters(load_model("qwen3-30b-a3b")).total());
  }

  TEST_CASE("an older model with learned positions is, too") {
    const auto found = model_of_files(
        files_of("torchrun pretrain_gpt.py --num-layers 96 --hidden-size 12288 "
                 "--num-attention-heads 96 --max-position-embeddings 2048 --seq-length 2048 "
                 "--micro-batch-size 1 --vocab-size 51200\n"));
    REQUIRE(found);
    CHECK(count_parameters(read_model(found->config, "test")).total() ==
          count_parameters(load_model("gpt3-175b")).total());
  }

  TEST_CASE("what arguments do not tell is left to --model") {
    CHECK(!model_of_files(files_of("torchrun pretrain_gpt.py --num-layers 4 --seq-length 8\n")));
    CHECK(!model_of_files(
        files_of("torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 "
                 "--num-attention-heads 4 --multi-latent-attention --seq-length 8\n")));
  }
}

TEST_SUITE("other classes") {
  TEST_CASE("a configuration of axolotl is no accelerate's, and one of verl is said to be one") {
    const Checked checked = ask({{"config.yml",
                                  "base_model: Qwen/Qwen3-8B\nsequence_len: 4096\n"
                                  "micro_batch_size: 2\nfsdp_config:\n  fsdp_version: 2\n"}});
    CHECK(find(checked, "unknown_file") == nullptr);
    CHECK(find(checked, "unknown_option") == nullptr);
    CHECK(checked.plan.micro_batch_size == 2);
    const Checked other = ask({{"ppo.yaml", "defaults: x\ntrainer:\n  nnodes: 1\n"}});
    const Finding* const f = find(other, "unknown_file");
    REQUIRE(f != nullptr);
    CHECK(f->message.find("verl") != std::string::npos);
  }

  TEST_CASE("a recipe of Megatron-Bridge has to exist, and be the model's") {
    const auto rule_of = [](const std::string& recipe) {
      const Checked checked =
          ask({{"pretrain.py",
                "from megatron.bridge import recipes\n\n\ndef config():\n    cfg = "
                "recipes." +
                    recipe + "()\n    cfg.train.micro_batch_size = 1\n    return cfg\n"}});
      for (const Finding& f : checked.findings) {
        if (f.severity == Severity::error) return f.rule;
      }
      return std::string();
    };
    CHECK(rule_of("qwen3_8b_pretrain_4gpu_h100_bf16_config").empty());
    CHECK(rule_of("qwen3_8b_pretrain_4gpus_config") == "unknown_recipe");
    CHECK(rule_of("llama3_8b_pretrain_2gpu_h100_bf16_config") == "other_model");
  }
}

}  // namespace
}  // namespace qplan
