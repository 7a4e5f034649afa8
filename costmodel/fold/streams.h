#pragma once
// Time as a linear map. Give each stream a clock: the moment it becomes free. "Wait for the later"
// is max, "take this long" is +. Call max addition and + multiplication, and a piece of program is
// a matrix.

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <limits>

#include "models/program/op.h"
#include "models/units.h"

namespace qplan {

// A number of the (max, +) algebra: zero is minus infinity, one is 0.
class MaxPlus {
 public:
  constexpr MaxPlus() = default;  // the algebra's zero
  constexpr explicit MaxPlus(Seconds s) : value_(s.value()) {}
  // Eigen makes its zeros and ones from integers.
  constexpr MaxPlus(int number)  // NOLINT(google-explicit-constructor)
      : value_(number == 0 ? -std::numeric_limits<double>::infinity() : 0) {}

  [[nodiscard]] constexpr Seconds seconds() const { return Seconds(value_); }

  friend constexpr MaxPlus operator+(MaxPlus a, MaxPlus b) {
    MaxPlus sum;
    sum.value_ = a.value_ < b.value_ ? b.value_ : a.value_;  // one instruction
    return sum;
  }
  friend constexpr MaxPlus operator*(MaxPlus a, MaxPlus b) {
    MaxPlus product;
    product.value_ = a.value_ + b.value_;
    return product;
  }
  constexpr MaxPlus& operator+=(MaxPlus b) { return *this = *this + b; }
  constexpr MaxPlus& operator*=(MaxPlus b) { return *this = *this * b; }
  constexpr bool operator==(const MaxPlus&) const = default;
  constexpr bool operator<(const MaxPlus& b) const { return value_ < b.value_; }

 private:
  double value_ = -std::numeric_limits<double>::infinity();
};

}  // namespace qplan

template <>
struct Eigen::NumTraits<qplan::MaxPlus> : Eigen::GenericNumTraits<qplan::MaxPlus> {
  using Real = qplan::MaxPlus;
  using NonInteger = qplan::MaxPlus;
  using Nested = qplan::MaxPlus;
  enum {
    IsComplex = 0,
    IsInteger = 0,
    IsSigned = 1,
    RequireInitialization = 1,
    ReadCost = 1,
    AddCost = 1,
    MulCost = 1
  };
};

namespace qplan {

template <int Columns>
using StreamState = Eigen::Matrix<MaxPlus, kStreamCount, Columns>;
using StreamClocks = StreamState<1>;            // when each stream becomes free
using StreamDelay = StreamState<kStreamCount>;  // how a piece of program moves those clocks

// The clocks at time zero, and the piece of program that does nothing.
inline StreamClocks clocks_at_zero() {
  return StreamClocks::Constant(MaxPlus(Seconds(0)));
}
inline StreamDelay no_delay() {
  StreamDelay identity;
  for (int i = 0; i < kStreamCount; ++i) {
    for (int j = 0; j < kStreamCount; ++j) identity(i, j) = i == j ? MaxPlus(1) : MaxPlus(0);
  }
  return identity;
}

// How long an op holds its stream, and how long the launching thread takes to enqueue it.
struct Duration {
  Seconds time, launch;
};

// The only place that knows what enqueuing an op does to time. The host enqueues first; the op then
// waits for its stream, for the streams it names and for the host, and takes its time.
template <int Columns>
void advance(StreamState<Columns>& state, const Op& op, Duration duration) {
  const int host = index(Stream::host);
  const int stream = index(op.stream);
  state.row(host) *= MaxPlus(duration.launch);
  for (int other = 0; other < kStreamCount; ++other) {
    if (other != stream && op.after.has(static_cast<Stream>(other))) {
      state.row(stream) += state.row(other);
    }
  }
  if (stream != host) state.row(stream) += state.row(host);
  state.row(stream) *= MaxPlus(duration.time);
}

// Compute waits for everything in flight: before the gradient norm, in the fold and in the replay.
inline void join_all(StreamClocks& clocks) {
  const StreamSet all = only(Stream::model_comm) | only(Stream::gather_comm) |
                        only(Stream::reduce_comm) | only(Stream::d2h) | only(Stream::h2d);
  advance(clocks, Op{.work = Join{}, .stream = Stream::compute, .after = all}, Duration{});
}

// The product of the algebra. Few streams wait for each other in one piece of program, so most of a
// delay is zero, and is passed over.
template <int Columns>
StreamState<Columns> apply(const StreamDelay& delay, const StreamState<Columns>& state) {
  StreamState<Columns> product;  // of zeros
  for (int j = 0; j < Columns; ++j) {
    for (int k = 0; k < kStreamCount; ++k) {
      if (state(k, j) != MaxPlus()) product.col(j) += delay.col(k) * state(k, j);
    }
  }
  return product;
}

// First `a`, then `b`.
inline StreamDelay then(const StreamDelay& a, const StreamDelay& b) {
  return apply(b, a);
}

// `n` times in sequence, by repeated squaring.
inline StreamDelay power(StreamDelay base, std::int64_t n) {
  if (n == 0) return no_delay();
  for (; n % 2 == 0; n /= 2) base = then(base, base);
  StreamDelay result = base;
  for (n /= 2; n > 0; n /= 2) {
    base = then(base, base);
    if (n % 2 == 1) result = then(result, base);
  }
  return result;
}

}  // namespace qplan
