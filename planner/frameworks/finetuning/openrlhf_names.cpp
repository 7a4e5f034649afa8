// Both names of OpenRLHF's arguments, and the GPUs that they ask for.

#include <algorithm>
#include <array>
#include <utility>

#include "models/error.h"
#include "planner/frameworks/finetuning/openrlhf.h"

namespace qplan {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

// Flat names (before 0.10) with those that took their places.
constexpr auto kDottedNames = std::to_array<NamePair>({
    {"--micro_train_batch_size", "--train.micro_batch_size"},
    {"--train_batch_size", "--train.batch_size"},
    {"--max_epochs", "--train.max_epochs"},
    {"--max_len", "--data.max_len"},
    {"--dataset", "--data.dataset"},
    {"--multiturn", "--data.multiturn"},
    {"--apply_chat_template", "--data.apply_chat_template"},
    {"--pretrain", "--model.model_name_or_path"},
    {"--gradient_checkpointing", "--model.gradient_checkpointing_enable"},
    {"--gradient_checkpointing_use_reentrant", "--model.gradient_checkpointing_reentrant"},
    {"--zero_stage", "--ds.zero_stage"},
    {"--zpg", "--ds.zpg"},
    {"--param_dtype", "--ds.param_dtype"},
    {"--adam_offload", "--ds.adam_offload"},
    {"--grad_accum_dtype", "--ds.grad_accum_dtype"},
    {"--overlap_comm", "--ds.overlap_comm"},
    {"--deepcompile", "--ds.deepcompile"},
    {"--ds_tensor_parallel_size", "--ds.tensor_parallel_size"},
    {"--ring_attn_size", "--ds.ring_attn_size"},
    {"--ring_head_stride", "--ds.ring_attn_head_stride"},
    {"--packing_samples", "--ds.packing_samples"},
    {"--use_liger_kernel", "--ds.use_liger_kernel"},
    {"--attn_implementation", "--ds.attn_implementation"},
    {"--load_in_4bit", "--ds.load_in_4bit"},
    {"--lora_rank", "--ds.lora.rank"},
    {"--lora_alpha", "--ds.lora.alpha"},
    {"--lora_dropout", "--ds.lora.dropout"},
    {"--target_modules", "--ds.lora.target_modules"},
    {"--save_path", "--ckpt.output_dir"},
    {"--ckpt_path", "--ckpt.path"},
    {"--save_steps", "--ckpt.save_steps"},
    {"--logging_steps", "--logger.logging_steps"},
    {"--eval_steps", "--eval.steps"},
    {"--actor_num_nodes", "--actor.num_nodes"},
    {"--actor_num_gpus_per_node", "--actor.num_gpus_per_node"},
    {"--critic_num_nodes", "--critic.num_nodes"},
    {"--critic_num_gpus_per_node", "--critic.num_gpus_per_node"},
    {"--ref_num_nodes", "--ref.num_nodes"},
    {"--ref_num_gpus_per_node", "--ref.num_gpus_per_node"},
    {"--reward_num_nodes", "--reward.num_nodes"},
    {"--reward_num_gpus_per_node", "--reward.num_gpus_per_node"},
    {"--reward_pretrain", "--reward.model_name_or_path"},
    {"--remote_rm_url", "--reward.remote_url"},
    {"--critic_pretrain", "--critic.model_name_or_path"},
    {"--vllm_num_engines", "--vllm.num_engines"},
    {"--vllm_tensor_parallel_size", "--vllm.tensor_parallel_size"},
    {"--vllm_enable_sleep", "--vllm.enable_sleep"},
    {"--vllm_gpu_memory_utilization", "--vllm.gpu_memory_utilization"},
    {"--ref_offload", "--ref.offload"},
    {"--colocate_all_models", "--train.colocate_all"},
    {"--colocate_actor_ref", "--train.colocate_actor_ref"},
    {"--colocate_critic_reward", "--train.colocate_critic_reward"},
    {"--async_train", "--train.async_enable"},
    {"--partial_rollout", "--train.partial_rollout_enable"},
    {"--use_dynamic_batch", "--train.dynamic_batch_enable"},
    {"--train_max_tokens_per_gpu", "--train.max_tokens_per_gpu"},
    {"--agent_func_path", "--train.agent_func_path"},
    {"--rollout_batch_size", "--rollout.batch_size"},
    {"--micro_rollout_batch_size", "--rollout.micro_batch_size"},
    {"--n_samples_per_prompt", "--rollout.n_samples_per_prompt"},
    {"--vllm_generate_batch_size", "--rollout.vllm_generate_batch_size"},
    {"--advantage_estimator", "--algo.advantage.estimator"},
    {"--init_kl_coef", "--algo.kl.init_coef"},
    {"--dynamic_filtering", "--algo.dynamic_filtering_enable"},
});

// Of the policy of train_ppo_ray, what is a model's of the other programs.
constexpr auto kOfActor = std::to_array<NamePair>(
    {{"--actor.model_name_or_path", "--model.model_name_or_path"},
     {"--actor.gradient_checkpointing_enable", "--model.gradient_checkpointing_enable"},
     {"--actor.gradient_checkpointing_reentrant", "--model.gradient_checkpointing_reentrant"}});

std::string_view of_policy(std::string_view dotted) {
  const auto* const found = std::find_if(kOfActor.begin(), kOfActor.end(),
                                         [&](const NamePair& n) { return n.first == dotted; });
  return found == kOfActor.end() ? dotted : found->second;
}

// Numbers of one part, which Ray is asked for; nothing where one is open.
class AskedGpus {
 public:
  explicit AskedGpus(const Settings& dotted) : s_(dotted) {}

