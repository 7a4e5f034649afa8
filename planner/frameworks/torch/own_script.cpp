// What a training program of one's own makes of a plan.

#include "planner/frameworks/readers/own_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "models/error.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

bool names(const Setting* setting, std::string_view word) {
  return setting != nullptr && text_of(setting->value).find(word) != std::string::npos;
}

bool is(const Setting* setting, std::string_view word) {
  return setting != nullptr && text_of(setting->value) == word;
}

void take_recipe(Draft& draft, RecipeKind recipe) {
  draft.recipe = recipe;
  draft.plan.overlap = recipe_of(recipe).defaults.overlap;
}

void offload_all(ParallelPlan& plan) {
  plan.offload.params = true;
  plan.offload.optimizer = 1;
}

// The ranks that share states in a mesh of copies and shards; 0: it does not say.
int shards_of_mesh(const Settings& s) {
  const Setting* const mesh = s.find("mesh");
  if (mesh == nullptr || mesh->value.size() < 2) return 0;
  const Setting* const names_said = s.find("mesh.names");
  const Json names = names_said == nullptr ? Json::array() : names_said->value;
  // Copies first, as both FSDPs take a mesh of two; another dimension has a name of its own.
  std::size_t at = mesh->value.size() == 2 && names.empty() ? 1 : mesh->value.size();
  bool copies = names.empty();
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), mesh->value.size()); ++i) {
    const std::string name = text_of(names[i]);
    const bool replicates = name.find("repl") != std::string::npos || name == "ddp";
    copies = copies || replicates;
    if (!replicates && (name.find("shard") != std::string::npos || name == "fsdp")) at = i;
  }
  if (!copies || at >= mesh->value.size() || !mesh->value[at].is_number_integer()) return 0;
  return static_cast<int>(whole_of(mesh->value[at], 1, 1 << 20));
}

void settle_fsdp(Draft& draft, const Settings& s, int gpus_per_node) {
  ParallelPlan& plan = draft.plan;
  take_recipe(draft, RecipeKind::fsdp1);
  const Setting* strategy = s.find("FSDP.sharding_strategy");
  if (strategy == nullptr) strategy = s.find("FSDP.layer.sharding_strategy");
  const bool hybrid = names(strategy, "HYBRID_SHARD");
  plan.zero = names(strategy, "SHARD_GRAD_OP") || names(strategy, "ZERO2") ? 2 : 3;
  if (names(strategy, "NO_SHARD")) plan.fsdp_shard = 1;
  const int of_mesh = shards_of_mesh(s);
  if (hybrid) plan.fsdp_shard = of_mesh > 0 ? of_mesh : gpus_per_node;
  if (names(s.find("FSDP.cpu_offload"), "True")) offload_all(plan);
}

void settle_fully_shard(Draft& draft, const Settings& s) {
  ParallelPlan& plan = draft.plan;
  take_recipe(draft, RecipeKind::fsdp2);
  // The root's is another thing: it stays gathered from forward to backward by itself.
  const Setting* const reshard =
      s.find(s.has_section("fully_shard.layer.") ? "fully_shard.layer.reshard_after_forward"
                                                 : "fully_shard.reshard_after_forward");
  plan.zero = reshard != nullptr && same_value(reshard->value, Json(false)) ? 2 : 3;
  plan.fsdp_shard = shards_of_mesh(s);
  const Setting* const offload = s.find("fully_shard.offload");
  if (offload != nullptr && truth_of(offload->value)) offload_all(plan);
}

// Every rank holds all of it. Weights that are trained in 16 bits without others of 32 beside them
// are what fsdp1 has with one rank a shard; ddp's recipe keeps master weights.
void settle_ddp(Draft& draft, bool narrow) {
  ParallelPlan& plan = draft.plan;
  if (narrow && plan.lora_rank == 0) {
    take_recipe(draft, RecipeKind::fsdp1);
    plan.fsdp_shard = 1;
    plan.zero = 3;
    return;
  }
  take_recipe(draft, RecipeKind::ddp);
  plan.zero = plan.fsdp_shard = 0;
}

}  // namespace

