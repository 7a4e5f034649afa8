// The blocks at the vocabulary: embedding, and head with the loss.

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "models/program/image_part.h"
#include "models/program/layer_context.h"
#include "models/program/prediction_slot.h"
#include "models/program/state_builder.h"

namespace qplan {
namespace {

// torch's embedding_dense_backward makes a gradient of the whole table, zeros but for the tokens'
// rows. Where rows are added to the accumulated gradient none is needed; where every microbatch is
// reduced, the table is that gradient.
SlotId dense_table_gradient(LayerContext& c) {
  if (c.recipe.states.adds_gradients || c.shape.zero >= 2 || c.shape.fresh_gradients) {
    return kNoSlot;
  }
  const std::int64_t rows = vocabulary_share(c.model, c.shape);
  const SlotId table = c.b.slot("gradient of the table", c.activation_dtype(), rows, c.hidden);
  c.rowwise(RowwiseKind::zero_fill, rows, c.hidden, {}, {table});
  return table;
}

// Final norm, logits over this rank's vocabulary, loss: of the token after each.
class LogitsPart {
 public:
  // `ahead` 1: of the token after that. A model that predicts it has both norms in another block.
  explicit LogitsPart(LayerContext& context, std::uint8_t ahead = 0)
      : c_(context), kind_(context.loss_kind()), loss_(context.loss()), ahead_(ahead) {
    // A tied head's table is the embedding's.
    const auto own = c_.b.parameter(ParameterRole::lm_head);
    table_ = own != kNoParameter ? own : c_.b.parameter(ParameterRole::embed_tokens);
  }

  void forward(SlotId x) {
    auto& b = c_.b;
    const DType act = c_.activation_dtype();
    const std::int64_t v = vocabulary_share(c_.model, c_.shape);
    x_ = normed_ = x;
    if (has_norm()) {
      normed_ = b.slot("final normed", act, c_.local_tokens, c_.hidden);
      c_.norm_forward(ParameterRole::final_norm, x, normed_, c_.local_tokens, c_.hidden);
    }
    const SlotId whole = whole_ = c_.gather_sequence(normed_);
    if (c_.shape.fpdt_chunk > 0) copy_hidden(true);
    if (c_.loss_parts().count > 1) return;  // all of it is done in backward, which follows at once
    logits_ = b.slot("logits", act, c_.tokens, v);
    b.compute(product(c_.tokens, v, c_.hidden), {whole, c_.table_weights()}, {logits_}).parameter =
        table_;
    if (loss_.kept_bytes > 0) {
      copy_ = b.slot("copies of logits", DType::boolean, c_.tokens,
                     static_cast<std::int64_t>(loss_.kept_bytes) * v);
    }
    loss(c_.tokens, v);
  }

  // The gradient of what forward took leaves the block.
  void backward() {
    auto& b = c_.b;
    const SlotId dnormed = c_.loss_parts().count > 1 ? head_in_chunks() : head_backward();
    if (c_.shape.tp > 1) b.wait_for(Stream::model_comm);
    if (!has_norm()) {
      b.at(dnormed).storage = Storage::wire;
      b.at(dnormed).flow = ahead_ > 0 ? Flow::prediction : Flow::activation;
      b.flush();
      return;
    }
    const SlotId dx = b.slot("dx", c_.hidden_dtype(), c_.local_tokens, c_.hidden, Storage::wire);
    c_.norm_backward(ParameterRole::final_norm, x_, dnormed, kNoSlot, dx, c_.local_tokens,
                     c_.hidden);
  }

 private:
  // The gradient of the normed input, and of the table.
  SlotId head_backward() {
    auto& b = c_.b;
    const std::int64_t v = vocabulary_share(c_.model, c_.shape);
    const SlotId dlogits = loss_backward(c_.tokens, v);
    const bool trains = c_.table_gradients() != kNoSlot;
    const SlotId whole = trains ? c_.gather_sequence(normed_, /*wait=*/false) : normed_;
    const SlotId partial = b.slot("dhead partial", c_.activation_dtype(), c_.tokens, c_.hidden);
    input_gradient(dlogits, partial, c_.tokens, v);
    if (whole != normed_) {
      b.wait_for(Stream::model_comm);
      b.flush();
    }
    const SlotId dnormed = c_.reduce_input_gradient(partial, "dhead");
    if (trains) {
      c_.weight_gradient(table_, weight_product(c_.tokens, v), dlogits, whole,
                         c_.table_gradients());
    }
    return dnormed;
  }

