// Bytes each rank sends, summed from the ops: docs/reference/physics.md 3.
#include "costmodel/price/price.h"
#include "tests/witnesses/witness.h"

using namespace qplan;

namespace {

// Bytes a rank sends over `axis` in these ops, given the axis' ranks.
double sent(const OpList& ops, Axis axis, int ranks) {
  double sum = 0;
  for (const Op& op : ops) {
    if (const auto* c = std::get_if<Collective>(&op.work); c != nullptr && c->axis == axis) {
      sum += c->bytes.value() * bus_factor(c->kind, ranks);
    } else if (const auto* s = std::get_if<SendRecv>(&op.work); s != nullptr && s->axis == axis) {
      sum += s->bytes.value();
    }
  }
  return sum;
}

struct Layer {
  ModelSpec model;
  BlockShape shape;
  Block block;

  Layer(const char* name, const char* line, RecipeKind recipe = RecipeKind::megatron)
      : model(load_model(name)) {
    shape = base_shape(model, parse_plan(line), recipe_of(recipe), 1);
    shape.layer = model.layers.back();
    block = build_block(model, recipe_of(recipe), shape);
  }
};

// A list of every block of a plan's one stage, repeated as often as it occurs.
double stage_sent(const char* name, const char* line, RecipeKind kind, OpList Block::*list,
                  Axis axis, int ranks) {
  const ModelSpec model = load_model(name);
  const ParallelPlan plan = parse_plan(line);
  const Recipe& recipe = recipe_of(kind);
  const BlockShape base = base_shape(model, plan, recipe, 1);
  double sum = 0;
  const StageList stages = stage_list(model, plan, recipe, base, {});
  for (const Run& run : stages.runs(0)) {
    sum += sent(build_block(model, recipe, run.shape).*list, axis, ranks) * run.count;
  }
  return sum;
}

double parameters(const char* name) {
  return static_cast<double>(count_parameters(load_model(name)).total());
}

}  // namespace

TEST_CASE("witness: sequence parallelism moves 4 units forward and 6 backward in a dense layer") {
  for (const int tp : {2, 4, 8}) {
    const std::string line = fmt::format("tp{} gbs1 seq4096 sp", tp);
    const Layer l("llama3-70b", line.c_str());
    const double unit = (tp - 1.0) / tp * 4096 * 8192 * 2;
    CHECK(sent(l.block.forward, Axis::tp, tp) == 4 * unit);
    CHECK(sent(l.block.backward, Axis::tp, tp) == 6 * unit);
  }
}

TEST_CASE("witness: overlapping tensor-parallel collectives in pieces moves the same bytes") {
  const Layer plain("llama3-70b", "tp8 gbs1 seq4096 sp"),
      pieces("llama3-70b", "tp8 gbs1 seq4096 sp overlap=tp");
  CHECK(sent(pieces.block.forward, Axis::tp, 8) == sent(plain.block.forward, Axis::tp, 8));
  CHECK(sent(pieces.block.backward, Axis::tp, 8) == sent(plain.block.backward, Axis::tp, 8));
}

TEST_CASE("witness: plain tensor parallelism moves 8 units: two all-reduces each way") {
  const Layer l("llama3-70b", "tp4 gbs1 seq4096");
  const double unit = 3.0 / 4 * 4096 * 8192 * 2;
  CHECK(sent(l.block.forward, Axis::tp, 4) == 4 * unit);
  CHECK(sent(l.block.backward, Axis::tp, 4) == 4 * unit);
}

TEST_CASE("witness: experts without a tensor split need no collective over tp") {
  const Layer l("qwen3-30b-a3b", "tp2 ep2 etp1 gbs1 seq4096 sp");
  // Attention alone: one gather and one scatter forward, three backward.
  const double unit = 1.0 / 2 * 4096 * 2048 * 2;
  CHECK(sent(l.block.forward, Axis::tp, 2) == 2 * unit);
  CHECK(sent(l.block.backward, Axis::tp, 2) == 3 * unit);
}

TEST_CASE("witness: ring attention passes keys and values c - 1 times, twice that in backward") {
  for (const int cp : {2, 4, 8}) {
    const std::string line = fmt::format("cp{} gbs1 seq8192", cp);
    const Layer l("llama3-8b", line.c_str());
    const double kv = 2.0 * (8192.0 / cp) * 8 * 128 * 2;
    CHECK(sent(l.block.forward, Axis::cp, cp) == (cp - 1) * kv);
    CHECK(sent(l.block.backward, Axis::cp, cp) == 2 * (cp - 1) * kv);
  }
}

TEST_CASE("witness: gathering keys and values moves as much as the ring") {
  const Layer l("llama3-8b", "cp4 gbs1 seq8192 cp_comm=all_gather");
  const double kv = 2.0 * 2048 * 8 * 128 * 2;
  CHECK(sent(l.block.forward, Axis::cp, 4) == 3 * kv);
  CHECK(sent(l.block.backward, Axis::cp, 4) == 2 * 3 * kv);
}

