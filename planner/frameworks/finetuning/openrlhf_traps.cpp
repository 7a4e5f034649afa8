// What OpenRLHF's programs stop at, whichever of its two spellings their arguments have.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "models/model_spec.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/openrlhf.h"
#include "planner/frameworks/finetuning/trap.h"

namespace qplan {
namespace {

using enum Severity;

// Arguments by their dotted names.
struct RlhfRun {
  const Settings& s;
  std::string verb;
  [[nodiscard]] bool on(std::string_view key) const { return is_switched_on(s, key); }
  [[nodiscard]] double figure(std::string_view key, double otherwise) const {
    return figure_of(s, key, otherwise);
  }
  [[nodiscard]] bool open(std::string_view key) const {
    const Setting* const found = s.find(key);
    return found != nullptr && !found->resolved;
  }
  [[nodiscard]] double gpus(std::string_view owner) const {
    const std::string name = "--" + std::string(owner);
    return figure(name + ".num_nodes", 1) * figure(name + ".num_gpus_per_node", 8);
  }
  [[nodiscard]] bool judges_by_groups() const {
    const std::string way = word_of(s, "--algo.advantage.estimator", "gae");
    return way == "rloo" || way == "reinforce_baseline" || way == "group_norm" || way == "dr_grpo";
  }
  [[nodiscard]] bool learns_from_answers() const { return verb == "ppo_ray"; }
};

struct RlhfTrap {
  std::string_view rule;
  std::string_view at;      // whose line is shown; nothing springs where it is not said
  std::string_view beside;  // what else it looks at: nothing springs where a run alone tells that
  bool (*springs)(const RlhfRun&);
  std::string_view message, instead, source;
};

constexpr std::string_view kPpoProgram = "OpenRLHF 3c3be623, openrlhf/cli/train_ppo_ray.py";

constexpr auto kRlhfTraps = std::to_array<RlhfTrap>({
    {"option_needs", "--ds.ring_attn_size", "--ds.packing_samples",
     [](const RlhfRun& r) {
       return !r.learns_from_answers() && r.figure("--ds.ring_attn_size", 1) > 1 &&
              !r.on("--ds.packing_samples");
     },
     "ring attention needs packed samples, and OpenRLHF stops", "--ds.packing_samples",
     "OpenRLHF 3c3be623, openrlhf/cli/train_sft.py:321"},
    {"option_needs", "--data.multiturn", "--data.apply_chat_template",
     [](const RlhfRun& r) {
       return r.verb == "sft" && r.on("--data.multiturn") && !r.on("--data.apply_chat_template");
     },
     "multiturn needs apply_chat_template, and OpenRLHF stops", "--data.apply_chat_template",
     "OpenRLHF 3c3be623, openrlhf/cli/train_sft.py:308"},
    {"options_exclude", "--ds.tensor_parallel_size", "--ds.param_dtype",
     [](const RlhfRun& r) {
       return r.figure("--ds.tensor_parallel_size", 1) > 1 &&
              word_of(r.s, "--ds.param_dtype") == "fp16";
     },
     "tensor parallelism takes bf16 alone, and OpenRLHF stops", "--ds.param_dtype bf16",
     "OpenRLHF 3c3be623, openrlhf/utils/deepspeed/deepspeed.py:78"},
    {"options_exclude", "--ds.load_in_4bit", "--ds.param_dtype",
     [](const RlhfRun& r) {
       return r.on("--ds.load_in_4bit") && word_of(r.s, "--ds.param_dtype") == "fp16";
     },
     "weights of 4 bits are computed with in bf16 alone, and OpenRLHF stops",
     "--ds.param_dtype bf16", "OpenRLHF 3c3be623, openrlhf/models/actor.py:116"},
    {"group_of_one", "--algo.advantage.estimator", "--rollout.n_samples_per_prompt",
     [](const RlhfRun& r) {
       return r.learns_from_answers() && r.judges_by_groups() &&
              r.figure("--rollout.n_samples_per_prompt", 1) <= 1;
     },
     "this estimator compares the answers to one prompt, of which there is one: OpenRLHF stops",
     "--rollout.n_samples_per_prompt 8, or more than 1",
     "OpenRLHF 3c3be623, openrlhf/cli/train_ppo_ray.py:615"},
    {"options_exclude", "--train.async_enable", "--vllm.enable_sleep",
     [](const RlhfRun& r) {
       return r.learns_from_answers() && r.on("--train.async_enable") &&
              r.on("--vllm.enable_sleep") && r.on("--train.colocate_all");
     },
     "engines cannot sleep while answers are made beside training, and OpenRLHF stops",
     "leave vllm enable_sleep out", "OpenRLHF 3c3be623, openrlhf/cli/train_ppo_ray.py:671"},
    {"option_needs", "--train.partial_rollout_enable", "--train.async_enable",
     [](const RlhfRun& r) {
       return r.on("--train.partial_rollout_enable") && !r.on("--train.async_enable");
     },
     "partial rollouts need asynchronous training, and OpenRLHF stops", "--train.async_enable",
     "OpenRLHF 3c3be623, openrlhf/cli/train_ppo_ray.py:673"},
    {"option_needs", "--ds.packing_samples", "--vllm.num_engines",
     [](const RlhfRun& r) {
       return r.learns_from_answers() && r.on("--ds.packing_samples") &&
              r.figure("--vllm.num_engines", 0) < 1;
     },
     "samples are packed where vLLM makes the answers alone, and OpenRLHF stops",
     "vllm num_engines of 1 or more", "OpenRLHF 3c3be623, openrlhf/cli/train_ppo_ray.py:661"},
    {"option_needs", "--rollout.vllm_generate_batch_size", "--train.async_enable",
     [](const RlhfRun& r) {
       return r.figure("--rollout.vllm_generate_batch_size", 0) >
                  r.figure("--rollout.batch_size", 1024) &&
              !r.on("--train.async_enable");
     },
     "more prompts than a rollout's need asynchronous training, and OpenRLHF stops",
     "vllm_generate_batch_size at most the rollout's batch_size",
     "OpenRLHF 3c3be623, openrlhf/cli/train_ppo_ray.py:694"},
    {"option_needs", "--algo.dynamic_filtering_enable", "--rollout.n_samples_per_prompt",
     [](const RlhfRun& r) {
       return r.on("--algo.dynamic_filtering_enable") &&
              r.figure("--rollout.n_samples_per_prompt", 1) <= 1;
     },
     "dynamic filtering compares the answers to one prompt, of which there is one: OpenRLHF stops",
     "--rollout.n_samples_per_prompt 8, or more than 1",
     "OpenRLHF 3c3be623, openrlhf/cli/train_ppo_ray.py:709"},
    {"option_needs", "--algo.dynamic_filtering_enable", "--reward.remote_url",
     [](const RlhfRun& r) {
       return r.on("--algo.dynamic_filtering_enable") && !r.s.has("--reward.remote_url") &&
              !r.s.has("--train.agent_func_path");
     },
     "dynamic filtering needs rewards of a function or a server, and OpenRLHF stops",
     "--reward.remote_url or --train.agent_func_path",
     "OpenRLHF 3c3be623, openrlhf/cli/train_ppo_ray.py:706"},
});

// ---- GPUs of those that share them ----

void check_shared_gpus(const RlhfRun& r, Findings& out) {
  if (!r.learns_from_answers()) return;
  for (const std::string_view key :
       {"--actor.num_nodes", "--actor.num_gpus_per_node", "--vllm.num_engines",
        "--vllm.tensor_parallel_size", "--ref.num_nodes", "--ref.num_gpus_per_node",
        "--algo.kl.init_coef"}) {
    if (r.open(key)) return;
  }
  const double actor = r.gpus("actor"), ref = r.gpus("ref");
  const double engines =
      r.figure("--vllm.num_engines", 0) * r.figure("--vllm.tensor_parallel_size", 1);
  const bool all = r.on("--train.colocate_all") && !r.on("--train.async_enable");
  const Setting* const at = r.s.find("--train.colocate_all");
  if (all && at != nullptr && engines > 0 && engines != actor) {
    out.push_back({error,
                   "engines_divide",
                   at->place,
                   fmt::format("colocated engines take {} GPUs, and the actor {}: OpenRLHF stops",
                               engines, actor),
                   "engines x their tensor parallelism that is the actor's GPUs",
                   fmt::format("{}:61", kPpoProgram),
                   {}});
  }
  const bool shares = r.on("--train.colocate_all") || r.on("--train.colocate_actor_ref");
  const Setting* const place = r.s.find(
      r.on("--train.colocate_actor_ref") ? "--train.colocate_actor_ref" : "--train.colocate_all");
  if (!shares || r.figure("--algo.kl.init_coef", 0.01) <= 0 || ref == actor) return;
  out.push_back({error,
                 "options_exclude",
                 place->place,
                 fmt::format("actor and reference share GPUs, and the actor has {} and the "
                             "reference {}: OpenRLHF stops",
                             actor, ref),
                 "as many nodes and GPUs a node for both",
                 fmt::format("{}:46", kPpoProgram),
                 {}});
}

// Batches of answers for all of the actor's ranks.
void check_answers(const RlhfRun& r, Findings& out) {
  const Setting* const at = r.s.find("--rollout.batch_size");
  if (!r.learns_from_answers() || at == nullptr) return;
  for (const std::string_view key :
       {"--rollout.batch_size", "--rollout.micro_batch_size", "--rollout.n_samples_per_prompt",
        "--actor.num_nodes", "--actor.num_gpus_per_node"}) {
    if (r.open(key)) return;
  }
  const double micro = r.figure("--rollout.micro_batch_size", r.on("flat names") ? 8 : 1);
  const double ranks = r.gpus("actor") / r.figure("--ds.ring_attn_size", 1) /
                       r.figure("--ds.tensor_parallel_size", 1);
  const double answers =
      r.figure("--rollout.n_samples_per_prompt", 1) * r.figure("--rollout.batch_size", 1024);
  if (micro < 1 || answers / micro >= ranks) return;
  out.push_back({error,
                 "rollout_batches",
                 at->place,
                 fmt::format("{} answers in micro-batches of {} are fewer batches than the actor's "
                             "{} ranks: OpenRLHF stops",
                             answers, micro, ranks),
                 fmt::format("a rollout's micro_batch_size of at most {}", answers / ranks),
                 fmt::format("{}:717", kPpoProgram),
                 {}});
}

// ---- what shares the actor's GPUs, and no plan counts ----

// A second model to compare with, whole unless ZeRO-3 shards it (openrlhf/utils/deepspeed/
// deepspeed.py, get_ds_eval_config).
void check_reference(const Scene& scene, const RlhfRun& r, Findings& out) {
  const bool dpo = r.verb == "dpo";
  const bool shares = r.on("--train.colocate_all") || r.on("--train.colocate_actor_ref");
  const bool compares =
      dpo || (r.learns_from_answers() && shares && r.figure("--algo.kl.init_coef", 0.01) > 0);
  if (!compares || r.on("--ref.offload") || r.open("--ds.zero_stage")) return;
  const Setting* at = r.s.find(r.on("--train.colocate_actor_ref") ? "--train.colocate_actor_ref"
                                                                  : "--train.colocate_all");
  if (dpo) at = r.s.find("verb");
  if (at == nullptr) return;
  const double gpus = dpo ? static_cast<double>(scene.question.limits.gpus) : r.gpus("actor");
  const bool sharded = r.figure("--ds.zero_stage", 2) == 3;
  const double ranks = sharded ? gpus : r.figure("--ds.tensor_parallel_size", 1);
  const double bytes = r.on("--ds.load_in_4bit") ? 0.5 : 2;
  const auto all = static_cast<double>(count_parameters(scene.question.model).total());
  out.push_back({note,
                 "reference_model",
                 at->place,
                 fmt::format("the reference stands on the GPUs that train, {} of weights on each, "
                             "which are not counted below, nor is its forward",
                             human_bytes(Bytes(bytes * all / std::max(1.0, ranks)))),
                 "--ref.offload keeps its weights on the host",
                 "OpenRLHF 3c3be623, openrlhf/cli/train_ppo_ray.py:98, openrlhf/cli/train_dpo.py; "
                 "arithmetic: 2 bytes a parameter, or half of one in 4 bits",
                 {}});
}

void check_engines_beside(const RlhfRun& r, Findings& out) {
  const bool shares = r.on("--train.colocate_all") && !r.on("--train.async_enable");
  if (!shares || r.figure("--vllm.num_engines", 0) < 1) return;
  const double share = r.figure("--vllm.gpu_memory_utilization", 0.95);
  if (r.open("--vllm.gpu_memory_utilization") || share <= 0 || share > 1) return;
  const bool sleeps = r.on("--vllm.enable_sleep");
  const bool much = share >= 0.8 && !sleeps;
  const Setting* at = r.s.find("--vllm.gpu_memory_utilization");
  if (at == nullptr) at = r.s.find("--train.colocate_all");
  out.push_back({much ? warning : note,
                 "vllm_share",
                 at->place,
                 fmt::format("vLLM keeps {} of each GPU's memory beside training{}, which is not "
                             "counted below: {:.2g} of it is left",
                             share, sleeps ? " while it generates" : "", 1 - share),
                 much ? "vllm enable_sleep, or a smaller vllm gpu_memory_utilization" : "",
                 "OpenRLHF 3c3be623, openrlhf/cli/train_ppo_ray.py:68",
                 {}});
}

// A model that is trained beside the policy, of whatever size its checkpoint has.
void check_critic(const RlhfRun& r, Findings& out) {
  const Setting* const critic = r.s.find("--critic.model_name_or_path");
  const bool shares = r.on("--train.colocate_all") && !r.on("--train.colocate_critic_reward");
  if (!r.learns_from_answers() || critic == nullptr || critic->value.is_null() || !shares) return;
  out.push_back({note,
                 "critic_model",
                 critic->place,
                 "the critic is trained on the policy's GPUs, and its weights, gradients and "
                 "states are not counted below: as many bytes as the policy's where it is as large",
                 "--train.colocate_critic_reward gives critic and reward GPUs of their own",
                 "OpenRLHF 3c3be623, openrlhf/cli/train_ppo_ray.py:129",
                 {}});
}

// ---- names of two generations ----

bool is_dotted(std::string_view key) {
  return key.starts_with("--") && key.find('.') != std::string_view::npos;
}

void check_spellings(const Scene& scene, const ConfigPart& part, Findings& out) {
  const Setting *dotted = nullptr, *flat = nullptr;
  for (const Setting& setting : part.settings) {
    if (dotted == nullptr && is_dotted(setting.key)) dotted = &setting;
    if (flat == nullptr && dotted_name(setting.key) != setting.key) flat = &setting;
  }
  if (flat == nullptr) return;
  const std::string now(dotted_name(flat->key));
  if (dotted == nullptr) {
    out.push_back({note,
                   "dropped_option",
                   flat->place,
                   fmt::format("{} and the other names without dots are of OpenRLHF before 0.10, "
                               "and later releases stop at them",
                               flat->key),
                   fmt::format("{} from 0.10 on", now),
                   "OpenRLHF 3c3be623, openrlhf/cli/train_sft.py",
                   {}});
    return;
  }
  for (const Setting& setting : part.settings) {
    const std::string name(dotted_name(setting.key));
    if (name == setting.key) continue;
    out.push_back(
        {error, "unknown_option", setting.place,
         fmt::format("{} is a name of OpenRLHF before 0.10, and {} one of later releases: "
                     "either stops at the other's",
                     setting.key, dotted->key),
         fmt::format("write {}", name), "OpenRLHF 3c3be623, openrlhf/cli/train_sft.py",
         with_key(scene, part, setting, name)});
  }
}

}  // namespace

void check_openrlhf(const Scene& scene, const ConfigPart& part, Findings& out) {
  const Settings dotted = dotted_openrlhf(part.settings);
  const RlhfRun run{dotted, word_of(part.settings, "verb", "sft")};
  for (const RlhfTrap& trap : kRlhfTraps) {
    const Setting* const at = dotted.find(trap.at);
    if (at == nullptr || !at->resolved || run.open(trap.beside) || !trap.springs(run)) continue;
    out.push_back({error,
                   std::string(trap.rule),
                   at->place,
                   fmt::format("{}: {}", written_name(part.settings, trap.at), trap.message),
                   std::string(trap.instead),
                   std::string(trap.source),
                   {}});
  }
  check_shared_gpus(run, out);
  check_answers(run, out);
  check_reference(scene, run, out);
  check_engines_beside(run, out);
  check_critic(run, out);
  check_spellings(scene, part, out);
}

}  // namespace qplan
