// YAML as settings with their places. libyaml parses: anchors, block scalars, flow collections and
// quotes have rules of their own, and Megatron's test files use them all.

#include <fmt/format.h>
#include <yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "models/ascii.h"
#include "models/error.h"
#include "planner/frameworks/readers/formats.h"

namespace qplan {
namespace {

struct ParserDeleter {
  void operator()(yaml_parser_t* parser) const noexcept {
    yaml_parser_delete(parser);
    delete parser;
  }
};
struct DocumentDeleter {
  void operator()(yaml_document_t* document) const noexcept {
    yaml_document_delete(document);
    delete document;
  }
};
using OwnedParser = std::unique_ptr<yaml_parser_t, ParserDeleter>;
using OwnedDocument = std::unique_ptr<yaml_document_t, DocumentDeleter>;

// Whether YAML 1.1 takes a number with an exponent for one: "1.0e+5" is, "1e5" and "1.0e5" are not
// (PyYAML, resolver.py).
bool has_yaml_exponent(const std::string& text) {
  const std::size_t e = text.find_first_of("eE");
  if (e == std::string::npos) return true;
  const bool point = text.find('.') < e;
  return point && e + 1 < text.size() && (text[e + 1] == '+' || text[e + 1] == '-');
}

// A plus and underscores, which YAML skips.
std::string without_underscores(std::string_view text) {
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  std::string plain(text);
  std::erase(plain, '_');
  return plain;
}

// "-8", "500_000", "0x10", "0b1" and "010", which is 8 (PyYAML, resolver.py).
std::optional<std::int64_t> yaml_whole(const std::string& text) {
  std::string digits = without_underscores(text);
  const bool negative = digits.starts_with('-');
  if (negative) digits.erase(0, 1);
  int base = 10;
  if (digits.starts_with("0x") || digits.starts_with("0b")) {
    base = digits[1] == 'x' ? 16 : 2;
    digits.erase(0, 2);
  } else if (digits.size() > 1 && digits.front() == '0') {
    base = 8;
  }
  if (digits.empty() || digits.front() == '-') return std::nullopt;
  std::int64_t whole = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, code] = std::from_chars(digits.data(), end, whole, base);
  if (code != std::errc{} || stop != end) return std::nullopt;
  return negative ? -whole : whole;
}

// What a plain word stands for in YAML 1.1, which accelerate's reader follows.
Json plain_scalar(const std::string& text, YamlLoader loader) {
  static constexpr std::array<std::string_view, 9> kTrue{"true", "True", "TRUE", "yes", "Yes",
                                                         "YES",  "on",   "On",   "ON"};
  static constexpr std::array<std::string_view, 9> kFalse{"false", "False", "FALSE", "no", "No",
                                                          "NO",    "off",   "Off",   "OFF"};
  static constexpr std::array<std::string_view, 4> kNull{"null", "Null", "NULL", "~"};
  const auto one_of = [&text](const auto& words) {
    return std::find(words.begin(), words.end(), text) != words.end();
  };
  if (one_of(kTrue)) return true;
  if (one_of(kFalse)) return false;
  if (one_of(kNull)) return nullptr;
  if (text.empty() || text.front() == '_') return text;
  if (const auto whole = yaml_whole(text)) return *whole;
  double number = 0;
  const std::string plain = without_underscores(text);
  // What begins with a zero is octal, or text ("08").
  const bool point = plain.find_first_of(".eE") != std::string::npos;
  const std::size_t first = plain.starts_with('-') ? 1 : 0;
  if (!point && plain.size() > first && plain[first] == '0') return text;
  const bool exponent = loader == YamlLoader::omegaconf || has_yaml_exponent(text);
  const char* const end = plain.data() + plain.size();
  if (const auto [stop, code] = std::from_chars(plain.data(), end, number);
      exponent && code == std::errc{} && stop == end && std::isfinite(number)) {
    return number;
  }
  return text;
}

class YamlReader {
 public:
  YamlReader(std::string_view text, const std::string& name, YamlLoader loader)
      : text_(text), name_(name), loader_(loader), mark_(byte_order_mark(text)) {
    for (std::size_t at = mark_; at < text.size(); ++at) {
      const bool continues = (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;  // UTF-8
      if (!continues) bytes_.push_back(at);
    }
    bytes_.push_back(text.size());
  }

  FormatText read() {
    refuse_deep();
    const OwnedParser parser = fresh_parser();
    while (document(*parser)) {
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] OwnedParser fresh_parser() const {
    auto fresh = std::make_unique<yaml_parser_t>();
    if (yaml_parser_initialize(fresh.get()) == 0) throw std::bad_alloc();
    OwnedParser parser(fresh.release());
    yaml_parser_set_encoding(parser.get(), YAML_UTF8_ENCODING);
    const std::string_view input = text_.substr(mark_);
    yaml_parser_set_input_string(parser.get(), reinterpret_cast<const unsigned char*>(input.data()),
                                 input.size());
    return parser;
  }

  // libyaml looks at every open bracket at each word, so what is nested deep takes its time to be
  // loaded: the depth is counted before. What is no YAML is told by the loader.
  void refuse_deep() const {
    const OwnedParser parser = fresh_parser();
    int depth = 0;
    for (bool more = true; more;) {
      yaml_event_t event;
      if (yaml_parser_parse(parser.get(), &event) == 0) return;
      const yaml_event_type_t type = event.type;
      const int line = static_cast<int>(event.start_mark.line) + 1;
      yaml_event_delete(&event);
      more = type != YAML_STREAM_END_EVENT && type != YAML_NO_EVENT;
      if (type == YAML_MAPPING_START_EVENT || type == YAML_SEQUENCE_START_EVENT) ++depth;
      if (type == YAML_MAPPING_END_EVENT || type == YAML_SEQUENCE_END_EVENT) --depth;
      // The outermost holds values of depth 0.
      if (depth > kDeepestValue + 1) fail(line, too_deep());
    }
  }

  static std::string too_deep() {
    return fmt::format("values are nested deeper than {}", kDeepestValue);
  }

  [[noreturn]] void fail(int line, std::string_view sentence) const {
    throw Error(fmt::format("{}:{}: {}", name_, line, sentence));
  }
  [[noreturn]] void fail(const yaml_node_t& at, std::string_view sentence) const {
    fail(line_of_node(at), sentence);
  }

  // Whether one was read; false at the end.
  bool document(yaml_parser_t& parser) {
    auto fresh = std::make_unique<yaml_document_t>();
    if (yaml_parser_load(&parser, fresh.get()) == 0) refuse(parser);
    const OwnedDocument owned(fresh.release());
    document_ = owned.get();
    twice_.clear();
    const yaml_node_t* const root = yaml_document_get_root_node(document_);
    if (root == nullptr) return false;
    if (root->type == YAML_SEQUENCE_NODE) {
      fail(*root, "a list stands where keys are expected");
    }
    if (root->type == YAML_SCALAR_NODE && !text_of_scalar(*root).empty()) {
      fail(*root, fmt::format("'{}' is no \"key: value\"", shown(text_of_scalar(*root))));
    }
    if (root->type == YAML_MAPPING_NODE) mapping(*root, "", 0);
    return true;
  }

  [[noreturn]] void refuse(const yaml_parser_t& parser) const {
    if (parser.error == YAML_MEMORY_ERROR) throw std::bad_alloc();
    // What is no UTF-8 has no mark yet.
    const std::size_t at = parser.error == YAML_READER_ERROR ? mark_ + parser.problem_offset
                                                             : offset(parser.problem_mark);
    const bool tab = at < text_.size() && text_[at] == '\t';
    fail(line_of(text_, at), tab ? "YAML indents by spaces, not by tabs"
                                 : fmt::format("this is not YAML: {}", parser.problem));
  }

  [[nodiscard]] const yaml_node_t& node(int id) const {
    return *yaml_document_get_node(document_, id);
  }

  static int line_of_node(const yaml_node_t& node) {
    return static_cast<int>(node.start_mark.line) + 1;
  }

  static std::string text_of_scalar(const yaml_node_t& node) {
    const auto& scalar = node.data.scalar;
    return {reinterpret_cast<const char*>(scalar.value), scalar.length};
  }

  static std::span<const yaml_node_pair_t> pairs_of(const yaml_node_t& mapping) {
    return {mapping.data.mapping.pairs.start, mapping.data.mapping.pairs.top};
  }

  static std::span<const int> items_of(const yaml_node_t& list) {
    return {list.data.sequence.items.start, list.data.sequence.items.top};
  }

  static bool is_merge(const yaml_node_t& key) {
    return key.type == YAML_SCALAR_NODE && is_plain(key) && text_of_scalar(key) == "<<";
  }

  // Marks count characters.
  [[nodiscard]] std::size_t offset(const yaml_mark_t& mark) const {
    return bytes_[std::min(mark.index, bytes_.size() - 1)];
  }

  // Without the line's end, where a block scalar or a list ends.
  [[nodiscard]] Span span_of(const yaml_node_t& node) const {
    const Span span{offset(node.start_mark), offset(node.end_mark)};
    const std::string_view text = text_.substr(span.begin, span.end - span.begin);
    return {span.begin, span.begin + text.find_last_not_of(" \t\r\n") + 1};
  }

  // Aliases of aliases make many of few.
  void count(const yaml_node_t& at) {
    if (++count_ > kMostValues) fail(at, kTooManyValues);
  }

  // What the mapping says itself counts, and nothing of that name in those that are merged into it.
  void mapping(const yaml_node_t& map, const std::string& path, int depth) {
    std::set<std::string> said;
    mapping(map, path, depth, said);
  }

  // `said`: names of the mapping that this one is merged into, which stand in place of its own.
  void mapping(const yaml_node_t& map, const std::string& path, int depth,
               std::set<std::string>& said) {
    count(map);
    if (depth > kDeepestValue) fail(map, too_deep());
    const std::set<std::string> elsewhere = said;
    const std::map<std::string, int> last = last_of_names(map);
    for (const auto& [name, key] : last) said.insert(name);
    for (const auto& [key, value] : pairs_of(map)) {
      if (is_merge(node(key))) merge(node(value), node(key), path, depth, said);
    }
    for (const auto& [key, value] : pairs_of(map)) {
      if (is_merge(node(key))) continue;
      const std::string name = text_of_scalar(node(key));
      if (elsewhere.contains(name)) continue;
      const std::string child = path.empty() ? name : fmt::format("{}.{}", path, name);
      const bool twice = twice_.contains(&node(key)), holds = holds_others(node(value));
      // Of two blocks of one name the last counts, and nothing of the first: what is left of either
      // is an empty one, for whoever asks what stands twice.
      if (twice && holds) add(child, Json::object(), node(key), node(value));
      if (!twice || !holds || last.at(name) == key) member(node(key), node(value), child, depth);
    }
  }

  static bool holds_others(const yaml_node_t& value) {
    return value.type == YAML_MAPPING_NODE || value.type == YAML_SEQUENCE_NODE;
  }

  // The key that a name stands at last. Names that stand more than once are noted.
  std::map<std::string, int> last_of_names(const yaml_node_t& map) {
    std::map<std::string, int> last;
    for (const auto& [key, value] : pairs_of(map)) {
      if (is_merge(node(key))) continue;
      if (node(key).type != YAML_SCALAR_NODE) {
        fail(node(key), "a key must be a word, not a list or a mapping");
      }
      const auto [known, fresh] = last.try_emplace(text_of_scalar(node(key)), key);
      if (fresh) continue;
      twice_.insert(&node(known->second));
      twice_.insert(&node(key));
      known->second = key;
    }
    return last;
  }

  // `<<: *x`, `<<: [*x, *y]`, of which the first counts.
  void merge(const yaml_node_t& from, const yaml_node_t& key, const std::string& path, int depth,
             std::set<std::string>& said) {
    if (from.type == YAML_MAPPING_NODE) return mapping(from, path, depth + 1, said);
    const bool list = from.type == YAML_SEQUENCE_NODE;
    const auto items = list ? items_of(from) : std::span<const int>();
    const bool mappings = std::all_of(items.begin(), items.end(), [this](int item) {
      return node(item).type == YAML_MAPPING_NODE;
    });
    if (!list || !mappings) fail(key, "'<<' takes a mapping or a list of them");
    for (const int item : items) mapping(node(item), path, depth + 1, said);
  }

  void member(const yaml_node_t& key, const yaml_node_t& value, const std::string& path,
              int depth) {
    switch (value.type) {
      case YAML_MAPPING_NODE:
        if (pairs_of(value).empty()) return add(path, Json::object(), key, value);
        return mapping(value, path, depth + 1);
      case YAML_SEQUENCE_NODE:
        return add(path, sequence(value, path, depth), key, value);
      case YAML_SCALAR_NODE:
        if (!is_plain(value) || value.data.scalar.length > 0) {
          add(path, scalar(value), key, value);
        }
        return;
      case YAML_NO_NODE:
        return;
    }
  }

  // Mappings in a list are sections of their own: "list.0".
  Json sequence(const yaml_node_t& list, const std::string& path, int depth) {
    Json result = Json::array();
    for (const int item : items_of(list)) {
      const yaml_node_t& value = node(item);
      count(value);
      if (value.type == YAML_MAPPING_NODE) {
        mapping(value, fmt::format("{}.{}", path, result.size()), depth + 1);
      }
      result.push_back(value.type == YAML_SCALAR_NODE ? scalar(value) : Json(nullptr));
    }
    return result;
  }

  static bool is_plain(const yaml_node_t& scalar) {
    return scalar.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
  }

  [[nodiscard]] Json scalar(const yaml_node_t& node) const {
    const std::string text = text_of_scalar(node);
    return is_plain(node) ? plain_scalar(text, loader_) : Json(text);
  }

  // An alias stands elsewhere than its value, which others may share: no part of the file is it.
  void add(const std::string& path, Json value, const yaml_node_t& key,
           const yaml_node_t& spelled) {
    const bool here = spelled.start_mark.index >= key.end_mark.index;
    const Span text = here ? span_of(spelled) : Span{};
    const Span whole = here ? Span{offset(key.start_mark), text.end} : Span{};
    Span name = here ? span_of(key) : Span{};
    if (here && !is_plain(key)) name = {name.begin + 1, name.end - 1};
    count(spelled);
    result_.settings.add({path,
                          std::move(value),
                          {name_, line_of_node(key)},
                          whole,
                          text,
                          true,
                          name,
                          Syntax::yaml});
  }

  std::string_view text_;
  const std::string& name_;
  YamlLoader loader_;
  std::size_t mark_;                // the bytes before the text
  std::vector<std::size_t> bytes_;  // where each character begins
  yaml_document_t* document_ = nullptr;
  std::set<const yaml_node_t*> twice_;  // keys of the document whose names stand more than once
  std::size_t count_ = 0;
  FormatText result_;
};

}  // namespace

FormatText read_yaml_settings(std::string_view text, const std::string& name, YamlLoader loader) {
  return YamlReader(text, name, loader).read();
}

}  // namespace qplan
