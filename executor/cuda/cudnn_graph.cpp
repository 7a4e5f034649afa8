#include "executor/cuda/cudnn_graph.h"

#include <fmt/format.h>

namespace qplan {
namespace {

CudnnDescriptor make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  check(cudnnBackendCreateDescriptor(type, &descriptor));
  return CudnnDescriptor(descriptor);
}

template <class T>
void set(const CudnnDescriptor& d, cudnnBackendAttributeName_t name,
         cudnnBackendAttributeType_t type, const T& value) {
  check(cudnnBackendSetAttribute(d.get(), name, type, 1, &value));
}

template <class T>
void set_all(const CudnnDescriptor& d, cudnnBackendAttributeName_t name,
             cudnnBackendAttributeType_t type, const T* values, std::size_t count) {
  check(cudnnBackendSetAttribute(d.get(), name, type, static_cast<std::int64_t>(count), values));
}

void set_tensor(const CudnnDescriptor& d, cudnnBackendAttributeName_t name,
                cudnnBackendDescriptor_t tensor) {
  set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, tensor);
}

void finalize(const CudnnDescriptor& d) {
  check(cudnnBackendFinalize(d.get()));
}

}  // namespace

void check(cudnnStatus_t status, std::source_location where) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char last[1024] = {};
  cudnnGetLastErrorString(last, sizeof(last));
  throw DeviceError(fmt::format("cuDNN says '{}' ({}) at {}:{}", cudnnGetErrorString(status), last,
                                where.file_name(), where.line()));
}

OwnedCudnn make_cudnn() {
  cudnnHandle_t handle = nullptr;
  check(cudnnCreate(&handle));
  return OwnedCudnn(handle);
}

cudnnBackendDescriptor_t CudnnGraph::add(CudnnDescriptor descriptor) {
  finalize(descriptor);
  all_.push_back(std::move(descriptor));
  return all_.back().get();
}

TensorId CudnnGraph::tensor(const CudnnShape& shape, cudnnDataType_t type, bool is_virtual,
                            bool by_value) {
  const auto id = static_cast<TensorId>(tensors_.size()) + 1;
  CudnnDescriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  set_all(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, shape.dims, 4);
  set_all(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, shape.strides, 4);
  set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::int64_t{16});
  set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
  set(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
  tensors_.push_back(add(std::move(d)));
  return id;
}

TensorId CudnnGraph::memory(const CudnnShape& shape, cudnnDataType_t type) {
  return tensor(shape, type, false, false);
}

TensorId CudnnGraph::inner(const CudnnShape& shape, cudnnDataType_t type) {
  return tensor(shape, type, true, false);
}

TensorId CudnnGraph::number(float value) {
  const TensorId id = tensor({{1, 1, 1, 1}, {1, 1, 1, 1}}, CUDNN_DATA_FLOAT, false, true);
  numbers_.emplace_back(id, value);
  return id;
}

void CudnnGraph::matmul(TensorId a, TensorId b, TensorId c) {
  CudnnDescriptor kind = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  set(kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  cudnnBackendDescriptor_t kind_handle = add(std::move(kind));
  CudnnDescriptor op = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set_tensor(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a));
  set_tensor(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b));
  set_tensor(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c));
  set_tensor(op, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind_handle);
  operations_.push_back(add(std::move(op)));
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, TensorId x, TensorId b, TensorId t,
                           TensorId y, cudnnDataType_t compute, std::int64_t axis) {
  CudnnDescriptor kind = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  set(kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, compute);
  if (axis >= 0) set(kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  cudnnBackendDescriptor_t kind_handle = add(std::move(kind));
  CudnnDescriptor op = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set_tensor(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind_handle);
  set_tensor(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x));
  if (b != 0) set_tensor(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(b));
  if (t != 0) set_tensor(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(t));
  set_tensor(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y));
  operations_.push_back(add(std::move(op)));
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t op_kind, TensorId x, TensorId y) {
  CudnnDescriptor kind = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op_kind);
  set(kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  cudnnBackendDescriptor_t kind_handle = add(std::move(kind));
  CudnnDescriptor op = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set_tensor(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x));
  set_tensor(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y));
  set_tensor(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind_handle);
  operations_.push_back(add(std::move(op)));
}

void CudnnGraph::reshape(TensorId x, TensorId y) {
  CudnnDescriptor op = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set_tensor(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x));
  set_tensor(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(y));
  operations_.push_back(add(std::move(op)));
}

CudnnPlan CudnnGraph::plan(cudnnHandle_t handle) {
  CudnnDescriptor graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  set_all(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations_.data(),
          operations_.size());
  cudnnBackendDescriptor_t graph_handle = add(std::move(graph));

  CudnnDescriptor heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set_tensor(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_handle);
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  finalize(heuristic);
  constexpr std::int64_t kCandidates = 8;
  std::vector<CudnnDescriptor> owned;
  std::vector<cudnnBackendDescriptor_t> candidates;
  for (std::int64_t i = 0; i < kCandidates; ++i) {
    owned.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    candidates.push_back(owned.back().get());
  }
  std::int64_t found = 0;
  check(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, kCandidates, &found,
                                 candidates.data()));
  for (std::int64_t i = 0; i < found; ++i) {
    CudnnPlan result;
    result.plan_ = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(result.plan_, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
    set_tensor(result.plan_, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
               candidates[static_cast<std::size_t>(i)]);
    // An estimate may name a kernel that does not take this graph after all.
    if (cudnnBackendFinalize(result.plan_.get()) != CUDNN_STATUS_SUCCESS) continue;
    std::int64_t count = 0;
    check(cudnnBackendGetAttribute(result.plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                   CUDNN_TYPE_INT64, 1, &count, &result.workspace_bytes_));
    result.numbers_ = numbers_;
    return result;
  }
  char last[1024] = {};
  cudnnGetLastErrorString(last, sizeof(last));
  throw DeviceError(fmt::format("cuDNN {} has no kernel for this attention ({} candidates; {})",
                                cudnnGetVersion(), found, last));
}

void CudnnPlan::execute(cudnnHandle_t handle,
                        const std::vector<std::pair<TensorId, void*>>& tensors,
                        void* workspace) const {
  std::vector<std::int64_t> ids;
  std::vector<void*> pointers;
  for (const auto& [id, pointer] : tensors) {
    ids.push_back(id);
    pointers.push_back(pointer);
  }
  std::vector<float> values;
  values.reserve(numbers_.size());
  for (const auto& [id, value] : numbers_) {
    ids.push_back(id);
    pointers.push_back(&values.emplace_back(value));
  }
  const CudnnDescriptor pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  set_all(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.data(), ids.size());
  set_all(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers.data(),
          pointers.size());
  set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  finalize(pack);
  check(cudnnBackendExecute(handle, plan_.get(), pack.get()));
}

}  // namespace qplan
