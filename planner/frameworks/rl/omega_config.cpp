#include "planner/frameworks/rl/omega_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/scene.h"

namespace qplan {
namespace {

constexpr int kDeepestReference = 16;  // of a reference to a reference; a circle never ends

bool in_quotes(std::string_view text) {
  return text.size() >= 2 && (text.front() == '\'' || text.front() == '"') &&
         text.back() == text.front();
}

// At the commas that no bracket or quote holds.
std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  char quote = '\0';
  std::size_t from = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '{' || c == '[' || c == '(') {
      ++depth;
    } else if (c == '}' || c == ']' || c == ')') {
      --depth;
    } else if (c == ',' && depth == 0) {
      parts.push_back(trimmed(text.substr(from, at - from)));
      from = at + 1;
    }
  }
  parts.push_back(trimmed(text.substr(from)));
  return parts;
}

// Whether the text is one reference and nothing else: "${a.b}", not "x/${a}" or "${a}/${b}".
bool is_reference(std::string_view text) {
  if (!text.starts_with("${") || !text.ends_with('}')) return false;
  int depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '{') ++depth;
    if (text[at] == '}' && --depth == 0) return at + 1 == text.size();
  }
  return false;
}

// Of a path that begins with dots: relative to the key's own section, a dot more for each above.
std::string absolute_path(std::string_view path, std::string_view key) {
  if (!path.starts_with('.')) return std::string(path);
  std::string_view section = key;
  while (path.starts_with('.')) {
    const std::size_t dot = section.rfind('.');
    section = dot == std::string_view::npos ? std::string_view() : section.substr(0, dot);
    path.remove_prefix(1);
  }
  return section.empty() ? std::string(path) : std::string(section) + "." + std::string(path);
}

}  // namespace

Json hydra_value(std::string_view given) {
  const std::string_view text = trimmed(given);
  if (in_quotes(text)) return std::string(text.substr(1, text.size() - 2));
  if (text.starts_with('[') && text.ends_with(']')) {
    Json list = Json::array();
    const std::string_view inner = trimmed(text.substr(1, text.size() - 2));
    if (inner.empty()) return list;
    for (const std::string_view part : parts_of(inner)) list.push_back(hydra_value(part));
    return list;
  }
  const std::string word = lower_case(text);
  if (word == "true") return true;
  if (word == "false") return false;
  if (word == "null" || word == "none") return nullptr;
  const char* const end = text.data() + text.size();
  std::int64_t whole = 0;
  if (const auto [stop, code] = std::from_chars(text.data(), end, whole);
      code == std::errc{} && stop == end) {
    return whole;
  }
  double number = 0;
  if (const auto [stop, code] = std::from_chars(text.data(), end, number);
      code == std::errc{} && stop == end && std::isfinite(number)) {
    return number;
  }
  return std::string(text);
}

Json OmegaConfig::value(std::string_view key) const {
  return value(key, 0);
}

Json OmegaConfig::value(std::string_view key, int depth) const {
  if (depth > kDeepestReference) return nullptr;
  if (const Setting* const found = said_.find(key)) {
    if (!found->resolved) return nullptr;
    return found->value.is_string()
               ? evaluate(found->value.get_ref<const std::string&>(), key, depth)
               : found->value;
  }
  const KnownOption* const known = defaults_ == nullptr ? nullptr : defaults_->find(key);
  if (known == nullptr || known->otherwise.empty() || known->otherwise == "???") return nullptr;
  return evaluate(known->otherwise, key, depth);
}

Json OmegaConfig::evaluate(const std::string& text, std::string_view key, int depth) const {
  if (depth > kDeepestReference) return nullptr;
  if (!is_reference(text)) {
    return text.find("${") == std::string::npos ? hydra_value(text) : Json(nullptr);
  }
  const std::string_view inner = std::string_view(text).substr(2, text.size() - 3);
  const std::size_t colon = inner.find_first_of(":{[");
  if (colon != std::string_view::npos && inner[colon] == ':') {
    return call(inner.substr(0, colon), inner.substr(colon + 1), key, depth);
  }
  return value(absolute_path(trimmed(inner), key), depth + 1);
}

Json OmegaConfig::call(std::string_view function, std::string_view arguments, std::string_view key,
                       int depth) const {
  const auto parts = parts_of(arguments);
  if (function == "oc.select") {
    Json found = value(absolute_path(parts.front(), key), depth + 1);
    if (!found.is_null() || parts.size() < 2) return found;
    return evaluate(std::string(parts[1]), key, depth + 1);
  }
  // NeMo-RL 7ea279ab, nemo_rl/utils/config.py (register_omegaconf_resolvers).
  std::vector<double> numbers;
  for (const std::string_view part : parts) {
    const Json number = evaluate(std::string(part), key, depth + 1);
    if (!number.is_number()) return nullptr;
    numbers.push_back(number.get<double>());
  }
  if (numbers.size() != 2) return nullptr;
  const auto result = [](double number) {
    return std::floor(number) == number ? Json(static_cast<std::int64_t>(number)) : Json(number);
  };
  if (function == "mul") return result(numbers[0] * numbers[1]);
  if (function == "add") return result(numbers[0] + numbers[1]);
  if (function == "max") return result(std::max(numbers[0], numbers[1]));
  if (function == "div" && numbers[1] != 0) return result(numbers[0] / numbers[1]);
  return nullptr;
}

bool OmegaConfig::on(std::string_view key, bool otherwise) const {
  const Json found = value(key);
  if (found.is_null()) return otherwise;
  try {
    return truth_of(found);
  } catch (const Error&) {
    return otherwise;
  }
}

double OmegaConfig::figure(std::string_view key, double otherwise) const {
  const Json found = value(key);
  if (found.is_null()) return otherwise;
  try {
    return number_of(found);
  } catch (const Error&) {
    return otherwise;
  }
}

std::int64_t OmegaConfig::whole(std::string_view key, std::int64_t otherwise) const {
  constexpr double kMost = 1 << 30;
  const double number = figure(key, static_cast<double>(otherwise));
  if (std::floor(number) != number || std::abs(number) > kMost) return otherwise;
  return static_cast<std::int64_t>(number);
}

std::string OmegaConfig::word(std::string_view key, std::string_view otherwise) const {
  const Json found = value(key);
  return found.is_null() ? std::string(otherwise) : text_of(found);
}

bool OmegaConfig::is_open(std::string_view key) const {
  const Setting* const found = said_.find(key);
  return found != nullptr && !found->resolved;
}

}  // namespace qplan
