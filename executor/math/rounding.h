#pragma once
// Floats to and from the formats that memory and files hold. Rounds to nearest, ties to even.

#include <cstddef>
#include <cstdint>

#include "executor/math/matrix.h"
#include "models/dtype.h"

namespace qplan::math {

std::uint16_t to_bf16(float x);
float from_bf16(std::uint16_t bits);
std::uint16_t to_fp16(float x);  // beyond 65504: infinity
float from_fp16(std::uint16_t bits);

// 8 bits (arXiv 2209.05433): e4m3 has no infinity and reaches 448, e5m2 57344. What is beyond
// becomes the largest number, as CUDA's __NV_SATFINITE has it.
std::uint8_t to_e4m3(float x);
float from_e4m3(std::uint8_t bits);
std::uint8_t to_e5m2(float x);
float from_e5m2(std::uint8_t bits);

// x as a buffer of fp32, bf16, fp16 or fp8, little-endian; bytes.size() is x.size() elements.
void encode(DType dtype, ConstFloats x, std::span<std::byte> bytes);
void decode(DType dtype, std::span<const std::byte> bytes, Floats x);

// x as it would come back from a buffer of that type.
void round_to(DType dtype, Floats x);

}  // namespace qplan::math
