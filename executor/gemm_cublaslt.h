#pragma once
// Matrix products on a GPU by cuBLASLt: bf16 operands, sums in fp32.

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "executor/cuda_handles.h"
#include "models/dtype.h"

namespace qplan {

// C[m, n] = op(A) op(B), or C += with `accumulate`. Row-major; a stride is that of stored rows.
// A is stored (m, k), or (k, m) when transposed; B is stored (k, n), or (n, k) when transposed.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool a_transposed = false, b_transposed = false, accumulate = false;
  bool biased = false;  // C[i, :] gets a bias of n numbers in C's format, too
  DType in = DType::bf16, out = DType::bf16;
  int alignment = 256;  // bytes that every pointer is a multiple of; at most 256
  bool operator==(const ProductShape&) const = default;
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
                const void* bias = nullptr);

  // What it holds on the device besides the operands.
  static constexpr std::int64_t kWorkspaceBytes = 32 << 20;  // NVIDIA's advice for Hopper

 private:
  struct Plan;
  Plan& plan_for(const ProductShape& shape);

  struct Hash {
    std::size_t operator()(const ProductShape& s) const;
  };
  cublasLtHandle_t handle_ = nullptr;
  DeviceMemory workspace_;
  std::unordered_map<ProductShape, std::unique_ptr<Plan>, Hash> plans_;
};

}  // namespace qplan
