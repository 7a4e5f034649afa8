#pragma once
// A block is one kind of layer, for one microbatch: "dense layer", "moe layer", "embedding",
// "head". It is straight lines of ops over one table of slots. Nobody writes alloc or free: the
// lifetime of a slot follows from who writes and who reads it (liveness.h).

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "models/dtype.h"
#include "models/parameters.h"
#include "models/program/op.h"
#include "models/units.h"

namespace qplan {

// What a slot is for. Weights, gradients and optimizer state live for the whole step; `shared`
// buffers too, once per distinct shape on a rank. All others live from their first write to their
// last read: a slot that backward reads without writing it first is kept from forward (a stash);
// one that stays within a list is scratch. A `wire` crosses the block's border: written here, it
// leaves; read here without being written, it arrives. A `fresh_gradient` is a gradient that is
// made anew each step: the lists that end the step read it, so it lives from backward to the
// update.
enum class Storage : std::uint8_t {
  weight,
  frozen,  // weights that are not trained
  gradient,
  optimizer,
  shared,
  local,
  wire,
  fresh_gradient
};

// Whether a slot is there for the whole step.
constexpr bool is_persistent(Storage s) {
  return s == Storage::weight || s == Storage::frozen || s == Storage::gradient ||
         s == Storage::optimizer || s == Storage::shared;
}

// What a wire carries to the neighbouring block: the microbatch's activations (their gradients in
// backward), parameters gathered ahead of their use, gradients whose reduction is under way, and
// beside the activations what multi-token prediction makes of them. `image` wires reach a later
// block of the stage: what a vision tower's taps hand on, each by its channel.
enum class Flow : std::uint8_t { activation, weights, gradients, prediction, image };

// Frozen weights that are gathered ahead go beside the trained ones.
inline constexpr std::int8_t kFrozenChannel = 1;

struct Slot {
  std::string_view name;
  Storage storage = Storage::local;
  DType dtype = DType::bf16;
  std::array<std::int64_t, 3> shape{1, 1, 1};
  double fraction = 1;           // of it that is on the device (the rest is offloaded)
  Flow flow = Flow::activation;  // of a wire
  std::int8_t channel = 0;       // which of several wires of one flow
  // Not a slot of its own but that of the rank's embedding block, with the same storage. It takes
  // no memory (its fraction is 0).
  bool of_embedding = false;

  [[nodiscard]] std::int64_t elements() const { return shape[0] * shape[1] * shape[2]; }
  [[nodiscard]] Bytes bytes() const;  // rounded up to 256, as the arena and CUDA allocators do
};

// Bytes rounded up to the allocator's 256.
Bytes rounded(Bytes bytes);

using OpList = std::vector<Op>;

// What one rank holds of a parameter, and where in the block's packed weights (gradients, optimizer
// state). Row-major, as the parameter itself; copy i (a local expert) begins at offset + i *
// stride.
struct PackedParameter {
  Parameter whole;  // of the model
  std::int64_t rows = 0, cols = 1, copies = 1;
  std::int64_t offset = 0, stride = 0;  // elements
  bool replicated = false;        // each rank of tp (experts': of etp) holds all of it, and ...
  bool partial_gradient = false;  // ... makes a part of its gradient only, from its heads or tokens
  bool frozen = false;            // never trained: packed apart, into the block's frozen weights
  [[nodiscard]] std::int64_t elements() const { return rows * cols * copies; }
};

// Numbers that Adafactor keeps of one copy: a mean square a row and column, of a vector an element.
std::int64_t factors_of(const PackedParameter& parameter);

struct Block {
  std::string_view name;
  std::vector<Slot> slots;  // one table: a slot written by `forward` may be read by `backward`
  // Trained ones, then frozen ones, each packed from 0 on. Dense ones first, those with partial
  // gradients at the front; then the experts'.
  std::vector<PackedParameter> parameters;
  // Slots that backward would free and that stay until the whole stage's backward has ended.
  std::vector<SlotId> until_backward_ends;
  OpList clear;  // what gradients are added to becomes 0, before a step's first microbatch
  OpList forward, backward;
  OpList gather;  // this block's parameters, once a step, where the optimizer left them sharded
  OpList reduce;  // this block's gradients over the data-parallel ranks, once a step
  OpList norm;    // this block's share of the gradient norm
  OpList update;  // optimizer step, and the parameter gather where it is not overlapped
};

// Bytes a block holds for the whole step.
struct PersistentBytes {
  Bytes weights, gradients, optimizer;
  Bytes update_peak;  // beside them while the optimizer steps
  Bytes fresh;        // of gradients that a step makes anew and its update finds
  Bytes update;       // what the optimizer holds besides while it runs
  [[nodiscard]] Bytes total() const { return weights + gradients + optimizer; }
};
PersistentBytes persistent_bytes(const Block& block);

}  // namespace qplan
