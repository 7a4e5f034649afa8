// The two ends of a vision tower (Qwen3-VL): pixels to patches, patches to tokens of the text
// model; and where the text takes these tokens in.

#include <vector>

#include "models/program/image_part.h"
#include "models/program/layer_context.h"
#include "models/program/state_builder.h"

namespace qplan {
namespace {

// Under sequence parallelism the tower's layers hand on a share of the patches, so its two ends
// work on a share.
std::int64_t patches_of_rank(const BlockShape& s) {
  return s.images * s.patches / (s.sequence_parallel ? s.tp : 1);
}

std::int64_t patches_a_token(const VisionSpec& v) {
  return v.spatial_merge_size * v.spatial_merge_size;
}

}  // namespace

SlotId tap_wire(LayerContext& c, std::string_view name, std::int64_t rows, std::int64_t cols,
                std::int64_t channel) {
  const SlotId wire = c.b.slot(name, c.activation_dtype(), rows, cols, Storage::wire);
  c.b.at(wire).flow = Flow::image;
  c.b.at(wire).channel = static_cast<std::int8_t>(channel);
  return wire;
}

// Pixels to patches: a convolution whose stride is its kernel, so one product; then the learned
// positions of a square grid, interpolated to the image's.
Block build_patchify(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  const VisionSpec& v = *m.vision;
  BlockBuilder b("patchify");
  LayerContext c(m, r, s, b);
  StateBuilder state(c);
  state.declare();
  const std::int64_t rows = patches_of_rank(s);
  const std::int64_t pixels = v.in_channels * v.temporal_patch_size * v.patch_size * v.patch_size;
  const DType act = c.activation_dtype();
  const auto positions = b.parameter(ParameterRole::embed_positions);  // Qwen2.5-VL has none
  b.into(&Block::forward);
  state.enter_forward();
  const SlotId image = b.slot("pixels", act, rows, pixels);
  b.compute(Join{}, {}, {image}).role = Role::load_pixels;
  const bool placed = positions != kNoParameter;
  const SlotId y = b.slot("patches", act, rows, v.hidden_size, Storage::wire);
  const SlotId projected = placed ? b.slot("projected patches", act, rows, v.hidden_size) : y;
  c.linear(ParameterRole::patch_embed, image, projected, rows, v.hidden_size, pixels);
  if (placed) {
    Op& add = c.rowwise(RowwiseKind::add, rows, v.hidden_size, {projected, c.weights}, {y});
    add.role = Role::add_patch_positions;
    add.parameter = positions;
  }
  b.flush();
  b.into(&Block::backward);
  state.enter_backward();
  if (!s.frozen) {
    const SlotId dy = b.slot("dy", act, rows, v.hidden_size, Storage::wire);
    c.linear_wgrad(ParameterRole::patch_embed, dy, image, rows, v.hidden_size, pixels);
    if (placed) {
      Op& sum =
          c.rowwise(RowwiseKind::embedding_backward, rows, v.hidden_size, {dy}, {c.gradients});
      sum.role = Role::add_patch_positions;
      sum.parameter = positions;
    }
  }
  b.flush();
  state.leave_backward();
  state.once_a_step();
  return b.take();
}

namespace {

// 2x2 patches -> one token of the text model: norm, product, GELU, product; once more per deepstack
// tap. The main merger normalises patches before it merges them, the taps' mergers after.
class Merger {
 public:
  Merger(LayerContext& context, std::size_t which) : c_(context), which_(which) {
    const VisionSpec& v = *c_.model.vision;
    rows_ = patches_of_rank(c_.shape) / patches_a_token(v);
    wide_ = v.hidden_size * patches_a_token(v);
    norm_cols_ = main() ? v.hidden_size : wide_;
    norm_rows_ = rows_ * wide_ / norm_cols_;
    out_ = v.out_hidden_size;
  }

