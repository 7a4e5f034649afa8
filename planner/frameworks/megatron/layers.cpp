// The two small languages in which Megatron's flags list layers.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "models/error.h"
#include "planner/frameworks/megatron/megatron.h"

namespace qplan {
namespace {

// sum = item {"+" item}; item = (list | "(" sum ")") {"*" number}; list = "[" 0 or 1, ... "]".
class LayerList {
 public:
  explicit LayerList(std::string_view text) : text_(text) {}

  std::vector<bool> read() {
    std::vector<bool> layers = sum();
    if (next() != '\0') fail();
    return layers;
  }

 private:
  static constexpr std::size_t kMost = 1 << 16;

  [[noreturn]] void fail() const {
    throw Error(fmt::format("'{}' is no list of layers such as ([0]*3+[1]*58)", shown(text_)));
  }
  char next() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  std::size_t number() {
    next();
    std::size_t value = 0;
    const char* const end = text_.data() + text_.size();
    const auto [stop, code] = std::from_chars(text_.data() + at_, end, value);
    if (code != std::errc{} || value > kMost) fail();
    at_ = static_cast<std::size_t>(stop - text_.data());
    return value;
  }
  std::vector<bool> list() {
    std::vector<bool> layers;
    if (!take('[')) fail();
    while (!take(']')) {
      layers.push_back(number() != 0);
      take(',');
    }
    return layers;
  }
  std::vector<bool> item() {
    std::vector<bool> layers;
    if (take('(')) {
      if (++depth_ > 16) fail();
      layers = sum();
      --depth_;
      if (!take(')')) fail();
    } else {
      layers = list();
    }
    while (take('*')) {
      const std::size_t times = number();
      if (layers.size() * times > kMost) fail();
      const std::vector<bool> once = std::exchange(layers, {});
      for (std::size_t i = 0; i < times; ++i) layers.insert(layers.end(), once.begin(), once.end());
    }
    return layers;
  }
  std::vector<bool> sum() {
    std::vector<bool> layers = item();
    while (take('+')) {
      const std::vector<bool> more = item();
      layers.insert(layers.end(), more.begin(), more.end());
      if (layers.size() > kMost) fail();
    }
    return layers;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::string megatron_layout(const ParallelPlan& plan, std::int64_t mtp_layers) {
  std::string text = "E";
  for (std::size_t i = 0; i < plan.pipeline_layout.size(); ++i) {
    if (i > 0) text += '|';
    const int layers = plan.pipeline_layout[i];
    if (layers > 3) {
      text += fmt::format("t*{}", layers);
    } else {
      text.append(static_cast<std::size_t>(layers), 't');
    }
  }
  return text + std::string(static_cast<std::size_t>(mtp_layers), 'm') + "L";
}

std::vector<bool> moe_layers(std::string_view text, std::size_t layers) {
  if (text.find('[') != std::string_view::npos) return LayerList(text).read();
  std::size_t every = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), every);
  if (code != std::errc{} || every == 0 || end != text.data() + text.size()) {
    throw Error(fmt::format("'{}' is neither a number nor a list of layers", shown(text)));
  }
  std::vector<bool> kinds;
  for (std::size_t i = 0; i < layers; ++i) kinds.push_back(i % every == 0);
  return kinds;
}

}  // namespace qplan
