#include "planner/frameworks/deepspeed/own_switch.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "planner/frameworks/readers/recognise.h"

namespace qplan {
namespace {

// TrainingArguments' own, which programs with a parser of their own have not.
constexpr std::array<std::string_view, 9> kOfTrainer{
    "--save_strategy",    "--eval_strategy",   "--evaluation_strategy",
    "--logging_strategy", "--report_to",       "--overwrite_output_dir",
    "--save_total_limit", "--group_by_length", "--ddp_find_unused_parameters"};
// Switches that transformers' parser takes with a word behind them, too ("--bf16 True").
constexpr std::array<std::string_view, 3> kOfParser{"--bf16", "--fp16", "--tf32"};

bool is_of_trainer(const ConfigPart& part) {
  if (base_name(part.script) == "run_clm.py") return true;
  const auto has = [&](std::string_view name) { return part.settings.has(name); };
  const auto has_word = [&](std::string_view name) {
    const Setting* const said = part.settings.find(name);
    return said != nullptr && said->value.is_string();
  };
  return std::any_of(kOfTrainer.begin(), kOfTrainer.end(), has) ||
         std::any_of(kOfParser.begin(), kOfParser.end(), has_word);
}

}  // namespace

// deepspeed/__init__.py:285 (edaa7221): action='store_true', and --deepspeed_config has the file.
bool is_switch_of_deepspeed(const ConfigPart& part, const Setting& setting) {
  if (part.dialect != Dialect::trainer || setting.syntax != Syntax::words) return false;
  if (setting.key != "--deepspeed" || !setting.value.is_boolean()) return false;
  return part.settings.has("--deepspeed_config") || !is_of_trainer(part);
}

}  // namespace qplan
