#pragma once
// What one command does to one rank's memory on a GPU: launches on a stream, nothing waits. Private
// to the CUDA backend.

#include "executor/cuda/nccl_world.h"
#include "executor/cuda/rank.h"
#include "executor/operands.h"

namespace qplan {

// Work that one rank does alone.
void launch(CudaRank& rank, const Command& command, cudaStream_t stream);

// A collective of this rank's group, a step of its ring, or a message to or from a neighbouring
// stage.
void launch_collective(CudaRank& rank, NcclWorld& world, const Command& command,
                       cudaStream_t stream);
void launch_ring(CudaRank& rank, NcclWorld& world, const Command& command, cudaStream_t stream);
void launch_message(CudaRank& rank, NcclWorld& world, const Command& command, cudaStream_t stream);

// ---- parts of launch(), by subject ----

void launch_product(CudaRank& rank, const Command& command, const Gemm& work, cudaStream_t stream);
void launch_heads(CudaRank& rank, const Command& command, const Rowwise& work, cudaStream_t stream);
void launch_normed_heads(CudaRank& rank, const Command& command, cudaStream_t stream);
void launch_norms_without_weights(CudaRank& rank, const Command& command, bool backward,
                                  cudaStream_t stream);
void launch_attention(CudaRank& rank, const Command& command, const Attention& work,
                      cudaStream_t stream);
void launch_part_attention(CudaRank& rank, const Command& command, const Attention& work,
                           cudaStream_t stream);
// A copy into or out of what ranks exchange when heads are traded for sequence.
void launch_shares(CudaRank& rank, const Command& command, cudaStream_t stream);
// Behind an attention over all keys: learned sinks take their share, or get their gradient.
void launch_sinks(CudaRank& rank, const Command& command, const Attention& work,
                  const AttentionOperands& operands, cudaStream_t stream);
void launch_router(CudaRank& rank, const Command& command, bool backward, cudaStream_t stream);
void launch_permute(CudaRank& rank, const Command& command, cudaStream_t stream);
// Llama 4: experts' rows times a number each, before the experts read them.
void launch_scale_rows(CudaRank& rank, const Command& command, bool backward, cudaStream_t stream);
void launch_experts_product(CudaRank& rank, const Command& command, const GroupedGemm& work,
                            cudaStream_t stream);
// What a scaled bias of experts adds to the gradient of its scale.
void add_bias_to_scale_gradient(CudaRank& rank, const Command& command, cudaStream_t stream);
void launch_loss(CudaRank& rank, const Command& command, const Rowwise& work, cudaStream_t stream);
void launch_adamw(CudaRank& rank, const Command& command, cudaStream_t stream);
void launch_host_copy(CudaRank& rank, const Command& command, const HostCopy& work,
                      cudaStream_t stream);
void launch_host_adam(CudaRank& rank, const Command& command, cudaStream_t stream);
void launch_sum_of_squares(CudaRank& rank, const Command& command, cudaStream_t stream);
// Linear layers in fp8.
void launch_amax(CudaRank& rank, const Command& command, const Rowwise& work, cudaStream_t stream);
void launch_quantize(CudaRank& rank, const Command& command, const Rowwise& work,
                     cudaStream_t stream);
void launch_transpose(CudaRank& rank, const Command& command, cudaStream_t stream);
void launch_fp8_product(CudaRank& rank, const Command& command, const Gemm& work,
                        cudaStream_t stream);
// A Join that moves states where one rank alone holds them.
void launch_join(CudaRank& rank, const Command& command, cudaStream_t stream);
// What this rank alone holds, beside a gather.
void copy_parameters(CudaRank& rank, const Command& command, cudaStream_t stream);
void keep_gradients(CudaRank& rank, const Command& command, cudaStream_t stream);

// A gate of attention's output and of shared experts, and its gradient.
void launch_gate(CudaRank& rank, const Command& command, bool backward, cudaStream_t stream);
// Queries that lie beside their gates: taken apart, normed, and their gradients put together.
void launch_gated_heads(CudaRank& rank, const Command& command, cudaStream_t stream);
void launch_head_norms(CudaRank& rank, const Command& command, bool backward, cudaStream_t stream);
// Gated DeltaNet, and what Mamba-2 shares with it.
void launch_convolution(CudaRank& rank, const Command& command, bool backward, cudaStream_t stream);
void launch_unit_heads(CudaRank& rank, const Command& command, bool backward, cudaStream_t stream);
void launch_decay_gates(CudaRank& rank, const Command& command, bool backward, cudaStream_t stream);
void launch_gated_norm(CudaRank& rank, const Command& command, bool backward, cudaStream_t stream);
void launch_delta_rule(CudaRank& rank, const Command& command, const GatedDeltaRule& work,
                       cudaStream_t stream);
// Columns of several operands in one, or apart.
void launch_beside(CudaRank& rank, const Command& command, cudaStream_t stream);
// Mamba-2.
void launch_scan(CudaRank& rank, const Command& command, const StateSpaceScan& work,
                 cudaStream_t stream);
void launch_group_norm(CudaRank& rank, const Command& command, bool backward, cudaStream_t stream);

// Finds an attention's kernels; bytes of scratch that they need.
std::int64_t prepare_attention(CudaRank& rank, const Command& command, const Attention& work);
std::int64_t prepare_part_attention(CudaRank& rank, const Command& command, const Attention& work);

// ---- collectives over states, over keys and values, and over expert rows ----

void gather_parameters(CudaRank& rank, const Command& command, const Collective& work,
                       ncclComm_t group, cudaStream_t stream);
void reduce_gradients(CudaRank& rank, const Command& command, const Collective& work,
                      ncclComm_t group, cudaStream_t stream);

// Keys and values of all ranks of a cp group, gradients of theirs, or heads for sequence.
void exchange_context(CudaRank& rank, const Command& command, const Collective& work,
                      ncclComm_t group, cudaStream_t stream);

// Token copies to the ranks of an ep group that hold their experts, and back.
void exchange_rows(CudaRank& rank, const Command& command, ncclComm_t group, cudaStream_t stream);

// ---- what several subjects need ----

// Of sums over rows: a deterministic plan's are the same in every run.
inline kernels::RowOrder row_order(const CudaRank& rank) {
  return rank.job.plan.deterministic ? kernels::RowOrder::fixed : kernels::RowOrder::drawn;
}

// A tensor's numbers, of the format that kernels take.
kernels::bf16* bf16_of(const Tensor& tensor);
float* float_of(const Tensor& tensor);

// The parameter that an op is of.
const PackedParameter& parameter_of(const CudaRank& rank, const Command& command);

// The gradient of a parameter, in the last slot that its backward writes. Frozen: null.
float* gradient_of(const CudaRank& rank, const Command& command, const PackedParameter& p);

float epsilon_of(const CudaRank& rank);

void copy(const Tensor& from, const Tensor& to, cudaStream_t stream);
// `cols` columns of each row of `from`, from `from_first` on, to those of `to` from `to_first` on;
// all multiples of 8 (a cudaMemcpy2D of such rows takes two to five times as long).
void copy_columns(const Tensor& from, std::int64_t from_first, const Tensor& to,
                  std::int64_t to_first, std::int64_t cols, cudaStream_t stream);

}  // namespace qplan
