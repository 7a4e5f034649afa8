#!/bin/bash
# qwen3-30b-a3b on 8 x h100-sxm, for slime; written by qplan emit
# plan: tp1 pp1 dp2 cp4 ep8 etp1 zero1 mbs1 gbs256 seq20480 cp_comm=a2a offload=optimizer overlap=grad+param+ep
# predicted: 69.5 GiB on the worst GPU of 72.8 GiB, 90.3 s a step, 7260 tokens/s a GPU, 58.1k tokens/s
# On the first node; others join by `ray start --address=<of the first>:6379`.
set -euo pipefail
cd "$(dirname "$0")"
source model.sh
# Replace these paths.
SLIME_DIR=/path/to/slime
MEGATRON_LM_DIR=/path/to/Megatron-LM
HF_CHECKPOINT=/path/to/hugging_face_checkpoint
MEGATRON_CHECKPOINT=/path/to/torch_dist_checkpoint
SAVE_PATH=/path/to/checkpoints
PROMPT_DATA=/path/to/prompts.jsonl

CKPT_ARGS=(
  --hf-checkpoint "${HF_CHECKPOINT}"
  --ref-load "${MEGATRON_CHECKPOINT}"
  --load "${SAVE_PATH}"
  --save "${SAVE_PATH}"
  --save-interval 20
)

ROLLOUT_ARGS=(
  --prompt-data "${PROMPT_DATA}"
  --input-key prompt
  --label-key label
  --apply-chat-template
  --rollout-shuffle
  --rm-type deepscaler
  --num-rollout 3000
  --rollout-batch-size 32
  --n-samples-per-prompt 8
  --rollout-max-response-len 15360
  --rollout-temperature 1
  --global-batch-size 256
  --balance-data
)

PERF_ARGS=(
  --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 1
  --context-parallel-size 4
  --cp-comm-type a2a
  --expert-model-parallel-size 8
  --expert-tensor-parallel-size 1
  --overlap-moe-expert-parallel-comm
  --moe-token-dispatcher-type alltoall
  --moe-permute-fusion
  --use-dynamic-batch-size
  --max-tokens-per-gpu 5120
)

OPTIMIZER_ARGS=(
  --optimizer adam
  --lr 1e-6
  --lr-decay-style constant
  --weight-decay 0.1
  --adam-beta1 0.9
  --adam-beta2 0.98
  --overlap-grad-reduce
  --overlap-param-gather
  --use-precision-aware-optimizer
  --main-grads-dtype fp32
  --main-params-dtype fp32
  --exp-avg-dtype fp32
  --exp-avg-sq-dtype fp32
  --optimizer-cpu-offload
  --optimizer-offload-fraction 1
  --overlap-cpu-optimizer-d2h-h2d
)

GRPO_ARGS=(
  --advantage-estimator grpo
  --eps-clip 0.2
  --eps-clip-high 0.28
)

SGLANG_ARGS=(
  --rollout-num-gpus-per-engine 8
  --sglang-mem-fraction-static 0.7
)

MISC_ARGS=(
  --seq-length 20480
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --attention-softmax-in-fp32
)
MISC_ARGS+=(--accumulate-allreduce-grads-in-fp32)

export PYTHONUNBUFFERED=1
MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
ray start --head --node-ip-address "$MASTER_ADDR" --num-gpus 8 --disable-usage-stats
ray job submit --address=http://127.0.0.1:8265 \
  --runtime-env-json="{\"env_vars\": {\"PYTHONPATH\": \"$MEGATRON_LM_DIR\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"32\"}}" \
  -- python3 "$SLIME_DIR/train.py" \
  --actor-num-nodes 1 \
  --actor-num-gpus-per-node 8 \
  --colocate \
  "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" \
  "${OPTIMIZER_ARGS[@]}" "${GRPO_ARGS[@]}" "${PERF_ARGS[@]}" \
  "${SGLANG_ARGS[@]}" "${MISC_ARGS[@]}"
