#pragma once
// Attention on a GPU by cuDNN's fused kernels (FlashAttention's algorithm, written for Hopper and
// Blackwell). Keys and values may have fewer heads than queries.

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "executor/cuda/cudnn_graph.h"
#include "models/program/op.h"

namespace qplan {

// (batch * len, heads * head_dim) bf16 each; log_sum_exp: as many fp32 as queries have heads, laid
// out (batch, heads, len), which only these two functions read.
struct AttentionOperands {
  void *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr, *log_sum_exp = nullptr;
  void *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;  // backward
};

// Rows that a sequence takes in memory, of which the first ones are meant; 0: as many as it has. Of
// what is read; what is written is dense, and so are log-sum-exps.
struct AttentionRows {
  std::int64_t q = 0, kv = 0;
};

class CudnnAttention {
 public:
  // Scores are products over the root of the head's size, times `stretch`.
  explicit CudnnAttention(double stretch = 1);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // Finds a kernel, once a shape; scratch that run() will need.
  std::int64_t prepare(const Attention& work, AttentionRows stored = {});
  void run(const Attention& work, const AttentionOperands& operands, void* scratch,
           cudaStream_t stream, AttentionRows stored = {});

 private:
  struct Prepared;
  Prepared& prepared(const Attention& work, AttentionRows stored);

  OwnedCudnn handle_;
  double stretch_;
  // By hash of the work, and rows.
  std::map<std::tuple<std::uint64_t, std::int64_t, std::int64_t>, std::unique_ptr<Prepared>>
      prepared_;
};

}  // namespace qplan
