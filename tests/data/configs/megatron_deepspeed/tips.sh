#!/bin/bash
# the options that the document advises below its scripts, added to them
deepspeed --hostfile hostfile --num_gpus 8 \
    pretrain_gpt.py \
    --deepspeed --deepspeed_config ds_config.json \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --micro-batch-size 1 \
    --num-layers 120 --hidden-size 12288 --num-attention-heads 96 \
    --seq-length 32768 --max-position-embeddings 32768 --global-batch-size 1024 \
    --recompute-granularity selective \
    --fp8-format hybrid \
    --ds-sequence-parallel-fpdt \
    --offload_optimizer --offload_param \
    --nccl-timeout 3600 \
    --loss-scale 1024 \
    --checkpoint-activations \
    --num-workers 8