  void forward(SlotId x, SlotId tokens) {
    auto& b = c_.b;
    const DType act = c_.activation_dtype();
    b.use_copy(copy());
    x_ = x;
    normed_ = b.slot("merged normed", act, norm_rows_, norm_cols_);
    up_ = b.slot("merged up", act, rows_, wide_);
    activated_ = b.slot("merged act", act, rows_, wide_);
    const bool rms = c_.model.vision->gated;
    c_.rowwise(rms ? RowwiseKind::rms_norm : RowwiseKind::layer_norm, norm_rows_, norm_cols_,
               {x, c_.weights}, {normed_})
        .parameter = b.parameter(norm());
    c_.linear(fc1(), normed_, up_, rows_, wide_, wide_);
    c_.rowwise(RowwiseKind::gelu, rows_, wide_, {up_}, {activated_});
    c_.linear(fc2(), activated_, tokens, rows_, out_, wide_);
  }

  // `sum`: a gradient of x that is added, or kNoSlot.
  void backward(SlotId dtokens, SlotId sum, SlotId dx) {
    auto& b = c_.b;
    const DType act = c_.activation_dtype();
    b.use_copy(copy());
    const SlotId dact = b.slot("d merged act", act, rows_, wide_);
    c_.linear_dgrad(fc2(), dtokens, dact, rows_, out_, wide_);
    c_.linear_wgrad(fc2(), dtokens, activated_, rows_, out_, wide_);
    const SlotId dup = b.slot("d merged up", act, rows_, wide_);
    c_.rowwise(RowwiseKind::gelu_backward, rows_, wide_, {up_, dact}, {dup});
    const SlotId dnormed = b.slot("d merged normed", act, norm_rows_, norm_cols_);
    c_.linear_dgrad(fc1(), dup, dnormed, rows_, wide_, wide_);
    c_.linear_wgrad(fc1(), dup, normed_, rows_, wide_, wide_);
    const bool rms = c_.model.vision->gated;
    c_.rowwise(rms ? RowwiseKind::rms_norm_backward : RowwiseKind::layer_norm_backward, norm_rows_,
               norm_cols_, {x_, dnormed, c_.weights_backward, sum}, {dx, c_.gradients})
        .parameter = b.parameter(norm());
  }

  [[nodiscard]] std::int64_t rows() const { return rows_; }

