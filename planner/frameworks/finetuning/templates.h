#pragma once
// Names of chat templates that fine-tuners know. Private to their traps.

#include <cstdint>
#include <string>

namespace qplan {

// unknown: another release may have it, or a fork. What is no name but a path, or is known only
// when it runs, counts as known.
enum class Template : std::uint8_t { known, slip, unknown };

Template template_of_llama_factory(const std::string& name);
Template template_of_axolotl(const std::string& name);

}  // namespace qplan
