#include "tests/executor/plain/model.h"

#include <memory>
#include <numeric>
#include <utility>

#include "executor/math/cross_entropy.h"
#include "executor/math/embedding.h"
#include "tests/executor/plain/attention.h"
#include "tests/executor/plain/mlp.h"

namespace qplan {

namespace plain {
namespace {

class DecoderLayer {
 public:
  DecoderLayer(Part part, const LayerKind& kind) : p_(part), attention_(part, kind) {
    if (kind.moe) {
      experts_ = std::make_unique<Experts>(part);
    } else {
      mlp_ = std::make_unique<Mlp>(part, gate_proj, up_proj, down_proj);
    }
  }
  Buffer forward(Buffer x) {
    x_ = x;
    add_to(x, attention_.forward(p_.norm(input_norm, x_)));
    x2_ = x;
    const Buffer normed = p_.norm(post_attention_norm, x2_);
    add_to(x, mlp_ ? mlp_->forward(normed) : experts_->forward(normed));
    return x;
  }
  Buffer backward(Buffer dy) {
    const Buffer dnormed = mlp_ ? mlp_->backward(dy) : experts_->backward(dy);
    add_to(dy, p_.norm_backward(post_attention_norm, x2_, dnormed));
    const Buffer dattention = attention_.backward(dy);
    add_to(dy, p_.norm_backward(input_norm, x_, dattention));
    return dy;
  }

 private:
  Part p_;
  AttentionLayer attention_;
  std::unique_ptr<Mlp> mlp_;
  std::unique_ptr<Experts> experts_;
  Buffer x_, x2_;
};

// Sum of the losses of predicting targets[t] from row t, and the gradient of `scale` times it.
struct Prediction {
  double loss = 0;
  Buffer dhidden;
};
Prediction predict(const Part& table, ParameterRole role, const Buffer& hidden,
                   std::span<const std::int32_t> targets, double scale) {
  Buffer logits = table.linear(role, hidden.view());
  const VocabularyShard whole{0, table.m.vocab_size};
  const std::size_t n = targets.size();
  std::vector<float> maxima(n), sums(n), target(n), losses(n);
  logits_max(logits.view(), whole, maxima);
  logits_sums(logits.view(), whole, targets, maxima, sums, target);
  cross_entropy(sums, target, losses);
  cross_entropy_backward(logits.view(), whole, targets, maxima, sums, scale, logits.view());
  return {std::accumulate(losses.begin(), losses.end(), 0.0),
          table.linear_backward(role, hidden.view(), logits.view())};
}

// Multi-token prediction of the token after the next (arXiv 2412.19437, section 2.2, its last token
// left out: that has no target). Adds to the gradient of the hidden state.
class NextPrediction {
 public:
  NextPrediction(const Part& model, const Part& embedding, const Part& head)
      : p_(with_part(model)),
        embedding_(embedding),
        head_(head),
        layer_(p_, {.moe = p_.m.moe.has_value(), .window = 0}) {}

  double run(const Buffer& all_hidden, std::span<const std::int32_t> next,
             std::span<const std::int32_t> targets, double scale, Buffer& dhidden) {
    const std::int64_t rows = std::ssize(targets), h = p_.m.hidden_size;
    Buffer hidden(rows, h), embedded(rows, h), both(rows, 2 * h);
    add(all_hidden.view().row_range(0, rows), hidden.view());
    embed(embedding_.matrix(embed_tokens), 0, next, embedded.view());
    add(p_.norm(mtp_embed_norm, embedded).view(), both.view().columns(0, h));
    add(p_.norm(mtp_hidden_norm, hidden).view(), both.view().columns(h, h));
    const Buffer out = layer_.forward(p_.linear(mtp_proj, both.view()));
    const Buffer normed = p_.norm(mtp_final_norm, out);
    const Prediction prediction = predict(head_, lm_head, normed, targets, scale);

    const Buffer dout = p_.norm_backward(mtp_final_norm, out, prediction.dhidden);
    const Buffer dboth = p_.linear_backward(mtp_proj, both.view(), layer_.backward(dout).view());
    Buffer dembedded(rows, h), dnormed(rows, h);
    add(dboth.view().columns(0, h), dembedded.view());
    add(dboth.view().columns(h, h), dnormed.view());
    const Buffer dnext = p_.norm_backward(mtp_embed_norm, embedded, dembedded);
    embed_backward(dnext.view(), 0, next, {embedding_.gradient(embed_tokens), p_.m.vocab_size, h});
    add(p_.norm_backward(mtp_hidden_norm, hidden, dnormed).view(),
        dhidden.view().row_range(0, rows));
    return prediction.loss;
  }

