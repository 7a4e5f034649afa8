// Option by option: is there one of that name, and does it take this value?

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "models/edit_distance.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/option_value.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

// What people write, and what there is. An empty name: nothing of the kind exists.
struct Alias {
  std::string_view written, real, remark;
};

constexpr auto kMegatronAliases = std::to_array<Alias>({
    {"--head-size", "--kv-channels", ""},
    {"--head-dim", "--kv-channels", ""},
    {"--experts-per-tok", "--moe-router-topk", ""},
    {"--num-experts-per-tok", "--moe-router-topk", ""},
    {"--moe-top-k", "--moe-router-topk", ""},
    {"--expert-capacity-factor", "--moe-expert-capacity-factor",
     "; Qwen and DeepSeek train without one, for it drops tokens"},
    {"--router-aux-loss-coef", "--moe-aux-loss-coeff", ""},
    {"--aux-loss-coeff", "--moe-aux-loss-coeff", ""},
    {"--warmup-steps", "--lr-warmup-iters", ""},
    {"--nccl-timeout", "--distributed-timeout-minutes", ", in minutes"},
    {"--save-dir", "--save", ""},
    {"--checkpoint-dir", "--save", ""},
    {"--fp8", "--fp8-format", ""},
    {"--fake-init-process-group", "--fake-process-group", ""},
    {"--overlap-p2p-comm", "--overlap-p2p-communication-warmup-flush", ""},
    {"--grad-reduce-in-fp32", "--accumulate-allreduce-grads-in-fp32", ""},
    {"--offload-optimizer", "",
     "; DeepSpeed reads it from ds_config.json, Megatron-LM has "
     "--optimizer-cpu-offload"},
    {"--offload_optimizer", "",
     "; DeepSpeed reads it from ds_config.json, Megatron-LM has "
     "--optimizer-cpu-offload"},
    {"--offload-param", "", "; DeepSpeed reads it from ds_config.json"},
    {"--offload_param", "", "; DeepSpeed reads it from ds_config.json"},
    {"--zero-stage", "", "; Megatron-LM shards by --use-distributed-optimizer"},
    {"--pipeline-model-parallel-split-rank", "",
     "; it split encoders from decoders, is gone, and never placed stages on nodes"},
    {"--model-parallel-size", "--tensor-model-parallel-size", ""},
    {"--batch-size", "--micro-batch-size", ""},
    {"--warmup", "--lr-warmup-fraction", ""},
    {"--type", "", "; layers are described one flag at a time"},
});

constexpr auto kForkAliases = std::to_array<Alias>({
    {"--context-parallel-size", "--ds-sequence-parallel-size", ""},
    {"--expert-model-parallel-size", "--moe-expert-parallel-size", ""},
    {"--expert-tensor-parallel-size", "", ""},
    {"--fp8-format", "--fp8-hybrid", ""},
    {"--nccl-timeout", "--distributed-timeout-minutes", ", in minutes"},
    {"--save-dir", "--save", ""},
    {"--offload_optimizer", "",
     "; it stands in ds_config.json: zero_optimization.offload_optimizer"},
    {"--offload_param", "", "; it stands in ds_config.json: zero_optimization.offload_param"},
    {"--group-query-attention", "--num-key-value-heads", ""},
    {"--num-query-groups", "--num-key-value-heads", ""},
    {"--norm-epsilon", "--layernorm-epsilon", ""},
    {"--rotary-base", "--rotary-position-embeddings-theta", ""},
    {"--batch-size", "--micro-batch-size", ""},
    {"--model-parallel-size", "--tensor-model-parallel-size", ""},
    {"--warmup", "--lr-warmup-fraction", ""},
    {"--qk-layernorm", "", "; models that normalise queries and keys cannot be built"},
});

