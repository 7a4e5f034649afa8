#include "executor/math/rounding.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace qplan::math {
namespace {

static_assert(std::endian::native == std::endian::little, "buffers are little-endian");

template <class Bits, class Convert>
void encode_as(ConstFloats x, std::span<std::byte> bytes, Convert convert) {
  QPLAN_CHECK(bytes.size() == x.size() * sizeof(Bits), "a buffer holds its elements");
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Bits bits = convert(x[i]);
    std::memcpy(bytes.data() + i * sizeof bits, &bits, sizeof bits);
  }
}

template <class Bits, class Convert>
void decode_as(std::span<const std::byte> bytes, Floats x, Convert convert) {
  QPLAN_CHECK(bytes.size() == x.size() * sizeof(Bits), "a buffer holds its elements");
  for (std::size_t i = 0; i < x.size(); ++i) {
    Bits bits{};
    std::memcpy(&bits, bytes.data() + i * sizeof bits, sizeof bits);
    x[i] = convert(bits);
  }
}

}  // namespace

std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // stays quiet
  const std::uint32_t half = 0x7fffU + ((bits >> 16) & 1U);
  return static_cast<std::uint16_t>((bits + half) >> 16);
}

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_fp16(float x) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000U : 0U);
  const double size = std::abs(static_cast<double>(x));
  if (std::isnan(x)) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (size >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00U);
  // In units of the last place: 2^-24 below 2^-14, else 2^(exponent - 10).
  const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  // A mantissa that rounds up to 2048 carries into the exponent by itself.
  const auto biased = static_cast<std::uint32_t>(exponent + 14) << 10;
  return static_cast<std::uint16_t>(sign | (biased + units));
}

float from_fp16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const double mantissa = bits & 0x3ffU;
  double size = 0;
  if (exponent == 31) {
    size = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    size = std::ldexp(mantissa, -24);
  } else {
    size = std::ldexp(mantissa + 1024, exponent - 25);
  }
  return static_cast<float>((bits & 0x8000U) != 0 ? -size : size);
}

void encode(DType dtype, ConstFloats x, std::span<std::byte> bytes) {
  if (dtype == DType::fp32) {
    encode_as<float>(x, bytes, [](float v) { return v; });
  } else if (dtype == DType::bf16) {
    encode_as<std::uint16_t>(x, bytes, to_bf16);
  } else {
    QPLAN_CHECK(dtype == DType::fp16, "floats are kept as fp32, bf16 or fp16");
    encode_as<std::uint16_t>(x, bytes, to_fp16);
  }
}

void decode(DType dtype, std::span<const std::byte> bytes, Floats x) {
  if (dtype == DType::fp32) {
    decode_as<float>(bytes, x, [](float v) { return v; });
  } else if (dtype == DType::bf16) {
    decode_as<std::uint16_t>(bytes, x, from_bf16);
  } else {
    QPLAN_CHECK(dtype == DType::fp16, "floats are kept as fp32, bf16 or fp16");
    decode_as<std::uint16_t>(bytes, x, from_fp16);
  }
}

void round_to(DType dtype, Floats x) {
  for (float& v : x) {
    if (dtype == DType::bf16) v = from_bf16(to_bf16(v));
    if (dtype == DType::fp16) v = from_fp16(to_fp16(v));
  }
}

}  // namespace qplan::math
