#pragma once
// PyTorch FSDP2 as accelerate's yaml (16cb6eb8) and as torchtitan's configuration functions
// (b5bcd76c).

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/option.h"

namespace qplan {

// A key of no file: that the ranks which the degrees leave hold copies of the shards.
inline constexpr std::string_view kFillsReplicas = "parallelism_config.fills_replicas";

std::span<const Option> accelerate_options();
std::span<const Fact> accelerate_facts();
std::span<const Limit> accelerate_limits();
// Of its mesh of ranks, which NeMo AutoModel does not use: it has every axis, whatever its size
// (nemo_automodel/components/distributed/mesh_utils.py:322, NVIDIA-NeMo/Automodel 36044ad3).
std::span<const Limit> accelerate_mesh_limits();
void settle_accelerate(Draft& draft, const Settings& settings, std::int64_t gpus,
                       int gpus_per_node);

// What the arguments of "accelerate launch" say in the yaml's stead; empty: they choose no kind.
Settings accelerate_of_launch(const Settings& options);

// accelerate's yaml asks for DDP: every GPU holds all states. No section of FSDP's is read then.
bool is_replicated(const Settings& accelerate);
// It starts one process on one GPU.
bool is_of_one_process(const Settings& accelerate);
bool is_fsdp2(const Settings& accelerate);
// How FSDP1 shards: a name of torch's ShardingStrategy, or whatever stands in its place.
std::string fsdp1_strategy(const Settings& accelerate);

// What the programs of one's own say (readers/own_script.h) of a job that one of them wraps the
// model of; `config` is the model's.
void settle_own_script(Draft& draft, const Settings& own_script, const Json& config,
                       std::int64_t gpus, int gpus_per_node);
// What a Trainer does that no accelerate configuration tells how to shard: by its argument --fsdp,
// or not at all (DDP).
void settle_trainer(Draft& draft, const Settings& trainer, const Settings& own_script,
                    const Json& config, int gpus_per_node);
// What the programs say of formats: of products, of sums, and of states by the weights' own.
void settle_formats(Draft& draft, const Settings& own_script, std::string_view weights);
// What the programs say of recomputation, whoever shards.
void read_recompute(Draft& draft, const Settings& own_script);
// The same of adapters: what was taken for what the program does not say, or a run alone can tell,
// or what is not counted, in sentences.
std::vector<std::string> read_lora(Draft& draft, const Settings& own_script);
// The format that the weights are loaded in and stay in: "bf16", "fp16", "fp32"; empty: not said.
std::string weights_of_script(const Settings& own_script, const Json& config);

std::span<const Option> torchtitan_options();
std::span<const Limit> torchtitan_limits();
void settle_torchtitan(Draft& draft, const ModelSpec& model, const Settings& settings,
                       std::int64_t gpus);

// The transformers class of a decoder layer, which FSDP wraps; empty: not known.
std::string_view decoder_layer_class(std::string_view architecture);
// Whether some model's decoder layer, or a block of its tower, is of this class.
bool is_decoder_layer_class(std::string_view name);

// torchtitan's module and flavor of a model; null: it has none.
struct TorchtitanModel {
  std::string_view model, module, flavor;
  std::int64_t most_tokens;              // of a sequence, by the flavor's rotary embedding
  std::string_view attention_backend{};  // said, where the default takes no context parallelism
  // Whether its own recipes train without the layers that predict further tokens, which take
  // neither stages nor context parallelism (models/deepseek_v3/mtp.py:199).
  bool leaves_mtp_out = false;
};
const TorchtitanModel* torchtitan_model(std::string_view model);
const TorchtitanModel* torchtitan_model_of(std::string_view module, std::string_view flavor);

// Its classes of the loss, in parts of a micro-batch's tokens or over all.
inline constexpr std::string_view kLossInChunks = "ChunkedLossWrapper";
inline constexpr std::string_view kWholeLoss = "CrossEntropyLoss";

// Parts that the loss of a plan's micro-batch runs in by torchtitan's ChunkedLossWrapper; 1: whole.
std::int64_t torchtitan_loss_chunks(const ModelSpec& model, const ParallelPlan& plan);

}  // namespace qplan
