// What NeMo-RL and its engines refuse of its configuration, with the arithmetic.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "planner/frameworks/rl/nemo_rl_keys.h"
#include "planner/frameworks/rl/omega_checks.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using namespace nemo_rl;
using enum Severity;

class NemoCheck {
 public:
  NemoCheck(const Scene& scene, const ConfigPart& part, Findings& out)
      : scene_(scene), part_(part), out_(out), c_(part.settings) {}

  void run() {
    check_keys();
    if (lacks_parent(out_)) return check_two_trainers();
    check_world();
    check_back_ends();
    check_engines();
    check_batches();
    check_rate();
  }

 private:
  // Of Megatron's schedule, which asserts it when it is built.
  void check_rate() {
    const std::string block = "policy.megatron_cfg.";
    const Setting* const least = c_.said(block + "optimizer.min_lr");
    if (least == nullptr || !c_.on(block + "enabled") || c_.is_open(least->key) ||
        c_.is_open(block + "optimizer.lr")) {
      return;
    }
    const double low = c_.figure(least->key, 0);
    if (low >= 0 && low <= c_.figure(block + "optimizer.lr", low)) return;
    find(error, "option_needs", least->place,
         "min_lr lies between 0 and lr: the schedule stops the job when it is built",
         "min_lr, smaller than lr",
         "Megatron-LM d98e8a64, megatron/core/optimizer_param_scheduler.py:150");
  }

  [[nodiscard]] Place place_of(std::initializer_list<std::string> keys) const {
    for (const std::string& name : keys) {
      if (const Setting* const found = c_.said(name)) return found->place;
    }
    return part_.place;
  }

  void find(Severity severity, std::string_view rule, Place place, std::string message,
            std::string instead, std::string_view source, Correction fix = {}) {
    out_.push_back({severity, std::string(rule), std::move(place), std::move(message),
                    std::move(instead), std::string(source), std::move(fix)});
  }

  // An override names the whole key, a YAML the section alone.
  [[nodiscard]] Correction fix_of_section(const SectionSlip& slip, const OptionList& list) const {
    const std::string key = certain_key(slip.first->key, list);
    if (!key.starts_with(slip.real)) return {};
    return slip.first->syntax == Syntax::words ? with_key(scene_, part_, *slip.first, key)
                                               : renamed_section(scene_, slip);
  }

  // Classes have more keys than the configurations that are listed: only a slip is told.
  void check_keys() {
    constexpr std::string_view kKeys =
        "qplan: keys of NeMo-RL's own configurations (planner/frameworks/options/nemo_rl.tsv)";
    const OptionList& list = known_options("nemo_rl");
    for (const SectionSlip& slip : slipped_sections(part_.settings, list)) {
      Correction fix = fix_of_section(slip, list);
      // The line of its name, where it is known.
      const Place place = fix.empty() || slip.first->syntax == Syntax::words
                              ? slip.first->place
                              : Place{fix.front().file,
                                      line_of(scene_.text_of(fix.front().file), fix.front().begin)};
      find(error, "unknown_option", place,
           fmt::format("{}: NeMo-RL 7ea279ab has no section of that name, and nobody reads what "
                       "stands in it",
                       slip.written),
           fmt::format("did you mean {}?", slip.real), kKeys, std::move(fix));
    }
    for (const Setting& setting : part_.settings) {
      std::string near = slip_of_key(setting.key, list);
      const std::size_t dot = setting.key.rfind('.');
      const std::array<const OptionList*, 1> lists{&list};
      // One that is cut short ("gpu_mem_utilization").
      const bool known = list.find(setting.key) != nullptr || in_open_section(list, setting.key);
      if (near.empty() && !known && dot != std::string::npos) {
        near = certain_name(setting.key, lists);
      }
      if (near.empty() || dot == std::string::npos || near.rfind('.') != dot ||
          near.substr(0, dot) != setting.key.substr(0, dot)) {
        continue;
      }
      // A file that says both means both; that a parent says the right one is no sign.
      const auto says_near = [&](const Setting& other) {
        return other.key == near && other.place.file == setting.place.file;
      };
      if (std::any_of(part_.settings.begin(), part_.settings.end(), says_near)) continue;
      find(
          error, "unknown_option", setting.place,
          fmt::format("{} is a key that no configuration of NeMo-RL 7ea279ab has, and nobody reads "
                      "it",
                      setting.key),
          fmt::format("did you mean {}?", near), kKeys,
          certain_key(setting.key, list) == near || certain_name(setting.key, lists) == near
              ? with_key(scene_, part_, setting, near)
              : Correction{});
    }
    check_omega_values(scene_, part_, list, true, "NeMo-RL 7ea279ab",
                       "qplan: planner/frameworks/options/nemo_rl.tsv, the types of NeMo-RL "
                       "7ea279ab's MasterConfig",
                       out_);
    if (is_nemo_rl(part_.script)) {
      check_stray_words(part_, "NeMo-RL 7ea279ab, nemo_rl/utils/config.py (parse_hydra_overrides)",
                        out_);
    }
  }

