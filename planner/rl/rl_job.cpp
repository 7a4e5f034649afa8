#include "planner/rl/rl_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "costmodel/price/price.h"
#include "models/parameters.h"
#include "models/portable_math.h"
#include "models/rank_grid.h"
#include "models/text.h"

namespace qplan {
namespace {

// What an engine that sleeps leaves on the device: its context, captured graphs' and NCCL's
// buffers. Assumed; vLLM's sleep mode frees weights and cache alone.
constexpr Bytes kSleepingEngine(2.0 * (1 << 30));

// What handing on one tensor costs beside its bytes: a broadcast or gather, an IPC handle, a
// loader's copy. Assumed.
constexpr Seconds kTensorHandOver = microseconds(100);

// Lengths of whole answers, prompt included, as `n` ranks' share of them has.
std::vector<std::int64_t> whole_lengths(const RlJob& job, std::int64_t n) {
  std::vector<std::int64_t> lengths = job.response.quantiles(n);
  for (std::int64_t& length : lengths) length += job.prompt_len;
  return lengths;
}

double mean_of(const RlJob& job) {
  const std::vector<std::int64_t>& stated = job.response.stated;
  if (stated.empty()) return std::min(job.response.mean, static_cast<double>(job.response.max));
  return static_cast<double>(std::accumulate(stated.begin(), stated.end(), std::int64_t{0})) /
         static_cast<double>(stated.size());
}

// How many sequences of `room` tokens first-fit decreasing fills with the answers: each goes to the
// first that has room (verl's and NeMo-RL's packing; slime's dynamic batches are as large).
std::int64_t packed_sequences(std::vector<std::int64_t> lengths, std::int64_t room) {
  std::vector<std::int64_t> left;
  for (auto length = lengths.rbegin(); length != lengths.rend(); ++length) {
    const std::int64_t needed = std::min(*length, room);
    const auto place =
        std::find_if(left.begin(), left.end(), [&](std::int64_t free) { return free >= needed; });
    if (place == left.end()) {
      left.push_back(room - needed);
    } else {
      *place -= needed;
    }
  }
  return static_cast<std::int64_t>(left.size());
}

ParallelPlan filled_plan(const ParallelPlan& plan, const Packing& packing, bool moe) {
  ParallelPlan filled = plan;
  filled.global_batch_size = packing.sequences;
  filled.seq_len = packing.filled;
  filled.document_len = packing.document;
  // Nobody forces balance on a model that is to answer.
  if (moe) filled.routing = Routing::natural;
  return filled;
}

// Packed sequences have as many tokens on every data-parallel rank, but not as much attention: l
// tokens of one answer are l (1 + l / 12 h) of a layer's 24 h^2 FLOPs. All wait for the rank whose
// share is most. The expected maximum over `ranks` of a sum of `each` draws, by its normal limit:
// 1 + deviation * sqrt(2 ln ranks / each), of the mean.
double imbalance_of(const std::vector<std::int64_t>& lengths, std::int64_t hidden,
                    std::int64_t each, std::int64_t ranks) {
  if (ranks < 2) return 1;
  double work = 0, scores = 0, squares = 0;
  for (const std::int64_t n : lengths) {
    const auto l = static_cast<double>(n);
    const double attention = l * l / (12 * static_cast<double>(hidden));
    work += l + attention;
    scores += attention;
    squares += attention * attention;
  }
  const auto count = static_cast<double>(lengths.size());
  const double mean = scores / count;
  const double deviation = std::sqrt(std::max(0.0, squares / count - mean * mean)) * count / work;
  return 1 + deviation * std::sqrt(2 * portable::log(static_cast<double>(ranks)) /
                                   static_cast<double>(std::max<std::int64_t>(each, 1)));
}

// Every engine's GPU is handed the whole model piece by piece, of which it keeps its part: the
// trainer's ranks gather each tensor from those that hold it (slime, verl and NeMo-RL alike).
Seconds refit_time(const CostModel& cost, const RlJob& job, const ParallelPlan& plan,
                   const RolloutSide& rollout, std::int64_t gpus) {
  const double each = rollout.layout.precision == Precision::fp8 ? 1 : 2;  // bytes
  const int domain = cost.hardware().link.nvlink_domain;
  const std::int64_t holders =
      job.colocated() ? std::min<std::int64_t>(plan.world(),
                                               std::int64_t{plan.tp} * plan.pp * plan.ep * plan.etp)
                      : gpus;
  if (plan.zero == 3 || holders > 1) {
    const std::int64_t size = plan.zero == 3 && job.colocated() ? plan.world() : holders;
    const Collective gather{
        job.colocated() ? CollectiveKind::all_gather : CollectiveKind::broadcast, Axis::world,
        Bytes(each * rollout.refit.parameters)};
    const GroupShape group = shape_of_groups(1, size, domain, gpus);
    return collective_price(gather, group, cost.hardware()).time +
           kTensorHandOver * rollout.refit.tensors;
  }
  return kTensorHandOver * rollout.refit.tensors;
}

// Logits of a micro-batch whose log-probabilities are made, on the rank that has them.
struct PassLogits {
  std::int64_t tokens = 0, words = 0;
  double each = 0;
  [[nodiscard]] Bytes bytes() const {
    return Bytes(static_cast<double>(tokens) * static_cast<double>(words) * each);
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("{} tokens of a micro-batch x {} logits x {} bytes = {}", tokens, words,
                       significant(each), human_bytes(bytes()));
  }
};
PassLogits pass_logits(const RlJob& job, const ModelSpec& model, const ParallelPlan& plan) {
  const std::int64_t tokens =
      job.pass_tokens > 0 ? job.pass_tokens : plan.seq_len * plan.micro_batch_size / plan.cp;
  return {tokens, ceil_div(model.vocab_size, plan.tp), job.logit_bytes};
}

// What makes a device full, part by part.
std::string parts_text(const StageMemory& stage, Bytes beside) {
  std::string text;
  for (const auto& [name, bytes] : {std::pair{"weights", stage.weights},
                                    {"gradients", stage.gradients},
                                    {"optimizer states", stage.optimizer},
                                    {"activations and logits", stage.activations},
                                    {"the engine asleep", beside}}) {
    if (in_gib(bytes) < 0.05) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, human_bytes(bytes));
  }
  return text;
}

// A step's phases one after the other, or on two sides at once.
class PhaseList {
 public:
  void add(std::string name, Seconds time, Bytes device, std::int64_t gpus, std::string note = {}) {
    if (time.value() <= 0) return;
    list.push_back({.name = std::move(name),
                    .begin = now,
                    .end = now + time,
                    .device = device,
                    .gpus = gpus,
                    .note = std::move(note)});
    now += time;
  }
  Seconds now;
  std::vector<RlPhase> list;
};

}  // namespace

