#pragma once
// The sequence and the batch of a job, where nobody says.

#include <cstdint>
#include <span>

#include "models/model_spec.h"

namespace qplan {

// 4096 tokens, or the model's positions where it has fewer.
std::int64_t default_seq_len(const ModelSpec& model);

// What a step's tokens should be near: 4 Mi, and at least 1024 a GPU. No run in
// tests/data/runs/published.csv gives a GPU fewer (549 runs on up to 6144 GPUs; Llama 3's on 16 384
// had 1024, arXiv 2407.21783, table 4); on 100 000 GPUs 4 Mi tokens would leave most of them idle.
std::int64_t default_tokens(std::int64_t gpus);

// The sequences of `seq_len` near that many tokens that divide as the layouts of `gpus` want: over
// most of their data-parallel degrees and micro-batches, and into a multiple of the pipeline's
// stages. One batch for several worlds, the points of a sweep, so that they compare.
std::int64_t default_global_batch_size(std::span<const std::int64_t> gpus, std::int64_t seq_len);
std::int64_t default_global_batch_size(std::int64_t gpus, std::int64_t seq_len);

}  // namespace qplan
