#include "models/json.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <unordered_set>

#include "models/error.h"
#include "models/files.h"

namespace qplan {
namespace {

constexpr std::size_t kDeepest = 64;

// "3:14" of a byte offset.
std::string line_and_column(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t start = before.rfind('\n');
  const std::size_t column = before.size() - (start == std::string_view::npos ? 0 : start + 1);
  return fmt::format("{}:{}", line, std::max<std::size_t>(column, 1));
}

// What the parser says, less its own name and position.
std::string complaint(std::string_view what) {
  if (what.find("number overflow") != std::string_view::npos) {
    return "a number is too large for a double";
  }
  if (what.find("unexpected end of input") != std::string_view::npos) {
    return "the text ends in the middle of a value; is the file cut off?";
  }
  if (const auto dash = what.find(" - "); dash != std::string_view::npos) {
    what.remove_prefix(dash + 3);
  }
  std::string result = shown(what.substr(0, what.find("; last read")));
  if (const auto token = what.find("last read: "); token != std::string_view::npos) {
    result += fmt::format(", read {}", shown(what.substr(token + 11)));
  }
  return result;
}

// Builds the value from the parser's events: the parser itself keeps the last of duplicate keys and
// knows no limit of depth. Neither the parser nor this recurses.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, std::string_view where, std::size_t most_values)
      : text_(text), where_(where), most_values_(most_values) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& digits) override {
    // An integer of more than 64 bits arrives here, rounded; such a size is a mistake.
    if (digits.find_first_of(".eE") == string_t::npos) {
      fail(fmt::format("{} is too large for a whole number", shown(digits)));
    }
    return add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // JSON text has none

  bool start_object(std::size_t /*size*/) override { return open(Json::object()); }
  bool key(string_t& name) override {
    Frame& frame = open_.back();
    if (!frame.seen.insert(name).second) {
      frame.key = name;
      fail("appears twice; keep one");
    }
    frame.key = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*size*/) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    throw Error(fmt::format("{}:{}: this is not JSON: {}", where_, line_and_column(text_, position),
                            complaint(error.what())));
  }

  Json take() { return std::move(root_); }

 private:
  struct Frame {
    Json* value;
    std::string key;  // being read, in an object
    std::unordered_set<std::string> seen;
  };

  Json* place(Json value) {
    if (++values_ > most_values_) {
      fail(fmt::format("is one value too many; a JSON file may hold {}", most_values_));
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Frame& frame = open_.back();
    if (frame.value->is_array()) {
      auto& list = frame.value->get_ref<Json::array_t&>();
      return &list.emplace_back(std::move(value));
    }
    // As a vector: the ordered map's own insertion looks at every key before it.
    std::vector<std::pair<const std::string, Json>>& members =
        frame.value->get_ref<Json::object_t&>();
    return &members.emplace_back(frame.key, std::move(value)).second;
  }

  template <class T>
  bool add(T&& value) {
    place(Json(std::forward<T>(value)));
    return true;
  }
  bool open(Json container) {
    if (open_.size() == kDeepest) {
      throw Error(
          fmt::format("{}: values are nested deeper than {}; flatten them", where_, kDeepest));
    }
    open_.push_back({place(std::move(container)), "", {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  [[noreturn]] void fail(std::string_view sentence) const {
    std::string path;
    for (const Frame& frame : open_) {
      if (!frame.value->is_array()) {
        path += (path.empty() ? "" : ".") + shown(frame.key);
        continue;
      }
      // A container is in its list already; the value at fault is not.
      const bool innermost = &frame == &open_.back();
      path += fmt::format("[{}]", frame.value->size() - (innermost ? 0 : 1));
    }
    throw Error(fmt::format("{}: {} {}", where_, path.empty() ? "the value" : path, sentence));
  }

  std::string_view text_, where_;
  std::size_t most_values_, values_ = 0;
  Json root_;
  std::vector<Frame> open_;
};

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// Stops one byte past the limit, so that devices and pipes without an end are refused too.
std::string read_text(const std::string& path, std::size_t limit) {
  const File file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) throw Error(fmt::format("cannot open '{}': {}", path, system_reason()));
  std::string text;
  std::size_t got = 0;
  do {
    const std::size_t had = text.size();
    text.resize(had + (std::size_t{1} << 16U));
    got = std::fread(text.data() + had, 1, text.size() - had, file.get());
    text.resize(had + got);
  } while (got > 0 && text.size() <= limit);
  if (std::ferror(file.get()) != 0) {
    throw Error(fmt::format("cannot read '{}': {}", path, system_reason()));
  }
  if (text.size() > limit) {
    throw Error(fmt::format("'{}' is larger than {} MiB; qplan's inputs are far smaller", path,
                            limit >> 20U));
  }
  return text;
}

// A NUL never occurs in JSON text, and weights, archives and UTF-16 have one early.
bool looks_binary(std::string_view text) {
  return text.substr(0, 4096).find('\0') != std::string_view::npos;
}

std::string shown_number(double value) {
  return fmt::format("{}", value);
}

// The member of that name, or null. nlohmann/json before 3.11 (Ubuntu 22.04 has 3.10.5) cannot look
// an ordered object's member up by a string_view.
const Json* member(const Json& object, std::string_view name) {
  const auto found = object.find(std::string(name));
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

Json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  if (looks_binary(text)) throw Error(fmt::format("{}: this is a binary file, not JSON", where));
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    throw Error(fmt::format("{}: the file is empty; expected a JSON object", where));
  }
  Builder builder(text, where, limits.values);
  Json::sax_parse(text, &builder);
  return builder.take();
}

std::string read_text_file(const std::string& path, const JsonLimits& limits) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw Error(fmt::format("'{}' is a folder; name the file in it", path));
  }
  if (std::filesystem::is_fifo(path, ignored)) {
    throw Error(fmt::format("'{}' is a pipe; name a regular file", path));
  }
  return read_text(path, limits.bytes);
}

Json read_json_file(const std::string& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits), path, limits);
}

