#pragma once
// Quantities that know their dimension: dividing the wrong way round does not compile.

#include <compare>
#include <cstdint>

namespace qplan {

// A count as a factor: exact up to 2^53.
constexpr double as_double(std::int64_t n) {
  return static_cast<double>(n);
}

// Of counts above zero: how many of `b` cover `a`.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// A number of (bytes^B * flops^F * seconds^S). Doubles hold whole bytes exactly up to 2^53 (8 PiB).
template <int B, int F, int S>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(double value) : value_(value) {}

  // The bare number, in the base unit: bytes, flops, seconds.
  [[nodiscard]] constexpr double value() const { return value_; }

  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity o) {
    value_ += o.value_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity o) {
    value_ -= o.value_;
    return *this;
  }
  constexpr Quantity& operator*=(double k) {
    value_ *= k;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value_ + b.value_);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value_ - b.value_);
  }
  friend constexpr Quantity operator-(Quantity a) { return Quantity(-a.value_); }
  friend constexpr Quantity operator*(Quantity a, double k) { return Quantity(a.value_ * k); }
  friend constexpr Quantity operator*(double k, Quantity a) { return Quantity(a.value_ * k); }
  friend constexpr Quantity operator/(Quantity a, double k) { return Quantity(a.value_ / k); }

 private:
  double value_ = 0;
};

template <int B1, int F1, int S1, int B2, int F2, int S2>
constexpr auto operator*(Quantity<B1, F1, S1> a, Quantity<B2, F2, S2> b) {
  if constexpr (B1 + B2 == 0 && F1 + F2 == 0 && S1 + S2 == 0) {
    return a.value() * b.value();
  } else {
    return Quantity<B1 + B2, F1 + F2, S1 + S2>(a.value() * b.value());
  }
}

template <int B1, int F1, int S1, int B2, int F2, int S2>
constexpr auto operator/(Quantity<B1, F1, S1> a, Quantity<B2, F2, S2> b) {
  if constexpr (B1 == B2 && F1 == F2 && S1 == S2) {
    return a.value() / b.value();
  } else {
    return Quantity<B1 - B2, F1 - F2, S1 - S2>(a.value() / b.value());
  }
}

using Bytes = Quantity<1, 0, 0>;
using Flops = Quantity<0, 1, 0>;
using Seconds = Quantity<0, 0, 1>;
using BytesPerSecond = Quantity<1, 0, -1>;
using FlopsPerSecond = Quantity<0, 1, -1>;

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
inline constexpr double kMiB = 1024.0 * 1024.0;

constexpr Bytes gib(double n) {
  return Bytes(n * kGiB);
}
constexpr Bytes mib(double n) {
  return Bytes(n * kMiB);
}
constexpr double in_gib(Bytes b) {
  return b.value() / kGiB;
}
constexpr Seconds microseconds(double n) {
  return Seconds(n * 1e-6);
}
constexpr BytesPerSecond gb_per_s(double n) {
  return BytesPerSecond(n * 1e9);
}
constexpr FlopsPerSecond tflops(double n) {
  return FlopsPerSecond(n * 1e12);
}

}  // namespace qplan
