// A stable radix sort, CUB's.

#include <cub/device/device_radix_sort.cuh>

#include "kernels/sort.h"

namespace qplan::kernels {

cudaError_t sort_by_key(const SortArrays& to, const SortArrays& from, std::int64_t n, int bits,
                        void* scratch, std::size_t scratch_bytes, cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(scratch, scratch_bytes, from.keys, to.keys, from.values,
                                         to.values, static_cast<int>(n), 0, bits, stream);
}

}  // namespace qplan::kernels
