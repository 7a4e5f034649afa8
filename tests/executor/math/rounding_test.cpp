#include "executor/math/rounding.h"

#include <cstring>
#include <limits>

#include "tests/executor/math/gradient.h"

using namespace qplan;
using namespace qplan::math;

TEST_CASE("bf16 keeps seven bits of fraction and rounds ties to even") {
  CHECK(from_bf16(to_bf16(1.0F)) == 1.0F);
  CHECK(from_bf16(to_bf16(1.0F + 0x1p-8F)) == 1.0F);                // tie, down to even
  CHECK(from_bf16(to_bf16(1.0F + 3 * 0x1p-8F)) == 1.0F + 0x1p-6F);  // tie, up to even
  CHECK(from_bf16(to_bf16(-1.0F - 0x1p-7F)) == -1.0F - 0x1p-7F);
  CHECK(std::isnan(from_bf16(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(std::isinf(from_bf16(to_bf16(std::numeric_limits<float>::max()))));
}

TEST_CASE("every fp16 number survives the way through fp32") {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = from_fp16(half);
    if (std::isnan(value)) continue;
    REQUIRE(to_fp16(value) == half);
  }
}

TEST_CASE("fp16 rounds to its nearest number: a tie to even, too large to infinity") {
  CHECK(from_fp16(to_fp16(1.0F + 0x1p-11F)) == 1.0F);
  CHECK(from_fp16(to_fp16(1.0F + 3 * 0x1p-11F)) == 1.0F + 0x1p-9F);
  CHECK(from_fp16(to_fp16(65519.0F)) == 65504.0F);
  CHECK(std::isinf(from_fp16(to_fp16(65520.0F))));
  CHECK(from_fp16(to_fp16(0x1p-25F)) == 0);           // half of the smallest: to even
  CHECK(from_fp16(to_fp16(0x1.8p-25F)) == 0x1p-24F);  // subnormal
}

TEST_CASE("every fp8 number survives the way through fp32") {
  for (std::uint32_t bits = 0; bits < 0x100U; ++bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    if (!std::isnan(from_e4m3(byte))) CHECK(to_e4m3(from_e4m3(byte)) == byte);
    if (std::isfinite(from_e5m2(byte))) CHECK(to_e5m2(from_e5m2(byte)) == byte);
  }
  CHECK(std::isnan(from_e4m3(0x7f)));  // its only codes that are no number: 7f and ff
  CHECK(from_e4m3(0x7e) == 448);
  CHECK(from_e4m3(1) == 0x1p-9F);
  CHECK(from_e5m2(0x7b) == 57344);
  CHECK(std::isinf(from_e5m2(0xfc)));
  CHECK(std::isnan(from_e5m2(0x7d)));
  CHECK(from_e5m2(1) == 0x1p-16F);
}

TEST_CASE("fp8 rounds to its nearest number: a tie to even, too large to the largest") {
  CHECK(from_e4m3(to_e4m3(1 + 0x1p-4F)) == 1);
  CHECK(from_e4m3(to_e4m3(1 + 3 * 0x1p-4F)) == 1.25F);
  CHECK(from_e4m3(to_e4m3(-460)) == -448);
  CHECK(from_e4m3(to_e4m3(std::numeric_limits<float>::infinity())) == 448);
  CHECK(from_e4m3(to_e4m3(0x1p-10F)) == 0);  // half of the smallest: to even
  CHECK(std::isnan(from_e4m3(to_e4m3(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(from_e5m2(to_e5m2(1 + 0x1p-3F)) == 1);
  CHECK(from_e5m2(to_e5m2(1 + 3 * 0x1p-3F)) == 1.5F);
  CHECK(from_e5m2(to_e5m2(1e6F)) == 57344);
  CHECK(from_e5m2(to_e5m2(0x1.8p-17F)) == 0x1p-16F);  // subnormal
}

TEST_CASE("a buffer gives back what was put in, rounded") {
  auto x = random_floats(5, 1);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16, DType::fp8, DType::fp8_e5m2}) {
    std::vector<std::byte> bytes(at(5 * static_cast<std::int64_t>(size_of(dtype))));
    std::vector<float> back(5), rounded = x;
    encode(dtype, x, bytes);
    decode(dtype, bytes, back);
    round_to(dtype, rounded);
    CHECK(back == rounded);
    if (dtype == DType::fp32) CHECK(back == x);
    // Rounding once more changes nothing.
    round_to(dtype, rounded);
    CHECK(back == rounded);
  }
}
