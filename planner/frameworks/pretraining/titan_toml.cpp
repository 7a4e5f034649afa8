#include "planner/frameworks/pretraining/titan_toml.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "planner/frameworks/finetuning/job_maker.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

// By sections whose keys went elsewhere as they were ("float8." in front), and by single keys
// (options/torchtitan_toml_older.tsv has them all).
constexpr auto kOldTitanNames = std::to_array<OldTitanName>({
    {"checkpoint.enable_checkpoint", "checkpoint.enable"},
    {"checkpoint.initial_load_model_weights_only", "checkpoint.initial_load_model_only"},
    {"checkpoint.last_save_model_weights_only", "checkpoint.last_save_model_only"},
    {"checkpoint.model_weights_only", "checkpoint.last_save_model_only"},
    {"experimental.context_parallel_degree", "parallelism.context_parallel_degree"},
    {"experimental.context_parallel_rotate_method", "parallelism.context_parallel_rotate_method"},
    {"experimental.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"},
    {"experimental.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"},
    {"experimental.pipeline_parallel_microbatches",
     "parallelism.pipeline_parallel_microbatch_size"},
    {"experimental.pipeline_parallel_schedule", "parallelism.pipeline_parallel_schedule"},
    {"experimental.pipeline_parallel_schedule_csv", "parallelism.pipeline_parallel_schedule_csv"},
    {"experimental.pipeline_parallel_split_points", "parallelism.module_fqns_per_model_part"},
    {"float8.emulate", "quantize.linear.float8.emulate"},
    {"float8.enable_float8_linear", "model.converters"},
    {"float8.enable_fsdp_float8_all_gather",
     "quantize.linear.float8.enable_fsdp_float8_all_gather"},
    {"float8.filter_fqns", "quantize.linear.float8.filter_fqns"},
    {"float8.precompute_float8_dynamic_scale_for_fsdp",
     "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"},
    {"float8.recipe_name", "quantize.linear.float8.recipe_name"},
    {"job.print_args", "job.print_config"},
    {"lr_scheduler.lr_min", "lr_scheduler.min_lr_factor"},
    {"memory_estimation.enabled", "memory_estimation.enable"},
    {"metrics.enable_color_printing", "metrics.disable_color_printing"},
    {"metrics.rank_0_only", "metrics.save_for_all_ranks"},
    {"mx.filter_fqns", "quantize.linear.mx.filter_fqns"},
    {"mx.recipe_name", "quantize.linear.mx.recipe_name"},
    {"mx.use_fp8_dim1_cast_triton_kernel", "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice"},
    {"optimizer.fused", "optimizer.implementation"},
    {"parallelism.pipeline_parallel_split_points", "parallelism.module_fqns_per_model_part"},
    {"training.batch_size", "training.local_batch_size"},
    {"training.compile", "compile.enable"},
    {"training.data_parallel_degree", "parallelism.data_parallel_shard_degree"},
    {"training.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree"},
    {"training.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree"},
    {"training.debug_moe_force_load_balance", "debug.moe_force_load_balance"},
    {"training.deterministic", "debug.deterministic"},
    {"training.disable_loss_parallel", "parallelism.disable_loss_parallel"},
    {"training.enable_loss_parallel", "parallelism.disable_loss_parallel"},
    {"training.fp8_linear", "model.converters"},
    {"training.fsdp_reshard_after_forward", "parallelism.fsdp_reshard_after_forward"},
    {"training.seed", "debug.seed"},
    {"training.tensor_parallel_degree", "parallelism.tensor_parallel_degree"},
    {"training.warmup_steps", "lr_scheduler.warmup_steps"},
});

// Keys of which only the name changed, under the new one.
Settings with_names_of_today(const Settings& toml) {
  constexpr std::array<std::string_view, 4> kOtherValues{
      "experimental.pipeline_parallel_microbatches",  // a number of them, and not their size
      "float8.enable_float8_linear", "training.fp8_linear", "training.enable_loss_parallel"};
  Settings named;
  for (Setting setting : toml) {
    const auto* const old =
        std::find_if(kOldTitanNames.begin(), kOldTitanNames.end(),
                     [&](const OldTitanName& name) { return name.written == setting.key; });
    const bool renamed =
        old != kOldTitanNames.end() && !old->now.ends_with("_per_model_part") &&
        std::find(kOtherValues.begin(), kOtherValues.end(), setting.key) == kOtherValues.end() &&
        !toml.has(old->now);
    if (renamed) setting.key = std::string(old->now);
    named.add(std::move(setting));
  }
  return named;
}

