// How tokens travel to the ranks of their experts and back, and how many copies of them each has
// (docs/reference/physics.md 3.3).

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/program/moe_part.h"

namespace qplan {
namespace {

// Distinct ranks that `k` of `experts` experts, spread over `ranks`, are expected to live on
// (uniform routing): DeepEP sends a token once to each. docs/reference/physics.md 3.3.
double distinct_ranks(std::int64_t experts, int ranks, std::int64_t k) {
  const double elsewhere = static_cast<double>(experts - experts / ranks);
  double none = 1;  // C(E - E/ranks, k) / C(E, k)
  for (std::int64_t i = 0; i < k; ++i) {
    none *= std::max(0.0, elsewhere - static_cast<double>(i)) / static_cast<double>(experts - i);
  }
  return ranks * (1 - none);
}

// The same of copies that go to neighbouring experts: token i's to the k from i*k on.
double ranks_in_turn(std::int64_t experts, int ranks, std::int64_t k) {
  const std::int64_t each = experts / ranks;
  const std::int64_t step = std::gcd(k, experts);
  double touched = 0;
  for (std::int64_t first = 0; first < experts; first += step) {
    touched += static_cast<double>((first + k - 1) / each - first / each + 1);
  }
  return std::min<double>(ranks, touched / static_cast<double>(experts / step));
}

}  // namespace

std::int64_t expert_capacity(std::int64_t copies, const MoeSpec& moe, double factor) {
  return static_cast<std::int64_t>(
      std::ceil(static_cast<double>(copies) / static_cast<double>(moe.num_experts) * factor));
}

MoePart::Rows MoePart::rows() const {
  const MoeSpec& moe = *c_.model.moe;
  const auto& s = c_.shape;
  const std::int64_t sent = c_.local_tokens * moe.top_k;
  if (s.moe_capacity > 0) {
    // Every expert may be full, of every rank; a rank's tokens are no more than they are.
    const std::int64_t full = moe.num_experts * expert_capacity(sent, moe, s.moe_capacity);
    const std::int64_t all = s.ep * c_.local_tokens * std::min(moe.top_k, moe.num_experts / s.ep);
    return {std::min(sent, full), std::min(full, all) * s.etp};
  }
  const auto received =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(sent) * s.moe_load));
  const bool dealt_out = c_.recipe.form.routing && s.ep > 1 && s.moe_load == 1;
  return {sent, (dealt_out ? rows_dealt_out() : received) * s.etp};
}

// Forced routing deals copies out to the experts in turn, along each stretch of neighbouring tokens
// that a rank has: where the experts do not divide it, some get one more of each.
std::int64_t MoePart::rows_dealt_out() const {
  const MoeSpec& moe = *c_.model.moe;
  const auto& s = c_.shape;
  const std::int64_t n = c_.local_tokens, experts = moe.num_experts;
  const std::int64_t stretch = s.cp == 1 ? n : std::gcd(n, s.seq_len / (2 * s.cp));  // of a zig-zag
  const std::int64_t most = ceil_div(stretch * moe.top_k, experts);  // to one expert
  const std::int64_t all = s.ep * n * std::min(moe.top_k, experts / s.ep);
  return std::min(n / stretch * most * experts, all);
}

// One direction of the token exchange over the expert-parallel group.
// `narrow`: rows go in fp8, a scale for each tile of 128 columns.
Collective MoePart::exchange(bool narrow) const {
  const MoeSpec& moe = *c_.model.moe;
  const auto columns = static_cast<double>(width());
  const double row = narrow ? columns * (1 + 4.0 / 128) : columns * 2;
  const double sent = c_.shape.moe_capacity > 0
                          ? static_cast<double>(rows().received / c_.shape.etp)
                          : static_cast<double>(c_.local_tokens * moe.top_k) * c_.shape.moe_load;
  if (is_dispatch_library(c_.shape.dispatcher)) {
    const bool in_turn = c_.shape.moe_in_turn;
    // A group of experts that fills whole ranks keeps a token's copies to some of them.
    const bool limited = !in_turn && moe.num_groups > 1 && c_.shape.ep % moe.num_groups == 0;
    const std::int64_t groups = limited ? moe.num_groups : 1;
    const std::int64_t chosen = limited ? moe.topk_group : 1;
    const double ranks =
        in_turn ? ranks_in_turn(moe.num_experts, c_.shape.ep, moe.top_k)
                : distinct_ranks(moe.num_experts / groups * chosen,
                                 static_cast<int>(c_.shape.ep / groups * chosen), moe.top_k);
    const double copies = ranks / static_cast<double>(moe.top_k);
    return {.kind = CollectiveKind::all_to_all,
            .axis = Axis::ep,
            .bytes = Bytes(sent * copies * row),
            .expert_parallel_library = true,
            .rank_share = ranks / c_.shape.ep,
            .neighbours = in_turn,
            .groups = groups,
            .groups_of_token = chosen};
  }
  return {CollectiveKind::all_to_all, Axis::ep, Bytes(sent * row)};
}

