#pragma once
// MLPs of the plain model: a layer's, and experts with their router.

#include <cstdint>
#include <memory>
#include <vector>

#include "executor/math/activation.h"
#include "executor/math/permute.h"
#include "executor/math/router.h"
#include "tests/executor/plain/part.h"

namespace qplan::plain {

// One MLP: a layer's, a shared expert's or one expert's.
class Mlp {
 public:
  Mlp(Part part, ParameterRole gate, ParameterRole up, ParameterRole down, std::int64_t copy = 0)
      : p_(part), gate_(gate), up_(up), down_(down), copy_(copy) {}

  Buffer forward(const Buffer& x);
  Buffer backward(const Buffer& dy);

 private:
  Part p_;
  ParameterRole gate_, up_, down_;
  std::int64_t copy_;
  Buffer x_, in_, act_;
};

class Experts {
 public:
  explicit Experts(Part part);

  Buffer forward(const Buffer& x);
  Buffer backward(const Buffer& dy);

 private:
  template <class Visit>
  void each_expert(Visit visit) {
    for (std::int64_t e = 0; e < shape_.experts; ++e) {
      const std::int64_t first = order_.offsets[at(e)], end = order_.offsets[at(e + 1)];
      if (end > first) visit(experts_[at(e)], first, end - first);
    }
  }
  static Buffer part_of(const Buffer& x, std::int64_t first, std::int64_t count);

  // The choices, -1 where a copy is beyond its expert's capacity: as many others are preferred.
  [[nodiscard]] std::vector<std::int32_t> sent() const;

  // Qwen2-MoE weighs its shared expert by sigmoid(x . gate); others take it as it is.
  [[nodiscard]] double shared_weight(std::int64_t token) const;
  void add_shared(Buffer& y);
  Buffer shared_backward(const Buffer& dy);

  Part p_;
  RouterShape shape_;
  std::vector<Mlp> experts_;
  std::unique_ptr<Mlp> shared_;
  std::vector<std::int32_t> chosen_;
  ExpertOrder order_;
  Buffer x_, scores_, weights_, expert_out_, shared_out_, shared_logits_;
};

}  // namespace qplan::plain
