// "accelerate launch --use_fsdp --fsdp_version 2 ...": what its yaml says, as arguments.

#include <algorithm>
#include <array>
#include <string>

#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

// The yaml's key of an argument's name; empty: the yaml has none.
std::string key_of(const std::string& name) {
  const OptionList& known = known_options("accelerate");
  for (const std::string_view section :
       {"", "fsdp_config.", "parallelism_config.", "deepspeed_config."}) {
    const std::string key = std::string(section) + name;
    if (known.find(key) != nullptr) return key;
  }
  return "";
}

}  // namespace

Settings accelerate_of_launch(const Settings& options) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kTypes{
      {{"--use_deepspeed", "DEEPSPEED"}, {"--use_fsdp", "FSDP"}, {"--multi_gpu", "MULTI_GPU"}}};
  const auto type = std::find_if(kTypes.begin(), kTypes.end(),
                                 [&](const auto& t) { return options.has(t.first); });
  Settings settings;
  if (type == kTypes.end()) return settings;
  settings.add({"distributed_type", type->second, options.find(type->first)->place});
  for (Setting setting : options) {
    std::string name = setting.key.substr(std::min<std::size_t>(2, setting.key.size()));
    std::replace(name.begin(), name.end(), '-', '_');
    setting.key = key_of(name);
    const std::string text = text_of(setting.value);
    if (text == "true" || text == "false") setting.value = text == "true";
    setting.text = setting.whole = setting.name = {};  // corrections are written for the yaml
    if (!setting.key.empty()) settings.add(std::move(setting));
  }
  return settings;
}

}  // namespace qplan
