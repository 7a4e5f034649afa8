// verl's Hydra overrides: read, and what they ask for.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/megatron/bridge_adapters.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/readers/recognise.h"
#include "planner/frameworks/rl/megatron_words.h"
#include "planner/frameworks/rl/omega_checks.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/rl/verl_keys.h"

namespace qplan {

namespace verl {

std::string program_of(const Settings& settings) {
  const Setting* const program = settings.find(kProgram);
  return program == nullptr ? "" : text_of(program->value);
}

namespace {

bool is_sft_program(std::string_view program) {
  return program.find("sft_trainer") != std::string_view::npos;
}

// Programs whose whole configuration is known: ppo_trainer's, and what their own adds on top (of a
// section all keys).
struct Listed {
  std::string_view program;  // its end
  std::string_view config;   // begins their names beside ppo_trainer and ppo_megatron_trainer
  std::array<std::string_view, 9> adds;
};
constexpr auto kListed = std::to_array<Listed>({
    {"verl.trainer.main_ppo", "", {}},
    // verl b178a3cd, verl/experimental/one_step_off_policy/config.
    {"one_step_off_policy.main_ppo",
     "one_step_off_ppo",
     {"rollout.nnodes", "rollout.n_gpus_per_node"}},
    // verl-recipe 48ea0a7, dapo/config/dapo_trainer.yaml; before verl's rewards had a section of
    // their own (verl c936ec7d5, recipe/dapo/config/dapo_trainer.yaml) under reward_model.
    {"recipe.dapo.main_dapo",
     "dapo",
     {"data.gen_batch_size", "algorithm.filter_groups.", "reward.reward_manager.name",
      "reward.reward_kwargs.", "reward_model.reward_manager", "reward_model.overlong_buffer.",
      "reward_model.reward_kwargs."}},
});

const Listed* listed_program(const std::string& program) {
  const std::string name = base_name(program);
  const auto* const found = std::find_if(kListed.begin(), kListed.end(), [&](const Listed& row) {
    return row.program.starts_with("verl.") ? name == row.program : name.ends_with(row.program);
  });
  return found == kListed.end() ? nullptr : found;
}

// Its own configurations that begin with ppo_trainer's.
bool begins_with(std::string_view name, const Listed& program) {
  return name.empty() || name == "ppo_trainer" || name == "ppo_megatron_trainer" ||
         (!program.config.empty() && name.starts_with(program.config));
}

std::string config_name(const Settings& settings) {
  const Setting* const name = settings.find("--config-name");
  if (name == nullptr || !name->resolved) return name == nullptr ? "" : "?";
  std::string text = text_of(name->value);
  for (const std::string_view end : {".yaml", ".yml"}) {
    if (text.ends_with(end)) text.resize(text.size() - end.size());
  }
  return text;
}

std::string word_of_key(const Settings& settings, std::string_view name) {
  const Setting* const found = settings.find(name);
  return found == nullptr || !found->resolved ? "" : text_of(found->value);
}

}  // namespace

bool is_sft(const Settings& settings) {
  return is_sft_program(program_of(settings));
}

bool is_megatron(const Settings& settings) {
  const std::string strategy = word_of_key(settings, key(kActor, "strategy"));
  if (!strategy.empty()) return strategy == "megatron";
  // Groups of newer releases: "model_engine=megatron", of SFT "engine=megatron".
  for (const std::string_view group : {"model_engine", "engine"}) {
    if (word_of_key(settings, group) == "megatron") return true;
  }
  if (config_name(settings).find("megatron") != std::string::npos) return true;
  return settings.has_section("actor_rollout_ref.actor.megatron.");
}

const OptionList* defaults_of(const Settings& settings) {
  if (is_sft(settings)) return nullptr;
  return &known_options(is_megatron(settings) ? "verl_megatron" : "verl");
}

bool has_listed_keys(const Settings& settings) {
  const Listed* const program = listed_program(program_of(settings));
  return program != nullptr && begins_with(config_name(settings), *program);
}

bool is_added_key(const Settings& settings, std::string_view name) {
  const Listed* const program = listed_program(program_of(settings));
  if (program == nullptr) return false;
  return std::any_of(program->adds.begin(), program->adds.end(), [&](std::string_view added) {
    return added.ends_with('.') ? name.starts_with(added) : name == added;
  });
}

Numbers::Numbers(const OmegaConfig& c, bool megatron, std::int64_t of_job) {
  gpus = of_job;
  if (c.said("rollout.nnodes") != nullptr || c.said("rollout.n_gpus_per_node") != nullptr) {
    const std::int64_t engines =
        c.whole("rollout.nnodes", 1) * c.whole("rollout.n_gpus_per_node", 8);
    const std::int64_t trainers =
        c.whole("trainer.nnodes", 1) * c.whole("trainer.n_gpus_per_node", 8);
    // Of other GPUs than the files say, the same share.
    rollout_gpus = engines + trainers == gpus ? engines : gpus * engines / (engines + trainers);
  }
  prompts = std::max<std::int64_t>(1, c.whole("data.train_batch_size", 1024));
  samples = std::max<std::int64_t>(1, c.whole(key(kRollout, "n"), 1));
  mini = std::max<std::int64_t>(1, c.whole(key(kActor, "ppo_mini_batch_size"), 256));
  longest = c.whole("data.max_prompt_length", 512) + c.whole("data.max_response_length", 512);
  const auto degree = [&](std::string_view name) {
    return static_cast<int>(std::clamp<std::int64_t>(c.whole(key(kActor, name), 1), 1, 1 << 20));
  };
  if (megatron) {
    parts = degree("megatron.context_parallel_size");
    split = parts * degree("megatron.tensor_model_parallel_size") *
            degree("megatron.pipeline_model_parallel_size");
  } else {
    const int own = degree("fsdp_config.ulysses_sequence_parallel_size");
    split = parts = std::max(own, degree("ulysses_sequence_parallel_size"));
  }
}

}  // namespace verl

namespace {

using namespace verl;

// Keys of its two trainers for supervised fine-tuning, under the actor's.
constexpr auto kSftKeys = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"model.partial_pretrain", "actor_rollout_ref.model.path"},
    {"model.strategy", "actor_rollout_ref.actor.strategy"},
    {"model.fsdp_config.offload_params", "actor_rollout_ref.actor.fsdp_config.offload_policy"},
    {"model.fsdp_config.cpu_offload", "actor_rollout_ref.actor.fsdp_config.offload_policy"},
    {"model.fsdp_config.model_dtype", "actor_rollout_ref.actor.fsdp_config.model_dtype"},
    {"ulysses_sequence_parallel_size", "actor_rollout_ref.actor.ulysses_sequence_parallel_size"},
    {"use_remove_padding", "actor_rollout_ref.model.use_remove_padding"},
    {"data.micro_batch_size_per_gpu", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"},
    {"data.micro_batch_size", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"},
    {"data.use_dynamic_bsz", "actor_rollout_ref.actor.use_dynamic_bsz"},
    {"data.max_token_len_per_gpu", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"},
    {"engine.strategy", "actor_rollout_ref.actor.strategy"},
});

std::string sft_key(const std::string& given) {
  for (const auto& [own, actors] : kSftKeys) {
    if (given == own) return std::string(actors);
  }
  if (given.starts_with("model.")) return "actor_rollout_ref." + given;
  if (!given.starts_with("engine.")) return given;
  const std::string name = given.substr(7);
  constexpr std::array<std::string_view, 7> kShards{"fsdp_size",
                                                    "reshard_after_forward",
                                                    "param_offload",
                                                    "optimizer_offload",
                                                    "offload_policy",
                                                    "model_dtype",
                                                    "ulysses_sequence_parallel_size"};
  const bool shards = std::find(kShards.begin(), kShards.end(), name) != kShards.end();
  return key(kActor, shards ? "fsdp_config." : "megatron.") + name;
}

std::vector<std::string_view> programs() {
  return {"verl.trainer.", "verl.experimental.", "recipe.dapo",
          "main_ppo",      "sft_trainer",        "main_generation"};
}

// Adapters beside frozen weights.
void read_adapters(Draft& draft, const OmegaConfig& c, bool megatron,
                   std::vector<std::string>& assumed) {
  const std::int64_t of_megatron = c.whole("actor_rollout_ref.model.lora.rank", 0);
  const std::int64_t rank = std::max(of_megatron, c.whole(key(kModel, "lora_rank"), 0));
  if (rank <= 0) return;
  ParallelPlan& plan = draft.plan;
  plan.lora_rank = static_cast<int>(rank);
  const bool own = of_megatron > 0;
  plan.lora_alpha = static_cast<int>(own ? c.whole("actor_rollout_ref.model.lora.alpha", 32)
                                         : c.whole(key(kModel, "lora_alpha"), 16));
  const Json targets =
      c.value(own ? "actor_rollout_ref.model.lora.target_modules" : key(kModel, "target_modules"));
  if (megatron) {
    if (targets.is_array()) draft.adapted_modules = list_of(targets);
    return;
  }
  if (targets.is_null() || text_of(targets) == "all-linear") return;
  std::string others;
  for (const std::string& target : list_of(targets)) {
    if (const auto known = try_from_word<LoraTarget>(target)) {
      plan.lora_targets.add(*known);
    } else {
      others += (others.empty() ? "" : ", ") + target;
    }
  }
  if (!others.empty()) {
    assumed.push_back(fmt::format("no adapters of {}, which no plan names", shown(others)));
  }
}

// FSDP of transformers' modules, by its first and second interface alike.
void settle_shards(Draft& draft, const OmegaConfig& c, const Numbers& n,
                   std::vector<std::string>& assumed) {
  ParallelPlan& plan = draft.plan;
  plan.cp = n.parts;
  plan.dp = static_cast<int>(n.dp());
  if (n.parts > 1) {
    plan.cp_comm = CpComm::p2p;
    assumed.emplace_back(
        "a ring over the ranks of a sequence: Ulysses' exchange of heads is not predicted over "
        "FSDP");
  }
  plan.zero = c.on(key(kActor, "fsdp_config.reshard_after_forward"), true) ? 3 : 2;
  // Fewer than all ranks: copies of them (workers/fsdp_workers.py, create_device_mesh).
  const std::int64_t shard = c.whole(key(kActor, "fsdp_config.fsdp_size"), -1);
  if (shard > 0 && shard < n.trainers()) plan.fsdp_shard = static_cast<int>(shard);
  if (c.on(key(kActor, "fsdp_config.offload_policy"))) {
    plan.offload.params = true;
    plan.offload.optimizer = 1;
  }
  if (c.on(key(kModel, "enable_gradient_checkpointing"), true)) {
    plan.recompute = {RecomputeKind::full, {}, 0};
  }
  const std::string weights = c.word(key(kActor, "fsdp_config.model_dtype"), "fp32");
  if (weights == "bfloat16" || weights == "bf16") {
    plan.grad_dtype = plan.main_params_dtype = plan.moment_dtype = DType::bf16;
  }
  if (c.word(key(kActor, "strategy")) == "fsdp") {
    assumed.emplace_back("FSDP2 in the place of FSDP1, which verl takes unless it is told");
  }
}

// Micro-batches of log-probabilities, and what the loss over the logits keeps. FSDP's worker hands
// logits of 16 bits to flash-attn's cross entropy, whose gradient takes their place; where the
// entropy is trained, or answers are padded and cut out of the logits, a copy stands beside
// (workers/actor/dp_actor.py, _forward_micro_batch). The policy's log-probabilities come with the
// entropy: compiled in one pass where padding is removed, else torch's softmax and its product
// beside logits and their copy. Megatron's has a clone and a softmax beside the logits, and then
// the cross entropy's fp32 copy (workers/actor/megatron_actor.py,
// utils/megatron/tensor_parallel.py). Fused kernels make no logits.
void settle_passes(RlJob& job, const OmegaConfig& c, const Numbers& n, bool megatron) {
  const bool fused = c.on(key(kModel, "use_fused_kernels"));
  const bool entropy = c.figure(key(kActor, "entropy_coeff"), 0) != 0;
  if (!megatron) {
    job.loss = fused                    ? LossKind::liger
               : entropy || !job.packed ? LossKind::unfused
                                        : LossKind::compiled;
  }
  job.logit_bytes = fused ? 0 : megatron || !job.packed ? 8 : 2;
  const double length = job.packed ? static_cast<double>(job.prompt_len) + job.response.mean
                                   : static_cast<double>(n.longest);
  const auto tokens_of = [&](std::string_view section) -> std::int64_t {
    if (c.on(key(section, "log_prob_use_dynamic_bsz"), c.on(key(kActor, "use_dynamic_bsz")))) {
      return c.whole(key(section, "log_prob_max_token_len_per_gpu"), 16384);
    }
    const std::int64_t all = c.whole(key(section, "log_prob_micro_batch_size"), n.dp());
    const std::int64_t answers =
        c.whole(key(section, "log_prob_micro_batch_size_per_gpu"), all / n.dp());
    const auto one =
        static_cast<std::int64_t>(length * static_cast<double>(std::max<std::int64_t>(1, answers)));
    return std::max(one, n.longest) / n.parts;
  };
  const std::int64_t mine = job.old_logprobs ? tokens_of(kRollout) : 0;
  job.pass_tokens = std::max(mine, job.reference ? tokens_of(kRef) : 0);
  if (job.pass_tokens == 0) job.logit_bytes = 0;
  // No more than a rank has in all.
  const std::int64_t each = (job.answers() + n.dp() - 1) / n.dp();
  job.pass_tokens = std::min(job.pass_tokens, each * n.longest / n.parts);
}

RlStep step_of(const OmegaConfig& c, const Numbers& n, bool megatron,
               std::vector<std::string>& assumed) {
  RlStep step;
  RlJob& job = step.job;
  const bool critic = c.on("critic.enable", c.word("algorithm.adv_estimator", "gae") == "gae");
  job.algorithm = critic ? Algorithm::ppo : Algorithm::grpo;
  job.prompts = n.prompts;
  job.samples = n.samples;
  job.prompt_len = c.whole("data.max_prompt_length", 512);
  job.response.max = std::max<std::int64_t>(1, c.whole("data.max_response_length", 512));
  job.response.mean = std::max(1.0, static_cast<double>(job.response.max) / 2);
  assumed.push_back(
      fmt::format("prompts of {} tokens, the longest, and answers of {} in the mean, half of the "
                  "longest: no file says what they are",
                  job.prompt_len, static_cast<std::int64_t>(job.response.mean)));
  // Where optimizer steps do not divide a rollout the last one is smaller; here all are.
  const std::int64_t steps = (n.prompts + n.mini - 1) / n.mini;
  job.train_batch = job.answers() % steps == 0 ? job.answers() / steps : job.answers();
  job.epochs = std::max<std::int64_t>(1, c.whole(key(kActor, "ppo_epochs"), 1));
  job.reference = c.on(key(kActor, "use_kl_loss")) || c.on("algorithm.use_kl_in_reward");
  job.old_logprobs = !c.on("algorithm.rollout_correction.bypass_mode");
  job.packed = megatron ? c.on(key(kActor, "megatron.use_remove_padding"), true)
                        : c.on(key(kModel, "use_remove_padding"), true);
  job.balanced = c.on("trainer.balance_batch", true);
  job.rollout_gpus = n.rollout_gpus;
  job.staleness = n.rollout_gpus > 0 ? 1 : 0;
  const std::string states = key(kActor, megatron ? "megatron." : "fsdp_config.");
  const bool weights = c.on(states + "param_offload"), moments = c.on(states + "optimizer_offload");
  const bool apart = n.rollout_gpus > 0;  // nobody has to make room
  job.offload_trainer =
      apart || weights || moments || c.on(key(kActor, "fsdp_config.offload_policy"));
  if (weights != moments && !apart) {
    job.weights_stay = moments;
    job.moments_stay = weights;
  }
  job.sleep_level = apart || c.on(key(kRollout, "free_cache_engine"), true) ? 1 : 0;
  settle_passes(job, c, n, megatron);

  RolloutLayout& layout = step.layout;
  const auto degree = [&](std::string_view name) {
    return static_cast<int>(std::clamp<std::int64_t>(c.whole(key(kRollout, name), 1), 1, 1 << 20));
  };
  layout.tp = degree("tensor_model_parallel_size");
  layout.pp = degree("pipeline_model_parallel_size");
  layout.dp = degree("data_parallel_size");
  layout.ep = degree("expert_parallel_size");
  layout.memory_share =
      std::clamp(c.figure(key(kRollout, "gpu_memory_utilization"), 0.5), 0.01, 1.0);
  layout.max_running = std::max<std::int64_t>(1, c.whole(key(kRollout, "max_num_seqs"), 256));
  if (c.word(key(kRollout, "quantization")) == "fp8") layout.precision = Precision::fp8;
  return step;
}

}  // namespace

bool is_verl(const std::vector<ShellWord>& words, const std::string& script) {
  const bool named = std::any_of(words.begin(), words.end(), [](const ShellWord& word) {
    const std::size_t begin = word.text.find_first_not_of('+');
    if (begin == std::string::npos) return false;
    const std::string_view text = std::string_view(word.text).substr(begin);
    return text.starts_with("actor_rollout_ref.") || text.starts_with("algorithm.adv_estimator=");
  });
  if (named) return true;
  return is_verl_program(script) &&
         std::any_of(words.begin(), words.end(), [](const ShellWord& word) {
           return !word.text.starts_with('-') && word.text.find('=') != std::string::npos;
         });
}

bool is_verl_yaml(const Settings& yaml) {
  return yaml.has_section("actor_rollout_ref.");
}

bool trains_by_verl(const std::string& script) {
  return script.find("main_generation") == std::string::npos &&
         script.find("main_eval") == std::string::npos;
}

namespace {

bool is_flag(std::string_view text) {
  return text.size() > 1 && text.front() == '-' && !(text[1] >= '0' && text[1] <= '9');
}

// Neither "key=value" nor "~key", which takes a key out; what a shell puts in may be anything.
bool is_stray(std::string_view text) {
  const std::size_t equals = text.find('=');
  const bool override_of = equals != std::string_view::npos && equals > 0;
  return !text.empty() && !override_of && text.front() != '~' &&
         text.find('$') == std::string_view::npos;
}

// Whether the word behind it is its value. A flag that Hydra has not takes what is no override.
bool add_flag(Settings& settings, const ShellWord& word, const ShellWord* next) {
  const std::size_t equals = word.text.find('=');
  const std::string name = word.text.substr(0, equals);
  const KnownOption* const known = hydra_flag(name);
  const bool alone = known != nullptr && known->arity == "0";
  const bool to_come = next != nullptr && !is_flag(next->text) &&
                       (known != nullptr || next->text.find('=') == std::string::npos);
  const bool apart = equals == std::string::npos && !alone && to_come;
  Setting flag;
  flag.key = hydra_name(name);
  flag.value = apart ? next->text : equals != std::string::npos ? word.text.substr(equals + 1) : "";
  flag.place = word.place;
  flag.resolved = word.resolved && (!apart || next->resolved);
  if (word.span.end - word.span.begin == word.text.size()) {
    flag.name = {word.span.begin, word.span.begin + name.size()};
  }
  settings.add(std::move(flag));
  return apart;
}

}  // namespace

Settings verl_settings(const std::vector<ShellWord>& words, const std::string& script) {
  Settings settings;
  const bool sft = is_sft_program(script);
  if (!script.empty() && !words.empty()) {
    settings.add({std::string(kProgram), script, words.front().place});
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const ShellWord& word = words[i];
    std::string text = word.text;
    const std::size_t equals = text.find('=');
    if (is_flag(text)) {
      if (add_flag(settings, word, i + 1 < words.size() ? &words[i + 1] : nullptr)) ++i;
      continue;
    }
    if (is_stray(text)) {
      settings.add({std::string(kStrayWord), text, word.place, {}, {}, word.resolved});
    }
    if (equals == std::string::npos) continue;
    const std::size_t begin = text.find_first_not_of("+~");
    if (begin == std::string::npos || begin >= equals) continue;
    const std::string name = text.substr(begin, equals - begin);
    if (name.find('$') != std::string::npos) continue;
    Setting setting;
    setting.key = sft ? sft_key(name) : name;
    setting.value = hydra_value(std::string_view(text).substr(equals + 1));
    setting.place = word.place;
    setting.resolved = word.resolved;
    setting.extra = text.substr(0, begin);
    // Where the word stands in the file as it is, without quotes.
    if (word.span.end - word.span.begin == text.size()) {
      setting.whole = word.span;
      setting.name = {word.span.begin + begin, word.span.begin + equals};
      setting.text = {setting.name.end + 1, word.span.end};
    }
    settings.add(std::move(setting));
  }
  return settings;
}

bool is_verl_program(std::string_view program) {
  const auto names = programs();
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    return program.find(name) != std::string_view::npos;
  });
}

