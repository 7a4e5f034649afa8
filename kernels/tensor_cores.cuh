#pragma once
// Tensor cores by the instructions that Ampere and all later GPUs have (PTX ISA 8.0, 9.7.13): a
// warp's products of 16 x 16 with 16 x 8 numbers, and what brings the operands out of shared
// memory.

#include "kernels/device.cuh"

namespace qplan::kernels {

// Four matrices of 8 x 8 numbers; lanes 8 i .. 8 i + 7 say where rows of the i-th begin. Each lane
// gets two neighbours of row lane / 4, or, transposed, of that column.
//
// multiply_add: d += a b. Lane l has of d rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next
// (d[0], d[1] and d[2], d[3]).
#ifdef QPLAN_EMULATED  // tests/emulated/tensor_cores.h
using emulated::load_matrices;
using emulated::multiply_add;
#else
template <bool Transposed>
__device__ inline void load_matrices(std::uint32_t (&r)[4], const bf16* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
}

__device__ inline void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

}  // namespace qplan::kernels
