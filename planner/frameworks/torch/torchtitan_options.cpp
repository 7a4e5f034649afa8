#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "models/program/blocks.h"
#include "models/program/loss.h"
#include "planner/frameworks/own_words.h"
#include "planner/frameworks/torch/fsdp_mesh.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

using namespace fsdp;
using P = ParallelPlan;

constexpr std::array<std::pair<ScheduleKind, std::string_view>, 4> kSchedules{
    {{ScheduleKind::gpipe, "GPipe"},
     {ScheduleKind::one_f_one_b, "1F1B"},
     {ScheduleKind::interleaved, "Interleaved1F1B"},
     {ScheduleKind::zbv, "ZBVZeroBubble"}}};

Json schedule_name(const Subject& s) {
  for (const auto& [kind, name] : kSchedules) {
    if (kind == s.plan.schedule) return if_true(s.plan.pp > 1, std::string(name));
  }
  return nullptr;
}

// In any case of letters, as PyTorch looks them up (torch/distributed/pipelining/schedules.py,
// get_schedule_class).
void set_schedule(Draft& draft, const Json& value) {
  const std::string given = text_of(value);
  for (const auto& [kind, name] : kSchedules) {
    if (same_value(given, std::string(name))) {
      draft.plan.schedule = kind;
      return;
    }
  }
  throw Error(
      fmt::format("'{}' is a schedule that qplan does not price; it knows GPipe, 1F1B, "
                  "Interleaved1F1B and ZBVZeroBubble",
                  shown(given)));
}