std::vector<std::string> rl_faults(const RlJob& job, const ModelSpec& model,
                                   const ParallelPlan& plan, const RolloutLayout& layout,
                                   std::int64_t gpus) {
  std::vector<std::string> faults;
  const auto fault = [&](std::string sentence) { faults.push_back(std::move(sentence)); };
  const std::int64_t total = job.prompt_len + job.response.max;
  if (job.response.mean > static_cast<double>(job.response.max)) {
    fault(fmt::format("answers of {} tokens in the mean are longer than the longest, {}",
                      significant(job.response.mean), job.response.max));
  }
  if (total > plan.seq_len) {
    fault(fmt::format(
        "a prompt of {} tokens and an answer of up to {} do not fit into the update's sequences of "
        "{}; say --seq-len {}",
        job.prompt_len, job.response.max, plan.seq_len, total));
  }
  if (job.train_batch > job.answers()) {
    fault(
        fmt::format("an optimizer step takes {} answers, and a rollout makes {} ({} prompts of {})",
                    job.train_batch, job.answers(), job.prompts, job.samples));
  } else if (job.train_batch > 0 && job.answers() % job.train_batch != 0) {
    fault(fmt::format("{} answers ({} prompts of {}) are no whole number of optimizer steps of {}",
                      job.answers(), job.prompts, job.samples, job.train_batch));
  }
  if (!job.generates()) return faults;
  const std::int64_t engines_on = job.colocated() ? gpus : job.rollout_gpus;
  if (job.rollout_gpus >= gpus) {
    fault(fmt::format("{} of {} GPUs generate; none is left to train", job.rollout_gpus, gpus));
  }
  if (job.staleness > 0 && job.colocated()) {
    fault("training on older answers needs GPUs that generate meanwhile: say --rollout-gpus");
  }
  if (engines_on % layout.gpus() != 0) {
    fault(fmt::format("{} GPUs are no whole number of engines of {} ({})", engines_on,
                      layout.gpus(), to_string(layout)));
  }
  const std::string engine = rollout_fault(model, layout);
  if (!engine.empty()) fault("the rollout's layout: " + engine);
  return faults;
}