  // Logits, loss and both gradients of one part of the tokens after the other. The input's are put
  // together in fp32 (torchtitan's GradAccumulator), the table's added up.
  SlotId head_in_chunks() {
    auto& b = c_.b;
    const DType act = c_.activation_dtype();
    const std::int64_t v = vocabulary_share(c_.model, c_.shape), h = c_.hidden;
    const LossParts parts = c_.loss_parts();
    const bool twice = c_.shape.fpdt_chunk > 0;  // forward keeps none of its logits
    if (twice) copy_hidden(false);
    const bool narrow = kind_ == LossKind::liger || twice;
    const SlotId assembled = narrow ? b.slot("dhead partial", act, c_.tokens, h)
                                    : b.slot("dhead partial in fp32", DType::fp32, c_.tokens, h);
    if (narrow) {
      c_.rowwise(RowwiseKind::zero_fill, c_.tokens, h, {}, {assembled});
    } else {
      in_fp32(RowwiseKind::zero_fill, c_.tokens, h, kNoSlot, {assembled});
    }
    const bool trains = c_.table_gradients() != kNoSlot;
    const bool reduced_later = c_.shape.zero >= 2;  // else each product's is added as it comes
    for (std::int64_t i = 0; i < parts.count; ++i) {
      const std::int64_t rows = std::min(parts.rows, c_.tokens - i * parts.rows);
      logits_ = b.slot("logits", act, rows, v);
      b.compute(product(rows, v, h), {whole_, c_.table_weights_backward()}, {logits_}).parameter =
          table_;
      loss(rows, v);
      if (twice) {
        logits_ = b.slot("logits", act, rows, v);
        b.compute(product(rows, v, h), {whole_, c_.table_weights_backward()}, {logits_}).parameter =
            table_;
        loss(rows, v);
      }
      const SlotId dlogits = loss_backward(rows, v);
      if (narrow) {
        input_gradient(dlogits, assembled, rows, v);
      } else {
        const SlotId part = b.slot("dhead partial", act, rows, h);
        input_gradient(dlogits, part, rows, v);
        in_fp32(RowwiseKind::cast, rows, h, part, {assembled});
      }
      if (!trains) continue;
      if (!reduced_later) {
        c_.weight_gradient(table_, weight_product(rows, v), dlogits, whole_, c_.table_gradients());
        continue;
      }
      const SlotId fresh = b.slot("dtable of a part", act, v, h);
      Op& wgrad = b.compute(weight_product(rows, v), {dlogits, whole_}, {fresh});
      wgrad.parameter = table_;
      wgrad.role = Role::weight_gradient;
      in_fp32(i == 0 ? RowwiseKind::cast : RowwiseKind::accumulate, v, h, fresh,
              {c_.table_gradients()});
    }
    if (narrow) return c_.reduce_input_gradient(assembled, "dhead");
    const SlotId partial = b.slot("dhead partial", act, c_.tokens, h);
    c_.rowwise(RowwiseKind::cast, c_.tokens, h, {assembled}, {partial});
    return c_.reduce_input_gradient(partial, "dhead");
  }

  // FPDT's loss keeps its input on the host (FPDT_LogitsLoss in DeepSpeed's fpdt_layer.py).
  void copy_hidden(bool to_host) {
    auto& b = c_.b;
    const Bytes bytes(static_cast<double>(c_.tokens * c_.hidden) * size_of(c_.activation_dtype()));
    const Stream stream = to_host ? Stream::d2h : Stream::h2d;
    Op& copy = to_host ? b.aside(stream, HostCopy{bytes, true}, {whole_}, {})
                       : b.aside(stream, HostCopy{bytes, false}, {}, {whole_});
    copy.role = Role::chunk_copy;
    b.wait_for(stream);
    if (to_host) b.flush();
  }

