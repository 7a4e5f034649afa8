#pragma once
// Seeded random plans that the rules accept, for property tests. On failure a test prints the
// plan's line, which parses back.

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/evaluate.h"
#include "models/error.h"
#include "models/plan/words.h"
#include "planner/rules/feasible.h"

namespace qplan {

// A whole number above zero in the environment, or `otherwise`.
inline int test_number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::max(1, std::atoi(text)) : otherwise;
}

// How many cases a property test tries: `rounds`; at most QPLAN_TEST_ROUNDS if that is set
// (sanitizer runs), and QPLAN_TEST_FACTOR times as many if that is (a long run by hand).
inline int test_rounds(int rounds) {
  return std::min(rounds, test_number("QPLAN_TEST_ROUNDS", rounds)) *
         test_number("QPLAN_TEST_FACTOR", 1);
}

// Whether the rules leave any plan of a model to a recipe: some build no models like it.
inline bool can_be_drawn(const ModelSpec& model, RecipeKind kind) {
  if (model.mamba) return kMegatronCore.has(kind);
  if (!model.moe && !model.qk_norm) return true;
  return set_of(RecipeKind::megatron, RecipeKind::megatron_fsdp, RecipeKind::fsdp2,
                RecipeKind::fsdp2_compile, RecipeKind::qplan)
      .has(kind);
}

class RandomPlans {
 public:
  // QPLAN_TEST_SEED draws others: programs side by side, one seed each, share a long run.
  explicit RandomPlans(unsigned seed)
      : random_(seed + 1000U * static_cast<unsigned>(test_number("QPLAN_TEST_SEED", 0))) {}

  template <class T>
  T pick(const std::vector<T>& from) {
    return from[std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(random_)];
  }
  std::size_t pick_index(std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
  }
  bool coin(double chance) { return std::bernoulli_distribution(chance)(random_); }

  // Some plan of this model and recipe that no rule rejects. Where the rules leave none, the test
  // fails instead of drawing for ever.
  ParallelPlan next(const ModelSpec& model, const Recipe& recipe) {
    std::map<std::string_view, int> broken;
    for (int draws = 0; draws < 200'000; ++draws) {
      const ParallelPlan plan = any(model, recipe);
      const std::string_view rule = broken_rule(model, plan, recipe, {plan.world(), 90});
      if (rule.empty()) return plan;
      ++broken[rule];
    }
    std::string why;
    for (const auto& [rule, times] : broken) {
      why += " " + std::string(rule) + " " + std::to_string(times);
    }
    throw Error("no random plan of " + model.name + " passes the rules of " +
                std::string(to_word(recipe.kind)) + ":" + why);
  }

  // The plan with one word changed, as a search changes them one by one: any word of the table, by
  // its type, or one of those that are drawn by hand.
  ParallelPlan with_a_word_changed(const ModelSpec& model, const Recipe& recipe,
                                   const ParallelPlan& plan) {
    const ParallelPlan other = any(model, recipe);
    ParallelPlan changed = plan;
    const std::size_t chosen = pick_index(std::tuple_size_v<decltype(kPlanWords)>);
    std::size_t at = 0;
    for_each_word([&](const auto& word) {
      if (at++ != chosen) return;
      using T = typename std::decay_t<decltype(word)>::Value;
      if constexpr (is_simple<T>) {
        changed.*word.member = is_drawn_by_hand(word.member) ? other.*word.member : value_of(word);
      } else {
        changed.*word.member = other.*word.member;
      }
    });
    return changed;
  }

 private:
  // Words whose values hang together are drawn by hand; every other word of the table by its type,
  // so that a new word is drawn from the day it is there.
  ParallelPlan any(const ModelSpec& model, const Recipe& recipe) {
    ParallelPlan p;
    for_each_word([&](const auto& word) {
      using T = typename std::decay_t<decltype(word)>::Value;
      if constexpr (is_simple<T>) {
        if (!is_drawn_by_hand(word.member) && coin(0.12)) p.*word.member = value_of(word);
      }
    });
    draw_degrees(model, p);
    draw_batch(p);
    draw_stages(model, p);
    draw_states(recipe, p);
    draw_recompute(p);
    draw_adapters(p);
    p.sequence_parallel = p.tp > 1 && coin(0.8);
    if (coin(0.5)) p.overlap = recipe.defaults.overlap;
    if (coin(0.2)) p.overlap.add(OverlapKind::tp);
    if (p.ep > 1 && coin(0.4)) p.overlap.add(OverlapKind::ep);
    return p;
  }

  template <class T>
  static constexpr bool is_drawn_by_hand(T ParallelPlan::*member) {
    using P = ParallelPlan;
    return is_any_of(member, &P::tp, &P::pp, &P::dp, &P::cp, &P::ep, &P::etp, &P::zero,
                     &P::fsdp_shard, &P::micro_batch_size, &P::global_batch_size, &P::seq_len,
                     &P::document_len, &P::schedule, &P::vpp, &P::pipeline_layout, &P::recompute,
                     &P::offload, &P::sequence_parallel, &P::overlap, &P::lora_rank,
                     &P::lora_targets, &P::lora_dropout, &P::frozen_weights, &P::fp32_norms,
                     &P::lora_a2a, &P::lora_dtype, &P::lora_embeddings, &P::dora, &P::fpdt_chunk);
  }

