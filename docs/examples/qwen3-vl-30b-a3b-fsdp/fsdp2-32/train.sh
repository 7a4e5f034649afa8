#!/bin/bash
# qwen3-vl-30b-a3b on 32 x h100-sxm, for fsdp2; written by qplan emit
# plan: tp1 pp1 dp32 zero3 mbs4 gbs512 seq4096 recompute=full overlap=grad+param
# predicted: 57.4 GiB on the worst GPU of 72.8 GiB, 11.4 s a step, 5738 tokens/s a GPU, 184k tokens/s
# One node: bash train.sh. Several: on each of them NODE_RANK=<0, 1, ...>
# MASTER_ADDR=<of the first> bash train.sh; under Slurm: sbatch train.sbatch.
# sft_vlm.py is TRL's example: examples/scripts.
set -euo pipefail
cd "$(dirname "$0")"
# Replace these paths.
TRL_DIR=/path/to/trl
MODEL_PATH=/path/to/hugging_face_checkpoint
DATA_PATH=/path/to/data
CHECKPOINT_PATH=/path/to/checkpoints
accelerate launch --config_file accelerate.yaml --machine_rank "${NODE_RANK:-0}" \
  --main_process_ip "${MASTER_ADDR:-localhost}" --main_process_port "${MASTER_PORT:-6000}" \
  "$TRL_DIR/examples/scripts/sft_vlm.py" \
  --model_name_or_path "${MODEL_PATH}" \
  --dataset_name "${DATA_PATH}" \
  --output_dir "${CHECKPOINT_PATH}" \
  --per_device_train_batch_size 4 \
  --gradient_accumulation_steps 4 \
  --max_length 4096 \
  --bf16 \
  --accelerator_config '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}' \
  --learning_rate 3e-4 \
  --max_steps 1000 \
  --adam_beta2 0.95 \
  --weight_decay 0.1 \
  --max_grad_norm 1.0 \
  --logging_steps 10 \
  --save_steps 500
