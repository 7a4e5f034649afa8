// The block of multi-token prediction, between decoder and head: a layer of both kinds of part.

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/program/attention_part.h"
#include "models/program/layer_context.h"
#include "models/program/mlp_part.h"
#include "models/program/moe_part.h"
#include "models/program/prediction_slot.h"
#include "models/program/recompute.h"
#include "models/program/state_builder.h"

namespace qplan {
namespace {

// One pass of the layer that predicts a further token.
class PredictionPart {
 public:
  explicit PredictionPart(LayerContext& context)
      : c_(context), attention_(context), mlp_(context), moe_(context) {}

  void expect() { next_ = prediction(c_, "embedding of the next token"); }

  // Normed hidden states -> the same of one more token, for the head and for the next pass.
  SlotId forward(SlotId hidden) {
    using enum ParameterRole;
    auto& b = c_.b;
    const std::int64_t rows = c_.local_tokens, h = c_.hidden;
    hidden_ = hidden;
    const SlotId next_normed = local("next normed", h), x_normed = local("hidden normed", h);
    c_.norm_forward(mtp_embed_norm, next_, next_normed, rows, h);
    c_.norm_forward(mtp_hidden_norm, hidden, x_normed, rows, h);
    both_ = local("embedding and hidden", 2 * h);
    c_.rowwise(RowwiseKind::copy, rows, 2 * h, {next_normed, x_normed}, {both_}).role =
        Role::beside;
    const SlotId projected = local("mtp projected", h);
    c_.linear(mtp_proj, both_, projected, rows, h, 2 * h);
    b.layer_module(LayerModule::attention);
    const SlotId middle = attention_.forward(projected);
    out_ = c_.shape.layer.moe ? moe_.forward(middle) : mlp_.forward(middle);
    b.layer_module(LayerModule::none);
    b.at(out_).storage = Storage::local;
    const SlotId result = prediction(c_, "mtp hidden");
    c_.norm_forward(mtp_final_norm, out_, result, rows, h);
    return result;
  }

  // `also`: another gradient of the hidden states that the pass took.
  SlotId backward(SlotId dnormed, SlotId also) {
    using enum ParameterRole;
    auto& b = c_.b;
    const std::int64_t rows = c_.local_tokens, h = c_.hidden;
    const SlotId dout = local("d mtp out", h);
    c_.norm_backward(mtp_final_norm, out_, dnormed, kNoSlot, dout, rows, h);
    const SlotId dmiddle = c_.shape.layer.moe ? moe_.backward(dout) : mlp_.backward(dout);
    b.layer_module(LayerModule::attention);
    const SlotId dprojected = attention_.backward(dmiddle);
    b.layer_module(LayerModule::none);
    b.at(dprojected).storage = Storage::local;
    const SlotId dboth = local("d embedding and hidden", 2 * h);
    c_.linear_dgrad(mtp_proj, dprojected, dboth, rows, h, 2 * h);
    c_.linear_wgrad(mtp_proj, dprojected, both_, rows, h, 2 * h);
    const SlotId dnext_normed = local("d next normed", h), dx_normed = local("d hidden normed", h);
    c_.rowwise(RowwiseKind::copy, rows, 2 * h, {dboth}, {dnext_normed, dx_normed}).role =
        Role::beside;
    c_.norm_backward(mtp_embed_norm, next_, dnext_normed, kNoSlot, prediction(c_, "d next"), rows,
                     h);
    const SlotId dhidden = local("d final normed", h);
    c_.norm_backward(mtp_hidden_norm, hidden_, dx_normed, also, dhidden, rows, h);
    return dhidden;
  }

 private:
  SlotId local(std::string_view name, std::int64_t cols) {
    return c_.b.slot(name, c_.activation_dtype(), c_.local_tokens, cols);
  }

  LayerContext& c_;
  AttentionPart attention_;
  MlpPart mlp_;
  MoePart moe_;
  SlotId next_ = kNoSlot, hidden_ = kNoSlot, both_ = kNoSlot, out_ = kNoSlot;
};

}  // namespace

// DeepSeek-V3's extra prediction: norms of the next token's embedding and of the hidden state,
// their projection 2h -> h, one layer, a norm for the shared head (arXiv 2412.19437, section 2.2);
// again on what that gives, for each further token. The model's final norm comes before all this,
// as in Megatron-Core (transformer_block.py), and is this block's; what it gives is passed on to
// the head.
Block build_mtp(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  BlockBuilder b("mtp");
  LayerContext c(m, r, s, b);
  StateBuilder state(c);
  state.declare();
  const DType act = c.activation_dtype();
  const std::int64_t rows = c.local_tokens, h = c.hidden;
  const auto wire = [&](std::string_view name) {
    return b.slot(name, act, rows, h, Storage::wire);
  };
  std::vector<PredictionPart> passes(static_cast<std::size_t>(m.mtp_passes), PredictionPart(c));
  b.into(&Block::forward);
  const SlotId x = wire("x");
  for (PredictionPart& pass : passes) pass.expect();
  state.enter_forward();
  const SlotId normed = b.slot("final normed", act, rows, h);
  c.norm_forward(ParameterRole::final_norm, x, normed, rows, h);
  const SlotId passed_on = wire("hidden passed on");
  c.rowwise(RowwiseKind::copy, rows, h, {normed}, {passed_on});
  SlotId hidden = normed;
  for (PredictionPart& pass : passes) hidden = pass.forward(hidden);
  b.flush();

  b.into(&Block::backward);
  const SlotId dpass = wire("dy");
  std::vector<SlotId> gradients;
  for (std::size_t i = 0; i < passes.size(); ++i)
    gradients.push_back(prediction(c, "d mtp hidden"));
  state.enter_backward();
  SlotId dhidden = gradients.back();
  for (std::size_t i = passes.size(); i-- > 0;) {
    dhidden = passes[i].backward(dhidden, i > 0 ? gradients[i - 1] : dpass);
  }
  const SlotId dx = wire("dx");
  c.norm_backward(ParameterRole::final_norm, x, dhidden, kNoSlot, dx, rows, h);
  b.flush();
  state.leave_backward();
  state.once_a_step();
  Block block = b.take();
  recompute(block, r, s, {{c.weights, c.weights_backward}, {c.adapters, c.adapters_backward}});
  return block;
}

}  // namespace qplan
