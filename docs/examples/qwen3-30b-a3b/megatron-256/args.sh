# qwen3-30b-a3b on 256 x h100-sxm, for megatron; written by qplan emit
# plan: tp1 pp2 dp128 ep8 etp1 zero1 mbs2 gbs1024 seq4096 interleaved vpp7 layout=3*4+4*9+0 moe_dispatcher=deepep overlap=grad+param+ep
# predicted: 71.5 GiB on the worst GPU of 72.8 GiB, 1.36 s a step, 12 081 tokens/s a GPU, 3.09M tokens/s

# Replace these paths.
TOKENIZER_PATH=/path/to/tokenizer
DATA_PATH=/path/to/data_text_document
CHECKPOINT_PATH=/path/to/checkpoints

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
  --make-vocab-size-divisible-by 128
  --max-position-embeddings 40960
  --untie-embeddings-and-output-weights
  --position-embedding-type rope
  --rotary-base 1000000
  --rotary-percent 1
  --normalization RMSNorm
  --norm-epsilon 1e-06
  --swiglu
  --disable-bias-linear
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --num-experts 128
  --moe-router-topk 8
  --moe-ffn-hidden-size 768
  --moe-router-score-function softmax
  --moe-router-dtype fp32
  --moe-router-load-balancing-type aux_loss
  --moe-aux-loss-coeff 0.001
  --moe-grouped-gemm
)

PLAN_ARGS=(
  --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 2
  --pipeline-model-parallel-layout 'Ettt|ttt|ttt|ttt|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|L'
  --context-parallel-size 1
  --expert-model-parallel-size 8
  --expert-tensor-parallel-size 1
  --micro-batch-size 2
  --global-batch-size 1024
  --seq-length 4096
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  --overlap-moe-expert-parallel-comm
  --moe-token-dispatcher-type flex
  --moe-flex-dispatcher-backend deepep
  --moe-permute-fusion
  --bf16
  --accumulate-allreduce-grads-in-fp32
  --cross-entropy-loss-fusion
  --cross-entropy-fusion-impl native
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
  --ckpt-format torch_dist
  --save "${CHECKPOINT_PATH}"
  --load "${CHECKPOINT_PATH}"
)

DATA_ARGS=(
  --tokenizer-type HuggingFaceTokenizer
  --tokenizer-model "${TOKENIZER_PATH}"
  --data-path "${DATA_PATH}"
  --split 99,1,0
  --num-workers 2
)
