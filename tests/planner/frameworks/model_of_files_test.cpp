// Models that Megatron's arguments describe: of every shape that it takes, and those that it
// refuses.

#include "planner/frameworks/model_of_files.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "models/parameters.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kBody =
    "torchrun --nnodes 2 --nproc_per_node=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --lr 1e-4 --train-iters 100 "
    "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer "
    "--vocab-size 50304";
const std::string kLlama = " --swiglu --position-embedding-type rope --disable-bias-linear";

struct Described {
  ModelSpec model;
  Json config;
};

Described described(const std::string& more) {
  const std::vector<ConfigText> texts{{"train.sh", kBody + more + "\n"}};
  const auto found = model_of_files(read_job_files(texts));
  REQUIRE(found);
  return {read_model(found->config, "test"), found->config};
}

Checked ask(const std::string& more) {
  const Described d = described(more);
  CheckQuestion question = question_of(d.model, d.config, 16);
  question.model_of_files = true;
  const std::vector<ConfigText> texts{{"train.sh", kBody + more + "\n"}};
  return check_cited(texts, question);
}

// Of attention alone, by hand: queries and the output are hidden x hidden, keys and values each
// hidden x groups x the width of a head; a bias of every projection.
std::int64_t attention_parameters(std::int64_t hidden, std::int64_t groups, std::int64_t width) {
  const std::int64_t keys = groups * width;
  return 2 * hidden * hidden + 2 * hidden * keys + 2 * hidden + 2 * keys;
}

}  // namespace

