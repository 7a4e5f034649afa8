#!/bin/bash
# gpt-1.3t on 1024 x a100-80gb-sxm, for megatron-deepspeed; written by qplan emit
# plan: tp2 pp1 dp256 cp2 zero3 mbs4 gbs2048 seq2048 cp_comm=a2a recompute=full offload=optimizer grad_dtype=bf16
# qplan: --hardware a100-80gb-sxm
# predicted: 75.2 GiB on the worst GPU of 75.2 GiB, 295 s a step, 13.91 tokens/s a GPU, 14.2k tokens/s
# Needs deepspeedai/Megatron-DeepSpeed and deepspeed 0.10.2 or later.
set -euo pipefail
cd "$(dirname "$0")"
# Replace these paths.
MEGATRON_DEEPSPEED_DIR=/path/to/Megatron-DeepSpeed
TOKENIZER_PATH=/path/to/tokenizer
DATA_PATH=/path/to/data_text_document
CHECKPOINT_PATH=/path/to/checkpoints
# 128 lines of "<host> slots=8"; run on one node, which reaches the others by ssh.
HOSTFILE=${HOSTFILE:-/path/to/hostfile}
MASTER_ADDR=${MASTER_ADDR:-first-host}

MODEL_ARGS=(
  --num-layers 168
  --hidden-size 25600
  --ffn-hidden-size 102400
  --num-attention-heads 160
  --kv-channels 160
  --num-key-value-heads 160
  --max-position-embeddings 2048
  --normalization layernorm
  --layernorm-epsilon 1e-05
  --attention-dropout 0.0
  --hidden-dropout 0.0
)

PLAN_ARGS=(
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 1
  --no-pipeline-parallel
  --ds-sequence-parallel-size 2
  --micro-batch-size 4
  --global-batch-size 2048
  --seq-length 2048
  --zero-stage 3
  --bf16
  --checkpoint-activations
  --deepspeed-activation-checkpointing
  --cpu-optimizer
)

TRAINING_ARGS=(
  --train-iters 1000
  --lr 3e-4
  --min-lr 3e-5
  --lr-decay-style cosine
  --lr-warmup-iters 100
  --weight-decay 0.1
  --clip-grad 1.0
  --adam-beta1 0.9
  --adam-beta2 0.95
  --init-method-std 0.02
  --log-interval 10
  --save-interval 500
  --eval-interval 500
  --eval-iters 10
  --save "${CHECKPOINT_PATH}"
  --load "${CHECKPOINT_PATH}"
)

DATA_ARGS=(
  --tokenizer-type HFTokenizer
  --tokenizer-model "${TOKENIZER_PATH}"
  --data-path "${DATA_PATH}"
  --split 99,1,0
)

export CUDA_DEVICE_MAX_CONNECTIONS=1
deepspeed --num_gpus 8 --num_nodes 128 \
  --hostfile "$HOSTFILE" --master_addr "$MASTER_ADDR" --master_port 6000 \
  "$MEGATRON_DEEPSPEED_DIR/pretrain_gpt.py" \
  --deepspeed --deepspeed_config ds_config.json \
  "${MODEL_ARGS[@]}" "${PLAN_ARGS[@]}" "${TRAINING_ARGS[@]}" "${DATA_ARGS[@]}"
