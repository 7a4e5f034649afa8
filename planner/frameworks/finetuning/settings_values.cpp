// Values of a fine-tuner's settings, as YAML and arguments write them.

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/option.h"

namespace qplan {

bool is_switched_on(const Settings& yaml, std::string_view key) {
  const Setting* const found = yaml.find(key);
  if (found == nullptr || found->value.is_null()) return false;
  const std::string word = lower_case(text_of(found->value));
  return !word.empty() && word != "false" && word != "no" && word != "off" && word != "0";
}

std::string word_of(const Settings& yaml, std::string_view key, std::string_view otherwise) {
  const Setting* const found = yaml.find(key);
  if (found == nullptr || found->value.is_null()) return std::string(otherwise);
  return lower_case(text_of(found->value));
}

double figure_of(const Settings& yaml, std::string_view key, double otherwise) {
  const Setting* const found = yaml.find(key);
  if (found == nullptr || found->value.is_null()) return otherwise;
  try {
    return number_of(found->value);
  } catch (const Error&) {
    return otherwise;  // what is no number is said elsewhere
  }
}

}  // namespace qplan
