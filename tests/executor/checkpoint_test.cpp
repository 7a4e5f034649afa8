// A run that is saved and goes on under another plan is the run that was never stopped.

#include "executor/checkpoint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "executor/run.h"
#include "tests/complaint.h"
#include "tests/temporary_folder.h"

using namespace qplan;
namespace fs = std::filesystem;

namespace {

RunResult train(const ModelSpec& model, const std::string& plan, int steps,
                const std::string& load = "", const std::string& save = "", int interval = 0) {
  ParallelPlan defaults;
  defaults.precision = Precision::fp32;
  defaults.routing = Routing::natural;
  defaults.global_batch_size = 4;
  defaults.seq_len = 16;
  RunOptions options;
  options.steps = steps;
  options.optimizer.adamw = {.lr = 1e-2, .weight_decay = 0.1};
  options.weights = seeded_weights(model, 1);
  options.tokens = seeded_tokens(1, model.vocab_size);
  options.load = load;
  options.save = save;
  options.save_interval = interval;
  options.keep_weights = true;
  options.plan_file = {{"short", plan}};
  return run(model, parse_plan(plan, defaults), {.moe_imbalance = 8}, options);
}

double largest_difference(const std::vector<std::vector<float>>& a,
                          const std::vector<std::vector<float>>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[i].size(); ++j) {
      largest = std::max(largest, std::abs(static_cast<double>(a[i][j]) - b[i][j]));
    }
  }
  return largest;
}

struct Change {
  std::string model, before, after;
};

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<float> negated(std::span<const float> values) {
  std::vector<float> result(values.begin(), values.end());
  for (float& x : result) x = -x;
  return result;
}

// Of arenas that only their backend can read, as a GPU's: they hold minus what is meant.
ArrayAccess negated_arrays() {
  return {[](const Tensor& from, std::span<float> out) {
            host_arrays().read(from, out);
            std::ranges::copy(negated(out), out.begin());
          },
          [](std::span<const float> values, const Tensor& to) {
            host_arrays().write(negated(values), to);
          }};
}