// Formats of products, sums and states.
void settle_formats(Draft& draft, const Settings& s, std::string_view weights) {
  ParallelPlan& plan = draft.plan;
  const Setting* const products = s.find("mixed_precision.param_dtype");
  const Setting* const sums = s.find("mixed_precision.reduce_dtype");
  const bool half = is(products, "fp16") || (products == nullptr && weights == "fp16");
  if (half) plan.precision = Precision::fp16;
  const DType narrow = half ? DType::fp16 : DType::bf16;
  const bool narrow_weights = weights == "bf16" || weights == "fp16";
  // Gradients are reduced in the format of the products, unless it is said.
  const bool narrow_products = products != nullptr ? !is(products, "fp32") : narrow_weights;
  if (is(sums, "fp32")) {
    plan.grad_dtype = DType::fp32;
  } else if (is(sums, "bf16") || is(sums, "fp16") || (sums == nullptr && narrow_products)) {
    plan.grad_dtype = narrow;
  }
  // peft keeps adapters in fp32 beside narrower weights (autocast_adapter_dtype).
  if (!narrow_weights || s.has("lora")) return;
  const DType own = weights == "bf16" ? DType::bf16 : DType::fp16;
  plan.main_params_dtype = plan.moment_dtype = own;
}

std::string weights_of_script(const Settings& own_script, const Json& config) {
  const Setting* const said = own_script.find("weights");
  if (said == nullptr) return "";
  std::string format = text_of(said->value);
  if (format != "auto") return format;
  // What the checkpoint has; where the configuration does not say, as built-in ones, bf16 as nearly
  // all that are published.
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_string()) continue;
    const auto name = found->get<std::string>();
    return name == "float16" ? "fp16" : name == "float32" ? "fp32" : "bf16";
  }
  return "bf16";
}

void read_recompute(Draft& draft, const Settings& own_script) {
  const Setting* const said = own_script.find("recompute");
  if (said == nullptr || !said->resolved) return;
  if (said->value.is_string()) {
    draft.plan.recompute = {RecomputeKind::selective, {}, 0};
  } else if (truth_of(said->value)) {
    draft.plan.recompute = {RecomputeKind::full, {}, 0};
  }
}

namespace {

// Both tables are trained or none is: a plan has no word for one.
void read_saved_modules(ParallelPlan& plan, const Setting& saved,
                        std::vector<std::string>& assumed) {
  if (!saved.resolved || saved.value.is_null()) return;
  bool embedding = false, head = false;
  std::string others;
  for (const std::string& name : list_of(saved.value)) {
    if (name == "embed_tokens") {
      embedding = true;
    } else if (name == "lm_head") {
      head = true;
    } else {
      others += (others.empty() ? "" : ", ") + name;
    }
  }
  plan.lora_embeddings = embedding && head;
  if (embedding != head) {
    assumed.push_back(fmt::format("{} is left frozen: a plan trains embedding and head, or neither",
                                  embedding ? "embed_tokens" : "lm_head"));
  }
  if (!others.empty()) {
    assumed.push_back(fmt::format("{} is left frozen, which no plan names", shown(others)));
  }
}

}  // namespace

