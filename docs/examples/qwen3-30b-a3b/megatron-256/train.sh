#!/bin/bash
# qwen3-30b-a3b on 256 x h100-sxm, for megatron; written by qplan emit
# plan: tp1 pp2 dp128 ep8 etp1 zero1 mbs2 gbs1024 seq4096 interleaved vpp7 layout=3*4+4*9+0 moe_dispatcher=deepep overlap=grad+param+ep
# predicted: 71.5 GiB on the worst GPU of 72.8 GiB, 1.36 s a step, 12 081 tokens/s a GPU, 3.09M tokens/s
# One node: bash train.sh. Several: on each of them NODE_RANK=<0, 1, ...> MASTER_ADDR=<of the
# first> bash train.sh; under Slurm: sbatch train.sbatch.
set -euo pipefail
cd "$(dirname "$0")"
source args.sh
MEGATRON_LM_DIR=${MEGATRON_LM_DIR:-/path/to/Megatron-LM}
export CUDA_DEVICE_MAX_CONNECTIONS=32
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
torchrun --nproc-per-node 8 --nnodes 32 --node-rank "${NODE_RANK:-0}" \
  --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-6000}" \
   "$MEGATRON_LM_DIR/pretrain_gpt.py" \
  "${MODEL_ARGS[@]}" "${PLAN_ARGS[@]}" "${TRAINING_ARGS[@]}" "${DATA_ARGS[@]}"
