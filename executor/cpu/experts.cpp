// The order of token copies, and the products of experts. Who goes where: cpu_router.cpp.
//
// row map: for each token its top_k experts, and for each of these whether its copy is dropped (1)
// or sent (0). Expert counts: for each rank that exchanges tokens (etp-major, then ep), its copies
// for every expert. Rows that no copy came to are 0, so whatever is computed of them is 0 too.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "executor/cpu/ops.h"
#include "executor/math/gemm.h"
#include "executor/math/permute.h"
#include "executor/math/router.h"
#include "models/error.h"

namespace qplan {
namespace {

using math::Matrix;

// The row map's experts, -1 where a copy is dropped.
std::vector<std::int32_t> sent_of(const CpuRank& rank, const Tensor& row_map) {
  const std::int64_t k = moe_of(rank).top_k;
  std::vector<std::int32_t> sent = chosen_experts(rank, row_map);
  const auto map = ints(row_map);
  for (std::int64_t i = 0; i < std::ssize(sent); ++i) {
    const bool dropped = map[static_cast<std::size_t>(i / k * 2 * k + k + i % k)] != 0;
    if (dropped) sent[static_cast<std::size_t>(i)] = -1;
  }
  return sent;
}

// Counts by rank of the exchange: [etp][ep][expert].
class Counts {
 public:
  Counts(const CpuRank& rank, const Tensor& tensor)
      : values_(ints(tensor)), experts_(tensor.cols), ep_(rank.job.plan.ep) {}
  [[nodiscard]] std::int64_t at(std::int64_t etp, std::int64_t ep, std::int64_t expert) const {
    return values_[static_cast<std::size_t>((etp * ep_ + ep) * experts_ + expert)];
  }

 private:
  std::span<const std::int32_t> values_;
  std::int64_t experts_, ep_;
};

// Rows that arrived lie by source, then expert; grouped they lie by expert, then source. `visit` is
// told (row by source, row by expert, count).
template <class Visit>
void each_group(const CpuRank& rank, const Counts& counts, Visit visit) {
  const std::int64_t ep = rank.job.plan.ep, local = moe_of(rank).num_experts / ep;
  const std::int64_t first = rank.expert_at.ep * local;
  std::vector<std::int64_t> grouped(
      static_cast<std::size_t>(local * ep));  // begin of (expert, source)
  std::int64_t next = 0;
  for (std::int64_t e = 0; e < local; ++e) {
    for (std::int64_t s = 0; s < ep; ++s) {
      grouped[static_cast<std::size_t>(e * ep + s)] = next;
      next += counts.at(rank.expert_at.etp, s, first + e);
    }
  }
  std::int64_t arrived = 0;
  for (std::int64_t s = 0; s < ep; ++s) {
    for (std::int64_t e = 0; e < local; ++e) {
      const std::int64_t count = counts.at(rank.expert_at.etp, s, first + e);
      visit(arrived, grouped[static_cast<std::size_t>(e * ep + s)], count);
      arrived += count;
    }
  }
}

void copy_rows(Matrix from, std::int64_t first, Matrix to, std::int64_t to_first,
               std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::ranges::copy(from.row(first + i), to.row(to_first + i).begin());
  }
}

// Reads and writes of a permutation: rows, and perhaps one number with each.
struct CarriedValues {
  Values rows;
  std::optional<Values> numbers;
  void zero() {
    std::ranges::fill(rows.all(), 0.0F);
    if (numbers) std::ranges::fill(numbers->all(), 0.0F);
  }
  void commit() {
    rows.commit();
    if (numbers) numbers->commit();
  }
};

CarriedValues carried(const CpuRank& rank, const Command& c, const Operands& operands,
                      std::size_t numbers_at) {
  CarriedValues result{Values(rank.tensor(c, operands[0])), std::nullopt};
  if (operands.count > numbers_at) result.numbers.emplace(rank.tensor(c, operands[numbers_at]));
  return result;
}

// {tokens, row map, counts, scores?} -> {copies by expert, their weights?}
void sort_tokens(CpuRank& rank, const Command& c) {
  const MoeSpec& moe = moe_of(rank);
  const std::vector<std::int32_t> chosen = chosen_experts(rank, rank.tensor(c, c.reads[1]));
  const math::ExpertOrder order =
      math::order_by_expert(sent_of(rank, rank.tensor(c, c.reads[1])), moe.num_experts);
  Values tokens(rank.tensor(c, c.reads[0]));
  CarriedValues sorted = carried(rank, c, c.writes, 1);
  sorted.zero();
  math::permute(tokens.matrix(), order.copies, moe.top_k,
                sorted.rows.matrix().row_range(0, std::ssize(order.copies)));
  if (sorted.numbers) {
    Values scores(rank.tensor(c, c.reads[3]));
    std::vector<float> weights(chosen.size());
    math::router_weights(scores.matrix(), chosen, router_shape(rank),
                         Matrix(weights, tokens.matrix().rows, moe.top_k));
    for (std::size_t i = 0; i < order.copies.size(); ++i) {
      sorted.numbers->all()[i] = weights[static_cast<std::size_t>(order.copies[i])];
    }
  }
  sorted.commit();
}

// {rows, row map, numbers?} -> {sums by token, numbers by choice?}
void sum_copies(CpuRank& rank, const Command& c) {
  const MoeSpec& moe = moe_of(rank);
  const math::ExpertOrder order =
      math::order_by_expert(sent_of(rank, rank.tensor(c, c.reads[1])), moe.num_experts);
  Values rows(rank.tensor(c, c.reads[0])), sums(rank.tensor(c, c.writes[0]), false);
  math::unpermute(rows.matrix().row_range(0, std::ssize(order.copies)), order.copies, moe.top_k, {},
                  sums.matrix());
  sums.commit();
  if (c.writes.count < 2) return;
  Values numbers(rank.tensor(c, c.reads[2])), by_choice(rank.tensor(c, c.writes[1]), false);
  std::ranges::fill(by_choice.all(), 0.0F);  // of dropped ones
  for (std::size_t i = 0; i < order.copies.size(); ++i) {
    by_choice.all()[static_cast<std::size_t>(order.copies[i])] = numbers.all()[i];
  }
  by_choice.commit();
}

// {rows, counts, numbers?} -> {rows, numbers?}, grouped by expert or back.
void group_rows(CpuRank& rank, const Command& c, bool group) {
  const Counts counts(rank, rank.tensor(c, c.reads[1]));
  CarriedValues from = carried(rank, c, c.reads, 2), to = carried(rank, c, c.writes, 1);
  to.zero();
  each_group(rank, counts, [&](std::int64_t arrived, std::int64_t grouped, std::int64_t count) {
    const std::int64_t source = group ? arrived : grouped, target = group ? grouped : arrived;
    copy_rows(from.rows.matrix(), source, to.rows.matrix(), target, count);
    if (to.numbers) copy_rows(from.numbers->matrix(), source, to.numbers->matrix(), target, count);
  });
  to.commit();
}

}  // namespace

