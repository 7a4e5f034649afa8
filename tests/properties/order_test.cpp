// Nothing is read before it is written, on any stream, and nothing is written while another stream
// still reads it: over the very bytes that a rank's ops touch, for drawn plans of every recipe.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "models/program/rank_program.h"
#include "tests/properties/random_plans.h"

using namespace qplan;

namespace {

constexpr int kNobody = -1;
using PerLane = std::vector<int>;  // the last command of each lane, kNobody

// Some bytes of the arena: who wrote them last, and who has read them since.
struct Stretch {
  std::int64_t end = 0;
  int writer = kNobody;
  PerLane readers{};
};

// Walks commands in program order and knows, for each, what has ended when it begins: what stood
// before it in its lane, and what was enqueued on the lanes that it waits for.
class Watch {
 public:
  Watch(const StepProgram& program, const RankProgram& rank)
      : program_(program),
        rank_(rank),
        lanes_(static_cast<std::size_t>(rank.lanes)),
        known_(lanes_, PerLane(lanes_, kNobody)) {
    bytes_[0] = {std::max<std::int64_t>(rank.extent, 1), kNobody, PerLane(lanes_, kNobody)};
  }

  // `times`: steps in a row, each in the same arena. Gives what is wrong first, "" where nothing.
  std::string run(int times) {
    for (int step = 0; step < times; ++step) {
      for (const Command& c : rank_.commands) {
        const std::string wrong = take(c);
        if (!wrong.empty()) return "step " + std::to_string(step) + ": " + wrong;
      }
    }
    return "";
  }

 private:
  std::string take(const Command& c) {
    const int number = static_cast<int>(commands_.size());
    commands_.push_back(&c);
    PerLane& own = known_[static_cast<std::size_t>(c.lane)];
    for (std::size_t other = 0; other < lanes_; ++other) {
      if (((c.after >> other) & 1U) == 0) continue;
      for (std::size_t l = 0; l < lanes_; ++l) own[l] = std::max(own[l], known_[other][l]);
    }
    std::string wrong;
    if (c.kind == CommandKind::op) {
      const Block& block = program_.blocks[static_cast<std::size_t>(
          rank_.instances[static_cast<std::size_t>(c.instance)].block)];
      const auto length = [&](const Operand& o) {
        return static_cast<std::int64_t>(
            block.slots[static_cast<std::size_t>(o.slot)].bytes().value());
      };
      for (const Operand& o : c.reads) touch(c, o.offset, length(o), false, number, wrong);
      for (const Operand& o : c.writes) touch(c, o.offset, length(o), true, number, wrong);
    } else {
      const bool arrives = c.kind == CommandKind::receive, taken = c.kind == CommandKind::take;
      // Only recipes that run have buffers of links; others are priced as if messages were where
      // they go.
      touch(c, c.buffer, static_cast<std::int64_t>(program_.message_buffer.value()), !taken, number,
            wrong);
      if (!arrives) touch(c, c.offset, c.bytes, taken, number, wrong);
    }
    own[static_cast<std::size_t>(c.lane)] = number;
    return wrong;
  }

  void touch(const Command& c, std::int64_t begin, std::int64_t length, bool writes, int number,
             std::string& wrong) {
    if (length <= 0) return;
    cut(begin);
    cut(begin + length);
    const PerLane& seen = known_[static_cast<std::size_t>(c.lane)];
    const auto check = [&](int earlier, const char* what) {
      if (earlier == kNobody || !wrong.empty() || earlier == number) return;
      const Command& other = *commands_[static_cast<std::size_t>(earlier)];
      if (seen[static_cast<std::size_t>(other.lane)] >= earlier || other.lane == c.lane) return;
      if (apart(c, other)) return;
      wrong = name(c) + what + name(other);
    };
    for (auto it = bytes_.find(begin); it != bytes_.end() && it->first < begin + length; ++it) {
      Stretch& s = it->second;
      check(s.writer, writes ? " writes over " : " reads before it is there what writes ");
      if (writes) {
        for (const int reader : s.readers) check(reader, " writes over what still reads ");
        s.writer = number;
        std::fill(s.readers.begin(), s.readers.end(), kNobody);
      } else {
        s.readers[static_cast<std::size_t>(c.lane)] = number;
      }
    }
  }