Packing packing_of(const RlJob& job, const ModelSpec& model, const ParallelPlan& plan) {
  const std::int64_t step = std::int64_t{plan.dp} * stage_copies(plan.schedule);
  const std::int64_t each = std::max<std::int64_t>(1, ceil_div(job.batch(), step));
  // Of very many answers a few thousand show how they pack.
  constexpr std::int64_t kMostPacked = 4096;
  const std::int64_t tried = std::min(each, kMostPacked);
  const std::vector<std::int64_t> lengths = whole_lengths(job, tried);
  // Interleaved stages take micro-batches in groups of the pipeline's size (verl's
  // rearrange_micro_batches, num_batches_divided_by, makes as many).
  const std::int64_t group = plan.schedule == ScheduleKind::interleaved ? plan.pp : 1;
  const auto whole_micro_batches = [&](std::int64_t rows) {
    const std::int64_t unit = plan.micro_batch_size * group;
    return ceil_div(ceil_div(rows * each, tried), unit) * unit;
  };
  Packing packing;
  if (!job.packed) {
    packing.sequences = whole_micro_batches(tried) * step;
    packing.filled = plan.seq_len;
    return packing;
  }
  double total = 0, squares = 0;
  for (const std::int64_t n : lengths) {
    total += static_cast<double>(n);
    squares += static_cast<double>(n) * static_cast<double>(n);
  }
  const std::int64_t rows =
      whole_micro_batches(job.by_number ? tried : packed_sequences(lengths, plan.seq_len));
  packing.sequences = rows * step;
  // Sequence and context parallelism cut a sequence into equal parts.
  const std::int64_t part = std::int64_t{2} * plan.cp * plan.tp;
  const double filled = total * static_cast<double>(each) / static_cast<double>(tried * rows);
  packing.filled =
      std::min(plan.seq_len, ceil_div(static_cast<std::int64_t>(std::ceil(filled)), part) * part);
  packing.document = std::min(packing.filled, static_cast<std::int64_t>(squares / total));
  if (!job.balanced) packing.imbalance = imbalance_of(lengths, model.hidden_size, each, step);
  return packing;
}

// Tokens of a sequence whose memory an update needs: full ones, but no more than a rank has in all.
// Micro-batches by number hold answers of the mean length, and the longest among them.
static std::int64_t tokens_of_update(const RlJob& job, const ParallelPlan& plan,
                                     const Packing& packing, bool all_longest) {
  if (!job.packed) return plan.seq_len;
  const std::int64_t longest = job.prompt_len + job.response.max, part = 2 * plan.cp * plan.tp;
  const auto in_parts = [&](std::int64_t tokens) {
    return std::min(plan.seq_len, ceil_div(tokens, part) * part);
  };
  if (job.by_number) {
    if (all_longest) return plan.seq_len;
    return in_parts(std::max(packing.filled, ceil_div(longest, plan.micro_batch_size)));
  }
  const std::int64_t each =
      ceil_div(job.batch(), std::int64_t{plan.dp} * stage_copies(plan.schedule));
  return in_parts(each * longest);
}

