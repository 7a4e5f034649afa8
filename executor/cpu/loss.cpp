// The loss: cross-entropy over this rank's columns of the vocabulary.
//
// log-sum: log of the sum of exponentials, first of this rank's columns, at the end of all.
// loss: minus the target's logit (0 where another rank has it), at the end the token's loss.

#include <algorithm>
#include <cmath>
#include <variant>

#include "executor/cpu/ops.h"
#include "executor/math/cross_entropy.h"
#include "models/error.h"

namespace qplan {
namespace {

math::VocabularyShard shard_of(const CpuRank& rank, std::int64_t cols) {
  return {rank.at.tp * cols, rank.job.model.vocab_size};
}

std::vector<std::int32_t> targets_of(const CpuRank& rank, const Command& c) {
  return rank.targets(c.action.microbatch, c.op->ahead);
}

// Every token's loss is added once, by the first rank of its tensor-parallel group.
void add_to_loss(CpuRank& rank, const Command& c, math::Floats losses) {
  const std::vector<std::int32_t> targets = targets_of(rank, c);
  double& sum = c.op->ahead > 0 ? rank.mtp_loss_sum : rank.loss_sum;
  for (std::size_t t = 0; t < losses.size(); ++t) {
    if (targets[t] < 0) losses[t] = 0;
    if (rank.at.tp == 0) sum += static_cast<double>(losses[t]);
  }
}

void forward(CpuRank& rank, const Command& c) {
  Values logits(rank.tensor(c, c.reads[0]));
  Values loss(rank.tensor(c, c.writes[0]), false), log_sum(rank.tensor(c, c.writes[1]), false);
  const auto shard = shard_of(rank, logits.matrix().cols);
  const std::vector<std::int32_t> targets = targets_of(rank, c);
  const std::size_t n = targets.size();
  std::vector<float> maxima(n), sums(n), target(n);
  math::logits_max(logits.matrix(), shard, maxima);
  math::logits_sums(logits.matrix(), shard, targets, maxima, sums, target);
  for (std::size_t t = 0; t < n; ++t) {
    // A rank may have nothing but padding.
    log_sum.all()[t] = sums[t] > 0 ? maxima[t] + std::log(sums[t]) : maxima[t];
    const bool here = targets[t] >= shard.first && targets[t] < shard.first + logits.matrix().cols;
    loss.all()[t] = here ? -(target[t] + maxima[t]) : 0.0F;
  }
  if (c.writes.count > 2) {  // the ranks' results are put together later
    Values maximum(rank.tensor(c, c.writes[2]), false);
    std::copy(log_sum.all().begin(), log_sum.all().end(), maximum.all().begin());
    maximum.commit();
  } else {
    for (std::size_t t = 0; t < n; ++t) loss.all()[t] += log_sum.all()[t];
    add_to_loss(rank, c, loss.all());
  }
  loss.commit();
  log_sum.commit();
}

void rescale(CpuRank& rank, const Command& c) {
  Values log_sum(rank.tensor(c, c.writes[0])), maximum(rank.tensor(c, c.reads[1]));
  for (std::size_t t = 0; t < log_sum.all().size(); ++t) {
    log_sum.all()[t] = std::exp(log_sum.all()[t] - maximum.all()[t]);
  }
  log_sum.commit();
}

void finish(CpuRank& rank, const Command& c) {
  Values loss(rank.tensor(c, c.writes[0])), log_sum(rank.tensor(c, c.writes[1]));
  Values maximum(rank.tensor(c, c.reads[2]));
  for (std::size_t t = 0; t < loss.all().size(); ++t) {
    log_sum.all()[t] = maximum.all()[t] + std::log(log_sum.all()[t]);
    loss.all()[t] += log_sum.all()[t];
  }
  add_to_loss(rank, c, loss.all());
  loss.commit();
  log_sum.commit();
}

void backward(CpuRank& rank, const Command& c) {
  Values logits(rank.tensor(c, c.reads[0])), log_sum(rank.tensor(c, c.reads[1]));
  Values dlogits(rank.tensor(c, c.writes[0]), false);
  const double scale = rank.loss_weight(c.op->ahead);
  const std::vector<std::int32_t> targets = targets_of(rank, c);
  const std::vector<float> ones(log_sum.all().size(), 1.0F);  // the log-sum is in the maxima
  math::cross_entropy_backward(logits.matrix(), shard_of(rank, logits.matrix().cols), targets,
                               log_sum.all(), ones, scale, dlogits.matrix());
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] < 0) std::ranges::fill(dlogits.matrix().row(static_cast<std::int64_t>(t)), 0.0F);
  }
  dlogits.commit();
}

}  // namespace

void run_loss(CpuRank& rank, const Command& c, RowwiseKind kind) {
  if (kind == RowwiseKind::cross_entropy) return forward(rank, c);
  if (kind == RowwiseKind::cross_entropy_backward) return backward(rank, c);
  if (c.op->role == Role::loss_rescale) return rescale(rank, c);
  QPLAN_CHECK(c.op->role == Role::loss_finish, "a scale belongs to the loss");
  finish(rank, c);
}

}  // namespace qplan
