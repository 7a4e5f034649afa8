#pragma once
// A slot's memory as numbers.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/math/matrix.h"
#include "executor/math/rounding.h"
#include "models/dtype.h"

namespace qplan {

// rows x cols elements, row-major, somewhere in an arena.
struct Tensor {
  std::byte* data = nullptr;
  DType dtype = DType::fp32;
  std::int64_t rows = 0, cols = 0;

  [[nodiscard]] std::int64_t elements() const { return rows * cols; }
  [[nodiscard]] std::int64_t bytes() const {
    return static_cast<std::int64_t>(static_cast<double>(elements()) * size_of(dtype));
  }
  [[nodiscard]] std::span<std::byte> span() const {
    return {data, static_cast<std::size_t>(bytes())};
  }
  // A matrix inside: `first` elements after the begin.
  [[nodiscard]] Tensor part(std::int64_t first, std::int64_t part_rows,
                            std::int64_t part_cols) const {
    const auto skip = static_cast<double>(first) * size_of(dtype);
    return {data + static_cast<std::int64_t>(skip), dtype, part_rows, part_cols};
  }
  [[nodiscard]] Tensor row_range(std::int64_t first, std::int64_t count) const {
    return part(first * cols, count, cols);
  }
};

// What a tensor holds, as floats: fp32 in place, narrower formats decoded, and rounded back by
// commit().
class Values {
 public:
  // `load` false: the numbers are about to be written, all of them.
  explicit Values(const Tensor& tensor, bool load = true) : tensor_(tensor) {
    if (tensor.dtype == DType::fp32) return;
    copy_.resize(static_cast<std::size_t>(tensor.elements()));
    if (load) math::decode(tensor.dtype, tensor.span(), copy_);
  }

  [[nodiscard]] std::span<float> all() {
    if (tensor_.dtype != DType::fp32) return copy_;
    // The arena's slots are aligned to 256 bytes, their parts to an element.
    return {static_cast<float*>(static_cast<void*>(tensor_.data)),
            static_cast<std::size_t>(tensor_.elements())};
  }
  [[nodiscard]] math::Matrix matrix() { return {all(), tensor_.rows, tensor_.cols}; }
  void commit() {
    if (tensor_.dtype != DType::fp32) math::encode(tensor_.dtype, copy_, tensor_.span());
  }

 private:
  Tensor tensor_;
  std::vector<float> copy_;
};

// Integers of an int32 tensor, in place.
inline std::span<std::int32_t> ints(const Tensor& tensor) {
  QPLAN_CHECK(tensor.dtype == DType::int32, "integers are read from an int32 tensor");
  return {static_cast<std::int32_t*>(static_cast<void*>(tensor.data)),
          static_cast<std::size_t>(tensor.elements())};
}

}  // namespace qplan