constexpr auto kDeepspeedAliases = std::to_array<Alias>({
    {"zero_optimization.stage3_prefetch", "zero_optimization.stage3_prefetch_bucket_size",
     "; prefetching has no switch"},
    {"activation_checkpointing.enable", "",
     "; the block only configures deepspeed.checkpointing: the model turns it on"},
    {"activation_checkpointing.enabled", "",
     "; the block only configures deepspeed.checkpointing: the model turns it on"},
    {"activation_checkpointing.checkpoint_granularity", "", "; layers are chosen by the model"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save", ""},
    {"micro_batch_size", "train_micro_batch_size_per_gpu", ""},
    {"micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu", ""},
    {"global_batch_size", "train_batch_size", ""},
});

constexpr auto kTorchtitanAliases = std::to_array<Alias>({
    {"training.local_batch_size", "training.num_tokens_per_microbatch_per_dp_rank",
     ", in tokens: local_batch_size x seq_len"},
    {"training.batch_size", "training.num_tokens_per_microbatch_per_dp_rank",
     ", in tokens: batch_size x seq_len"},
    {"training.global_batch_size", "training.num_tokens_per_train_step",
     ", in tokens: global_batch_size x seq_len"},
    {"training.seq_len", "training.max_context_length", ""},
    {"job.config_file", "--module and --config, which name a function",
     ": TOML files are gone since 0.2.2"},
    {"parallelism.expert_tensor_parallel_degree", "", "; experts are not split"},
});

constexpr auto kLlamaFactoryAliases = std::to_array<Alias>({
    {"lora_r", "lora_rank", ""},
    {"lora_target_modules", "lora_target", ""},
    {"load_in_4bit", "quantization_bit", ": 4"},
    {"load_in_8bit", "quantization_bit", ": 8"},
    {"base_model", "model_name_or_path", ""},
    {"max_length", "cutoff_len", ""},
    {"max_seq_length", "cutoff_len", ""},
    {"sequence_len", "cutoff_len", ""},
    {"flash_attention", "flash_attn", ": fa2"},
    {"sample_packing", "packing", ""},
    {"micro_batch_size", "per_device_train_batch_size", ""},
    {"num_epochs", "num_train_epochs", ""},
});

constexpr auto kAxolotlAliases = std::to_array<Alias>({
    {"lora_rank", "lora_r", ""},
    {"lora_target", "lora_target_modules", ""},
    {"cutoff_len", "sequence_len", ""},
    {"max_seq_length", "sequence_len", ""},
    {"packing", "sample_packing", ""},
    {"per_device_train_batch_size", "micro_batch_size", ""},
    {"num_train_epochs", "num_epochs", ""},
    {"adam_eps", "adam_epsilon", ""},
});

constexpr auto kTrlAliases = std::to_array<Alias>({
    {"--torch_dtype", "--dtype", ""},
    {"--max_prompt_length", "", "; this release cuts no prompts"},
    {"--max_seq_length", "--max_length", ""},
    {"--lora_rank", "--lora_r", ""},
    {"--dataset_text_field_name", "--dataset_text_field", ""},
});

constexpr auto kAutoModelAliases = std::to_array<Alias>({
    {"step_scheduler.micro_batch_size", "step_scheduler.local_batch_size", ""},
    {"step_scheduler.grad_acc_steps", "step_scheduler.global_batch_size",
     ": local_batch_size x accumulation x data-parallel ranks"},
    {"peft.rank", "peft.dim", ""},
    {"peft.r", "peft.dim", ""},
    {"peft.lora_alpha", "peft.alpha", ""},
    {"peft.lora_dropout", "peft.dropout", ""},
    {"distributed.tensor_parallel_size", "distributed.tp_size", ""},
    {"distributed.context_parallel_size", "distributed.cp_size", ""},
    {"distributed.pipeline_parallel_size", "distributed.pp_size", ""},
    {"distributed.expert_parallel_size", "distributed.ep_size", ""},
});

constexpr auto kSwiftAliases = std::to_array<Alias>({
    {"--train_type", "--tuner_type", ""},
    {"--sft_type", "--tuner_type", ""},
    {"--quantization_bit", "--quant_bits", ""},
    {"--model_id_or_path", "--model", ""},
    {"--model_name_or_path", "--model", ""},
    {"--lora_r", "--lora_rank", ""},
    {"--lora_target_modules", "--target_modules", ""},
    {"--batch_size", "--per_device_train_batch_size", ""},
    {"--max_seq_length", "--max_length", ""},
    {"--use_flash_attn", "--attn_impl", ": flash_attn"},
});

constexpr auto kSwiftMegatronAliases = std::to_array<Alias>({
    {"--load", "--mcore_model", ""},
    {"--train_type", "--tuner_type", ""},
    {"--save", "--output_dir", ""},
    {"--max_epochs", "--num_train_epochs", ""},
    {"--save_interval", "--save_steps", ""},
    {"--eval_interval", "--eval_steps", ""},
    {"--log_interval", "--logging_steps", ""},
    {"--num_workers", "--dataloader_num_workers", ""},
    {"--seq_length", "--max_length", ""},
    {"--per_device_train_batch_size", "--micro_batch_size", ""},
    {"--learning_rate", "--lr", ""},
    {"--gradient_accumulation_steps", "--global_batch_size",
     ": micro_batch_size x accumulation x data-parallel ranks"},
    {"--adapter_load", "--mcore_adapter", ""},
    {"--ref_load", "--mcore_ref_model", ""},
    {"--no_initialization", "--perform_initialization", ": false"},
    {"--num_layers_per_virtual_pipeline_stage", "--virtual_pipeline_model_parallel_size",
     ": the chunks a stage holds"},
});

std::span<const Alias> aliases_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::megatron:
    case Dialect::megatron_yaml:
    case Dialect::slime:
      return kMegatronAliases;
    case Dialect::megatron_deepspeed:
      return kForkAliases;
    case Dialect::ds_config:
      return kDeepspeedAliases;
    case Dialect::torchtitan:
      return kTorchtitanAliases;
    case Dialect::llama_factory:
      return kLlamaFactoryAliases;
    case Dialect::axolotl:
      return kAxolotlAliases;
    case Dialect::automodel:
      return kAutoModelAliases;
    case Dialect::trl:
      return kTrlAliases;
    case Dialect::ms_swift:
      return kSwiftAliases;
    case Dialect::ms_swift_megatron:
      return kSwiftMegatronAliases;
    case Dialect::verl:
    case Dialect::nemo_rl:
    case Dialect::bridge:
    case Dialect::trainer:
    case Dialect::accelerate:
    case Dialect::own_script:
      break;
  }
  return {};
}