SlotId MoePart::numbers(std::string_view name, SlotId like, std::int64_t rows) {
  return like == kNoSlot ? kNoSlot : c_.b.slot(name, DType::fp32, rows, 1);
}

// Megatron's alltoall dispatcher sends the probabilities of rows, by which the activation is
// scaled, in a message of their own, and their gradients back (token_dispatch in megatron-core from
// 0.13 on). What scales the rows stays with them elsewhere.
void MoePart::exchange_probs() {
  if (c_.recipe.form.routing || !c_.recipe.kernels.one_product_per_expert) return;
  const std::int64_t sent = rows().sent;
  const SlotId probs = c_.b.slot("exchanged probs", DType::fp32, sent, 1);
  const Bytes bytes(static_cast<double>(sent) * size_of(DType::fp32));
  c_.b.aside(Stream::model_comm, Collective{CollectiveKind::all_to_all, Axis::ep, bytes},
             {row_map_}, {probs});
}

MoePart::Carried MoePart::dispatch(Carried tokens, Pass pass) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const DType act = c_.activation_dtype();
  const Rows n = rows();
  const std::int64_t before_etp = n.received / s.etp;
  const bool narrow = c_.recipe.kernels.narrow_dispatch && s.precision == Precision::fp8;
  Carried arrived;
  if (s.dispatcher == MoeDispatcher::allgather && s.ep > 1) {
    const std::int64_t all = c_.local_tokens * s.ep;
    const SlotId gathered = b.slot("tokens of all", act, all, width());
    const Bytes bytes(static_cast<double>(all * width()) * size_of(act));
    b.exposed(Collective{CollectiveKind::all_gather, Axis::ep, bytes}, {tokens.rows}, {gathered});
    arrived.rows = b.slot("dispatched", act, before_etp, width());
    c_.rowwise(RowwiseKind::permute, before_etp, width(), {gathered, row_map_}, {arrived.rows});
  } else if (is_dispatch_library(s.dispatcher) && s.ep > 1) {
    const SlotId raw = b.slot("received", act, before_etp, width());
    b.exposed(exchange(narrow), {tokens.rows}, {raw});
    arrived.rows = b.slot("dispatched", act, before_etp, width());
    c_.rowwise(RowwiseKind::permute, before_etp, width(), {raw, row_map_}, {arrived.rows});
  } else {
    arrived.rows = b.slot("permuted", act, n.sent, width());
    arrived.numbers = numbers("permuted probs", tokens.numbers, n.sent);
    c_.rowwise(moves_rows(RowwiseKind::permute, pass), n.sent, width(),
               {tokens.rows, row_map_, counts_, tokens.numbers}, {arrived.rows, arrived.numbers})
        .role = Role::sort_tokens;
    if (s.ep > 1) {
      const Carried sorted = arrived;
      arrived.rows = b.slot("received", act, before_etp, width());
      arrived.numbers = numbers("received probs", tokens.numbers, before_etp);
      b.aside(Stream::model_comm, exchange(narrow), {sorted.rows, counts_, sorted.numbers},
              {arrived.rows, arrived.numbers})
          .role = Role::dispatch;
      if (pass == Pass::forward) exchange_probs();
      b.wait_for(Stream::model_comm);
      if (c_.model.moe->num_experts / s.ep > 1) {
        const Carried raw = arrived;
        arrived.rows = b.slot("dispatched", act, before_etp, width());
        arrived.numbers = numbers("dispatched probs", tokens.numbers, before_etp);
        c_.rowwise(RowwiseKind::group_rows, before_etp, width(), {raw.rows, counts_, raw.numbers},
                   {arrived.rows, arrived.numbers})
            .role = Role::group_rows;
      }
    }
  }
  if (s.etp > 1) {
    const Carried mine = arrived;
    arrived.rows = b.slot("dispatched over etp", act, n.received, width());
    arrived.numbers = numbers("probs over etp", tokens.numbers, n.received);
    const Bytes bytes(static_cast<double>(n.received * width()) * size_of(act));
    b.exposed(Collective{CollectiveKind::all_gather, Axis::etp, bytes}, {mine.rows, mine.numbers},
              {arrived.rows, arrived.numbers});
  }
  return arrived;
}

