#pragma once
// Matrix products on a GPU by cuBLASLt: bf16 or fp8 operands, sums in fp32.

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "executor/cuda/handles.h"
#include "models/dtype.h"

namespace qplan {

// C[m, n] = scale op(A) op(B), or C += with `accumulate`. Row-major; a stride is that of stored
// rows. A is stored (m, k), or (k, m) when transposed; B is stored (k, n), or (n, k) when
// transposed.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool a_transposed = false, b_transposed = false, accumulate = false;
  bool biased = false;  // C[i, :] gets a bias of n numbers in C's format, too
  DType a = DType::bf16, b = DType::bf16, out = DType::bf16;
  // fp8: sums in the tensor cores' own registers, of 14 bits or so behind the largest summand's
  // (arXiv 2412.19437, 3.3.2), and not brought to fp32 from time to time. Faster.
  bool fast_accumulation = false;
  int alignment = 256;  // bytes that every pointer is a multiple of; at most 256
  bool operator==(const ProductShape&) const = default;
};

// Of fp8 operands, which are numbers times their scale (on the device) times 2^-exponent of their
// format (executor/math/quantize.h). On Hopper A is not transposed and B is: contracted sides lie
// in rows; m, n and k are multiples of 16.
struct ProductScales {
  const float *a = nullptr, *b = nullptr;
};

class CublasLt {
 public:
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // `shape.alignment` is found out from the pointers. Products of one CublasLt share a workspace:
  // they belong on one stream.
  void multiply(ProductShape shape, const void* a, const void* b, void* c, cudaStream_t stream,
                ProductScales scales = {}, const void* bias = nullptr, float scale = 1);

  // What it holds on the device besides the operands.
  static constexpr std::int64_t kWorkspaceBytes = 32 << 20;  // NVIDIA's advice for Hopper

 private:
  struct Plan;
  Plan& plan_for(const ProductShape& shape, ProductScales scales);

  struct Hash {
    std::size_t operator()(const ProductShape& s) const;
  };
  cublasLtHandle_t handle_ = nullptr;
  DeviceMemory workspace_;
  std::unordered_map<ProductShape, std::unique_ptr<Plan>, Hash> plans_;
};

}  // namespace qplan
