#pragma once
// A configuration of OmegaConf's: what was said on top of defaults, with references followed
// ("${oc.select:actor.n,1}", "${mul:${policy.length}, 2}").

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "planner/frameworks/option.h"
#include "planner/frameworks/setting.h"

namespace qplan {

// "Key=value" of Hydra's command line: its value as YAML has it ("True", "null", "[a,b]", "'x'").
Json hydra_value(std::string_view text);

class OmegaConfig {
 public:
  // Both must outlive it; `defaults` null: none are known.
  explicit OmegaConfig(const Settings& said, const OptionList* defaults = nullptr)
      : said_(said), defaults_(defaults) {}

  [[nodiscard]] const Setting* said(std::string_view key) const { return said_.find(key); }
  // Null: nobody says, or nothing ("null"), or only a run can tell.
  [[nodiscard]] Json value(std::string_view key) const;
  [[nodiscard]] bool on(std::string_view key, bool otherwise = false) const;
  // What is no number is `otherwise`; it is said elsewhere.
  [[nodiscard]] double figure(std::string_view key, double otherwise) const;
  [[nodiscard]] std::int64_t whole(std::string_view key, std::int64_t otherwise) const;
  [[nodiscard]] std::string word(std::string_view key, std::string_view otherwise = "") const;
  // Whether its value is one that only a run can tell.
  [[nodiscard]] bool is_open(std::string_view key) const;

 private:
  [[nodiscard]] Json value(std::string_view key, int depth) const;
  [[nodiscard]] Json evaluate(const std::string& text, std::string_view key, int depth) const;
  [[nodiscard]] Json call(std::string_view function, std::string_view arguments,
                          std::string_view key, int depth) const;

  const Settings& said_;
  const OptionList* defaults_;
};

}  // namespace qplan
