#pragma once
// What kernels/tensor_cores.cuh asks of the hardware, by a warp's fibers.

#include <cuda_bf16.h>

#include <array>

#include "tests/emulated/device.h"

#define QPLAN_EMULATED

namespace qplan::emulated {

inline float number_of(std::uint32_t pair, unsigned i) {
  const std::uint32_t bits = (i == 0 ? pair << 16 : pair) & 0xffff0000U;
  float x = 0;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

template <bool Transposed>
void load_matrices(std::uint32_t (&r)[4], const __nv_bfloat16* row) {
  static const __nv_bfloat16* mailbox[kMostThreads];
  const unsigned lane = number() % kWarpSize, first = first_of_warp();
  mailbox[number()] = row;
  take_turns();
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    std::array<__nv_bfloat16, 2> pair;
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned across = 2 * (lane % 4) + i, along = lane / 4;
      pair[i] =
          mailbox[first + 8 * matrix + (Transposed ? across : along)][Transposed ? along : across];
    }
    std::memcpy(&r[matrix], pair.data(), sizeof(r[matrix]));
  }
  take_turns();
}

inline void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1) {
  using Operands = std::array<std::uint32_t, 6>;
  static Operands mailbox[kMostThreads];
  const unsigned lane = number() % kWarpSize, first = first_of_warp();
  mailbox[number()] = {a[0], a[1], a[2], a[3], b0, b1};
  take_turns();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned lower = i / 2, column = 2 * (lane % 4) + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned holder = k % 8 / 2, later = k / 8;
      const Operands& of_a = mailbox[first + lane / 4 * 4 + holder];
      const Operands& of_b = mailbox[first + column * 4 + holder];
      d[i] += number_of(of_a[2 * later + lower], k % 2) * number_of(of_b[4 + later], k % 2);
    }
  }
  take_turns();
}

}  // namespace qplan::emulated
