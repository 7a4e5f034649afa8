torchrun --nproc_per_node=8 --nnodes=4 --node_rank=$NODE_RANK \
  --master_addr=$MASTER_ADDR --master_port=12355 train.py
