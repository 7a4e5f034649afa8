#pragma once
// Views of row-major floats: what every function of this folder takes. The folder is the reference
// mathematics of a training step, in fp32 with sums in double, on one thread: it knows no plan, no
// rank and no storage format. Two rules hold throughout: gradients of activations are written,
// gradients of parameters are added to (attention, which runs in blocks, adds everywhere and says
// so).

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "models/error.h"

namespace qplan::math {

// rows x cols elements; row i begins i * stride elements after row 0.
template <class T>
struct MatrixView {
  T* data = nullptr;
  std::int64_t rows = 0, cols = 0, stride = 0;

  MatrixView() = default;
  MatrixView(T* first, std::int64_t row_count, std::int64_t col_count, std::int64_t row_stride)
      : data(first), rows(row_count), cols(col_count), stride(row_stride) {}
  // All of a contiguous buffer.
  MatrixView(std::span<T> whole, std::int64_t row_count, std::int64_t col_count)
      : MatrixView(whole.data(), row_count, col_count, col_count) {
    QPLAN_CHECK(std::ssize(whole) == row_count * col_count, "a matrix view covers its buffer");
  }
  operator MatrixView<const T>() const { return {data, rows, cols, stride}; }

  [[nodiscard]] std::span<T> row(std::int64_t i) const {
    return {data + i * stride, static_cast<std::size_t>(cols)};
  }
  [[nodiscard]] T& at(std::int64_t r, std::int64_t c) const { return data[r * stride + c]; }
  [[nodiscard]] MatrixView columns(std::int64_t first, std::int64_t count) const {
    return {data + first, rows, count, stride};
  }
  [[nodiscard]] MatrixView row_range(std::int64_t first, std::int64_t count) const {
    return {data + first * stride, count, cols, stride};
  }
};

using Matrix = MatrixView<float>;
using ConstMatrix = MatrixView<const float>;

// Column vectors and lists.
using Floats = std::span<float>;
using ConstFloats = std::span<const float>;

// Sizes are signed here, standard containers' are not.
constexpr std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

}  // namespace qplan::math
