#pragma once
// NeMo-RL's keys, and what of them its reader and its checks both ask for. Private to these.

#include <cstdint>
#include <string>
#include <string_view>

#include "planner/frameworks/rl/omega_config.h"

namespace qplan::nemo_rl {

inline constexpr std::string_view kShards = "policy.dtensor_cfg.";
inline constexpr std::string_view kMegatron = "policy.megatron_cfg.";
inline constexpr std::string_view kEngine = "policy.generation.";

inline std::string under(std::string_view section, std::string_view name) {
  return std::string(section) + std::string(name);
}

// Whether Megatron-Core trains; else DTensors do.
inline bool by_megatron_cfg(const OmegaConfig& c) {
  return c.on(under(kMegatron, "enabled"));
}

// How the engine that makes answers names its sizes: vLLM's, SGLang's, TensorRT-LLM's.
struct EngineKeys {
  std::string_view backend, tp, pp, ep, dp, share, running;
};
// Null: its engine is none of those (Megatron's own, Dynamo).
const EngineKeys* engine_of(const OmegaConfig& c);

struct Gpus {
  std::int64_t all = 1, engines = 0;  // of the files; those set aside for answers
};
Gpus gpus_of(const OmegaConfig& c);

}  // namespace qplan::nemo_rl
