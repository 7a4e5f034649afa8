#include "planner/frameworks/optimizer_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "models/ascii.h"
#include "models/text.h"

namespace qplan {
namespace {

// Adam's states under other names. What a project puts before a name that is one of these
// (GaLore's, APOLLO's, schedule-free ones) keeps something else.
std::optional<NamedOptimizer> adam_named(const std::string& name) {
  constexpr std::array<std::string_view, 14> kAdam{"adam",
                                                   "adamw",
                                                   "adamw_hf",
                                                   "adamw_torch",
                                                   "adamw_torch_fused",
                                                   "adamw_torch_xla",
                                                   "fusedadam",
                                                   "adamw_apex_fused",
                                                   "adamw_torch_npu_fused",
                                                   "paged_adamw",
                                                   "paged_adamw_32bit",
                                                   "adamw_bnb_32bit",
                                                   "deepspeedcpuadam",
                                                   "pagedadamw"};
  if (std::find(kAdam.begin(), kAdam.end(), name) != kAdam.end()) return NamedOptimizer{};
  constexpr std::array<std::string_view, 8> kNarrow{
      "adam8bit",         "adamw8bit",      "adamw_8bit",       "adamw_bnb_8bit",
      "adamw_torch_8bit", "pagedadamw8bit", "paged_adamw_8bit", "adamw_ao_8bit"};
  if (std::find(kNarrow.begin(), kNarrow.end(), name) != kNarrow.end()) {
    return NamedOptimizer{OptimizerKind::adam8bit, "", false};
  }
  if (name == "adamw_torch_4bit" || name == "adamw4bit" || name == "adamwfp8") {
    return NamedOptimizer{OptimizerKind::adam8bit,
                          fmt::format("moments of 8 bits in place of {}'s", name), true};
  }
  return std::nullopt;
}

}  // namespace

NamedOptimizer optimizer_named(std::string_view written) {
  const std::string name = lower_case(written);
  if (const auto adam = adam_named(name)) return *adam;
  // Worker and server errors (deepspeed/runtime/fp16/onebit/adam.py:179) are memory besides.
  if (name == "onebitadam" || name == "zerooneadam" || name == "onebitlamb") {
    return {
        OptimizerKind::adam,
        fmt::format("gradients that are reduced whole, and Adam's two moments: what {} sends in "
                    "1 bit, and the errors that it keeps, 4 bytes a parameter and more, are "
                    "not modelled",
                    shown(written)),
        false};
  }
  if (name == "adafactor") return {OptimizerKind::adafactor, "", false};
  if (name == "sgd") {
    return {OptimizerKind::sgd,
            "a momentum of 4 bytes a parameter beside the weights, which SGD keeps where it is "
            "given one",
            true};
  }
  if (name == kSgdWithMomentum) return {OptimizerKind::sgd, "", false};
  if (name == "muon") return {OptimizerKind::muon, "", false};
  if (name == "lion" || name == "lion_32bit" || name == "paged_lion_32bit" || name == "fusedlion" ||
      name == "deepspeedcpulion") {
    return {OptimizerKind::lion, "", false};
  }
  if (name == "lion_8bit" || name == "paged_lion_8bit" || name == "lion8bit") {
    return {OptimizerKind::lion, fmt::format("a momentum of 32 bits in place of {}'s", shown(name)),
            true};
  }
  return {OptimizerKind::adam,
          fmt::format("Adam's two moments in place of what {} keeps: that optimizer is not "
                      "modelled",
                      shown(written)),
          true};
}

void read_optimizer(Draft& draft, const Json& value) {
  const NamedOptimizer found = optimizer_named(text_of(value));
  draft.plan.optimizer = found.kind;
  if (!found.assumed.empty()) draft.assumed.push_back(found.assumed);
  draft.takes_less = draft.takes_less || found.takes_less;
}

std::string_view deepspeed_optimizer(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adam:
      return "AdamW";
    case OptimizerKind::sgd:
      return "SGD";
    case OptimizerKind::muon:
      return "Muon";
    case OptimizerKind::lion:
      return "Lion";
    case OptimizerKind::adam8bit:
    case OptimizerKind::adafactor:
      return "";
  }
  return "";
}

}  // namespace qplan
