#include "costmodel/rollout/rollout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <queue>

#include "costmodel/fold/block_cost.h"
#include "models/error.h"
#include "models/plan/plan_text.h"
#include "models/plan/words.h"
#include "models/portable_math.h"

namespace qplan {
namespace {

// vLLM 0.9 to 0.20 with asynchronous scheduling off: the scheduler, the input batch's arrays and
// the sampled tokens' way back to the host. The figures are assumed, chosen by the order of what
// vLLM's own profile says of it (blog of 2024-09-05: 5 of 13 ms a step with Llama 3 8B and 256
// sequences before they were moved aside).
constexpr EngineHost kEngineHost{.step = microseconds(2000), .sequence = microseconds(10)};

// What an engine's kernels need beside weights and cache: activations of the largest prefill,
// graphs of its batch sizes. vLLM's profile run takes it out of the same share. Assumed.
constexpr double kEngineWorkspace = 3.0 * (1 << 30);

// Tokens of one prefill step: vLLM's max_num_batched_tokens on a GPU of 70 GiB and more
// (EngineArgs._set_default_max_num_seqs_and_batched_tokens_args, v0.10).
constexpr std::int64_t kPrefillTokens = 8192;

// Sequences at which decoding steps are priced; between two, a step is taken to be linear.
std::vector<std::int64_t> priced_batches(std::int64_t most) {
  std::vector<std::int64_t> batches;
  for (std::int64_t n = 1; n < most; n *= 2) batches.push_back(n);
  batches.push_back(most);
  return batches;
}

ParallelPlan plan_of(const ModelSpec& model, const RolloutLayout& layout) {
  ParallelPlan plan;
  plan.tp = layout.tp;
  plan.dp = layout.dp;
  plan.ep = layout.ep;
  // Experts that are not spread over the ranks are sliced by all of them. Between attention and
  // experts each rank then has its share of the tokens, as the program's layers want it; engines
  // hold all tokens on all of these ranks and sum at the end: the same bytes.
  if (model.moe && layout.ep == 1) plan.etp = layout.ranks();
  plan.sequence_parallel = model.moe && layout.tp > 1;
  plan.precision = layout.precision;
  return plan;
}

// Share of a rank's experts that get a token of `tokens`, each of which chooses `k` of `experts`.
double reached_experts(const ModelSpec& model, double tokens) {
  if (!model.moe) return 1;
  const double chosen =
      static_cast<double>(model.moe->top_k) / static_cast<double>(model.moe->num_experts);
  return 1 - portable::pow(1 - chosen, std::max(1.0, tokens));
}

// Steps of an engine by how many run and how long they are, from a few that are priced.
class StepTable {
 public:
  StepTable(const RolloutModel& model, std::int64_t most, double longest)
      : batches_(priced_batches(most)), short_(longest / 4), long_(longest) {
    for (const std::int64_t n : batches_) {
      at_short_.push_back(model.step(n, short_));
      at_long_.push_back(model.step(n, long_));
    }
  }

  [[nodiscard]] Seconds at(std::int64_t running, double context) const {
    const auto above = std::lower_bound(batches_.begin(), batches_.end(), running);
    const auto i = static_cast<std::size_t>(above - batches_.begin());
    if (batches_[i] == running) return by_context(i, context);
    const double share = static_cast<double>(running - batches_[i - 1]) /
                         static_cast<double>(batches_[i] - batches_[i - 1]);
    return by_context(i - 1, context) * (1 - share) + by_context(i, context) * share;
  }

 private:
  // Caches are read: a step grows with their length.
  [[nodiscard]] Seconds by_context(std::size_t i, double context) const {
    const double share = (context - short_) / (long_ - short_);
    return at_short_[i] * (1 - share) + at_long_[i] * share;
  }

  std::vector<std::int64_t> batches_;
  double short_, long_;
  std::vector<Seconds> at_short_, at_long_;
};

double share_of(std::string_view text) {
  double share = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, share);
  if (text.empty() || stop != end || code != std::errc{} || !(share > 0 && share <= 1)) {
    throw Error(
        fmt::format("share of a rollout's layout must be a number above 0 and at most 1, not '{}'",
                    shown(text)));
  }
  return share;
}

// The order in which answers of known lengths begin: as if drawn, the same every time. Steps of the
// golden ratio through the ascending lengths never cluster.
std::vector<std::int64_t> in_drawn_order(const std::vector<std::int64_t>& ascending) {
  constexpr double kGolden = 0.6180339887498949;
  std::vector<std::pair<double, std::int64_t>> keyed;
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    const double turn = static_cast<double>(i) * kGolden;
    keyed.emplace_back(turn - std::floor(turn), ascending[i]);
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<std::int64_t> order;
  for (const auto& [key, length] : keyed) order.push_back(length);
  return order;
}

}  // namespace

