#include "models/program/step_program.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

using namespace qplan;

namespace {

StepProgram program_of(const std::string& model, const std::string& line,
                       RecipeKind recipe = RecipeKind::megatron) {
  return build_step_program(load_model(model), parse_plan(line), recipe_of(recipe), {});
}

// Decoder layers that the program's stages hold in all.
int layers_in(const StepProgram& program) {
  int layers = 0;
  for (const Stage& stage : program.stages) {
    for (const Stage::Part& run : stage.runs) {
      if (program.shapes[static_cast<std::size_t>(run.block)].kind == BlockKind::decoder) {
        layers += run.count;
      }
    }
  }
  return layers;
}

std::vector<int> layers_of(const std::string& model, const std::string& line) {
  return stage_layers(load_model(model), parse_plan(line));
}

bool same_ops(const OpList& a, const OpList& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Op& x, const Op& y) {
    return x.work == y.work && x.stream == y.stream && x.after == y.after;
  });
}

}  // namespace

TEST_CASE("layers that divide are spread evenly") {
  CHECK(layers_of("llama3-8b", "pp4 gbs8") == std::vector<int>{8, 8, 8, 8});
  CHECK(layers_of("llama3-8b", "pp2 vpp4 interleaved gbs8") == std::vector<int>(8, 4));
}

TEST_CASE("where layers do not divide, embedding and loss count as one each") {
  // Llama-3 405B: 126 layers + 2 over 16 stages of 8, so the two ends hold 7.
  std::vector<int> expected(16, 8);
  expected.front() = expected.back() = 7;
  CHECK(layers_of("llama3-405b", "pp16 gbs16") == expected);
}

TEST_CASE("a given layout is used as it is") {
  ParallelPlan plan = parse_plan("pp2 gbs2");
  plan.pipeline_layout = {3, 1};
  CHECK(stage_layers(load_model("tiny"), plan) == std::vector<int>{3, 1});
}

TEST_CASE("every split of every model adds up to its layers") {
  for (const std::string& name : model_names()) {
    const ModelSpec model = load_model(name);
    for (const int pp : {1, 2, 3, 4, 5, 7, 8, 16}) {
      if (pp > model.num_layers) continue;
      ParallelPlan plan;
      plan.pp = pp;
      const std::vector<int> layers = stage_layers(model, plan);
      CAPTURE(name);
      CAPTURE(pp);
      CHECK(layers.size() == static_cast<std::size_t>(pp));
      CHECK(std::accumulate(layers.begin(), layers.end(), 0) == model.num_layers);
      CHECK(*std::min_element(layers.begin(), layers.end()) >= 0);
    }
  }
}

TEST_CASE("only the first stage embeds and only the last has the head") {
  const StepProgram program = program_of("llama3-8b", "pp4 gbs8");
  std::vector<std::set<BlockKind>> kinds;
  for (const Stage& stage : program.stages) {
    kinds.emplace_back();
    for (const Stage::Part& run : stage.runs) {
      kinds.back().insert(program.shapes[static_cast<std::size_t>(run.block)].kind);
    }
  }
  CHECK(kinds[0] == std::set{BlockKind::embedding, BlockKind::decoder});
  CHECK(kinds[1] == std::set{BlockKind::decoder});
  CHECK(kinds[3] == std::set{BlockKind::decoder, BlockKind::head});
}

TEST_CASE("equal layers are one block: a dense model is three and the step's edge") {
  CHECK(program_of("llama3-70b", "tp2 pp4 dp2 gbs8").blocks.size() == 4);
  // DeepSeek-V3 has dense and expert layers, and to predict one token more a lookup and a layer.
  CHECK(program_of("deepseek-v3", "pp4 gbs8").blocks.size() == 7);
}

TEST_CASE("a program holds all layers, whatever the schedule") {
  for (const char* line : {"pp4 gbs8", "pp2 vpp4 interleaved gbs8", "pp4 gbs8 zbv vpp2"}) {
    CHECK(layers_in(program_of("llama3-8b", line)) == 32);
  }
}

TEST_CASE("dualpipe's program holds every layer twice, the copies alike") {
  const StepProgram program = program_of("llama3-8b", "pp4 gbs8 dualpipe zero1", RecipeKind::qplan);
  CHECK(layers_in(program) == 2 * 32);
  REQUIRE(program.stages.size() == 8);
  for (std::size_t piece = 0; piece < 4; ++piece) {
    const auto &once = program.stages[piece].runs, &again = program.stages[piece + 4].runs;
    REQUIRE(once.size() == again.size());
    for (std::size_t i = 0; i < once.size(); ++i) {
      CHECK(once[i].block == again[i].block);
      CHECK(once[i].count == again[i].count);
    }
  }
  CHECK(schedule_fault(program.schedule, program.actions) == "");
}

TEST_CASE("recomputing some layers splits a stage in two runs") {
  const StepProgram program = program_of("llama3-8b", "pp4 gbs8 recompute=full:3");
  CHECK(program.stages[1].runs.size() == 2);
  CHECK(program.stages[1].runs[0].count == 3);
  CHECK(program.stages[1].runs[1].count == 5);
}

TEST_CASE("fully sharded stages begin with a gather and end with one for backward") {
  const StepProgram program = program_of("llama3-8b", "dp8 zero3 gbs8", RecipeKind::fsdp2);
  const auto kind = [&](const Stage::Part& run) {
    return program.shapes[static_cast<std::size_t>(run.block)].kind;
  };
  CHECK(kind(program.stages[0].runs.front()) == BlockKind::stage_entry);
  CHECK(kind(program.stages[0].runs.back()) == BlockKind::stage_exit);
  CHECK(layers_in(program) == 32);
}