 private:
  [[nodiscard]] bool main() const { return which_ == 0; }
  // The taps' mergers are copies of one.
  [[nodiscard]] std::uint8_t copy() const {
    return static_cast<std::uint8_t>(main() ? 0 : which_ - 1);
  }
  [[nodiscard]] ParameterRole norm() const {
    return main() ? ParameterRole::merger_norm : ParameterRole::deepstack_norm;
  }
  [[nodiscard]] ParameterRole fc1() const {
    return main() ? ParameterRole::merger_fc1 : ParameterRole::deepstack_fc1;
  }
  [[nodiscard]] ParameterRole fc2() const {
    return main() ? ParameterRole::merger_fc2 : ParameterRole::deepstack_fc2;
  }
  LayerContext& c_;
  std::size_t which_;
  std::int64_t rows_ = 0, wide_ = 0, norm_rows_ = 0, norm_cols_ = 0, out_ = 0;
  SlotId x_ = kNoSlot, normed_ = kNoSlot, up_ = kNoSlot, activated_ = kNoSlot;
};

}  // namespace

// By wires taps come in and tokens go on; without, the mergers' work alone is priced, on the last
// layer's result.
Block build_merger(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  const VisionSpec& v = *m.vision;
  BlockBuilder b("merger");
  LayerContext c(m, r, s, b);
  StateBuilder state(c);
  state.declare();
  const bool wired = r.form.vision;
  const std::int64_t patches = patches_of_rank(s);
  const DType act = c.activation_dtype();
  std::vector<Merger> mergers;
  for (std::size_t i = 0; i <= v.deepstack_layers.size(); ++i) mergers.emplace_back(c, i);
  const std::int64_t rows = mergers.front().rows();
  const auto tokens_slot = [&](std::string_view name, std::size_t i) {
    const auto tap = static_cast<std::int64_t>(i) - 1;
    if (wired && i > 0) return tap_wire(c, name, rows, v.out_hidden_size, tap);
    return b.slot(name, act, rows, v.out_hidden_size, wired ? Storage::wire : Storage::local);
  };
  b.into(&Block::forward);
  const SlotId x = b.slot("x", act, patches, v.hidden_size, Storage::wire);
  state.enter_forward();
  for (std::size_t i = 0; i < mergers.size(); ++i) {
    const bool tapped = wired && i > 0;
    const SlotId in =
        tapped ? tap_wire(c, "tapped", patches, v.hidden_size, static_cast<std::int64_t>(i) - 1)
               : x;
    mergers[i].forward(in, tokens_slot("visual tokens", i));
  }
  b.flush();
  b.into(&Block::backward);
  state.enter_backward();
  SlotId dx = kNoSlot;
  for (std::size_t i = 0; i < mergers.size() && !s.frozen; ++i) {
    const SlotId dtokens = tokens_slot("d visual tokens", i);
    if (!wired) b.compute(Join{}, {}, {dtokens});
    const bool last = i + 1 == mergers.size();
    const SlotId sum = wired ? kNoSlot : dx;
    if (wired && i > 0) {
      dx = tap_wire(c, "d tapped", patches, v.hidden_size, static_cast<std::int64_t>(i) - 1);
    } else {
      dx =
          b.slot("dx", act, patches, v.hidden_size, wired || last ? Storage::wire : Storage::local);
    }
    mergers[i].backward(dtokens, sum, dx);
  }
  b.use_copy(0);
  b.flush();
  state.leave_backward();
  state.once_a_step();
  return b.take();
}

ImagePart::ImagePart(LayerContext& context) : c_(context) {
  const BlockShape& s = c_.shape;
  if (s.images == 0 || !c_.model.vision) return;
  whole_rows_ = s.images * s.patches / patches_a_token(*c_.model.vision);
  rows_ = patches_of_rank(s) / patches_a_token(*c_.model.vision);
}

SlotId ImagePart::whole(SlotId tokens) {
  if (rows_ == whole_rows_) return tokens;
  auto& b = c_.b;
  const SlotId all = b.slot("visual tokens of all", c_.activation_dtype(), whole_rows_, c_.hidden);
  b.exposed(Collective{CollectiveKind::all_gather, Axis::tp, bytes()}, {tokens}, {all});
  return all;
}

void ImagePart::put(SlotId text) {
  const SlotId tokens =
      c_.b.slot("visual tokens", c_.activation_dtype(), rows_, c_.hidden, Storage::wire);
  const SlotId all = whole(tokens);
  c_.rowwise(RowwiseKind::copy, whole_rows_, c_.hidden, {all}, {text}).role = Role::put_images;
}

SlotId ImagePart::add(SlotId y) {
  const SlotId all = whole(tap_wire(c_, "deepstack tokens", rows_, c_.hidden, c_.shape.tap));
  c_.b.at(y).storage = Storage::local;
  const SlotId sum =
      c_.b.slot("y with images", c_.activation_dtype(), c_.local_tokens, c_.hidden, Storage::wire);
  c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {y, all}, {sum}).role = Role::add_images;
  return sum;
}

// A frozen tower wants no gradients.
void ImagePart::take(SlotId dy) {
  if (c_.shape.frozen) return;
  auto& b = c_.b;
  const SlotId mine =
      c_.shape.tap >= 0
          ? tap_wire(c_, "d deepstack tokens", rows_, c_.hidden, c_.shape.tap)
          : b.slot("d visual tokens", c_.activation_dtype(), rows_, c_.hidden, Storage::wire);
  const bool shared = rows_ != whole_rows_;
  const SlotId all =
      shared ? b.slot("d visual tokens of all", c_.activation_dtype(), whole_rows_, c_.hidden)
             : mine;
  c_.rowwise(RowwiseKind::copy, whole_rows_, c_.hidden, {dy}, {all}).role = Role::take_images;
  if (shared) {
    b.exposed(Collective{CollectiveKind::reduce_scatter, Axis::tp, bytes()}, {all}, {mine});
    b.flush();  // the op that would wait may belong to the weight gradients' pass, which is later
  }
}

Bytes ImagePart::bytes() const {
  return Bytes(static_cast<double>(whole_rows_ * c_.hidden) * size_of(c_.activation_dtype()));
}

}  // namespace qplan