std::vector<std::string> read_lora(Draft& draft, const Settings& own_script) {
  std::vector<std::string> assumed;
  if (!own_script.has("lora")) return assumed;
  // peft's own defaults (0.19, tuners/lora/config.py).
  const auto number = [&](const std::string& key, std::int64_t otherwise) {
    const Setting* const found = own_script.find("lora." + key);
    if (found != nullptr && found->resolved) {
      try {
        return whole_of(found->value, 1, 1 << 20);
      } catch (const Error& error) {
        throw Error(fmt::format("{} {}", key, error.what()));
      }
    }
    assumed.push_back(fmt::format(
        "{} {} of LoraConfig: {}", key, otherwise,
        found == nullptr ? "the program does not say" : "only a run can tell what it says"));
    return otherwise;
  };
  ParallelPlan& plan = draft.plan;
  plan.lora_rank = static_cast<int>(number("r", 8));
  plan.lora_alpha = static_cast<int>(number("lora_alpha", 8));
  const Setting* const targets = own_script.find("lora.target_modules");
  const Setting* const dropout = own_script.find("lora.lora_dropout");
  if (dropout != nullptr && dropout->resolved) plan.lora_dropout = number_of(dropout->value);
  const Setting* const dora = own_script.find("lora.use_dora");
  plan.dora = dora != nullptr && dora->resolved && truth_of(dora->value);
  if (const Setting* const saved = own_script.find("lora.modules_to_save")) {
    read_saved_modules(plan, *saved, assumed);
  }
  if (const Setting* const frozen = own_script.find("frozen")) {
    plan.frozen_weights = from_word<FrozenFormat>(text_of(frozen->value));
    if (own_script.has("frozen.fp4")) assumed.emplace_back("weights in nf4, which has fp4's bytes");
  }
  if (same_value(targets == nullptr ? Json(nullptr) : targets->value, Json("all-linear"))) {
    return assumed;
  }
  std::string others;
  if (targets != nullptr && targets->resolved && targets->value.is_array()) {
    for (const Json& target : targets->value) {
      try {
        plan.lora_targets.add(from_word<LoraTarget>(text_of(target)));
      } catch (const Error&) {
        others += (others.empty() ? "" : ", ") + text_of(target);
      }
    }
    if (!others.empty()) {
      assumed.push_back(fmt::format("no adapters of {}, which no plan names", shown(others)));
    }
  }
  if (plan.lora_targets.empty()) {
    // What peft takes of Llama, Qwen and Mistral (utils/constants.py).
    plan.lora_targets.add(LoraTarget::q_proj);
    plan.lora_targets.add(LoraTarget::v_proj);
    assumed.emplace_back("adapters of q_proj and v_proj, as peft has them where nobody says");
  }
  return assumed;
}

void settle_trainer(Draft& draft, const Settings& trainer, const Settings& own_script,
                    const Json& config, int gpus_per_node) {
  const std::string weights = weights_of_script(own_script, config);
  const Setting* const fsdp = trainer.find("--fsdp");
  const bool said = fsdp != nullptr && fsdp->resolved && !same_value(fsdp->value, Json(false)) &&
                    !text_of(fsdp->value).empty();
  if (!said || names(fsdp, "no_shard")) {
    settle_ddp(draft, weights == "bf16" || weights == "fp16");
    return settle_formats(draft, own_script, weights);
  }
  // By words, as the first FSDP had them, or true.
  const bool words = names(fsdp, "shard");
  take_recipe(draft, words ? RecipeKind::fsdp1 : RecipeKind::fsdp2);
  if (words) draft.plan.grad_dtype = recipe_of(RecipeKind::fsdp1).defaults.grad_dtype;
  draft.plan.zero = names(fsdp, "shard_grad_op") || names(fsdp, "zero2") ? 2 : 3;
  if (names(fsdp, "hybrid_shard")) draft.plan.fsdp_shard = gpus_per_node;
  if (names(fsdp, "offload")) offload_all(draft.plan);
}

void settle_own_script(Draft& draft, const Settings& own_script, const Json& config,
                       std::int64_t gpus, int gpus_per_node) {
  const std::string_view wrapper = wrapper_of(own_script);
  const std::string weights = weights_of_script(own_script, config);
  if (wrapper == "FSDP") settle_fsdp(draft, own_script, gpus_per_node);
  if (wrapper == "fully_shard") settle_fully_shard(draft, own_script);
  if (wrapper == "DDP") settle_ddp(draft, weights == "bf16" || weights == "fp16");
  settle_formats(draft, own_script, weights);
  const bool whole = draft.plan.fsdp_shard > 1 && gpus > 0 && draft.plan.fsdp_shard >= gpus;
  if (whole) draft.plan.fsdp_shard = 0;
}

}  // namespace qplan