// "model.name" and "model.flavor" of older releases alone (models/*/__init__.py of 0.2.1; llama2 of
// 2024), and the built-in model of the same shapes.
struct OlderFlavor {
  std::string_view name, flavor, model;
};
constexpr auto kOlderFlavors = std::to_array<OlderFlavor>({
    {"llama2", "7B", "llama2-7b"},
    {"llama2", "13B", "llama2-13b"},
    {"llama2", "70B", "llama2-70b"},
    {"llama3", "8B_flex", "llama3-8b"},
    {"llama3", "8B_varlen", "llama3-8b"},
});

class TitanToml : JobMaker {
 public:
  using JobMaker::JobMaker;

  TrainerJob make() {
    make_degrees();
    if (stages()) make_stages();
    make_batch();
    make_training();
    make_precision();
    make_checkpointing();
    return std::move(job_);
  }

 private:
  [[nodiscard]] std::int64_t whole(std::string_view key, std::int64_t otherwise) const {
    const double value = figure_of(yaml_, key, static_cast<double>(otherwise));
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(value));
  }
  [[nodiscard]] bool stages() const {
    return figure_of(yaml_, "parallelism.pipeline_parallel_degree", 1) > 1;
  }
  [[nodiscard]] bool on(std::string_view key) const { return is_switched_on(yaml_, key); }
  // Whether a part of the program is compiled: "model", "loss".
  [[nodiscard]] bool compiles(std::string_view part) const {
    if (!on("compile.enable")) return false;
    const Setting* const parts = yaml_.find("compile.components");
    if (parts == nullptr) return true;
    const auto names = list_of(parts->value);
    return std::find(names.begin(), names.end(), part) != names.end();
  }

  void make_degrees() {
    Settings& to = job_.torchtitan;
    for (const std::string_view name :
         {"data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree",
          "context_parallel_degree", "expert_parallel_degree", "pipeline_parallel_degree",
          "fsdp_reshard_after_forward"}) {
      const std::string key = fmt::format("parallelism.{}", name);
      hand(to, key, key);
    }
    // Where nobody says anything, its function's own default counts: all ranks hold shards.
    if (to.empty()) say(to, "parallelism.data_parallel_shard_degree", -1);
    if (on("parallelism.enable_async_tensor_parallel")) {
      say(to, "compile.enable_async_tensor_parallel", true,
          "parallelism.enable_async_tensor_parallel");
    }
    if (figure_of(yaml_, "parallelism.expert_parallel_degree", 1) > 1) {
      say(to, "moe_comm_backend",
          word_of(yaml_, "parallelism.expert_parallel_comm_backend", "standard") == "deepep"
              ? "deepep"
              : "standard",
          "parallelism.expert_parallel_comm_backend");
    }
    if (figure_of(yaml_, "parallelism.context_parallel_degree", 1) > 1 &&
        word_of(yaml_, "parallelism.context_parallel_rotate_method") == "alltoall") {
      job_.assumed.emplace_back(
          "keys and values gathered by context parallelism: a ring of exchanges, "
          "context_parallel_rotate_method alltoall, is not predicted under this framework");
    }
  }

  void make_stages() {
    Settings& to = job_.torchtitan;
    for (const std::string_view name :
         {"pipeline_parallel_schedule", "pipeline_parallel_layers_per_stage",
          "module_fqns_per_model_part"}) {
      const std::string key = fmt::format("parallelism.{}", name);
      hand(to, key, key);
    }
    const std::int64_t local = whole("training.local_batch_size", 8);
    constexpr std::string_view kCount = "experimental.pipeline_parallel_microbatches";
    const bool counted = figure_of(yaml_, kCount, 0) > 0;
    say(to, "parallelism.num_pp_microbatches",
        counted ? whole(kCount, 1) : std::max<std::int64_t>(1, local / microbatch()),
        counted ? kCount : "parallelism.pipeline_parallel_microbatch_size");
    if (!word_of(yaml_, "parallelism.pipeline_parallel_schedule_csv").empty()) {
      job_.assumed.emplace_back("the schedule by its name: that of a csv file is not read");
    }
    const std::int64_t all =
        static_cast<std::int64_t>(figure_of(yaml_, "training.global_batch_size", -1));
    if (all > local) {
      job_.assumed.emplace_back(
          "one pass through the stages a step: a local batch is one pass, and each of a step "
          "fills and empties them");
    }
  }

  // Sequences that run through the model at once.
  [[nodiscard]] std::int64_t microbatch() const {
    const std::int64_t local = whole("training.local_batch_size", 8);
    if (!stages()) return local;
    // Older releases split a local batch into as many as there are stages, unless told.
    constexpr std::string_view kCount = "experimental.pipeline_parallel_microbatches";
    if (figure_of(yaml_, kCount, 0) > 0) {
      return std::max<std::int64_t>(1, local / whole(kCount, 1));
    }
    return whole("parallelism.pipeline_parallel_microbatch_size", 1);
  }

  void make_batch() {
    Settings& to = job_.torchtitan;
    const std::int64_t length = whole("training.seq_len", 2048);
    say(to, "training.max_context_length", length, "training.seq_len");
    say(to, "training.num_tokens_per_microbatch_per_dp_rank", microbatch() * length,
        "training.local_batch_size");
    const double all = figure_of(yaml_, "training.global_batch_size", -1);
    if (all > 0) {
      say(to, "training.num_tokens_per_train_step", static_cast<std::int64_t>(all) * length,
          "training.global_batch_size");
    }
  }

  void make_training() {
    Settings& to = job_.torchtitan;
    say(to, "training.disable_cuda_graphs", true);  // no release that reads TOML captures any
    hand(to, "training.enable_cpu_offload", "training.enable_cpu_offload");
    say(to, "compile.enable", compiles("model"), "compile.enable");
    // Logits are whole, and of the vocabulary's parts under tensor parallelism.
    say(to, "loss", std::string(kWholeLoss), "compile.enable");
    // Pairs of runs that differ in this alone: five of lightning-thunder (pull request 940) and of
    // torchtitan on GB200 (daddyofadoggy/blog, posts/torchtitan).
    if (!compiles("model")) {
      job_.assumed.emplace_back(
          "layers that are compiled: published runs without [compile] took 10 to 28% longer, which "
          "is not priced");
    }
    if (!compiles("loss")) {
      job_.assumed.emplace_back(
          "a loss of one compiled kernel each way: without [compile] its logits are there in fp32, "
          "too, which is not counted");
    }
    if (on("parallelism.disable_loss_parallel") &&
        figure_of(yaml_, "parallelism.tensor_parallel_degree", 1) > 1) {
      job_.assumed.emplace_back(
          "logits split among the ranks of tensor parallelism: disable_loss_parallel gathers them "
          "on each, which is not counted");
    }
    const std::string optimizer = word_of(yaml_, "optimizer.name", "AdamW");
    if (optimizer != "adamw" && optimizer != "adam") {
      say(job_.own_script, "optimizer", optimizer, "optimizer.name");
    }
    if (on("optimizer.early_step_in_backward")) {
      assume_less(
          "an optimizer's step behind the backward: early_step_in_backward keeps no "
          "gradients of layers that are done");
    }
    if (word_of(yaml_, "training.dtype") == "bfloat16") {
      say(job_.own_script, "weights", "bf16", "training.dtype");
      say(job_.own_script, "mixed_precision.reduce_dtype", "fp32", "training.dtype");
    }
    if (word_of(yaml_, "training.mixed_precision_param") == "float32") {
      job_.assumed.emplace_back("products in bf16: mixed_precision_param float32 is not predicted");
    }
    if (on("debug.deterministic")) {
      job_.assumed.emplace_back("kernels of the usual kind: deterministic ones may be slower");
    }
  }

  // Which converters change formats: "float8" of releases before 0.2.1's "quantize.linear.float8".
  void make_precision() {
    bool fp8 = on("float8.enable_float8_linear") || !word_of(yaml_, "training.fp8_linear").empty();
    bool mx = false;
    const Setting* const converters = yaml_.find("model.converters");
    for (const std::string& name :
         converters == nullptr ? std::vector<std::string>() : list_of(converters->value)) {
      fp8 = fp8 || name == "float8" || name == "quantize.linear.float8";
      mx = mx || name == "mx" || name == "quantize.linear.mx";
      if (contains(name, "grouped_mm")) {
        job_.assumed.emplace_back(
            "products of experts in bf16: quantize.grouped_mm is not counted");
      }
    }
    if (fp8) {
      say(job_.torchtitan, "model.converters", "fp8", "model.converters");
    } else if (mx) {
      say(job_.torchtitan, "model.converters", "mxfp8", "model.converters");
    }
  }

  void make_checkpointing() {
    Settings& to = job_.torchtitan;
    const std::string mode = word_of(yaml_, "activation_checkpoint.mode", "selective");
    const std::string option = word_of(yaml_, "activation_checkpoint.selective_ac_option", "2");
    if (mode == "memory_budget") {
      job_.assumed.emplace_back(
          "activations kept as the compiler would by itself: what memory_budget recomputes is not "
          "predicted");
      job_.takes_less = true;
    }
    const bool every = mode == "selective" && option != "op";
    if (every && option == "1") {
      say(to, "activation_checkpoint", "FullAC", "activation_checkpoint.selective_ac_option");
      return;
    }
    if (every) {
      job_.assumed.push_back(fmt::format(
          "operations chosen one by one, as selective_ac_option \"op\" does: that every layer of "
          "{} is recomputed whole, no plan can say",
          shown(option)));
    }
    say(to, "activation_checkpoint",
        mode == "full"        ? "FullAC"
        : mode == "selective" ? "SelectiveAC"
                              : "None",
        "activation_checkpoint.mode");
  }
};

}  // namespace

