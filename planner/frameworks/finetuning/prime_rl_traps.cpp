// What prime-rl's classes refuse of a TOML before anything starts.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "models/text.h"
#include "planner/frameworks/finetuning/prime_rl.h"
#include "planner/frameworks/option_value.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

constexpr std::string_view kConfigs = "packages/prime-rl-configs/src/prime_rl/configs/";

// Keys of the trainer by the names that fine-tuning has.
struct PrimeRun {
  const Settings& toml;
  bool of_answers;
  [[nodiscard]] std::string key(std::string_view name) const {
    return fmt::format("{}{}", of_answers ? "trainer." : "", name);
  }
  [[nodiscard]] bool has(std::string_view name) const {
    return toml.has(key(name)) || toml.has_section(key(name) + ".");
  }
  [[nodiscard]] bool on(std::string_view name, bool otherwise = false) const {
    return toml.has(key(name)) ? is_switched_on(toml, key(name)) : otherwise;
  }
  [[nodiscard]] double figure(std::string_view name, double otherwise) const {
    return figure_of(toml, key(name), otherwise);
  }
  [[nodiscard]] std::string word(std::string_view name, std::string_view otherwise) const {
    return word_of(toml, key(name), otherwise);
  }
  [[nodiscard]] bool by_hugging_face() const { return word("model.impl", "auto") == "hf"; }
  [[nodiscard]] bool offloads_all() const {
    return has("model.full_offload") && word("model.full_offload", "true") != "false";
  }
};

struct PrimeTrap {
  std::string_view rule, at;  // at: a key by fine-tuning's name; "=": as it stands
  bool (*springs)(const PrimeRun&);
  std::string_view message, instead, source;
};