ParallelPlan update_plan(const RlJob& job, const ModelSpec& model, const ParallelPlan& plan) {
  ParallelPlan update = plan;
  update.global_batch_size = packing_of(job, model, plan).sequences;
  if (model.moe) update.routing = Routing::natural;
  return update;
}

HandedOver handed_over(const ModelSpec& model) {
  return {static_cast<double>(count_parameters(model).total()),
          static_cast<double>(model_parameters(model).size())};
}

RolloutSide rollout_side(const CostModel& cost, const RlJob& job, const RolloutLayout& layout,
                         std::int64_t gpus, const HandedOver& refit) {
  RolloutSide side{layout, {}, {}, {}, refit};
  if (!job.generates()) return side;
  const RolloutModel engine(cost.model(), cost.hardware(), layout, cost.facts());
  const std::int64_t engines = std::max<std::int64_t>(1, gpus / layout.gpus());
  side.cost = engine.cost({.sequences = ceil_div(job.answers(), engines),
                           .prompts = ceil_div(job.prompts, engines),
                           .prompt_len = job.prompt_len,
                           .response = job.response,
                           .in_flight = std::max<std::int64_t>(1, job.staleness)});
  side.weights = engine.weights();
  side.cache_room = engine.cache_room();
  return side;
}

TrainerCost trainer_memory(const CostModel& cost, const RlJob& job, const ParallelPlan& plan) {
  TrainerCost trainer;
  trainer.packing = packing_of(job, cost.model(), plan);
  ParallelPlan update = update_plan(job, cost.model(), plan);
  if (job.loss != LossKind::by_framework) update.loss = job.loss;
  update.seq_len = tokens_of_update(job, plan, trainer.packing, false);
  trainer.memory = cost.memory(update);
  if (!job.by_number) return trainer;
  update.seq_len = tokens_of_update(job, plan, trainer.packing, true);
  trainer.longest = cost.memory(update);
  return trainer;
}

TrainerCost trainer_cost(const CostModel& cost, const RlJob& job, const ParallelPlan& plan) {
  TrainerCost trainer = trainer_memory(cost, job, plan);
  // Memory is what a full sequence takes, time what the mean one does.
  ParallelPlan filled = filled_plan(plan, trainer.packing, cost.model().moe.has_value());
  if (job.loss != LossKind::by_framework) filled.loss = job.loss;
  ParallelPlan forward = filled;
  forward.recompute = {};
  trainer.update = cost.step_time(filled) * trainer.packing.imbalance;
  trainer.forward = cost.forward_time(forward) * trainer.packing.imbalance;
  return trainer;
}

Bytes engine_asleep(const RlJob& job, const RolloutLayout& layout,
                    const HardwareProfile& hardware) {
  if (!job.generates() || !job.colocated()) return Bytes(0);
  return job.sleep_level > 0 ? kSleepingEngine : hardware.gpu.usable_memory * layout.memory_share;
}

RlEstimate evaluate_rl(const CostModel& cost, const RlJob& job, const ParallelPlan& plan,
                       const RolloutLayout& layout, std::int64_t gpus) {
  const RolloutSide rollout =
      rollout_side(cost, job, layout, job.colocated() ? gpus : job.rollout_gpus,
                   job.generates() ? handed_over(cost.model()) : HandedOver{});
  return evaluate_rl(cost, job, plan, trainer_cost(cost, job, plan), rollout, gpus);
}