  void check_world() {
    const std::int64_t gpus = scene_.question.limits.gpus, said = scene_.rl_gpus;
    if (said <= 0 || gpus <= 0 || said == gpus) return;
    find(error, "launched_world", place_of({"cluster.num_nodes", "cluster.gpus_per_node"}),
         fmt::format("cluster has {} nodes of {} GPUs = {}, not the job's {}",
                     c_.whole("cluster.num_nodes", 1), c_.whole("cluster.gpus_per_node", 1), said,
                     gpus),
         fmt::format("{} GPUs in all", gpus), "NeMo-RL 7ea279ab, nemo_rl/algorithms/grpo.py:857");
  }

  static constexpr std::string_view kPolicy =
      "NeMo-RL 7ea279ab, nemo_rl/models/policy/lm_policy.py";

  // Another section of a trainer's that the policy switches on; empty: there is none.
  [[nodiscard]] std::string other_trainer() const {
    constexpr std::string_view kSection = "policy.", kEnd = "_cfg.enabled";
    for (const Setting& setting : part_.settings) {
      const std::string_view key = setting.key;
      const bool on = setting.value.is_boolean() && setting.value.get<bool>();
      if (!on || !key.starts_with(kSection) || !key.ends_with(kEnd)) continue;
      const std::string section(key.substr(0, key.rfind('.')));
      if (section.find('.', kSection.size()) == std::string::npos) return section;
    }
    return "";
  }

  void check_two_trainers() {
    if (!c_.on(under(kShards, "enabled")) || !by_megatron_cfg(c_)) return;
    find(error, "two_trainers", place_of({under(kMegatron, "enabled")}),
         "dtensor_cfg and megatron_cfg are both enabled: NeMo-RL raises an error",
         "dtensor_cfg.enabled: false", kPolicy);
  }

  void check_back_ends() {
    const bool shards = c_.on(under(kShards, "enabled")), megatron = by_megatron_cfg(c_);
    check_two_trainers();
    if (!shards && !megatron && c_.said("policy.model_name") != nullptr) {
      // A copy of NeMo-RL may have one more ("policy.dtensor_v2_cfg.enabled").
      const std::string other = other_trainer();
      find(other.empty() ? error : warning, "no_trainer",
           place_of({under(kMegatron, "enabled"), under(kShards, "enabled")}),
           fmt::format("neither dtensor_cfg nor megatron_cfg is enabled: nothing trains{}",
                       other.empty() ? "" : fmt::format(", unless a copy of it reads {}", other)),
           "megatron_cfg.enabled: true", kPolicy);
    }
    if (c_.on("policy.sequence_packing.enabled") && c_.on("policy.dynamic_batching.enabled")) {
      find(error, "two_batchings", place_of({"policy.dynamic_batching.enabled"}),
           "sequence_packing and dynamic_batching exclude each other: NeMo-RL asserts it",
           "dynamic_batching.enabled: false", kPolicy);
    }
  }

