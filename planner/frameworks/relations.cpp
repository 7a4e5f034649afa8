#include "planner/frameworks/relations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "models/error.h"

namespace qplan {
namespace {

// ---- Megatron-LM ----

// Asked of Megatron-LM and of slime, which runs its validation too.
constexpr auto kMegatron = std::to_array<Relation>({
    // Batches and steps.
    {"--global-batch-size", "--global-batch-size>0", "", "megatron/training/arguments.py:705"},
    {"--micro-batch-size", "--micro-batch-size>0", "", "megatron/training/arguments.py:694"},
    {"--step-batch-size-schedule", "!--global-batch-size", "",
     "megatron/training/arguments.py:698"},
    {"--train-iters", "!--train-samples", "steps are counted in one of the two",
     "megatron/training/arguments.py:1279"},
    {"--train-iters", "!--lr-decay-samples", "steps are counted in iterations",
     "megatron/training/arguments.py:1281"},
    {"--train-iters", "--lr-warmup-samples=0", "steps are counted in iterations",
     "megatron/training/arguments.py:1283"},
    {"--train-samples", "!--lr-decay-iters", "steps are counted in samples",
     "megatron/training/arguments.py:1295"},
    {"--train-samples", "--lr-warmup-iters=0", "steps are counted in samples",
     "megatron/training/arguments.py:1297"},
    {"--lr-warmup-fraction & --train-iters", "--lr-warmup-iters=0",
     "warm-up is said as a fraction or in iterations", "megatron/training/arguments.py:1286"},
    {"--lr-warmup-fraction & --train-samples", "--lr-warmup-samples=0",
     "warm-up is said as a fraction or in samples", "megatron/training/arguments.py:1300"},
    {"--lr & --min-lr", "--min-lr<=--lr", "", "megatron/training/arguments.py:1360"},
    {"--lr-warmup-iters & --train-iters & !--lr-decay-iters", "--lr-warmup-iters<--train-iters",
     "the schedule stops the job when it is built",
     "megatron/core/optimizer_param_scheduler.py:160"},
    {"--lr-warmup-iters & --lr-decay-iters", "--lr-warmup-iters<--lr-decay-iters",
     "the schedule stops the job when it is built",
     "megatron/core/optimizer_param_scheduler.py:160"},
    {"--weight-decay-incr-style=constant", "!--start-weight-decay", "",
     "megatron/training/arguments.py:1394"},
    {"--weight-decay-incr-style=constant", "!--end-weight-decay", "",
     "megatron/training/arguments.py:1395"},
    {"--weight-decay-incr-style=linear,cosine", "--start-weight-decay", "",
     "megatron/training/arguments.py:1399"},
    {"--weight-decay-incr-style=linear,cosine", "--end-weight-decay", "",
     "megatron/training/arguments.py:1400"},

    // Checkpoints and data.
    {"--save", "--save-interval>0", "", "megatron/training/arguments.py:1362"},
    {"--save & --save-retain-interval", "--save-retain-interval>0", "",
     "megatron/training/arguments.py:1365"},
    {"--save-params-interval & --save", "!--overlap-param-gather", "",
     "megatron/training/arguments.py:1368"},
    {"--ckpt-convert-format", "--ckpt-convert-save", "", "megatron/training/arguments.py:393"},
    {"--ckpt-convert-format", "--load", "", "megatron/training/arguments.py:394"},
    {"--non-persistent-ckpt-type=local", "--non-persistent-local-ckpt-dir", "",
     "megatron/training/arguments.py:1895"},
    {"--non-persistent-ckpt-type", "--non-persistent-ckpt-type=global,local",
     "in_memory is not written yet", "megatron/training/arguments.py:398"},
    {"--replication", "--replication-jump", "", "megatron/training/arguments.py:1897"},
    {"--replication", "--non-persistent-ckpt-type=local", "",
     "megatron/training/arguments.py:1898"},
    {"--load-main-params-from-ckpt", "--no-load-optim", "", "megatron/training/arguments.py:1812"},
    {"--logits-save-dir", "--logits-save-top-k", "", "megatron/training/arguments.py:1826"},
    {"--logits-save-dir", "--async-save", "", "megatron/training/arguments.py:1827"},
    {"--override-ckpt-iteration", "!--finetune", "", "megatron/training/arguments.py:1852"},
    {"--moe-use-upcycling", "--save", "", "megatron/training/arguments.py:1864"},
    {"--data-path", "!--data-args-path", "", "megatron/training/arguments.py:677"},
    {"--mock-data", "!--data-path", "data comes from one source",
     "megatron/training/arguments.py:1679"},
    {"--mock-data", "!--train-data-path", "data comes from one source",
     "megatron/training/arguments.py:1679"},
    {"--data-path", "!--train-data-path", "data comes from one source",
     "megatron/training/arguments.py:1679"},
    {"--data-path", "!--valid-data-path", "data comes from one source",
     "megatron/training/arguments.py:1679"},
    {"--data-path", "!--test-data-path", "data comes from one source",
     "megatron/training/arguments.py:1679"},
    {"--train-data-path", "!--per-split-data-args-path", "", "megatron/training/arguments.py:684"},
    {"--fim-data", "!--mock-data", "", "megatron/training/arguments.py:1692"},
    {"--fim-data", "--fim-prefix-token", "", "megatron/training/arguments.py:1684"},
    {"--num-dataset-builder-threads", "--num-dataset-builder-threads>0", "",
     "megatron/training/arguments.py:1258"},

    // Shapes.
    {"--num-layers", "!--encoder-num-layers", "the two name one number",
     "megatron/training/arguments.py:1305"},
    {"--seq-length", "!--encoder-seq-length", "the two name one number",
     "megatron/training/arguments.py:1347"},
    {"--decoder-seq-length & --max-position-embeddings",
     "--decoder-seq-length<=--max-position-embeddings", "", "megatron/training/arguments.py:1358"},
    {"--hybrid-override-pattern", "!--hybrid-layer-pattern", "the two name one pattern",
     "megatron/training/arguments.py:746"},
    {"--hybrid-layer-pattern", "!--num-layers-per-virtual-pipeline-stage", "",
     "megatron/training/arguments.py:814"},
    {"--hybrid-layer-pattern", "!--num-virtual-stages-per-pipeline-rank", "",
     "megatron/training/arguments.py:820"},
    {"--hybrid-layer-pattern", "!--pipeline-model-parallel-layout", "",
     "megatron/training/arguments.py:825"},
    {"--hybrid-layer-pattern", "!--account-for-embedding-in-pipeline-split", "",
     "megatron/training/arguments.py:829"},
    {"--hybrid-layer-pattern", "!--account-for-loss-in-pipeline-split", "",
     "megatron/training/arguments.py:834"},
    {"--num-layers-per-virtual-pipeline-stage", "!--num-virtual-stages-per-pipeline-rank",
     "each says the virtual stages", "megatron/training/arguments.py:919"},
    {"--num-layers-per-virtual-pipeline-stage", "!--pipeline-model-parallel-layout",
     "each says the virtual stages", "megatron/training/arguments.py:919"},
    {"--num-virtual-stages-per-pipeline-rank", "!--pipeline-model-parallel-layout",
     "each says the virtual stages", "megatron/training/arguments.py:919"},
    {"--num-layers-per-virtual-pipeline-stage", "!--decoder-first-pipeline-num-layers",
     "uneven stages take --num-virtual-stages-per-pipeline-rank",
     "megatron/training/arguments.py:955"},
    {"--num-layers-per-virtual-pipeline-stage", "!--decoder-last-pipeline-num-layers",
     "uneven stages take --num-virtual-stages-per-pipeline-rank",
     "megatron/training/arguments.py:955"},
    {"--decoder-first-pipeline-num-layers", "--decoder-first-pipeline-num-layers>0", "",
     "megatron/core/transformer/transformer_config.py:2304"},
    {"--decoder-last-pipeline-num-layers", "--decoder-last-pipeline-num-layers>0", "",
     "megatron/core/transformer/transformer_config.py:2323"},
    {"--position-embedding-type=mrope", "--mrope-section", "",
     "megatron/training/arguments.py:1644"},
    {"--position-embedding-type=relative", "--transformer-impl=transformer_engine", "",
     "megatron/training/arguments.py:1634"},
    {"--no-position-embedding", "--position-embedding-type=rope | --use-rotary-position-embeddings",
     "it is deprecated, and read with rope alone", "megatron/training/arguments.py:1634"},
    {"--mtp-num-layers>0 & !--use-rotary-position-embeddings",
     "--position-embedding-type=rope,none", "predicting several tokens is for rope alone",
     "megatron/training/arguments.py:883"},
    {"--mla-down-proj-fusion", "--multi-latent-attention", "",
     "megatron/training/arguments.py:1977"},
    {"--multi-latent-attention", "!--rotary-interleaved", "",
     "megatron/core/transformer/transformer_config.py:2527"},
    {"--attention-backend=local", "--spec=local", "", "megatron/training/arguments.py:437"},
    {"--fused-residual-rmsnorm", "--normalization=RMSNorm", "",
     "megatron/core/transformer/transformer_config.py:2455"},
    {"--qk-clip", "--qk-clip-threshold>0", "", "megatron/training/arguments.py:1617"},
    {"--qk-clip", "--qk-clip-alpha>0", "", "megatron/training/arguments.py:1615"},
    {"--qk-clip", "--qk-clip-alpha<1", "", "megatron/training/arguments.py:1615"},
    {"--use-te-activation-func", "--no-bias-swiglu-fusion | --no-bias-gelu-fusion",
     "the fused bias and Transformer Engine's activation exclude each other",
     "megatron/core/transformer/transformer_config.py:2448"},

    // Communication and data parallelism.
    {"--tp-comm-overlap", "--sequence-parallel", "", "megatron/training/arguments.py:1442"},
    {"--tp-comm-overlap", "--tensor-model-parallel-size>1",
     "one rank switches sequence parallelism off, which it needs",
     "megatron/training/arguments.py:1442"},
    {"--overlap-param-gather",
     "--use-distributed-optimizer | --use-megatron-fsdp | --optimizer=dist_muon", "",
     "megatron/training/arguments.py:1025"},
    {"--overlap-param-gather", "--overlap-grad-reduce", "", "megatron/training/arguments.py:1028"},
    {"--overlap-param-gather-with-optimizer-step", "--use-distributed-optimizer", "",
     "megatron/training/arguments.py:1067"},
    {"--overlap-param-gather-with-optimizer-step", "--overlap-param-gather", "",
     "megatron/training/arguments.py:1069"},
    {"--overlap-param-gather-with-optimizer-step", "--ckpt-format=torch",
     "distributed checkpoints are not written beside it", "megatron/training/arguments.py:1073"},
    {"--use-torch-fsdp2", "--no-gradient-accumulation-fusion", "",
     "megatron/training/arguments.py:1040"},
    {"--use-torch-fsdp2", "--ckpt-format=torch_dist,torch_dcp", "",
     "megatron/training/arguments.py:1042"},
    {"--use-torch-fsdp2", "!--fp16", "", "megatron/training/arguments.py:1046"},
    {"--use-torch-fsdp2", "!--use-megatron-fsdp", "each shards the model its own way",
     "megatron/training/arguments.py:1096"},
    {"--use-megatron-fsdp", "--optimizer=adam,sgd", "", "megatron/training/arguments.py:1150"},
    {"--use-megatron-fsdp", "!--moe-single-grouped-weight", "",
     "megatron/training/arguments.py:1143"},
    {"--use-megatron-fsdp", "!--moe-single-grouped-bias", "",
     "megatron/training/arguments.py:1143"},
    {"--use-megatron-fsdp & --megatron-fsdp-version=2", "!--use-distributed-optimizer", "",
     "megatron/training/arguments.py:1125"},
    {"--use-megatron-fsdp & --data-parallel-sharding-strategy=optim_grads_params",
     "!--check-weight-hash-across-dp-replicas-interval", "", "megatron/training/arguments.py:1163"},
    {"--use-megatron-fsdp & --init-model-with-meta-device",
     "--data-parallel-sharding-strategy!=no_shard", "", "megatron/training/arguments.py:1150"},
    {"--fsdp-manual-registration", "--use-megatron-fsdp", "",
     "megatron/training/arguments.py:1190"},
    {"--fsdp-manual-registration", "--use-nccl-ub", "", "megatron/training/arguments.py:1191"},
    {"--optimizer=muon,dist_muon,adaptive_muon,soap,lion", "!--use-megatron-fsdp", "",
     "megatron/training/arguments.py:1740"},
    {"--optimizer=muon,dist_muon,adaptive_muon,soap,lion", "!--use-torch-fsdp2", "",
     "megatron/training/arguments.py:1739"},
    {"--optimizer=muon,dist_muon,adaptive_muon,soap,lion", "--ckpt-format=torch,torch_dist", "",
     "megatron/training/arguments.py:1741"},
    {"--fp8-param-gather", "--use-distributed-optimizer | --use-torch-fsdp2 | --use-megatron-fsdp",
     "", "megatron/training/arguments.py:1096"},
    {"--fp8-param-gather", "--fp8-format", "there is no fp8 to keep parameters in",
     "megatron/core/transformer/transformer_config.py:1567"},
    {"--fp4-param-gather", "--fp4-format", "there is no fp4 to keep parameters in",
     "megatron/training/arguments.py:1101"},
    {"--fp8-output-proj", "--fp8-format", "",
     "megatron/core/transformer/transformer_config.py:1571"},
    {"--fp8-output-proj", "--fp8-recipe=mxfp8", "",
     "megatron/core/transformer/transformer_config.py:1571"},
    {"--fp8-format & --first-last-layers-bf16", "--fp8-recipe!=delayed", "",
     "megatron/core/transformer/transformer_config.py:1530"},
    {"--fp8-format & --fp8-recipe=custom", "--fp8-quantizer-factory", "",
     "megatron/core/transformer/transformer_config.py:1560"},
    {"--fp4-format & --fp4-recipe=custom", "--fp4-quantizer-factory", "",
     "megatron/core/transformer/transformer_config.py:1586"},
    {"--optimizer-cpu-offload & --fp8-param-gather", "--fp8-recipe=delayed", "",
     "megatron/training/arguments.py:1889"},
    {"--bf16 & --accumulate-allreduce-grads-in-fp32", "--main-grads-dtype=fp32", "",
     "megatron/training/arguments.py:1210"},
    {"--fp16-lm-cross-entropy", "--fp16", "", "megatron/training/arguments.py:1373"},
    {"--fp32-residual-connection", "--fp16 | --bf16", "", "megatron/training/arguments.py:1375"},
    {"--hybrid-context-parallel", "--pipeline-model-parallel-size=1", "",
     "megatron/training/arguments.py:1445"},
    {"--hybrid-context-parallel", "!--use-megatron-fsdp", "",
     "megatron/training/arguments.py:1447"},
    {"--hybrid-context-parallel", "--calculate-per-token-loss", "",
     "megatron/training/arguments.py:1449"},
    {"--defer-embedding-wgrad-compute", "--pipeline-model-parallel-size>1", "",
     "megatron/core/model_parallel_config.py:545"},
    {"--defer-embedding-wgrad-compute", "!--no-gradient-accumulation-fusion", "",
     "megatron/core/model_parallel_config.py:553"},
    {"--disable-gloo-process-groups & --dist-ckpt-optim-fully-reshardable",
     "!--distrib-optim-fully-reshardable-mem-efficient", "", "megatron/training/arguments.py:1753"},
    {"--fake-process-group", "--moe-token-dispatcher-type!=flex", "",
     "megatron/training/arguments.py:1757"},
    {"--inference-batch-times-seqlen-threshold>-1", "--pipeline-model-parallel-size>1", "",
     "megatron/training/arguments.py:1856"},

    // CUDA graphs, offload, recomputation.
    {"--enable-cuda-graph", "--cuda-graph-impl=none", "the two say the same",
     "megatron/training/arguments.py:612"},
    {"--external-cuda-graph", "--cuda-graph-impl=none", "the two say the same",
     "megatron/training/arguments.py:612"},
    {"--enable-cuda-graph", "!--external-cuda-graph", "", "megatron/training/arguments.py:615"},
    {"--cuda-graph-scope", "!--cuda-graph-modules", "the two say the same",
     "megatron/training/arguments.py:634"},
    {"--cuda-graph-impl=full_iteration", "--no-check-for-nan-in-loss-and-grad", "",
     "megatron/training/arguments.py:1236"},
    {"--cuda-graph-impl=full_iteration", "!--cuda-graph-modules", "",
     "megatron/training/arguments.py:1969"},
    {"--cpu-offloading-num-layers>0", "--pipeline-model-parallel-size=1", "",
     "megatron/core/transformer/transformer_config.py:1887"},
    {"--cpu-offloading-num-layers>0", "!--recompute-granularity", "",
     "megatron/core/transformer/transformer_config.py:1892"},
    {"--cpu-offloading-num-layers>0 & --num-layers", "--cpu-offloading-num-layers<--num-layers", "",
     "megatron/core/transformer/transformer_config.py:1887"},
    {"--cpu-offloading-num-layers<0", "--cpu-offloading-num-layers>=0", "",
     "megatron/core/transformer/transformer_config.py:1887"},
    {"--cpu-offloading-num-layers>0", "!--fine-grained-activation-offloading", "",
     "megatron/core/transformer/transformer_config.py:2128"},
    {"--fine-grained-activation-offloading", "--transformer-impl=transformer_engine", "",
     "megatron/training/arguments.py:1936"},
    {"--fine-grained-activation-offloading", "--offload-modules", "",
     "megatron/core/transformer/transformer_config.py:2131"},
    {"--fine-grained-activation-offloading & --offload-modules=attn_proj",
     "--offload-modules=core_attn", "its input is what core_attn puts out",
     "megatron/core/transformer/transformer_config.py:2149"},
    {"--fine-grained-activation-offloading & --recompute-granularity=selective & "
     "--recompute-modules=moe",
     "--offload-modules!=moe_act,expert_fc1,fused_group_mlp", "",
     "megatron/core/transformer/transformer_config.py:2170"},
    {"--activation-offload-fraction", "--activation-offload-fraction<=1", "",
     "megatron/core/transformer/transformer_config.py:2179"},
    {"--activation-offload-fraction", "--activation-offload-fraction>=0", "",
     "megatron/core/transformer/transformer_config.py:2179"},
    {"--recompute-granularity=selective & --recompute-modules=mla_up_proj",
     "--multi-latent-attention", "", "megatron/core/transformer/transformer_config.py:1970"},
    {"--recompute-granularity=selective & --recompute-modules=moe_act", "--moe-grouped-gemm", "",
     "megatron/core/transformer/transformer_config.py:1965"},
    {"--recompute-granularity=selective & --recompute-modules=shared_experts",
     "!--moe-shared-expert-overlap", "", "megatron/core/transformer/transformer_config.py:1996"},
    {"--recompute-granularity=selective & --recompute-modules=mhc", "--enable-mhc-connections", "",
     "megatron/core/transformer/transformer_config.py:2030"},
    {"--moe-layer-recompute", "--recompute-granularity!=full", "",
     "megatron/core/transformer/transformer_config.py:2020"},
    {"--distribute-saved-activations", "--recompute-method", "",
     "megatron/training/arguments.py:1417"},
    {"--delay-wgrad-compute", "--transformer-impl=transformer_engine", "",
     "megatron/training/arguments.py:1904"},
    {"--enable-mhc-connections", "!--mtp-num-layers", "",
     "megatron/core/transformer/transformer_config.py:2064"},
    {"--enable-mhc-connections", "--recompute-granularity!=full", "",
     "megatron/core/transformer/transformer_config.py:2070"},
    {"--enable-mhc-connections", "--pipeline-model-parallel-size=1", "",
     "megatron/core/transformer/transformer_config.py:2093"},
    {"--enable-mhc-connections", "!--fp32-residual-connection", "",
     "megatron/core/transformer/transformer_config.py:2104"},
    {"--mtp-hsm", "--mtp-num-layers>=2", "",
     "megatron/core/transformer/transformer_config.py:1417"},

    // Experts.
    {"--expert-model-parallel-size>1", "--num-experts>0", "there are no experts to spread",
     "megatron/training/arguments.py:1656"},
    {"--moe-ffn-hidden-size & --moe-layer-freq=1", "--num-experts>0", "no layer has experts",
     "megatron/core/transformer/transformer_config.py:1683"},
    {"--moe-latent-size", "--moe-latent-size>0", "", "megatron/training/arguments.py:1981"},
    {"--moe-latent-size", "--num-experts", "", "megatron/training/arguments.py:1982"},
    {"--num-experts", "--num-experts>=0", "",
     "megatron/core/transformer/transformer_config.py:1683"},
    {"--moe-shared-expert-intermediate-size", "--moe-shared-expert-intermediate-size>0", "",
     "megatron/core/transformer/transformer_config.py:1815"},
    {"--moe-shared-expert-intermediate-size & --moe-shared-expert-overlap",
     "--moe-token-dispatcher-type=alltoall,flex", "",
     "megatron/core/transformer/transformer_config.py:1815"},
    {"--moe-enable-deepep", "--moe-token-dispatcher-type=flex", "",
     "megatron/core/transformer/transformer_config.py:1744"},
    {"--moe-enable-deepep", "--moe-flex-dispatcher-backend!=hybridep", "",
     "megatron/core/transformer/transformer_config.py:1746"},
    {"--moe-flex-dispatcher-backend=ncclep", "--moe-token-dispatcher-type=flex", "",
     "megatron/core/transformer/transformer_config.py:1765"},
    {"--moe-dispatch-fwd-dtype=mxfp8", "--moe-flex-dispatcher-backend=ncclep", "",
     "megatron/core/transformer/transformer_config.py:1758"},
    {"--moe-combine-bwd-dtype=mxfp8", "--moe-flex-dispatcher-backend=ncclep", "",
     "megatron/core/transformer/transformer_config.py:1758"},
    {"--moe-pad-expert-input-to-capacity", "--moe-expert-capacity-factor>0", "",
     "megatron/core/transformer/transformer_config.py:1864"},
    {"--moe-expert-rank-capacity-factor", "--moe-flex-dispatcher-backend=hybridep,ncclep", "",
     "megatron/core/transformer/transformer_config.py:1870"},
    {"--moe-expert-capacity-factor>0",
     "--moe-router-load-balancing-type=aux_loss,seq_aux_loss,global_aux_loss,none", "",
     "megatron/core/transformer/transformer_config.py:1847"},
    {"--moe-use-grouped-tensor", "--moe-grouped-gemm", "",
     "megatron/core/transformer/transformer_config.py:1414"},
    {"--moe-single-grouped-weight", "--moe-grouped-gemm", "",
     "megatron/core/transformer/transformer_config.py:1709"},
    {"--moe-single-grouped-bias", "--moe-grouped-gemm", "",
     "megatron/core/transformer/transformer_config.py:1709"},
    {"--moe-single-grouped-bias", "!--disable-bias-linear", "",
     "megatron/core/transformer/transformer_config.py:1739"},
});

// ---- slime ----

constexpr auto kSlime = std::to_array<Relation>({
    {"--rollout-temperature", "--rollout-temperature>0", "greedy answers are no policy to learn",
     "slime/utils/arguments.py:1770"},
    {"--use-opd", "--opd-type", "", "slime/utils/arguments.py:1788"},
    {"--use-opd & --opd-type=megatron", "--opd-teacher-load", "", "slime/utils/arguments.py:1792"},
    {"--opd-type=sglang", "!--opd-teacher-load", "", "slime/utils/arguments.py:1808"},
    {"--opd-teacher-load", "--use-opd", "", "slime/utils/arguments.py:1815"},
    {"--eval-interval", "--eval-prompt-data | --eval-config", "there is nothing to evaluate on",
     "slime/utils/arguments.py:1841"},
    {"--save-interval", "--save", "", "slime/utils/arguments.py:1844"},
    {"--kl-coef!=0,0.0,0.00", "--kl-loss-coef=0,0.0,0.00", "the penalty is said in one place",
     "slime/utils/arguments.py:1846"},
    {"--advantage-estimator=reinforce_plus_plus,reinforce_plus_plus_baseline",
     "--normalize-advantages", "", "slime/utils/arguments.py:1849"},
    {"--use-rollout-logprobs", "!--use-tis", "", "slime/utils/arguments.py:1855"},
    {"--get-mismatch-metrics", "--custom-tis-function-path", "", "slime/utils/arguments.py:1858"},
    {"--use-dynamic-batch-size", "--max-tokens-per-gpu", "", "slime/utils/arguments.py:1868"},
    {"--balance-by-flops", "--use-dynamic-batch-size", "", "slime/utils/arguments.py:1873"},
    {"--debug-rollout-only", "!--debug-train-only", "", "slime/utils/arguments.py:1933"},
    {"--over-sampling-batch-size & --rollout-batch-size",
     "--over-sampling-batch-size>=--rollout-batch-size", "", "slime/utils/arguments.py:1988"},
    {"--num-epoch & !--num-rollout", "!--disable-rollout-global-dataset", "",
     "slime/utils/arguments.py:1997"},
    {"--rollout-batch-size & !--num-epoch", "--num-rollout", "the job has no length",
     "slime/utils/arguments.py:2003"},
    {"--enable-mtp-training", "--mtp-num-layers", "", "slime/utils/arguments.py:2008"},
    {"--rollout-max-prompt-len & --rollout-max-context-len",
     "--rollout-max-prompt-len<--rollout-max-context-len", "no token is left to answer with",
     "slime/utils/arguments.py:2033"},
    {"--only-train-params-name-list", "!--freeze-params-name-list", "",
     "slime/utils/arguments.py:2033"},
    {"--update-weight-transport=disk", "--update-weight-disk-dir", "",
     "slime/utils/arguments.py:2038"},
    {"--update-weight-mode=delta", "--update-weight-transport=disk", "",
     "slime/utils/arguments.py:2061"},
    {"--update-weight-mode=delta", "!--colocate", "", "slime/utils/arguments.py:2066"},
    {"--update-weight-mode=delta", "--update-weight-local-checkpoint-dir", "",
     "slime/utils/arguments.py:2072"},
    {"--release-train", "--save", "", "slime/utils/arguments.py:2054"},
    {"--release-train", "!--keep-old-actor", "", "slime/utils/arguments.py:2052"},
    {"--release-train", "--advantage-estimator!=ppo", "", "slime/utils/arguments.py:2050"},
    {"--pipeline-model-parallel-size=1", "!--decoder-last-pipeline-num-layers",
     "one stage has no last one", "slime/backends/megatron_utils/arguments.py:91"},
    {"--pipeline-model-parallel-size=1", "!--decoder-first-pipeline-num-layers",
     "one stage has no first one", "slime/backends/megatron_utils/arguments.py:91"},
    // What sglang keeps of a GPU's memory for weights and cache is a share of it.
    {"--sglang-mem-fraction-static", "--sglang-mem-fraction-static>0",
     "it is a share of the memory", "docs/en/get_started/usage.md"},
    {"--sglang-mem-fraction-static", "--sglang-mem-fraction-static<1",
     "it is a share of the memory", "docs/en/get_started/usage.md"},
});

// ---- Megatron-DeepSpeed ----

constexpr auto kFork = std::to_array<Relation>({
    {"--micro-batch-size", "--micro-batch-size>0", "", "megatron/arguments.py:165"},
    {"--global-batch-size", "--global-batch-size>0", "", "megatron/arguments.py:171"},
    {"--enable-zbh1-pipeline", "!--sequence-parallel", "", "megatron/arguments.py:81"},
    {"--enable-zbh1-exact-semantics", "--enable-zbh1-pipeline", "", "megatron/arguments.py:83"},
    {"--use-distributed-optimizer", "!--no-contiguous-buffers-in-local-ddp", "",
     "megatron/arguments.py:215"},
    {"--accumulate-allreduce-grads-in-fp32", "!--no-contiguous-buffers-in-local-ddp", "",
     "megatron/arguments.py:209"},
    {"--bf16", "--DDP-impl=local", "gradients are accumulated in fp32 with bf16",
     "megatron/arguments.py:208"},
    {"--use-distributed-optimizer", "--DDP-impl=local", "", "megatron/arguments.py:214"},
    {"--bf16", "!--no-contiguous-buffers-in-local-ddp",
     "gradients are accumulated in fp32 with bf16", "megatron/arguments.py:209"},
    {"--distribute-checkpointed-activations", "--checkpoint-activations", "",
     "megatron/arguments.py:351"},
    {"--fp8-e4m3", "!--fp8-hybrid", "", "megatron/arguments.py:376"},
    {"--fp8-hybrid", "--transformer-impl=transformer_engine", "", "megatron/arguments.py:373"},
    {"--fp8-e4m3", "--transformer-impl=transformer_engine", "", "megatron/arguments.py:373"},
    {"--train-iters", "!--lr-decay-samples", "steps are counted in iterations",
     "megatron/arguments.py:243"},
    {"--train-iters", "--lr-warmup-samples=0", "steps are counted in iterations",
     "megatron/arguments.py:245"},
    {"--train-iters", "!--rampup-batch-size", "a ramp counts samples", "megatron/arguments.py:247"},
    {"--train-samples", "!--lr-decay-iters", "steps are counted in samples",
     "megatron/arguments.py:259"},
    {"--weight-decay-incr-style=constant", "!--start-weight-decay", "",
     "megatron/arguments.py:331"},
    {"--weight-decay-incr-style=constant", "!--end-weight-decay", "", "megatron/arguments.py:332"},
    {"--weight-decay-incr-style=linear,cosine", "--start-weight-decay", "",
     "megatron/arguments.py:336"},
    {"--num-layers", "!--encoder-num-layers", "the two name one number",
     "megatron/arguments.py:269"},
    {"--seq-length", "!--encoder-seq-length", "the two name one number",
     "megatron/arguments.py:303"},
    {"--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-size>2", "",
     "megatron/arguments.py:173"},
    {"--lr & --min-lr", "--min-lr<=--lr", "", "megatron/arguments.py:319"},
    {"--save", "--save-interval", "", "megatron/arguments.py:321"},
    {"--train-iters", "!--train-samples", "steps are counted in one of the two",
     "megatron/arguments.py:241"},
    {"--lr-warmup-fraction & --train-iters", "--lr-warmup-iters=0",
     "warm-up is said as a fraction or in iterations", "megatron/arguments.py:1286"},
    {"--fp16-lm-cross-entropy", "--fp16", "", "megatron/arguments.py:326"},
    {"--fp32-residual-connection", "--fp16 | --bf16", "", "megatron/arguments.py:326"},
});

// ---- transformers' Trainer ----

constexpr auto kTrainer = std::to_array<Relation>({
    {"--fp16", "!--bf16", "", "training_args.py (__post_init__)"},
    {"--dataloader_prefetch_factor", "--dataloader_num_workers>0", "nothing is loaded ahead",
     "training_args.py (__post_init__)"},
    {"--fp16_full_eval", "!--bf16_full_eval", "", "training_args.py (__post_init__)"},
    {"--fsdp", "!--deepspeed", "each shards the model its own way",
     "trainer.py (Using --fsdp xxx together with --deepspeed)"},
    {"--load_best_model_at_end", "--eval_strategy!=no", "nothing says which is the best",
     "training_args.py (__post_init__)"},
    {"--load_best_model_at_end & --save_strategy=steps", "--eval_strategy=steps",
     "models are compared where they are saved", "training_args.py (__post_init__)"},
    {"--load_best_model_at_end & --save_strategy=epoch", "--eval_strategy=epoch",
     "models are compared where they are saved", "training_args.py (__post_init__)"},
    {"--config_overrides", "!--model_name_or_path", "a model that is loaded has its config",
     "examples/pytorch/language-modeling/run_clm.py"},
    {"--config_overrides", "!--config_name", "a model that is loaded has its config",
     "examples/pytorch/language-modeling/run_clm.py"},
});

// ---- terms ----

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(trimmed(text.substr(0, at)));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

struct Term {
  bool negated = false;
  std::string_view flag, op, value;  // op: empty: given
};

Term term_of(std::string_view text) {
  Term term;
  if (text.starts_with('!')) {
    term.negated = true;
    text.remove_prefix(1);
  }
  const std::size_t at = text.find_first_of("=!<>");
  term.flag = text.substr(0, at);
  if (at == std::string_view::npos) return term;
  const std::size_t length = at + 1 < text.size() && text[at + 1] == '=' ? 2 : 1;
  term.op = text.substr(at, length);
  term.value = text.substr(at + length);
  return term;
}

class Judge {
 public:
  Judge(const Scene& scene, const ConfigPart& part)
      : scene_(scene),
        part_(part),
        list_(known_options(option_list_of(part.dialect))),
        other_(known_options("megatron")) {}