RecipeKind recipe_of_verl(const Settings& settings) {
  return is_megatron(settings) ? RecipeKind::megatron : RecipeKind::fsdp2;
}

Settings megatron_flags_of_verl(const Settings& settings) {
  if (!is_megatron(settings)) return {};
  return megatron_flags(MegatronKeys::verl, OmegaConfig(settings, defaults_of(settings)));
}

std::string model_of_verl(const Settings& settings) {
  const Setting* const path = settings.find(key(kModel, "path"));
  if (path == nullptr || !path->value.is_string()) return "";
  const auto text = path->value.get<std::string>();
  // "$HOME/models/Qwen2.5-3B-Instruct" names it all the same.
  const std::size_t slash = text.rfind('/');
  const std::string name = text.substr(slash + 1);  // npos + 1: the whole of it
  return name.find_first_of("$<{}") != std::string::npos ? "" : text;
}

RlReading settle_verl(Draft& draft, const Settings& settings, const ModelSpec& model,
                      std::int64_t gpus) {
  const OmegaConfig c(settings, defaults_of(settings));
  const bool megatron = is_megatron(settings), sft = is_sft(settings);
  const Numbers n(c, megatron, gpus);
  RlReading reading;
  ParallelPlan& plan = draft.plan;
  const std::int64_t nodes = c.whole("trainer.nnodes", sft ? 0 : 1);
  reading.gpus = nodes * c.whole("trainer.n_gpus_per_node", sft ? 0 : 8);
  if (n.rollout_gpus > 0) {
    reading.gpus += c.whole("rollout.nnodes", 1) * c.whole("rollout.n_gpus_per_node", 8);
  }
  if (c.is_open("trainer.nnodes") || c.is_open("trainer.n_gpus_per_node") ||
      c.is_open("rollout.nnodes") || c.is_open("rollout.n_gpus_per_node")) {
    reading.gpus = 0;
  }
  read_adapters(draft, c, megatron, reading.assumed);
  if (megatron) {
    settle_megatron(draft, model);
    settle_adapters(draft, model);
    plan.dp = static_cast<int>(n.dp());
  } else {
    settle_shards(draft, c, n, reading.assumed);
  }
  const std::string products =
      c.word(key(kActor, megatron ? "megatron.dtype" : "fsdp_config.dtype"), "bfloat16");
  if (products == "float16" || products == "fp16") plan.precision = Precision::fp16;
  if (model.num_mtp_layers > 0 && !c.on(key(kModel, "mtp.enable_train"))) {
    reading.takes_less = true;
    reading.assumed.emplace_back(
        "layers that predict further tokens are counted: verl trains without them unless "
        "model.mtp says so");
  }

  // Sequences: as many tokens as a micro-batch may have, or whole answers padded to the longest.
  const bool dynamic = c.on(key(kActor, "use_dynamic_bsz"),
                            sft && program_of(settings).find("fsdp_sft") == std::string::npos);
  const std::int64_t longest = sft ? c.whole("data.max_length", 1024) : n.longest;
  const std::int64_t most = c.whole(key(kActor, "ppo_max_token_len_per_gpu"), sft ? 8192 : 16384);
  plan.seq_len = std::max<std::int64_t>(1, longest);
  plan.micro_batch_size = 1;
  if (dynamic) {
    plan.seq_len = std::max(plan.seq_len, most * n.parts);
  } else {
    const std::int64_t all = c.whole(key(kActor, "ppo_micro_batch_size"), n.dp());
    plan.micro_batch_size = std::max<std::int64_t>(
        1, c.whole(key(kActor, "ppo_micro_batch_size_per_gpu"), sft ? 4 : all / n.dp()));
  }
  if (sft) {
    if (!megatron && c.on(key(kModel, "use_fused_kernels"))) {
      plan.loss = LossKind::liger;
    } else if (!megatron) {
      reading.takes_less = true;
      reading.assumed.emplace_back(
          "torch's loss over fp32 logits; verl's takes less, as its logits have 16 bits");
    }
    const std::int64_t batch = std::max<std::int64_t>(1, c.whole("data.train_batch_size", 256));
    plan.global_batch_size = dynamic ? std::max(batch * longest / plan.seq_len, n.dp()) : batch;
    if (dynamic) {
      const std::int64_t each = std::max<std::int64_t>(1, plan.global_batch_size / n.dp());
      plan.global_batch_size = each * n.dp();
    }
    return reading;
  }
  reading.step = step_of(c, n, megatron, reading.assumed);
  RlJob& job = reading.step->job;
  job.by_number = !dynamic && job.packed;
  if (job.by_number && plan.micro_batch_size > 1) {
    reading.takes_less = true;
    reading.assumed.push_back(fmt::format(
        "memory of micro-batches of {} answers of the mean length: without padding they are as "
        "long as they are",
        plan.micro_batch_size));
  }
  // What does not divide among ranks and micro-batches is left out of a step (or stops it, as the
  // checks say).
  const std::int64_t each = plan.micro_batch_size * plan.dp;
  plan.global_batch_size = dynamic ? packing_of(job, model, plan).sequences
                                   : std::max<std::int64_t>(1, job.batch() / each) * each;
  return reading;
}

}  // namespace qplan
