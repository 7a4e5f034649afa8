#!/bin/bash
# qwen3-30b-a3b on 128 x h100-sxm, for deepspeed; written by qplan emit
# plan: tp1 pp1 dp128 zero3 mbs4 gbs1024 seq4096 recompute=full grad_dtype=bf16 overlap=grad
# predicted: 44.1 GiB on the worst GPU of 72.8 GiB, 4.75 s a step, 6898 tokens/s a GPU, 883k tokens/s
# run_clm.py is transformers' example: examples/pytorch/language-modeling.
set -euo pipefail
cd "$(dirname "$0")"
# Replace these paths.
TRANSFORMERS_DIR=/path/to/transformers
MODEL_PATH=/path/to/hugging_face_checkpoint
DATA_PATH=/path/to/data
CHECKPOINT_PATH=/path/to/checkpoints
# 16 lines of "<host> slots=8"; run on one node, which reaches the others by ssh.
HOSTFILE=${HOSTFILE:-/path/to/hostfile}
MASTER_ADDR=${MASTER_ADDR:-first-host}
deepspeed --num_gpus 8 --num_nodes 16 \
  --hostfile "$HOSTFILE" --master_addr "$MASTER_ADDR" --master_port 6000 \
  "$TRANSFORMERS_DIR/examples/pytorch/language-modeling/run_clm.py" \
  --model_name_or_path "${MODEL_PATH}" \
  --train_file "${DATA_PATH}" \
  --output_dir "${CHECKPOINT_PATH}" \
  --do_train \
  --deepspeed ds_config.json \
  --per_device_train_batch_size 4 \
  --gradient_accumulation_steps 2 \
  --block_size 4096 \
  --bf16 \
  --gradient_checkpointing \
  --learning_rate 3e-4 \
  --max_steps 1000 \
  --adam_beta2 0.95 \
  --weight_decay 0.1 \
  --logging_steps 10 \
  --save_steps 500