// Flags that DeepSpeed's own parser adds, and that launchers pass on.
constexpr std::array<std::string_view, 8> kDeepspeedFlags{
    "--deepspeed",  "--deepspeed_config", "--deepspeed-config", "--deepscale",
    "--local_rank", "--local-rank",       "--deepspeed_mpi",    "--ds_inference"};

// transformers' run_clm.py has its arguments and the Trainer's. Another script may have any of its
// own: there a slip of the Trainer's words is one where most of them are right.
bool is_known_to_trainer(const ConfigPart& part, const std::string& key) {
  const OptionList &trainer = known_options("trainer"), &script = known_options("run_clm");
  if (script.find(key) != nullptr || !key.starts_with("--")) return true;
  const auto begins = [&](const std::string& name) { return name.starts_with(key); };
  const auto spelled_so = std::count_if(trainer.names().begin(), trainer.names().end(), begins);
  if (base_name(part.script) == "run_clm.py") {
    // Python's argparse takes a beginning that only one name has.
    return spelled_so == 1 && std::none_of(script.names().begin(), script.names().end(), begins);
  }
  const auto right =
      std::count_if(part.settings.begin(), part.settings.end(),
                    [&](const Setting& s) { return trainer.find(s.key) != nullptr; });
  const std::string near = nearest_name(key, trainer.names());
  return right < 5 || spelled_so > 0 || near.empty() || !is_slip(key, near);
}

// Names that the parser has only to say that they are gone (arguments.py:589).
constexpr std::array<std::string_view, 3> kGone{"--batch-size", "--model-parallel-size",
                                                "--warmup"};

const KnownOption* known_option(const ConfigPart& part, std::string_view key) {
  const KnownOption* known = known_options(option_list_of(part.dialect)).find(key);
  if (known == nullptr && part.dialect == Dialect::slime) {
    known = known_options("megatron").find(key);
  }
  if (known == nullptr && part.dialect == Dialect::trainer) {
    known = known_options("run_clm").find(key);
  }
  // A Trainer's arguments are LLaMA-Factory's too.
  if (known == nullptr && part.dialect == Dialect::llama_factory) {
    known = known_options("trainer").find(fmt::format("--{}", key));
  }
  if (known == nullptr && (part.dialect == Dialect::ms_swift || part.dialect == Dialect::trl)) {
    known = known_options("trainer").find(key);
  }
  return known;
}

