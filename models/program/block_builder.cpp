#include "models/program/block_builder.h"

#include <algorithm>
#include <utility>

namespace qplan {

SlotId BlockBuilder::slot(std::string_view name, DType dtype, std::int64_t rows, std::int64_t cols,
                          Storage storage) {
  block_.slots.push_back(
      {.name = name, .storage = storage, .dtype = dtype, .shape = {rows, cols, 1}});
  return static_cast<SlotId>(block_.slots.size() - 1);
}

std::int16_t BlockBuilder::parameter(ParameterRole role, bool bias) const {
  for (std::size_t i = 0; i < block_.parameters.size(); ++i) {
    const Parameter& p = block_.parameters[i].whole;
    if (p.role == role && p.bias == bias && p.adapter == Adapter::none)
      return static_cast<std::int16_t>(i);
  }
  return kNoParameter;
}

Op& BlockBuilder::push(Op op, Slots reads, Slots writes) {
  for (const SlotId id : reads) {
    if (id != kNoSlot) op.reads.add(id);
  }
  for (const SlotId id : writes) {
    if (id != kNoSlot) op.writes.add(id);
  }
  op.modules = modules_;
  op.layer_module = layer_module_;
  op.copy = copy_;
  OpList& list = block_.*list_;
  list.push_back(op);
  return list.back();
}

Op& BlockBuilder::compute(Work work, Slots reads, Slots writes) {
  Op op{.work = work, .stream = Stream::compute, .after = std::exchange(pending_, {})};
  return push(op, reads, writes);
}

Op& BlockBuilder::aside(Stream stream, Work work, Slots reads, Slots writes) {
  // What compute was told to wait for, this stream needs too: its input comes from there.
  Op op{.work = work, .stream = stream, .after = only(Stream::compute) | pending_};
  return push(op, reads, writes);
}

void BlockBuilder::before_first_write(SlotId slot, const Work& work) {
  OpList& list = block_.*list_;
  const auto first = std::find_if(list.begin(), list.end(), [slot](const Op& op) {
    return std::find(op.writes.begin(), op.writes.end(), slot) != op.writes.end();
  });
  if (first == list.end()) return;
  Op op{.work = work};
  op.writes.add(slot);
  list.insert(first, op);
}

void BlockBuilder::host_sync() {
  push({.work = Join{}, .stream = Stream::host, .after = only(Stream::compute) | pending_}, {}, {});
}

void BlockBuilder::flush() {
  if (pending_.bits != 0) compute(Join{}, {}, {});
}

Block BlockBuilder::take() {
  return std::move(block_);
}

}  // namespace qplan