TEST_CASE("witness: Ulysses sends q, k, v in and the output back") {
  const Layer l("llama3-8b", "cp4 gbs1 seq8192 cp_comm=a2a");
  const double expected = 2048.0 * (2 * 32 + 2 * 8) * 128 * 2 * 3 / 4;
  CHECK(sent(l.block.forward, Axis::cp, 4) == expected);
}

// A zig-zag gives every rank c-th of the causal triangle, whatever way the keys come.
TEST_CASE("witness: however keys travel, a rank attends to its share of the triangle") {
  for (const RecipeKind recipe : {RecipeKind::qplan, RecipeKind::megatron}) {
    CAPTURE(to_word(recipe));
    for (const char* comm : {"p2p", "all_gather", "a2a"}) {
      CAPTURE(comm);
      const std::string line = fmt::format("cp4 gbs1 seq8192 cp_comm={}", comm);
      const Layer l("llama3-8b", line.c_str(), recipe);
      Flops forward, backward;
      for (const Op& op : l.block.forward) {
        if (std::holds_alternative<Attention>(op.work)) forward += flops(op.work);
      }
      for (const Op& op : l.block.backward) {
        if (std::holds_alternative<Attention>(op.work)) backward += flops(op.work);
      }
      const Flops expected(8192.0 * 8192 / 2 / 4 * 32 * 128 * 4);
      CHECK(forward == expected);
      CHECK(backward == expected * 2.5);
    }
  }
}

// Attention keeps its operands split by heads, as DeepSpeed-Ulysses and Megatron's a2a do.
TEST_CASE("witness: Ulysses' backward sends what its forward sent") {
  const Layer l("llama3-8b", "cp4 gbs1 seq8192 cp_comm=a2a");
  CHECK(sent(l.block.backward, Axis::cp, 4) == sent(l.block.forward, Axis::cp, 4));
}

// Megatron sends an fp32 probability with each row of dispatch, and its gradient back.
TEST_CASE("witness: NCCL dispatch and combine move T k h each, and backward mirrors them") {
  const Layer l("qwen3-30b-a3b", "ep8 dp8 gbs8 seq4096");
  const double rows = 4096.0 * 8 * 7 / 8;
  CHECK(sent(l.block.forward, Axis::ep, 8) == 2 * rows * 2048 * 2 + rows * 4);
  CHECK(sent(l.block.backward, Axis::ep, 8) == 2 * rows * 2048 * 2 + rows * 4);
}

TEST_CASE("witness: DeepEP sends a token once to each rank that holds one of its experts") {
  struct Row {
    int ep;
    double ranks;  // distinct destinations of 8 of 128 experts (docs/reference/physics.md 3.3)
  };
  for (const Row& row :
       {Row{2, 1.99}, Row{4, 3.63}, Row{8, 5.34}, Row{16, 6.60}, Row{32, 7.36}, Row{64, 7.78}}) {
    const std::string line =
        fmt::format("ep{} dp{} gbs{} seq4096 moe_dispatcher=deepep", row.ep, row.ep, row.ep);
    const Layer l("qwen3-30b-a3b", line.c_str());
    const double one = 4096.0 * 2048 * 2 * (row.ep - 1) / row.ep;
    const double ours = sent(l.block.forward, Axis::ep, row.ep) / (2 * one);
    CHECK(std::abs(witness(fmt::format("DeepEP copies a token, EP{}", row.ep), row.ranks, ours,
                           "ranks")) < 0.002);
  }
}

TEST_CASE("witness: split experts gather and scatter what they received, both ways") {
  const Layer l("mixtral-8x7b", "tp2 ep4 etp2 dp4 gbs4 seq4096 sp");
  const double received = 4096.0 / 2 * 2 * 2;  // local tokens, top 2, over the etp group
  const double unit = received * 4096 * 2 / 2;
  CHECK(sent(l.block.forward, Axis::etp, 2) == 2 * unit);
  CHECK(sent(l.block.backward, Axis::etp, 2) == 2 * unit);
}

TEST_CASE("witness: ZeRO-0 all-reduces gradients once a step: 2gN(d - 1)/d") {
  const double n = parameters("llama3-8b");
  CHECK(stage_sent("llama3-8b", "dp8 zero0 gbs16", RecipeKind::megatron, &Block::reduce,
                   Axis::dp_cp, 8) == doctest::Approx(2 * 4 * n * 7 / 8).epsilon(1e-9));
  CHECK(stage_sent("llama3-8b", "dp8 zero0 gbs16 grad_dtype=bf16", RecipeKind::megatron,
                   &Block::reduce, Axis::dp_cp,
                   8) == doctest::Approx(2 * 2 * n * 7 / 8).epsilon(1e-9));
}

TEST_CASE("witness: ZeRO-1 scatters gradients and gathers parameters: gN + 2N") {
  const double n = parameters("llama3-8b");
  CHECK(stage_sent("llama3-8b", "dp4 cp2 zero1 gbs16", RecipeKind::megatron, &Block::reduce,
                   Axis::dp_cp, 8) == doctest::Approx(4 * n * 7 / 8).epsilon(1e-9));
  CHECK(stage_sent("llama3-8b", "dp4 cp2 zero1 gbs16 overlap=param", RecipeKind::megatron,
                   &Block::gather, Axis::dp_cp, 8) == doctest::Approx(2 * n * 7 / 8).epsilon(1e-9));
}