std::string to_string(const RolloutLayout& layout) {
  std::string text = fmt::format("tp{}", layout.tp);
  if (layout.pp > 1) text += fmt::format(" pp{}", layout.pp);
  if (layout.dp > 1) text += fmt::format(" dp{}", layout.dp);
  if (layout.ep > 1) text += fmt::format(" ep{}", layout.ep);
  if (layout.redundant_experts > 0) text += fmt::format(" redundant{}", layout.redundant_experts);
  if (layout.precision != Precision::bf16) text += fmt::format(" {}", to_word(layout.precision));
  return text + fmt::format(" share{} running{}", layout.memory_share, layout.max_running);
}

RolloutLayout parse_rollout_layout(std::string_view text) {
  RolloutLayout layout;
  for (const std::string_view word : split(text, ' ')) {
    if (word.empty()) continue;
    const std::size_t digits = std::min(word.find_first_of("0123456789."), word.size());
    const std::string_view key = word.substr(0, digits), value = word.substr(digits);
    const auto count = [&](std::int64_t low) {
      return parse_count(fmt::format("{} of a rollout's layout", key), value, low, kMaxDegree);
    };
    if (key == "tp") {
      layout.tp = static_cast<int>(count(1));
    } else if (key == "pp") {
      layout.pp = static_cast<int>(count(1));
    } else if (key == "dp") {
      layout.dp = static_cast<int>(count(1));
    } else if (key == "ep") {
      layout.ep = static_cast<int>(count(1));
    } else if (key == "redundant") {
      layout.redundant_experts = static_cast<int>(count(0));
    } else if (key == "running") {
      layout.max_running = count(1);
    } else if (key == "share") {
      layout.memory_share = share_of(value);
    } else if (word == "bf16" || word == "fp8") {
      layout.precision = from_word<Precision>(word);
    } else {
      throw Error(fmt::format(
          "'{}' is no word of a rollout's layout; say tp, pp, dp, ep, redundant, share and "
          "running with "
          "a number, and bf16 or fp8, as in 'tp2 share0.8'",
          shown(word)));
    }
  }
  return layout;
}

std::string rollout_fault(const ModelSpec& model, const RolloutLayout& layout) {
  if (model.num_attention_heads % layout.tp != 0) {
    return fmt::format("{} attention heads do not divide by tp {}", model.num_attention_heads,
                       layout.tp);
  }
  if (layout.ep > 1 && !model.moe) return "ep above 1 needs experts, which the model has not";
  if (!model.moe) {
    if (layout.redundant_experts > 0) return "redundant experts need experts";
    if (layout.dp > 1) return "dp within an engine shares experts, which the model has not";
    const std::int64_t width = model.intermediate_size;
    if (width % layout.tp != 0) {
      return fmt::format("the MLP's {} columns do not divide by tp {}", width, layout.tp);
    }
    return "";
  }
  if (layout.ep != 1 && layout.ep != layout.ranks()) {
    return fmt::format("ep is 1 or all {} GPUs of the engine, not {}", layout.ranks(), layout.ep);
  }
  if (layout.ep > 1 && (model.moe->num_experts + layout.redundant_experts) % layout.ep != 0) {
    return fmt::format("{} experts{} do not divide by ep {}", model.moe->num_experts,
                       layout.redundant_experts > 0
                           ? fmt::format(" and {} redundant ones", layout.redundant_experts)
                           : "",
                       layout.ep);
  }
  if (layout.ep == 1 && model.moe->moe_intermediate_size % layout.ranks() != 0) {
    return fmt::format("experts' {} columns do not divide by {} GPUs; ep{} spreads whole experts",
                       model.moe->moe_intermediate_size, layout.ranks(), layout.ranks());
  }
  return "";
}

RolloutModel::RolloutModel(const ModelSpec& model, const HardwareProfile& hardware,
                           const RolloutLayout& layout, JobFacts facts)
    : model_(model),
      hardware_(hardware),
      layout_(layout),
      facts_(facts),
      recipe_(recipe_of(RecipeKind::megatron)) {
  facts_.nvlink_domain = hardware.link.nvlink_domain;
  facts_.pods = hardware.link.pods;
  facts_.turns_fp8 = hardware.gpu.fp8_needs_transposes;
}

