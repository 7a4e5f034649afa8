#pragma once
// nanotron's YAML (2411b022): its keys as words of a plan, and the model that it describes.

#include <cstdint>
#include <optional>
#include <span>

#include "models/json.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/setting.h"

namespace qplan {

std::span<const Option> nanotron_options();
std::span<const Fact> nanotron_facts();
std::span<const Limit> nanotron_limits();
void settle_nanotron(Draft& draft);

// "model.model_config" as a Hugging Face config.json; null: its shapes are not said, or are of a
// kind that is not read (Starcoder2, experts).
Json config_of_nanotron(const Settings& yaml);

// Ranks that its degrees multiply to; nothing: one is no number.
std::optional<std::int64_t> ranks_of_nanotron(const Settings& yaml);

}  // namespace qplan