bool is_known(const ConfigPart& part, const std::string& key) {
  const bool takes = part.dialect == Dialect::megatron || part.dialect == Dialect::slime ||
                     part.dialect == Dialect::megatron_deepspeed;
  if (takes && std::find(kGone.begin(), kGone.end(), key) != kGone.end()) return false;
  const OptionList& list = known_options(option_list_of(part.dialect));
  if (list.find(key) != nullptr) return true;
  switch (part.dialect) {
    case Dialect::slime:
      // sglang's own arguments come with its version; the one that is gone is known below.
      return known_options("megatron").find(key) != nullptr || key.starts_with("--router-") ||
             (key.starts_with("--sglang-") && key != "--sglang-enable-ep-moe");
    case Dialect::megatron_deepspeed:
      return std::find(kDeepspeedFlags.begin(), kDeepspeedFlags.end(), key) !=
             kDeepspeedFlags.end();
    case Dialect::megatron_yaml:
      return !key.starts_with("--");  // the same key stands once as a flag
    case Dialect::trainer:
      return is_known_to_trainer(part, key);
    case Dialect::torchtitan:
      return key == "activation_checkpoint" || key == "moe_comm_backend" || key == "loss";
    case Dialect::ds_config:
    case Dialect::accelerate: {
      // A comment: DeepSpeed looks up the keys that it knows, and only sections refuse others.
      if (part.dialect == Dialect::ds_config && key.starts_with("_")) return true;
      // Sections whose keys are not listed are whoever's they are.
      for (std::size_t dot = key.find('.'); dot != std::string::npos;
           dot = key.find('.', dot + 1)) {
        if (list.find(key.substr(0, dot) + ".*") != nullptr) return true;
      }
      return false;
    }
    case Dialect::llama_factory:
    case Dialect::axolotl: {
      // Of a block only fsdp_config's keys are listed, which older releases began with "fsdp_".
      const std::size_t dot = key.find('.');
      if (dot == std::string::npos) return known_option(part, key) != nullptr;
      constexpr std::string_view kShards = "fsdp_config.";
      if (part.dialect == Dialect::llama_factory || !key.starts_with(kShards)) {
        return is_known(part, key.substr(0, dot));
      }
      // (What is the default may be said, though nobody reads it.)
      const std::string name = key.substr(kShards.size());
      return name.starts_with("fsdp_") ||
             (name == "sharding_strategy" &&
              same_value(part.settings.find(key)->value, Json("FULL_SHARD")));
    }
    case Dialect::automodel: {
      // Of these blocks the classes are known that their keys go to; of their own blocks the names.
      constexpr std::array<std::string_view, 3> kBlocks{"distributed.", "peft.", "step_scheduler."};
      constexpr std::array<std::string_view, 2> kInner{"distributed.pipeline.", "distributed.moe."};
      const auto begins = [&](std::string_view block) { return key.starts_with(block); };
      if (std::none_of(kBlocks.begin(), kBlocks.end(), begins)) return true;
      const bool inner = std::any_of(kInner.begin(), kInner.end(), begins);
      std::size_t end = key.find('.', key.find('.') + 1);
      if (inner && end != std::string::npos) end = key.find('.', end + 1);
      const std::string name = key.substr(0, end);
      return list.find(name) != nullptr || name.ends_with('_');  // "_target_"
    }
    case Dialect::trl:
    case Dialect::ms_swift:
    case Dialect::ms_swift_megatron: {
      if (part.dialect == Dialect::trl && known_options("accelerate_launch").find(key) != nullptr) {
        return true;  // which it hands to the launcher
      }
      // Python's argparse takes a beginning that only one name has.
      const auto begins = [&](const std::string& name) { return name.starts_with(key); };
      return known_option(part, key) != nullptr || !key.starts_with("--") ||
             std::count_if(list.names().begin(), list.names().end(), begins) == 1;
    }
    case Dialect::megatron:
      // Where NVIDIA's ModelOpt is installed.
      return known_options("megatron_post_training").find(key) != nullptr;
    case Dialect::bridge:
    case Dialect::own_script:
    case Dialect::verl:
    case Dialect::nemo_rl:
      break;
  }
  return false;
}

