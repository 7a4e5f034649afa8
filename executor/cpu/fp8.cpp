// Linear layers in fp8: scales, casts, transposed copies and products (models/program/
// fp8_linear.cpp). Products are those of the rounded numbers, with sums in fp32.

#include <algorithm>

#include "executor/cpu/ops.h"
#include "executor/math/gemm.h"
#include "executor/math/quantize.h"

namespace qplan {
namespace {

float& scale_in(const CpuRank& rank, const Command& c, const Operand& operand) {
  return Values(rank.tensor(c, operand)).all()[0];
}

}  // namespace

void run_amax(CpuRank& rank, const Command& c, const Rowwise& work) {
  Values x(narrowed_operand(rank, c, work));
  scale_in(rank, c, c.writes[0]) = math::quantization_scale(x.all());
}

void run_quantize(CpuRank& rank, const Command& c, const Rowwise& work) {
  Values x(narrowed_operand(rank, c, work)), y(rank.tensor(c, c.writes[0]), false);
  if (c.op->role == Role::transpose) {
    math::transpose(x.matrix(), y.matrix());
  } else {
    std::ranges::copy(x.all(), y.all().begin());
  }
  math::scale_to(rank.slot(c, c.writes[0]).dtype, scale_in(rank, c, c.reads[1]), y.all());
  y.commit();
}

void run_transpose(CpuRank& rank, const Command& c) {
  Values x(rank.tensor(c, c.reads[0])), y(rank.tensor(c, c.writes[0]), false);
  math::transpose(x.matrix(), y.matrix());
  y.commit();
}

// c = a b^T, scaled; of an overlapped product its piece's rows; a weight gradient is added to.
void run_fp8_product(CpuRank& rank, const Command& c, const Gemm& work) {
  const Tensor a = rank.tensor(c, c.reads[0]), b = rank.tensor(c, c.reads[1]);
  const float scale = math::product_scale(a.dtype, scale_in(rank, c, c.reads[2]), b.dtype,
                                          scale_in(rank, c, c.reads[3]));
  const bool gradient = c.op->role == Role::weight_gradient;
  const Tensor slot = rank.tensor(c, c.writes[0]);
  const Tensor result = gradient ? weight_of(rank, c, slot, work.m).weight : slot;
  Values right(b);
  const Piece piece = piece_of(rank, *c.op, result.rows);
  for (std::int64_t r = 0; r < piece.ranks; ++r) {
    const std::int64_t first = r * piece.share + piece.first;
    Values left(a.row_range(first, piece.count));
    Values out(result.row_range(first, piece.count), gradient);
    std::vector<float> product(out.all().size());
    const math::Matrix sums(product, piece.count, work.n);
    math::multiply(left.matrix(), math::Op::plain, right.matrix(), math::Op::transposed, sums);
    for (std::size_t i = 0; i < product.size(); ++i) {
      out.all()[i] = (gradient ? out.all()[i] : 0) + scale * product[i];
    }
    out.commit();
  }
}

}  // namespace qplan