  SlotId loss_backward(std::int64_t rows, std::int64_t v) {
    auto& b = c_.b;
    const double bytes = loss_.gradient_bytes + (c_.shape.tp > 1 ? loss_.split_gradient_bytes : 0);
    const SlotId dlogits = c_.recipe.form.loss ? b.slot("dlogits", c_.activation_dtype(), rows, v)
                                               : b.slot("dlogits", DType::boolean, rows,
                                                        static_cast<std::int64_t>(bytes) * v);
    if (kind_ == LossKind::native) {
      // calculate_gradients: a copy, less one at the targets; what it is times the loss's gradient
      // goes over the probabilities and, in 16 bits, out: as many bytes as a sum of two formats.
      const SlotId copied = b.slot("copy of the probabilities", DType::fp32, rows, v);
      in_fp32(RowwiseKind::copy, rows, v, copy_, {copied});
      in_fp32(RowwiseKind::accumulate, rows, v, copied, {copy_, dlogits}).ahead = ahead_;
      return dlogits;
    }
    if (kind_ == LossKind::te && copy_ != kNoSlot) {
      // The gradient is scaled where it is; autograd casts it.
      in_fp32(RowwiseKind::scale, rows, v, copy_, {copy_});
      in_fp32(RowwiseKind::cast, rows, v, copy_, {dlogits}).ahead = ahead_;
      return dlogits;
    }
    const SlotId logits = loss_.keeps_logits ? logits_ : kNoSlot;
    if (kind_ == LossKind::narrow) {
      // Zeros but at the targets; their sum; what they become beside the log-softmax
      // (cunn_SoftMaxBackward).
      c_.rowwise(RowwiseKind::zero_fill, rows, v, {}, {dlogits});
      c_.rowwise(RowwiseKind::sum_of_squares, rows, v, {dlogits}, {dlogits});
      c_.rowwise(RowwiseKind::add, rows, v, {logits, copy_, dlogits}, {dlogits}).ahead = ahead_;
      return dlogits;
    }
    c_.rowwise(RowwiseKind::cross_entropy_backward, rows, v, {logits, copy_, log_sum_}, {dlogits})
        .ahead = ahead_;
    return dlogits;
  }

  Op& in_fp32(RowwiseKind kind, std::int64_t rows, std::int64_t cols, SlotId from,
              BlockBuilder::Slots to) {
    return c_.b.compute(Rowwise{.kind = kind, .rows = rows, .cols = cols, .dtype = DType::fp32},
                        {from}, to);
  }

  void input_gradient(SlotId dlogits, SlotId partial, std::int64_t rows, std::int64_t v) {
    Op& dgrad = c_.b.compute(product(rows, c_.hidden, v), {dlogits, c_.table_weights_backward()},
                             {partial});
    dgrad.parameter = table_;
    dgrad.role = Role::input_gradient;
  }

  // Vocabulary-parallel loss: maximum, target logit and sum of exponentials
  // (docs/reference/physics.md 3.1). Other recipes name one slot for what they keep in `copy_`.
  void loss(std::int64_t rows, std::int64_t v) {
    auto& b = c_.b;
    const SlotId loss = b.slot("loss", DType::fp32, rows, 1);
    if (c_.recipe.form.loss) return spelled_loss(loss, rows, v);
    if (kind_ == LossKind::native) {
      // calculate_logits_max, calculate_predicted_logits, calculate_cross_entropy_loss
      in_fp32(RowwiseKind::cast, rows, v, logits_, {copy_, loss}).ahead = ahead_;
      reduce(CollectiveKind::all_reduce, rows, loss);
      in_fp32(RowwiseKind::scale, rows, v, copy_, {copy_, loss}).ahead = ahead_;
      reduce(CollectiveKind::all_reduce, 2 * rows, loss);
      in_fp32(RowwiseKind::scale, rows, v, copy_, {copy_, loss}).ahead = ahead_;
      return;
    }
    if (kind_ == LossKind::narrow) {
      // torch's log_softmax reads a row for its maximum, for the sum of exponentials and for the
      // result (cunn_SoftMaxForward, aten/src/ATen/native/cuda/SoftMax.cu).
      c_.rowwise(RowwiseKind::sum_of_squares, rows, v, {logits_}, {loss});
      c_.rowwise(RowwiseKind::sum_of_squares, rows, v, {logits_}, {loss});
      c_.rowwise(RowwiseKind::scale, rows, v, {logits_}, {copy_, loss}).ahead = ahead_;
    } else {
      c_.rowwise(RowwiseKind::cross_entropy, rows, v, {logits_}, {loss, copy_}).ahead = ahead_;
    }
    if (kind_ == LossKind::te)
      return reduce(CollectiveKind::all_gather, 3 * rows * c_.shape.tp, loss);
    for (int i = 0; i < 3; ++i) reduce(CollectiveKind::all_reduce, rows, loss);
  }

