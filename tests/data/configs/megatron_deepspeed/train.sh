#!/bin/bash
export MASTER_ADDR=localhost
export MASTER_PORT=6000
export WORLD_SIZE=32  # 总 GPU 数(TP×PP×SP×DP)
export OMP_NUM_THREADS=8  # 绑定 CPU 线程

deepspeed --num_gpus 8 \  # 单节点 GPU 数(需与实际硬件一致)
    pretrain_gpt.py \
    --deepspeed \
    --deepspeed_config ds_config.json \
    --tensor-model-parallel-size 8 \  # 张量并行度
    --pipeline-model-parallel-size 2 \  # 流水线并行度
    --sequence-parallel \  # 启用序列并行
    --context-parallel-size 2 \  # 上下文并行度(与 SP 配合)
    --num-layers 120 \  # 模型总层数(PP=2 时,单卡跑 60 层)
    --hidden-size 12288 \  # 隐藏层维度(1.3T 参数对应值)
    --num-attention-heads 96 \
    --seq-length 8192 \  # 序列长度(结合 SP 可支持 16K+)
    --max-position-embeddings 8192 \
    --micro-batch-size 1 \  # 单卡微 batch(显存紧张时设为 1)
    --global-batch-size 1024 \  # 需与 ds_config 一致
    --train-iters 1000000 \
    --lr 6e-5 \
    --lr-decay-iters 800000 \
    --lr-warmup-iters 2000 \
    --vocab-file /path/to/gpt2-vocab.json \
    --merge-file /path/to/gpt2-merges.txt \
    --data-path /path/to/training-data \
    --save-interval 1000 \
    --save-dir /path/to/checkpoints \
    --log-interval 10 \
    --eval-interval 1000 \
    --eval-iters 10 \
    --use-flash-attn \  # 启用 FlashAttention 降低显存
    --fp16 \  # 与 DeepSpeed FP16 协同
    --recompute-granularity selective  # 选择性激活重算
