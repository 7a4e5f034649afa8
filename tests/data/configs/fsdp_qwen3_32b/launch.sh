torchrun --nproc_per_node=8 \
  --nnodes=2 \
  --node_rank=0 \
  --master_addr="192.168.1.10" \
  --master_port=12355 \
  train_qwen3_32b.py
