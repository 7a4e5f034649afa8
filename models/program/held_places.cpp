#include "models/program/held_places.h"

#include <algorithm>
#include <map>
#include <utility>

#include "models/error.h"

namespace qplan {
namespace {

class Placement {
 public:
  Placement(const StepProgram& program, int rank, ArenaLayout& arena)
      : p_(program), rank_(rank), arena_(arena) {}

  HeldPlaces place() {
    place_stages();
    add_instance({.stage = -1, .block = p_.edge});
    borrow_embedding();
    // Who sends activations gets gradients back: as many links lead in as out.
    for (int i = 0; i < 2 * outgoing_links(p_.schedule, rank_); ++i) {
      out_.message_buffers.push_back(
          arena_.allocate(static_cast<std::int64_t>(p_.message_buffer.value())));
    }
    return std::move(out_);
  }

 private:
  void place_stages() {
    std::map<BlockKind, std::int64_t> seen;  // of each kind, in the model's order
    const auto pieces = static_cast<int>(p_.stages.size()) / stage_copies(p_.schedule.kind);
    out_.stages.resize(p_.stages.size());
    for (int s = 0; s < static_cast<int>(p_.stages.size()); ++s) {
      if (s % pieces == 0) seen.clear();
      const bool mine = rank_of_stage(p_.schedule.kind, p_.schedule.pp, s) == rank_;
      HeldPlaces::Span& span = out_.stages[static_cast<std::size_t>(s)];
      span.first = static_cast<int>(out_.instances.size());
      for (const Stage::Part& run : p_.stages[static_cast<std::size_t>(s)].runs) {
        for (int copy = 0; copy < run.count; ++copy) {
          const std::int64_t layer = seen[kind_of(run.block)]++;
          if (!mine) continue;
          add_instance({.stage = s, .block = run.block, .layer = layer});
          ++span.count;
        }
      }
      if (mine) out_.own.push_back(s);
    }
    // Both holders of a piece reduce and update it at the same place among theirs.
    std::ranges::stable_sort(out_.own, {}, [pieces](int stage) { return stage % pieces; });
  }

  [[nodiscard]] BlockKind kind_of(BlockId block) const {
    return p_.shapes[static_cast<std::size_t>(block)].kind;
  }
  [[nodiscard]] const std::vector<Slot>& slots_of(const BlockInstance& instance) const {
    return p_.blocks[static_cast<std::size_t>(instance.block)].slots;
  }

  void add_instance(BlockInstance instance) {
    for (const Slot& slot : slots_of(instance)) {
      const bool once = slot.storage == Storage::shared;
      instance.held.push_back(once                          ? shared_place(slot)
                              : slot.of_embedding           ? kNowhere
                              : is_persistent(slot.storage) ? arena_.allocate(size_in_bytes(slot))
                                                            : kNowhere);
    }
    out_.instances.push_back(std::move(instance));
  }

  // Once per distinct shape on a rank.
  std::int64_t shared_place(const Slot& slot) {
    for (const auto& [other, place] : shared_) {
      if (other->name == slot.name && other->shape == slot.shape) return place;
    }
    shared_.emplace_back(&slot, arena_.allocate(size_in_bytes(slot)));
    return shared_.back().second;
  }

  // Slots that are the embedding's lie where those do.
  void borrow_embedding() {
    const auto embedding = std::ranges::find_if(out_.instances, [this](const BlockInstance& at) {
      return kind_of(at.block) == BlockKind::embedding;
    });
    for (BlockInstance& instance : out_.instances) {
      const std::vector<Slot>& slots = slots_of(instance);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (!slots[i].of_embedding) continue;
        QPLAN_CHECK(embedding != out_.instances.end(), "its states are on the same rank");
        const std::vector<Slot>& there = slots_of(*embedding);
        const auto same = std::ranges::find_if(there, [&](const Slot& slot) {
          return slot.storage == slots[i].storage && slot.shape == slots[i].shape;
        });
        QPLAN_CHECK(same != there.end(), "both work with the same states");
        instance.held[i] = embedding->held[static_cast<std::size_t>(same - there.begin())];
      }
    }
  }

  const StepProgram& p_;
  int rank_;
  ArenaLayout& arena_;
  HeldPlaces out_;
  std::vector<std::pair<const Slot*, std::int64_t>> shared_;
};

}  // namespace

HeldPlaces place_held(const StepProgram& program, int pipeline_rank, ArenaLayout& arena) {
  return Placement(program, pipeline_rank, arena).place();
}

}  // namespace qplan
