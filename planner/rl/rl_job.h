#pragma once
// One step of fine-tuning on answers of real lengths: what is asked for, and the phases it is made
// of. Every phase that a model runs through is a step program of its own: answers are decoding
// steps (costmodel/rollout), log-probabilities the forwards of the training plan, the update its
// step.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/evaluate.h"
#include "costmodel/rollout/rollout.h"
#include "models/plan/parallel_plan.h"
#include "models/words.h"

namespace qplan {

// sft: answers are given; dpo: pairs of them, and a frozen model's log-probabilities; grpo: the
// policy makes them itself (RLOO, REINFORCE++ and DAPO run the same phases); ppo: and a critic is
// trained beside it.
enum class Algorithm : std::uint8_t { sft, dpo, grpo, ppo };
template <>
struct Words<Algorithm> {
  static constexpr std::string_view what = "algorithm";
  static constexpr auto table =
      std::to_array<std::pair<Algorithm, std::string_view>>({{Algorithm::sft, "sft"},
                                                             {Algorithm::dpo, "dpo"},
                                                             {Algorithm::grpo, "grpo"},
                                                             {Algorithm::ppo, "ppo"}});
};

// What a change of hands takes beside its bytes (a trainer's or an engine's states to the host or
// back, a refit): rewards, advantages, remote calls, allocators emptied and filled. NeMo-RL's is
// fitted, as one figure, to every second of its published GRPO steps and judged on the others;
// verl's is what two published logs leave for one (1.1 and 0.6 s). docs/evidence/rl.md.
inline constexpr Seconds kNemoRlChangeOfHands(7), kVerlChangeOfHands(1);

struct RlJob {
  Algorithm algorithm = Algorithm::grpo;
  // Of a step (verl's train_batch_size, slime's rollout_batch_size; sft's examples, dpo's pairs).
  std::int64_t prompts = 64;
  std::int64_t samples = 8;  // answers to each; 1 for sft, 2 for dpo
  std::int64_t prompt_len = 512;
  ResponseLengths response;
  std::int64_t train_batch = 0;  // answers of one optimizer step; 0: all of a step's
  std::int64_t epochs = 1;       // times that a rollout is trained on
  bool reference = true;         // a frozen model's log-probabilities are made, too (KL)
  bool old_logprobs = true;      // the policy's own are made by the trainer before it is updated
  bool packed = true;            // answers are packed into sequences of the plan's length
  bool balanced = true;  // ... and dealt to data-parallel ranks by their work (verl, NeMo-RL)
  // Unpadded micro-batches are made of so many answers, and are as long as those are; else of as
  // many as fit into a sequence of the plan's length.
  bool by_number = false;
  // What follows is read from frameworks' files, and no key of rl_step_json. The loss over the
  // logits, where it is not the training implementation's own:
  LossKind loss = LossKind::by_framework;
  // Log-probabilities without training: tokens of a micro-batch on a rank (0: as the update's), and
  // bytes of each of their logits that are there at once (0: not counted).
  std::int64_t pass_tokens = 0;
  double logit_bytes = 0;
  // Of a trainer that makes room: what of it stays on the device all the same.
  bool weights_stay = false, moments_stay = false;
  // GPUs that generate beside those that train; 0: the same ones do both in turn.
  std::int64_t rollout_gpus = 0;
  // Training on answers of so many steps before: both halves run at once (one-step off-policy).
  std::int64_t staleness = 0;
  // Between phases the other side's states are on the host: trainer's while answers are made
  // (slime's and verl's offload), engine's weights while it trains (sleep level 1; 2 drops them).
  bool offload_trainer = true;
  int sleep_level = 1;
  Seconds change_of_hands = kNemoRlChangeOfHands;  // also where no framework is named

