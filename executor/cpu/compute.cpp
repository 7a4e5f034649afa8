// Products, norms, activations, rotary embedding, lookups, sums: what a rank does alone.

#include <algorithm>
#include <cmath>
#include <variant>

#include "executor/cpu/ops.h"
#include "executor/io/weights.h"
#include "executor/math/activation.h"
#include "executor/math/embedding.h"
#include "executor/math/gemm.h"
#include "executor/math/norm.h"
#include "executor/math/sigmoid.h"
#include "models/error.h"
#include "models/overloaded.h"

namespace qplan {
namespace {

using math::ConstMatrix;
using math::Matrix;

const PackedParameter& parameter_of(const CpuRank& rank, const Command& c) {
  return rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
}

// Products with an adapter's B, and the one that takes a gradient through its A.
// y[:, columns] += scale u[:, inner] B^T.
void adapter_forward(CpuRank& rank, const Command& c) {
  const AdapterView view = adapter_view(rank, c);
  Values u(rank.tensor(c, c.reads[0])), y(rank.tensor(c, c.writes[0]));
  Values b(parameter_in(rank.tensor(c, c.reads[1]), parameter_of(rank, c)));
  math::multiply(u.matrix().columns(view.inner, view.rank), math::Op::plain, b.matrix(),
                 math::Op::transposed, y.matrix().columns(view.column, view.width),
                 /*accumulate=*/true, view.scale);
  y.commit();
}

// du[:, inner] = scale dy[:, columns] B; or dx += du A.
void adapter_input_gradient(CpuRank& rank, const Command& c, const Gemm& work) {
  Values dy(rank.tensor(c, c.reads[0])), dx(rank.tensor(c, c.writes[0]));
  const Tensor weights = rank.tensor(c, c.reads[1]);
  if (adapter_of(rank, c) == Adapter::lora_a) {
    Values a(weight_of(rank, c, weights, work.k).weight);
    math::multiply(dy.matrix(), math::Op::plain, a.matrix(), math::Op::plain, rows_of(dx, work.n),
                   /*accumulate=*/true);
  } else {
    const AdapterView view = adapter_view(rank, c);
    Values b(parameter_in(weights, parameter_of(rank, c)));
    math::multiply(dy.matrix().columns(view.column, view.width), math::Op::plain, b.matrix(),
                   math::Op::plain, dx.matrix().columns(view.inner, view.rank),
                   /*accumulate=*/false, view.scale);
  }
  dx.commit();
}

// dB += scale dy[:, columns]^T u[:, inner].
void adapter_weight_gradient(CpuRank& rank, const Command& c) {
  const AdapterView view = adapter_view(rank, c);
  Values dy(rank.tensor(c, c.reads[0])), u(rank.tensor(c, c.reads[1]));
  Values gradient(parameter_in(rank.tensor(c, c.writes[0]), parameter_of(rank, c)));
  math::multiply(dy.matrix().columns(view.column, view.width), math::Op::transposed,
                 u.matrix().columns(view.inner, view.rank), math::Op::plain, gradient.matrix(),
                 /*accumulate=*/true, view.scale);
  gradient.commit();
}

// Of an overlapped product, its piece's rows alone: others arrive and leave meanwhile.
void forward(CpuRank& rank, const Command& c, const Gemm& work) {
  const Tensor x = rank.tensor(c, c.reads[0]), y = rank.tensor(c, c.writes[0]);
  const Weight w = weight_of(rank, c, rank.tensor(c, c.reads[1]), work.n);
  Values weight(w.weight);
  const Piece piece = piece_of(rank, *c.op, y.rows);
  const bool biased = w.bias.data != nullptr && adds_bias(rank, parameter_of(rank, c));
  for (std::int64_t r = 0; r < piece.ranks; ++r) {
    const auto rows = [&](const Tensor& all) {
      const bool whole = c.op->pieces == 1;
      return whole ? all : all.row_range(r * piece.share + piece.first, piece.count);
    };
    Values in(rows(x)), out(rows(y), false);
    math::linear(rows_of(in, work.k), weight.matrix(), out.matrix());
    if (biased) {
      Values bias(w.bias);
      math::add_bias(bias.all(), out.matrix());
    }
    out.commit();
  }
}

void input_gradient(CpuRank& rank, const Command& c, const Gemm& work) {
  // What is behind the columns of a wider result stays.
  Values dy(rank.tensor(c, c.reads[0])), dx(rank.tensor(c, c.writes[0]));
  const Weight w = weight_of(rank, c, rank.tensor(c, c.reads[1]), work.k);
  Values weight(w.weight);
  math::linear_dgrad(dy.matrix(), weight.matrix(), rows_of(dx, work.n));
  dx.commit();
}

void weight_gradient(CpuRank& rank, const Command& c, const Gemm& work) {
  Values dy(rank.tensor(c, c.reads[0])), x(rank.tensor(c, c.reads[1]));
  const Weight w = weight_of(rank, c, rank.tensor(c, c.writes[0]), work.m);
  Values gradient(w.weight);
  math::linear_wgrad(dy.matrix(), rows_of(x, work.n), gradient.matrix());
  gradient.commit();
  if (w.bias.data == nullptr) return;
  Values bias(w.bias);
  math::bias_backward(dy.matrix(), bias.all());
  bias.commit();
}

math::NormShape norm_shape(const CpuRank& rank, const Command& c) {
  return {.epsilon = rank.spec(c).norm_epsilon,
          .weight_around_zero = norm_around_zero(rank.spec(c))};
}

// The weight of a norm and, for LayerNorm, its bias.
struct NormParameters {
  Tensor weight, bias;
};
NormParameters norm_parameters(const CpuRank& rank, const Command& c, const Tensor& slot) {
  const PackedParameter& p = parameter_of(rank, c);
  const auto mine = [&](const PackedParameter& q) {
    return slot.part(q.offset + c.op->copy * q.stride, q.rows, q.cols);
  };
  NormParameters n{mine(p), {}};
  if (const PackedParameter* const bias = bias_of(rank, c, p)) n.bias = mine(*bias);
  return n;
}

void norm_forward(CpuRank& rank, const Command& c, const Rowwise& work) {
  Values x(rank.tensor(c, c.reads[0])), y(rank.tensor(c, c.writes[0]), false);
  const NormParameters p = norm_parameters(rank, c, rank.tensor(c, c.reads[1]));
  Values weight(p.weight);
  const Matrix in = rows_of(x, work.cols), out = rows_of(y, work.cols);
  if (work.kind == RowwiseKind::rms_norm) {
    math::rms_norm(in, weight.all(), norm_shape(rank, c), out);
  } else {
    Values bias(p.bias);
    math::layer_norm(in, weight.all(), bias.all(), norm_shape(rank, c), out);
  }
  // Latent attention's keys: what is behind the normed part, the rotary key, passes through.
  for (std::int64_t r = 0; r < work.rows && y.matrix().cols > work.cols; ++r) {
    for (std::int64_t i = work.cols; i < y.matrix().cols; ++i) {
      y.matrix().at(r, i) = x.matrix().at(r, i);
    }
  }
  y.commit();
}

// reads: x, dy, weights and perhaps the residual's gradient, which is added.
void norm_backward(CpuRank& rank, const Command& c, const Rowwise& work) {
  Values x(rank.tensor(c, c.reads[0])), dy(rank.tensor(c, c.reads[1]));
  Values dx(rank.tensor(c, c.writes[0]), false);
  const NormParameters p = norm_parameters(rank, c, rank.tensor(c, c.reads[2]));
  const PackedParameter& own = parameter_of(rank, c);
  Values weight(p.weight);
  NormGradient dweight(rank, c, own);
  const Matrix in = rows_of(x, work.cols), dout = rows_of(dy, work.cols),
               din = rows_of(dx, work.cols);
  if (work.kind == RowwiseKind::rms_norm_backward) {
    math::rms_norm_backward(in, weight.all(), norm_shape(rank, c), dout, din, dweight.all());
  } else {
    NormGradient dbias(rank, c, *bias_of(rank, c, own));
    math::layer_norm_backward(in, weight.all(), norm_shape(rank, c), dout, din, dweight.all(),
                              dbias.all());
    dbias.commit();
  }
  dweight.commit();
  for (std::int64_t r = 0; r < work.rows && dx.matrix().cols > work.cols; ++r) {
    for (std::int64_t i = work.cols; i < dx.matrix().cols; ++i) {
      dx.matrix().at(r, i) = dy.matrix().at(r, i);
    }
  }
  if (c.reads.count > 3) {
    Values residual(rank.tensor(c, c.reads[3]));
    math::add(residual.matrix(), dx.matrix());
  }
  dx.commit();
}

// Experts' rows are scaled by their probabilities: reads up, probabilities, counts.
void activate(CpuRank& rank, const Command& c, const Rowwise& work) {
  Values x(rank.tensor(c, c.reads[0])), y(rank.tensor(c, c.writes[0]), false);
  std::optional<Values> scale;
  if (c.reads.count > 1) scale.emplace(rank.tensor(c, c.reads[1]));
  math::activate(activation_of(rank, c, work.kind), x.matrix(),
                 scale ? math::ConstFloats(scale->all()) : math::ConstFloats(), y.matrix());
  y.commit();
}

void activate_backward(CpuRank& rank, const Command& c, const Rowwise& work) {
  Values x(rank.tensor(c, c.reads[0])), dy(rank.tensor(c, c.reads[1]));
  Values dx(rank.tensor(c, c.writes[0]), false);
  const auto kind = activation_of(rank, c, work.kind);
  if (c.reads.count == 2) {
    math::activate_backward(kind, x.matrix(), {}, dy.matrix(), dx.matrix(), {});
  } else {
    Values scale(rank.tensor(c, c.reads[2])), dscale(rank.tensor(c, c.writes[1]), false);
    math::activate_backward(kind, x.matrix(), scale.all(), dy.matrix(), dx.matrix(), dscale.all());
    if (c.op->parameter != kNoParameter) add_bias_to_scale_gradient(rank, c, dscale);
    dscale.commit();
  }
  dx.commit();
}

using math::sigmoid;

void gate(CpuRank& rank, const Command& c) {
  Values x(rank.tensor(c, c.reads[0])), number(rank.tensor(c, c.reads[1]));
  Values y(rank.tensor(c, c.writes[0]), false);
  const bool each = number.matrix().cols > 1;
  for (std::int64_t r = 0; r < x.matrix().rows; ++r) {
    for (std::int64_t i = 0; i < x.matrix().cols; ++i) {
      const double share = sigmoid(number.matrix().at(r, each ? i : 0));
      y.matrix().at(r, i) = static_cast<float>(share * static_cast<double>(x.matrix().at(r, i)));
    }
  }
  y.commit();
}

void gate_backward(CpuRank& rank, const Command& c) {
  Values dy(rank.tensor(c, c.reads[0])), x(rank.tensor(c, c.reads[1])),
      number(rank.tensor(c, c.reads[2]));
  Values dx(rank.tensor(c, c.writes[0]), false), dnumber(rank.tensor(c, c.writes[1]), false);
  const bool each = number.matrix().cols > 1;
  for (std::int64_t r = 0; r < x.matrix().rows; ++r) {
    double dot = 0;
    for (std::int64_t i = 0; i < x.matrix().cols; ++i) {
      const double share = sigmoid(number.matrix().at(r, each ? i : 0));
      const auto d = static_cast<double>(dy.matrix().at(r, i));
      dx.matrix().at(r, i) = static_cast<float>(share * d);
      if (each) dot = 0;
      dot += d * static_cast<double>(x.matrix().at(r, i));
      dnumber.matrix().at(r, each ? i : 0) = static_cast<float>(dot * share * (1 - share));
    }
  }
  dx.commit();
  dnumber.commit();
}

// The gradients of keys and values that went around the ring, side by side, to the rank's own.
void add_ring_gradients(CpuRank& rank, const Command& c) {
  Values ring(rank.tensor(c, c.reads[0]));
  std::int64_t first = 0;
  for (const Operand& operand : c.writes) {
    Values own(rank.tensor(c, operand));
    math::add(ring.matrix().columns(first, own.matrix().cols), own.matrix());
    own.commit();
    first += own.matrix().cols;
  }
}

// The sum of what it reads.
void add(CpuRank& rank, const Command& c) {
  if (c.writes.count == 2) return add_ring_gradients(rank, c);
  Values y(rank.tensor(c, c.writes[0]), false);
  std::ranges::fill(y.all(), 0.0F);
  for (const Operand& operand : c.reads) {
    Values x(rank.tensor(c, operand));
    math::add(x.matrix(), y.matrix());
  }
  y.commit();
}

// Columns of several operands in one: {a, b} -> {a|b}, or apart.
void side_by_side(CpuRank& rank, const Command& c) {
  const bool together = c.writes.count == 1;
  Values wide(rank.tensor(c, together ? c.writes[0] : c.reads[0]), !together);
  std::int64_t first = 0;
  for (const Operand& operand : together ? c.reads : c.writes) {
    Values part(rank.tensor(c, operand), together);
    const std::int64_t cols = part.matrix().cols;
    for (std::int64_t r = 0; r < part.matrix().rows; ++r) {
      float* const there = &wide.matrix().at(r, first);
      if (together)
        std::copy_n(part.matrix().row(r).data(), cols, there);
      else
        std::copy_n(there, cols, part.matrix().row(r).data());
    }
    if (!together) part.commit();
    first += cols;
  }
  if (together) wide.commit();
}

// A rank has some rows of the table; learned positions are whole on every rank, and added by one.
void embed(CpuRank& rank, const Command& c) {
  const PackedParameter& p = parameter_of(rank, c);
  const Tensor weights = rank.tensor(c, c.reads[0]);
  Values table(parameter_in(weights, p)), y(rank.tensor(c, c.writes[0]), false);
  const std::vector<std::int32_t> ids = rank.tokens(c.action.microbatch, c.op->ahead);
  const Tensor kept = rank.tensor(c, c.writes[1]);
  auto* kept_ids = static_cast<std::int64_t*>(static_cast<void*>(kept.data));
  std::copy(ids.begin(), ids.end(), kept_ids);
  math::embed(table.matrix(), rank.at.tp * p.rows, ids, y.matrix());
  for (const PackedParameter& other : rank.block(c).parameters) {
    if (other.whole.role != ParameterRole::embed_positions || rank.at.tp > 0) continue;
    Values positions(parameter_in(weights, other));
    std::vector<float> rows(y.all().size());
    const std::vector<std::int64_t> where = rank.positions();
    const Matrix place(rows, y.matrix().rows, y.matrix().cols);
    math::embed(positions.matrix(), 0, std::vector<std::int32_t>(where.begin(), where.end()),
                place);
    math::add(place, y.matrix());
  }
  y.commit();
}

void embed_backward(CpuRank& rank, const Command& c) {
  const PackedParameter& p = parameter_of(rank, c);
  const Tensor gradients = rank.tensor(c, c.writes[0]);
  Values dy(rank.tensor(c, c.reads[0])), dtable(parameter_in(gradients, p));
  const Tensor kept = rank.tensor(c, c.reads[1]);
  const auto* kept_ids = static_cast<const std::int64_t*>(static_cast<const void*>(kept.data));
  const std::vector<std::int32_t> ids =
      embedded_tokens(rank, {kept_ids, kept_ids + kept.elements()});
  math::embed_backward(dy.matrix(), rank.at.tp * p.rows, ids, dtable.matrix());
  dtable.commit();
  for (const PackedParameter& other : rank.block(c).parameters) {
    if (other.whole.role != ParameterRole::embed_positions) continue;
    Values dpositions(parameter_in(gradients, other));
    const std::vector<std::int64_t> where = rank.positions();
    math::embed_backward(dy.matrix(), 0, std::vector<std::int32_t>(where.begin(), where.end()),
                         dpositions.matrix());
    dpositions.commit();
  }
}

}  // namespace

void run_product(CpuRank& rank, const Command& c, const Gemm& work) {
  if (work.dtype == DType::fp8) return run_fp8_product(rank, c, work);
  if (c.op->role == Role::merge_adapter) return run_merge(rank, c);
  const Adapter adapter = adapter_of(rank, c);
  if (c.op->role == Role::input_gradient) {
    return adapter == Adapter::none ? input_gradient(rank, c, work)
                                    : adapter_input_gradient(rank, c, work);
  }
  if (c.op->role == Role::weight_gradient) {
    return adapter == Adapter::lora_b ? adapter_weight_gradient(rank, c)
                                      : weight_gradient(rank, c, work);
  }
  adapter == Adapter::lora_b ? adapter_forward(rank, c) : forward(rank, c, work);
}

void run_rowwise(CpuRank& rank, const Command& c, const Rowwise& work) {
  const bool per_head =
      c.op->parameter != kNoParameter &&
      rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)].whole.role ==
          ParameterRole::q_norm;
  const bool by_delta_net = rank.shape(c.instance).layer.mixer == Mixer::delta_net;
  switch (work.kind) {
    case RowwiseKind::rms_norm:
    case RowwiseKind::layer_norm:
      return per_head ? run_qk_norm(rank, c, false) : norm_forward(rank, c, work);
    case RowwiseKind::rms_norm_backward:
    case RowwiseKind::layer_norm_backward:
      return per_head ? run_qk_norm(rank, c, true) : norm_backward(rank, c, work);
    case RowwiseKind::rope:
    case RowwiseKind::rope_backward:
      return run_rope(rank, c, work);
    case RowwiseKind::swiglu:
    case RowwiseKind::gelu:
      if (c.op->role == Role::gate) return gate(rank, c);
      return activate(rank, c, work);
    case RowwiseKind::swiglu_backward:
    case RowwiseKind::gelu_backward:
      if (c.op->role == Role::gate_backward) return gate_backward(rank, c);
      return activate_backward(rank, c, work);
    case RowwiseKind::scale_rows:
      return run_scale_rows(rank, c, false);
    case RowwiseKind::scale_rows_backward:
      return run_scale_rows(rank, c, true);
    case RowwiseKind::l2_norm:
      return by_delta_net ? run_delta_norm(rank, c, false) : run_qk_norm(rank, c, false);
    case RowwiseKind::l2_norm_backward:
      return by_delta_net ? run_delta_norm(rank, c, true) : run_qk_norm(rank, c, true);
    case RowwiseKind::causal_conv:
    case RowwiseKind::mamba_conv:
      return run_convolution(rank, c, false);
    case RowwiseKind::causal_conv_backward:
    case RowwiseKind::mamba_conv_backward:
      return run_convolution(rank, c, true);
    case RowwiseKind::decay_gates:
      return run_decay_gates(rank, c, false);
    case RowwiseKind::decay_gates_backward:
      return run_decay_gates(rank, c, true);
    case RowwiseKind::gated_norm:
      return run_gated_norm(rank, c, false);
    case RowwiseKind::gated_norm_backward:
      return run_gated_norm(rank, c, true);
    case RowwiseKind::group_norm:
      return run_group_norm(rank, c, false);
    case RowwiseKind::group_norm_backward:
      return run_group_norm(rank, c, true);
    case RowwiseKind::add:
      if (c.op->role == Role::magnify_backward) return run_magnify_backward(rank, c, work);
      if (keeps_gradients(rank, c)) return keep_gradients(rank, c);
      return add(rank, c);
    case RowwiseKind::embedding:
      return embed(rank, c);
    case RowwiseKind::embedding_backward:
      return embed_backward(rank, c);
    case RowwiseKind::router:
      return run_router(rank, c, false);
    case RowwiseKind::router_backward:
      return run_router(rank, c, true);
    case RowwiseKind::permute:
    case RowwiseKind::unpermute:
    case RowwiseKind::group_rows:
      return run_permute(rank, c);
    case RowwiseKind::scale:
      if (c.op->role == Role::gate) return gate(rank, c);
      if (c.op->role == Role::gate_backward) return gate_backward(rank, c);
      if (c.op->role == Role::merged_squares) return run_merged_squares(rank, c);
      if (c.op->role == Role::magnify) return run_magnify(rank, c, work);
      return run_loss(rank, c, work.kind);
    case RowwiseKind::cross_entropy:
    case RowwiseKind::cross_entropy_backward:
      return run_loss(rank, c, work.kind);
    case RowwiseKind::copy:
      if (copies_parameters(rank, c)) return copy_parameters(rank, c);
      if (c.op->role == Role::transpose) return run_transpose(rank, c);
      if (moves_heads(c)) return move_heads(rank, c);
      if (c.op->role != Role::beside) return run_copy(rank, c);
      return by_delta_net && c.reads.count == 3 ? put_projected(rank, c) : side_by_side(rank, c);
    case RowwiseKind::zero_fill:
      std::ranges::fill(rank.tensor(c, c.writes[0]).span(), std::byte{0});
      return;
    case RowwiseKind::sum_of_squares:
      return run_sum_of_squares(rank, c);
    case RowwiseKind::amax:
      return run_amax(rank, c, work);
    case RowwiseKind::quantize:
      return run_quantize(rank, c, work);
    case RowwiseKind::accumulate:
    case RowwiseKind::dropout_add:
    case RowwiseKind::dropout_add_backward:
    case RowwiseKind::cast:
    case RowwiseKind::dequantize:
    case RowwiseKind::chunk_cat:
    case RowwiseKind::masked_fill:
    case RowwiseKind::halves_swiglu:
    case RowwiseKind::halves_swiglu_backward:
    case RowwiseKind::weigh_rows:
    case RowwiseKind::weigh_rows_backward:
    case RowwiseKind::index_put:
    case RowwiseKind::expert_bias:
    case RowwiseKind::expert_bias_backward:
    case RowwiseKind::clamp:
    case RowwiseKind::clamp_backward:
    case RowwiseKind::gated_group_norm:
      break;
  }
  QPLAN_CHECK(false, "the qplan recipe has no dropout, and casts in two steps");
}

void compute(CpuRank& rank, const Command& c) {
  if (run_images(rank, c)) return;
  std::visit(
      Overloaded{[&](const Gemm& work) { run_product(rank, c, work); },
                 [&](const GroupedGemm& work) { run_experts_product(rank, c, work); },
                 [&](const Attention& work) { run_attention(rank, c, work); },
                 [&](const Rowwise& work) { run_rowwise(rank, c, work); },
                 [&](const Update& work) { run_update(rank, c, work); },
                 [&](const HostAdam&) { run_adamw(rank, c, true); },
                 [&](const Join&) { run_join(rank, c); },
                 [&](const GatedDeltaRule& work) { run_delta_rule(rank, c, work); },
                 [&](const StateSpaceScan& work) { run_scan(rank, c, work); },
                 [&](const Muon&) { run_muon(rank, c); },
                 // The host's share of the optimizer reads and writes the arena itself.
                 [&](const HostCopy&) {},
                 [&](const Collective&) { QPLAN_CHECK(false, "nobody is alone in a collective"); },
                 [&](const SendRecv&) { QPLAN_CHECK(false, "nobody is alone in a ring"); }},
      c.op->work);
}

}  // namespace qplan
