#pragma once
// What generating answers costs: an inference engine (vLLM, SGLang) as a program of the same
// blocks. One decoding step is the forward of as many sequences as run, a token each, whose
// attention reads a cache (BlockShape::cached); a rollout is as many such steps as its answers have
// tokens.

#include <cstdint>
#include <vector>

#include "costmodel/profiles/hardware.h"
#include "costmodel/rollout/response_lengths.h"
#include "models/model_spec.h"
#include "models/program/step_program.h"
#include "models/words.h"

namespace qplan {

// How one engine holds the model. Engines are copies of each other.
struct RolloutLayout {
  int tp = 1;  // tensor-parallel ranks (vLLM's tensor_parallel_size)
  int dp = 1;  // copies of attention within an engine (SGLang's dp attention); experts are shared
  int pp = 1;  // stages, each of its share of the layers (pipeline_parallel_size)
  int ep = 1;  // ranks that experts are spread over: 1 (each is sliced) or tp * dp
  int redundant_experts = 0;  // copies of busy experts (SGLang's --ep-num-redundant-experts)
  Precision precision = Precision::bf16;
  // Share of the GPU's memory for weights and cache (gpu_memory_utilization, mem_fraction_static).
  double memory_share = 0.85;
  std::int64_t max_running = 256;  // sequences at once of each copy of attention (max_num_seqs)
  [[nodiscard]] int gpus() const { return tp * dp * pp; }
  [[nodiscard]] int ranks() const { return tp * dp; }  // of a stage
  bool operator==(const RolloutLayout&) const = default;
};
std::string to_string(const RolloutLayout& layout);  // "tp2", "tp1 dp8 ep8 share0.7 running128"
// Throws Error naming what it cannot read.
RolloutLayout parse_rollout_layout(std::string_view text);
// What cannot be, as a sentence; "" where it can.
std::string rollout_fault(const ModelSpec& model, const RolloutLayout& layout);

// What an engine's host does between two steps: scheduling, sampling parameters, detokenising.
// Assumed, not measured here; docs/evidence/rl.md says what it was held against.
struct EngineHost {
  Seconds step{};
  Seconds sequence{};  // ... more for each that runs
};

// What a rollout asks of one engine.
struct RolloutWork {
  std::int64_t sequences = 1;  // answers
  std::int64_t prompts = 1;    // that they answer; each is read once (prefix caching)
  std::int64_t prompt_len = 512;
  ResponseLengths response;
  // Rollouts that may be under way at once. Of several, an engine is never left with the last few
  // answers of one, and takes for each what its tokens take at full load.
  std::int64_t in_flight = 1;
};

struct RolloutCost {
  Seconds prefill, decode;
  Seconds tail;               // of decode: fewer than half of what could run does
  std::int64_t running = 0;   // sequences at once, at most: by limit or by room for the cache
  bool cache_limits = false;  // ... by room
  double tokens_per_s = 0;    // generated, of the engine
  [[nodiscard]] Seconds time() const { return prefill + decode; }
};

class RolloutModel {
 public:
  // The references must outlive it.
  RolloutModel(const ModelSpec& model, const HardwareProfile& hardware, const RolloutLayout& layout,
               JobFacts facts);

  // One decoding step of `sequences` (of the engine), each with `context` tokens behind it and its
  // own among them.
  [[nodiscard]] Seconds step(std::int64_t sequences, double context) const;
  [[nodiscard]] Seconds prefill(std::int64_t tokens) const;
  [[nodiscard]] Bytes weights() const;                          // of a GPU
  [[nodiscard]] Bytes cache_bytes(std::int64_t context) const;  // of a GPU, one sequence's
  // What is left for the cache, 0 where weights alone are more than the share.
  [[nodiscard]] Bytes cache_room() const;
  [[nodiscard]] RolloutCost cost(const RolloutWork& work) const;

 private:
  [[nodiscard]] Seconds forward(std::int64_t sequences, std::int64_t length,
                                std::int64_t cached) const;
  [[nodiscard]] std::int64_t most_at_once(const RolloutWork& work,
                                          const std::vector<std::int64_t>& ascending,
                                          double mean) const;

  const ModelSpec& model_;
  const HardwareProfile& hardware_;
  RolloutLayout layout_;
  JobFacts facts_;
  Recipe recipe_;
};

}  // namespace qplan