void write_file_atomically(const std::string& path, std::string_view text) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  // A device or pipe (/dev/stdout) must be written, not replaced.
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored) &&
      !fs::is_directory(path, ignored)) {
    const Descriptor device(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (device.get() < 0) {
      throw Error(fmt::format("cannot open '{}' to write: {}", path, system_reason()));
    }
    return write_all(device.get(), text, path);
  }
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

std::string_view type_name(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "a boolean";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a string";
  if (value.is_array()) return "a list";
  return "an object";
}

MissingKey::MissingKey(std::string path, std::string hint)
    : Error(path + " is missing" + (hint.empty() ? "" : fmt::format("; did you mean '{}'?", hint))),
      path_(std::move(path)),
      hint_(std::move(hint)) {}

JsonReader::JsonReader(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    throw Error(fmt::format("{} must be an object, is {}",
                            path_.ends_with(':') ? path_ + " the file" : path_, type_name(object)));
  }
}

std::string JsonReader::path_of(std::string_view key) const {
  if (path_.empty()) return shown(key);
  return path_ + (path_.ends_with(':') ? " " : ".") + shown(key);
}

void JsonReader::fail(std::string_view key, std::string_view sentence) const {
  throw Error(path_of(key) + " " + std::string(sentence));
}

bool JsonReader::has(std::string_view key) const {
  const Json* value = member(object_, key);
  return value != nullptr && !value->is_null();
}

bool JsonReader::is_null(std::string_view key) const {
  const Json* value = member(object_, key);
  return value != nullptr && value->is_null();
}

const Json* JsonReader::find(std::string_view key) {
  if (std::find(asked_.begin(), asked_.end(), key) == asked_.end()) asked_.emplace_back(key);
  const Json* value = member(object_, key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Json& JsonReader::require(std::string_view key) {
  if (const Json* value = find(key)) return *value;
  if (is_null(key)) fail(key, "is null; a value is required");
  std::vector<std::string> present;
  for (const auto& [name, value] : object_.items()) present.push_back(name);
  throw MissingKey(path_of(key), nearest_name(key, present));
}

std::int64_t JsonReader::integer(std::string_view key, std::int64_t low, std::int64_t high) {
  const Json& value = require(key);
  if (value.is_number_float()) {
    const double number = value.get<double>();
    const bool whole = std::trunc(number) == number;
    fail(key, fmt::format("must be a whole number{}, is {}",
                          whole ? " without point or exponent" : "", shown_number(number)));
  }
  if (!value.is_number()) {
    fail(key, fmt::format("must be a whole number, is {}", type_name(value)));
  }
  const bool above = value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX;
  if (above || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
    fail(key, fmt::format("must be between {} and {}, is {}", low, high, value.dump()));
  }
  return value.get<std::int64_t>();
}

double JsonReader::number(std::string_view key, double low, double high) {
  const Json& value = require(key);
  if (!value.is_number()) fail(key, fmt::format("must be a number, is {}", type_name(value)));
  const double result = value.get<double>();
  if (!(result >= low && result <= high)) {
    fail(key, fmt::format("must be between {} and {}, is {}", shown_number(low), shown_number(high),
                          shown_number(result)));
  }
  return result;
}

bool JsonReader::boolean(std::string_view key) {
  const Json& value = require(key);
  if (!value.is_boolean()) {
    fail(key, fmt::format("must be true or false, is {}", type_name(value)));
  }
  return value.get<bool>();
}

std::string JsonReader::string(std::string_view key) {
  const Json& value = require(key);
  if (!value.is_string()) fail(key, fmt::format("must be a string, is {}", type_name(value)));
  return value.get<std::string>();
}

const Json& JsonReader::value(std::string_view key) {
  return require(key);
}

std::int64_t JsonReader::integer_or(std::string_view key, std::int64_t low, std::int64_t high,
                                    std::int64_t fallback) {
  return find(key) != nullptr ? integer(key, low, high) : fallback;
}

double JsonReader::number_or(std::string_view key, double low, double high, double fallback) {
  return find(key) != nullptr ? number(key, low, high) : fallback;
}

bool JsonReader::boolean_or(std::string_view key, bool fallback) {
  return find(key) != nullptr ? boolean(key) : fallback;
}

std::string JsonReader::string_or(std::string_view key, std::string fallback) {
  return find(key) != nullptr ? string(key) : std::move(fallback);
}

void JsonReader::ignore(std::initializer_list<std::string_view> keys) {
  asked_.insert(asked_.end(), keys.begin(), keys.end());
}

std::vector<std::string> JsonReader::never_asked_for() const {
  std::vector<std::string> keys;
  for (const auto& [name, value] : object_.items()) {
    if (std::find(asked_.begin(), asked_.end(), name) == asked_.end()) keys.push_back(name);
  }
  return keys;
}

void JsonReader::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (std::find(asked_.begin(), asked_.end(), name) == asked_.end()) {
      fail(name, "is not a known key" + did_you_mean(name, asked_));
    }
  }
}

}  // namespace qplan