TEST_CASE(
    "a boundary carries one microbatch's hidden states, divided by tp only when sequence "
    "parallel") {
  const ModelSpec model = load_model("llama3-8b");
  const auto bytes = [&](const char* line) {
    return boundary_bytes(model,
                          base_shape(model, parse_plan(line), recipe_of(RecipeKind::megatron), 1))
        .value();
  };
  CHECK(bytes("tp4 pp2 gbs8 seq4096") == 4096.0 * 4096 * 2);
  CHECK(bytes("tp4 pp2 gbs8 seq4096 sp") == 4096.0 * 4096 * 2 / 4);
  CHECK(bytes("cp2 pp2 mbs2 gbs8 seq4096") == 4096.0 * 4096 * 2);
  // Norms in fp32 beside bitsandbytes' layers leave hidden states so, and that is what is sent.
  CHECK(bytes("pp2 gbs8 seq4096 lora8 frozen=nf4 fp32_norms") == 4096.0 * 4096 * 4);
  CHECK(bytes("pp2 gbs8 seq4096 lora8 frozen=int4 fp32_norms") == 4096.0 * 4096 * 2);
}

TEST_CASE("the first part gathers, then runs forward; the last runs backward, then reduces") {
  const StepProgram program = program_of("llama3-8b", "dp8 zero1 gbs8");
  const Block& layer = *std::find_if(program.blocks.begin(), program.blocks.end(),
                                     [](const Block& b) { return b.name == "dense layer"; });
  CHECK(part_ops(layer, Part::forward_first).size() == layer.gather.size() + layer.forward.size());
  CHECK(part_ops(layer, Part::backward_last).size() == layer.backward.size() + layer.reduce.size());
  CHECK_FALSE(layer.gather.empty());
  CHECK_FALSE(layer.reduce.empty());
  CHECK(same_ops(part_ops(layer, Part::norm), layer.norm));
}

TEST_CASE("an action runs the overlapped part only where its stage starts or ends the step") {
  Action a{ActionKind::forward, 0, 0, true, false};
  CHECK(part_of(a, true, true) == Part::forward_first);
  CHECK(part_of(a, false, true) == Part::forward);
  a.first = false;
  CHECK(part_of(a, true, true) == Part::forward);
  const Action b{ActionKind::backward, 0, 0, false, true};
  CHECK(part_of(b, true, true) == Part::backward_last);
  CHECK(part_of(b, true, false) == Part::backward);
  const Action w{ActionKind::backward_weight, 0, 0, false, true};
  CHECK(part_of(w, false, true) == Part::backward_weight_last);
  CHECK(part_of({ActionKind::backward_input, 0, 0, false, true}, false, true) ==
        Part::backward_input);
}

TEST_CASE("zero-bubble's halves hold every backward op once, and weight gradients only in W") {
  for (const char* name : {"tiny", "tiny-moe", "tiny-mla"}) {
    CAPTURE(name);
    for (const Block& block : program_of(name, "tp2 pp2 ep1 gbs4 sp").blocks) {
      const BackwardSplit split = split_backward(block);
      CHECK(split.input.size() + split.weight.size() == block.backward.size());
      for (const Op& op : split.weight) {
        for (const SlotId id : op.writes) {
          CHECK(block.slots[static_cast<std::size_t>(id)].storage != Storage::wire);
        }
      }
      // Each weight's product with a contracted token axis is in W: none writes gradients in B,
      // except norms, whose kernel also makes the gradient that goes on.
      for (const Op& op : split.input) {
        if (!std::holds_alternative<Gemm>(op.work)) continue;
        for (const SlotId id : op.writes) {
          CHECK(block.slots[static_cast<std::size_t>(id)].storage != Storage::gradient);
        }
      }
    }
  }
}

TEST_CASE("the weight half of a dense layer is its products: as many FLOPs as forward's") {
  const StepProgram program = program_of("llama3-8b", "pp2 gbs4");
  for (const Block& block : program.blocks) {
    if (block.name != "dense layer") continue;
    double forward = 0, weight = 0;
    for (const Op& op : block.forward) {
      if (std::holds_alternative<Gemm>(op.work)) forward += flops(op.work).value();
    }
    for (const Op& op : split_backward(block).weight) weight += flops(op.work).value();
    CHECK(weight == forward);
  }
}

TEST_CASE("the fingerprint changes with whatever is executed") {
  std::set<std::uint64_t> prints;
  const std::vector<std::string> lines = {"tp2 pp2 dp2 zero1 gbs8",
                                          "tp2 pp2 dp2 zero1 gbs8 sp",
                                          "tp2 pp2 dp2 zero0 gbs8",
                                          "tp2 pp2 dp2 zero1 gbs16",
                                          "tp2 pp2 dp2 zero1 mbs2 gbs8",
                                          "tp2 pp2 dp2 zero1 gbs8 recompute=full",
                                          "tp2 pp2 dp2 zero1 gbs8 gpipe",
                                          "tp4 pp2 dp1 zero1 gbs8",
                                          "tp2 pp2 dp2 zero1 gbs8 overlap=grad"};
  for (const std::string& line : lines) prints.insert(fingerprint(program_of("tiny", line)));
  CHECK(prints.size() == lines.size());
  CHECK(fingerprint(program_of("tiny", lines[0])) == fingerprint(program_of("tiny", lines[0])));
}

TEST_CASE("V-shaped schedules put two chunks on a rank, interleaving vpp") {
  CHECK(chunks_per_rank(parse_plan("pp4 zbv vpp2 gbs8")) == 2);
  CHECK(chunks_per_rank(parse_plan("pp4 vpp3 interleaved gbs8")) == 3);
  CHECK(chunks_per_rank(parse_plan("pp4 dualpipe gbs8")) == 1);
  CHECK(chunks_per_rank(parse_plan("pp4 gbs8")) == 1);
}
