#include "planner/frameworks/readers/meant_blocks.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

bool is_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

// Whether `name: ...` or `"name": ...` stands there, and no remark.
bool is_key_at(const std::string& text, std::size_t at, std::size_t size) {
  if (at > 0 && is_name_letter(text[at - 1])) return false;
  std::size_t end = at + size;
  if (end < text.size() && (text[end] == '"' || text[end] == '\'')) ++end;
  end = text.find_first_not_of(" \t", end);
  if (end == std::string::npos || text[end] != ':') return false;
  const std::size_t line = text.rfind('\n', at) + 1;  // npos + 1: the first
  const std::string_view before(text.data() + line, at - line);
  return before.find('#') == std::string_view::npos && before.find("//") == std::string_view::npos;
}

// The name of the block that holds `first`: upwards from its first key.
Span name_of_block(const std::string& text, const Setting& first, const std::string& name) {
  std::size_t at = first.name.begin;
  while (at > 0) {
    at = text.rfind(name, at - 1);
    if (at == std::string::npos) return {};
    if (is_key_at(text, at, name.size())) return {at, at + name.size()};
  }
  return {};
}

std::string last_part(const std::string& key) {
  return key.substr(key.rfind('.') + 1);  // npos + 1: none
}

class BlockNames {
 public:
  BlockNames(const Settings& settings, const OptionList& list, const std::string& text)
      : settings_(settings), list_(list), text_(text) {}

  // The key as it is meant; whatever stands in a block that was misspelt.
  std::string meant_key(const Setting& setting) {
    std::string key = setting.key;
    for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
      const std::string block = key.substr(0, dot);
      const std::string meant = meant_block(block, setting);
      if (meant.empty()) continue;
      key.replace(0, dot, meant);
      dot = meant.size();
    }
    const std::string meant = is_header(setting) ? meant_block(key, setting) : "";
    return meant.empty() ? key : meant;
  }

  std::vector<MeantBlock> take() { return std::move(found_); }

 private:
  // Empty: it is known, or nobody knows what it may be.
  std::string meant_block(const std::string& written, const Setting& first) {
    const auto known = meant_.find(written);
    if (known != meant_.end()) return known->second;
    std::string meant = certain_block(written, list_);
    if (has_block(meant) || is_taken(meant)) meant.clear();
    meant_.emplace(written, meant);
    if (meant.empty()) return meant;
    const Span name = is_header(first) ? name_in_header(first, last_part(written))
                                       : name_of_block(text_, first, last_part(written));
    Place place = first.place;
    const auto from = text_.begin() + static_cast<std::ptrdiff_t>(name.begin);
    const auto to = text_.begin() + static_cast<std::ptrdiff_t>(first.name.begin);
    if (name.end > 0 && from < to) place.line -= static_cast<int>(std::count(from, to, '\n'));
    found_.push_back({written, meant, std::move(place), name});
    return meant;
  }

  // "[a.b]" of a TOML, which stands in front of its keys.
  static bool is_header(const Setting& setting) {
    return setting.syntax == Syntax::toml && setting.value.is_object();
  }

  // One of the parts of its name.
  [[nodiscard]] Span name_in_header(const Setting& header, const std::string& part) const {
    const std::size_t at = text_.find(part, header.whole.begin);
    const bool within = at != std::string::npos && at + part.size() <= header.whole.end;
    return within ? Span{at, at + part.size()} : Span{};
  }

  [[nodiscard]] bool has_block(const std::string& name) const {
    return !name.empty() && (settings_.has(name) || settings_.has_section(name + "."));
  }

  // Of two slips of one block either may be it.
  [[nodiscard]] bool is_taken(const std::string& name) const {
    return std::any_of(found_.begin(), found_.end(),
                       [&](const MeantBlock& block) { return block.meant == name; });
  }

  const Settings& settings_;
  const OptionList& list_;
  const std::string& text_;
  std::map<std::string, std::string> meant_;
  std::vector<MeantBlock> found_;
};

}  // namespace

std::vector<MeantBlock> mend_block_names(Settings& settings, const OptionList& list,
                                         const std::string& text) {
  BlockNames blocks(settings, list, text);
  Settings mended;
  for (Setting setting : settings) {
    setting.key = blocks.meant_key(setting);
    mended.add(std::move(setting));
  }
  settings = std::move(mended);
  return blocks.take();
}

namespace {

Settings outside_of(const std::vector<MeantBlock>& blocks, const Settings& settings) {
  Settings rest;
  for (const Setting& setting : settings) {
    const bool within = std::any_of(blocks.begin(), blocks.end(), [&](const MeantBlock& block) {
      return setting.key.starts_with(block.meant + ".");
    });
    if (!within) rest.add(setting);
  }
  return rest;
}

}  // namespace

std::vector<ConfigPart> without_blocks(std::vector<ConfigPart> parts) {
  for (ConfigPart& part : parts) {
    if (part.meant_blocks.empty()) continue;
    part.settings = outside_of(part.meant_blocks, part.settings);
    if (!has_names_alone(part)) continue;
    // What accelerate makes of its own yaml follows it.
    const auto made = std::find_if(parts.begin(), parts.end(), [&](const ConfigPart& other) {
      return other.dialect == Dialect::ds_config && other.of_accelerate &&
             other.place.file == part.place.file;
    });
    if (made != parts.end()) made->settings = deepspeed_settings(part.settings);
  }
  return parts;
}

}  // namespace qplan