  void check_engines() {
    if (!scene_.step) return;
    const Gpus said = gpus_of(c_);
    const std::int64_t gpus = scene_.question.limits.gpus;
    const bool apart = !c_.on(under(kEngine, "colocated.enabled"), true);
    if (apart && said.engines == 0) {
      find(error, "no_engines",
           place_of({under(kEngine, "colocated.resources.num_nodes"),
                     under(kEngine, "colocated.enabled")}),
           "generation is not colocated, and no GPUs are set aside for it: NeMo-RL asserts it",
           "generation.colocated.resources.num_nodes, or gpus_per_node on a single node",
           "NeMo-RL 7ea279ab, nemo_rl/algorithms/grpo.py:867");
      return;
    }
    if (apart && !check_shares()) return;
    const EngineKeys* const engine = engine_of(c_);
    if (engine == nullptr) return;
    const RolloutLayout& layout = scene_.step->layout;
    // Of GPUs of their own as many as the files say: that they are not the job's is said above.
    const std::int64_t on = apart ? said.engines : gpus, each = layout.gpus();
    const std::string tp = under(kEngine, engine->tp);
    if (on % each != 0) {
      find(error, "rollout_divisibility", place_of({tp}),
           fmt::format("{} GPUs that make answers are no whole number of engines of {} ({})", on,
                       each, to_string(layout)),
           "degrees of the engine that divide them",
           "NeMo-RL 7ea279ab, nemo_rl/models/generation/vllm/vllm_generation.py:121");
    }
    if (engine->backend == "vllm" && layout.ep > 1 && layout.ep % layout.tp != 0) {
      find(error, "rollout_experts", place_of({under(kEngine, engine->ep)}),
           fmt::format("vLLM's expert_parallel_size {} is no multiple of its tensor_parallel_size "
                       "{}",
                       layout.ep, layout.tp),
           fmt::format("a multiple of {}", layout.tp),
           "NeMo-RL 7ea279ab, nemo_rl/models/generation/vllm/vllm_generation.py:135");
    }
    const std::string async = "grpo.async_grpo.enabled";
    if (c_.on(async) && !apart) {
      find(error, "async_colocated", place_of({async}),
           "async_grpo trains on older answers while others are made, and generation shares its "
           "GPUs: NeMo-RL asserts that it does not",
           "generation.colocated.enabled: false",
           "NeMo-RL 7ea279ab, nemo_rl/algorithms/grpo.py:4177");
    }
  }

  // Of a single node a part makes answers, of several whole ones. False: none is left to train.
  bool check_shares() {
    const std::string nodes = under(kEngine, "colocated.resources.num_nodes");
    const std::string gpus = under(kEngine, "colocated.resources.gpus_per_node");
    const std::int64_t all = c_.whole("cluster.num_nodes", 1), engines = c_.whole(nodes, 0);
    const std::int64_t each = c_.whole("cluster.gpus_per_node", 1), of_node = c_.whole(gpus, 0);
    if (c_.is_open(nodes) || c_.is_open(gpus) || c_.is_open("cluster.num_nodes") ||
        c_.is_open("cluster.gpus_per_node")) {
      return true;
    }
    const bool none_left = all == 1 ? of_node >= each : engines >= all;
    if (none_left) {
      find(error, "no_trainers", place_of({all == 1 ? gpus : nodes, "cluster.num_nodes"}),
           fmt::format("{} of {} {} make answers, and none is left to train: NeMo-RL asserts that "
                       "some are",
                       all == 1 ? of_node : engines, all == 1 ? each : all,
                       all == 1 ? "GPUs" : "nodes"),
           "fewer of them under generation.colocated.resources",
           all == 1 ? "NeMo-RL 7ea279ab, nemo_rl/algorithms/grpo.py:886"
                    : "NeMo-RL 7ea279ab, nemo_rl/algorithms/grpo.py:912");
    }
    if (all == 1 && engines > 1) {
      find(error, "engine_nodes", place_of({nodes}),
           fmt::format("the only node makes answers and trains, and {} are said to make answers: "
                       "NeMo-RL asserts that it is 1",
                       engines),
           fmt::format("{}: 1, or null", nodes),
           "NeMo-RL 7ea279ab, nemo_rl/algorithms/grpo.py:874");
    }
    if (all > 1 && of_node != each) {
      find(error, "engine_nodes", place_of({gpus, nodes}),
           fmt::format("{} is {}, and of several nodes whole ones make answers: NeMo-RL asserts "
                       "that it is cluster.gpus_per_node, {}",
                       gpus, c_.value(gpus).is_null() ? "not said" : fmt::format("{}", of_node),
                       each),
           fmt::format("{}: {}", gpus, each), "NeMo-RL 7ea279ab, nemo_rl/algorithms/grpo.py:902");
    }
    return !none_left;
  }

