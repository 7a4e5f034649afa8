#pragma once
// Number formats and their sizes.

#include <cstdint>

#include "models/words.h"

namespace qplan {

// fp8 is e4m3; fp8_e5m2, of more range and less precision, holds gradients beside it.
enum class DType : std::uint8_t { fp32, bf16, fp16, fp8, fp4, int64, int32, boolean, fp8_e5m2 };

constexpr bool is_fp8(DType t) {
  return t == DType::fp8 || t == DType::fp8_e5m2;
}

// Bytes an element takes (fp4 packs two in one).
constexpr double size_of(DType t) {
  switch (t) {
    case DType::int64:
      return 8;
    case DType::fp32:
    case DType::int32:
      return 4;
    case DType::bf16:
    case DType::fp16:
      return 2;
    case DType::fp8:
    case DType::fp8_e5m2:
    case DType::boolean:
      return 1;
    case DType::fp4:
      return 0.5;
  }
  return 0;
}

template <>
struct Words<DType> {
  static constexpr std::string_view what = "dtype";
  static constexpr auto table =
      std::to_array<std::pair<DType, std::string_view>>({{DType::fp32, "fp32"},
                                                         {DType::bf16, "bf16"},
                                                         {DType::fp16, "fp16"},
                                                         {DType::fp8, "fp8"},
                                                         {DType::fp4, "fp4"},
                                                         {DType::int64, "int64"},
                                                         {DType::int32, "int32"},
                                                         {DType::boolean, "bool"},
                                                         {DType::fp8_e5m2, "fp8_e5m2"}});
};

// What the matrix products run in; master weights and moments are separate words of the plan. fp32:
// everything is, which is what an execution is compared in.
enum class Precision : std::uint8_t { bf16, fp16, fp8, mxfp8, nvfp4, fp32 };

template <>
struct Words<Precision> {
  static constexpr std::string_view what = "precision";
  static constexpr auto table =
      std::to_array<std::pair<Precision, std::string_view>>({{Precision::bf16, "bf16"},
                                                             {Precision::fp16, "fp16"},
                                                             {Precision::fp8, "fp8"},
                                                             {Precision::mxfp8, "mxfp8"},
                                                             {Precision::nvfp4, "nvfp4"},
                                                             {Precision::fp32, "fp32"}});
};

}  // namespace qplan
