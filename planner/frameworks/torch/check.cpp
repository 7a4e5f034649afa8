// FullyShardedDataParallel in a user's own script, and accelerate's yaml.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "models/ascii.h"
#include "models/error.h"
#include "planner/frameworks/job_framework.h"
#include "planner/frameworks/readers/accelerate_keys.h"
#include "planner/frameworks/readers/python_syntax.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"
#include "planner/frameworks/text_places.h"
#include "planner/frameworks/torch/check_adapters.h"
#include "planner/frameworks/torch/check_machines.h"
#include "planner/frameworks/torch/check_script.h"
#include "planner/frameworks/torch/check_training.h"
#include "planner/frameworks/torch/python_names.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

using enum Severity;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Whether a file has a name from elsewhere than transformers: another library's class, or its own.
bool is_of_another(const std::string& text, const std::string& name) {
  for (const PythonImport& import : python_imports(text)) {
    const bool here =
        std::find(import.names.begin(), import.names.end(), name) != import.names.end();
    if (here && import.module.substr(0, import.module.find('.')) != "transformers") return true;
  }
  return contains(text, "class " + name);
}

// The strategy that a text names; empty: none of torch's.
std::string strategy_named(const std::string& text) {
  for (const std::string_view name : {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"}) {
    const bool quoted = text == fmt::format("\"{}\"", name) || text == fmt::format("'{}'", name);
    if (text == name || quoted) return std::string(name);
  }
  return "";
}

// Text or a number, where a name may hold whatever a run gives it.
bool is_literal(const Scene& scene, const Setting& setting) {
  const std::string& text = scene.text_of(setting.place.file);
  if (setting.text.begin >= text.size()) return false;
  const char first = text[setting.text.begin];
  return first == '"' || first == '\'' || is_digit(first);
}

// `ShardingStrategy.NAME`, by the way that the file calls FSDP itself, with its import.
Correction strategy_correction(const Scene& scene, const ConfigPart& part, const Setting& strategy,
                               const std::string& name) {
  Correction correction;
  const std::string& text = scene.text_of(strategy.place.file);
  const std::string raw = text.substr(std::min(strategy.text.begin, text.size()),
                                      strategy.text.end - strategy.text.begin);
  const bool is_text = raw == '"' + name + '"' || raw == "'" + name + "'";
  if (name.empty() || !is_text) {
    correction.why_not = "which strategy is meant is not certain";
    return correction;
  }
  const std::string callee = text_of(part.settings.find("FSDP")->value);
  const std::string module = callee.substr(0, callee.rfind('.') + 1);  // npos + 1: none
  if (module.empty()) {
    const ImportEdits import = import_of_fsdp(text, strategy.place.file, "ShardingStrategy");
    if (!import.found) {
      correction.why_not =
          "the file does not say where FSDP comes from, and so would its strategies";
      return correction;
    }
    correction = import.edits;
  }
  correction.push_back({strategy.place.file, strategy.text.begin, strategy.text.end,
                        module + "ShardingStrategy." + name});
  return correction;
}

void check_module(const Scene& scene, const ConfigPart& part, Findings& out) {
  const Settings& s = part.settings;
  const Setting* const strategy = s.find("FSDP.sharding_strategy");
  if (strategy != nullptr && is_literal(scene, *strategy)) {
    const std::string name = text_of(strategy->value);
    const bool grads = contains(name, "SHARD_GRAD_OP");
    const std::string named = strategy_named(name);
    out.push_back(
        {error, "sharding_strategy", strategy->place,
         fmt::format("sharding_strategy must be a ShardingStrategy, not the text {}{}", shown(name),
                     grads ? "; SHARD_GRAD_OP is ZeRO-2, FULL_SHARD is ZeRO-3" : ""),
         fmt::format("ShardingStrategy.{}", named.empty() ? "FULL_SHARD" : named),
         "PyTorch 2.11, torch/distributed/fsdp/api.py (ShardingStrategy)",
         strategy_correction(scene, part, *strategy, named)});
  }
  const Setting* const offload = s.find("FSDP.cpu_offload");
  if (offload != nullptr && contains(text_of(offload->value), "True")) {
    out.push_back(
        {note, "offload_everything", offload->place,
         "CPUOffload moves every sharded parameter, active or not, and the optimizer runs "
         "on the host",
         "leave it out where the shards fit",
         "PyTorch 2.11, torch/distributed/fsdp/api.py (CPUOffload)"});
  }
}

// torchtitan's loss over whole micro-batches, where parts of them are its default.
void check_loss(const Scene& scene, const PythonCall& call, Findings& out) {
  const PythonArgument* const loss = call.find("loss");
  if (loss == nullptr || !loss->text.starts_with(kWholeLoss)) return;
  ParallelPlan plan = scene.draft.plan;
  plan.loss = LossKind::by_framework;
  const ModelSpec& model = scene.question.model;
  const std::int64_t tokens = plan.micro_batch_size * plan.seq_len / plan.cp;
  const std::int64_t parts = torchtitan_loss_chunks(model, plan);
  if (parts == 1) return;
  // 16 bits each, and their gradient.
  const double logits =
      static_cast<double>(tokens) * static_cast<double>(model.vocab_size) / plan.tp;
  const Bytes more(4 * logits * static_cast<double>(parts - 1) / static_cast<double>(parts));
  out.push_back({note, "whole_loss", loss->place,
                 fmt::format("logits of a whole micro-batch are there at once, {:.1f} GiB more "
                             "than with {} parts of them one after the other",
                             more / gib(1), parts),
                 "ChunkedLossWrapper.Config(loss_fn=<this loss>)",
                 "torchtitan b5bcd76c, torchtitan/components/loss.py:501"});
}

// The class that loads the model, where the file names another one, with its import.
Correction class_correction(const Scene& scene, const PythonCall& call, const std::string& name) {
  const std::string& file = call.place.file;
  const ImportEdits import = import_lines(scene.text_of(file), file, {{"transformers", name}});
  Correction correction = import.edits;
  if (!import.found) {
    correction.clear();
    correction.why_not = "the file imports nothing, and the class needs an import";
    return correction;
  }
  const std::size_t end = call.name_span.begin + call.callee.rfind(".from_pretrained");
  correction.push_back({file, call.name_span.begin, end, name});
  return correction;
}

void check_calls(const Scene& scene, const PythonText& text, Findings& out) {
  for (const PythonCall& call : text.calls) {
    const std::string name = call.callee.substr(call.callee.rfind('.') + 1);
    if (scene.draft.recipe == RecipeKind::fsdp2_compile) check_loss(scene, call, out);
    if (name == "init_process_group") {
      const PythonArgument* const rank = call.find("rank");
      if (rank != nullptr &&
          (contains(rank->text, "local_rank") || contains(rank->text, "LOCAL_RANK"))) {
        const ImportEdits os =
            import_module(scene.text_of(rank->place.file), rank->place.file, "os");
        Correction fix = os.edits;
        fix.push_back(
            {rank->place.file, rank->span.begin, rank->span.end, "int(os.environ[\"RANK\"])"});
        if (!os.found) {
          fix.clear();
          fix.why_not = "the file imports nothing, and RANK is read by os";
        }
        out.push_back({error, "local_rank_as_rank", rank->place,
                       "ranks of all nodes get the same numbers: the rank of the world is RANK, "
                       "LOCAL_RANK counts inside a node",
                       "rank=int(os.environ[\"RANK\"]), or no rank at all",
                       "PyTorch 2.11, torch/distributed/run.py (RANK, LOCAL_RANK)",
                       std::move(fix)});
      }
    }
    if (name == "MixedPrecision") {
      const PythonArgument* const reduce = call.find("reduce_dtype");
      if (reduce != nullptr && contains(reduce->text, "bfloat16")) {
        Correction fix;
        fix.why_not = "it is slower by the bytes that it adds, and bf16 may be meant";
        out.push_back({warning, "reduce_dtype", reduce->place,
                       "gradients are summed over all ranks in bf16, which loses small ones",
                       "reduce_dtype=torch.float32",
                       "torchtitan b5bcd76c, torchtitan/config/configs.py:102 (float32 alone)",
                       std::move(fix)});
      }
    }
    if (name == "partial" && !call.arguments.empty() &&
        contains(call.arguments.front().text, "size_based_auto_wrap_policy")) {
      out.push_back({warning, "wrap_by_size", call.place,
                     "units cut by size may split layers; one decoder layer is the natural unit",
                     "transformer_auto_wrap_policy with the decoder layer's class",
                     "PyTorch 2.11, torch/distributed/fsdp/wrap.py"});
    }
    // A class that transformers has not.
    const std::size_t dot = call.callee.rfind(".from_pretrained");
    const auto wanted = scene.question.config.find("architectures");
    if (dot != std::string::npos && wanted != scene.question.config.end() && !wanted->empty()) {
      const std::string owner = call.callee.substr(0, dot);
      const bool plausible = owner.starts_with("Auto") || contains(owner, "For") ||
                             owner.ends_with("Model") || contains(owner, "Tokenizer") ||
                             contains(owner, "Processor") || owner.ends_with("Config") ||
                             contains(owner, "FeatureExtractor") || owner.empty() ||
                             owner[0] < 'A' || owner[0] > 'Z';
      if (!plausible && !is_of_another(scene.text_of(call.place.file), owner)) {
        out.push_back({error, "model_class", call.place,
                       fmt::format("transformers has no class {}", shown(owner)),
                       fmt::format("{}", text_of(wanted->front())),
                       "transformers 5.23.0, models/auto/modeling_auto.py",
                       class_correction(scene, call, text_of(wanted->front()))});
      }
    }
  }
}

// A step is whole rounds of every rank's micro-batches.
void check_tokens(const Scene& scene, Findings& out) {
  const Draft& draft = scene.draft;
  const KnownOption* const unsaid =
      known_options("torchtitan").find("training.num_tokens_per_microbatch_per_dp_rank");
  if (!draft.train_tokens || unsaid == nullptr) return;
  const std::int64_t micro = draft.microbatch_tokens.value_or(whole_of(Json(unsaid->otherwise), 1));
  const std::int64_t round = micro * draft.plan.dp;
  if (round == 0 || *draft.train_tokens % round == 0) return;
  const auto at = scene.said.find("global_batch_size");
  out.push_back({error,
                 "tokens_a_step",
                 at == scene.said.end() ? Place{} : at->second,
                 fmt::format("{} tokens a step are no multiple of {} a micro-batch x {} ranks = {}",
                             *draft.train_tokens, micro, draft.plan.dp, round),
                 fmt::format("a multiple of {}", round),
                 "torchtitan b5bcd76c, torchtitan/trainer.py (num_tokens_per_train_step)",
                 {}});
}

bool is_on(const Settings& s, std::string_view key) {
  const Setting* const found = s.find(key);
  return found != nullptr && same_value(found->value, Json(true));
}

// What accelerate's plug-in for FSDP and its launcher ask of the yaml's keys together.
void check_keys_together(const Scene& scene, const ConfigPart& part, Findings& out) {
  const Settings& s = part.settings;
  const Setting* const offload = s.find("fsdp_config.fsdp_activation_checkpointing_offload");
  if (is_on(s, "fsdp_config.fsdp_activation_checkpointing_offload") &&
      !is_on(s, "fsdp_config.fsdp_activation_checkpointing")) {
    out.push_back({error,
                   "option_needs",
                   offload->place,
                   "fsdp_activation_checkpointing_offload needs fsdp_activation_checkpointing",
                   "fsdp_activation_checkpointing: true",
                   "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py",
                   {}});
  }
  if (is_on(s, "fsdp_config.fsdp_activation_checkpointing_offload") && !is_fsdp2(s)) {
    out.push_back({error,
                   "option_needs",
                   offload->place,
                   "fsdp_activation_checkpointing_offload needs FSDP2: accelerate stops",
                   "fsdp_version: 2",
                   "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py",
                   {}});
  }
  const Setting* const sync = s.find("fsdp_config.fsdp_sync_module_states");
  if (is_on(s, "fsdp_config.fsdp_cpu_ram_efficient_loading") && sync != nullptr &&
      same_value(sync->value, Json(false))) {
    out.push_back({error,
                   "option_needs",
                   sync->place,
                   "fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: the ranks that "
                   "load nothing get their weights by it",
                   "fsdp_sync_module_states: true",
                   "accelerate 16cb6eb8, src/accelerate/commands/launch.py",
                   {}});
  }
  const bool launched = std::any_of(
      scene.files.launches.begin(), scene.files.launches.end(), [](const Launch& launch) {
        return launch.program == "accelerate" && launch.options.has("--config_file");
      });
  const bool counted =
      s.has("num_processes") || std::any_of(scene.files.launches.begin(),
                                            scene.files.launches.end(), [](const Launch& launch) {
                                              return launch.options.has("--num_processes") ||
                                                     launch.options.has("--num-processes");
                                            });
  if (launched && !counted && !is_of_one_process(s)) {
    out.push_back({error,
                   "no_processes",
                   part.place,
                   "num_processes is neither in the yaml nor among the launcher's arguments, and "
                   "accelerate stops",
                   "num_processes: the GPUs of all nodes",
                   "accelerate 16cb6eb8, src/accelerate/commands/launch.py (num_processes)",
                   {}});
  }
}

// FSDP2 reads fsdp_reshard_after_forward. FSDP1 does not: its plug-in asks for it only where no
// strategy is set, and one always is.
void check_resharding(const Scene& scene, const Settings& s, Findings& out) {
  const Setting* const reshard = s.find("fsdp_config.fsdp_reshard_after_forward");
  if (reshard == nullptr || is_replicated(s)) return;
  const std::string written = text_of(reshard->value);
  const bool on = same_value(reshard->value, Json(true));
  const bool off = same_value(reshard->value, Json(false));
  if (is_fsdp2(s)) {
    if (on || off) return;
    out.push_back({error, "reshard_is_boolean", reshard->place,
                   fmt::format("FSDP2 takes true or false, not {}", shown(written)),
                   "true (ZeRO-3) or false",
                   "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py:1869",
                   with_value(scene, *reshard, "true")});
    return;
  }
  const std::string strategy = fsdp1_strategy(s);
  const bool keeps = strategy == "SHARD_GRAD_OP" || strategy == "HYBRID_SHARD_ZERO2";
  if (same_value(reshard->value, Json(strategy)) || (on && !keeps) || (off && keeps)) return;
  out.push_back(
      {warning, "reshard_of_fsdp2", reshard->place,
       fmt::format("FSDP1 does not read fsdp_reshard_after_forward ({} here): "
                   "fsdp_sharding_strategy says how it shards, and is {}",
                   shown(written),
                   s.has("fsdp_config.fsdp_sharding_strategy") ? shown(strategy)
                                                               : strategy + ", for nobody says it"),
       "fsdp_sharding_strategy, or fsdp_version: 2",
       "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py "
       "(FullyShardedDataParallelPlugin)"});
}

// FSDP1's strategy by a name that torch's ShardingStrategy has not.
void check_strategy(const Scene& scene, const Settings& s, Findings& out) {
  static const std::vector<std::string> kStrategies{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
                                                    "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
  const Setting* const said = s.find("fsdp_config.fsdp_sharding_strategy");
  if (said == nullptr || !said->resolved || is_fsdp2(s)) return;
  if (distributed_type_of(s).meant != "FSDP") return;
  const std::string strategy = fsdp1_strategy(s);
  const bool known =
      std::find(kStrategies.begin(), kStrategies.end(), strategy) != kStrategies.end();
  if (known || strategy.empty() || same_value(said->value, Json("_HYBRID_SHARD_ZERO2"))) return;
  const std::string meant = certain_choice(strategy, kStrategies);
  out.push_back({error, "refused_value", said->place,
                 fmt::format("fsdp_sharding_strategy is {}, and must be one of {}, or its number",
                             shown(strategy), fmt::join(kStrategies, ", ")),
                 "", "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py:1845",
                 meant.empty() ? Correction{} : with_value(scene, *said, meant)});
}

// A line without its indentation, where the section ends with it.
Correction at_the_left(const Scene& scene, const Setting& setting) {
  Correction none;
  none.why_not = "other keys of the section stand behind it";
  const std::string& text = scene.text_of(setting.place.file);
  if (is_empty(setting.name) || setting.name.end > text.size()) return none;
  const Span line = line_at(text, setting.name.begin);
  std::size_t next = next_line(text, setting.name.begin);
  while (next < text.size() && is_blank(cut(text, line_at(text, next)))) {
    next = next_line(text, next);
  }
  const bool ends = next >= text.size() || kBlanks.find(text[next]) == std::string_view::npos;
  if (!ends || !is_blank(cut(text, {line.begin, setting.name.begin}))) return none;
  return Correction{{setting.place.file, line.begin, setting.name.begin, ""}};
}

// accelerate has no default of it. What stands under another name is found as that name.
void check_type(const Scene& scene, const ConfigPart& part, Findings& out) {
  constexpr std::string_view kType = "distributed_type";
  const DistributedType type = distributed_type_of(part.settings);
  if (part.settings.has(kType) || part.place.line > 0) return;
  if (type.said != nullptr && type.said->key.find('.') == std::string::npos) return;
  const bool indented = type.said != nullptr;
  Finding finding{error,
                  "missing_option",
                  indented ? type.said->place : part.place,
                  indented ? fmt::format("{} stands within a section, and accelerate stops: it is "
                                         "read outside of all",
                                         type.said->key)
                           : "distributed_type is missing, and accelerate stops",
                  indented ? "indent it as the sections are" : "",
                  "accelerate 16cb6eb8, src/accelerate/commands/config/config_args.py "
                  "(process_config)",
                  {}};
  if (indented) finding.fix = at_the_left(scene, *type.said);
  if (!indented && type.meant.empty()) {
    finding.instead = "distributed_type: FSDP, DEEPSPEED or MULTI_GPU, whichever is meant";
    finding.fix.why_not = "which type is meant is not certain";
  } else if (!indented) {
    finding.instead = fmt::format("add distributed_type: {}", type.meant);
    finding.fix = added(scene, part, fmt::format("{} {}", kType, type.meant));
  }
  out.push_back(std::move(finding));
}

void check_accelerate(const Scene& scene, const ConfigPart& part, Findings& out) {
  const Settings& s = part.settings;
  check_keys_together(scene, part, out);
  const Setting* const type = distributed_type_of(s).said;
  const bool alone = is_of_one_process(s);
  if (is_replicated(s) && !alone) {
    out.push_back({note, "replicated", type->place,
                   "MULTI_GPU is DDP: every GPU holds all weights, gradients and moments",
                   "distributed_type: FSDP with an fsdp_config shards them",
                   "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py:610"});
  }
  if (alone && scene.question.limits.gpus > 1) {
    out.push_back({error, "launched_world", type->place,
                   fmt::format("distributed_type NO starts one process, not the job's {}",
                               scene.question.limits.gpus),
                   "distributed_type: FSDP with an fsdp_config, or MULTI_GPU",
                   "accelerate 16cb6eb8, src/accelerate/commands/launch.py (simple_launcher)"});
  }
  const bool second = is_fsdp2(s);
  check_resharding(scene, s, out);
  check_strategy(scene, s, out);
  const Setting* const forward = s.find("fsdp_config.fsdp_forward_prefetch");
  if (forward != nullptr && second) {
    out.push_back({note, "no_forward_prefetch", forward->place,
                   "fsdp_forward_prefetch is FSDP1's word and not read for FSDP2", "leave it out",
                   "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py:1953"});
  }
  const Setting* const strategy = s.find("fsdp_config.fsdp_sharding_strategy");
  if (strategy != nullptr && second) {
    out.push_back({note, "old_sharding_strategy", strategy->place,
                   "fsdp_sharding_strategy is FSDP1's word and ignored by FSDP2",
                   "fsdp_reshard_after_forward",
                   "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py:1833"});
  }
  const bool parallel = s.has_section("parallelism_config.");
  if (parallel && !second) {
    out.push_back({error, "parallelism_needs_fsdp2", part.place,
                   "parallelism_config goes with FSDP2 alone", "fsdp_version: 2",
                   "accelerate 16cb6eb8, src/accelerate/commands/launch.py:1206"});
  }
  const Setting* const processes = s.find("num_processes");
  if (processes != nullptr && scene.question.limits.gpus > 0 && !alone &&
      !same_value(processes->value, Json(scene.question.limits.gpus))) {
    out.push_back({error, "launched_world", processes->place,
                   fmt::format("num_processes counts the GPUs of all nodes: {}, not the job's {}",
                               text_of(processes->value), scene.question.limits.gpus),
                   fmt::format("num_processes: {}", scene.question.limits.gpus),
                   "accelerate 16cb6eb8, src/accelerate/commands/config/config_args.py:180",
                   with_value(scene, *processes, fmt::format("{}", scene.question.limits.gpus))});
  }
  const Json ranks = processes != nullptr ? processes->value : Json(scene.question.limits.gpus);
  // What axolotl makes of its degrees is checked by its own arithmetic.
  const bool of_axolotl = part.derived && scene.files.find(Dialect::axolotl) != nullptr;
  if (!parallel || of_axolotl || same_value(ranks, Json(0))) return;
  std::int64_t product = 1;
  for (const std::string_view degree : {"dp_replicate", "dp_shard", "tp", "cp", "sp"}) {
    const Setting* const size =
        s.find(fmt::format("parallelism_config.parallelism_config_{}_size", degree));
    if (size != nullptr) product *= whole_of(size->value, 1, 1 << 20);
  }
  if (!same_value(ranks, Json(product))) {
    out.push_back(
        {error, "mesh_product", processes != nullptr ? processes->place : part.place,
         fmt::format("the degrees of parallelism_config multiply to {}, not to {}", product,
                     processes != nullptr
                         ? fmt::format("num_processes {}", text_of(processes->value))
                         : fmt::format("the job's {} GPUs", text_of(ranks))),
         "", "accelerate 16cb6eb8, src/accelerate/parallelism_config.py:372"});
  }
}

}  // namespace

void check_torch(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect == Dialect::own_script) check_module(scene, part, out);
    // What NeMo AutoModel and torchtune do of it is no file of accelerate's.
    const bool of_nemo = part.derived && (scene.files.find(Dialect::automodel) != nullptr ||
                                          scene.files.find(Dialect::torchtune) != nullptr);
    if (part.dialect != Dialect::accelerate || of_nemo) continue;
    if (!part.derived) check_type(scene, part, out);
    if (!part.derived) check_machines(scene, part, out);
    if (has_names_alone(part)) continue;
    try {
      check_accelerate(scene, part, out);
    } catch (const Error& problem) {
      out.push_back({error, "bad_value", part.place, problem.what(), "", ""});
    }
  }
  check_own_script(scene, out);
  // Files that start nothing are not judged as a job.
  if (framework_of(scene.files) || scene.files.find(Dialect::trainer) != nullptr) {
    check_adapters(scene, out);
    check_training(scene, out);
  }
  const ConfigPart* const titan = scene.files.find(Dialect::torchtitan);
  if (titan != nullptr && !titan->derived) check_tokens(scene, out);
  for (const PythonText& text : scene.files.python) check_calls(scene, text, out);
}

}  // namespace qplan