  void check_batches() {
    const std::int64_t batch = c_.whole("policy.train_global_batch_size", 0);
    const ParallelPlan& plan = scene_.draft.plan;
    const Place place = place_of({"policy.train_global_batch_size"});
    constexpr std::string_view kShardBatch = "NeMo-RL 7ea279ab, nemo_rl/algorithms/grpo.py:4671";
    if (scene_.step) {
      const RlJob& job = scene_.step->job;
      if (batch > 0 && job.answers() % batch != 0) {
        find(batch > job.answers() ? error : warning, "batch_arithmetic", place,
             fmt::format("{} answers of a step ({} prompts x {}) are no whole number of optimizer "
                         "steps of {} (train_global_batch_size)",
                         job.answers(), job.prompts, job.samples, batch),
             "a train_global_batch_size that divides them", kShardBatch);
      }
      if (job.answers() % plan.dp != 0) {
        find(error, "batch_arithmetic", place,
             fmt::format("{} answers of a step ({} prompts x {}) do not divide among {} "
                         "data-parallel ranks",
                         job.answers(), job.prompts, job.samples, plan.dp),
             fmt::format("a multiple of {}", plan.dp), kShardBatch);
      }
    }
    if (batch <= 0) return;
    const std::int64_t micro =
        std::max<std::int64_t>(1, c_.whole("policy.train_micro_batch_size", 1));
    const bool by_tokens =
        c_.on("policy.sequence_packing.enabled") || c_.on("policy.dynamic_batching.enabled");
    if (batch % plan.dp != 0) {
      find(error, "batch_arithmetic", place,
           fmt::format("train_global_batch_size {} is no multiple of {} data-parallel ranks", batch,
                       plan.dp),
           fmt::format("a multiple of {}", plan.dp),
           "NeMo-RL 7ea279ab, nemo_rl/distributed/batched_data_dict.py (shard_by_batch_size)");
    } else if (!by_tokens && batch / plan.dp % micro != 0) {
      find(error, "batch_arithmetic", place_of({"policy.train_micro_batch_size"}),
           fmt::format("{} samples of each of {} data-parallel ranks are no multiple of "
                       "train_micro_batch_size {}",
                       batch / plan.dp, plan.dp, micro),
           "a train_micro_batch_size that divides them",
           "NeMo-RL 7ea279ab, nemo_rl/distributed/batched_data_dict.py (make_microbatch_iterator)");
    }
  }

  const Scene& scene_;
  const ConfigPart& part_;
  Findings& out_;
  OmegaConfig c_;
};

}  // namespace

void check_nemo_rl(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect == Dialect::nemo_rl) NemoCheck(scene, part, out).run();
  }
}

}  // namespace qplan