  // Nothing: only a run can tell.
  [[nodiscard]] std::optional<bool> holds(std::string_view text) const {
    const Term term = term_of(text);
    if (term.op.empty()) {
      const Setting* const found = part_.settings.find(term.flag);
      if (found != nullptr && !found->resolved) return std::nullopt;  // of two branches, perhaps
      const bool elsewhere = found == nullptr && !term.negated && is_said_elsewhere(term.flag);
      const bool off = found != nullptr &&
                       (same_value(found->value, Json(false)) || text_of(found->value) == "None");
      const bool given = (found != nullptr && !off) || elsewhere;
      return given != term.negated;
    }
    const auto values = values_of(term.flag);
    if (!values) return std::nullopt;
    if (term.op == "=" || term.op == "!=") {
      const auto wanted = parts_of(term.value, ',');
      const bool any = std::any_of(values->begin(), values->end(), [&](const std::string& v) {
        return std::find(wanted.begin(), wanted.end(), v) != wanted.end();
      });
      return any == (term.op == "=");
    }
    if (values->empty()) return false;  // nothing is no number of any size
    const auto left = number(*values);
    const auto right =
        term.value.starts_with("--") ? other_number(term.value) : number({std::string(term.value)});
    if (!left || !right) return std::nullopt;
    if (term.op == ">") return *left > *right;
    if (term.op == ">=") return *left >= *right;
    if (term.op == "<") return *left < *right;
    return *left <= *right;
  }

