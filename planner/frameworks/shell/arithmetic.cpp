#include "planner/frameworks/shell/arithmetic.h"

#include <charconv>

namespace qplan {
namespace {

class Arithmetic {
 public:
  explicit Arithmetic(std::string_view text) : text_(text) {}
  std::optional<std::int64_t> value() {
    const auto result = sum();
    skip();
    return at_ == text_.size() && good_ ? std::optional(result) : std::nullopt;
  }

 private:
  static constexpr std::int64_t kMost = std::int64_t{1} << 31U;

  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n'))
      ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::int64_t checked(std::int64_t n) {
    good_ = good_ && n < kMost && n > -kMost;
    return good_ ? n : 0;
  }
  std::int64_t factor() {
    skip();
    if (++depth_ > 64) good_ = false;
    if (!good_) return 0;
    std::int64_t n = 0;
    if (take('(')) {
      n = sum();
      good_ = take(')') && good_;
    } else if (take('-')) {
      n = -factor();
    } else {
      const char* const end = text_.data() + text_.size();
      const auto [stop, code] = std::from_chars(text_.data() + at_, end, n);
      good_ = good_ && code == std::errc{};
      at_ = static_cast<std::size_t>(stop - text_.data());
    }
    --depth_;
    return checked(n);
  }
  std::int64_t product() {
    std::int64_t n = factor();
    for (;;) {
      if (take('*')) {
        n = checked(n * factor());
      } else if (take('/') || take('%')) {
        const bool rest = text_[at_ - 1] == '%';
        const std::int64_t by = factor();
        good_ = good_ && by != 0;
        n = !good_ ? 0 : rest ? n % by : n / by;
      } else {
        return n;
      }
    }
  }
  std::int64_t sum() {
    std::int64_t n = product();
    for (;;) {
      if (take('+')) {
        n = checked(n + product());
      } else if (take('-')) {
        n = checked(n - product());
      } else {
        return n;
      }
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool good_ = true;
};

}  // namespace

std::optional<std::int64_t> shell_arithmetic(std::string_view text) {
  return Arithmetic(text).value();
}

}  // namespace qplan