  [[nodiscard]] std::int64_t answers() const { return prompts * samples; }
  [[nodiscard]] std::int64_t batch() const { return train_batch > 0 ? train_batch : answers(); }
  [[nodiscard]] bool generates() const {
    return algorithm == Algorithm::grpo || algorithm == Algorithm::ppo;
  }
  [[nodiscard]] bool colocated() const { return rollout_gpus == 0; }
};

// Sentences that say why the job cannot be; empty where it can.
std::vector<std::string> rl_faults(const RlJob& job, const ModelSpec& model,
                                   const ParallelPlan& plan, const RolloutLayout& layout,
                                   std::int64_t gpus);

// One optimizer step's answers as a plan's batch.
struct Packing {
  std::int64_t sequences = 1;  // of the whole batch, a multiple of what data-parallel ranks take
  std::int64_t filled = 1;     // tokens of one that are not padding, in the mean
  std::int64_t document = 0;   // tokens of an answer, the mean weighted by tokens; 0: not packed
  // Work of the busiest data-parallel rank over the mean's, where answers are not dealt out by it.
  double imbalance = 1;
};
// `plan` says the degrees, the micro-batch and the length of a sequence.
Packing packing_of(const RlJob& job, const ModelSpec& model, const ParallelPlan& plan);

// The training plan with the batch that the job's answers make of it.
ParallelPlan update_plan(const RlJob& job, const ModelSpec& model, const ParallelPlan& plan);

// What an engine takes of a device while the trainer works there.
Bytes engine_asleep(const RlJob& job, const RolloutLayout& layout, const HardwareProfile& hardware);

struct RlPhase {
  std::string
      name;  // "rollout", "log-probabilities", "reference", "values", "update", "refit", ...
  Seconds begin, end;
  Bytes device;  // of the fullest GPU that it runs on
  std::int64_t gpus = 0;
  std::string note;
  [[nodiscard]] Seconds time() const { return end - begin; }
};

struct RlEstimate {
  std::vector<RlPhase> phases;
  RolloutCost rollout;
  Packing packing;
  std::int64_t optimizer_steps = 1;
  Seconds step_time;
  double tokens = 0;  // prompts and answers of a step
  double tokens_per_s_per_gpu = 0;
  Bytes device, capacity;  // the fullest phase's, and what a phase may fill
  Bytes host_per_node;     // what is offloaded between phases
  Bytes host_room;
  bool fits = false;
  std::string misfit;  // what does not fit, as a sentence
  // The update's where every answer of a micro-batch is of the longest, tokens of the micro-batch,
  // and how many fit. 0: micro-batches have as many tokens whatever the answers are.
  Bytes longest;
  std::int64_t longest_tokens = 0, tokens_that_fit = 0;
};

// What a trainer hands to its engines. Counted tensor by tensor: once a model, not once a plan.
struct HandedOver {
  double parameters = 0, tensors = 0;
};
HandedOver handed_over(const ModelSpec& model);

// What the answers' side takes, whatever trains.
struct RolloutSide {
  RolloutLayout layout;
  RolloutCost cost;
  Bytes weights, cache_room;  // of one of an engine's GPUs
  HandedOver refit;
};
// On engines of `layout`, of which `gpus` make as many as they hold. Nothing, where the job makes
// no answers.
RolloutSide rollout_side(const CostModel& cost, const RlJob& job, const RolloutLayout& layout,
                         std::int64_t gpus, const HandedOver& refit);

// What the training side takes, whatever makes the answers.
struct TrainerCost {
  Packing packing;
  Seconds update, forward;  // of one optimizer step's answers, each
  MemoryEstimate memory;    // of full sequences, or of the answers of a micro-batch (by_number)
  MemoryEstimate longest;   // where those are all of the longest
};
// No rule forbids update_plan(). What of it takes memory is known some hundred times sooner.
TrainerCost trainer_memory(const CostModel& cost, const RlJob& job, const ParallelPlan& plan);
TrainerCost trainer_cost(const CostModel& cost, const RlJob& job, const ParallelPlan& plan);

// `cost` prices the training side on its GPUs; `gpus` is the whole job's. No rule forbids
// update_plan(), nor has rl_faults() anything to say.
RlEstimate evaluate_rl(const CostModel& cost, const RlJob& job, const ParallelPlan& plan,
                       const RolloutLayout& layout, std::int64_t gpus);
// The same of costs that are known already.
RlEstimate evaluate_rl(const CostModel& cost, const RlJob& job, const ParallelPlan& plan,
                       const TrainerCost& trainer, const RolloutSide& rollout, std::int64_t gpus);

}  // namespace qplan