  // Whether the arguments describe the model, as those of a whole job do.
  [[nodiscard]] bool is_whole() const {
    return part_.dialect == Dialect::trainer || is_said_elsewhere("--num-layers") ||
           is_said_elsewhere("--hidden-size");
  }

  [[nodiscard]] const Setting* find(std::string_view text) const {
    return part_.settings.find(term_of(text).flag);
  }

 private:
  // An array of arguments may leave to another what it needs.
  [[nodiscard]] bool is_said_elsewhere(std::string_view flag) const {
    return std::any_of(scene_.files.parts.begin(), scene_.files.parts.end(),
                       [&](const ConfigPart& p) { return p.settings.has(flag); });
  }

  // As given, or the parser's default; empty: it has none.
  [[nodiscard]] std::optional<std::vector<std::string>> values_of(std::string_view flag) const {
    const Setting* const found = part_.settings.find(flag);
    if (found != nullptr) {
      if (!found->resolved) return std::nullopt;
      return list_of(found->value);
    }
    if (is_said_elsewhere(flag)) return std::nullopt;
    const KnownOption* known = list_.find(flag);
    if (known == nullptr && part_.dialect == Dialect::slime) known = other_.find(flag);
    if (known == nullptr) return std::nullopt;
    if (known->otherwise == "None" || known->otherwise.empty()) return std::vector<std::string>{};
    return std::vector<std::string>{known->otherwise};
  }

