#include "executor/math/rounding.h"

#include <algorithm>
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

// Sign, exponent and `mantissa` bits in 8; without infinities the largest exponent holds numbers
// too.
struct Fp8Format {
  int mantissa, bias;
  float largest;
};
constexpr Fp8Format kE4m3{3, 7, 448}, kE5m2{2, 15, 57344};

std::uint8_t to_fp8(float x, const Fp8Format& f) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(x) ? 0x80U : 0U);
  if (std::isnan(x)) return static_cast<std::uint8_t>(sign | 0x7fU);
  const float size = std::min(std::abs(x), f.largest);
  const int least = 1 - f.bias;
  // Below the normal numbers in units of the last place; nearbyint rounds ties to even.
  if (size < std::ldexp(1.0F, least)) {
    const float units = std::nearbyint(std::ldexp(size, f.mantissa - least));
    return static_cast<std::uint8_t>(sign | static_cast<unsigned>(units));
  }
  const int cut = 23 - f.mantissa;
  const auto bits = std::bit_cast<std::uint32_t>(size);
  const std::uint32_t half = (1U << (cut - 1)) - 1 + ((bits >> cut) & 1U);
  const auto rebias = static_cast<std::uint32_t>(127 - f.bias) << f.mantissa;
  return static_cast<std::uint8_t>(sign | (((bits + half) >> cut) - rebias));
}

float from_fp8(std::uint8_t bits, const Fp8Format& f) {
  const int exponent = (bits & 0x7f) >> f.mantissa, mantissa = bits & ((1 << f.mantissa) - 1);
  const int hidden = exponent == 0 ? 0 : 1 << f.mantissa;
  const int least = 1 - f.bias - f.mantissa;
  float size = std::ldexp(static_cast<float>(hidden + mantissa), least + std::max(exponent - 1, 0));
  // Behind the largest: e4m3 has one code, e5m2 infinity's and three.
  if (size > f.largest) size = f.mantissa == 2 && mantissa == 0 ? INFINITY : NAN;
  return (bits & 0x80U) != 0 ? -size : size;
}

}  // namespace

std::uint8_t to_e4m3(float x) {
  return to_fp8(x, kE4m3);
}
float from_e4m3(std::uint8_t bits) {
  return from_fp8(bits, kE4m3);
}
std::uint8_t to_e5m2(float x) {
  return to_fp8(x, kE5m2);
}
float from_e5m2(std::uint8_t bits) {
  return from_fp8(bits, kE5m2);
}

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
  switch (dtype) {
    case DType::fp32:
      return encode_as<float>(x, bytes, [](float v) { return v; });
    case DType::bf16:
      return encode_as<std::uint16_t>(x, bytes, to_bf16);
    case DType::fp16:
      return encode_as<std::uint16_t>(x, bytes, to_fp16);
    case DType::fp8:
      return encode_as<std::uint8_t>(x, bytes, to_e4m3);
    case DType::fp8_e5m2:
      return encode_as<std::uint8_t>(x, bytes, to_e5m2);
    case DType::fp4:
    case DType::int64:
    case DType::int32:
    case DType::boolean:
      break;
  }
  QPLAN_CHECK(false, "floats are kept as fp32, bf16, fp16 or fp8");
}

void decode(DType dtype, std::span<const std::byte> bytes, Floats x) {
  switch (dtype) {
    case DType::fp32:
      return decode_as<float>(bytes, x, [](float v) { return v; });
    case DType::bf16:
      return decode_as<std::uint16_t>(bytes, x, from_bf16);
    case DType::fp16:
      return decode_as<std::uint16_t>(bytes, x, from_fp16);
    case DType::fp8:
      return decode_as<std::uint8_t>(bytes, x, from_e4m3);
    case DType::fp8_e5m2:
      return decode_as<std::uint8_t>(bytes, x, from_e5m2);
    case DType::fp4:
    case DType::int64:
    case DType::int32:
    case DType::boolean:
      break;
  }
  QPLAN_CHECK(false, "floats are kept as fp32, bf16, fp16 or fp8");
}

void round_to(DType dtype, Floats x) {
  for (float& v : x) {
    if (dtype == DType::bf16) v = from_bf16(to_bf16(v));
    if (dtype == DType::fp16) v = from_fp16(to_fp16(v));
    if (dtype == DType::fp8) v = from_e4m3(to_e4m3(v));
    if (dtype == DType::fp8_e5m2) v = from_e5m2(to_e5m2(v));
  }
}

}  // namespace qplan::math
