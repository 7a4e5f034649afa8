#!/bin/bash
MASTER_ADDR=192.168.1.100
MASTER_PORT=6000
NNODES=8
NODE_RANK=$1
GPUS_PER_NODE=8

deepspeed --num_nodes=$NNODES --num_gpus=$GPUS_PER_NODE \
    --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT \
    train.py \
    --deepspeed_config ds_config.json \
    --megatron_config megatron_config.yaml \
    --model_path ./hf_mirrors/Qwen/Qwen3-30B-A3B \
    --data_path ./data/pretrain_corpus \
    --epochs 3 \
    --log_interval 10 \
    --save_interval 1000
