#pragma once
// Words of a Trainer's whose fellows transformers wants beside them, wherever they are said: in a
// command, a YAML or a program. Private to check().

#include <string>
#include <string_view>

#include "planner/frameworks/scene.h"

namespace qplan {

// attn_implementation, as transformers looks it up: what it has, what was plainly meant for that
// ("flash_attn_2"), or a name that a program may register.
enum class KernelName : std::uint8_t { known, meant, other };
KernelName kernel_name_of(std::string_view name);
// The name that is meant; empty: several may be.
std::string meant_kernels(std::string_view name);

// Schedules, low-rank optimizers, kernels, device maps, words that no argument takes.
void check_trainer_words(const Scene& scene, Findings& out);

}  // namespace qplan
