#include "planner/frameworks/pretraining/nanotron.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "models/ascii.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/own_words.h"

namespace qplan {
namespace {

using P = ParallelPlan;

Json nothing(const Subject&) {
  return nullptr;
}

// src/nanotron/config/utils_config.py:103.
void set_engine(Draft& draft, const Json& value) {
  if (value.is_null()) return;  // afab, as where nobody says it
  const std::string engine = text_of(value);
  if (engine != "afab" && engine != "1f1b") refuse_word(engine, "1f1b, afab");
  draft.plan.schedule = engine == "1f1b" ? ScheduleKind::one_f_one_b : ScheduleKind::gpipe;
}

// TensorParallelLinearMode, in any case of letters.
void set_mode(Draft& draft, const Json& value) {
  if (value.is_null()) return;
  const std::string mode = lower_case(text_of(value));
  if (mode != "all_reduce" && mode != "reduce_scatter") {
    refuse_word(text_of(value), "ALL_REDUCE, REDUCE_SCATTER");
  }
  draft.plan.sequence_parallel = mode == "reduce_scatter";
}

void set_dtype(Draft& draft, const Json& value) {
  if (value.is_null()) return;
  const std::string type = text_of(value);
  if (type == "bfloat16") return;
  if (type == "float16") {
    draft.plan.precision = Precision::fp16;
  } else if (type == "float32") {
    draft.plan.precision = Precision::fp32;
  } else {
    refuse_word(type, "bfloat16, float16, float32");
  }
}

// src/nanotron/helpers.py:355.
void set_optimizer(Draft& draft, const Json& value) {
  const std::string name = text_of(value);
  if (name == "sgd") {
    draft.plan.optimizer = OptimizerKind::sgd;
  } else if (name != "adamW") {
    refuse_word(name, "adamW, sgd");
  }
}

constexpr auto kNanotronOptions = std::to_array<Option>({
    {"parallelism.dp", "dp", plan_value<&P::dp>, set_degree<&P::dp>},
    {"parallelism.pp", "pp", plan_value<&P::pp>, set_degree<&P::pp>},
    {"parallelism.tp", "tp", plan_value<&P::tp>, set_degree<&P::tp>},
    {"parallelism.context_parallel_size", "cp", plan_value<&P::cp>, set_degree<&P::cp>},
    {"parallelism.pp_engine", "schedule", nothing, set_engine},
    {"parallelism.tp_mode", "sequence_parallel", nothing, set_mode},
    {"parallelism.tp_linear_async_communication", "overlap", nothing,
     [](Draft& d, const Json& v) {
       if (!v.is_null() && truth_of(v)) d.plan.overlap.add(OverlapKind::tp);
     }},
    {"parallelism.recompute_layer", "recompute", nothing,
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.recompute.kind = RecomputeKind::full;
     }},
    {"tokens.sequence_length", "seq_len", plan_value<&P::seq_len>, set_count<&P::seq_len>},
    {"tokens.micro_batch_size", "micro_batch_size", plan_value<&P::micro_batch_size>,
     set_count<&P::micro_batch_size>},
    {"tokens.batch_accumulation_per_replica", "", nothing,
     [](Draft& d, const Json& v) { d.accumulation = whole_of(v, 1, std::int64_t{1} << 30); }},
    {"optimizer.zero_stage", "zero", plan_value<&P::zero>,
     [](Draft& d, const Json& v) { d.plan.zero = static_cast<int>(whole_of(v, 0, 3)); }},
    {"optimizer.accumulate_grad_in_fp32", "grad_dtype", nothing,
     [](Draft& d, const Json& v) { d.plan.grad_dtype = truth_of(v) ? DType::fp32 : DType::bf16; }},
    {"optimizer.optimizer_factory.name", "", nothing, set_optimizer},
    {"model.dtype", "precision", nothing, set_dtype},
});

constexpr std::string_view kOtherShape = "another shape than the model's is trained";

constexpr auto kNanotronFacts = std::to_array<Fact>({
    {"model.model_config.hidden_size", [](const Subject& s) { return Json(s.model.hidden_size); },
     "4096", Severity::error, kOtherShape},
    {"model.model_config.num_hidden_layers",
     [](const Subject& s) { return Json(s.model.num_layers); }, "32", Severity::error, kOtherShape},
    {"model.model_config.num_attention_heads",
     [](const Subject& s) { return Json(s.model.num_attention_heads); }, "32", Severity::error,
     kOtherShape},
    {"model.model_config.intermediate_size",
     [](const Subject& s) { return Json(s.model.intermediate_size); }, "11008", Severity::error,
     kOtherShape, nullptr, nullptr, [](const Subject& s) { return !s.model.moe.has_value(); }},
    {"model.model_config.tie_word_embeddings",
     [](const Subject& s) { return Json(s.model.tie_word_embeddings); }, "false", Severity::error,
     "the head is the embedding, or has weights of its own"},
});

constexpr auto kNanotronLimits = std::to_array<Limit>({
    {"checkpointing_of_nanotron",
     [](const Subject& s) {
       return s.plan.recompute.kind == RecomputeKind::selective || s.plan.recompute.layers > 0;
     },
     [](const Subject&) {
       return std::string("nanotron recomputes every layer or none; use recompute=full or none");
     }},
    {"layout_of_nanotron", [](const Subject& s) { return !s.plan.pipeline_layout.empty(); },
     [](const Subject&) {
       return std::string("nanotron places layers by their cost; leave pipeline_layout out");
     }},
});

std::int64_t shape(const Settings& yaml, std::string_view name, double otherwise) {
  const std::string key = fmt::format("model.model_config.{}", name);
  return static_cast<std::int64_t>(figure_of(yaml, key, otherwise));
}

// Starcoder2's, or one that a program brings ("is_mamba_config").
bool is_of_another_class(const Settings& yaml) {
  return std::any_of(yaml.begin(), yaml.end(), [](const Setting& setting) {
    constexpr std::string_view kBegin = "model.model_config.is_", kEnd = "_config";
    return setting.key.starts_with(kBegin) && setting.key.ends_with(kEnd) &&
           setting.key.find("is_llama") == std::string::npos &&
           setting.key.find("is_qwen2") == std::string::npos;
  });
}

}  // namespace