  // fp32 numbers of all tp ranks.
  void reduce(CollectiveKind kind, std::int64_t numbers, SlotId slot) {
    if (c_.shape.tp == 1) return;
    const Bytes bytes(static_cast<double>(numbers) * 4);
    c_.b.aside(Stream::model_comm, Collective{kind, Axis::tp, bytes}, {slot}, {slot});
    c_.b.wait_for(Stream::model_comm);
  }

  void spelled_loss(SlotId loss, std::int64_t rows, std::int64_t v) {
    auto& b = c_.b;
    log_sum_ = b.slot("log-sum of exponentials", DType::fp32, rows, 1);
    const bool split = c_.shape.tp > 1;
    const SlotId maximum = split ? b.slot("largest of all ranks", DType::fp32, rows, 1) : kNoSlot;
    c_.rowwise(RowwiseKind::cross_entropy, rows, v, {logits_}, {loss, log_sum_, maximum}).ahead =
        ahead_;
    if (!split) return;
    const Bytes bytes(static_cast<double>(rows) * 4);
    const auto all_reduce = [&](SlotId slot) -> Op& {
      Op& op = b.aside(Stream::model_comm, Collective{CollectiveKind::all_reduce, Axis::tp, bytes},
                       {slot}, {slot});
      b.wait_for(Stream::model_comm);
      return op;
    };
    const Rowwise one_column{
        .kind = RowwiseKind::scale, .rows = rows, .cols = 1, .dtype = DType::fp32};
    all_reduce(maximum).role = Role::maximum;
    b.compute(one_column, {log_sum_, maximum}, {log_sum_}).role = Role::loss_rescale;
    all_reduce(log_sum_);
    all_reduce(loss);
    Op& finish = b.compute(one_column, {loss, log_sum_, maximum}, {loss, log_sum_});
    finish.role = Role::loss_finish;
    finish.ahead = ahead_;
  }

  [[nodiscard]] bool has_norm() const { return c_.model.num_mtp_layers == 0; }

  // The head stays in the activation's precision, whatever the layers run in.
  [[nodiscard]] Gemm product(std::int64_t rows, std::int64_t n, std::int64_t k) const {
    return {.m = rows, .n = n, .k = k, .dtype = c_.activation_dtype()};
  }
  [[nodiscard]] Gemm weight_product(std::int64_t rows, std::int64_t v) const {
    return product(v, c_.hidden, rows);
  }

  LayerContext& c_;
  LossKind kind_;
  LossTraits loss_;
  std::uint8_t ahead_;
  std::int16_t table_ = kNoParameter;
  SlotId x_ = kNoSlot, normed_ = kNoSlot, whole_ = kNoSlot, logits_ = kNoSlot, copy_ = kNoSlot;
  SlotId log_sum_ = kNoSlot;
};

// The rows of the table that tokens name, and their gradient.
class EmbeddingPart {
 public:
  // `ahead`: how many tokens further on than the hidden state is; 0: the model's own input.
  EmbeddingPart(LayerContext& context, std::uint8_t ahead)
      : c_(context), images_(context), ahead_(ahead) {}