std::vector<float> moments_of(const OptimizerState& state) {
  std::vector<float> all;
  for (const Tensor& moment : {state.moment1, state.moment2}) {
    std::vector<float> own(static_cast<std::size_t>(moment.elements()));
    host_arrays().read(moment, own);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace

TEST_CASE("a run goes on from a checkpoint under another plan with the same losses and weights") {
  for (const Change& c : std::initializer_list<Change>{
           {"tiny", "mbs1", "mbs1"},
           {"tiny", "mbs1", "tp4 sp"},
           {"tiny", "tp8", "dp4 zero3"},
           {"tiny", "dp4 zero1", "pp4 1f1b"},
           {"tiny", "tp2 pp2 dp2 zero2 sp", "dp2 mbs2"},
           {"tiny", "dp2 zero3 recompute=full", "tp2 dp2 zero1"},
           {"tiny", "pp2 dualpipe", "dp2"},
           {"tiny", "dp2 zero2 offload=optimizer:0.4", "tp2"},
           {"tiny", "dp2", "dp2 zero1 offload=optimizer:0.4"},
           {"tiny-moe", "dp4 ep4 zero1", "tp2 sp ep2 etp1"},
           {"tiny-moe", "tp2 dp2 ep2 etp2 sp", "pp2 dp2 ep2 zero3"},
           {"tiny-vl", "tp2 dp2 ep2 etp1 sp zero3", "pp2 dp2 mbs2"},
           {"tiny", "lora2 dora tp2", "lora2 dora dp2 zero3"},
           {"tiny", "lora2 lora_embeddings dp2 zero1", "lora2 lora_embeddings pp2 1f1b"}}) {
    CAPTURE(c.model);
    CAPTURE(c.before);
    CAPTURE(c.after);
    const ModelSpec model = load_model(c.model);
    const TemporaryFolder folder;
    const RunResult first = train(model, c.before, 2, "", folder.path());
    CHECK(fs::exists(folder.file("step-00000002/plan.json")));
    const RunResult second = train(model, c.after, 2, folder.path());
    const RunResult whole = train(model, c.before, 4);
    CHECK(first.loss[1] == doctest::Approx(whole.loss[1]).epsilon(1e-6));
    CHECK(second.loss[0] == doctest::Approx(whole.loss[2]).epsilon(1e-5));
    CHECK(second.loss[1] == doctest::Approx(whole.loss[3]).epsilon(1e-5));
    // AdamW divides by the gradient's size: where that is near 0 rounding turns a step of the
    // learning rate, 0.01, hence not tighter.
    CHECK(largest_difference(second.weights, whole.weights) < 2e-3);
  }
}

TEST_CASE("a checkpoint of adapters holds what is trained, and is no other adapters'") {
  const TemporaryFolder folder;
  const ModelSpec model = load_model("tiny");
  train(model, "dp2 lora2", 1, "", folder.path());
  const ParallelPlan plan = parse_plan("lora2");
  const Trained trained = trained_by(plan);
  const Checkpoint checkpoint(folder.path(), model, trained);
  for (const ModelParameter& it : model_parameters(model, plan.lora())) {
    CHECK(checkpoint.holds(it) == (it.parameter.adapter != Adapter::none));
  }
  const auto loads = [&](const Trained& other) {
    return complaint_of([&] { Checkpoint(folder.path(), model, other); });
  };
  CHECK(loads(trained_by(parse_plan("lora4"))).find("not of these adapters of tiny") !=
        std::string::npos);
  CHECK(loads(trained_by(parse_plan("lora2 dora"))) != "accepted");
  CHECK(loads(trained_by(parse_plan("lora2 lora_embeddings"))) != "accepted");
  CHECK(loads({}) != "accepted");
  CHECK(loads(trained) == "accepted");
  // Frozen weights are those that the run is given.
  const RunResult same = train(model, "lora2", 1, folder.path());
  CHECK(same.loss[0] == doctest::Approx(train(model, "lora2", 2).loss[1]).epsilon(1e-6));
}

TEST_CASE("under the same plan a resumed run is the same bit by bit") {
  const TemporaryFolder folder;
  const ModelSpec model = load_model("tiny-moe");
  const std::string plan = "tp2 dp2 ep2 etp1 zero1 sp";
  train(model, plan, 2, "", folder.path());
  const RunResult resumed = train(model, plan, 2, folder.path()), whole = train(model, plan, 4);
  CHECK(largest_difference(resumed.weights, whole.weights) == 0);
  CHECK(resumed.loss[1] == whole.loss[3]);
}

TEST_CASE("checkpoints are saved at every interval and at the end, and the latest is loaded") {
  const TemporaryFolder folder;
  const ModelSpec model = load_model("tiny");
  train(model, "dp2", 5, "", folder.path(), 2);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"step-00000002", "step-00000004", "step-00000005"});
  CHECK(Checkpoint(folder.path(), model).facts().step == 5);
  CHECK(Checkpoint(folder.path(), model).facts().sequences == 20);
  CHECK(Checkpoint(folder.file("step-00000002"), model).facts().step == 2);
  // One that was not finished does not count.
  fs::create_directories(folder.file("step-00000009.partial"));
  CHECK(Checkpoint(folder.path(), model).facts().step == 5);
}

TEST_CASE("another batch size reads on where the data was left") {
  const TemporaryFolder folder;
  const ModelSpec model = load_model("tiny");
  train(model, "dp2", 2, "", folder.path());  // sequences 0 to 7
  train(model, "dp3 gbs6", 1, folder.path(), folder.path());
  CHECK(Checkpoint(folder.path(), model).facts().step == 3);
  CHECK(Checkpoint(folder.path(), model).facts().sequences == 14);

  const TokenSource tokens = seeded_tokens(1, model.vocab_size);
  std::vector<std::int64_t> seen;
  RunOptions options;
  options.load = folder.file("step-00000002");
  options.tokens = [&](std::int64_t sequence, std::span<std::int32_t> ids) {
    seen.push_back(sequence);
    tokens(sequence, ids);
  };
  ParallelPlan plan;
  plan.precision = Precision::fp32;
  run(model, parse_plan("dp3 gbs6 seq16", plan), {}, options);
  CHECK(seen == std::vector<std::int64_t>{8, 9, 10, 11, 12, 13});
}

TEST_CASE("a checkpoint is the same, byte by byte, however often it is written") {
  const TemporaryFolder one, two;
  const ModelSpec model = load_model("tiny");
  train(model, "tp2 dp2 zero1", 1, "", one.path());
  train(model, "tp2 dp2 zero1", 1, "", two.path());
  for (const auto& entry : fs::directory_iterator(one.file("step-00000001"))) {
    const std::string name = entry.path().filename().string();
    CHECK(contents(entry.path()) == contents(two.file("step-00000001/" + name)));
  }
}