TEST_SUITE("a model that Megatron's arguments describe") {
  TEST_CASE("has grouped queries whatever its positions are") {
    const ModelSpec whole = described("").model;
    const ModelSpec grouped = described(" --group-query-attention --num-query-groups 8").model;
    CHECK(whole.architecture == "gpt2");
    CHECK(grouped.num_key_value_heads == 8);
    CHECK(grouped.position == PositionEmbedding::learned);
    CHECK(grouped.mlp == MlpKind::gelu);
    CHECK(count_parameters(whole).total() - count_parameters(grouped).total() ==
          32 * (attention_parameters(4096, 32, 128) - attention_parameters(4096, 8, 128)));
    // Without the switch the number says nothing.
    CHECK(described(" --num-query-groups 8").model == whole);
  }

  TEST_CASE("may have a gate without rotation, rotation without a gate, experts without either") {
    const ModelSpec gated = described(" --swiglu").model;
    CHECK(gated.mlp == MlpKind::swiglu);
    CHECK(gated.position == PositionEmbedding::learned);
    const ModelSpec turning = described(" --position-embedding-type rope --squared-relu").model;
    CHECK(turning.mlp == MlpKind::relu2);
    CHECK(turning.position == PositionEmbedding::rope);
    const ModelSpec experts = described(" --num-experts 8 --moe-router-topk 2").model;
    REQUIRE(experts.moe);
    CHECK(experts.moe->num_experts == 8);
    CHECK(experts.mlp == MlpKind::gelu);
    for (const std::string more : {" --swiglu", " --position-embedding-type rope --squared-relu",
                                   " --num-experts 8 --moe-router-topk 2 "
                                   "--expert-model-parallel-size 2 --disable-bias-linear "
                                   "--moe-token-dispatcher-type alltoall",
                                   " --group-query-attention --num-query-groups 8"}) {
      CAPTURE(more);
      const Checked checked = ask(more);
      CHECK(checked.says_plan);
      CHECK_MESSAGE(checked.count(Severity::error) == 0, findings_text(checked));
    }
    // Everything else is found all the same.
    CHECK(find(ask(" --swiglu --train-itres 100"), "unknown_option") != nullptr);
  }

  TEST_CASE("is not what another program's odd mixture of arguments says") {
    const std::vector<ConfigText> texts{
        {"train.sh",
         with_words(kBody, "pretrain_gpt.py", "train.py") + " --position-embedding-type rope\n"}};
    CHECK(!model_of_files(read_job_files(texts)));
    CHECK(!model_of_files(read_job_files(
        std::vector<ConfigText>{{"train.sh", kBody + " --position-embedding-type relative\n"}})));
    CHECK(described(" --position-embedding-type yarn").model.position == PositionEmbedding::rope);
    CHECK(described(" --quick-geglu --position-embedding-type rope").model.mlp == MlpKind::swiglu);
  }

  TEST_CASE("is judged with shapes that Megatron takes where it refuses those that are said") {
    struct Refused {
      std::string more, said;
    };
    for (const Refused& refused : std::vector<Refused>{
             {" --num-attention-heads 30", "--num-attention-heads must divide --hidden-size"},
             {kLlama + " --num-attention-heads 30",
              "--num-attention-heads must divide --hidden-size"},
             {" --group-query-attention --num-query-groups 5",
              "--num-query-groups must divide --num-attention-heads"},
             {kLlama + " --group-query-attention --num-query-groups 5",
              "--num-query-groups must divide --num-attention-heads"},
             {" --num-experts 4 --moe-router-topk 8 --disable-bias-linear",
              "--moe-router-topk chooses more"}}) {
      CAPTURE(refused.more);
      const Checked checked = ask(refused.more + " --train-itres 100");
      const Finding* const found = find(checked, "shapes_refused");
      REQUIRE(found != nullptr);
      CHECK(found->severity == Severity::error);
      CHECK(found->place.file == "train.sh");
      CHECK(found->place.line == 1);
      CHECK(found->message.find(refused.said) == 0);
      CHECK(find(checked, "unknown_option") != nullptr);
      CHECK(checked.count(Severity::error) == 2);
      CHECK(!checked.undecided.empty());
    }
    CHECK(find(ask(" --num-attention-heads 30 --kv-channels 128"), "shapes_refused") == nullptr);
  }

  TEST_CASE("is judged with sizes that a model may have where those that are said are none") {
    for (const std::string more :
         {"--num-layers 0", "--num-layers -4", "--num-layers 99999", "--num-attention-heads 0",
          "--hidden-size 0", "--ffn-hidden-size 99999999999", "--num-experts 99999",
          "--max-position-embeddings 99999999999"}) {
      for (const std::string& kind : {std::string(), kLlama}) {
        CAPTURE(more);
        const Checked checked = ask(kind + " " + more);
        const Finding* const found = find(checked, "shapes_refused");
        REQUIRE(found != nullptr);
        CHECK(found->place.line == 1);
        CHECK(found->message.find(more.substr(0, more.find(' '))) == 0);
        CHECK(!checked.undecided.empty());
      }
    }
    const Checked word = ask(" --num-layers abc");
    CHECK(find(word, "refused_value") != nullptr);
    CHECK(word.undecided == std::vector<std::string>{"--num-layers"});
    // What no argument says is asked for.
    CHECK(!model_of_files(read_job_files(
        std::vector<ConfigText>{{"train.sh", with_words(kBody, "--num-layers 32", "") + "\n"}})));
  }

  TEST_CASE("of key-value heads that tensor parallelism does not divide breaks that rule") {
    const Checked checked =
        ask(" --num-attention-heads 35 --kv-channels 128 --group-query-attention "
            "--num-query-groups 5 --tensor-model-parallel-size 2");
    CHECK(find(checked, "attention_heads") != nullptr);
    const Checked keys =
        ask(" --num-attention-heads 36 --kv-channels 128 --group-query-attention "
            "--num-query-groups 9 --tensor-model-parallel-size 2");
    CHECK_MESSAGE(find(keys, "key_value_heads") != nullptr, findings_text(keys));
  }
}