 private:
  static Part with_part(Part model) {
    model.part = ModelPart::mtp;
    return model;
  }
  Part p_, embedding_, head_;
  DecoderLayer layer_;
};

// Sums over one sequence.
struct Losses {
  double main = 0, mtp = 0;
};

// Gradients are added: of `scale` times the one sum, and `mtp_scale` times the other.
Losses run_sequence(Part part, std::span<const std::int32_t> ids, double scale, double mtp_scale) {
  const ModelSpec& m = part.m;
  const std::size_t n = ids.size() - 1;
  const auto inputs = ids.first(n), targets = ids.last(n);
  Part embedding = part, head = part;
  embedding.part = ModelPart::embedding;
  head.part = ModelPart::head;

  Buffer x(std::ssize(inputs), m.hidden_size);
  embed(embedding.matrix(embed_tokens), 0, inputs, x.view());
  std::vector<std::int32_t> positions(inputs.size());
  std::iota(positions.begin(), positions.end(), 0);
  if (m.position == PositionEmbedding::learned) {
    Buffer learned(x.rows, m.hidden_size);
    embed(embedding.matrix(embed_positions), 0, positions, learned.view());
    add_to(x, learned);
  }
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (std::int64_t i = 0; i < m.num_layers; ++i) {
    part.layer = i;
    layers.push_back(std::make_unique<DecoderLayer>(part, m.layers[at(i)]));
    x = layers.back()->forward(x);
  }
  const Buffer normed = head.norm(final_norm, x);
  const bool tied = m.tie_word_embeddings;
  Losses losses;
  Prediction prediction =
      predict(tied ? embedding : head, tied ? embed_tokens : lm_head, normed, targets, scale);
  losses.main = prediction.loss;
  if (m.num_mtp_layers > 0) {
    part.layer = 0;
    losses.mtp =
        NextPrediction(part, embedding, head)
            .run(normed, targets.first(n - 1), targets.last(n - 1), mtp_scale, prediction.dhidden);
  }
  Buffer dx = head.norm_backward(final_norm, x, prediction.dhidden);
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    dx = (*layer)->backward(dx);
  }
  embed_backward(dx.view(), 0, inputs,
                 {embedding.gradient(embed_tokens), m.vocab_size, m.hidden_size});
  if (m.position == PositionEmbedding::learned) {
    embed_backward(dx.view(), 0, positions,
                   {embedding.gradient(embed_positions), m.max_position_embeddings, m.hidden_size});
  }
  return losses;
}

}  // namespace
}  // namespace plain

PlainModel::PlainModel(const ModelSpec& model, const WeightSource& weights,
                       plain::Capacity capacity)
    : model_(model), parameters_(model_parameters(model)), capacity_(capacity) {
  for (const ModelParameter& it : parameters_) {
    plain::Buffer values(it.parameter.rows, it.parameter.cols);
    weights(it, 0, 0, values.view());
    weights_.push_back(std::move(values.data));
  }
}

double PlainModel::step(std::span<const std::int32_t> ids, std::int64_t seq_len) {
  gradients_.clear();
  for (const auto& w : weights_) gradients_.emplace_back(w.size());
  const std::int64_t sequences = std::ssize(ids) / (seq_len + 1);
  const auto tokens = static_cast<double>(sequences * seq_len);
  const auto mtp_tokens = static_cast<double>(sequences * (seq_len - 1));
  double loss = 0;
  mtp_loss_ = 0;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const plain::Losses one =
        plain::run_sequence({model_, parameters_, weights_, gradients_, capacity_},
                            ids.subspan(math::at(i * (seq_len + 1)), math::at(seq_len + 1)),
                            1 / tokens, model_.mtp_loss_weight / mtp_tokens);
    loss += one.main / tokens;
    mtp_loss_ += one.mtp / mtp_tokens;
  }
  return loss;
}

}  // namespace qplan
