// What each optimizer keeps and does, in the step program: against counts of a model's parameters
// that no block had a part in.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "models/parameters.h"
#include "models/plan/parallel_plan.h"
#include "models/program/step_program.h"

using namespace qplan;

namespace {

// Every op and slot of the first pipeline rank's blocks, as often as a step has them.
template <class Visit>
void each_block(const StepProgram& program, Visit visit) {
  for (const Stage& stage : program.stages) {
    for (const Stage::Part& run : stage.runs) {
      visit(program.blocks[static_cast<std::size_t>(run.block)], run.count);
    }
  }
}

double slot_bytes(const StepProgram& program, Storage storage) {
  double sum = 0;
  each_block(program, [&](const Block& block, int count) {
    for (const Slot& slot : block.slots) {
      if (slot.storage != storage) continue;
      sum += static_cast<double>(slot.elements()) * size_of(slot.dtype) * slot.fraction * count;
    }
  });
  return sum;
}

template <class T, class Visit>
void each_work(const StepProgram& program, OpList Block::*list, Visit visit) {
  each_block(program, [&](const Block& block, int count) {
    for (const Op& op : block.*list) {
      if (const T* work = std::get_if<T>(&op.work)) visit(*work, count);
    }
  });
}

StepProgram program_of(const ModelSpec& model, RecipeKind kind, const std::string& words) {
  return build_step_program(model, parse_plan(words), recipe_of(kind), {});
}

// Rows of tables at the vocabulary are padded.
double elements(const Parameter& p) {
  const bool table = p.role == ParameterRole::embed_tokens || p.role == ParameterRole::lm_head;
  const double rows =
      table ? std::ceil(static_cast<double>(p.rows) / 128) * 128 : static_cast<double>(p.rows);
  return rows * static_cast<double>(p.cols);
}

// A witness: bytes of a parameter's states beside an fp32 master copy.
double states_of(OptimizerKind kind, const Parameter& p) {
  const bool matrix = p.cols > 1 && !p.bias;
  switch (kind) {
    case OptimizerKind::adam:
      return 8 * elements(p);
    case OptimizerKind::adam8bit:
      return 2 * elements(p) * (1 + 4.0 / 256);
    case OptimizerKind::sgd:
    case OptimizerKind::lion:
      return 4 * elements(p);
    case OptimizerKind::adafactor:
      return 4 * (matrix ? elements(p) / static_cast<double>(p.cols) + static_cast<double>(p.cols)
                         : elements(p));
    case OptimizerKind::muon:
      return (is_hidden_matrix(p) ? 4 : 8) * elements(p);
  }
  return 0;
}

constexpr auto kModels = {"llama3-8b", "qwen3-0.6b", "qwen3-30b-a3b", "deepseek-v3"};

}  // namespace

TEST_CASE("an optimizer's states are a master copy and what its paper keeps, whatever the model") {
  for (const char* name : kModels) {
    const ModelSpec model = load_model(name);
    double master = 0;
    std::map<OptimizerKind, double> states;
    for (const ModelParameter& p : model_parameters(model)) {
      master += 4 * elements(p.parameter);
      for (const auto& [kind, word] : Words<OptimizerKind>::table) {
        states[kind] += states_of(kind, p.parameter);
      }
    }
    for (const auto& [kind, word] : Words<OptimizerKind>::table) {
      CAPTURE(name);
      CAPTURE(std::string(word));
      const StepProgram program =
          program_of(model, RecipeKind::ddp, "zero0 gbs1 seq1024 optimizer=" + std::string(word));
      // Multi-token prediction shares the table, and blocks of 256 end with a tensor.
      CHECK(slot_bytes(program, Storage::optimizer) ==
            doctest::Approx(master + states[kind]).epsilon(2e-3));
    }
  }
}

TEST_CASE("the update's ops step every parameter once, and say of the states what is allocated") {
  for (const char* name : kModels) {
    const ModelSpec model = load_model(name);
    const double all =
        slot_bytes(program_of(model, RecipeKind::ddp, "zero0 gbs1 seq1024"), Storage::optimizer) /
        12;
    for (const auto& [kind, word] : Words<OptimizerKind>::table) {
      CAPTURE(name);
      CAPTURE(std::string(word));
      const StepProgram program =
          program_of(model, RecipeKind::ddp, "zero0 gbs1 seq1024 optimizer=" + std::string(word));
      double params = 0, bytes = 0;
      const auto add = [&](const auto& step, int count) {
        params += static_cast<double>(step.params) * count;
        bytes += state_bytes(step).value() * count;
      };
      each_work<Update>(program, &Block::update, add);
      each_work<Muon>(program, &Block::update, add);
      CHECK(params == all);
      CHECK(slot_bytes(program, Storage::optimizer) ==
            doctest::Approx(4 * all + bytes).epsilon(1e-9));
    }
  }
}