TEST_SUITE("Megatron's arguments") {
  TEST_CASE("ramp a batch in whole steps, by three values") {
    const auto ramped = [](const std::string& ramp) {
      return ask(" --global-batch-size 128 --rampup-batch-size " + ramp);
    };
    CHECK(find(ramped("32 32 100000"), "ramp_steps") == nullptr);
    REQUIRE(find(ramped("30 32 100000"), "ramp_steps") != nullptr);
    CHECK(find(ramped("30 32 100000"), "ramp_steps")->message.find("30 to 128 by 32") !=
          std::string::npos);
    CHECK(find(ramped("256 32 100000"), "ramp_steps") != nullptr);
    const Checked two = ramped("32 32");
    REQUIRE(find(two, "refused_value") != nullptr);
    CHECK(find(two, "refused_value")->message.find("must be followed by 3 values") !=
          std::string::npos);
    const Checked four = ramped("32 32 100000 5");
    REQUIRE(find(four, "stray_word") != nullptr);
    CHECK(find(four, "stray_word")->message.find("takes 3 values, and 5 behind it") !=
          std::string::npos);
  }

  TEST_CASE("change a batch by steps, of which the last is the plan's") {
    const Described d = described("");
    CheckQuestion question = question_of(d.model, d.config, 16);
    question.model_of_files = true;
    const auto stepped = [&](const std::string& steps, const std::string& more = "") {
      const std::string words = with_words(kBody, "--global-batch-size 64 ", "");
      const std::vector<ConfigText> texts{
          {"train.sh", words + " --step-batch-size-schedule \"" + steps + "\"" + more + "\n"}};
      return check_cited(texts, question);
    };
    for (const std::string steps :
         {"0:64 1B:128", "0:64,2.4B:128", "1b:128 0:64", "0:128", "0:64 500k:96 1.5t:128"}) {
      CAPTURE(steps);
      CHECK(stepped(steps).plan.global_batch_size == 128);
      CHECK(find(stepped(steps), "bad_value") == nullptr);
      CHECK(find(stepped(steps), "batch_steps") == nullptr);
    }
    const auto refused = [&](const std::string& steps) {
      const Checked checked = stepped(steps);
      const Finding* const f = find(checked, "bad_value");
      return f == nullptr ? std::string() : f->message;
    };
    CHECK(refused("100:64") == "--step-batch-size-schedule must begin at 0 tokens, not '100:64'");
    CHECK(refused("64") == "--step-batch-size-schedule must be of entries TOKENS:BATCH, not '64'");
    CHECK(
        refused("0:64;1B:128") ==
        "--step-batch-size-schedule must be of entries TOKENS:BATCH in numbers, not '0:64;1B:128'");
    CHECK_FALSE(refused("0:64 0:128").empty());
    CHECK_FALSE(refused("0:0").empty());
    CHECK_FALSE(refused("0:64 1X:128").empty());
    // While it lasts.
    REQUIRE(find(stepped("0:63 1B:128"), "batch_steps") != nullptr);
    CHECK(find(stepped("0:63 1B:128"), "batch_steps")->severity == Severity::error);
    REQUIRE(find(stepped("0:63 1B:128", " --load a"), "batch_steps") != nullptr);
    CHECK(find(stepped("0:63 1B:128", " --load a"), "batch_steps")->severity == Severity::warning);
    CHECK(find(stepped("0:64 1B:63 2B:128"), "batch_steps")->severity == Severity::warning);
    CHECK(find(stepped("0:64 1B:127"), "batch_steps") == nullptr);  // a rule of plans
    CHECK(find(stepped("0:64", " --global-batch-size 64"), "options_exclude") != nullptr);
    CHECK(find(stepped("0:64", " --decrease-batch-size-if-needed"), "options_exclude") != nullptr);
  }

  TEST_CASE("of Llama 3.0 are not asked to scale positions as 3.1's") {
    const auto missing = [](const std::string& tokenizer) {
      const Checked checked = ask_text(
          "train.sh",
          "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
          "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
          "--num-query-groups 8 --swiglu --position-embedding-type rope --rotary-base 500000 "
          "--disable-bias-linear --normalization RMSNorm --untie-embeddings-and-output-weights "
          "--seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 "
          "--global-batch-size 64 --bf16 --lr 1e-4 --train-iters 10 "
          "--tensor-model-parallel-size 4 --use-distributed-optimizer "
          "--tokenizer-type HuggingFaceTokenizer --tokenizer-model " +
              tokenizer + "\n",
          "llama3-8b", 8);
      return std::any_of(checked.findings.begin(), checked.findings.end(), [](const Finding& f) {
        return f.message.find("--use-rope-scaling is missing") == 0;
      });
    };
    CHECK(missing("meta-llama/Llama-3.1-8B"));
    CHECK(missing("/models/tokenizer"));
    CHECK_FALSE(missing("meta-llama/Meta-Llama-3-8B"));
    CHECK_FALSE(missing("/models/llama-3-8b-instruct"));
  }
}

}  // namespace qplan