std::vector<ExpertRows> expert_rows(const CpuRank& rank, const Tensor& tensor, std::int64_t rows) {
  const Counts counts(rank, tensor);
  const std::int64_t ep = rank.job.plan.ep, etp = rank.job.plan.etp;
  const std::int64_t local = moe_of(rank).num_experts / ep, share = rows / etp;
  std::vector<ExpertRows> result;
  for (std::int64_t r = 0; r < etp; ++r) {
    std::int64_t next = r * share;
    for (std::int64_t e = 0; e < local; ++e) {
      std::int64_t count = 0;
      for (std::int64_t s = 0; s < ep; ++s) count += counts.at(r, s, rank.expert_at.ep * local + e);
      result.push_back({e, next, count});
      next += count;
    }
    QPLAN_CHECK(next <= (r + 1) * share, "rows beyond the capacity are refused when they arrive");
  }
  return result;
}

void run_permute(CpuRank& rank, const Command& c) {
  const Role role = c.op->role;
  if (role == Role::sort_tokens) return sort_tokens(rank, c);
  if (role == Role::sum_copies) return sum_copies(rank, c);
  QPLAN_CHECK(role == Role::group_rows || role == Role::ungroup_rows, "a permutation says which");
  group_rows(rank, c, role == Role::group_rows);
}

// {rows, numbers} -> {rows}; {d rows, rows, numbers} -> {d rows, d numbers}.
void run_scale_rows(CpuRank& rank, const Command& c, bool backward) {
  const std::size_t first = backward ? 1 : 0;
  Values x(rank.tensor(c, c.reads[first])), number(rank.tensor(c, c.reads[first + 1]));
  Values given(rank.tensor(c, c.reads[0])), result(rank.tensor(c, c.writes[0]), false);
  for (std::int64_t r = 0; r < x.matrix().rows; ++r) {
    const float share = number.matrix().at(r, 0);
    for (std::int64_t i = 0; i < x.matrix().cols; ++i) {
      result.matrix().at(r, i) = share * given.matrix().at(r, i);
    }
  }
  result.commit();
  if (!backward) return;
  Values dnumber(rank.tensor(c, c.writes[1]), false);
  for (std::int64_t r = 0; r < x.matrix().rows; ++r) {
    double dot = 0;
    for (std::int64_t i = 0; i < x.matrix().cols; ++i) {
      dot +=
          static_cast<double>(x.matrix().at(r, i)) * static_cast<double>(given.matrix().at(r, i));
    }
    dnumber.matrix().at(r, 0) = static_cast<float>(dot);
  }
  dnumber.commit();
}

