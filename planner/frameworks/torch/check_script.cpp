#include "planner/frameworks/torch/check_script.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/text.h"
#include "planner/frameworks/readers/own_script.h"
#include "planner/frameworks/torch/python_names.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

using enum Severity;

std::string bytes_text(std::int64_t parameters, int each) {
  return human_bytes(Bytes(static_cast<double>(parameters) * each));
}

// "Qwen3DecoderLayer", or several; empty: not known.
std::string layer_classes(const Scene& scene) {
  std::string names(decoder_layer_class(scene.question.model.architecture));
  const std::size_t comma = names.find(',');
  return comma == std::string::npos ? names : names.insert(comma + 1, " ");
}

std::string policy(const Scene& scene) {
  const std::string classes = layer_classes(scene);
  return fmt::format(
      "auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, "
      "transformer_layer_cls={{{}}})",
      classes.empty() ? "<decoder layer>" : classes);
}

// Behind the model that is wrapped, with the imports that it needs.
Correction policy_correction(const Scene& scene, const Settings& s) {
  Correction correction;
  const std::string names = layer_classes(scene);
  const Setting* const module = s.find("FSDP.module");
  if (names.empty() || module == nullptr) {
    correction.why_not = names.empty() ? "the class of its decoder layer is not known here"
                                       : "what is wrapped does not stand in the call";
    return correction;
  }
  std::string folder = scene.question.model.architecture;
  constexpr std::string_view kText = "_text";
  if (folder.ends_with(kText)) folder.resize(folder.size() - kText.size());
  const std::string& file = module->place.file;
  for (const ConfigText& text : scene.files.texts) {
    if (text.name != file) continue;
    const ImportEdits imports =
        import_lines(text.text, file,
                     {{"", "functools"},
                      {"torch.distributed.fsdp.wrap", "transformer_auto_wrap_policy"},
                      {fmt::format("transformers.models.{0}.modeling_{0}", folder), names}});
    if (!imports.found) {
      correction.why_not = "the file imports nothing, and the policy needs imports";
      return correction;
    }
    correction = imports.edits;
  }
  correction.push_back(
      {file, module->whole.end, module->whole.end, fmt::format(", {}", policy(scene))});
  return correction;
}

// All of the model is gathered at once, and as much of gradients is there before they are reduced.
void check_units(const Scene& scene, const Settings& s, Findings& out) {
  if (!is_one_unit(s)) return;
  const ModelSpec& model = scene.question.model;
  const std::int64_t all = count_parameters(model).total();
  std::int64_t layer = 0;
  for (const LayerKind& kind : model.layers) layer = std::max(layer, layer_parameters(model, kind));
  const bool first = s.has("FSDP");
  const Setting& call = *s.find(wrapper_of(s));
  if (s.has("FSDP.wrap_policy")) return;  // given by a name that it has not
  out.push_back(
      {error, "no_wrap_policy", call.place,
       fmt::format("{} the whole model is one unit, gathered at once on every GPU before the first "
                   "layer runs: {} of weights in 16 bits and, in backward, as much of gradients, "
                   "on however many GPUs; of one layer it is {}",
                   first ? "without auto_wrap_policy" : "where fully_shard is called once",
                   bytes_text(all, 2), bytes_text(layer, 2)),
       first ? policy(scene) : "for layer in <layers>: fully_shard(layer), before the whole model",
       first ? "PyTorch 2.11, torch/distributed/fsdp/fully_sharded_data_parallel.py"
             : "PyTorch 2.11, torch/distributed/fsdp/_fully_shard/_fully_shard.py",
       first ? policy_correction(scene, s) : Correction{}});
}

// Adam adds small steps to weights that have 8 bits of fraction, and keeps its moments in them too.
void check_weights(const Scene& scene, const Settings& s, Findings& out) {
  const std::string format = weights_of_script(s, scene.question.config);
  if ((format != "bf16" && format != "fp16") || s.has("lora")) return;
  const std::int64_t all = count_parameters(scene.question.model).total();
  out.push_back(
      {warning, "narrow_weights", s.find("weights")->place,
       fmt::format("weights are loaded in {0} and stay so: gradients and Adam's moments are {0} "
                   "too, 8 bytes a parameter ({1} in all) where fp32 takes 16 ({2}), and an update "
                   "below half of a weight's last digit is lost",
                   format, bytes_text(all, 8), bytes_text(all, 16)),
       "torch_dtype=torch.float32 with MixedPrecision(param_dtype=torch.bfloat16); or an optimizer "
       "that rounds by chance",
       "PyTorch 2.11, torch/optim/adam.py (zeros_like of the parameter)"});
}