// [["tok_embeddings", "layers.0"], ["layers.1", "norm", "lm_head"]]
Json module_names(const Subject& s) {
  if (s.plan.pipeline_layout.empty()) return nullptr;
  Json parts = Json::array();
  int layer = 0;
  const std::size_t count = s.plan.pipeline_layout.size();
  for (std::size_t i = 0; i < count; ++i) {
    Json part = Json::array();
    if (i == 0) part.push_back("tok_embeddings");
    for (int j = 0; j < s.plan.pipeline_layout[i]; ++j) {
      part.push_back(fmt::format("layers.{}", layer++));
    }
    if (i + 1 == count) {
      part.push_back("norm");
      part.push_back("lm_head");
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

void set_modules(Draft& draft, const Json& value) {
  draft.plan.pipeline_layout.clear();
  if (!value.is_array()) return;
  for (const Json& part : value) {
    const auto names = list_of(part);
    draft.plan.pipeline_layout.push_back(
        static_cast<int>(std::count_if(names.begin(), names.end(), [](const std::string& name) {
          return name.starts_with("layers.");
        })));
  }
}

constexpr auto kTorchtitan = std::to_array<Option>({
    {"parallelism.data_parallel_replicate_degree", "fsdp_shard",
     [](const Subject& s) { return Json(dp_replicate(s.plan)); }, set_copies},
    {"parallelism.data_parallel_shard_degree", "dp",
     [](const Subject& s) { return Json(dp_shard(s.plan)); },
     [](Draft& d, const Json& v) {
       const auto degree = whole_of(v, -1, 1 << 20);
       if (degree == 0) throw Error("must be -1 or at least 1");
       d.plan.dp = degree > 0 ? static_cast<int>(degree) : 0;  // 0: what is left of the world
     }},
    {"parallelism.fsdp_reshard_after_forward", "zero",
     [](const Subject& s) { return Json(s.plan.zero == 3 ? "always" : "never"); },
     [](Draft& d, const Json& v) {
       const std::string policy = text_of(v);
       // "default" keeps parameters gathered under a pipeline, and there alone.
       d.plan.zero = policy == "never" || (policy == "default" && d.plan.pp > 1) ? 2 : 3;
     }},
    {"parallelism.tensor_parallel_degree", "tp", plan_value<&P::tp>, set_degree<&P::tp>},
    {"parallelism.enable_sequence_parallel", "sequence_parallel",
     [](const Subject& s) { return if_true(s.plan.tp > 1, s.plan.sequence_parallel); },
     [](Draft& d, const Json& v) { d.plan.sequence_parallel = truth_of(v); }},
    {"parallelism.context_parallel_degree", "cp", plan_value<&P::cp>, set_degree<&P::cp>},
    {"parallelism.expert_parallel_degree", "ep", plan_value<&P::ep>, set_degree<&P::ep>},
    {"parallelism.pipeline_parallel_degree", "pp", plan_value<&P::pp>, set_degree<&P::pp>},
    {"parallelism.pipeline_parallel_schedule", "schedule", schedule_name, set_schedule},
    {"parallelism.pipeline_parallel_layers_per_stage", "vpp",
     [](const Subject& s) {
       return if_true(s.plan.pp > 1 && s.plan.pipeline_layout.empty(),
                      s.model.num_layers / (s.plan.pp * s.plan.vpp));
     },
     [](Draft& d, const Json& v) {
       if (!v.is_null()) d.layers_per_virtual_stage = degree_of(v);
     }},
    {"parallelism.pipeline_parallel_first_stage_less_layers", "",
     [](const Subject& s) { return if_true(s.plan.pp > 1, 0); }, [](Draft&, const Json&) {}},
    {"parallelism.pipeline_parallel_last_stage_less_layers", "",
     [](const Subject& s) { return if_true(s.plan.pp > 1, 0); }, [](Draft&, const Json&) {}},
    {"parallelism.module_fqns_per_model_part", "pipeline_layout", module_names, set_modules},
    {"parallelism.num_pp_microbatches", "",
     [](const Subject& s) { return if_true(s.plan.pp > 1, s.plan.num_microbatches()); },
     [](Draft& d, const Json& v) { d.accumulation = whole_of(v, 1, std::int64_t{1} << 30); }},
    {"training.max_context_length", "seq_len", plan_value<&P::seq_len>, set_count<&P::seq_len>},
    {"training.num_tokens_per_microbatch_per_dp_rank", "micro_batch_size",
     [](const Subject& s) { return Json(s.plan.micro_batch_size * s.plan.seq_len); },
     [](Draft& d, const Json& v) { d.microbatch_tokens = whole_of(v, 1); }},
    {"training.num_tokens_per_train_step", "global_batch_size",
     [](const Subject& s) { return Json(s.plan.global_batch_size * s.plan.seq_len); },
     [](Draft& d, const Json& v) {
       if (whole_of(v, -1) == 0) throw Error("must be -1 or above 0");
       if (whole_of(v, -1) > 0) d.train_tokens = whole_of(v, 1);
     }},
    {"training.mixed_precision_param", "precision", [](const Subject&) { return Json("bfloat16"); },
     [](Draft&, const Json&) {}},
    // Of its TOML: what they make of products' formats.
    {"model.converters", "precision", [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) { d.plan.precision = from_word<Precision>(text_of(v)); }},
    {"training.enable_cpu_offload", "offload", [](const Subject& s) { return Json(offloads(s)); },
     [](Draft& d, const Json& v) {
       d.plan.offload.params = truth_of(v);
       d.plan.offload.optimizer = truth_of(v) ? 1 : 0;
     }},
    {"training.disable_cuda_graphs", "cuda_graph",
     [](const Subject& s) { return Json(!s.plan.cuda_graph); },
     [](Draft& d, const Json& v) { d.plan.cuda_graph = !truth_of(v); }},
    {"loss", "loss",
     [](const Subject& s) {
       return Json(torchtitan_loss_chunks(s.model, s.plan) > 1 ? kLossInChunks : kWholeLoss);
     },
     [](Draft& d, const Json& v) {
       const std::string name = text_of(v);
       if (name == kLossInChunks) d.plan.loss = LossKind::chunked;
       if (name == kWholeLoss) d.plan.loss = LossKind::compiled;
     }},
    {"compile.enable", "compile", [](const Subject& s) { return Json(s.plan.compile); },
     [](Draft& d, const Json& v) { d.plan.compile = truth_of(v); }},
    {"compile.enable_async_tensor_parallel", "overlap",
     [](const Subject& s) { return if_true(s.plan.overlap.has(OverlapKind::tp)); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.overlap.add(OverlapKind::tp);
     }},
    {"activation_checkpoint", "recompute",
     [](const Subject& s) {
       switch (s.plan.recompute.kind) {
         case RecomputeKind::full:
           return Json("FullAC");
         case RecomputeKind::selective:
           return Json("SelectiveAC");
         case RecomputeKind::none:
           break;
       }
       return Json("None");
     },
     [](Draft& d, const Json& v) {
       const std::string name = v.is_null() ? "None" : text_of(v);
       d.plan.recompute.kind = name.starts_with("Full")        ? RecomputeKind::full
                               : name.starts_with("Selective") ? RecomputeKind::selective
                                                               : RecomputeKind::none;
     }},
    {"moe_comm_backend", "moe_dispatcher",
     [](const Subject& s) {
       const MoeDispatcher d = s.plan.moe_dispatcher;
       return if_true(s.model.moe.has_value(), d == MoeDispatcher::alltoall
                                                   ? std::string("standard")
                                                   : std::string(to_word(d)));
     },
     [](Draft& d, const Json& v) {
       // torchtitan's own words (models/common/config_utils.py:388 at b5bcd76c).
       const std::string name = text_of(v);
       const bool copies = name == "minimal_async_ep";
       if (copies) {
         d.assumed.emplace_back(
             "experts' exchanges as all-to-alls: minimal_async_ep's copies are not predicted");
       }
       if (name == "deepep" || name == "hybridep") {
         d.plan.moe_dispatcher = from_word<MoeDispatcher>(name);
       } else if (name == "standard" || copies) {
         d.plan.moe_dispatcher = MoeDispatcher::alltoall;
       } else {
         refuse_word(name, "standard, deepep, hybridep, minimal_async_ep");
       }
     }},
});

constexpr auto kModels = std::to_array<TorchtitanModel>({
    {"deepseek-v2", "deepseek_v3", "236B", 16384},
    {"deepseek-v3", "deepseek_v3", "671B", 16384, "", true},
    {"gpt-oss-20b", "gpt_oss", "20b", 131072, "flex"},
    {"gpt-oss-120b", "gpt_oss", "120b", 131072, "flex"},
    {"qwen3-0.6b", "qwen3", "0.6B", 40960},
    {"qwen3-1.7b", "qwen3", "1.7B", 40960},
    {"qwen3-4b", "qwen3", "4B", 40960},
    {"qwen3-8b", "qwen3", "8B", 40960},
    {"qwen3-14b", "qwen3", "14B", 40960},
    {"qwen3-32b", "qwen3", "32B", 40960},
    {"qwen3-30b-a3b", "qwen3", "30B-A3B", 40960},
    {"qwen3-235b-a22b", "qwen3", "235B-A22B", 40960},
    {"llama3-8b", "llama3", "8B", 131072},
    {"llama3-70b", "llama3", "70B", 131072},
    {"llama3-405b", "llama3", "405B", 131072},
});

constexpr auto kTorchtitanLimits = std::to_array<Limit>({
    {"torchtitan_model", [](const Subject& s) { return torchtitan_model(s.model.name) == nullptr; },
     [](const Subject& s) {
       const bool other = s.model.moe && s.model.moe->scales_inputs;  // fsdp2 refuses it, too
       return fmt::format("torchtitan has no configuration of {} that qplan knows{}", s.model.name,
                          other ? "" : "; use fsdp2");
     },
     Asks::model},
    // models/common/decoder.py:222.
    {"torchtitan_positions",
     [](const Subject& s) {
       const TorchtitanModel* const model = torchtitan_model(s.model.name);
       return model != nullptr && s.plan.seq_len > model->most_tokens;
     },
     [](const Subject& s) {
       return fmt::format(
           "torchtitan's configuration of {} has positions for {} tokens; use "
           "seq_len {} or less",
           s.model.name, torchtitan_model(s.model.name)->most_tokens,
           torchtitan_model(s.model.name)->most_tokens);
     }},
    {"fp32_shards", [](const Subject& s) { return !fp32_states(s); }, fp32_only},
    {"fsdp_overlap",
     [](const Subject& s) {
       EnumSet<OverlapKind> rest = s.plan.overlap;
       rest.remove(OverlapKind::tp);
       return rest != fsdp_overlap() || (s.plan.overlap.has(OverlapKind::tp) && !s.plan.compile);
     },
     [](const Subject&) {
       return std::string(
           "torchtitan prefetches and reduces behind compute; use overlap=grad,param, "
           "and tp with compile");
     }},
    {"precision_of_torchtitan",
     [](const Subject& s) { return s.plan.precision != Precision::bf16; },
     [](const Subject& s) {
       return fmt::format("qplan writes torchtitan's configuration for bf16, not {}",
                          to_word(s.plan.precision));
     }},
    {"gathered_sequences",
     [](const Subject& s) { return s.plan.cp > 1 && s.plan.cp_comm != CpComm::all_gather; },
     [](const Subject&) {
       return std::string("torchtitan gathers keys and values (cp_comm=all_gather)");
     }},
    {"loss_of_torchtitan",
     [](const Subject& s) {
       return s.plan.loss == LossKind::eager || s.plan.loss == LossKind::narrow;
     },
     [](const Subject&) {
       return std::string(
           "qplan writes torchtitan's loss compiled with the model; use loss chunked or compiled");
     }},
    {"shards_of_mesh", shards_unevenly, whole_shards},
    {"stages_of_torchtitan",
     [](const Subject& s) {
       return s.plan.pp > 1 && s.plan.pipeline_layout.empty() &&
              s.model.num_layers % (s.plan.pp * s.plan.vpp) != 0;
     },
     [](const Subject& s) {
       return fmt::format(
           "{} layers do not divide into pp {} x vpp {} stages; give a "
           "pipeline_layout",
           s.model.num_layers, s.plan.pp, s.plan.vpp);
     }},
    {"checkpointing_of_torchtitan",
     [](const Subject& s) {
       return !s.plan.recompute.modules.empty() || s.plan.recompute.layers > 0;
     },
     [](const Subject& s) {
       return fmt::format(
           "torchtitan checkpoints by its own choice of ops or every layer; use "
           "recompute=selective or full, not {}",
           to_string(s.plan.recompute));
     }},
    {"dispatcher_of_torchtitan",
     [](const Subject& s) { return s.plan.moe_dispatcher == MoeDispatcher::allgather; },
     [](const Subject&) {
       return std::string("torchtitan exchanges tokens by alltoall, deepep or hybridep");
     }},
    {"graphs_of_torchtitan",
     [](const Subject& s) {
       return s.plan.cuda_graph && s.plan.cuda_graph_scope != CudaGraphScope::full;
     },
     [](const Subject&) {
       return std::string(
           "torchtitan captures forward and backward whole; use "
           "cuda_graph_scope=full");
     }},
});

}  // namespace

std::span<const Option> torchtitan_options() {
  return kTorchtitan;
}

std::span<const Limit> torchtitan_limits() {
  return kTorchtitanLimits;
}

void settle_torchtitan(Draft& draft, const ModelSpec& model, const Settings& settings,
                       std::int64_t gpus) {
  ParallelPlan& p = draft.plan;
  set_shards(draft, gpus);
  if (!settings.has("parallelism.fsdp_reshard_after_forward")) p.zero = p.pp > 1 ? 2 : 3;
  p.sequence_parallel = p.sequence_parallel && p.tp > 1;
  if (p.cp > 1) p.cp_comm = CpComm::all_gather;
  if (!p.pipeline_layout.empty()) {
    p.vpp = std::max(1, static_cast<int>(p.pipeline_layout.size()) / p.pp);
  } else if (draft.layers_per_virtual_stage && p.pp > 1) {
    const auto stages =
        (model.num_layers + *draft.layers_per_virtual_stage - 1) / *draft.layers_per_virtual_stage;
    p.vpp = std::max(1, static_cast<int>(stages / p.pp));
  } else if (p.pp > 1 &&
             (p.schedule == ScheduleKind::interleaved || p.schedule == ScheduleKind::zbv)) {
    p.vpp = 2;
  }
  if (p.pp == 1) p.schedule = ScheduleKind::one_f_one_b;
  if (draft.microbatch_tokens) {
    p.micro_batch_size = std::max<std::int64_t>(1, *draft.microbatch_tokens / p.seq_len);
  }
  if (draft.train_tokens) {
    p.global_batch_size = std::max<std::int64_t>(1, *draft.train_tokens / p.seq_len);
  } else {
    p.global_batch_size =
        p.micro_batch_size * p.dp * (p.pp > 1 ? draft.accumulation.value_or(1) : 1);
  }
  draft.accumulation.reset();
  // The whole loss is what is left where parts do not divide the tokens.
  ParallelPlan unsaid = p;
  unsaid.loss = LossKind::by_framework;
  const bool whole = torchtitan_loss_chunks(model, unsaid) == 1;
  p.loss = whole ? LossKind::by_framework
                 : loss_word(p.loss, p.deterministic, recipe_of(RecipeKind::fsdp2_compile));
}

const TorchtitanModel* torchtitan_model(std::string_view model) {
  const auto* const found =
      std::find_if(kModels.begin(), kModels.end(),
                   [&](const TorchtitanModel& known) { return known.model == model; });
  return found == kModels.end() ? nullptr : found;
}

const TorchtitanModel* torchtitan_model_of(std::string_view module, std::string_view flavor) {
  const auto* const found = std::find_if(
      kModels.begin(), kModels.end(),
      [&](const TorchtitanModel& m) { return m.module == module && m.flavor == flavor; });
  return found == kModels.end() ? nullptr : found;
}

std::int64_t torchtitan_loss_chunks(const ModelSpec& model, const ParallelPlan& plan) {
  const std::int64_t tokens = plan.micro_batch_size * plan.seq_len / plan.cp;
  const Recipe& recipe = recipe_of(RecipeKind::fsdp2_compile);
  return loss_parts(model, traits_of(plan.loss, recipe), tokens).count;
}

}  // namespace qplan
