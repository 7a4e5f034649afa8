#pragma once
// Pieces of a plan's line: counts, and the stages of a pipeline layout.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qplan {

inline constexpr std::int64_t kMaxDegree = 1 << 13;  // of any degree of a plan, and of a stage

// The parts between separators; one part, the whole text, where there are none.
std::vector<std::string_view> split(std::string_view text, char separator);

// Digits and nothing else, within the bounds; throws Error that begins with `what`.
std::int64_t parse_count(std::string_view what, std::string_view text, std::int64_t low,
                         std::int64_t high);

// Decoder layers of each virtual stage, "7+8+8+7"; three stages alike and more in a row are one
// term, "1+2*62+1".
std::string layout_text(const std::vector<int>& layout);
// Reads both spellings; throws Error for anything else, and beyond 65,536 stages.
std::vector<int> parse_layout(std::string_view text);

}  // namespace qplan
