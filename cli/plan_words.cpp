#include "cli/plan_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/job.h"
#include "models/error.h"
#include "models/program/loss.h"

namespace qplan {
namespace {

// How several alternatives of a word are written.
enum class Many : std::uint8_t {
  numbers,   // "1,2,4", "1..3"
  words,     // "none,selective"
  whole,     // a value has commas itself; alternatives repeat the option
  per_job,   // no alternatives: the same for every plan of a search
  sequence,  // one list of numbers
};

struct PlanWord {
  std::string_view key;         // in JSON
  std::string_view value_name;  // for one value
  std::string_view help;
  Many many;
  void (*allow)(SearchSpace&, const ParallelPlan&);  // one more allowed value
};

using S = SearchSpace;
using P = ParallelPlan;

// Said twice, a value is one: the plans of a search are distinct.
template <auto SpaceMember, auto PlanMember>
void allow(S& space, const P& plan) {
  auto& values = space.*SpaceMember;
  const auto& value = plan.*PlanMember;
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

template <auto SpaceMember, auto PlanMember>
void fix(S& space, const P& plan) {
  space.*SpaceMember = plan.*PlanMember;
}

constexpr std::array kWords{
    PlanWord{"global_batch_size", "SEQUENCES", "sequences a step", Many::per_job,
             fix<&S::global_batch_size, &P::global_batch_size>},
    PlanWord{"seq_len", "TOKENS", "tokens of a sequence", Many::per_job,
             fix<&S::seq_len, &P::seq_len>},
    PlanWord{"document_len", "TOKENS",
             "tokens of a document in packed sequences, attention staying within it; 0: sequences "
             "are whole",
             Many::per_job, fix<&S::document_len, &P::document_len>},
    PlanWord{"precision", "FORMAT",
             "number format of matrix products: bf16, fp16, fp8, mxfp8, nvfp4", Many::per_job,
             fix<&S::precision, &P::precision>},
    PlanWord{"routing", "KIND",
             "balance of experts: forced (even), in_turn (even, neighbours) or natural (see "
             "--moe-imbalance)",
             Many::per_job, fix<&S::routing, &P::routing>},
    PlanWord{"moe_capacity_factor", "RATIO",
             "copies an expert takes of a rank's, over the mean; more are dropped; 0: none are",
             Many::per_job, fix<&S::moe_capacity_factor, &P::moe_capacity_factor>},
    PlanWord{"moe_token_drop_policy", "KIND",
             "copies that are dropped: of least probability (probs) or last (position)",
             Many::per_job, fix<&S::moe_token_drop_policy, &P::moe_token_drop_policy>},
    PlanWord{"attention_backend", "KIND",
             "library of attention: auto, flash (FlashAttention-2), fused (cuDNN)", Many::per_job,
             fix<&S::attention_backend, &P::attention_backend>},
    PlanWord{"dropout", "BOOL", "attention and what is added to the residual are dropped in part",
             Many::per_job, fix<&S::dropout, &P::dropout>},
    PlanWord{"moe_permute_fusion", "BOOL",
             "tokens are sorted by expert in kernels of their own (Megatron's flag)", Many::per_job,
             fix<&S::moe_permute_fusion, &P::moe_permute_fusion>},
    PlanWord{"fp8_param_gather", "BOOL",
             "in fp8, weights are kept in fp8 alone; false: in bf16, and copies (Megatron's flag)",
             Many::per_job, fix<&S::fp8_param_gather, &P::fp8_param_gather>},

    PlanWord{"tp", "RANKS", "tensor-parallel degree", Many::numbers, allow<&S::tp, &P::tp>},
    PlanWord{"pp", "STAGES", "pipeline-parallel degree", Many::numbers, allow<&S::pp, &P::pp>},
    PlanWord{"vpp", "CHUNKS", "virtual stages of a pipeline rank", Many::numbers,
             allow<&S::vpp, &P::vpp>},
    PlanWord{"cp", "RANKS", "context-parallel degree", Many::numbers, allow<&S::cp, &P::cp>},
    PlanWord{"ep", "RANKS", "expert-parallel degree", Many::numbers, allow<&S::ep, &P::ep>},
    PlanWord{"etp", "RANKS", "expert-tensor-parallel degree", Many::numbers,
             allow<&S::etp, &P::etp>},
    PlanWord{"dp", "RANKS", "data-parallel degree", Many::numbers, allow<&S::dp, &P::dp>},
    PlanWord{"zero", "STAGE", "ZeRO stage: what data parallelism shards (0-3)", Many::numbers,
             allow<&S::zero, &P::zero>},
    PlanWord{"fsdp_shard", "RANKS", "ranks that share one copy of the states (HSDP); 0: all",
             Many::numbers, allow<&S::fsdp_shard, &P::fsdp_shard>},
    PlanWord{"micro_batch_size", "SEQUENCES", "sequences a rank handles at once", Many::numbers,
             allow<&S::micro_batch_size, &P::micro_batch_size>},
    PlanWord{"schedule", "KIND",
             "pipeline schedule: gpipe, 1f1b, interleaved, zb-h1, zbv, dualpipe", Many::words,
             allow<&S::schedule, &P::schedule>},
    PlanWord{"pipeline_layout", "LAYERS",
             "decoder layers of each virtual stage: 7+8+8+7, or 7+8*2+7", Many::sequence,
             fix<&S::pipeline_layout, &P::pipeline_layout>},
    PlanWord{"recompute", "WHAT",
             "activations computed again: none, selective[:MODULE+...], full[:LAYERS]", Many::words,
             allow<&S::recompute, &P::recompute>},
    PlanWord{"offload", "WHAT",
             "states kept on the host: none, or optimizer[:FRACTION],params,activations[:LAYERS],"
             "nvme",
             Many::whole, allow<&S::offload, &P::offload>},
    PlanWord{"sequence_parallel", "[BOOL]", "norms and dropout split over tp", Many::words,
             allow<&S::sequence_parallel, &P::sequence_parallel>},
    PlanWord{"cp_comm", "KIND", "how context parallelism talks: p2p, all_gather, a2a", Many::words,
             allow<&S::cp_comm, &P::cp_comm>},
    PlanWord{"moe_dispatcher", "KIND", "token exchange: alltoall, allgather, deepep, hybridep",
             Many::words, allow<&S::moe_dispatcher, &P::moe_dispatcher>},
    PlanWord{"overlap", "LIST", "communication hidden behind compute: none, or of tp,grad,param,ep",
             Many::whole, allow<&S::overlap, &P::overlap>},
    PlanWord{"grad_dtype", "FORMAT", "accumulated gradients: fp32, bf16", Many::words,
             allow<&S::grad_dtype, &P::grad_dtype>},
    PlanWord{"main_params_dtype", "FORMAT", "master weights: fp32, bf16", Many::words,
             allow<&S::main_params_dtype, &P::main_params_dtype>},
    PlanWord{"moment_dtype", "FORMAT", "Adam's moments: fp32, bf16, fp16, fp8", Many::words,
             allow<&S::moment_dtype, &P::moment_dtype>},
    PlanWord{"cuda_graph", "[BOOL]", "CUDA graphs", Many::words,
             allow<&S::cuda_graph, &P::cuda_graph>},
    PlanWord{"cuda_graph_scope", "SCOPE",
             "what they capture: full, layer (all but routed experts), router (moe_router)",
             Many::words, allow<&S::cuda_graph_scope, &P::cuda_graph_scope>},
    PlanWord{"compile", "[BOOL]", "torch.compile", Many::words, allow<&S::compile, &P::compile>},
    PlanWord{"deterministic", "[BOOL]", "the same bits in every run, at some cost", Many::words,
             allow<&S::deterministic, &P::deterministic>},
    PlanWord{"loss", "KIND",
             "cross-entropy: default (the framework's), native, te or unfused (Megatron), compiled "
             "or chunked (torchtitan)",
             Many::words, allow<&S::loss, &P::loss>},
};

std::string option_name(const PlanWord& word) {
  std::string name = "--" + std::string(word.key);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// The plan with this word set; the plan's own reader says what is wrong with a value.
ParallelPlan with_word(const ParallelPlan& plan, std::string_view key, std::string value) {
  // A space would start another word of the line.
  if (value.empty() || value.find_first_of(" \t\r\n=") != std::string::npos) {
    throw Error(fmt::format("'{}' is no value of {}", shown(value), key));
  }
  if (key == "overlap" || key == "pipeline_layout")
    std::replace(value.begin(), value.end(), ',', '+');
  return parse_plan(fmt::format("{}={}", key, value), plan);
}

template <class Read>
auto naming(const std::string& option, Read read) {
  try {
    return read();
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", option, error.what()));
  }
}

// Values of every number word lie far below this; parse_plan() knows the exact bounds.
constexpr std::int64_t kMostNumber = 1 << 30;

std::vector<std::string> alternatives(const PlanWord& word, const std::string& option,
                                      const std::string& text) {
  std::vector<std::string> values;
  switch (word.many) {
    case Many::numbers:
      for (const std::int64_t n : read_numbers(option, text, 0, kMostNumber, RangeStep::one)) {
        values.push_back(fmt::format("{}", n));
      }
      return values;
    case Many::words:
      return split_list(text);
    case Many::whole:
    case Many::per_job:
    case Many::sequence:
      return {text};
  }
  return values;
}

void add_single(CommandLine& line, const PlanWord& word, PlanWords& words,
                const std::string& fallback) {
  const auto set = [&words, &word](const std::string& option, const std::string& text) {
    naming(option, [&] { return with_word({}, word.key, text); });
    words[std::string(word.key)] = text;
  };
  line.option({option_name(word), std::string(word.value_name), std::string(word.help), fallback},
              set);
}

void add_constraint(CommandLine& line, const PlanWord& word, SearchSpace& space) {
  const auto set = [&space, &word](const std::string& option, const std::string& text) {
    for (const std::string& value : alternatives(word, option, text)) {
      word.allow(space, naming(option, [&] { return with_word({}, word.key, value); }));
    }
  };
  const bool list = word.many == Many::numbers || word.many == Many::words;
  const bool truth = word.value_name.starts_with('[');
  const std::string name = std::string(word.value_name) + (list && !truth ? ",..." : "");
  const OptionText option{option_name(word), name, std::string(word.help), ""};
  // Where one value is a list already, only repetition can give several.
  if (word.many == Many::whole) {
    line.repeatable(option, set);
  } else {
    line.option(option, set);
  }
}

bool given(const PlanWords& words, std::string_view key) {
  return words.find(key) != words.end();
}

}  // namespace

void add_job_words(CommandLine& line, PlanWords& words,
                   const std::vector<std::string_view>& without, const std::string& default_batch) {
  const std::array<std::pair<std::string_view, std::string_view>, 11> defaults{
      {{"global_batch_size", default_batch},
       {"seq_len", "4096"},
       {"document_len", "0"},
       {"precision", "bf16"},
       {"routing", "forced"},
       {"moe_capacity_factor", "0"},
       {"moe_token_drop_policy", "probs"},
       {"attention_backend", "auto"},
       {"dropout", "false"},
       {"moe_permute_fusion", "true"},
       {"fp8_param_gather", "true"}}};
  for (const PlanWord& word : kWords) {
    if (std::find(without.begin(), without.end(), word.key) != without.end()) continue;
    for (const auto& [key, fallback] : defaults) {
      if (word.key == key) add_single(line, word, words, std::string(fallback));
    }
  }
}

void set_job_words(SearchSpace& space, const PlanWords& words, std::int64_t gpus) {
  space.gpus = gpus;
  space.seq_len = ParallelPlan{}.seq_len;
  space.global_batch_size = 0;
  for (const PlanWord& word : kWords) {
    const auto found = words.find(word.key);
    if (found != words.end()) word.allow(space, with_word({}, word.key, found->second));
  }
  if (space.global_batch_size == 0) {
    space.global_batch_size = default_global_batch_size(gpus, space.seq_len);
    if (space.global_batch_size > kMostSequences) {
      throw Error(fmt::format(
          "about 4 Mi tokens a step are {} sequences of {}, and at most {} are simulated; give "
          "--global-batch-size",
          space.global_batch_size, space.seq_len, kMostSequences));
    }
  }
  check_batch(space.global_batch_size);
}

void add_plan_words(CommandLine& line, PlanWords& words) {
  for (const PlanWord& word : kWords) {
    if (word.many != Many::per_job)
      add_single(line, word, words, word.key == "dp" ? "the rest" : "");
  }
}

void add_constraints(CommandLine& line, SearchSpace& space) {
  for (const PlanWord& word : kWords) {
    if (word.many != Many::per_job) add_constraint(line, word, space);
  }
}

ParallelPlan with_words(ParallelPlan plan, const PlanWords& words, const Recipe& recipe,
                        std::int64_t gpus, bool dp_stands) {
  for (const auto& [key, value] : words) plan = with_word(plan, key, value);
  if (!dp_stands && !given(words, "dp") && plan.world() != gpus) {
    // Where the other degrees do not divide the GPUs, the rule world_size says so.
    const std::int64_t others = std::int64_t{plan.tp} * plan.cp * plan.pp;
    plan.dp = static_cast<int>(std::max<std::int64_t>(1, gpus / others));
  }
  if (given(words, "vpp") && !given(words, "schedule")) {
    if (plan.vpp > 1 && plan.schedule == ScheduleKind::one_f_one_b) {
      plan.schedule = ScheduleKind::interleaved;
    } else if (plan.vpp == 1 && plan.schedule == ScheduleKind::interleaved) {
      plan.schedule = ScheduleKind::one_f_one_b;
    }
  }
  if (given(words, "tp") && !given(words, "sequence_parallel")) {
    plan.sequence_parallel = plan.tp > 1 && splits_sequence(recipe.kind);
  }
  plan.loss = loss_word(plan.loss, plan.deterministic, recipe);
  return plan;
}

std::vector<std::string_view> plan_option_keys() {
  std::vector<std::string_view> keys;
  for (const PlanWord& word : kWords) keys.push_back(word.key);
  return keys;
}

}  // namespace qplan