// What a scaled bias adds to the gradient of its scale: dout . bias.
void add_bias_to_scale_gradient(CpuRank& rank, const Command& c, Values& dscale) {
  const auto& bias = rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
  if (rank.expert_at.etp > 0) return;
  Values dout(rank.tensor(c, c.reads[4]));
  const Tensor weights = rank.tensor(c, c.reads[5]);
  for (const ExpertRows& rows : expert_rows(rank, rank.tensor(c, c.reads[3]), dout.matrix().rows)) {
    Values b(weights.part(bias.offset + rows.expert * bias.stride, bias.rows, 1));
    for (std::int64_t i = rows.first; i < rows.first + rows.count; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < bias.rows; ++j) {
        sum +=
            static_cast<double>(dout.matrix().at(i, j)) * static_cast<double>(b.matrix().at(j, 0));
      }
      dscale.all()[static_cast<std::size_t>(i)] += static_cast<float>(sum);
    }
  }
}

namespace {

// How an expert's product reads and writes: all columns of fresh rows, or those of an adapter,
// whose products are added to what stands there.
struct ExpertsForm {
  bool is_b = false, adds = false;  // of an adapter: with its B; to a layer's rows
  AdapterView view;
  [[nodiscard]] float scale() const { return is_b ? view.scale : 1.0F; }
  // Columns on the layer's outer side, and on the inner side of an adapter.
  [[nodiscard]] Matrix outer(Matrix all) const {
    return is_b ? all.columns(view.column, view.width) : all;
  }
  [[nodiscard]] Matrix inner(Matrix all) const {
    return is_b ? all.columns(view.inner, view.rank) : all;
  }
};

ExpertsForm form_of(const CpuRank& rank, const Command& c) {
  const Adapter adapter = adapter_of(rank, c);
  ExpertsForm form;
  form.is_b = adapter == Adapter::lora_b;
  const bool dgrad = c.op->role == Role::input_gradient;
  form.adds = dgrad ? adapter == Adapter::lora_a : form.is_b;
  if (form.is_b) form.view = adapter_view(rank, c);
  return form;
}

// dW += dy^T x of each expert, and the gradients of its bias: {dy, x, counts, scale?} ->
// {gradients}.
void experts_weight_gradient(CpuRank& rank, const Command& c, const GroupedGemm& work) {
  const auto& p = rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
  const ExpertsForm form = form_of(rank, c);
  const Tensor slot = rank.tensor(c, c.writes[0]);
  Values dy(rank.tensor(c, c.reads[0])), x(rank.tensor(c, c.reads[1]));
  const PackedParameter* bias = bias_of(rank, c, p);
  std::optional<Values> scale;  // of the bias, row by row
  if (c.reads.count > 3) scale.emplace(rank.tensor(c, c.reads[3]));
  for (const ExpertRows& rows : expert_rows(rank, rank.tensor(c, c.reads[2]), dy.matrix().rows)) {
    if (rows.count == 0) continue;
    Values weight(slot.part(p.offset + rows.expert * p.stride, work.n, p.cols));
    const Matrix out = form.outer(dy.matrix().row_range(rows.first, rows.count));
    math::multiply(out, math::Op::transposed,
                   form.inner(x.matrix().row_range(rows.first, rows.count)), math::Op::plain,
                   weight.matrix(), /*accumulate=*/true, form.scale());
    weight.commit();
    if (bias == nullptr) continue;
    Values dbias(slot.part(bias->offset + rows.expert * bias->stride, 1, work.n));
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const float share = scale ? scale->all()[static_cast<std::size_t>(rows.first + i)] : 1.0F;
      for (std::int64_t j = 0; j < work.n; ++j) dbias.matrix().at(0, j) += share * out.at(i, j);
    }
    dbias.commit();
  }
}

}  // namespace