  [[nodiscard]] std::int64_t group(std::string_view owner, std::int64_t otherwise = 8) {
    const std::string name = "--" + std::string(owner);
    return number(name + ".num_nodes", 1) * number(name + ".num_gpus_per_node", otherwise);
  }

  [[nodiscard]] std::int64_t number(std::string_view key, std::int64_t otherwise) {
    const Setting* const found = s_.find(key);
    if (found == nullptr || found->value.is_null()) return otherwise;
    if (!found->resolved) {
      open_ = true;
      return otherwise;
    }
    try {
      return whole_of(found->value, 0, 1 << 20);
    } catch (const Error&) {
      return otherwise;
    }
  }

  [[nodiscard]] bool on(std::string_view key) const { return is_switched_on(s_, key); }
  [[nodiscard]] bool open() const { return open_; }

 private:
  const Settings& s_;
  bool open_ = false;
};

}  // namespace

std::string openrlhf_verb_of(std::string_view script) {
  const std::size_t at = script.find("openrlhf");
  if (at == std::string_view::npos || (at > 0 && script[at - 1] != '/')) return "";
  constexpr std::string_view kBegin = "cli.train_";
  const std::string_view rest = script.substr(at + std::string_view("openrlhf").size());
  if (rest.size() <= kBegin.size() + 1 || (rest[0] != '.' && rest[0] != '/')) return "";
  std::string name(rest.substr(1));
  std::replace(name.begin(), name.end(), '/', '.');
  if (!name.starts_with(kBegin)) return "";
  name.erase(0, kBegin.size());
  if (name.ends_with(".py")) name.resize(name.size() - 3);
  const bool read = name == "sft" || name == "rm" || name == "dpo" || name == "ppo_ray";
  return read ? name : "";
}

std::string_view dotted_name(std::string_view written) {
  const auto* const found = std::find_if(kDottedNames.begin(), kDottedNames.end(),
                                         [&](const NamePair& n) { return n.first == written; });
  return found == kDottedNames.end() ? written : found->second;
}

Settings dotted_openrlhf(const Settings& arguments) {
  Settings dotted;
  bool flat = false;
  for (Setting setting : arguments) {
    const std::string_view name = dotted_name(setting.key);
    flat = flat || name != setting.key;
    setting.key = std::string(of_policy(name));
    dotted.add(std::move(setting));
  }
  if (flat) dotted.add({"flat names", true, {}});
  return dotted;
}

std::string written_name(const Settings& arguments, std::string_view dotted) {
  for (const Setting& setting : arguments) {
    if (of_policy(dotted_name(setting.key)) == dotted) return setting.key;
  }
  return std::string(dotted);
}

std::optional<std::int64_t> gpus_of_openrlhf(const ConfigPart& part) {
  const Setting* const verb = part.settings.find("verb");
  if (part.dialect != Dialect::openrlhf || verb == nullptr || text_of(verb->value) != "ppo_ray") {
    return std::nullopt;
  }
  const Settings dotted = dotted_openrlhf(part.settings);
  AskedGpus asked(dotted);
  const bool all = asked.on("--train.colocate_all"), async = asked.on("--train.async_enable");
  const Setting* const coefficient = dotted.find("--algo.kl.init_coef");
  const bool compares = coefficient == nullptr || !same_value(coefficient->value, Json(0));
  const Setting* const estimator = dotted.find("--algo.advantage.estimator");
  const bool critic = estimator == nullptr || text_of(estimator->value) == "gae";
  const bool reward = !dotted.has("--reward.remote_url") && !dotted.has("--train.agent_func_path");
  std::int64_t gpus = asked.group("actor");
  if (compares && !all && !asked.on("--train.colocate_actor_ref")) gpus += asked.group("ref");
  if (critic && !all) gpus += asked.group("critic");
  const bool shares = critic && asked.on("--train.colocate_critic_reward");
  if (reward && !all && !shares) gpus += asked.group("reward");
  if (!all || async) {
    gpus += asked.number("--vllm.num_engines", 0) * asked.number("--vllm.tensor_parallel_size", 1);
  }
  return asked.open() ? std::nullopt : std::optional(gpus);
}

std::int64_t gpus_beside_policy(const JobFiles& files, std::int64_t gpus) {
  for (const ConfigPart& part : files.parts) {
    const Setting* const own = part.settings.find("trains_on");
    if (part.dialect != Dialect::own_script || own == nullptr) continue;
    return std::max<std::int64_t>(0, gpus - whole_of(own->value, 0, 1 << 20));
  }
  return 0;
}

}  // namespace qplan
