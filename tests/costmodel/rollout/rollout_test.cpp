#include "costmodel/rollout/rollout.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "costmodel/price/price.h"
#include "models/error.h"
#include "tests/complaint.h"
#include "tests/costmodel/machine.h"

using namespace qplan;

namespace {

struct Engine {
  std::string model;
  std::string_view hardware;
  std::string layout;
};

// Dense, experts sliced and spread, latent attention, windows with sinks, a recurrent hybrid.
const std::vector<Engine>& engines() {
  static const std::vector<Engine> list = {
      {"llama3-8b", "h100-sxm", "tp1"},         {"qwen3-32b", "h100-sxm", "tp4"},
      {"qwen3-30b-a3b", "h200-sxm", "tp2"},     {"qwen3-30b-a3b", "h100-sxm", "tp1 dp8 ep8"},
      {"deepseek-v3", "gb200", "tp16"},         {"gpt-oss-20b", "h100-sxm", "tp1"},
      {"qwen3-next-80b-a3b", "h200-sxm", "tp4"}};
  return list;
}

template <class Visit>
void each_engine(Visit visit) {
  for (const Engine& engine : engines()) {
    CAPTURE(engine.model);
    CAPTURE(engine.layout);
    const ModelSpec model = load_model(engine.model);
    const RolloutLayout layout = parse_rollout_layout(engine.layout);
    REQUIRE(rollout_fault(model, layout).empty());
    visit(model, machine(engine.hardware), layout);
  }
}

double mean_of(const std::vector<std::int64_t>& lengths) {
  return static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})) /
         static_cast<double>(lengths.size());
}

}  // namespace

TEST_CASE("an engine's stages share its layers, and work on a batch each") {
  const ModelSpec model = load_model("llama3-70b");
  const auto engine = [&](const std::string& layout) {
    return RolloutModel(model, machine("h100-sxm"), parse_rollout_layout(layout), {});
  };
  const RolloutModel whole = engine("tp4"), staged = engine("tp4 pp2");
  CHECK(parse_rollout_layout("tp4 pp2").gpus() == 8);
  CHECK(to_string(parse_rollout_layout("tp4 pp2")).starts_with("tp4 pp2 "));
  CHECK(staged.weights().value() == doctest::Approx(whole.weights().value() / 2));
  CHECK(staged.cache_bytes(4096).value() == doctest::Approx(whole.cache_bytes(4096).value() / 2));
  // Each of two batches of 32 passes all layers in the time of one of 32; but for the host.
  const double host = 32 * microseconds(10).value();
  CHECK(staged.step(64, 2048).value() ==
        doctest::Approx(whole.step(32, 2048).value() + host).epsilon(1e-9));
}

TEST_CASE("answers have the stated mean and none is longer than the longest") {
  for (const double mean : {50.0, 900.0, 3053.0, 3900.0}) {
    for (const std::int64_t n : {16, 128, 4096}) {
      const ResponseLengths lengths{.mean = mean, .max = 3946};
      const std::vector<std::int64_t> drawn = lengths.quantiles(n);
      CAPTURE(mean);
      CHECK(std::is_sorted(drawn.begin(), drawn.end()));
      CHECK(drawn.front() >= 1);
      CHECK(drawn.back() <= 3946);
      CHECK(mean_of(drawn) == doctest::Approx(mean).epsilon(0.001));
    }
  }
  const ResponseLengths all_alike{.mean = 64, .max = 64};
  CHECK(mean_of(all_alike.quantiles(10)) == doctest::Approx(64));
  const ResponseLengths stated{.stated = {7, 3, 5}};
  CHECK(stated.quantiles(3) == std::vector<std::int64_t>{3, 5, 7});
}

TEST_CASE("a decoding step reads weights and caches at least, and more work never takes less") {
  each_engine(
      [](const ModelSpec& model, const HardwareProfile& hardware, const RolloutLayout& layout) {
        const RolloutModel engine(model, hardware, layout, JobFacts{});
        // With so many sequences every expert has tokens: all weights are read.
        const std::int64_t many = 512;
        const Bytes read =
            engine.weights() + engine.cache_bytes(2048) * static_cast<double>(many / layout.dp);
        CHECK(engine.step(many, 2048) > read / hardware.gpu.memory_bandwidth);
        CHECK(engine.step(many, 4096) >= engine.step(many, 1024));
        Seconds before;
        for (const std::int64_t n : {1, 16, 256, 1024}) {
          const Seconds step = engine.step(n * layout.gpus(), 1024);
          // Experts that have rows cost the more the more they are; rows then come nearly free.
          CHECK(step >= before * 0.98);
          before = step;
        }
      });
}

