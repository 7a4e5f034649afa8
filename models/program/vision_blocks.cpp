// The two ends of a vision tower (Qwen3-VL): pixels to patches, patches to tokens of the text
// model.

#include <vector>

#include "models/program/state_builder.h"

namespace qplan {
namespace {

// Under sequence parallelism the tower's layers hand on a share of the patches, so its two ends
// work on a share.
std::int64_t patches_of_rank(const BlockShape& s) {
  return s.images * s.patches / (s.sequence_parallel ? s.tp : 1);
}

}  // namespace

// Pixels to patches: a convolution whose stride is its kernel, so one product.
Block build_patchify(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  const VisionSpec& v = *m.vision;
  BlockBuilder b("patchify");
  LayerContext c(m, r, s, b);
  StateBuilder state(c);
  state.declare();
  const std::int64_t rows = patches_of_rank(s);
  const std::int64_t pixels = v.in_channels * v.temporal_patch_size * v.patch_size * v.patch_size;
  b.into(&Block::forward);
  state.enter_forward();
  const SlotId image = b.slot("pixels", c.activation_dtype(), rows, pixels);
  b.compute(Join{}, {}, {image});
  const SlotId y = b.slot("patches", c.activation_dtype(), rows, v.hidden_size, Storage::wire);
  c.linear(ParameterRole::patch_embed, image, y, rows, v.hidden_size, pixels);
  b.into(&Block::backward);
  const SlotId dy = b.slot("dy", c.activation_dtype(), rows, v.hidden_size, Storage::wire);
  state.enter_backward();
  c.linear_wgrad(ParameterRole::patch_embed, dy, image, rows, v.hidden_size, pixels);
  state.leave_backward();
  state.once_a_step();
  return b.take();
}

// 2x2 patches -> one token of the text model: norm, product, GELU, product; once more per deepstack
// tap.
Block build_merger(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  const VisionSpec& v = *m.vision;
  BlockBuilder b("merger");
  LayerContext c(m, r, s, b);
  StateBuilder state(c);
  state.declare();
  const std::int64_t side = v.spatial_merge_size * v.spatial_merge_size;
  const std::int64_t rows = patches_of_rank(s) / side, wide = v.hidden_size * side;
  const DType act = c.activation_dtype();
  const std::size_t mergers = 1 + v.deepstack_layers.size();
  const auto fc1 = [](std::size_t i) {
    return i == 0 ? ParameterRole::merger_fc1 : ParameterRole::deepstack_fc1;
  };
  const auto fc2 = [](std::size_t i) {
    return i == 0 ? ParameterRole::merger_fc2 : ParameterRole::deepstack_fc2;
  };
  b.into(&Block::forward);
  const SlotId x = b.slot("x", act, patches_of_rank(s), v.hidden_size, Storage::wire);
  state.enter_forward();
  std::vector<SlotId> normed(mergers), up(mergers), activated(mergers);
  for (std::size_t i = 0; i < mergers; ++i) {
    normed[i] = b.slot("merged normed", act, rows, wide);
    up[i] = b.slot("merged up", act, rows, wide);
    activated[i] = b.slot("merged act", act, rows, wide);
    const SlotId out = b.slot("visual tokens", act, rows, v.out_hidden_size);
    c.rowwise(RowwiseKind::layer_norm, rows, wide, {x, c.weights}, {normed[i]});
    c.linear(fc1(i), normed[i], up[i], rows, wide, wide);
    c.rowwise(RowwiseKind::gelu, rows, wide, {up[i]}, {activated[i]});
    c.linear(fc2(i), activated[i], out, rows, v.out_hidden_size, wide);
  }
  b.into(&Block::backward);
  state.enter_backward();
  SlotId dx = kNoSlot;
  for (std::size_t i = 0; i < mergers; ++i) {
    const SlotId dout = b.slot("d visual tokens", act, rows, v.out_hidden_size);
    b.compute(Join{}, {}, {dout});
    const SlotId dact = b.slot("d merged act", act, rows, wide);
    c.linear_dgrad(fc2(i), dout, dact, rows, v.out_hidden_size, wide);
    c.linear_wgrad(fc2(i), dout, activated[i], rows, v.out_hidden_size, wide);
    const SlotId dup = b.slot("d merged up", act, rows, wide);
    c.rowwise(RowwiseKind::gelu_backward, rows, wide, {up[i], dact}, {dup});
    const SlotId dnormed = b.slot("d merged normed", act, rows, wide);
    c.linear_dgrad(fc1(i), dup, dnormed, rows, wide, wide);
    c.linear_wgrad(fc1(i), dup, normed[i], rows, wide, wide);
    const bool last = i + 1 == mergers;
    const SlotId sum = b.slot("dx", act, rows, wide, last ? Storage::wire : Storage::local);
    c.rowwise(RowwiseKind::layer_norm_backward, rows, wide, {x, dnormed, dx}, {sum, c.gradients});
    dx = sum;
  }
  state.leave_backward();
  state.once_a_step();
  return b.take();
}

}  // namespace qplan