constexpr auto kTraps = std::to_array<PrimeTrap>({
    {"batch_divisibility", "=data.batch_size",
     [](const PrimeRun& r) {
       const auto batch = static_cast<std::int64_t>(figure_of(r.toml, "data.batch_size", 128));
       const auto micro = static_cast<std::int64_t>(figure_of(r.toml, "data.micro_batch_size", 1));
       return micro > 0 && batch % micro != 0;
     },
     "data.batch_size is no multiple of data.micro_batch_size, and prime-rl stops",
     "a multiple of it", "sft.py:54"},
    {"sequence_parts", "=data.seq_len",
     [](const PrimeRun& r) {
       const auto cp = static_cast<std::int64_t>(r.figure("model.cp", 1));
       return cp > 1 && static_cast<std::int64_t>(figure_of(r.toml, "data.seq_len", 128)) % cp != 0;
     },
     "data.seq_len is no multiple of model.cp, and prime-rl stops", "a multiple of it",
     "sft.py:526"},
    {"options_exclude", "=data.micro_batch_size",
     [](const PrimeRun& r) {
       return r.figure("model.cp", 1) > 1 && figure_of(r.toml, "data.micro_batch_size", 1) > 1;
     },
     "context parallelism takes micro-batches of one, and prime-rl stops",
     "data.micro_batch_size = 1", "sft.py:535"},
    {"option_needs", "=deployment.type",
     [](const PrimeRun& r) {
       return word_of(r.toml, "deployment.type") == "multi_node" && !r.toml.has("slurm") &&
              !r.toml.has_section("slurm.") && !r.of_answers;
     },
     "several nodes are started by Slurm alone, and prime-rl stops", "a table [slurm]",
     "sft.py:357"},
    {"node_gpus", "=deployment.num_train_gpus",
     [](const PrimeRun& r) {
       const bool engines = r.of_answers || r.toml.has_section("inference.");
       const double all = figure_of(r.toml, "deployment.num_train_gpus", 1) +
                          (engines ? figure_of(r.toml, "deployment.num_infer_gpus", 1) : 0);
       return word_of(r.toml, "deployment.type", "single_node") == "single_node" &&
              all > figure_of(r.toml, "deployment.gpus_per_node", 8);
     },
     "more GPUs train and answer than deployment.gpus_per_node has, and prime-rl stops",
     "fewer of them, or type = \"multi_node\"", "rl.py:186"},
    {"batch_divisibility", "=deployment.nodes_per_fsdp_group",
     [](const PrimeRun& r) {
       const auto nodes =
           static_cast<std::int64_t>(figure_of(r.toml, "deployment.num_train_nodes", 2));
       const auto group =
           static_cast<std::int64_t>(figure_of(r.toml, "deployment.nodes_per_fsdp_group", 1));
       return group > 0 && nodes % group != 0;
     },
     "deployment.nodes_per_fsdp_group does not divide the nodes that train, and prime-rl stops",
     "a divisor of them", "sft.py:593"},
    {"engines_divide", "=inference.vllm.tensor_parallel_size",
     [](const PrimeRun& r) {
       const bool several = word_of(r.toml, "deployment.type", "single_node") == "multi_node";
       const auto gpus =
           static_cast<std::int64_t>(several ? figure_of(r.toml, "deployment.gpus_per_node", 8)
                                             : figure_of(r.toml, "deployment.num_infer_gpus", 1));
       const auto degree =
           static_cast<std::int64_t>(figure_of(r.toml, "inference.vllm.tensor_parallel_size", 1));
       return degree > 0 && gpus % degree != 0;
     },
     "engines of so many GPUs do not divide those that make answers (of a node, where there are "
     "several), and prime-rl stops",
     "a divisor of them", "rl.py:702"},
    {"options_exclude", "model.fsdp_cpu_offload",
     [](const PrimeRun& r) {
       return r.on("model.fsdp_cpu_offload") &&
              (r.on("model.optim_cpu_offload", true) || r.offloads_all());
     },
     "fsdp_cpu_offload excludes optim_cpu_offload, which is on by itself: prime-rl stops",
     "optim_cpu_offload = false beside it", "trainer.py:325"},
    {"options_exclude", "model.full_offload",
     [](const PrimeRun& r) {
       return r.offloads_all() && r.on("model.optim_cpu_offload", true) &&
              !r.on("model.fsdp_cpu_offload");
     },
     "full_offload excludes optim_cpu_offload, which is on by itself: prime-rl stops",
     "optim_cpu_offload = false beside it", "trainer.py:327"},
    {"options_exclude", "optim.type",
     [](const PrimeRun& r) {
       return r.word("optim.type", "adamw") == "muon" && r.on("model.fsdp_cpu_offload");
     },
     "Muon has no fsdp_cpu_offload, and prime-rl stops", "fsdp_cpu_offload = false",
     "trainer.py:738"},
    {"options_exclude", "optim.type",
     [](const PrimeRun& r) {
       const std::string type = r.word("optim.type", "adamw");
       return r.offloads_all() && type != "adamw" && type != "sign_sgd";
     },
     "full_offload steps AdamW and SignSGD alone, and prime-rl stops", "type = \"adamw\"",
     "trainer.py:684"},
    {"options_exclude", "model.impl",
     [](const PrimeRun& r) {
       return r.by_hugging_face() && (r.figure("model.cp", 1) > 1 || r.figure("model.ep", 1) > 1);
     },
     "context and expert parallelism need prime-rl's own layers, and it stops",
     "impl = \"custom\" or \"auto\"", "trainer.py:301"},
    {"options_exclude", "model.impl",
     [](const PrimeRun& r) {
       return r.by_hugging_face() &&
              (r.word("model.ac.mode", "full") == "selective" || r.has("model.quantization") ||
               r.word("model.attn", "auto") == "auto" ||
               r.word("model.attn", "auto") == "flash_attention_4");
     },
     "selective checkpoints, quantized training and attn auto or flash_attention_4 need prime-rl's "
     "own layers, and it stops",
     "impl = \"custom\" or \"auto\"", "trainer.py:318"},
    {"option_needs", "model.ep_comm_backend",
     [](const PrimeRun& r) {
       return r.word("model.ep_comm_backend", "torch") == "deepep" &&
              r.toml.has(r.key("model.ep")) && r.figure("model.ep", 8) <= 1;
     },
     "DeepEP needs experts that are spread, and prime-rl stops", "model.ep above 1",
     "trainer.py:352"},
    {"option_needs", "model.vlm.vision_encoder_attr",
     [](const PrimeRun& r) {
       return r.word("model.optimization_dtype", "float32") != "bfloat16" ||
              r.word("model.reduce_dtype", "float32") != "bfloat16";
     },
     "a model that sees is trained in bfloat16 alone, and prime-rl stops",
     "optimization_dtype and reduce_dtype = \"bfloat16\"", "trainer.py:701"},
    {"option_needs", "scheduler.type",
     [](const PrimeRun& r) {
       return r.word("scheduler.type", "constant") == "cosine" && !r.toml.has("max_steps") &&
              !r.toml.has("trainer.max_steps");
     },
     "a cosine needs max_steps, and prime-rl stops", "max_steps", "trainer.py:409"},
    {"options_exclude", "scheduler.warmup_steps",
     [](const PrimeRun& r) {
       const double steps =
           figure_of(r.toml, r.toml.has("max_steps") ? "max_steps" : "trainer.max_steps", 0);
       const bool linear = r.word("scheduler.type", "constant") == "linear";
       const double decay = linear ? r.figure("scheduler.decay_steps", 10) : 1;
       return steps > 0 && r.word("scheduler.type", "constant") != "constant" &&
              r.figure("scheduler.warmup_steps", 10) + decay > steps;
     },
     "warm-up and decay take more steps than max_steps, and prime-rl stops", "fewer of them",
     "trainer.py:403"},
    {"options_exclude", "model.lora.rank",
     [](const PrimeRun& r) {
       const std::string way = word_of(r.toml, "weight_broadcast.type");
       return way == "nccl" || way == "nixl";
     },
     "adapters are handed to engines by files alone, and prime-rl stops",
     "weight_broadcast.type = \"filesystem\"", "trainer.py:744"},
});

