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

TEST_CASE("a buffer gives back what was put in, rounded") {
  auto x = random_floats(5, 1);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
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
