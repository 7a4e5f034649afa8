#pragma once
// Megatron's words as verl and NeMo-RL spell them: fields of Megatron's configuration classes under
// keys of their own. What a word means, and its values, come from Megatron's own table. Private to
// the two.

#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/emit.h"
#include "planner/frameworks/rl/omega_config.h"

namespace qplan {

enum class MegatronKeys : std::uint8_t { verl, nemo_rl };

// What the keys say as Megatron's flags, each at the key's place; defaults have no place.
Settings megatron_flags(MegatronKeys keys, const OmegaConfig& config);

// A plan's words under the keys.
std::vector<WrittenOption> megatron_keys(MegatronKeys keys, const Subject& subject);

// A flag that the plan needs and the keys have no name for, and the plan's word; empty: none.
struct UnsaidFlag {
  std::string flag, word;
};
UnsaidFlag flag_without_key(MegatronKeys keys, const Subject& subject);

}  // namespace qplan
