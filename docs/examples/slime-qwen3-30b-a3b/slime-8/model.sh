# qwen3-30b-a3b on 8 x h100-sxm, for slime; written by qplan emit
# plan: tp1 pp1 dp2 cp4 ep8 etp1 zero1 mbs1 gbs256 seq20480 cp_comm=a2a offload=optimizer overlap=grad+param+ep
# predicted: 69.5 GiB on the worst GPU of 72.8 GiB, 90.3 s a step, 7260 tokens/s a GPU, 58.1k tokens/s
MODEL_ARGS=(
  --num-layers 48
  --hidden-size 2048
  --ffn-hidden-size 6144
  --num-attention-heads 32
  --kv-channels 128
  --group-query-attention
  --num-query-groups 4
  --qk-layernorm
  --vocab-size 151936
  --untie-embeddings-and-output-weights
  --position-embedding-type rope
  --rotary-base 1000000
  --rotary-percent 1
  --normalization RMSNorm
  --norm-epsilon 1e-06
  --swiglu
  --disable-bias-linear
  --num-experts 128
  --moe-router-topk 8
  --moe-ffn-hidden-size 768
  --moe-router-score-function softmax
  --moe-router-dtype fp32
  --moe-router-load-balancing-type aux_loss
  --moe-aux-loss-coeff 0.001
  --moe-grouped-gemm
)
