#!/bin/bash
# qwen3-32b on 16 x h100-sxm, for fsdp2; written by qplan emit
# plan: tp1 pp1 dp16 zero3 mbs4 gbs1024 seq4096 recompute=full overlap=grad+param
# predicted: 75.1 GiB on the worst GPU of 75.1 GiB, 157 s a step, 1672 tokens/s a GPU, 26.8k tokens/s
# One node: bash train.sh. Several: on each of them NODE_RANK=<0, 1, ...>
# MASTER_ADDR=<of the first> bash train.sh; under Slurm: sbatch train.sbatch.
# run_clm.py is transformers' example: examples/pytorch/language-modeling.
set -euo pipefail
cd "$(dirname "$0")"
# Replace these paths.
TRANSFORMERS_DIR=/path/to/transformers
MODEL_PATH=/path/to/hugging_face_checkpoint
DATA_PATH=/path/to/data
CHECKPOINT_PATH=/path/to/checkpoints
accelerate launch --config_file accelerate.yaml --machine_rank "${NODE_RANK:-0}" \
  --main_process_ip "${MASTER_ADDR:-localhost}" --main_process_port "${MASTER_PORT:-6000}" \
  "$TRANSFORMERS_DIR/examples/pytorch/language-modeling/run_clm.py" \
  --model_name_or_path "${MODEL_PATH}" \
  --train_file "${DATA_PATH}" \
  --output_dir "${CHECKPOINT_PATH}" \
  --do_train \
  --per_device_train_batch_size 4 \
  --gradient_accumulation_steps 16 \
  --block_size 4096 \
  --bf16 \
  --accelerator_config '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}' \
  --learning_rate 3e-4 \
  --max_steps 1000 \
  --adam_beta2 0.95 \
  --weight_decay 0.1 \
  --max_grad_norm 1.0 \
  --logging_steps 10 \
  --save_steps 500
