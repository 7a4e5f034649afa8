#pragma once
// A section of a hardware profile, read key by key, and the kinds of figures that sections hold.
// Private to the profile's reader.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/profiles/hardware.h"
#include "models/error.h"
#include "models/json.h"
#include "models/text.h"

namespace qplan::profiles {

inline constexpr double kHuge = 1e15;

// ---- a reader that goes on after a missing key, to name them all ----

// What is wrong with a profile's keys, each with its path.
struct KeyComplaints {
  std::vector<std::string> missing, unknown;
};

// As JsonReader, but a missing key is noted and read as something harmless: read_hardware() throws
// what was noted in the end.
class Section : public JsonReader {
 public:
  Section(const Json& object, std::string path, KeyComplaints& complaints)
      : JsonReader(object, std::move(path)), complaints_(&complaints) {}

  // One section in another. All that a missing one should hold is missing.
  [[nodiscard]] Section section(std::string_view key) {
    static const Json nothing = Json::object();
    ignore({key});
    const Json& object = has(key) ? JsonReader::value(key) : nothing;
    return {object, path_of(key), *complaints_};
  }
  // An object that is no section of the profile's own, such as a list's.
  [[nodiscard]] Section of(const Json& object, std::string path) const {
    return {object, std::move(path), *complaints_};
  }

  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) {
    return lacks(key) ? low : JsonReader::integer(key, low, high);
  }
  double number(std::string_view key, double low, double high) {
    return lacks(key) ? low : JsonReader::number(key, low, high);
  }
  bool boolean(std::string_view key) { return lacks(key) ? false : JsonReader::boolean(key); }
  std::string string(std::string_view key) { return lacks(key) ? "" : JsonReader::string(key); }
  bool lacks(std::string_view key) {
    if (has(key)) return false;
    complaints_->missing.push_back(path_of(key));
    ignore({key});  // known, and so the nearest name of a misspelt one
    return true;
  }

  void finish() {
    try {
      JsonReader::finish();
    } catch (const Error& unknown) {
      complaints_->unknown.emplace_back(unknown.what());
    }
  }

 private:
  KeyComplaints* complaints_;
};

// Every section says where its figures come from: one sentence, or one for each key.
void read_source(Section& in);

// Calls read(Section&) for each object of the list under `key`.
template <class F>
void each_object(Section& in, std::string_view key, F&& read) {
  if (in.lacks(key)) return;
  const Json& list = in.value(key);
  if (!list.is_array()) in.fail(key, "must be a list of objects");
  for (std::size_t i = 0; i < list.size(); ++i) {
    Section item = in.of(list[i], fmt::format("{}[{}]", in.path_of(key), i));
    read(item);
    item.finish();
  }
}

// A positive quantity; zero makes no sense for a rate or a size.
inline double positive(Section& in, std::string_view key) {
  return in.number(key, 1e-6, kHuge);
}
inline double share(Section& in, std::string_view key) {
  return in.number(key, 0.001, 2);
}
inline double share_or(Section& in, std::string_view key, double fallback) {
  return in.number_or(key, 0.001, 2, fallback);
}
inline Seconds time_us(Section& in, std::string_view key) {
  return microseconds(in.number(key, 0, 1e6));
}
// A relative error, one sigma.
inline double error_of(Section& in, std::string_view key) {
  return in.number(key, 0, 1);
}

// What a fit says of its own error. One that was not measured on this GPU is as uncertain as
// others of the kind at least.
template <class Fit>
void read_error(Section& in, const Errors& errors, Fit& fit) {
  fit.error = in.number_or("error", 0, 1, errors.fit);
  fit.assumed = in.boolean_or("assumed", false);
  if (fit.assumed) fit.error = std::max(fit.error, errors.assumed);
}

template <class E>
E word(Section& in, std::string_view key) {
  if (in.lacks(key)) return Words<E>::table.front().first;
  const std::string text = in.string(key);
  if (const auto value = try_from_word<E>(text)) return *value;
  std::string known;
  for (const auto& [e, name] : Words<E>::table) {
    known += known.empty() ? "" : ", ";
    known += name;
  }
  in.fail(key, fmt::format("must be one of {}, not '{}'", known, shown(text)));
}

}  // namespace qplan::profiles