  static std::optional<double> number(const std::vector<std::string>& values) {
    if (values.size() != 1) return std::nullopt;
    try {
      return number_of(Json(values.front()));
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  [[nodiscard]] std::optional<double> other_number(std::string_view flag) const {
    const auto values = values_of(flag);
    return values ? number(*values) : std::nullopt;
  }

  const Scene& scene_;
  const ConfigPart& part_;
  const OptionList &list_, &other_;
};

// "--a", "--a x", "--a above 0", "no --a".
std::string words_of(std::string_view text) {
  const Term term = term_of(text);
  const std::string flag(term.flag);
  if (term.op.empty()) return term.negated ? "no " + flag : flag;
  if (term.op == "=" || term.op == "!=") {
    const std::string list = fmt::format("{}", fmt::join(parts_of(term.value, ','), " or "));
    return fmt::format("{}{} {}", flag, term.op == "=" ? "" : " other than", list);
  }
  const std::string_view word = term.op == ">"    ? "above"
                                : term.op == ">=" ? "of at least"
                                : term.op == "<"  ? "below"
                                                  : "of at most";
  return fmt::format("{} {} {}", flag, word, term.value);
}

std::string_view source_of(Dialect dialect) {
  if (dialect == Dialect::slime) return "slime 624b824a";
  if (dialect == Dialect::trainer) return "transformers 5.23.0";
  return dialect == Dialect::megatron_deepspeed ? "Megatron-DeepSpeed 4efb479d"
                                                : "Megatron-LM d98e8a64";
}

void check_relation(const ConfigPart& part, Dialect whose, const Judge& judge,
                    const Relation& relation, Findings& out) {
  const auto conditions = parts_of(relation.when, '&');
  for (const std::string_view condition : conditions) {
    if (judge.holds(condition) != std::optional(true)) return;
  }
  const auto wanted = parts_of(relation.must, '|');
  // Where the model is not described, a file is missing that may say more than the model.
  const Term first_wanted = term_of(wanted.front());
  const bool of_itself = relation.when.find(first_wanted.flag) != std::string_view::npos;
  if (!first_wanted.negated && !of_itself && !judge.is_whole()) return;
  for (const std::string_view term : wanted) {
    if (judge.holds(term) != std::optional(false)) return;
  }
  std::vector<std::string> when, must;
  for (const std::string_view term : conditions) when.push_back(words_of(term));
  for (const std::string_view term : wanted) must.push_back(words_of(term));
  const Term& first = first_wanted;
  const bool excludes = first.negated;
  const Setting* at = judge.find(conditions.front());
  if (excludes || at == nullptr) {
    if (const Setting* const other = judge.find(wanted.front())) at = other;
  }
  const std::string sentence =
      excludes ? fmt::format("{} and {} exclude each other", fmt::join(when, " with "), first.flag)
      : conditions.size() == 1 && first.flag == term_of(conditions.front()).flag
          ? fmt::format("{} must be {}", first.flag,
                        words_of(wanted.front()).substr(first.flag.size() + 1))
          : fmt::format("{} needs {}", fmt::join(when, " with "), fmt::join(must, ", or "));
  out.push_back({Severity::error,
                 excludes ? "options_exclude" : "option_needs",
                 at != nullptr ? at->place : part.place,
                 relation.why.empty() ? sentence : fmt::format("{}: {}", sentence, relation.why),
                 excludes ? "keep one of them" : fmt::format("write {}", must.front()),
                 fmt::format("{}, {}", source_of(whose), relation.source),
                 {}});
}

}  // namespace

std::span<const Relation> relations_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::megatron:
      return kMegatron;
    case Dialect::slime:
      return kSlime;
    case Dialect::megatron_deepspeed:
      return kFork;
    case Dialect::trainer:
      return kTrainer;
    case Dialect::megatron_yaml:
    case Dialect::bridge:
    case Dialect::ds_config:
    case Dialect::accelerate:
    case Dialect::torchtitan:
    case Dialect::fsdp_module:
      break;
  }
  return {};
}

void check_relations(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (relations_of(part.dialect).empty()) continue;
    const Judge judge(scene, part);
    for (const Relation& relation : relations_of(part.dialect)) {
      check_relation(part, part.dialect, judge, relation, out);
    }
    if (part.dialect != Dialect::slime) continue;
    // slime runs Megatron's validation as well, and has the distributed optimizer on by itself.
    for (const Relation& relation : kMegatron) {
      const bool on = relation.must.find("--use-distributed-optimizer") != std::string_view::npos;
      if (!on) check_relation(part, Dialect::megatron, judge, relation, out);
    }
  }
}

}  // namespace qplan
