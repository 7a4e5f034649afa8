#include "models/program/rank_program.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "models/model_spec.h"
#include "models/program/arena_layout.h"

using namespace qplan;

namespace {

StepProgram program_of(const std::string& line, const char* model = "tiny") {
  return build_step_program(load_model(model), parse_plan(line), recipe_of(RecipeKind::qplan), {});
}

}  // namespace

TEST_CASE("first fit takes the lowest gap that is large enough") {
  FirstFit arena;
  CHECK(arena.allocate(256) == 0);
  CHECK(arena.allocate(512) == 256);
  CHECK(arena.allocate(256) == 768);
  CHECK(arena.extent() == 1024);
  arena.release(256, 512);
  CHECK(arena.allocate(256) == 256);
  CHECK(arena.allocate(512) == 1024);
  CHECK(arena.allocate(256) == 512);
}

TEST_CASE("neighbouring gaps are one gap") {
  FirstFit arena;
  for (int i = 0; i < 4; ++i) arena.allocate(256);
  arena.release(0, 256);
  arena.release(512, 256);
  arena.release(256, 256);
  CHECK(arena.allocate(768) == 0);
  CHECK(arena.extent() == 1024);
}

TEST_CASE("a rank's program is laid out the same every time, in at least the bytes that live") {
  const StepProgram program = program_of("tp2 pp2 dp2 zero3 gbs8 seq64 recompute=full");
  for (int rank = 0; rank < 2; ++rank) {
    const RankProgram once = rank_program(program, rank), again = rank_program(program, rank);
    CHECK(once.extent == again.extent);
    CHECK(static_cast<double>(once.extent) >= once.live_peak.value());
    REQUIRE(once.commands.size() == again.commands.size());
    for (std::size_t i = 0; i < once.commands.size(); ++i) {
      for (std::size_t k = 0; k < once.commands[i].reads.count; ++k) {
        CHECK(once.commands[i].reads[k].offset == again.commands[i].reads[k].offset);
      }
    }
  }
}

TEST_CASE("what is sent is received: every boundary has one message each way") {
  const StepProgram program = program_of("pp4 gbs8 seq64 1f1b");
  std::multiset<std::pair<int, int>> sent, received;
  for (int rank = 0; rank < 4; ++rank) {
    const RankProgram r = rank_program(program, rank);
    for (const Command& c : r.commands) {
      if (c.kind == CommandKind::send) sent.emplace(rank, c.peer);
      if (c.kind == CommandKind::receive) received.emplace(c.peer, rank);
    }
  }
  CHECK(sent.size() == 2 * 3 * 8);
  CHECK(sent == received);
}

TEST_CASE("a message travels beside the action before the one that takes it") {
  for (const char* line : {"pp4 gbs8 seq64 1f1b", "pp2 gbs8 seq64 interleaved vpp2"}) {
    CAPTURE(std::string(line));
    const StepProgram program = program_of(line);
    for (int rank = 0; rank < program.schedule.pp; ++rank) {
      const RankProgram r = rank_program(program, rank);
      std::map<std::pair<int, int>, std::set<std::string>> beside;
      std::vector<std::pair<int, int>> under_way;
      int posted = 0, taken = 0;
      for (const Command& c : r.commands) {
        const std::pair key{c.action.stage * 2 + int{c.action.kind != ActionKind::forward},
                            c.action.microbatch};
        if (c.kind == CommandKind::receive) {
          ++posted;
          under_way.push_back(key);
        } else if (c.kind == CommandKind::take) {
          ++taken;
          REQUIRE(std::erase(under_way, key) == 1);
        } else if (c.kind == CommandKind::op && c.action.stage >= 0) {
          for (const auto& message : under_way) beside[message].insert(to_string(c.action));
        }
        CHECK(under_way.size() <= 1);
      }
      CHECK(posted == taken);
      // Only the very first message of a rank has nothing to travel beside.
      CHECK(std::ssize(beside) >= posted - 1);
      for (const auto& [message, actions] : beside) CHECK(actions.size() == 1);
    }
  }
}