  // Two ops that name one slot and touch different bytes of it: pieces of one product and its
  // messages, and the shares of a block's parameters that the host steps and the device.
  static bool apart(const Command& a, const Command& b) {
    if (a.kind != CommandKind::op || b.kind != CommandKind::op) return false;
    if (a.op->pieces > 1 && a.op->pieces == b.op->pieces) return a.op->piece != b.op->piece;
    const auto host = [](const Command& c) { return std::holds_alternative<HostCopy>(c.op->work); };
    const bool same = a.part == Part::update && b.part == Part::update && a.instance == b.instance;
    return same && host(a) != host(b) && (on_device(a) || on_device(b));
  }
  static bool on_device(const Command& c) {
    const auto* rowwise = std::get_if<Rowwise>(&c.op->work);
    return std::holds_alternative<Update>(c.op->work) ||
           (rowwise != nullptr && rowwise->kind == RowwiseKind::scale);
  }

  void cut(std::int64_t at) {
    auto it = std::prev(bytes_.upper_bound(at));
    if (it->first == at || at >= it->second.end) return;
    Stretch rest = it->second;
    it->second.end = at;
    bytes_.emplace(at, std::move(rest));
  }

  [[nodiscard]] std::string name(const Command& c) const {
    if (c.kind == CommandKind::take) return "a message's taker";
    if (c.kind != CommandKind::op) return c.kind == CommandKind::send ? "a send" : "a receive";
    const Block& block = program_.blocks[static_cast<std::size_t>(
        rank_.instances[static_cast<std::size_t>(c.instance)].block)];
    std::string text = std::string(block.name) + " " + std::to_string(c.instance) + " part " +
                       std::to_string(static_cast<int>(c.part)) + " " +
                       std::string(kind_name(c.op->work)) + " on lane " + std::to_string(c.lane);
    for (const auto& [word, list] :
         {std::pair{" of ", &c.op->reads}, std::pair{" to ", &c.op->writes}}) {
      for (const SlotId id : *list) {
        text += word;
        text += block.slots[static_cast<std::size_t>(id)].name;
      }
    }
    return text;
  }

  const StepProgram& program_;
  const RankProgram& rank_;
  std::size_t lanes_;
  std::vector<PerLane> known_;  // of each lane: what has ended when its last command ends
  std::vector<const Command*> commands_;
  std::map<std::int64_t, Stretch> bytes_;  // by where they begin
};

}  // namespace

TEST_CASE("nothing is read before it is written, nor written while it is read, on any stream") {
  RandomPlans random(41);
  const int rounds = test_rounds(60);
  for (const char* name : {"tiny", "tiny-moe", "tiny-mla", "tiny-vl", "gpt-oss-20b"}) {
    const ModelSpec model = load_model(name);
    const bool plain = !model.moe && !model.mla && !model.qk_norm;
    for (int i = 0; i < rounds; ++i) {
      const auto kinds = Words<RecipeKind>::table;
      const Recipe& recipe =
          plain ? recipe_of(kinds[static_cast<std::size_t>(i) % kinds.size()].first)
                : recipe_of(i % 2 == 0 ? RecipeKind::megatron : RecipeKind::qplan);
      const ParallelPlan plan = random.next(model, recipe);
      CAPTURE(model.name);
      CAPTURE(to_word(recipe.kind));
      const std::string text = to_string(plan);
      CAPTURE(text);
      const StepProgram program = build_step_program(model, plan, recipe, {});
      for (int rank = 0; rank < plan.pp; ++rank) {
        const RankProgram commands = rank_program(program, rank);
        CHECK(Watch(program, commands).run(2) == "");
      }
    }
  }
}