TEST_CASE("arenas are read and written by their backend alone, states on the host without it") {
  const TemporaryFolder by_host, by_backend;
  const ModelSpec model = load_model("tiny-moe");
  ParallelPlan plan;
  plan.precision = Precision::fp32;
  const std::string line = "tp2 sp dp2 ep2 etp1 zero1 offload=optimizer:0.4 gbs4 seq16";
  plan = parse_plan(line, plan);
  train(model, line, 1, "", by_host.path());
  const Checkpoint checkpoint(by_host.path(), model);
  const StepProgram program = build_step_program(model, plan, recipe_of(RecipeKind::qplan), {});
  const RankJob job{.model = model, .plan = plan, .program = program, .optimizer = {}};
  const RankProgram commands = rank_program(program, 0);
  const ParameterIndex index(model);
  CheckpointWriter writer(by_backend.path(), model, checkpoint.facts());
  for (std::int64_t r = 0; r < plan.world(); ++r) {
    CpuRank open(job, commands, r), closed(job, commands, r);
    for (int i = 0; i < std::ssize(commands.instances); ++i) {
      for (const auto& [rank, arrays] :
           {std::pair<CpuRank&, ArrayAccess>{open, host_arrays()}, {closed, negated_arrays()}}) {
        load_weights(rank, index, i, weights_of(checkpoint), arrays);
        load_moments(rank, index, i, checkpoint, arrays);
      }
      if (!open.holds_states(i)) continue;
      CHECK(open.offloaded(i) > 0);
      CHECK(moments_of(closed.host_state(i)) == moments_of(open.host_state(i)));
      CHECK(moments_of(closed.device_state(i)) == negated(moments_of(open.device_state(i))));
    }
    writer.write_rank(r, saved_states(closed, index, negated_arrays()));
  }
  writer.finish(plan.world(), {});
  for (std::int64_t r = 0; r < plan.world(); ++r) {
    const std::string name = "step-00000001/rank-0000" + std::to_string(r) + ".safetensors";
    CHECK(contents(by_backend.file(name)) == contents(by_host.file(name)));
  }
}

TEST_CASE("what is wrong with a checkpoint is said") {
  const TemporaryFolder folder;
  const ModelSpec model = load_model("tiny");
  const auto loading = [&](const ModelSpec& m) {
    return complaint_of([&] { const Checkpoint c(folder.path(), m); });
  };
  CHECK(loading(model) == "'" + folder.path() +
                              "' holds no checkpoint; name a folder that --save "
                              "wrote");
  train(model, "dp2 zero1", 1, "", folder.path());
  const std::string here = folder.file("step-00000001");
  CHECK(loading(model) == "accepted");
  CHECK(loading(load_model("tiny-moe")) ==
        "'" + here +
            "' is a checkpoint of tiny (230080 parameters), not of tiny-moe (330432 "
            "parameters)");
  const std::string file = here + "/rank-00001.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  CHECK(loading(model).find("is cut off") != std::string::npos);
  fs::remove(file);
  CHECK(loading(model).find("cannot open '" + file) != std::string::npos);
  fs::copy(here + "/rank-00000.safetensors", file);
  CHECK(loading(model).find("it is damaged") != std::string::npos);
}

TEST_CASE("a checkpoint is not finished before the files of all ranks are there") {
  const TemporaryFolder folder;
  const std::string complaint = complaint_of([&] {
    CheckpointWriter writer(folder.path(), load_model("tiny"), CheckpointFacts{});
    writer.write_rank(0, {});
    writer.finish(2, {});
  });
  CHECK(complaint.find("lacks the file of rank 1; --save must name a folder that the machines") !=
        std::string::npos);
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("two runs do not save to one folder at once") {
  const TemporaryFolder folder;
  const std::string root = folder.file("checkpoints");
  {
    const SaveClaim first(root);
    CHECK(complaint_of([&] { const SaveClaim second(root); }) ==
          "another run saves to '" + root + "' now; give --save a folder of this run's own");
    const SaveClaim elsewhere(folder.file("others"));
  }
  const SaveClaim after(root);
  CHECK(fs::is_empty(root));
}

TEST_CASE("a run that cannot save leaves nothing half-written") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("taken")) << "a file";
  const std::string complaint =
      complaint_of([&] { train(load_model("tiny"), "dp2", 1, "", folder.file("taken")); });
  CHECK(complaint.find("cannot create") != std::string::npos);
}