TrainerJob job_of_titan_toml(const Settings& toml, const Place& place) {
  const Settings named = with_names_of_today(toml);
  return TitanToml(named, place).make();
}

std::string model_of_titan_toml(const Settings& toml) {
  const Setting *const name = toml.find("model.name"), *const said = toml.find("model.flavor");
  // "simple_fsdp.llama3", "llama3_ft": the same model, by another's code.
  std::string family = name == nullptr ? "llama3" : text_of(name->value);
  family = family.substr(family.rfind('.') + 1);  // npos + 1: all of it
  for (const std::string_view end : {"_ft", "_simple_fsdp"}) {
    if (family.ends_with(end)) family.resize(family.size() - end.size());
  }
  const std::string flavor = said == nullptr ? "debugmodel" : text_of(said->value);
  if (const TorchtitanModel* const known = torchtitan_model_of(family, flavor)) {
    return std::string(known->model);
  }
  const auto* const found = std::find_if(
      kOlderFlavors.begin(), kOlderFlavors.end(),
      [&](const OlderFlavor& known) { return known.name == family && known.flavor == flavor; });
  return found == kOlderFlavors.end() ? fmt::format("{} of flavor {}", family, flavor)
                                      : std::string(found->model);
}

std::optional<std::int64_t> ranks_of_titan_toml(const Settings& toml) {
  const Settings named = with_names_of_today(toml);
  std::int64_t ranks = 1;
  for (const std::string_view name :
       {"data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree",
        "context_parallel_degree", "pipeline_parallel_degree"}) {
    const double degree = figure_of(named, fmt::format("parallelism.{}", name),
                                    name == "data_parallel_shard_degree" ? -1 : 1);
    if (degree < 1 || degree > 1 << 20) return std::nullopt;
    ranks *= static_cast<std::int64_t>(degree);
  }
  return ranks;
}

std::span<const OldTitanName> old_titan_names() {
  return kOldTitanNames;
}

}  // namespace qplan