RlEstimate evaluate_rl(const CostModel& cost, const RlJob& job, const ParallelPlan& plan,
                       const TrainerCost& trained, const RolloutSide& rollout, std::int64_t gpus) {
  RlEstimate result;
  const RolloutLayout& layout = rollout.layout;
  const HardwareProfile& hardware = cost.hardware();
  const Packing& packing = trained.packing;
  result.packing = packing;
  result.rollout = rollout.cost;
  const StageMemory& stage = trained.memory.worst_stage();
  const std::int64_t batches = std::max<std::int64_t>(1, job.answers() / job.batch());
  result.optimizer_steps = job.epochs * batches;

  const std::int64_t train_gpus = plan.world();
  const std::int64_t rollout_gpus = job.colocated() ? gpus : job.rollout_gpus;
  const Bytes usable = hardware.gpu.usable_memory;
  const Bytes states = stage.weights + stage.optimizer;
  const Bytes context = cost.recipe().memory.context;
  const bool moves = job.generates() && job.colocated() && job.offload_trainer;
  const Bytes moved = (job.weights_stay ? Bytes(0) : stage.weights) +
                      (job.moments_stay ? Bytes(0) : stage.optimizer);
  const BytesPerSecond out = hardware.link.device_to_host, in = hardware.link.host_to_device;

  // The trainer's side.
  const Seconds per_pass = trained.forward * static_cast<double>(batches);
  const bool critic = job.algorithm == Algorithm::ppo;
  const bool reference = job.reference && job.algorithm != Algorithm::sft;
  const Bytes asleep = engine_asleep(job, layout, hardware);
  // Of the policy's size. Where nothing moves, its states stay whatever the policy does.
  const Bytes critic_stays = critic && !moves ? states : Bytes(0);
  const Bytes training = stage.device + asleep + critic_stays;
  const Bytes passing = stage.device - stage.activations + asleep + critic_stays;
  // Forwards keep neither gradients nor, where states come back one by one, the optimizer's.
  const PassLogits logits = pass_logits(job, cost.model(), plan);
  const auto scored_by = [&](const StageMemory& s, Bytes more) {
    const bool gone = moves && !job.moments_stay;
    return s.device - s.activations - s.gradients - (gone ? s.optimizer : Bytes(0)) + asleep +
           critic_stays + more;
  };
  const bool counted = job.logit_bytes > 0 && job.generates();
  const Bytes scoring = counted ? std::max(scored_by(stage, Bytes(0)),
                                           scored_by(trained.memory.stages.back(), logits.bytes()))
                                : passing;
  const auto trainer = [&](PhaseList& phases) {
    if (moves)
      phases.add("trainer back to the device", moved / in + job.change_of_hands, passing,
                 train_gpus);
    if (job.old_logprobs && job.generates()) {
      phases.add("log-probabilities", per_pass, scoring, train_gpus, "forwards of the policy");
    }
    if (reference) {
      phases.add("reference", per_pass, scoring, train_gpus, "forwards of the frozen model");
    }
    if (critic) phases.add("values", per_pass, passing, train_gpus, "forwards of the critic");
    const Seconds steps = trained.update * static_cast<double>(result.optimizer_steps);
    phases.add(
        "update", steps, training, train_gpus,
        fmt::format(
            "{} optimizer step{} of {} sequences, {} of {} tokens filled{}", result.optimizer_steps,
            result.optimizer_steps == 1 ? "" : "s", packing.sequences, packing.filled, plan.seq_len,
            packing.imbalance > 1.005
                ? fmt::format(", the busiest rank with {}% more", percent(packing.imbalance - 1))
                : ""));
    if (critic) {
      phases.add("critic's update", steps, training, train_gpus,
                 "taken to be of the policy's size");
    }
    if (moves)
      phases.add("trainer to the host", moved / out + job.change_of_hands, passing, train_gpus);
  };

  PhaseList phases;
  Bytes generating;
  if (!job.generates()) {
    trainer(phases);
  } else {
    const std::int64_t engines = std::max<std::int64_t>(1, rollout_gpus / layout.gpus());
    const Bytes left =
        job.colocated() ? (job.offload_trainer ? states - moved : states + critic_stays) + context
                        : Bytes(0);
    generating = usable * layout.memory_share + left;
    if (rollout.cache_room.value() <= 0) {
      result.misfit = fmt::format(
          "an engine of {} GPU{} holds {} of weights on each, and its share is {} of {}",
          layout.gpus(), layout.gpus() == 1 ? "" : "s", human_bytes(rollout.weights),
          percent(layout.memory_share) + "%", human_bytes(usable));
    }
    const auto generate = [&](PhaseList& side) {
      if (job.colocated() && job.sleep_level == 1) {
        side.add("engine wakes", rollout.weights / in + job.change_of_hands, generating,
                 rollout_gpus);
      }
      side.add("refit", refit_time(cost, job, plan, rollout, gpus) + job.change_of_hands,
               generating, rollout_gpus, "the trainer's weights to the engines");
      side.add("rollout", result.rollout.time(), generating, rollout_gpus,
               fmt::format("{} engine{} of {}, {} answers each", engines, engines == 1 ? "" : "s",
                           to_string(layout), ceil_div(job.answers(), engines)));
      if (job.colocated() && job.sleep_level == 1) {
        side.add("engine sleeps", rollout.weights / out + job.change_of_hands, generating,
                 rollout_gpus);
      }
    };
    generate(phases);
    if (job.staleness > 0) {
      PhaseList other;
      trainer(other);
      phases.list.insert(phases.list.end(), other.list.begin(), other.list.end());
      phases.now = std::max(phases.now, other.now);
    } else {
      trainer(phases);
    }
  }
  result.phases = std::move(phases.list);
  result.step_time = phases.now;

  // What a step goes through, and whether it fits.
  result.tokens =
      static_cast<double>(job.answers()) * (static_cast<double>(job.prompt_len) + mean_of(job));
  result.tokens_per_s_per_gpu =
      result.tokens / result.step_time.value() / static_cast<double>(gpus);
  result.capacity = cost.capacity();
  result.device = std::max({training, generating, counted ? scoring : Bytes(0)});
  if (job.by_number && !trained.longest.stages.empty()) {
    result.longest = training + (trained.longest.worst_stage().device - stage.device);
    const std::int64_t now = plan.micro_batch_size * tokens_of_update(job, plan, packing, false);
    result.longest_tokens = plan.micro_batch_size * plan.seq_len;
    const double more = (result.longest - training).value();
    const double share = more <= 0 ? 1 : (result.capacity - training).value() / more;
    result.tokens_that_fit = std::max<std::int64_t>(
        0,
        now + static_cast<std::int64_t>(share * static_cast<double>(result.longest_tokens - now)));
  }
  const auto node_gpus =
      static_cast<double>(std::min<std::int64_t>(train_gpus, hardware.link.gpus_per_node));
  Bytes host = trained.memory.host_per_node;
  if (moves) host += moved * (critic ? 2.0 : 1.0) * node_gpus;
  // Without its adapters the policy is its own reference.
  if (reference && plan.lora_rank == 0) host += stage.weights * node_gpus;
  if (job.generates() && job.colocated() && job.sleep_level == 1) {
    host += rollout.weights * node_gpus;
  }
  result.host_per_node = host;
  result.host_room = trained.memory.host_room;
  if (result.misfit.empty() && training > result.capacity) {
    const std::string parts = parts_text(stage, asleep);
    result.misfit =
        fmt::format("the update takes {}, {} more than the {} that may be filled{}",
                    human_bytes(training), human_bytes(training - result.capacity),
                    human_bytes(result.capacity), parts.empty() ? "" : fmt::format(" ({})", parts));
  }
  if (result.misfit.empty() && counted && scoring > result.capacity) {
    result.misfit =
        fmt::format("log-probabilities take {}, {} more than the {} that may be filled: {}",
                    human_bytes(scoring), human_bytes(scoring - result.capacity),
                    human_bytes(result.capacity), logits.text());
  }
  if (result.misfit.empty() && generating > usable) {
    result.misfit = fmt::format(
        "the engine's share and what the trainer leaves are {}, {} more than the {} "
        "that the GPU has",
        human_bytes(generating), human_bytes(generating - usable), human_bytes(usable));
  }
  if (result.misfit.empty() && host > result.host_room) {
    result.misfit = fmt::format(
        "what is offloaded between phases is {} a node, {} more than the {} that there are",
        human_bytes(host), human_bytes(host - result.host_room), human_bytes(result.host_room));
  }
  result.fits = result.misfit.empty();
  return result;
}

}  // namespace qplan
