# qwen3-30b-a3b on 64 x h100-sxm, for slime; written by qplan emit
# plan: tp1 pp4 dp8 cp2 ep8 etp1 zero1 mbs1 gbs256 seq20480 interleaved vpp6 layout=2*21+3+3+0 cp_comm=all_gather recompute=selective:moe_act overlap=grad+param+ep
# predicted: 72.8 GiB on the worst GPU of 72.8 GiB, 11.2 s a step, 7336 tokens/s a GPU, 470k tokens/s
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