// forward {x, weights, counts} -> {y}; input gradient {dy, weights, counts} -> {dx}; weight
// gradient {dy, x, counts} -> {gradients}.
void run_experts_product(CpuRank& rank, const Command& c, const GroupedGemm& work) {
  if (c.op->role == Role::weight_gradient) return experts_weight_gradient(rank, c, work);
  const auto& p = rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
  const bool dgrad = c.op->role == Role::input_gradient;
  const ExpertsForm form = form_of(rank, c);
  // The weight is (out, in): of forward (n, k), of dgrad (k, n).
  const std::int64_t out_features = dgrad ? work.k : work.n;
  const Tensor slot = rank.tensor(c, c.reads[1]);
  Values in(rank.tensor(c, c.reads[0])), out(rank.tensor(c, c.writes[0]), form.is_b || form.adds);
  const Matrix from = dgrad ? form.outer(in.matrix()) : form.inner(in.matrix());
  const Matrix to = dgrad ? form.inner(out.matrix()) : form.outer(out.matrix());
  for (std::int64_t i = 0; i < to.rows && !form.adds; ++i) std::ranges::fill(to.row(i), 0.0F);
  // Of neighbours the first one's, which the others' follow.
  const PackedParameter* bias = dgrad ? nullptr : bias_of(rank, c, p);
  std::optional<Values> scale;  // of the bias, row by row
  if (c.reads.count > 3) scale.emplace(rank.tensor(c, c.reads[3]));
  for (const ExpertRows& rows : expert_rows(rank, rank.tensor(c, c.reads[2]), from.rows)) {
    if (rows.count == 0) continue;
    Values weight(slot.part(p.offset + rows.expert * p.stride, out_features, p.cols));
    const Matrix y = to.row_range(rows.first, rows.count);
    math::multiply(from.row_range(rows.first, rows.count), math::Op::plain, weight.matrix(),
                   dgrad ? math::Op::plain : math::Op::transposed, y, form.adds, form.scale());
    if (bias == nullptr || !adds_bias(rank, p)) continue;
    Values b(slot.part(bias->offset + rows.expert * bias->stride, 1, out_features));
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const float share = scale ? scale->all()[static_cast<std::size_t>(rows.first + i)] : 1.0F;
      for (std::int64_t j = 0; j < out_features; ++j) y.at(i, j) += share * b.matrix().at(0, j);
    }
  }
  out.commit();
}

// All-to-all of rows between the ranks of an ep group. Sorted rows lie by expert, hence by rank
// that holds the expert; what arrives lies by source.
void exchange_rows(const Parties& parties, bool to_experts) {
  const std::int64_t n = std::ssize(parties);
  for (std::int64_t j = 0; j < n; ++j) {
    const Party& holder = parties[static_cast<std::size_t>(j)];
    const Counts counts(holder.rank, holder.rank.tensor(holder.command, holder.command.reads[1]));
    const MoeSpec& moe = moe_of(holder.rank);
    const std::int64_t local = moe.num_experts / n, etp = holder.rank.expert_at.etp;
    const auto rows_between = [&](std::int64_t source, std::int64_t first, std::int64_t last) {
      std::int64_t sum = 0;
      for (std::int64_t e = first; e < last; ++e) sum += counts.at(etp, source, e);
      return sum;
    };
    CarriedValues at_holder =
        carried(holder.rank, holder.command,
                to_experts ? holder.command.writes : holder.command.reads, to_experts ? 1 : 2);
    if (to_experts) at_holder.zero();
    std::int64_t arrived = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const Party& source = parties[static_cast<std::size_t>(i)];
      const std::int64_t begin = rows_between(i, 0, j * local);
      const std::int64_t count = rows_between(i, j * local, (j + 1) * local);
      if (arrived + count > at_holder.rows.matrix().rows) {
        throw Error(fmt::format(
            "the experts of rank {} receive more than the {} token copies that the plan has room "
            "for; use a larger moe_imbalance",
            holder.rank.rank, at_holder.rows.matrix().rows));
      }
      CarriedValues at_source =
          carried(source.rank, source.command,
                  to_experts ? source.command.reads : source.command.writes, to_experts ? 2 : 1);
      const auto move = [&](Values& held, Values& sorted) {
        to_experts ? copy_rows(sorted.matrix(), begin, held.matrix(), arrived, count)
                   : copy_rows(held.matrix(), arrived, sorted.matrix(), begin, count);
      };
      move(at_holder.rows, at_source.rows);
      if (at_holder.numbers) move(*at_holder.numbers, *at_source.numbers);
      if (!to_experts) at_source.commit();
      arrived += count;
    }
    if (to_experts) at_holder.commit();
  }
}

}  // namespace qplan