  void forward() {
    auto& b = c_.b;
    ids_ = b.slot("token ids", DType::int64, c_.tokens, 1);
    // With one tp rank (or plain all-reduce) the looked-up rows are the block's output themselves.
    const bool scattered = c_.shape.tp > 1 && c_.shape.sequence_parallel;
    const SlotId rows = b.slot("embedded", c_.hidden_dtype(), c_.tokens, c_.hidden,
                               scattered ? Storage::local : Storage::wire);
    Op& lookup = c_.rowwise(RowwiseKind::embedding, c_.tokens, c_.hidden, {c_.table_weights()},
                            {rows, ids_});
    lookup.parameter = b.parameter(ParameterRole::embed_tokens);
    lookup.ahead = ahead_;
    const SlotId y = c_.reduce_partial(rows, "y");
    b.at(y).storage = Storage::wire;
    b.at(y).flow = flow();
    if (sees()) images_.put(y);
  }

  [[nodiscard]] SlotId gradient() const {
    const SlotId dy = c_.b.slot("dy", c_.hidden_dtype(), c_.local_tokens, c_.hidden, Storage::wire);
    c_.b.at(dy).flow = flow();
    return dy;
  }

  void backward(SlotId dy) {
    auto& b = c_.b;
    if (sees()) images_.take(dy);
    if (c_.table_gradients() == kNoSlot) {
      b.compute(Join{}, {dy}, {});  // where gradients end
      return;
    }
    const SlotId whole = c_.gather_sequence(dy);
    const SlotId table = dense_table_gradient(c_);
    c_.rowwise(RowwiseKind::embedding_backward, c_.tokens, c_.hidden, {whole, ids_},
               {table == kNoSlot ? c_.table_gradients() : table})
        .parameter = b.parameter(ParameterRole::embed_tokens);
    if (table == kNoSlot) return;
    c_.accumulate(table, c_.table_gradients(), vocabulary_share(c_.model, c_.shape), c_.hidden);
  }

 private:
  [[nodiscard]] Flow flow() const { return ahead_ > 0 ? Flow::prediction : Flow::activation; }
  [[nodiscard]] bool sees() const { return c_.shape.images > 0; }

  LayerContext& c_;
  ImagePart images_;
  std::uint8_t ahead_;
  SlotId ids_ = kNoSlot;
};

}  // namespace

// Of each token, or, for multi-token prediction, of each of those after it that are predicted:
// beside the activations, which this block does not touch.
Block build_embedding(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  const bool next = s.kind == BlockKind::mtp_embedding;
  BlockBuilder b(next ? "mtp embedding" : "embedding");
  LayerContext c(m, r, s, b);
  StateBuilder state(c);
  state.declare();
  b.into(&Block::forward);
  state.enter_forward();
  std::vector<EmbeddingPart> parts;
  for (std::int64_t ahead = next ? 1 : 0; ahead <= (next ? m.mtp_passes : 0); ++ahead) {
    parts.emplace_back(c, static_cast<std::uint8_t>(ahead)).forward();
  }
  b.flush();
  b.into(&Block::backward);
  std::vector<SlotId> gradients;
  for (const EmbeddingPart& part : parts) gradients.push_back(part.gradient());
  state.enter_backward();
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i].backward(gradients[i]);
  b.flush();
  state.leave_backward();
  state.once_a_step();
  return b.take();
}

Block build_head(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  BlockBuilder b("head");
  LayerContext c(m, r, s, b);
  StateBuilder state(c);
  state.declare();
  dummy_weight_gradient(c, vocabulary_share(m, s), m.hidden_size);
  LogitsPart logits(c);
  std::vector<LogitsPart> further;
  const std::int64_t passes = m.num_mtp_layers > 0 ? m.mtp_passes : 0;
  for (std::int64_t i = 1; i <= passes; ++i) further.emplace_back(c, static_cast<std::uint8_t>(i));
  b.into(&Block::forward);
  const SlotId x = b.slot("x", c.hidden_dtype(), c.local_tokens, c.hidden, Storage::wire);
  state.enter_forward();
  for (LogitsPart& part : further) part.forward(prediction(c, "mtp hidden"));
  logits.forward(x);
  b.flush();
  b.into(&Block::backward);
  state.enter_backward();
  logits.backward();
  for (LogitsPart& part : further) part.backward();
  b.flush();
  state.leave_backward();
  state.once_a_step();
  return b.take();
}

}  // namespace qplan
