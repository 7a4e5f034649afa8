#include "planner/frameworks/readers/swift_release.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qplan {
namespace {

// An empty `now`: release 4 has nothing for it.
struct OlderName {
  std::string_view before, now;
};

// swift/llm/argument of release 3.
constexpr auto kPlain = std::to_array<OlderName>({
    {"--train_type", "--tuner_type"},
    {"--ckpt_dir", ""},           // a checkpoint whose arguments are read
    {"--num_infer_workers", ""},  // GPUs that make answers, of 3.2
});
// swift/megatron/argument/megatron_args.py of release 3.
constexpr auto kMegatron = std::to_array<OlderName>({
    {"--train_type", "--tuner_type"},
    {"--load", "--mcore_model"},
    {"--adapter_load", "--mcore_adapter"},
    {"--ref_load", "--mcore_ref_model"},
    {"--save", "--output_dir"},
    {"--save_interval", "--save_steps"},
    {"--eval_interval", "--eval_steps"},
    {"--log_interval", "--logging_steps"},
    {"--max_epochs", "--num_train_epochs"},
    {"--num_workers", "--dataloader_num_workers"},
    {"--load_safetensors", ""},  // as release 4 does by itself
    {"--use_flash_attn", ""},
    {"--tensorboard_log_interval", ""},
    {"--tensorboard_queue_size", ""},
    {"--log_throughput", ""},
});
// Names that release 3 had not.
constexpr auto kOfFour = std::to_array<std::string_view>(
    {"--tuner_type", "--mcore_model", "--mcore_adapter", "--mcore_ref_model"});
constexpr auto kMegatronOfFour =
    std::to_array<std::string_view>({"--output_dir", "--save_steps", "--logging_steps",
                                     "--num_train_epochs", "--dataloader_num_workers"});

bool has_any(const Settings& arguments, std::span<const std::string_view> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view name) { return arguments.has(std::string(name)); });
}

std::string sentence(const std::vector<std::string>& renamed) {
  constexpr std::size_t kShown = 6;
  const std::vector<std::string> first(
      renamed.begin(),
      renamed.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, renamed.size())));
  const std::string more =
      renamed.size() > kShown ? fmt::format(" and {} more", renamed.size() - kShown) : "";
  return fmt::format(
      "{}{}: names of ms-swift 3, and release 4 stops at them; the job is judged as "
      "if it said theirs",
      fmt::join(first, ", "), more);
}

}  // namespace

Settings of_this_swift(Settings arguments, bool megatron, std::vector<Finding>& findings) {
  const std::span<const OlderName> table =
      megatron ? std::span<const OlderName>(kMegatron) : kPlain;
  if (has_any(arguments, kOfFour) || (megatron && has_any(arguments, kMegatronOfFour))) {
    return arguments;
  }
  Settings now;
  std::vector<std::string> older, instead;
  Place place;
  for (Setting setting : arguments) {
    const auto row = std::find_if(table.begin(), table.end(), [&](const OlderName& renamed) {
      return renamed.before == setting.key;
    });
    if (row == table.end()) {
      now.add(std::move(setting));
      continue;
    }
    if (older.empty()) place = setting.place;
    older.push_back(setting.key);
    if (row->now.empty()) continue;
    instead.push_back(fmt::format("{} for {}", row->now, setting.key));
    setting.key = row->now;
    now.add(std::move(setting));
  }
  if (older.empty()) return arguments;
  Finding finding{Severity::warning,
                  "older_release",
                  place,
                  sentence(older),
                  instead.empty() ? "" : fmt::format("with release 4 {}", fmt::join(instead, ", ")),
                  "ms-swift ec1d8184a, swift/megatron/argument/megatron_args.py; ms-swift "
                  "3602360a, swift/pipelines/base.py:36",
                  {}};
  finding.fix.why_not = "a job of ms-swift 3 runs as it is";
  findings.push_back(std::move(finding));
  return now;
}

}  // namespace qplan