TEST_CASE("witness: a stage that lives twice scatters and gathers over twice the ranks") {
  const double n = parameters("llama3-8b") / 2;  // of one of two stages
  const auto moved = [](const char* line, OpList Block::*list) {
    return stage_sent("llama3-8b", line, RecipeKind::qplan, list, Axis::dp_cp, 8);
  };
  const char *sharded = "pp2 dp4 zero1 gbs16 dualpipe", *whole = "pp2 dp4 zero0 gbs16 dualpipe";
  CHECK(moved(sharded, &Block::reduce) == doctest::Approx(4 * n * 7 / 8).epsilon(1e-6));
  CHECK(moved(sharded, &Block::update) == doctest::Approx(2 * n * 7 / 8).epsilon(1e-6));
  CHECK(moved(whole, &Block::reduce) == doctest::Approx(2 * 4 * n * 7 / 8).epsilon(1e-6));
}

TEST_CASE("witness: ZeRO-1 gathers once: beside the next forward, or in the update") {
  const double n = parameters("llama3-8b");
  const auto update = [](const char* line) {
    return stage_sent("llama3-8b", line, RecipeKind::megatron, &Block::update, Axis::dp_cp, 8);
  };
  CHECK(update("dp8 zero1 gbs16") == doctest::Approx(2 * n * 7 / 8).epsilon(1e-9));
  CHECK(update("dp8 zero1 gbs16 overlap=param") == 0);
}

TEST_CASE("witness: FSDP2 gathers 2N forward and 2N backward and scatters 4N, every microbatch") {
  const double n = parameters("llama3-8b");
  const auto moved = [](OpList Block::*list) {
    return stage_sent("llama3-8b", "dp8 zero3 gbs8", RecipeKind::fsdp2, list, Axis::dp_cp, 8);
  };
  CHECK(moved(&Block::forward) == doctest::Approx(2 * n * 7 / 8).epsilon(1e-9));
  CHECK(moved(&Block::backward) == doctest::Approx((2 + 4) * n * 7 / 8).epsilon(1e-9));
  CHECK(moved(&Block::reduce) == 0);
}

TEST_CASE("witness: HSDP shards inside a group and all-reduces one shard between groups") {
  const double n = parameters("llama3-8b");
  const char* line = "dp32 zero3 fsdp_shard8 gbs32";
  CHECK(stage_sent("llama3-8b", line, RecipeKind::fsdp2, &Block::forward, Axis::dp_shard, 8) ==
        doctest::Approx(2 * n * 7 / 8).epsilon(1e-9));
  CHECK(stage_sent("llama3-8b", line, RecipeKind::fsdp2, &Block::backward, Axis::dp_replicate, 4) ==
        doctest::Approx(2 * (4 * n / 8) * 3 / 4).epsilon(1e-9));
}

TEST_CASE("witness: experts reduce over their own data-parallel group only") {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const double experts = 48.0 * 128 * 3 * 2048 * 768;
  CHECK(stage_sent("qwen3-30b-a3b", "dp16 ep8 zero1 gbs16", RecipeKind::megatron, &Block::reduce,
                   Axis::edp, 2) == doctest::Approx(4 * experts / 8 / 2).epsilon(1e-9));
}

TEST_CASE(
    "witness: the vocabulary-parallel embedding and head move a unit each way, and three scalars a "
    "token") {
  const ModelSpec model = load_model("llama3-8b");
  BlockShape s =
      base_shape(model, parse_plan("tp4 gbs1 seq4096 sp"), recipe_of(RecipeKind::megatron), 1);
  const double unit = 3.0 / 4 * 4096 * 4096 * 2;
  s.kind = BlockKind::embedding;
  const Block embedding = build_block(model, recipe_of(RecipeKind::megatron), s);
  CHECK(sent(embedding.forward, Axis::tp, 4) == unit);
  CHECK(sent(embedding.backward, Axis::tp, 4) == unit);
  s.kind = BlockKind::head;
  const Block head = build_block(model, recipe_of(RecipeKind::megatron), s);
  CHECK(sent(head.forward, Axis::tp, 4) == unit + 3 * 2 * 3.0 / 4 * 4096 * 4);
  CHECK(sent(head.backward, Axis::tp, 4) == 2 * unit);
}

TEST_CASE("witness: tied embeddings on two stages all-reduce one gradient") {
  const ModelSpec model = load_model("qwen3-0.6b");
  BlockShape s = base_shape(model, parse_plan("pp2 gbs2"), recipe_of(RecipeKind::megatron), 1);
  s.kind = BlockKind::head;
  const Block head = build_block(model, recipe_of(RecipeKind::megatron), s);
  const double vocabulary = 151936 / 128 * 128;
  CHECK(sent(head.reduce, Axis::embedding, 2) == vocabulary * 1024 * 4);
}