// DDP's buckets, which hold the gradients once more; of adapters they are small. Recipe ddp counts
// 16 bits of them.
std::string buckets_text(const Scene& scene, const Settings& s) {
  const Setting* const view = s.find("DDP.gradient_as_bucket_view");
  const bool views = view != nullptr && same_value(view->value, Json(true));
  const ParallelPlan& plan = scene.draft.plan;
  if (views || plan.lora_rank > 0) return "";
  const std::int64_t all = count_parameters(scene.question.model).total();
  const std::string format = weights_of_script(s, scene.question.config);
  const int each = format == "bf16" || format == "fp16" ? 2 : 4;
  const bool half = scene.draft.recipe == RecipeKind::ddp && each == 4;
  return fmt::format("; its buckets hold the gradients once more, {}, {} not counted below",
                     bytes_text(all, each), half ? "half of which is" : "which is");
}

// DDP, by itself or by a Trainer.
void check_copies(const Scene& scene, const Settings& s, Findings& out) {
  const Setting* const call = s.find("DDP");
  const ConfigPart* const trainer = scene.files.find(Dialect::trainer);
  const RecipeKind recipe = scene.draft.recipe;
  const bool copies = recipe == RecipeKind::ddp ||
                      (recipe == RecipeKind::fsdp1 && scene.draft.plan.fsdp_shard == 1);
  if (wrapper_of(s) != "DDP" && !(trainer != nullptr && copies && wrapper_of(s).empty())) return;
  if (call == nullptr && scene.question.limits.gpus == 1) return;  // nothing is copied
  const std::string buckets = buckets_text(scene, s);
  const bool adapters = scene.draft.plan.lora_rank > 0;
  out.push_back(
      {note, "replicated", call != nullptr ? call->place : trainer->place,
       fmt::format(
           "{}: every GPU holds all {}{}",
           call != nullptr ? "DistributedDataParallel" : "a Trainer that nothing shards is DDP",
           adapters ? "frozen weights, and the adapters with their gradients and moments"
                    : "weights, gradients and moments",
           buckets),
       trainer != nullptr && trainer->derived
           ? "give the accelerate configuration that starts it, if one does; or deepspeed: a "
             "ds_config.json of ZeRO"
       : buckets.empty()
           ? "fully_shard shards them"
           : "fully_shard shards them; gradient_as_bucket_view=True makes one of the two copies",
       "PyTorch 2.11, torch/nn/parallel/distributed.py (gradient_as_bucket_view)"});
}

// peft makes what is not quantised fp32, the embedding among it, and so the residual stream.
void check_residual(const Scene& scene, const Settings& s, Findings& out) {
  const Setting* const kbit = s.find("kbit");
  const ParallelPlan& plan = scene.draft.plan;
  const ModelSpec& model = scene.question.model;
  if (kbit == nullptr || plan.lora_rank == 0) return;
  const std::int64_t tokens = plan.micro_batch_size * plan.seq_len / plan.cp;
  const auto layers = static_cast<std::int64_t>(model.layers.size());
  out.push_back(
      {note, "fp32_residual", kbit->place,
       fmt::format(
           "prepare_model_for_kbit_training makes embeddings and norms fp32, and the residual "
           "stream with them: what every layer is given takes {} more than 16 bits do (2 bytes x "
           "{} tokens x {} wide x {} layers), which is not counted below",
           human_bytes(Bytes(2.0 * static_cast<double>(tokens * model.hidden_size * layers))),
           tokens, model.hidden_size, layers),
       "leave the call out and freeze the weights by get_peft_model alone, or make the embedding "
       "16 bits again",
       "PEFT 0.19, src/peft/utils/other.py (prepare_model_for_kbit_training); arithmetic: 2 bytes "
       "a number"});
}

}  // namespace

void check_own_script(const Scene& scene, Findings& out) {
  Settings all;
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect == Dialect::own_script) all.append(part.settings);
  }
  check_residual(scene, all, out);
  // accelerate wraps the model by itself, and its FSDP makes the weights fp32.
  if (scene.files.find(Dialect::accelerate) != nullptr) return;
  const RecipeKind recipe = scene.draft.recipe;
  const bool ours = recipe == RecipeKind::fsdp1 || recipe == RecipeKind::fsdp2;
  if (!ours && recipe != RecipeKind::ddp) return;
  if (wrapper_of(all).empty()) return check_copies(scene, all, out);
  check_units(scene, all, out);
  check_weights(scene, all, out);
  check_copies(scene, all, out);
}

}  // namespace qplan
