#include "executor/cuda/rank.h"

#include <algorithm>
#include <cmath>

#include "executor/cuda/ops.h"
#include "executor/math/attention.h"
#include "executor/math/rope.h"
#include "models/kernel_scratch.h"

namespace qplan {
namespace {

constexpr std::int64_t kSumBytes = CudaRank::kSums * sizeof(double);

void upload(const DeviceMemory& to, const void* from, std::int64_t bytes) {
  check(cudaMemcpy(to.get(), from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice));
}

}  // namespace

CudaRank::CudaRank(const RankJob& shared, const RankProgram& own, std::int64_t number)
    : Rank(shared, own, number, nullptr),
      attention(shared.model.mla ? math::latent_score_scale(shared.model.rope_scaling) : 1),
      arena_memory_(device_memory(own.extent)) {
  set_arena(arena_memory_.get());
  std::int64_t scratch = kKernelScratch;
  static_assert(kernels::kScratchBytes <= kKernelScratch, "kernels have the scratch they need");
  static_assert(kernels::kTokenScratch == kTokenScratch && kernels::kSortScratch == kSortScratch);
  for (const Command& c : own.commands) {
    if (c.kind != CommandKind::op) continue;
    if (const auto* work = std::get_if<Attention>(&c.op->work)) {
      scratch = std::max(scratch, prepare_attention(*this, c, *work));
    }
  }
  for (int i = 0; i < static_cast<int>(own.instances.size()); ++i) {
    if (holds_states(i) && offloaded(i) > 0) {
      host_shares_.emplace(i, std::make_unique<HostShare>(*this, i));
    }
  }
  scratch_ = take(scratch);
  sums_ = take(kSumBytes);
  sums_on_host_ = host_memory(kSumBytes);
  const std::vector<std::int64_t> where = positions();
  rows_ = std::ssize(where);
  if (job.model.num_mtp_layers > 0) ++shifts_;
  token_bytes_ = shifts_ * job.plan.num_microbatches() * rows_ * 4;
  tokens_ = take(token_bytes_);
  tokens_on_host_ = host_memory(token_bytes_);
  const std::vector<std::int32_t> narrow(where.begin(), where.end());
  positions_ = take(rows_ * 4);
  upload(positions_, narrow.data(), rows_ * 4);
  if (job.model.position == PositionEmbedding::rope) make_rotation();
  if (job.model.temperature_step > 0) make_temperatures();
}

DeviceMemory CudaRank::take(std::int64_t bytes) {
  extra_bytes_ += bytes;
  return device_memory(bytes);
}

// Cosines and sines are made in double: angles reach the sequence's length.
void CudaRank::make_rotation() {
  const ModelSpec& m = job.model;
  rotation_.turned = m.mla ? m.mla->qk_rope_head_dim
                           : std::llround(static_cast<double>(m.head_dim) * m.rotary_fraction);
  const std::vector<double> frequencies =
      math::rope_frequencies(m.rope_theta, rotation_.turned, m.rope_scaling);
  const double magnitude = rope_magnitude(m.rope_scaling);
  std::vector<float2> angles;
  for (std::int64_t p = 0; p < job.plan.seq_len; ++p) {
    for (const double f : frequencies) {
      const double angle = static_cast<double>(p) * f;
      angles.push_back({static_cast<float>(magnitude * std::cos(angle)),
                        static_cast<float>(magnitude * std::sin(angle))});
    }
  }
  const auto bytes = static_cast<std::int64_t>(angles.size() * sizeof(float2));
  angles_ = take(bytes);
  upload(angles_, angles.data(), bytes);
  rotation_.angles = static_cast<const float2*>(at_bytes(angles_.get()));
  rotation_.position = positions_on_device();
  rotation_.neighbours = m.rotary_interleaved;
}

void CudaRank::make_temperatures() {
  const ModelSpec& m = job.model;
  std::vector<float> factors;
  for (std::int64_t p = 0; p < job.plan.seq_len; ++p) {
    factors.push_back(
        static_cast<float>(math::query_temperature(p, m.temperature_step, m.temperature_scale)));
  }
  const auto bytes = static_cast<std::int64_t>(factors.size() * sizeof(float));
  query_factors_ = take(bytes);
  upload(query_factors_, factors.data(), bytes);
  temperatures_ = {static_cast<const float*>(at_bytes(query_factors_.get())),
                   positions_on_device()};
}

const std::vector<std::int32_t>& CudaRank::expert_counts(const Command& c, const Tensor& counts,
                                                         cudaStream_t stream) {
  const CountsOf of{c.instance, c.action.microbatch};
  if (const auto known = counts_.find(of); known != counts_.end()) return known->second;
  const auto here = [&] {
    return std::ranges::find_if(
        arriving_, [&](const Arriving& a) { return a.of == of && a.bytes == counts.bytes(); });
  };
  if (here() == arriving_.end()) bring_counts(c, counts, stream);
  Arriving& found = *here();
  wait_for(found.copied);
  const void* const memory = found.memory.get();
  const auto* const first = static_cast<const std::int32_t*>(memory);
  found.of = kNobodys;
  return counts_[of] = {first, first + counts.elements()};
}

void CudaRank::bring_counts(const Command& c, const Tensor& counts, cudaStream_t stream) {
  const CountsOf of{c.instance, c.action.microbatch};
  if (counts_.contains(of)) return;  // counted again in a recomputed forward pass
  const auto same = std::ranges::find(arriving_, of, &Arriving::of);
  Arriving& next = same != arriving_.end() ? *same : arriving_[brought_++ % arriving_.size()];
  if (next.room < counts.bytes()) {
    next.memory = host_memory(counts.bytes());
    next.room = counts.bytes();
  }
  next.of = of;
  next.bytes = counts.bytes();
  check(cudaMemcpyAsync(next.memory.get(), counts.data, static_cast<std::size_t>(next.bytes),
                        cudaMemcpyDeviceToHost, stream));
  check(cudaEventRecord(next.copied.get(), stream));
}

void CudaRank::clear_arena(cudaStream_t stream) {
  check(cudaMemsetAsync(arena_memory_.get(), 0, static_cast<std::size_t>(commands.extent), stream));
  check(cudaMemsetAsync(tokens_.get(), 0, static_cast<std::size_t>(token_bytes_), stream));
}

void CudaRank::begin_step(cudaStream_t stream) {
  Rank::begin_step();
  counts_.clear();
  for (Arriving& a : arriving_) a.of = kNobodys;
  auto* host = static_cast<std::int32_t*>(at_bytes(tokens_on_host_.get()));
  const auto microbatches = static_cast<int>(job.plan.num_microbatches());
  for (int m = 0; m < microbatches; ++m) {
    for (int shift = 0; shift < shifts_; ++shift) {
      host = std::ranges::copy(tokens(m, shift), host).out;
    }
  }
  check(cudaMemcpyAsync(tokens_.get(), tokens_on_host_.get(),
                        static_cast<std::size_t>(token_bytes_), cudaMemcpyHostToDevice, stream));
  check(cudaMemsetAsync(sums_.get(), 0, kSumBytes, stream));
}

void CudaRank::end_step() {
  check(cudaMemcpy(sums_on_host_.get(), sums_.get(), kSumBytes, cudaMemcpyDeviceToHost));
  const auto* values = static_cast<const double*>(at_bytes(sums_on_host_.get()));
  grad_norm = std::sqrt(values[0]);
  loss = values[1] / static_cast<double>(predictions(0));
  if (shifts_ > 2) mtp_loss = values[2] / static_cast<double>(predictions(1));
}

}  // namespace qplan
