#include "planner/frameworks/readers/other_programs.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/text.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {

bool trains_nothing(const std::string& script) {
  constexpr auto kUses = std::to_array<std::string_view>(
      {"inference", "text_generation", "generate", "convert", "preprocess", "_ptq", "quantize"});
  constexpr auto kTrain = std::to_array<std::string_view>({"train", "tune", "sft", "rl"});
  const std::string name = lower_case(base_name(script));
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  return std::any_of(kUses.begin(), kUses.end(), has) &&
         std::none_of(kTrain.begin(), kTrain.end(), has);
}

bool is_of_easy_r1(std::span<const ShellWord> words, const std::string& script) {
  if (!script.ends_with("verl.trainer.main")) return false;
  return std::any_of(words.begin(), words.end(), [](const ShellWord& word) {
    return word.text.starts_with("config=") || word.text.starts_with("worker.");
  });
}

}  // namespace qplan