TEST_CASE("other optimizers leave forward, backward, weights and gradients as Adam has them") {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const auto adam = program_of(model, RecipeKind::ddp, "zero0 dp4 ep4 gbs4 seq1024");
  for (const auto& [kind, word] : Words<OptimizerKind>::table) {
    CAPTURE(std::string(word));
    const auto other = program_of(model, RecipeKind::ddp,
                                  "zero0 dp4 ep4 gbs4 seq1024 optimizer=" + std::string(word));
    REQUIRE(other.blocks.size() == adam.blocks.size());
    for (std::size_t i = 0; i < adam.blocks.size(); ++i) {
      for (const auto list : {&Block::forward, &Block::backward, &Block::reduce, &Block::norm}) {
        const OpList &a = adam.blocks[i].*list, &b = other.blocks[i].*list;
        REQUIRE(a.size() == b.size());
        for (std::size_t k = 0; k < a.size(); ++k) CHECK(a[k].work == b[k].work);
      }
    }
    CHECK(slot_bytes(other, Storage::weight) == slot_bytes(adam, Storage::weight));
    CHECK(slot_bytes(other, Storage::gradient) == slot_bytes(adam, Storage::gradient));
  }
}

// arXiv 2502.16982 counts an iteration of an m x n matrix, m <= n, as X X^T, its square and that
// times X.
TEST_CASE("Newton-Schulz takes 5 (4 m^2 n + 2 m^3) FLOPs of every hidden matrix") {
  for (const char* name : kModels) {
    CAPTURE(name);
    const ModelSpec model = load_model(name);
    double expected = 0;
    for (const ModelParameter& p : model_parameters(model)) {
      if (!is_hidden_matrix(p.parameter)) continue;
      const auto m = static_cast<double>(std::min(p.parameter.rows, p.parameter.cols));
      const auto n = static_cast<double>(std::max(p.parameter.rows, p.parameter.cols));
      expected += 5 * (4 * m * m * n + 2 * m * m * m);
    }
    double sum = 0;
    const auto add = [&](const Muon& step, int count) { sum += flops(step).value() * count; };
    each_work<Muon>(program_of(model, RecipeKind::ddp, "zero0 gbs1 seq1024 optimizer=muon"),
                    &Block::update, add);
    CHECK(sum == doctest::Approx(expected).epsilon(1e-9));
    // Megatron's gate and up projection are one matrix: fewer, larger ones.
    sum = 0;
    each_work<Muon>(program_of(model, RecipeKind::megatron, "zero0 gbs1 seq1024 optimizer=muon"),
                    &Block::update, add);
    CHECK(sum > expected * 0.9);
    CHECK(sum != doctest::Approx(expected).epsilon(1e-3));
  }
}

TEST_CASE(
    "tensor parallelism gathers the momentum of split matrices, and orthogonalises the whole") {
  for (const char* name : {"llama3-8b", "qwen3-30b-a3b"}) {
    CAPTURE(name);
    const ModelSpec model = load_model(name);
    double expected = 0;
    for (const ModelParameter& p : model_parameters(model)) {
      if (!is_hidden_matrix(p.parameter) || p.parameter.split == Split::none) continue;
      if (!is_expert(p.parameter.role)) expected += 4 * elements(p.parameter);
    }
    const auto whole = program_of(model, RecipeKind::megatron, "gbs1 seq1024 optimizer=muon");
    for (const int tp : {2, 4}) {
      CAPTURE(tp);
      const auto program =
          program_of(model, RecipeKind::megatron,
                     "gbs1 seq1024 sp optimizer=muon tp" + std::to_string(tp) + " etp1 ep1");
      double gathered = 0, own = 0, all = 0;
      each_work<Collective>(program, &Block::update, [&](const Collective& c, int count) {
        if (c.axis == Axis::tp) gathered += c.bytes.value() * count;
      });
      CHECK(gathered == doctest::Approx(expected).epsilon(1e-9));
      each_work<Muon>(program, &Block::update,
                      [&](const Muon& m, int n) { own += flops(m).value() * n; });
      each_work<Muon>(whole, &Block::update,
                      [&](const Muon& m, int n) { all += flops(m).value() * n; });
      CHECK(own == doctest::Approx(all).epsilon(1e-9));
    }
  }
}

TEST_CASE("matrices that are dealt out are whole: a rank has at least its share, and no part") {
  for (const char* name : {"llama3-8b", "qwen3-0.6b"}) {
    const ModelSpec model = load_model(name);
    for (const RecipeKind kind : {RecipeKind::megatron, RecipeKind::deepspeed}) {
      const auto matrices = [&](int dp) {
        double sum = 0;
        each_work<Muon>(
            program_of(model, kind, "zero1 gbs2048 seq1024 optimizer=muon dp" + std::to_string(dp)),
            &Block::update, [&](const Muon& m, int n) { sum += m.matrices * n; });
        return sum;
      };
      const double all = matrices(1);
      CHECK(all == std::round(all));
      for (const int dp : {2, 3, 8, 64, 1024}) {
        CAPTURE(name);
        CAPTURE(dp);
        CHECK(matrices(dp) == doctest::Approx(std::ceil(all / dp)).epsilon(1e-9));
      }
    }
  }
}