// What becomes of a key that nobody knows.
std::string_view fate(const ConfigPart& part, const std::string& key) {
  switch (part.dialect) {
    case Dialect::megatron:
      return "Megatron-LM has no such argument and stops";
    case Dialect::megatron_yaml:
      return "Megatron-LM has no argument of that name";
    case Dialect::slime:
      return "neither slime nor Megatron-LM has such an argument, and slime ignores it silently";
    case Dialect::megatron_deepspeed:
      return "Megatron-DeepSpeed has no such argument and stops";
    case Dialect::ds_config:
      return key.starts_with("zero_optimization.") ? "DeepSpeed refuses unknown keys of this block"
                                                   : "DeepSpeed knows no such key and ignores it "
                                                     "silently";
    case Dialect::accelerate: {
      // It looks at the outermost names alone, as whatever lies within an unknown one shows.
      const std::string outermost = key.substr(0, key.find('.'));
      const bool known = known_options(option_list_of(part.dialect)).find(outermost) != nullptr;
      return known ? "accelerate knows no such key and ignores it silently"
                   : "accelerate knows no such key and stops";
    }
    case Dialect::torchtitan:
      return "torchtitan has no such field and stops";
    case Dialect::trainer:
      return "transformers' parser knows no such argument and stops";
    case Dialect::llama_factory:
      return "LLaMA-Factory knows no such argument and stops";
    case Dialect::axolotl:
      return "axolotl knows no such key and ignores it silently";
    case Dialect::automodel:
      return "NeMo AutoModel's class of this block has no such field and stops";
    case Dialect::trl:
      return "TRL has no such argument and stops";
    case Dialect::ms_swift:
    case Dialect::ms_swift_megatron:
      return "ms-swift has no such argument and stops";
    case Dialect::verl:
    case Dialect::nemo_rl:
    case Dialect::bridge:
    case Dialect::own_script:
      break;
  }
  return "nobody reads it";
}

std::vector<std::string> candidates(const ConfigPart& part, const std::string& key) {
  std::vector<std::string> names = known_options(option_list_of(part.dialect)).names();
  if (part.dialect == Dialect::trainer) {
    const auto& more = known_options("run_clm").names();
    names.insert(names.end(), more.begin(), more.end());
  }
  if (part.dialect == Dialect::slime) {
    const auto& more = known_options("megatron").names();
    names.insert(names.end(), more.begin(), more.end());
  }
  if (part.dialect == Dialect::ms_swift || part.dialect == Dialect::trl) {
    const auto& more = known_options("trainer").names();
    names.insert(names.end(), more.begin(), more.end());
  }
  if (part.dialect == Dialect::llama_factory) {
    for (const std::string& name : known_options("trainer").names()) {
      if (name.find('-', 2) == std::string::npos) names.push_back(name.substr(2));
    }
  }
  // Of the same block.
  const std::size_t dot = key.rfind('.');
  if (dot != std::string::npos) {
    const std::string block = key.substr(0, dot + 1);
    std::erase_if(names, [&](const std::string& name) { return !name.starts_with(block); });
  }
  return names;
}

