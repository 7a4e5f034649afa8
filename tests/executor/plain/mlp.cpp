#include "tests/executor/plain/mlp.h"

#include <cmath>
#include <utility>

namespace qplan::plain {
namespace {

Activation activation_of(const ModelSpec& m) {
  if (m.architecture == "gpt_oss") return Activation::swiglu_clamped;
  if (m.mlp == MlpKind::swiglu) return Activation::swiglu;
  return m.mlp == MlpKind::relu2 ? Activation::relu2 : Activation::gelu_tanh;
}

}  // namespace

Buffer Mlp::forward(const Buffer& x) {
  x_ = x;
  const Activation kind = activation_of(p_.m);
  const Buffer up = p_.linear(up_, x.view(), copy_);
  in_ = Buffer(x.rows, is_gated(kind) ? 2 * up.cols : up.cols);
  if (is_gated(kind)) {
    const Buffer gate = p_.linear(gate_, x.view(), copy_);
    add(gate.view(), in_.view().columns(0, up.cols));
    add(up.view(), in_.view().columns(up.cols, up.cols));
  } else {
    add(up.view(), in_.view());
  }
  act_ = Buffer(x.rows, up.cols);
  activate(kind, std::as_const(in_).view(), {}, act_.view());
  return p_.linear(down_, act_.view(), copy_);
}

Buffer Mlp::backward(const Buffer& dy) {
  const Activation kind = activation_of(p_.m);
  const Buffer dact = p_.linear_backward(down_, act_.view(), dy.view(), copy_);
  Buffer din(in_.rows, in_.cols);
  activate_backward(kind, std::as_const(in_).view(), {}, dact.view(), din.view(), {});
  if (!is_gated(kind)) return p_.linear_backward(up_, x_.view(), din.view(), copy_);
  const std::int64_t f = act_.cols;
  Buffer dx = p_.linear_backward(gate_, x_.view(), din.view().columns(0, f), copy_);
  add_to(dx, p_.linear_backward(up_, x_.view(), din.view().columns(f, f), copy_));
  return dx;
}

Experts::Experts(Part part) : p_(part) {
  const MoeSpec& moe = *p_.m.moe;
  shape_ = {.experts = moe.num_experts,
            .top_k = moe.top_k,
            .sigmoid_scores = moe.sigmoid_scores,
            .num_groups = moe.num_groups,
            .topk_group = moe.topk_group,
            .norm_topk_prob = moe.norm_topk_prob,
            .routed_scaling_factor = moe.routed_scaling_factor};
  for (std::int64_t e = 0; e < shape_.experts; ++e) {
    experts_.emplace_back(p_, expert_gate_proj, expert_up_proj, expert_down_proj, e);
  }
  if (moe.shared_expert_intermediate_size > 0) {
    shared_ = std::make_unique<Mlp>(p_, shared_gate_proj, shared_up_proj, shared_down_proj);
  }
}

Buffer Experts::forward(const Buffer& x) {
  x_ = x;
  const Buffer logits = p_.linear(router, x.view());
  scores_ = Buffer(x.rows, shape_.experts);
  weights_ = Buffer(x.rows, shape_.top_k);
  chosen_.resize(at(x.rows * shape_.top_k));
  router_scores(logits.view(), shape_, scores_.view());
  choose_experts(scores_.view(), p_.vector(score_correction), shape_, chosen_);
  router_weights(scores_.view(), chosen_, shape_, weights_.view());
  order_ = order_by_expert(sent(), shape_.experts);
  Buffer rows(std::ssize(order_.copies), x.cols);
  permute(x.view(), order_.copies, shape_.top_k, rows.view());
  expert_out_ = Buffer(rows.rows, rows.cols);
  each_expert([&](Mlp& expert, std::int64_t first, std::int64_t count) {
    const Buffer out = expert.forward(part_of(rows, first, count));
    add(out.view(), expert_out_.view().row_range(first, count));
  });
  Buffer y(x.rows, x.cols);
  unpermute(expert_out_.view(), order_.copies, shape_.top_k, weights_.data, y.view());
  if (shared_) add_shared(y);
  return y;
}

Buffer Experts::backward(const Buffer& dy) {
  Buffer drows(expert_out_.rows, expert_out_.cols), dweights(weights_.rows, weights_.cols);
  unpermute_backward(std::as_const(expert_out_).view(), order_.copies, shape_.top_k, weights_.data,
                     dy.view(), drows.view(), dweights.data);
  Buffer dpermuted(drows.rows, drows.cols);
  each_expert([&](Mlp& expert, std::int64_t first, std::int64_t count) {
    const Buffer part = expert.backward(part_of(drows, first, count));
    add(part.view(), dpermuted.view().row_range(first, count));
  });
  Buffer dx(x_.rows, x_.cols), dlogits(scores_.rows, scores_.cols);
  unpermute(dpermuted.view(), order_.copies, shape_.top_k, {}, dx.view());
  router_backward(scores_.view(), chosen_, dweights.view(), {}, shape_, dlogits.view());
  add_to(dx, p_.linear_backward(router, x_.view(), dlogits.view()));
  if (shared_) add_to(dx, shared_backward(dy));
  return dx;
}

Buffer Experts::part_of(const Buffer& x, std::int64_t first, std::int64_t count) {
  Buffer part(count, x.cols);
  add(x.view().row_range(first, count), part.view());
  return part;
}

std::vector<std::int32_t> Experts::sent() const {
  std::vector<std::int32_t> kept = chosen_;
  if (p_.capacity.factor == 0) return kept;
  const double capacity = std::ceil(static_cast<double>(chosen_.size()) /
                                    static_cast<double>(shape_.experts) * p_.capacity.factor);
  for (std::size_t i = 0; i < chosen_.size(); ++i) {
    int preferred = 0;
    for (std::size_t j = 0; j < chosen_.size(); ++j) {
      const float mine = p_.capacity.keeps_first ? 0 : weights_.data[i];
      const float other = p_.capacity.keeps_first ? 0 : weights_.data[j];
      const bool better = other > mine || (other == mine && j < i);
      if (chosen_[j] == chosen_[i] && better) ++preferred;
    }
    if (preferred >= capacity) kept[i] = -1;
  }
  return kept;
}

double Experts::shared_weight(std::int64_t token) const {
  if (!p_.m.moe->shared_expert_gate) return 1;
  return 1 / (1 + std::exp(-static_cast<double>(shared_logits_.view().at(token, 0))));
}

void Experts::add_shared(Buffer& y) {
  shared_out_ = shared_->forward(x_);
  if (p_.m.moe->shared_expert_gate) shared_logits_ = p_.linear(shared_expert_gate, x_.view());
  for (std::int64_t t = 0; t < y.rows; ++t) {
    for (std::int64_t c = 0; c < y.cols; ++c) {
      y.view().at(t, c) += static_cast<float>(shared_weight(t) * shared_out_.view().at(t, c));
    }
  }
}

Buffer Experts::shared_backward(const Buffer& dy) {
  Buffer dout(dy.rows, dy.cols), dlogit(dy.rows, 1);
  for (std::int64_t t = 0; t < dy.rows; ++t) {
    const double weight = shared_weight(t);
    double product = 0;
    for (std::int64_t c = 0; c < dy.cols; ++c) {
      const double d = dy.view().at(t, c);
      product += d * shared_out_.view().at(t, c);
      dout.view().at(t, c) = static_cast<float>(weight * d);
    }
    dlogit.view().at(t, 0) = static_cast<float>(product * weight * (1 - weight));
  }
  Buffer dx = shared_->backward(dout);
  if (p_.m.moe->shared_expert_gate) {
    add_to(dx, p_.linear_backward(shared_expert_gate, x_.view(), dlogit.view()));
  }
  return dx;
}

}  // namespace qplan::plain
