#pragma once
// cuDNN's graph API (its C interface) with owners and types: tensors, operations on them, and the
// plan that executes them as one kernel.

#include <cudnn.h>

#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "executor/cuda/handles.h"

namespace qplan {

void check(cudnnStatus_t status, std::source_location where = std::source_location::current());

struct CudnnDeleter {
  void operator()(cudnnHandle_t h) const noexcept { cudnnDestroy(h); }
};
using OwnedCudnn = std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, CudnnDeleter>;
OwnedCudnn make_cudnn();

// Four dimensions: batch, heads, rows, columns.
struct CudnnShape {
  std::int64_t dims[4];
  std::int64_t strides[4];
};

// A tensor of a graph; 0 is none.
using TensorId = std::int64_t;

struct BackendDeleter {
  void operator()(cudnnBackendDescriptor_t d) const noexcept { cudnnBackendDestroyDescriptor(d); }
};
using CudnnDescriptor =
    std::unique_ptr<std::remove_pointer_t<cudnnBackendDescriptor_t>, BackendDeleter>;

class CudnnPlan {
 public:
  [[nodiscard]] std::int64_t workspace_bytes() const { return workspace_bytes_; }
  // Where each tensor that is not an intermediate one lies; numbers were given to the graph.
  void execute(cudnnHandle_t handle, const std::vector<std::pair<TensorId, void*>>& tensors,
               void* workspace) const;

 private:
  friend class CudnnGraph;
  CudnnDescriptor plan_;
  std::vector<std::pair<TensorId, float>> numbers_;
  std::int64_t workspace_bytes_ = 0;
};

class CudnnGraph {
 public:
  // A tensor in memory; one that lives inside the kernel; a number.
  TensorId memory(const CudnnShape& shape, cudnnDataType_t type);
  TensorId inner(const CudnnShape& shape, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  TensorId number(float value);

  void matmul(TensorId a, TensorId b, TensorId c);
  // y = mode(x), or mode(x, b), or mode(x, b, t).
  void pointwise(cudnnPointwiseMode_t mode, TensorId x, TensorId b, TensorId t, TensorId y,
                 cudnnDataType_t compute = CUDNN_DATA_FLOAT, std::int64_t axis = -1);
  void reduce(cudnnReduceTensorOp_t op, TensorId x, TensorId y);
  void reshape(TensorId x, TensorId y);

  // The fastest kernel by cuDNN's own estimate. Throws DeviceError where there is none.
  CudnnPlan plan(cudnnHandle_t handle);

 private:
  cudnnBackendDescriptor_t add(CudnnDescriptor descriptor);
  TensorId tensor(const CudnnShape& shape, cudnnDataType_t type, bool is_virtual, bool by_value);
  [[nodiscard]] cudnnBackendDescriptor_t at(TensorId id) const {
    return tensors_[static_cast<std::size_t>(id - 1)];
  }

  std::vector<CudnnDescriptor> all_;
  std::vector<cudnnBackendDescriptor_t> tensors_, operations_;
  std::vector<std::pair<TensorId, float>> numbers_;
};

}  // namespace qplan
