#include "executor/cuda/gemm_cublaslt.h"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <string_view>

#include "executor/math/quantize.h"
#include "models/hash.h"

namespace qplan {
namespace {

void check(cublasStatus_t status, std::source_location where = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("cuBLASLt says '{}' at {}:{}", cublasLtGetStatusString(status),
                                where.file_name(), where.line()));
}

cudaDataType_t cuda_type(DType dtype) {
  if (dtype == DType::fp8) return CUDA_R_8F_E4M3;
  if (dtype == DType::fp8_e5m2) return CUDA_R_8F_E5M2;
  return dtype == DType::fp32 ? CUDA_R_32F : CUDA_R_16BF;
}

// Owns one descriptor of the library.
template <class T, cublasStatus_t (*Destroy)(T)>
struct Descriptor {
  T handle = nullptr;
  Descriptor() = default;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Destroy(handle); }
};

using Layout = Descriptor<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

void make_layout(Layout& layout, DType dtype, std::int64_t rows, std::int64_t cols,
                 std::int64_t stride) {
  check(cublasLtMatrixLayoutCreate(&layout.handle, cuda_type(dtype),
                                   static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(cols), stride));
}

float unit_of(DType dtype) {
  return is_fp8(dtype) ? std::ldexp(1.0F, -math::quantized_exponent(dtype)) : 1.0F;
}

int alignment_of(std::initializer_list<const void*> pointers) {
  std::uintptr_t bits = 256;
  for (const void* p : pointers) bits |= reinterpret_cast<std::uintptr_t>(p);
  return static_cast<int>(bits & (~bits + 1));  // the lowest bit that is set
}

}  // namespace

// cuBLAS is column-major: a row-major matrix is its transpose there, so C^T = op(B)^T op(A)^T is
// what is asked for, and the operands change places.
struct CublasLt::Plan {
  Descriptor<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
  Layout a, b, c;
  cublasLtMatmulAlgo_t algorithm{};

  Plan(cublasLtHandle_t handle, const ProductShape& s, ProductScales scales) {
    check(cublasLtMatmulDescCreate(&product.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, s.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (s.fast_accumulation) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    if (is_fp8(s.a)) scale(scales);
    make_layout(a, s.a, s.a_transposed ? s.m : s.k, s.a_transposed ? s.k : s.m, s.a_stride);
    make_layout(b, s.b, s.b_transposed ? s.k : s.n, s.b_transposed ? s.n : s.k, s.b_stride);
    make_layout(c, s.out, s.n, s.m, s.c_stride);
    if (s.biased) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    choose(handle, s);
  }

  void scale(ProductScales scales) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.b);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.a);
  }
  void set_bias(const void* bias) { set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check(cublasLtMatmulDescSetAttribute(product.handle, attribute, &value, sizeof(value)));
  }

  void choose(cublasLtHandle_t handle, const ProductShape& s) {
    Descriptor<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    check(cublasLtMatmulPreferenceCreate(&preference.handle));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value,
                                                 sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspaceBytes});
    const auto alignment = static_cast<std::uint32_t>(s.alignment);
    for (const auto operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(operand, alignment);
    }
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle, product.handle, b.handle, a.handle, c.handle,
                                         c.handle, preference.handle, 1, &best, &found));
    if (found == 0) {
      throw DeviceError(
          fmt::format("cuBLASLt has no kernel for a product {}x{}x{}", s.m, s.n, s.k));
    }
    algorithm = best.algo;
  }
};

std::size_t CublasLt::Hash::operator()(const ProductShape& s) const {
  std::uint64_t hash = kHashSeed;
  for (const std::int64_t x :
       {s.m, s.n, s.k, s.a_stride, s.b_stride, s.c_stride, std::int64_t{s.alignment},
        std::int64_t{s.a_transposed} + 2 * std::int64_t{s.b_transposed} +
            4 * std::int64_t{s.accumulate} + 8 * std::int64_t{s.fast_accumulation} +
            16 * static_cast<std::int64_t>(s.a) + 256 * static_cast<std::int64_t>(s.b) +
            4096 * static_cast<std::int64_t>(s.out) + 65536 * std::int64_t{s.biased}}) {
    hash = hash_mix(hash, static_cast<std::uint64_t>(x));
  }
  return hash;
}

CublasLt::CublasLt() : workspace_(device_memory(kWorkspaceBytes)) {
  check(cublasLtCreate(&handle_));
}

CublasLt::~CublasLt() {
  cublasLtDestroy(handle_);
}

CublasLt::Plan& CublasLt::plan_for(const ProductShape& shape, ProductScales scales) {
  std::unique_ptr<Plan>& plan = plans_[shape];
  if (plan == nullptr) plan = std::make_unique<Plan>(handle_, shape, scales);
  return *plan;
}

void CublasLt::multiply(ProductShape shape, const void* a, const void* b, void* c,
                        cudaStream_t stream, ProductScales scales, const void* bias, float scale) {
  shape.alignment = alignment_of({a, b, c});
  shape.biased = bias != nullptr;
  Plan& plan = plan_for(shape, scales);
  if (is_fp8(shape.a)) plan.scale(scales);
  if (shape.biased) plan.set_bias(bias);
  const float alpha = scale * unit_of(shape.a) * unit_of(shape.b);
  const float beta = shape.accumulate ? 1.0F : 0.0F;
  check(cublasLtMatmul(handle_, plan.product.handle, &alpha, b, plan.b.handle, a, plan.a.handle,
                       &beta, c, plan.c.handle, c, plan.c.handle, &plan.algorithm, workspace_.get(),
                       kWorkspaceBytes, stream));
}

}  // namespace qplan