std::span<const Option> nanotron_options() {
  return kNanotronOptions;
}

std::span<const Fact> nanotron_facts() {
  return kNanotronFacts;
}

std::span<const Limit> nanotron_limits() {
  return kNanotronLimits;
}

void settle_nanotron(Draft& draft) {
  ParallelPlan& plan = draft.plan;
  plan.sequence_parallel = plan.sequence_parallel && plan.tp > 1;
  if (plan.tp == 1) plan.overlap.remove(OverlapKind::tp);
  if (plan.pp == 1) plan.schedule = ScheduleKind::one_f_one_b;
}

// The defaults are LlamaConfig's (src/nanotron/config/models_config.py). Heads that do not divide
// are an error of their own; the next fewer stand in for them.
Json config_of_nanotron(const Settings& yaml) {
  if (!yaml.has_section("model.model_config.")) return nullptr;
  if (is_of_another_class(yaml) || yaml.has_section("model.model_config.moe_config."))
    return nullptr;
  const std::int64_t hidden = shape(yaml, "hidden_size", 4096);
  const std::int64_t said_heads = shape(yaml, "num_attention_heads", 32);
  const bool none = shape(yaml, "num_hidden_layers", 32) < 1;
  if (none || hidden < 1 || said_heads < 1 || said_heads > hidden) return nullptr;
  std::int64_t heads = said_heads;
  while (hidden % heads != 0) --heads;
  std::int64_t groups = shape(yaml, "num_key_value_heads", static_cast<double>(heads));
  groups = std::max<std::int64_t>(1, std::min(groups, heads));
  while (heads % groups != 0) --groups;
  const bool biased = is_switched_on(yaml, "model.model_config.attention_bias");
  return {{"model_type", biased ? "qwen2" : "llama"},
          {"hidden_size", hidden},
          {"num_hidden_layers", shape(yaml, "num_hidden_layers", 32)},
          {"num_attention_heads", heads},
          {"num_key_value_heads", groups},
          {"head_dim", hidden / heads},
          {"intermediate_size", shape(yaml, "intermediate_size", 11008)},
          {"hidden_act", "silu"},
          {"max_position_embeddings", shape(yaml, "max_position_embeddings", 2048)},
          {"rope_theta", figure_of(yaml, "model.model_config.rope_theta", 10000)},
          {"tie_word_embeddings", is_switched_on(yaml, "model.model_config.tie_word_embeddings")},
          {"vocab_size", shape(yaml, "vocab_size", 32000)}};
}

std::optional<std::int64_t> ranks_of_nanotron(const Settings& yaml) {
  std::int64_t ranks = 1;
  for (const std::string_view name : {"dp", "pp", "tp", "context_parallel_size"}) {
    const Setting* const said = yaml.find(fmt::format("parallelism.{}", name));
    if (said == nullptr && name != "context_parallel_size") return std::nullopt;
    if (said == nullptr) continue;
    try {
      ranks *= degree_of(said->value);
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  return ranks;
}

}  // namespace qplan