// As the file spells it.
std::string spelled_key(const ConfigPart& part, const std::string& key) {
  if (part.dialect != Dialect::megatron_yaml) return key;
  std::string name = key.substr(std::min<std::size_t>(2, key.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// The lists whose names a part may use.
std::vector<const OptionList*> lists_of(const ConfigPart& part) {
  std::vector<const OptionList*> lists{&known_options(option_list_of(part.dialect))};
  if (part.dialect == Dialect::slime) lists.push_back(&known_options("megatron"));
  if (part.dialect == Dialect::trainer) lists.push_back(&known_options("run_clm"));
  if (part.dialect == Dialect::ms_swift || part.dialect == Dialect::trl) {
    lists.push_back(&known_options("trainer"));
  }
  return lists;
}

// The fork's fp8 is a switch for each format.
std::string fp8_switch(const ConfigPart& part, const Setting& setting) {
  if (part.dialect != Dialect::megatron_deepspeed || setting.key != "--fp8-format") return "";
  const std::string flag = "--fp8-" + text_of(setting.value);
  return is_known(part, flag) && !part.settings.has(flag) ? flag : "";
}

// The list of options that a name or a value is held against.
std::string source_of_options(const ConfigPart& part) {
  return fmt::format("qplan: planner/frameworks/options/{}.tsv, the options of its parser",
                     option_list_of(part.dialect));
}

// Whether a program of one's own may read this file or these words, beside TRL: it has arguments of
// its own, and may want an older release.
bool is_around_trl(const ConfigPart& part) {
  return part.dialect == Dialect::trl && part.script != "trl";
}

Finding unknown_option(const Scene& scene, const ConfigPart& part, const Setting& setting) {
  Finding finding{Severity::error,
                  "unknown_option",
                  setting.place,
                  fmt::format("{}: {}", spelled_key(part, setting.key), fate(part, setting.key)),
                  "",
                  source_of_options(part)};
  if (is_around_trl(part)) {
    finding.severity = Severity::note;
    finding.message = fmt::format("{}: TRL has no such argument; the job stops unless {} adds it",
                                  spelled_key(part, setting.key),
                                  part.script.empty() ? "the program" : part.script);
  }
  for (const Alias& alias : aliases_of(part.dialect)) {
    if (alias.written != setting.key) continue;
    finding.instead = alias.real.empty() ? fmt::format("leave it out{}", alias.remark)
                                         : fmt::format("write {}{}", alias.real, alias.remark);
    finding.fix = alias.real.empty()     ? removed(scene, part, setting)
                  : alias.remark.empty() ? with_key(scene, part, setting, std::string(alias.real))
                                         : Correction{};
    if (const std::string flag = fp8_switch(part, setting); !flag.empty()) {
      finding.instead = fmt::format("write {}", flag);
      finding.fix = replaced(scene, setting, flag);
    }
    return finding;
  }
  if (setting.key == "--sglang-enable-ep-moe") {
    finding.message =
        "--sglang-enable-ep-moe is gone from sglang, and nothing takes its place "
        "silently";
    finding.instead = "write --sglang-ep-size with the number of GPUs of an engine";
    finding.source = "slime 624b824a, scripts/run-deepseek-r1.sh:116";
    const Setting* const gpus = part.settings.find("--rollout-num-gpus-per-engine");
    if (gpus != nullptr && gpus->resolved && !part.settings.has("--sglang-ep-size")) {
      finding.fix = replaced(scene, setting, "--sglang-ep-size " + text_of(gpus->value));
    }
    return finding;
  }
  const std::string certain = certain_name(setting.key, lists_of(part));
  const std::string near =
      certain.empty() ? nearest_name(setting.key, candidates(part, setting.key)) : certain;
  if (part.dialect == Dialect::megatron && !part.script.empty() && !is_of_megatron(part.script)) {
    finding.severity = Severity::note;
    finding.message =
        fmt::format("{}: Megatron-LM has no such argument; the job stops unless {} adds it",
                    setting.key, base_name(part.script));
    finding.instead = near.empty() ? "" : fmt::format("did you mean {}?", near);
    return finding;
  }
  if (is_around_trl(part) && !near.empty() && is_slip(setting.key, near)) {
    finding.severity = Severity::error;
    finding.message = fmt::format("{}: {}", setting.key, fate(part, setting.key));
  }
  // What nobody reads is a slip, or another release's or a plugin's.
  if (part.dialect == Dialect::axolotl && (near.empty() || !is_slip(setting.key, near))) {
    finding.severity = Severity::warning;
  }
  finding.instead = near.empty() ? "leave it out" : fmt::format("did you mean {}?", near);
  if (!certain.empty()) finding.fix = with_key(scene, part, setting, certain);
  return finding;
}

ValueReader reader_of(const ConfigPart& part) {
  switch (part.dialect) {
    case Dialect::ds_config:
      return ValueReader::json;
    case Dialect::accelerate:
      return ValueReader::yaml;
    case Dialect::trainer:
    case Dialect::trl:
    case Dialect::ms_swift:
    case Dialect::ms_swift_megatron:
      return ValueReader::trainer;
    case Dialect::llama_factory:
      return ValueReader::yaml;
    case Dialect::automodel:
      return ValueReader::yaml;
    case Dialect::axolotl:  // pydantic, which takes false for 0
      return ValueReader::json;
    case Dialect::torchtitan:
      return part.script.empty() ? ValueReader::python : ValueReader::argparse;
    case Dialect::megatron:
    case Dialect::megatron_yaml:
    case Dialect::slime:
    case Dialect::megatron_deepspeed:
    case Dialect::bridge:
    case Dialect::own_script:
    case Dialect::verl:
    case Dialect::nemo_rl:
      break;
  }
  return ValueReader::argparse;
}

// Whether the script has no arguments without a flag. slime ignores what it does not know.
bool takes_no_others(const ConfigPart& part) {
  switch (part.dialect) {
    case Dialect::megatron:
      return is_of_megatron(part.script);
    case Dialect::megatron_deepspeed:
      return true;
    case Dialect::trainer:
      return base_name(part.script) == "run_clm.py";
    case Dialect::slime:
    case Dialect::torchtitan:
    case Dialect::megatron_yaml:
    case Dialect::bridge:
    case Dialect::ds_config:
    case Dialect::accelerate:
    case Dialect::own_script:
    case Dialect::llama_factory:
    case Dialect::axolotl:
    case Dialect::verl:
    case Dialect::nemo_rl:
    case Dialect::ms_swift:
    case Dialect::ms_swift_megatron:
    case Dialect::automodel:
    case Dialect::trl:
      break;
  }
  return false;
}

// A number that argparse does not read and JSON would: 1e6.
Correction in_digits(const Scene& scene, const KnownOption& known, const Setting& setting) {
  if (known.type != "int" || !setting.key.starts_with("--") || setting.value.is_array()) return {};
  try {
    return with_value(scene, setting, fmt::format("{}", whole_of(setting.value)));
  } catch (const Error&) {
    return {};
  }
}

// Types, ranges and choices, of options whose list tells them.
void check_value(const Scene& scene, const ConfigPart& part, const Setting& setting,
                 Findings& out) {
  const KnownOption* const known = known_option(part, setting.key);
  if (known == nullptr || !setting.resolved) return;
  // What a plan's word refuses was said already.
  const auto said = std::find_if(out.begin(), out.end(), [&](const Finding& f) {
    return f.rule == "bad_value" && f.place.file == setting.place.file &&
           f.place.line == setting.place.line && f.message.starts_with(setting.key + " ");
  });
  // Filled in by Hugging Face's Trainer, or a trap of its own.
  const bool automatic = part.dialect == Dialect::ds_config && text_of(setting.value) == "auto";
  if (said != out.end()) {
    const std::string meant = certain_choice(text_of(setting.value), known->choices);
    if (said->fix.empty() && !meant.empty()) said->fix = with_value(scene, setting, meant);
    return;
  }
  if (automatic) return;
  const auto refuse = [&](std::string wanted, Correction fix) {
    out.push_back({Severity::error, "refused_value", setting.place,
                   fmt::format("{} is {}, and must be {}", setting.key,
                               shown(text_of(setting.value)), wanted),
                   "", source_of_options(part), std::move(fix)});
  };
  if (!setting.extra.empty() && takes_no_others(part)) {
    out.push_back(
        {Severity::error,
         "stray_word",
         setting.place,
         fmt::format("{} takes {}, and {} behind it is an argument that nobody knows", setting.key,
                     known->arity == "0" ? "no value" : "one value", shown(setting.extra)),
         "leave it out",
         "Python 3, Lib/argparse.py (unrecognized arguments)",
         {}});
  }
  const bool flag = setting.value.is_boolean(), argument = setting.key.starts_with("--");
  // What the Trainer's parser wants in words, a YAML may say as it is.
  if (part.dialect == Dialect::automodel && lower_case(text_of(setting.value)) == "none") return;
  if (part.dialect == Dialect::llama_factory || part.dialect == Dialect::axolotl ||
      part.dialect == Dialect::automodel) {
    const bool no =
        setting.value.is_boolean() && !known->choices.empty() && known->choices.front() == "no";
    if (setting.value.is_structured() || known->type == "dict" || known->type == "str" || no)
      return;
  } else if (known->arity == "0" && !flag) {
    const std::string word = text_of(setting.value);
    const bool off = same_value(word, "false");
    return refuse("given without a value", off ? removed(scene, part, setting)
                                           : same_value(word, "true")
                                               ? replaced(scene, setting, setting.key)
                                               : Correction{});
  }
  if ((known->arity == "1" || known->arity == "+") && flag && argument) {
    // A YAML's false is a value, which TRL's parser hands on as it is.
    const bool of_yaml =
        setting.place.file.ends_with(".yaml") || setting.place.file.ends_with(".yml");
    if (of_yaml && known->type == "str" && part.dialect == Dialect::trl) return;
    return refuse("followed by a value", {});
  }
  if (flag && argument) return;
  const bool several = setting.value.is_array() && known->type != "list";
  if (several && !argument && (known->type == "int" || known->type == "float")) {
    return refuse("a number", {});
  }
  const auto values = several ? setting.value : Json::array({setting.value});
  for (const Json& value : values) {
    const std::string wanted = wanted_instead(*known, value, reader_of(part));
    if (wanted.empty()) continue;
    const std::string meant =
        setting.value.is_array() ? "" : certain_choice(text_of(value), known->choices);
    return refuse(wanted, meant.empty() ? in_digits(scene, *known, setting)
                                        : with_value(scene, setting, meant));
  }
}

void check_repetition(const ConfigPart& part, bool has_trainer, Findings& out) {
  if (part.dialect == Dialect::megatron_yaml || part.dialect == Dialect::own_script ||
      part.dialect == Dialect::bridge || part.dialect == Dialect::torchtitan) {
    return;
  }
  for (const Setting& setting : part.settings) {
    const Setting* const last = part.settings.find(setting.key);
    if (last == &setting) continue;
    // A Trainer reads the file by itself, and hands on what it made of it.
    if (part.dialect == Dialect::ds_config && !has_trainer &&
        last->place.file == setting.place.file && !setting.value.is_object()) {
      out.push_back({Severity::error,
                     "said_twice",
                     setting.place,
                     fmt::format("{} stands twice, and DeepSpeed stops", setting.key),
                     "keep one",
                     "DeepSpeed edaa7221, deepspeed/runtime/config_utils.py",
                     {}});
      continue;
    }
    if (same_value(last->value, setting.value)) continue;
    if (!last->resolved || !setting.resolved) continue;  // of two branches one is taken
    // A later file may well say another than an earlier one; in one file it is a slip.
    const bool slip = last->place.file == setting.place.file;
    out.push_back({slip ? Severity::warning : Severity::note, "said_twice", setting.place,
                   fmt::format("{} is {} here and {} in {}, which counts", setting.key,
                               shown(text_of(setting.value)), shown(text_of(last->value)),
                               to_string(last->place)),
                   "keep one", "Python 3, Lib/argparse.py (the last counts)"});
  }
}

}  // namespace

bool is_slip(std::string_view written, std::string_view real) {
  return edit_distance(written, real) <= 1;
}

void check_options(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (option_list_of(part.dialect).empty() || part.derived) continue;
    if (part.dialect == Dialect::megatron_yaml) {
      out.push_back(
          {Severity::warning, "yaml_is_not_read", part.place,
           "Megatron takes arguments, and reads no file of this shape; it is judged as if "
           "its keys were arguments",
           "an argument list, as `qplan emit` writes it",
           "Megatron-LM d98e8a64, megatron/training/arguments.py (yaml_cfg)"});
    }
    for (const Setting& setting : part.settings) {
      if (is_known(part, setting.key)) {
        check_value(scene, part, setting, out);
      } else if (setting.resolved || setting.key.find('$') == std::string::npos) {
        out.push_back(unknown_option(scene, part, setting));
      }
    }
    check_repetition(part, scene.files.find(Dialect::megatron_deepspeed) == nullptr, out);
  }
}

}  // namespace qplan