Seconds RolloutModel::forward(std::int64_t sequences, std::int64_t length,
                              std::int64_t cached) const {
  ParallelPlan plan = plan_of(model_, layout_);
  plan.micro_batch_size = sequences;
  plan.seq_len = length;
  BlockShape base = base_shape(model_, plan, recipe_, facts_.moe_imbalance, facts_.turns_fp8);
  base.cached = cached;
  const RankGrid grid = rank_grid(plan, facts_);
  // CUDA graphs: a decoding step's launches are replayed (enforce_eager off, both engines'
  // default).
  CostContext context = context_of(plan, hardware_, grid, recipe_, facts_);
  context.graphs = CudaGraphScope::full;
  context.active_experts = reached_experts(
      model_, static_cast<double>(sequences * length) * (layout_.ep > 1 ? layout_.dp : 1));
  StreamClocks clocks = clocks_at_zero();
  const StageList stages = stage_list(model_, plan, recipe_, base, facts_);
  for (const Run& run : stages.runs(0)) {
    if (run.shape.kind == BlockKind::mtp || run.shape.kind == BlockKind::mtp_embedding) continue;
    const Block block = build_block(model_, recipe_, run.shape);
    const PricedPart priced = price_part(block, Part::forward, context);
    clocks = apply(power(delay_of(priced.ops, priced.durations), run.count), clocks);
  }
  Seconds end;
  for (int stream = 0; stream < kStreamCount; ++stream) {
    end = std::max(end, clocks(stream).seconds());
  }
  return end;
}

Seconds RolloutModel::step(std::int64_t sequences, double context) const {
  // Stages work on as many batches at once, each of which passes all layers in a step. (What they
  // hand on is next to nothing.)
  const std::int64_t batches = std::int64_t{layout_.dp} * layout_.pp;
  std::int64_t each = ceil_div(sequences, batches);
  if (model_.moe) each = ceil_div(each, layout_.tp) * layout_.tp;
  const auto cached = static_cast<std::int64_t>(std::max(1.0, context - 1));
  return forward(each, 1, cached) + kEngineHost.step +
         kEngineHost.sequence * static_cast<double>(sequences);
}

Seconds RolloutModel::prefill(std::int64_t tokens) const {
  const std::int64_t each = tokens / layout_.dp / layout_.tp * layout_.tp;
  return forward(1, std::max<std::int64_t>(layout_.tp, each), 0) + kEngineHost.step;
}

Bytes RolloutModel::weights() const {
  const ParallelPlan plan = plan_of(model_, layout_);
  const BlockShape base = base_shape(model_, plan, recipe_, facts_.moe_imbalance, facts_.turns_fp8);
  // Of a decoder's layers under fp8 all is narrow: what is not (norms, routers) is next to nothing.
  const double linear = layout_.precision == Precision::fp8 ? 1 : 2;
  const double experts =
      model_.moe ? 1 + layout_.redundant_experts / static_cast<double>(model_.moe->num_experts) : 1;
  double bytes = 0;
  const StageList stages = stage_list(model_, plan, recipe_, base, facts_);
  for (const Run& run : stages.runs(0)) {
    const RankParameters held = rank_parameters(model_, run.shape);
    const double width = run.shape.kind == BlockKind::decoder ? linear : 2;
    bytes += width * run.count *
             (static_cast<double>(held.dense) + experts * static_cast<double>(held.expert));
  }
  return Bytes(bytes / layout_.pp);  // the mean of its stages
}

// Keys and values in 16 bits; a latent, which every rank holds; a recurrent layer's state in fp32
// and what its convolution still sees.
Bytes RolloutModel::cache_bytes(std::int64_t context) const {
  double bytes = 0;
  const auto split = static_cast<double>(layout_.tp);
  for (const LayerKind& layer : model_.layers) {
    switch (layer.mixer) {
      case Mixer::attention: {
        const std::int64_t seen = layer.window > 0 ? std::min(context, layer.window) : context;
        const std::int64_t heads =
            std::max<std::int64_t>(model_.num_key_value_heads / layout_.tp, 1);
        const std::int64_t width = model_.mla
                                       ? model_.mla->kv_lora_rank + model_.mla->qk_rope_head_dim
                                       : 2 * heads * model_.head_dim;
        bytes += 2.0 * static_cast<double>(seen * width);
        break;
      }
      case Mixer::delta_net: {
        const DeltaNetSpec& d = *model_.delta_net;
        bytes += (4.0 * static_cast<double>(d.num_value_heads * d.key_head_dim * d.value_head_dim) +
                  2.0 * static_cast<double>(d.conv_dim() * (d.conv_kernel - 1))) /
                 split;
        break;
      }
      case Mixer::mamba: {
        const MambaSpec& m = *model_.mamba;
        bytes += (4.0 * static_cast<double>(m.inner() * m.state_size) +
                  2.0 * static_cast<double>(m.conv_dim() * (m.conv_kernel - 1))) /
                 split;
        break;
      }
      case Mixer::none:
        break;
    }
  }
  return Bytes(bytes / layout_.pp);
}

