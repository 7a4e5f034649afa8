#pragma once
// Sorting on the device, by CUB (part of the CUDA Toolkit).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace qplan::kernels {

struct SortArrays {
  std::uint32_t *keys, *values;
};
// `to`: the n pairs of `from` by rising keys, all below 2^bits; those of one key in the order in
// which they stood. Keys and values of `from` stay. scratch: 8 bytes a pair and kSortScratch; with
// less it returns an error.
[[nodiscard]] cudaError_t sort_by_key(const SortArrays& to, const SortArrays& from, std::int64_t n,
                                      int bits, void* scratch, std::size_t scratch_bytes,
                                      cudaStream_t stream);

}  // namespace qplan::kernels