MoePart::Carried MoePart::combine(Carried expert_out, Pass pass) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const DType act = c_.activation_dtype();
  const Rows n = rows();
  const std::int64_t before_etp = n.received / s.etp;
  Carried leaving = expert_out;
  if (s.etp > 1) {
    leaving.rows = b.slot("expert sum", act, before_etp, width());
    leaving.numbers = numbers("d probs sum", expert_out.numbers, before_etp);
    const Bytes bytes(static_cast<double>(n.received * width()) * size_of(act));
    b.exposed(Collective{CollectiveKind::reduce_scatter, Axis::etp, bytes},
              {expert_out.rows, expert_out.numbers}, {leaving.rows, leaving.numbers});
  }
  Carried combined;
  combined.rows = b.slot("combined", act, c_.local_tokens, width());
  if (s.dispatcher == MoeDispatcher::allgather && s.ep > 1) {
    const std::int64_t all = c_.local_tokens * s.ep;
    const SlotId scattered = b.slot("partial of all", act, all, width());
    c_.rowwise(RowwiseKind::unpermute, before_etp, width(), {leaving.rows, row_map_}, {scattered});
    const Bytes bytes(static_cast<double>(all * width()) * size_of(act));
    b.exposed(Collective{CollectiveKind::reduce_scatter, Axis::ep, bytes}, {scattered},
              {combined.rows});
    return combined;
  }
  if (is_dispatch_library(s.dispatcher) && s.ep > 1) {
    const SlotId raw = b.slot("sorted back", act, before_etp, width());
    c_.rowwise(RowwiseKind::unpermute, before_etp, width(), {leaving.rows, row_map_}, {raw});
    b.exposed(exchange(), {raw}, {combined.rows});
    return combined;
  }
  if (s.ep > 1) {
    if (c_.model.moe->num_experts / s.ep > 1) {
      const Carried grouped = leaving;
      leaving.rows = b.slot("sorted back", act, before_etp, width());
      leaving.numbers = numbers("d probs sorted back", grouped.numbers, before_etp);
      c_.rowwise(RowwiseKind::group_rows, before_etp, width(),
                 {grouped.rows, counts_, grouped.numbers}, {leaving.rows, leaving.numbers})
          .role = Role::ungroup_rows;
    }
    const Carried sorted = leaving;
    leaving.rows = b.slot("returned", act, n.sent, width());
    leaving.numbers = numbers("d probs returned", sorted.numbers, n.sent);
    b.aside(Stream::model_comm, exchange(), {sorted.rows, counts_, sorted.numbers},
            {leaving.rows, leaving.numbers})
        .role = Role::combine;
    if (pass == Pass::backward) exchange_probs();
    b.wait_for(Stream::model_comm);
  }
  if (leaving.numbers != kNoSlot) {
    combined.numbers =
        b.slot("d probs of choices", DType::fp32, c_.local_tokens, c_.model.moe->top_k);
  }
  c_.rowwise(moves_rows(RowwiseKind::unpermute, pass), n.sent, width(),
             {leaving.rows, row_map_, leaving.numbers}, {combined.rows, combined.numbers})
      .role = Role::sum_copies;
  return combined;
}

}  // namespace qplan