TEST_CASE("each link of a rank, out or in, has a buffer of its own, for the whole step") {
  for (const char* line : {"pp4 gbs8 seq64 1f1b", "pp2 gbs8 seq64 interleaved vpp2",
                           "pp2 gbs8 seq64 dualpipe", "pp2 gbs8 seq64 zbv vpp2"}) {
    CAPTURE(std::string(line));
    const StepProgram program = program_of(line);
    for (int rank = 0; rank < program.schedule.pp; ++rank) {
      const RankProgram r = rank_program(program, rank);
      std::map<Lane, std::int64_t> buffers;
      std::set<std::int64_t> used;
      for (const Command& c : r.commands) {
        for (const Operands* list : {&c.reads, &c.writes}) {
          for (const Operand& operand : *list) used.insert(operand.offset);
        }
        if (c.kind != CommandKind::op) used.insert(c.offset);
        if (c.kind == CommandKind::send || c.kind == CommandKind::receive)
          CHECK(buffers.emplace(c.lane, c.buffer).first->second == c.buffer);
      }
      CHECK(std::ssize(buffers) == 2 * outgoing_links(program.schedule, rank));
      for (const auto& [lane, buffer] : buffers) CHECK_FALSE(used.contains(buffer));
    }
  }
  CHECK(outgoing_links(program_of("pp4 gbs8 seq64 1f1b").schedule, 0) == 1);
  CHECK(outgoing_links(program_of("pp4 gbs8 seq64 1f1b").schedule, 1) == 2);
  CHECK(outgoing_links(program_of("pp2 gbs8 seq64 interleaved vpp2").schedule, 0) == 2);
}

TEST_CASE("a layer is counted through the pipeline, whoever holds it") {
  const StepProgram program = program_of("pp2 gbs8 seq64 dualpipe");
  for (int rank = 0; rank < 2; ++rank) {
    std::multiset<std::int64_t> layers;
    const RankProgram r = rank_program(program, rank);
    for (const BlockInstance& instance : r.instances) {
      const BlockShape& shape = program.shapes[static_cast<std::size_t>(instance.block)];
      if (shape.kind == BlockKind::decoder) layers.insert(instance.layer);
    }
    CHECK(layers == std::multiset<std::int64_t>{0, 1, 2, 3});
  }
}

TEST_CASE("the gradient of a shared table is reduced after its last use") {
  ModelSpec model = load_model("tiny");
  model.tie_word_embeddings = true;
  for (const char* line :
       {"dp2 gbs8 seq64 overlap=grad", "pp2 dp2 gbs16 seq64 zbv vpp2 overlap=grad",
        "pp4 dp2 gbs32 seq64 zbv overlap=grad", "pp2 dp2 gbs8 seq64 dualpipe overlap=grad",
        "pp4 dp2 gbs64 seq64 dualpipe overlap=grad"}) {
    CAPTURE(std::string(line));
    const StepProgram program =
        build_step_program(model, parse_plan(line), recipe_of(RecipeKind::qplan), {});
    const auto kind_of = [&](const RankProgram& rank, const Command& c) {
      const BlockId block = rank.instances[static_cast<std::size_t>(c.instance)].block;
      return program.shapes[static_cast<std::size_t>(block)].kind;
    };
    for (int pp = 0; pp < static_cast<int>(program.actions.size()); ++pp) {
      const RankProgram rank = rank_program(program, pp);
      bool reduced = false;
      for (const Command& c : rank.commands) {
        if (c.kind != CommandKind::op || c.action.stage < 0) continue;
        const BlockKind kind = kind_of(rank, c);
        if (kind == BlockKind::embedding && c.op->stream == Stream::reduce_comm) reduced = true;
        if (kind == BlockKind::head) CHECK_FALSE(reduced);
      }
    }
  }
}