TEST_CASE("what tokens attend to, step by step, is what a whole sequence does") {
  // Of the pairs that a causal sequence counts each diagonal half.
  const std::int64_t length = 300;
  double step_by_step = 0;
  for (std::int64_t t = 1; t <= length; ++t) {
    step_by_step += score_pairs({.batch = 1, .heads = 1, .q_len = 1, .kv_len = t});
  }
  const double whole = score_pairs({.batch = 1, .heads = 1, .q_len = length, .kv_len = length});
  CHECK(step_by_step == doctest::Approx(whole));
}

TEST_CASE("experts of few rows take no longer than those of more") {
  for (const std::string_view name : {"a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200", "gb200"}) {
    CAPTURE(name);
    for (const std::int64_t width : {192, 768, 4096}) {
      Seconds before;
      for (std::int64_t rows = 1; rows <= 512; rows *= 2) {
        const GroupedGemm work{.groups = 128, .rows = 128 * rows, .n = width, .k = 4096};
        const Seconds time = grouped_gemm_price(work, machine(name)).time;
        CHECK(time >= before);
        before = time;
      }
    }
  }
}

TEST_CASE("longer answers, more of them and fewer at once never make a rollout shorter") {
  each_engine(
      [](const ModelSpec& model, const HardwareProfile& hardware, const RolloutLayout& layout) {
        const RolloutModel engine(model, hardware, layout, JobFacts{});
        const RolloutWork work{
            .sequences = 64, .prompts = 8, .prompt_len = 200, .response = {500, 2000}};
        const RolloutCost cost = engine.cost(work);
        CHECK(cost.tail < cost.decode);
        CHECK(cost.running <= 64);
        RolloutWork longer = work, more = work, steady = work;
        longer.response.mean = 1000;
        more.sequences = 128;
        steady.in_flight = 2;
        CHECK(engine.cost(longer).time() > cost.time());
        CHECK(engine.cost(more).time() >= cost.time());
        // Without the last few that keep an engine waiting.
        CHECK(engine.cost(steady).decode < cost.decode);
        RolloutLayout narrow = layout;
        narrow.max_running = 4;
        const RolloutModel small(model, hardware, narrow, JobFacts{});
        CHECK(small.cost(work).decode > cost.decode);
        CHECK(small.cost(work).running == std::int64_t{4} * layout.dp);
      });
}

TEST_CASE("an engine's weights are the model's, and more GPUs hold less of them each") {
  const ModelSpec model = load_model("qwen3-32b");
  const auto weights = [&](const char* layout) {
    return RolloutModel(model, machine("h100-sxm"), parse_rollout_layout(layout), JobFacts{})
        .weights();
  };
  CHECK(weights("tp1").value() ==
        doctest::Approx(2.0 * static_cast<double>(count_parameters(model).total())));
  CHECK(weights("tp8") < weights("tp1") * 0.13);
  CHECK(weights("tp1 fp8") < weights("tp1") * 0.55);
  const ModelSpec experts = load_model("qwen3-30b-a3b");
  const RolloutModel spare(experts, machine("h100-sxm"),
                           parse_rollout_layout("tp8 ep8 redundant16"), JobFacts{});
  const RolloutModel exact(experts, machine("h100-sxm"), parse_rollout_layout("tp8 ep8"),
                           JobFacts{});
  CHECK(spare.weights() > exact.weights());
  // 70 billion parameters in 16 bits leave an 80 GB GPU no cache.
  const ModelSpec large = load_model("llama3-70b");
  CHECK(RolloutModel(large, machine("h100-sxm"), {}, JobFacts{}).cache_room().value() == 0);
}

TEST_CASE("a rollout's layout is read as it is written, and what it cannot be is said") {
  for (const char* text : {"tp1 share0.85 running256", "tp2 share0.6 running1024",
                           "tp1 dp8 ep8 redundant16 fp8 share0.7 running64"}) {
    CHECK(to_string(parse_rollout_layout(text)) == text);
  }
  CHECK(complaint_of([] { parse_rollout_layout("tp2 cp2"); }).find("'cp2'") != std::string::npos);
  CHECK(complaint_of([] { parse_rollout_layout("share1.5"); }).find("1.5") != std::string::npos);
  CHECK(complaint_of([] { parse_rollout_layout("tp0"); }).find("tp") != std::string::npos);
  const ModelSpec dense = load_model("llama3-8b"), moe = load_model("qwen3-30b-a3b");
  CHECK(rollout_fault(dense, parse_rollout_layout("tp5")).find("heads") != std::string::npos);
  CHECK(rollout_fault(dense, parse_rollout_layout("tp2 ep2")).find("experts") != std::string::npos);
  CHECK(rollout_fault(moe, parse_rollout_layout("tp4 ep2")).find("all 4") != std::string::npos);
  CHECK(!rollout_fault(moe, parse_rollout_layout("tp8 ep8 redundant3")).empty());
}
