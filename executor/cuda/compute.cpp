// Norms, activations, lookups, sums: what a rank does alone, and which file runs an op.

#include <variant>

#include "executor/cuda/ops.h"
#include "executor/io/weights.h"
#include "models/error.h"
#include "models/kernel_scratch.h"
#include "models/overloaded.h"

namespace qplan {
namespace {

void* bytes_of(const Tensor& tensor) {
  return tensor.data;
}

// Latent attention's keys: what is behind the normed part, the rotary key, passes through.
void copy_behind(const Tensor& from, const Tensor& to, std::int64_t cols, cudaStream_t stream) {
  if (to.cols > cols) copy_columns(from, cols, to, cols, to.cols - cols, stream);
}

// What a norm's weight is added to.
float centre_of(const CudaRank& rank) {
  return norm_around_zero(rank.job.model) ? 1.0F : 0.0F;
}

// A LayerNorm's bias, or its gradient, in a slot.
Tensor bias_in(const CudaRank& rank, const Command& c, const Tensor& slot) {
  const PackedParameter* const bias = bias_of(rank, c, parameter_of(rank, c));
  QPLAN_CHECK(bias != nullptr, "a LayerNorm has a bias");
  return parameter_in(slot, *bias);
}

kernels::LayerNormWeights layer_norm_of(const CudaRank& rank, const Command& c,
                                        const Tensor& slot) {
  return {bf16_of(parameter_in(slot, parameter_of(rank, c))), bf16_of(bias_in(rank, c, slot)),
          centre_of(rank)};
}

void norm(CudaRank& rank, const Command& c, const Rowwise& work, cudaStream_t stream) {
  const Tensor x = rank.tensor(c, c.reads[0]), y = rank.tensor(c, c.writes[0]);
  const Tensor weights = rank.tensor(c, c.reads[1]);
  if (work.kind == RowwiseKind::layer_norm) {
    return kernels::layer_norm(bf16_of(y), bf16_of(x), layer_norm_of(rank, c, weights), work.rows,
                               work.cols, epsilon_of(rank), stream);
  }
  const Tensor w = parameter_in(weights, parameter_of(rank, c));
  kernels::rms_norm(bf16_of(y), {1, y.cols}, bf16_of(x), {1, x.cols}, bf16_of(w), work.rows,
                    work.cols, epsilon_of(rank), stream, centre_of(rank));
  copy_behind(x, y, work.cols, stream);
}

// reads: x, dy, weights and perhaps the residual's gradient, which is added.
void norm_backward(CudaRank& rank, const Command& c, const Rowwise& work, cudaStream_t stream) {
  const Tensor x = rank.tensor(c, c.reads[0]), dy = rank.tensor(c, c.reads[1]);
  const Tensor weights = rank.tensor(c, c.reads[2]);
  const Tensor dx = rank.tensor(c, c.writes[0]);
  // A frozen norm has no gradient.
  const bool frozen = c.writes.count == 1;
  const auto gradient_of = [&](bool bias) -> float* {
    if (frozen) return nullptr;
    const Tensor gradients = rank.tensor(c, c.writes[1]);
    return float_of(bias ? bias_in(rank, c, gradients)
                         : parameter_in(gradients, parameter_of(rank, c)));
  };
  const kernels::bf16* residual = c.reads.count > 3 ? bf16_of(rank.tensor(c, c.reads[3])) : nullptr;
  auto* scratch = static_cast<float*>(rank.scratch());
  if (work.kind == RowwiseKind::layer_norm_backward) {
    return kernels::layer_norm_backward(
        {bf16_of(dx), gradient_of(false), gradient_of(true), bf16_of(x), bf16_of(dy), residual,
         layer_norm_of(rank, c, weights)},
        work.rows, work.cols, epsilon_of(rank), scratch, stream, row_order(rank));
  }
  const Tensor w = parameter_in(weights, parameter_of(rank, c));
  kernels::rms_norm_backward({bf16_of(dx),
                              gradient_of(false),
                              bf16_of(x),
                              bf16_of(dy),
                              bf16_of(w),
                              residual,
                              {1, dx.cols},
                              {1, x.cols},
                              {1, dy.cols},
                              centre_of(rank)},
                             work.rows, work.cols, epsilon_of(rank), scratch, stream,
                             row_order(rank));
  copy_behind(dy, dx, work.cols, stream);
}

kernels::Activation kernel_of(math::Activation activation) {
  switch (activation) {
    case math::Activation::swiglu:
      return kernels::Activation::swiglu;
    case math::Activation::swiglu_clamped:
      return kernels::Activation::swiglu_clamped;
    case math::Activation::gelu_tanh:
      return kernels::Activation::gelu_tanh;
    case math::Activation::relu2:
      return kernels::Activation::relu2;
    case math::Activation::gelu:
      break;
  }
  QPLAN_CHECK(false, "towers' mergers are refused before they run");
}

// Experts' rows are scaled by their probabilities: reads up, probabilities, counts.
void activate(CudaRank& rank, const Command& c, const Rowwise& work, cudaStream_t stream) {
  const Tensor x = rank.tensor(c, c.reads[0]), y = rank.tensor(c, c.writes[0]);
  const float* scale = c.reads.count > 1 ? float_of(rank.tensor(c, c.reads[1])) : nullptr;
  kernels::activate(kernel_of(activation_of(rank, c, work.kind)), bf16_of(y), bf16_of(x), scale,
                    y.rows, y.cols, stream);
}

void activate_backward(CudaRank& rank, const Command& c, const Rowwise& work, cudaStream_t stream) {
  const Tensor x = rank.tensor(c, c.reads[0]), dy = rank.tensor(c, c.reads[1]);
  const Tensor dx = rank.tensor(c, c.writes[0]);
  const bool scaled = c.reads.count > 2;
  const float* scale = scaled ? float_of(rank.tensor(c, c.reads[2])) : nullptr;
  float* dscale = scaled ? float_of(rank.tensor(c, c.writes[1])) : nullptr;
  kernels::activate_backward(kernel_of(activation_of(rank, c, work.kind)), bf16_of(dx), dscale,
                             bf16_of(x), bf16_of(dy), scale, dy.rows, dy.cols, stream);
  if (c.op->parameter != kNoParameter) add_bias_to_scale_gradient(rank, c, stream);
}

// {k|v, k, v} -> {k, v}: what a ring brought home, all keys and then all values, is added.
void add_home(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const Tensor both = rank.tensor(c, c.reads[0]);
  std::int64_t first = 0;
  for (const Operand& operand : c.writes) {
    const Tensor own = rank.tensor(c, operand);
    kernels::add(bf16_of(own), bf16_of(own), bf16_of(both.part(first, 1, 1)), nullptr,
                 own.elements(), stream);
    first += own.elements();
  }
}

void add(CudaRank& rank, const Command& c, cudaStream_t stream) {
  if (c.writes.count == 2) return add_home(rank, c, stream);
  QPLAN_CHECK(c.writes.count == 1 && c.reads.count >= 2 && c.reads.count <= 4,
              "two to four summands make one sum");
  const Tensor y = rank.tensor(c, c.writes[0]);
  const auto summand = [&](unsigned i) -> const kernels::bf16* {
    return i < c.reads.count ? bf16_of(rank.tensor(c, c.reads[i])) : nullptr;
  };
  kernels::add(bf16_of(y), summand(0), summand(1), summand(2), y.elements(), stream);
  if (summand(3) == nullptr) return;
  kernels::add(bf16_of(y), bf16_of(y), summand(3), nullptr, y.elements(), stream);
}

std::int64_t* int64_of(const Tensor& tensor) {
  return static_cast<std::int64_t*>(bytes_of(tensor));
}

// Null where the model has none.
const PackedParameter* learned_positions(const CudaRank& rank, const Command& c) {
  for (const PackedParameter& p : rank.block(c).parameters) {
    if (p.whole.role == ParameterRole::embed_positions) return &p;
  }
  return nullptr;
}

void embed(CudaRank& rank, const Command& c, bool backward, cudaStream_t stream) {
  const PackedParameter& p = parameter_of(rank, c);
  const PackedParameter* const positions = learned_positions(rank, c);
  const std::int64_t first = rank.at.tp * p.rows;
  if (!backward) {
    const Tensor table = parameter_in(rank.tensor(c, c.reads[0]), p);
    const Tensor y = rank.tensor(c, c.writes[0]), kept = rank.tensor(c, c.writes[1]);
    // One rank of the tensor-parallel group adds what all have.
    kernels::LearnedPositions learned;
    if (positions != nullptr && rank.at.tp == 0) {
      learned = {bf16_of(parameter_in(rank.tensor(c, c.reads[0]), *positions)),
                 rank.positions_on_device()};
    }
    kernels::embed(bf16_of(y), int64_of(kept), bf16_of(table), first, p.rows,
                   rank.ids(c.action.microbatch, c.op->ahead), learned, y.rows, y.cols, stream);
    return;
  }
  const Tensor dy = rank.tensor(c, c.reads[0]), kept = rank.tensor(c, c.reads[1]);
  const Tensor dtable = parameter_in(rank.tensor(c, c.writes[0]), p);
  check(kernels::embed_backward(float_of(dtable), bf16_of(dy), first, p.rows, int64_of(kept),
                                dy.rows, dy.cols, rank.scratch(), stream));
  if (positions == nullptr) return;
  const Tensor dpositions = parameter_in(rank.tensor(c, c.writes[0]), *positions);
  check(kernels::positions_backward(float_of(dpositions), bf16_of(dy), rank.positions_on_device(),
                                    dpositions.rows, dy.rows, dy.cols, rank.scratch(), stream));
}

void fill_with_zeros(const Tensor& tensor, cudaStream_t stream) {
  check(cudaMemsetAsync(tensor.data, 0, static_cast<std::size_t>(tensor.bytes()), stream));
}

// A gate, or queries without the gates that lie beside them.
bool takes_gated_heads(const CudaRank& rank, const Command& c) {
  return rank.job.model.attention_output_gate && (c.op->role == Role::gate || c.writes.count == 3);
}

bool of_heads(const CudaRank& rank, const Command& c) {
  return c.op->parameter != kNoParameter &&
         parameter_of(rank, c).whole.role == ParameterRole::q_norm;
}

void launch_rowwise(CudaRank& rank, const Command& c, const Rowwise& work, cudaStream_t stream) {
  const bool by_delta_net = rank.shape(c.instance).layer.mixer == Mixer::delta_net;
  switch (work.kind) {
    case RowwiseKind::rms_norm:
    case RowwiseKind::layer_norm:
      if (of_heads(rank, c)) return launch_head_norms(rank, c, false, stream);
      return norm(rank, c, work, stream);
    case RowwiseKind::rms_norm_backward:
    case RowwiseKind::layer_norm_backward:
      if (of_heads(rank, c)) return launch_head_norms(rank, c, true, stream);
      return norm_backward(rank, c, work, stream);
    case RowwiseKind::rope:
    case RowwiseKind::rope_backward:
      if (c.op->parameter != kNoParameter) return launch_normed_heads(rank, c, stream);
      return launch_heads(rank, c, work, stream);
    case RowwiseKind::copy:
      if (copies_parameters(rank, c)) return copy_parameters(rank, c, stream);
      if (c.op->role == Role::transpose) return launch_transpose(rank, c, stream);
      if (moves_heads(c)) return launch_shares(rank, c, stream);
      if (c.op->role == Role::beside) return launch_beside(rank, c, stream);
      if (takes_gated_heads(rank, c)) return launch_gated_heads(rank, c, stream);
      return launch_heads(rank, c, work, stream);
    case RowwiseKind::swiglu:
    case RowwiseKind::gelu:
      if (c.op->role == Role::gate) return launch_gate(rank, c, false, stream);
      return activate(rank, c, work, stream);
    case RowwiseKind::swiglu_backward:
    case RowwiseKind::gelu_backward:
      if (c.op->role == Role::gate_backward) return launch_gate(rank, c, true, stream);
      return activate_backward(rank, c, work, stream);
    case RowwiseKind::add:
      if (keeps_gradients(rank, c)) return keep_gradients(rank, c, stream);
      return add(rank, c, stream);
    case RowwiseKind::embedding:
      return embed(rank, c, false, stream);
    case RowwiseKind::embedding_backward:
      return embed(rank, c, true, stream);
    case RowwiseKind::cross_entropy:
    case RowwiseKind::cross_entropy_backward:
    case RowwiseKind::scale:
      if (c.op->role == Role::gate) return launch_gate(rank, c, false, stream);
      if (c.op->role == Role::gate_backward) return launch_gate(rank, c, true, stream);
      return launch_loss(rank, c, work, stream);
    case RowwiseKind::router:
      return launch_router(rank, c, false, stream);
    case RowwiseKind::router_backward:
      return launch_router(rank, c, true, stream);
    case RowwiseKind::permute:
    case RowwiseKind::unpermute:
    case RowwiseKind::group_rows:
      return launch_permute(rank, c, stream);
    case RowwiseKind::scale_rows:
      return launch_scale_rows(rank, c, false, stream);
    case RowwiseKind::scale_rows_backward:
      return launch_scale_rows(rank, c, true, stream);
    case RowwiseKind::l2_norm:
      return by_delta_net ? launch_unit_heads(rank, c, false, stream)
                          : launch_norms_without_weights(rank, c, false, stream);
    case RowwiseKind::l2_norm_backward:
      return by_delta_net ? launch_unit_heads(rank, c, true, stream)
                          : launch_norms_without_weights(rank, c, true, stream);
    case RowwiseKind::sum_of_squares:
      return launch_sum_of_squares(rank, c, stream);
    case RowwiseKind::amax:
      return launch_amax(rank, c, work, stream);
    case RowwiseKind::quantize:
      return launch_quantize(rank, c, work, stream);
    case RowwiseKind::causal_conv:
    case RowwiseKind::mamba_conv:
      return launch_convolution(rank, c, false, stream);
    case RowwiseKind::causal_conv_backward:
    case RowwiseKind::mamba_conv_backward:
      return launch_convolution(rank, c, true, stream);
    case RowwiseKind::decay_gates:
      return launch_decay_gates(rank, c, false, stream);
    case RowwiseKind::decay_gates_backward:
      return launch_decay_gates(rank, c, true, stream);
    case RowwiseKind::gated_norm:
      return launch_gated_norm(rank, c, false, stream);
    case RowwiseKind::gated_norm_backward:
      return launch_gated_norm(rank, c, true, stream);
    case RowwiseKind::group_norm:
      return launch_group_norm(rank, c, false, stream);
    case RowwiseKind::group_norm_backward:
      return launch_group_norm(rank, c, true, stream);
    case RowwiseKind::zero_fill:
      return fill_with_zeros(rank.tensor(c, c.writes[0]), stream);
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
  QPLAN_CHECK(false, "models with such ops are refused before they run");
}

}  // namespace

kernels::bf16* bf16_of(const Tensor& tensor) {
  QPLAN_CHECK(tensor.dtype == DType::bf16, "activations on a GPU are bf16");
  return static_cast<kernels::bf16*>(bytes_of(tensor));
}

float* float_of(const Tensor& tensor) {
  QPLAN_CHECK(tensor.dtype == DType::fp32, "gradients and statistics on a GPU are fp32");
  return static_cast<float*>(bytes_of(tensor));
}

const PackedParameter& parameter_of(const CudaRank& rank, const Command& c) {
  return rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
}

float* gradient_of(const CudaRank& rank, const Command& c, const PackedParameter& p) {
  if (p.frozen) return nullptr;
  return float_of(parameter_in(rank.tensor(c, c.writes[c.writes.count - 1U]), p));
}

float epsilon_of(const CudaRank& rank) {
  return static_cast<float>(rank.job.model.norm_epsilon);
}

void copy(const Tensor& from, const Tensor& to, cudaStream_t stream) {
  QPLAN_CHECK(from.dtype == to.dtype && from.elements() == to.elements(),
              "a copy changes neither format nor size");
  check(cudaMemcpyAsync(to.data, from.data, static_cast<std::size_t>(from.bytes()),
                        cudaMemcpyDeviceToDevice, stream));
}

void copy_columns(const Tensor& from, std::int64_t from_first, const Tensor& to,
                  std::int64_t to_first, std::int64_t cols, cudaStream_t stream) {
  kernels::copy_lines(bf16_of(to.part(to_first, 1, 1)), {1, to.cols},
                      bf16_of(from.part(from_first, 1, 1)), {1, from.cols}, to.rows, cols, stream);
}

void launch(CudaRank& rank, const Command& c, cudaStream_t stream) {
  std::visit(
      Overloaded{[&](const Gemm& work) { launch_product(rank, c, work, stream); },
                 [&](const GroupedGemm& work) { launch_experts_product(rank, c, work, stream); },
                 [&](const Attention& work) { launch_attention(rank, c, work, stream); },
                 [&](const Rowwise& work) { launch_rowwise(rank, c, work, stream); },
                 [&](const Update&) { launch_adamw(rank, c, stream); },
                 [&](const HostAdam&) { launch_host_adam(rank, c, stream); },
                 [&](const HostCopy& work) { launch_host_copy(rank, c, work, stream); },
                 [&](const Join&) { launch_join(rank, c, stream); },
                 [&](const GatedDeltaRule& work) { launch_delta_rule(rank, c, work, stream); },
                 [&](const StateSpaceScan& work) { launch_scan(rank, c, work, stream); },
                 [&](const Muon&) {
                   QPLAN_CHECK(false, "optimizers other than Adam are refused before they run");
                 },
                 [&](const Collective&) { QPLAN_CHECK(false, "nobody is alone in a collective"); },
                 [&](const SendRecv&) { QPLAN_CHECK(false, "nobody is alone in a ring"); }},
      c.op->work);
  check(cudaGetLastError());
}

}  // namespace qplan
