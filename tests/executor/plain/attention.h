#pragma once
// Attention of the plain model, with grouped heads or a latent (MLA).

#include <cstdint>
#include <vector>

#include "executor/math/attention.h"
#include "executor/math/rope.h"
#include "tests/executor/plain/part.h"

namespace qplan::plain {

class AttentionLayer {
 public:
  AttentionLayer(Part part, const LayerKind& kind);

  Buffer forward(const Buffer& x);
  Buffer backward(const Buffer& dy);

 private:
  [[nodiscard]] AttentionInput input() const {
    return {q_.view(), k_.view(), v_.view(), positions_, positions_};
  }
  [[nodiscard]] bool turns() const { return m_.position == PositionEmbedding::rope; }

  void project();
  Buffer project_backward(Buffer& dq, Buffer& dk, Buffer& dv);
  [[nodiscard]] RopeShape plain_rope(std::int64_t heads) const;
  [[nodiscard]] RopeShape latent_rope(std::int64_t heads) const;

  // Each head's key: its own part of the expanded latent, then the one rope key of all heads.
  void project_latent();
  Buffer latent_backward(Buffer& dq, Buffer& dk, Buffer& dv);

  Part p_;
  const ModelSpec& m_;
  AttentionShape shape_;
  std::vector<double> frequencies_;
  std::vector<std::int64_t> positions_;
  Buffer x_, q_, k_, v_, q_raw_, k_raw_, out_, lse_;
  Buffer q_down_, q_down_normed_, latent_, latent_normed_;
};

}  // namespace qplan::plain
