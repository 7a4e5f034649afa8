#pragma once
// An op of a block: a piece of work (work.h) on a stream, after what others were given before it,
// with the slots that it reads and writes. And which part of its layer it is, where shapes and
// slots do not say.

#include <array>
#include <cstdint>

#include "models/program/work.h"

namespace qplan {

// In-order queues, one cudaStream_t each; `host` is the launching thread.
//   compute      kernels                  model_comm   tp, cp, ep collectives inside a layer
//   gather_comm  parameter gathers        reduce_comm  gradient reductions
//   h2d, d2h     offload copies           host         launches and host-side waits
// Pipeline traffic has one stream per directed edge; it belongs to the schedule simulation.
enum class Stream : std::uint8_t { compute, model_comm, gather_comm, reduce_comm, h2d, d2h, host };
inline constexpr int kStreamCount = 7;
constexpr int index(Stream s) {
  return static_cast<int>(s);
}

// A small set of streams.
struct StreamSet {
  std::uint8_t bits = 0;
  [[nodiscard]] constexpr bool has(Stream s) const { return (bits >> index(s)) & 1; }
  constexpr StreamSet operator|(StreamSet o) const {
    return {static_cast<std::uint8_t>(bits | o.bits)};
  }
  bool operator==(const StreamSet&) const = default;
};
constexpr StreamSet only(Stream s) {
  return {static_cast<std::uint8_t>(1U << index(s))};
}

using SlotId = std::int16_t;
inline constexpr SlotId kNoSlot = -1;

// Up to eight slots, without a heap.
struct SlotList {
  std::array<SlotId, 8> ids{};
  std::uint8_t count = 0;
  void add(SlotId id);
  [[nodiscard]] const SlotId* begin() const { return ids.data(); }
  [[nodiscard]] const SlotId* end() const { return ids.data() + count; }
};

// Which of a work's meanings an op has, where shapes and slots do not say. Prices do not depend on
// it; execution does.
enum class Role : std::uint8_t {
  plain,
  // A linear layer's three products; `plain` is y = x W^T.
  input_gradient,   // dx = dy W
  weight_gradient,  // dW += dy^T x
  // Token exchange of experts, in the order of a forward: copies of tokens sorted by expert, rows
  // that arrived from several ranks grouped by expert, and both undone.
  sort_tokens,
  group_rows,
  ungroup_rows,
  sum_copies,
  dispatch,  // the exchange itself, to the experts ...
  combine,   // ... and back
  // Heads that are exchanged for sequence: dispatch and combine, too. Of a copy: q, k, v or out to
  // the shares that leave (dispatch) or from those that came (combine); by heads, whole sequences
  // out of what came (group_rows), or back (ungroup_rows).
  expert_counts,
  sequence_balance,  // all-reduce of what the auxiliary loss knows of a sequence
  // Vocabulary-parallel loss (docs/reference/physics.md 3.1): maxima over tp, each rank's sum of
  // exponentials brought to it, and the result out of the sums.
  maximum,
  loss_rescale,
  loss_finish,
  beside,     // operands side by side, of a copy; also one of all apart
  transpose,  // rows become columns, of a copy or of what becomes fp8
  // Numbers times the sigmoid of others, one each or one a row: {x, number} -> {y}. Of a copy: the
  // gates of attention's output, out of what the projection packs with the queries.
  gate,
  gate_backward,  // {dy, x, number} -> {dx, d number}
  // Vision: an image's pixels come in; the tower's learned positions, interpolated, are added to
  // patches; its hidden state is handed to a deepstack merger; visual tokens take the place of
  // embedded ones, or are added to a decoder layer's; and their gradients are taken out.
  load_pixels,
  add_patch_positions,
  tap_tower,
  put_images,
  add_images,
  take_images,
  replicated_gradients,  // all-reduce of what every tp rank holds a part of the gradient of
  tied_gradients,        // all-reduce of the embedding's two copies
  copy_gathered,         // parameters out of the buffer that they were gathered into
  chunk_copy,            // to the host or back: what waits between chunks of a sequence (FPDT)
  // DoRA: an adapter's B A; the squares of a row of W + scale B A, summed; rows of a layer's output
  // times magnitude over norm, and the gradients of both.
  merge_adapter,
  merged_squares,
  magnify,
  magnify_backward
};

inline constexpr std::int16_t kNoParameter = -1;

// What part of a layer an op belongs to, as CUDA graphs of layers take them (Megatron's
// --cuda-graph-modules). Shared experts are captured with the router.
enum class LayerModule : std::uint8_t { none, attention, mamba, mlp, router, experts };

struct Op {
  Work work;  // what is computed: all a price needs, all a kernel choice needs
  Stream stream = Stream::compute;  // where it is enqueued
  StreamSet after{};                // ... after everything enqueued so far on these
  SlotList reads{}, writes{};  // slots of the enclosing block: liveness and buffers come from these
  bool recomputed = false;     // runs a second time, in the backward pass
  std::uint8_t modules = 0;    // bit i: part of RecomputeModule i (parallel_plan.h)
  LayerModule layer_module = LayerModule::none;
  Role role = Role::plain;
  // Its parameter: an entry of the block's table (block.h), the first of those packed as one.
  std::int16_t parameter = kNoParameter;
  std::uint8_t copy = 0;  // of a parameter with several copies: which deepstack merger's
  // An overlapped product and its collective run in pieces; a ring in steps.
  std::uint8_t piece = 0, pieces = 1;
  // Multi-token prediction: looks tokens up, or predicts them, so many further on.
  std::uint8_t ahead = 0;
};

}  // namespace qplan
