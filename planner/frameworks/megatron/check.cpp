// What Megatron's arguments mean together.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "planner/frameworks/megatron/trap.h"

namespace qplan {
namespace {

using enum Severity;

using Case = MegatronCase;
using Trap = MegatronTrap;

bool is_full(const Case& c) {
  return c.is("--recompute-granularity", "full");
}
bool is_selective(const Case& c) {
  return c.is("--recompute-granularity", "selective") || c.has("--recompute-activations");
}
bool low_precision_states(const Case& c) {
  for (const std::string_view key :
       {"--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype"}) {
    if (c.has(key) && !c.is(key, "fp32")) return true;
  }
  return false;
}

// Arguments that one of Megatron's scripts is started with, or one that is called as they are. What
// another script's parser asks for is its own affair.
bool is_started(const Case& c) {
  const bool takes =
      c.part.dialect == Dialect::megatron || c.part.dialect == Dialect::megatron_deepspeed;
  const std::string& script = c.part.script;
  return takes && (is_of_megatron(script) || base_name(script).starts_with("pretrain"));
}

// The arguments of a whole job, not those of one array.
bool is_whole(const Case& c) {
  return c.has("--num-layers") && c.has("--micro-batch-size");
}

// Whether a pattern says what each layer is, and so how many there are.
bool counts_by_pattern(const Case& c) {
  return c.has("--hybrid-layer-pattern") || c.has("--hybrid-override-pattern");
}

// A model of today's kind in fp16, on a GPU that multiplies bf16 (since compute capability 8.0).
bool halves_beside_bf16(const Case& c) {
  const int capability = c.scene.question.limits.compute_capability;
  return c.has("--fp16") && c.model().position == PositionEmbedding::rope &&
         (capability == 0 || capability >= 80);
}

// Arguments that validate_args asserts somebody gave, by any of their names.
struct Required {
  std::string_view flag, other{};
};
constexpr auto kRequired = std::to_array<Required>({{"--micro-batch-size"},
                                                    {"--max-position-embeddings"},
                                                    {"--seq-length", "--encoder-seq-length"},
                                                    {"--num-layers", "--encoder-num-layers"},
                                                    {"--hidden-size"},
                                                    {"--num-attention-heads"}});

// What of the arguments stands where nobody here can read it: in a variable that the script does
// not set, a file of its own or a checkpoint.
bool may_be_said_unseen(const Case& c) {
  return !c.part.open_word.empty() || c.has("--yaml-cfg") || c.has("--use-checkpoint-args") ||
         c.has("--retro-project-dir");
}

// Arguments of a job in a file of their own: of the model's shapes and of the training.
bool is_list_of_job(const Case& c) {
  const bool takes =
      c.part.dialect == Dialect::megatron || c.part.dialect == Dialect::megatron_deepspeed;
  const JobFiles& files = c.scene.files;
  return takes && c.part.script.empty() && files.launches.empty() && files.missing.empty() &&
         c.has("--num-layers") && c.has("--hidden-size") && c.has("--num-attention-heads") &&
         (c.has("--micro-batch-size") || c.has("--seq-length") || c.has("--train-iters"));
}

// Whether the arguments of a whole job leave out what has no default. Those that say nothing of the
// model are a part of them, as those that say nothing else.
template <std::size_t I>
bool lacks(const Case& c) {
  const Required& required = kRequired.at(I);
  const bool describes = c.has("--num-layers") || c.has("--hidden-size");
  const bool whole = (is_started(c) && describes) || is_list_of_job(c);
  if (!whole || may_be_said_unseen(c)) return false;
  const CheckQuestion& q = c.scene.question;
  if (required.flag == "--micro-batch-size" && q.micro_batch_size) return false;
  if (required.flag == "--seq-length" && q.seq_len) return false;
  if (required.flag == "--num-layers" && counts_by_pattern(c)) return false;
  return !c.may_be_said(required.flag) &&
         (required.other.empty() || !c.may_be_said(required.other));
}

constexpr auto kTraps = std::to_array<Trap>({
    // Recompute.
    {"recompute_method", error, "--recompute-granularity",
     [](const Case& c) {
       // The fork's number of layers is 1 unless said.
       const bool counts = c.has("--recompute-num-layers") ||
                           c.part.dialect == Dialect::megatron_deepspeed;
       return is_full(c) && (!c.has("--recompute-method") || !counts);
     },
     "full recomputation needs a method and a number of layers",
     "add --recompute-method uniform --recompute-num-layers 1", "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1914",
     "--recompute-method uniform --recompute-num-layers 1"},
    {"recompute_selective", error, "--recompute-method",
     [](const Case& c) { return is_selective(c) && c.has("--recompute-method"); },
     "selective recomputation takes no method", "leave it out", "Megatron-LM d98e8a64, megatron/training/arguments.py:1426", "", true},
    {"recompute_selective", error, "--recompute-num-layers",
     [](const Case& c) { return is_selective(c) && c.has("--recompute-num-layers"); },
     "selective recomputation takes no number of layers", "leave it out",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1929", "", true},
    {"recompute_modules_alone", error, "--recompute-modules",
     [](const Case& c) { return c.has("--recompute-modules") && !is_selective(c); },
     "modules are recomputed only by selective recomputation",
     "add --recompute-granularity selective", "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1959"},
    {"recompute_delayed_scaling", error, "--recompute-modules",
     [](const Case& c) {
       const auto& modules = c.plan().recompute.modules;
       return c.delayed_scaling() && (modules.has(RecomputeModule::moe_act) ||
                          modules.has(RecomputeModule::layernorm));
     },
     "fp8 with delayed scaling cannot recompute moe_act or layernorm",
     "add --fp8-recipe tensorwise", "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:2003"},
    {"recompute_no_norm", warning, "--recompute-modules",
     [](const Case& c) {
       return c.part.dialect == Dialect::megatron && !c.is("--transformer-impl", "local") &&
              is_selective(c) && !c.model().moe && !c.model().mla &&
              c.plan().recompute.modules.has(RecomputeModule::layernorm);
     },
     "layernorm recomputes the norms before routed experts and latent attention; this model's are "
     "parts of the products behind them, and nothing is freed",
     "leave layernorm out; mlp or full recomputation free more", "Megatron-LM d98e8a64, megatron/core/transformer/transformer_layer.py:476"},
    {"saved_activations", error, "--distribute-saved-activations",
     [](const Case& c) {
       return c.has("--distribute-saved-activations") &&
              (c.has("--sequence-parallel") || c.plan().tp == 1 || !is_full(c));
     },
     "saved activations are distributed over tp with full recomputation and without sequence "
     "parallelism",
     "leave it out: --sequence-parallel distributes them already", "Megatron-LM d98e8a64, megatron/training/arguments.py:1410", "", true},

    // Formats.
    {"two_precisions", error, "--fp16",
     [](const Case& c) { return c.has("--bf16") && c.has("--fp16"); },
     "bf16 and fp16 exclude each other", "keep --bf16", "Megatron-LM d98e8a64, megatron/training/arguments.py:1196", "", true},
    {"no_precision", warning, "",
     [](const Case& c) {
       return c.part.dialect == Dialect::megatron && is_whole(c) && !c.has("--bf16") && !c.has("--fp16");
     },
     "neither --bf16 nor --fp16 is given, and Megatron trains in fp32", "add --bf16", "Megatron-LM d98e8a64, megatron/training/arguments.py:1205",
     "--bf16"},
    {"fp8_and_fp4", error, "--fp4-format",
     [](const Case& c) { return c.has("--fp8-format") && c.has("--fp4-format"); },
     "fp8 and fp4 exclude each other", "keep one of them", "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1581", "", true},
    {"states_need_precision_aware", error, "--exp-avg-dtype",
     [](const Case& c) {
       return low_precision_states(c) && !c.has("--use-precision-aware-optimizer");
     },
     "states below fp32 are kept only by the precision-aware optimizer; without it the optimizer "
     "refuses them once the job runs",
     "add --use-precision-aware-optimizer", "Megatron-LM d98e8a64, megatron/core/optimizer/optimizer_config.py:469",
     "--use-precision-aware-optimizer"},
    {"fusion_of_te", error, "--cross-entropy-fusion-impl",
     [](const Case& c) {
       return c.is("--cross-entropy-fusion-impl", "te") && c.part.dialect != Dialect::bridge;
     },
     "Transformer Engine's fused loss is refused", "--cross-entropy-fusion-impl native",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1697"},
    {"deterministic_loss", error, "--cross-entropy-loss-fusion",
     [](const Case& c) {
       return c.has("--deterministic-mode") && c.has("--cross-entropy-loss-fusion") &&
              !c.is("--cross-entropy-loss-fusion", "false");
     },
     "deterministic mode refuses the fused loss", "leave --cross-entropy-loss-fusion out",
     "Megatron-LM d98e8a64, megatron/training/determinism.py:24", "", true},
    {"fp16_of_bf16_model", warning, "--fp16",
     [](const Case& c) { return halves_beside_bf16(c) && !c.scene.question.model_of_files; },
     "fp16 overflows where the model was trained in bf16, and the GPU has bf16", "use --bf16",
     "qplan: the model's config.json says torch_dtype bfloat16"},
    {"fp16_of_bf16_model", warning, "--fp16",
     [](const Case& c) { return halves_beside_bf16(c) && c.scene.question.model_of_files; },
     "fp16 overflows where models of this kind are trained in bf16, and the GPU has bf16",
     "use --bf16", "qplan: fp16 ends at 65504, and bf16 where fp32 does (IEEE 754)"},

    // What Megatron has no default of.
    {"no_micro_batch", error, "", lacks<0>,
     "--micro-batch-size has no default, and Megatron stops without it", "add --micro-batch-size",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:693"},
    {"no_positions", error, "", lacks<1>,
     "--max-position-embeddings has no default, and Megatron stops without it",
     "add --max-position-embeddings, at least --seq-length",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1314"},
    {"no_seq_length", error, "", lacks<2>,
     "--seq-length has no default, and Megatron stops without it", "add --seq-length",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1350"},
    {"no_shape", error, "", lacks<3>,
     "--num-layers has no default, and Megatron stops without it", "add --num-layers",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1314"},
    {"no_shape", error, "", lacks<4>,
     "--hidden-size has no default, and Megatron stops without it", "add --hidden-size",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1314"},
    {"no_shape", error, "", lacks<5>,
     "--num-attention-heads has no default, and Megatron stops without it",
     "add --num-attention-heads", "Megatron-LM d98e8a64, megatron/training/arguments.py:1314"},

    // Data parallelism.
    {"offload_needs_precision_aware", error, "--optimizer-cpu-offload",
     [](const Case& c) {
       return c.has("--optimizer-cpu-offload") && !c.has("--use-precision-aware-optimizer");
     },
     "the optimizer goes to the host only with the precision-aware one",
     "add --use-precision-aware-optimizer", "Megatron-LM d98e8a64, megatron/training/arguments.py:1886", "--use-precision-aware-optimizer"},
    {"fsdp_checkpoint", error, "--use-megatron-fsdp",
     [](const Case& c) {
       // Megatron-Bridge asks it of what is saved or loaded alone (training/config.py:1101).
       return c.has("--use-megatron-fsdp") && !c.is("--ckpt-format", "fsdp_dtensor") &&
              c.part.dialect != Dialect::bridge;
     },
     "Megatron-FSDP saves by fsdp_dtensor alone", "add --ckpt-format fsdp_dtensor", "Megatron-LM d98e8a64, megatron/training/arguments.py:1169",
     "--ckpt-format fsdp_dtensor"},
    {"checkpoint_of_fsdp", error, "--ckpt-format",
     [](const Case& c) {
       return (c.is("--ckpt-format", "fsdp_dtensor") && !c.may_be_said("--use-megatron-fsdp")) ||
              (c.is("--ckpt-format", "torch_dcp") && !c.may_be_said("--use-torch-fsdp2"));
     },
     "fsdp_dtensor is Megatron-FSDP's format alone, and torch_dcp that of torch's FSDP2",
     "--ckpt-format torch_dist", "Megatron-LM d98e8a64, megatron/training/arguments.py:1668"},
    {"precision_aware_adam", error, "--use-precision-aware-optimizer",
     [](const Case& c) {
       return c.has("--use-precision-aware-optimizer") && c.has("--optimizer") &&
              !c.is("--optimizer", "adam");
     },
     "the precision-aware optimizer is Adam", "leave it out", "Megatron-LM d98e8a64, megatron/core/optimizer/optimizer_config.py:434", "", true},
    {"optimizer_instances", error, "--num-distributed-optimizer-instances",
     [](const Case& c) {
       const Setting* const count = c.find("--num-distributed-optimizer-instances");
       return count != nullptr && (c.plan().dp * c.plan().cp) % degree_of(count->value) != 0;
     },
     "the dp x cp ranks do not divide into that many instances of the optimizer",
     "use a divisor of dp x cp", "Megatron-LM d98e8a64, megatron/core/parallel_state.py:924"},
    {"torch_fsdp2", error, "--use-torch-fsdp2",
     [](const Case& c) {
       return c.has("--use-torch-fsdp2") &&
              (c.plan().pp > 1 || c.plan().ep > 1 || c.has("--use-distributed-optimizer") ||
               !c.has("--untie-embeddings-and-output-weights"));
     },
     "torch's FSDP2 in Megatron excludes pp, ep, the distributed optimizer and tied embeddings",
     "use --use-megatron-fsdp", "Megatron-LM d98e8a64, megatron/training/arguments.py:1032"},

    // Sequence and attention.
    {"sequence_parallel_of_one", note, "--sequence-parallel",
     [](const Case& c) { return c.has("--sequence-parallel") && c.plan().tp == 1; },
     "with one tensor-parallel rank sequence parallelism is switched off silently", "leave it out",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1436", "", true},
    {"positions", error, "--max-position-embeddings",
     [](const Case& c) {
       const Setting* const most = c.find("--max-position-embeddings");
       return most != nullptr && most->resolved && c.has("--seq-length") &&
              number_of(most->value) < static_cast<double>(c.plan().seq_len);
     },
     "sequences are longer than --max-position-embeddings", "raise it to --seq-length at least",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1354"},
    {"mla_and_groups", error, "--group-query-attention",
     [](const Case& c) {
       return c.has("--multi-latent-attention") && c.has("--group-query-attention");
     },
     "latent attention has no query groups", "leave --group-query-attention out", "Megatron-LM d98e8a64, megatron/training/arguments.py:1974",
     "", true},
    {"cp_comm_of_layers", error, "--cp-comm-type",
     [](const Case& c) {
       const Setting* const kinds = c.find("--cp-comm-type");
       const std::size_t said = kinds == nullptr ? 1 : list_of(kinds->value).size();
       return said > 1 && said != static_cast<std::size_t>(c.model().num_layers);
     },
     "several kinds of context parallelism are one a layer", "give one, or as many as layers",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:3105"},
    {"hierarchical_sizes", error, "--cp-comm-type",
     [](const Case& c) {
       return c.is("--cp-comm-type", "a2a+p2p") && !c.has("--hierarchical-context-parallel-sizes");
     },
     "a2a+p2p needs the sizes of its two levels",
     "add --hierarchical-context-parallel-sizes, whose product is cp", "Megatron-LM d98e8a64, megatron/training/arguments.py:582"},

    // Arguments that are gone, or do nothing.
    {"removed_argument", error, "--checkpoint-activations",
     [](const Case& c) {
       return c.has("--checkpoint-activations") && c.part.dialect != Dialect::megatron_deepspeed;
     },
     "--checkpoint-activations means recomputation, and Megatron-LM now prints so and exits",
     "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "Megatron-LM d98e8a64, megatron/training/arguments.py:601"},
    {"idle_argument", note, "--num-layers",
     [](const Case& c) {
       const Setting* const said = c.find("--num-layers");
       return counts_by_pattern(c) && said != nullptr && said->resolved &&
              whole_of(said->value) != c.model().num_layers;
     },
     "--num-layers is ignored with a warning: the pattern of layers counts them", "leave it out",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:787", "", true},
    {"idle_argument", note, "--use-mcore-models",
     [](const Case& c) {
       return c.has("--use-mcore-models") && c.part.dialect == Dialect::megatron;
     },
     "--use-mcore-models changes nothing any more", "leave it out", "Megatron-LM d98e8a64, megatron/training/arguments.py:2949", "", true},
    {"idle_argument", note, "--use-flash-attn",
     [](const Case& c) { return c.has("--use-flash-attn") && c.part.dialect == Dialect::megatron; },
     "--use-flash-attn changes nothing any more", "--attention-backend flash", "Megatron-LM d98e8a64, megatron/training/arguments.py:2910", "", true},
    {"checkpoints_for_recovery", note, "--checkpoint-activations",
     [](const Case& c) {
       return c.has("--checkpoint-activations") && c.has("--recompute-granularity") &&
              c.part.dialect == Dialect::megatron_deepspeed;
     },
     "--checkpoint-activations recomputes whole layers, beside --recompute-granularity",
     "keep one of them", "Megatron-DeepSpeed 4efb479d, megatron/arguments.py:864"},

    // The fork.
    {"pipeline_module", error, "--deepspeed",
     [](const Case& c) {
       return c.part.dialect == Dialect::megatron_deepspeed && c.plan().zero >= 2 &&
              c.plan().pp == 1 && !c.has("--no-pipeline-parallel");
     },
     "without --no-pipeline-parallel the model becomes a PipelineModule even on one stage, which "
     "ZeRO 2 and 3 refuse",
     "add --no-pipeline-parallel", "Megatron-DeepSpeed 4efb479d, pretrain_gpt.py:51; DeepSpeed edaa7221, deepspeed/runtime/pipe/engine.py:77",
     "--no-pipeline-parallel"},
    {"no_pipeline_on_stages", error, "--no-pipeline-parallel",
     [](const Case& c) { return c.has("--no-pipeline-parallel") && c.plan().pp > 1; },
     "--no-pipeline-parallel asserts one stage", "leave it out, or use one stage",
     "Megatron-DeepSpeed 4efb479d, megatron/arguments.py:95", "", true},
    {"fpdt_chunks", warning, "--ds-sequence-parallel-fpdt",
     [](const Case& c) {
       const Setting* const chunk = c.find("--ds-sequence-parallel-fpdt-chunk-size");
       const double size = chunk == nullptr ? 65536 : number_of(chunk->value);
       return c.has("--ds-sequence-parallel-fpdt") &&
              static_cast<double>(c.plan().seq_len) == size;
     },
     "a sequence is one chunk, so that nothing is chunked",
     "lower --ds-sequence-parallel-fpdt-chunk-size", "Megatron-DeepSpeed 4efb479d, megatron/arguments.py:981"},
    {"old_flash_attention", note, "--use-flash-attn",
     [](const Case& c) {
       return c.has("--use-flash-attn") && c.part.dialect == Dialect::megatron_deepspeed;
     },
     "--use-flash-attn is FlashAttention 1", "--use-flash-attn-v2", "Megatron-DeepSpeed 4efb479d, megatron/arguments.py:927"},

    // slime.
    {"no_tokens_bound", warning, "--micro-batch-size",
     [](const Case& c) {
       return c.slime() && c.has("--micro-batch-size") && c.has("--use-dynamic-batch-size");
     },
     "with --use-dynamic-batch-size the micro-batch is not used", "leave --micro-batch-size out",
     "slime 624b824a, slime/utils/arguments.py:716", "", true},
});

bool holds(Dialect dialect) {
  return takes_megatrons(dialect) || dialect == Dialect::megatron_yaml ||
         dialect == Dialect::bridge;
}

// Written behind the option that asks for it, where one does.
Correction added_beside(const Case& c, const Setting* at, const std::string& arguments) {
  if (at == nullptr) return added(c.scene, c.part, arguments);
  ConfigPart part = c.part;
  part.settings = {};
  part.settings.add(*at);
  part.settings.append(c.part.settings);
  return added(c.scene, part, arguments);
}

void spring(const Case& c, const Trap& trap, Findings& out) {
  std::string message(trap.message);
  try {
    if (!trap.springs(c)) return;
    if (trap.numbers != nullptr) message += ": " + trap.numbers(c);
  } catch (const Error&) {
    return;  // a value that is none is said elsewhere
  }
  const Setting* const at = c.find(trap.at);
  Correction fix;
  if (!trap.add.empty()) fix = added_beside(c, at, std::string(trap.add));
  if (trap.drop && at != nullptr) fix = removed(c.scene, c.part, *at);
  out.push_back({trap.severity, std::string(trap.rule), at != nullptr ? at->place : c.part.place,
                 std::move(message), std::string(trap.instead), std::string(trap.source),
                 std::move(fix)});
}

}  // namespace

void check_megatron(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (!holds(part.dialect)) continue;
    const Case c{scene, part};
    for (const Trap& trap : kTraps) spring(c, trap, out);
    for (const Trap& trap : megatron_shape_traps()) spring(c, trap, out);
    check_shape_sizes(c, out);
    for (const Trap& trap : megatron_pipeline_traps()) spring(c, trap, out);
    for (const Trap& trap : megatron_expert_traps()) spring(c, trap, out);
    for (const Trap& trap : slime_traps()) spring(c, trap, out);
    check_core_attention(c, out);
  }
}

void list_megatron_traps(std::vector<TrapInfo>& out) {
  for (const auto traps : {std::span<const Trap>(kTraps), megatron_shape_traps(),
                           megatron_pipeline_traps(), megatron_expert_traps(), slime_traps()}) {
    for (const Trap& trap : traps) out.push_back({trap.rule, trap.source});
  }
}

}  // namespace qplan
