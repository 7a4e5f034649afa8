// Collectives: the last rank to arrive does what the group does together.

#include <algorithm>
#include <cmath>
#include <variant>

#include "executor/cpu/ops.h"
#include "models/error.h"

namespace qplan {
namespace {

// Rows of one piece of an overlapped collective, of a rank's own share.
struct Share {
  std::int64_t first, count;
};
Share piece_of(const Op& op, std::int64_t rows) {
  const std::int64_t count = rows / op.pieces;
  return {op.piece * count, count};
}

// One after the other: along the rows, or along the columns where the result is wider.
void all_gather(const Parties& parties, std::size_t operand) {
  for (const Party& to : parties) {
    const Tensor whole = to.rank.tensor(to.command, to.command.writes[operand]);
    for (std::size_t i = 0; i < parties.size(); ++i) {
      const Party& from = parties[i];
      const Tensor own = from.rank.tensor(from.command, from.command.reads[operand]);
      const auto place = static_cast<std::int64_t>(i);
      if (whole.cols == own.cols) {
        const Share share = piece_of(*to.command.op, own.rows);
        const Tensor source = own.row_range(share.first, share.count);
        const Tensor target = whole.row_range(place * own.rows + share.first, share.count);
        std::copy_n(source.data, source.bytes(), target.data);
        continue;
      }
      for (std::int64_t r = 0; r < own.rows; ++r) {
        const Tensor source = own.row_range(r, 1);
        const Tensor target = whole.part(r * whole.cols + place * own.cols, 1, own.cols);
        std::copy_n(source.data, source.bytes(), target.data);
      }
    }
  }
}

void reduce_scatter(const Parties& parties, std::size_t operand) {
  for (std::size_t i = 0; i < parties.size(); ++i) {
    const Party& to = parties[i];
    const Tensor own = to.rank.tensor(to.command, to.command.writes[operand]);
    const auto place = static_cast<std::int64_t>(i);
    const Share share = piece_of(*to.command.op, own.rows);
    bool by_rows = true;
    std::vector<Values> inputs;
    for (const Party& from : parties) {
      const Tensor whole = from.rank.tensor(from.command, from.command.reads[operand]);
      by_rows = whole.cols == own.cols;
      inputs.emplace_back(by_rows ? whole.row_range(place * own.rows + share.first, share.count)
                                  : whole);
    }
    Values output(by_rows ? own.row_range(share.first, share.count) : own, false);
    const math::Matrix sums = output.matrix();
    for (std::int64_t r = 0; r < sums.rows; ++r) {
      for (std::int64_t col = 0; col < sums.cols; ++col) {
        double sum = 0;
        for (Values& input : inputs) {
          const std::int64_t from = by_rows ? col : place * own.cols + col;
          sum += static_cast<double>(input.matrix().at(r, from));
        }
        sums.at(r, col) = static_cast<float>(sum);
      }
    }
    output.commit();
  }
}

void all_reduce(const Parties& parties, bool maximum) {
  std::vector<Values> values;
  for (const Party& p : parties) values.emplace_back(p.rank.tensor(p.command, p.command.reads[0]));
  for (std::size_t i = 0; i < values.front().all().size(); ++i) {
    double result = maximum ? -INFINITY : 0;
    for (Values& v : values) {
      const auto x = static_cast<double>(v.all()[i]);
      result = maximum ? std::max(result, x) : result + x;
    }
    for (Values& v : values) v.all()[i] = static_cast<float>(result);
  }
  for (Values& v : values) v.commit();
}

// The step's edge: everybody learns the loss and the norm of all gradients.
void sum_of_step(const Parties& parties) {
  double loss = 0, mtp_loss = 0, squares = 0;
  for (const Party& p : parties) {
    loss += p.rank.loss_sum;
    mtp_loss += p.rank.mtp_loss_sum;
    squares += p.rank.square_sum;
  }
  const CpuRank& any = parties.front().rank;
  loss /= static_cast<double>(any.predictions(0));
  mtp_loss /= static_cast<double>(any.predictions(1));
  for (const Party& p : parties) {
    p.rank.loss = loss;
    p.rank.mtp_loss = mtp_loss;
    p.rank.grad_norm = std::sqrt(squares);
  }
}

// A ring: what the one before has. Keys and values travel side by side.
void shift(const Parties& parties) {
  for (std::size_t i = 0; i < parties.size(); ++i) {
    const Party& to = parties[i];
    const Party& from = parties[(i + parties.size() - 1) % parties.size()];
    Values arriving(to.rank.tensor(to.command, to.command.writes[0]), false);
    std::int64_t first = 0;
    for (const Operand& operand : from.command.reads) {
      Values own(from.rank.tensor(from.command, operand));
      for (std::int64_t r = 0; r < own.matrix().rows; ++r) {
        std::ranges::copy(own.matrix().row(r), &arriving.matrix().at(r, first));
      }
      first += own.matrix().cols;
    }
    arriving.commit();
  }
}

void sum_counts(const Parties& parties) {
  std::vector<std::int32_t> sums;
  for (const Party& p : parties) {
    const auto counts = ints(p.rank.tensor(p.command, p.command.reads[0]));
    sums.resize(counts.size());
    for (std::size_t i = 0; i < counts.size(); ++i) sums[i] += counts[i];
  }
  for (const Party& p : parties) {
    std::ranges::copy(sums, ints(p.rank.tensor(p.command, p.command.writes[0])).begin());
  }
}

bool moves_gradients(const Party& p) {
  return p.rank.slot(p.command, p.command.writes[0]).storage == Storage::gradient;
}
bool moves_parameters(const Party& p) {
  const Slot& slot = p.rank.slot(p.command, p.command.writes[0]);
  return slot.storage == Storage::weight ||
         (slot.storage == Storage::wire && slot.flow == Flow::weights);
}

}  // namespace

void together(const std::vector<CpuWorld::Member>& members) {
  Parties parties;
  for (const auto& m : members) parties.push_back({*static_cast<CpuRank*>(m.rank), *m.command});
  const Party& one = parties.front();
  if (std::holds_alternative<SendRecv>(one.command.op->work)) return shift(parties);
  const auto& work = std::get<Collective>(one.command.op->work);
  if (one.command.writes.count == 0) return sum_of_step(parties);
  if (moves_gradients(one)) return reduce_gradients(parties, work);
  if (moves_parameters(one)) return gather_parameters(parties, work.axis);
  if (one.command.op->role == Role::sequence_balance) return sum_counts(parties);
  if (work.axis == Axis::cp) return exchange_context(parties, work);
  switch (work.kind) {
    case CollectiveKind::all_gather:
      for (std::size_t i = 0; i < one.command.writes.count; ++i) all_gather(parties, i);
      return;
    case CollectiveKind::reduce_scatter:
      for (std::size_t i = 0; i < one.command.writes.count; ++i) reduce_scatter(parties, i);
      return;
    case CollectiveKind::all_reduce:
      return all_reduce(parties, one.command.op->role == Role::maximum);
    case CollectiveKind::all_to_all:
      return exchange_rows(parties, one.command.op->role == Role::dispatch);
    case CollectiveKind::broadcast:
      break;
  }
  QPLAN_CHECK(false, "no block of the qplan recipe broadcasts");
}

}  // namespace qplan