// ---- names and values ----

// "rl.trainer.model.cp" of "trainer.model.cp"; lists of tables have no numbers there.
std::string listed(const PrimeRun& run, const std::string& key) {
  return (run.of_answers ? "rl." : "") + key;
}

bool is_open(const OptionList& list, const std::string& name) {
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const KnownOption* const section = list.find(name.substr(0, dot));
    if (section != nullptr && section->type == "dict") return true;
  }
  return false;
}

void check_names(const PrimeRun& run, std::vector<Finding>& out) {
  const OptionList& list = known_options("prime_rl");
  for (const Setting& setting : run.toml) {
    const std::string name = listed(run, setting.key);
    const bool engines = setting.key.starts_with("deployment.num_eval_");
    if (is_open(list, name) || engines) continue;
    if (const KnownOption* const known = list.find(name)) {
      const bool none = setting.value.is_string() && lower_case(text_of(setting.value)) == "none";
      const bool block = setting.value.is_object() || known->type == "dict";
      const std::string wanted =
          none || block ? "" : wanted_instead(*known, setting.value, ValueReader::json);
      if (wanted.empty()) continue;
      const std::string meant = certain_choice(text_of(setting.value), known->choices);
      out.push_back(
          {Severity::error,
           "refused_value",
           setting.place,
           fmt::format("{} must be {}, not {}", setting.key, wanted, shown(text_of(setting.value))),
           meant.empty() ? "" : fmt::format("did you mean {}?", meant),
           "qplan: planner/frameworks/options/prime_rl.tsv, prime-rl 559b44772's classes",
           {}});
      continue;
    }
    std::string near = slip_of_key(name, list);
    if (run.of_answers && near.starts_with("rl.")) near.erase(0, 3);
    Correction fix;
    const std::size_t dot = near.rfind('.');
    if (!near.empty() && setting.name.end > setting.name.begin &&
        setting.key.substr(0, setting.key.rfind('.') + 1) == near.substr(0, dot + 1)) {
      fix = Correction{
          {setting.place.file, setting.name.begin, setting.name.end, near.substr(dot + 1)}};
      fix.renames = true;
    }
    // Other releases have other keys.
    out.push_back({near.empty() ? Severity::warning : Severity::error, "unknown_option",
                   setting.place,
                   fmt::format("prime-rl 559b44772 has no key {}, and stops at it", setting.key),
                   near.empty() ? "" : fmt::format("did you mean {}?", near),
                   "qplan: planner/frameworks/options/prime_rl.tsv, prime-rl 559b44772's classes",
                   std::move(fix)});
  }
}

}  // namespace

std::vector<Finding> refusals_of_prime_rl(const Settings& toml) {
  const PrimeRun run{toml, toml.has_section("orchestrator.")};
  std::vector<Finding> out;
  check_names(run, out);
  for (const PrimeTrap& trap : kTraps) {
    const bool as_is = trap.at.starts_with('=');
    const Setting* const at = toml.find(as_is ? std::string(trap.at.substr(1)) : run.key(trap.at));
    if (at == nullptr || !trap.springs(run)) continue;
    out.push_back({Severity::error,
                   std::string(trap.rule),
                   at->place,
                   std::string(trap.message),
                   std::string(trap.instead),
                   fmt::format("prime-rl 559b44772, {}{}", kConfigs, trap.source),
                   {}});
  }
  return out;
}

}  // namespace qplan
