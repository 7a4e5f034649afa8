#!/bin/bash
set -euo pipefail
prompt=1024
answer=$((1024 * 3))

python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_batch_size=256 \
  data.max_prompt_length=$prompt \
  data.max_response_length=$answer \
  data.truncation='error' \
  actor_rollout_ref.model.path=$HOME/models/Qwen3-8B \
  actor_rollout_ref.actor.strategy=fsdp2 \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((2 * (prompt + answer))) \
  actor_rollout_ref.actor.use_kl_loss=True \
  actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \
  actor_rollout_ref.actor.fsdp_config.param_offload=True \
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
  trainer.logger='["console","wandb"]' \
  trainer.n_gpus_per_node=8 \
  trainer.nnodes=2 "$@"
