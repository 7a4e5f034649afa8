#pragma once
// Appends ops to the lists of a block; knows the waiting idioms, nothing about layers.

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "models/plan/parallel_plan.h"
#include "models/program/block.h"

namespace qplan {

class BlockBuilder {
 public:
  explicit BlockBuilder(std::string_view name) { block_.name = name; }

  // Which list the following ops go to.
  void into(OpList Block::*list) {
    list_ = list;
    pending_ = {};
  }

  SlotId slot(std::string_view name, DType dtype, std::int64_t rows, std::int64_t cols,
              Storage storage = Storage::local);
  void parameters(std::vector<PackedParameter> table) { block_.parameters = std::move(table); }
  [[nodiscard]] const std::vector<PackedParameter>& parameters() const { return block_.parameters; }
  // The place of a parameter in the block's table; kNoParameter where the block has none.
  // (Of the model's, not of adapters.)
  [[nodiscard]] std::int16_t parameter(ParameterRole role, bool bias = false) const;

  Slot& at(SlotId id) { return block_.slots[static_cast<std::size_t>(id)]; }

  using Slots = std::initializer_list<SlotId>;  // kNoSlot entries are skipped

  // Work on the compute stream; waits first for what `wait_for` asked.
  Op& compute(Work work, Slots reads, Slots writes);

  // Work on another stream, after all compute so far; nobody waits for it yet.
  Op& aside(Stream stream, Work work, Slots reads, Slots writes);

  // The next compute op waits for everything enqueued so far on `stream`.
  void wait_for(Stream stream) { pending_ = pending_ | only(stream); }

  // Puts work on the compute stream before the current list's first op that writes `slot`.
  void before_first_write(SlotId slot, const Work& work);

  // A collective that compute waits for at once.
  void exposed(Work work, Slots reads, Slots writes) {
    aside(Stream::model_comm, work, reads, writes);
    wait_for(Stream::model_comm);
  }

  // The launching thread waits for the device (token counts of dropless routing).
  void host_sync();

  // Marks the ops that follow as part of a recompute module, until `end_module`.
  void begin_module(RecomputeModule module) {
    modules_ = static_cast<std::uint8_t>(modules_ | (1U << static_cast<unsigned>(module)));
  }
  void end_module(RecomputeModule module) {
    modules_ = static_cast<std::uint8_t>(modules_ & ~(1U << static_cast<unsigned>(module)));
  }

  // Which part of a layer the ops that follow belong to.
  void layer_module(LayerModule module) { layer_module_ = module; }

  // The ops that follow work on that copy of their parameter.
  void use_copy(std::uint8_t copy) { copy_ = copy; }

  // Ends the lists: pending waits become a Join so that nothing is left unwaited.
  Block take();
  void flush();

 private:
  Op& push(Op op, Slots reads, Slots writes);

  Block block_;
  OpList Block::*list_ = &Block::forward;
  StreamSet pending_;
  std::uint8_t modules_ = 0, copy_ = 0;
  LayerModule layer_module_ = LayerModule::none;
};

}  // namespace qplan