Bytes RolloutModel::cache_room() const {
  const Bytes share = hardware_.gpu.usable_memory * layout_.memory_share;
  return std::max(Bytes(0), share - weights() - Bytes(kEngineWorkspace));
}

// How many the caches of an engine have room for. Answers that all begin at once are never all at
// their longest: what is left of them, times how long they are, has a peak. Where that is too much,
// or answers of several rollouts run, as many as there is room for at the mean length.
std::int64_t RolloutModel::most_at_once(const RolloutWork& work,
                                        const std::vector<std::int64_t>& ascending,
                                        double mean) const {
  const Bytes room = cache_room();
  const auto each = [&](std::int64_t response) { return cache_bytes(work.prompt_len + response); };
  if (work.in_flight == 1) {
    const std::int64_t n = work.sequences;
    Bytes peak;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t left = ceil_div(n - i, layout_.dp);
      peak =
          std::max(peak, each(ascending[static_cast<std::size_t>(i)]) * static_cast<double>(left));
    }
    if (peak <= room) return n;
  }
  const auto rows = static_cast<std::int64_t>(room / each(static_cast<std::int64_t>(mean)));
  return std::max<std::int64_t>(1, rows * layout_.dp);
}

RolloutCost RolloutModel::cost(const RolloutWork& work) const {
  RolloutCost cost;
  const std::vector<std::int64_t> ascending = work.response.quantiles(work.sequences);
  double tokens = 0;
  for (const std::int64_t n : ascending) tokens += static_cast<double>(n);
  const double mean = tokens / static_cast<double>(work.sequences);
  const auto prompt = static_cast<double>(work.prompt_len);

  const std::int64_t wanted = work.sequences * work.in_flight;
  const std::int64_t limit = layout_.max_running * layout_.dp;
  cost.running = std::min({wanted, limit, most_at_once(work, ascending, mean)});
  cost.cache_limits = cost.running < std::min(wanted, limit);

  const std::int64_t to_read = work.prompts * work.prompt_len;
  const std::int64_t pieces = std::max<std::int64_t>(1, to_read / kPrefillTokens);
  // Pieces follow each other through the stages.
  cost.prefill = prefill(to_read / pieces) * static_cast<double>(pieces + layout_.pp - 1) /
                 static_cast<double>(layout_.pp);

  // Those that run, by the step in which they end; whoever ends makes room for the next.
  const StepTable steps(*this, cost.running, prompt + static_cast<double>(ascending.back()));
  if (work.in_flight > 1) {
    // Sequences of all ages run: half way through the longer ones more often.
    double squares = 0;
    for (const std::int64_t n : ascending)
      squares += static_cast<double>(n) * static_cast<double>(n);
    const Seconds step = steps.at(cost.running, prompt + squares / tokens / 2);
    cost.decode = step * (tokens / static_cast<double>(cost.running));
    cost.tokens_per_s = tokens / cost.time().value();
    return cost;
  }
  const std::vector<std::int64_t> order = in_drawn_order(ascending);
  using Ends =
      std::priority_queue<std::pair<std::int64_t, std::int64_t>,
                          std::vector<std::pair<std::int64_t, std::int64_t>>, std::greater<>>;
  Ends running;  // (last step, first step)
  std::size_t next = 0;
  std::int64_t now = 0;
  double starts = 0;  // sum of the running ones' first steps
  while (next < order.size() || !running.empty()) {
    while (next < order.size() && static_cast<std::int64_t>(running.size()) < cost.running) {
      running.emplace(now + order[next++], now);
      starts += static_cast<double>(now);
    }
    const auto [end, start] = running.top();
    const auto count = static_cast<std::int64_t>(running.size());
    const double middle = static_cast<double>(now + end) / 2;
    const double context = prompt + middle - starts / static_cast<double>(count);
    const Seconds time = steps.at(count, context) * static_cast<double>(end - now);
    cost.decode += time;
    if (next == order.size() && 2 * count < cost.running) cost.tail += time;
    now = end;
    while (!running.empty() && running.top().first == now) {
      starts -= static_cast<double>(running.top().second);
      running.pop();
    }
  }
  cost.tokens_per_s = tokens / cost.time().value();
  return cost;
}

}  // namespace qplan
