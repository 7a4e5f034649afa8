#pragma once
// Arrays on the device for tests: filled from floats, read back as floats.

#include <cuda_bf16.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "executor/cuda/handles.h"
#include "executor/math/rounding.h"

namespace qplan::test {

template <class T>
class DeviceArray {
 public:
  // Nothing in it is a number yet, so that what a kernel leaves out shows.
  explicit DeviceArray(std::int64_t size) : size_(size), memory_(device_memory(bytes())) {
    check(cudaMemset(memory_.get(), 0xff, static_cast<std::size_t>(bytes())));
  }
  explicit DeviceArray(const std::vector<float>& values)
      : DeviceArray(static_cast<std::int64_t>(values.size())) {
    std::vector<T> own(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) own[i] = convert(values[i]);
    check(cudaMemcpy(memory_.get(), own.data(), static_cast<std::size_t>(bytes()),
                     cudaMemcpyHostToDevice));
  }
  [[nodiscard]] T* get() const { return static_cast<T*>(static_cast<void*>(memory_.get())); }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::vector<float> read() const {
    std::vector<T> own(static_cast<std::size_t>(size_));
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(own.data(), memory_.get(), static_cast<std::size_t>(bytes()),
                     cudaMemcpyDeviceToHost));
    std::vector<float> values(own.size());
    for (std::size_t i = 0; i < own.size(); ++i) values[i] = static_cast<float>(own[i]);
    return values;
  }

 private:
  [[nodiscard]] std::int64_t bytes() const { return size_ * static_cast<std::int64_t>(sizeof(T)); }
  static T convert(float x) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(x);
    return static_cast<T>(x);
  }
  std::int64_t size_;
  DeviceMemory memory_;
};

using Bf16Array = DeviceArray<__nv_bfloat16>;
using FloatArray = DeviceArray<float>;

// What an array of integers is filled from.
inline std::vector<float> ids_as_floats(const std::vector<std::int32_t>& ids) {
  return {ids.begin(), ids.end()};
}

// Normal numbers as bf16 holds them, so that both sides compute with the same inputs.
inline std::vector<float> random_bf16(std::int64_t n, unsigned seed, float deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& x : values) x = normal(generator);
  math::round_to(DType::bf16, values);
  return values;
}

// |a - b| / |b|. Not a number anywhere: not a number.
inline double distance(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

// Of numbers rounded to bf16 once (2^-9 at most, a third of that in the mean) and of fp32 results.
inline constexpr double kBf16Rounding = 3e-3, kFloatRounding = 1e-5;

}  // namespace qplan::test