  template <class T>
  static constexpr bool is_simple = std::is_arithmetic_v<T> || std::is_enum_v<T>;

  template <class T>
  T value_of(const PlanWord<T>& word) {
    if constexpr (std::is_same_v<T, bool>) {
      static const ParallelPlan kDefault;
      return !(kDefault.*word.member);
    } else if constexpr (std::is_enum_v<T>) {
      std::vector<T> values;
      for (const auto& [e, name] : Words<T>::table) {
        if (word.takes.empty() || word.takes.has(e)) values.push_back(e);
      }
      return pick(values);
    } else if constexpr (std::is_same_v<T, double>) {
      return pick<double>({0.5, 1, 1.25, 2});
    } else {
      return static_cast<T>(pick<std::int64_t>({word.low, word.low + 1, word.low + 3}));
    }
  }

  void draw_degrees(const ModelSpec& model, ParallelPlan& p) {
    p.tp = pick<int>({1, 1, 2, 4});
    p.pp = pick<int>({1, 1, 2, 3, 4});
    p.cp = pick<int>({1, 1, 2, 4});
    p.dp = pick<int>({1, 2, 3, 4, 8});
    if (!model.moe) return;
    p.ep = pick<int>({1, 2, 4});
    p.etp = pick<int>({1, 1, 2});
  }

  void draw_batch(ParallelPlan& p) {
    p.micro_batch_size = pick<std::int64_t>({1, 2});
    const auto m = pick<std::int64_t>({1, 1, 2, 3, 4, 6, 8, 12, 17, 24, 48, 96, 240});
    p.global_batch_size = p.micro_batch_size * p.dp * m;
    p.seq_len = pick<std::int64_t>({256, 512, 1024});
    if (coin(0.1)) p.document_len = pick<std::int64_t>({100, 256});
    if (coin(0.1)) p.fpdt_chunk = p.seq_len / pick<std::int64_t>({1, 2, 4});
  }

  void draw_stages(const ModelSpec& model, ParallelPlan& p) {
    p.schedule = p.pp == 1 ? ScheduleKind::one_f_one_b
                           : pick<ScheduleKind>({ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                                 ScheduleKind::interleaved, ScheduleKind::zb_h1,
                                                 ScheduleKind::zbv, ScheduleKind::dualpipe});
    if (p.schedule == ScheduleKind::interleaved) p.vpp = pick<int>({2, 3});
    if (p.schedule == ScheduleKind::zbv) p.vpp = 2;
    const int stages = p.pp * chunks_per_rank(p);
    if (stages > 1 && stages <= model.num_layers && coin(0.2)) {
      p.pipeline_layout.assign(static_cast<std::size_t>(stages), 1);
      for (auto left = model.num_layers - stages; left > 0; --left) {
        ++p.pipeline_layout[pick_index(p.pipeline_layout.size())];
      }
    }
  }

  void draw_states(const Recipe& recipe, ParallelPlan& p) {
    p.zero = pick<int>({0, 1, 2, 3});
    if (coin(0.2)) p.fsdp_shard = pick<int>({1, 2, 4});
    if (coin(0.25)) p.offload.optimizer = pick<double>({0.5, 1.0, 1.0});
    // FSDP moves everything or nothing.
    const bool whole =
        recipe.states.shard_style == ShardStyle::fully_sharded && p.offload.optimizer == 1;
    p.offload.params = whole || coin(0.05);
    if (coin(0.1)) p.offload.activation_layers = pick<int>({-1, 1});
    p.offload.nvme = coin(0.05);
  }

  void draw_recompute(ParallelPlan& p) {
    p.recompute.kind =
        pick<RecomputeKind>({RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full});
    if (p.recompute.kind == RecomputeKind::selective && coin(0.8)) {
      for (const auto& [module, word] : Words<RecomputeModule>::table) {
        if (coin(0.3)) p.recompute.modules.add(module);
      }
    }
    if (p.recompute.kind == RecomputeKind::full && coin(0.3)) p.recompute.layers = 1;
  }

  // Half of them everywhere, the others on some layers.
  void draw_adapters(ParallelPlan& p) {
    if (!coin(0.15)) return;
    p.lora_rank = pick<int>({1, 2, 8});
    if (coin(0.3)) p.lora_dropout = 0.1;
    p.fp32_norms = coin(0.3);
    p.lora_a2a = coin(0.3);
    p.lora_embeddings = coin(0.2);
    p.dora = coin(0.3);
    if (coin(0.2)) p.lora_dtype = AdapterFormat::fp32;
    if (coin(0.4)) {
      p.frozen_weights =
          pick<FrozenFormat>({FrozenFormat::fp32, FrozenFormat::int8, FrozenFormat::int4,
                              FrozenFormat::nf4, FrozenFormat::nf4_double});
    }
    if (coin(0.5)) return;
    for (const auto& [target, word] : Words<LoraTarget>::table) {
      if (coin(0.4)) p.lora_targets.add(target);
    }
  }

  std::mt19937 random_;
};

}  // namespace qplan
