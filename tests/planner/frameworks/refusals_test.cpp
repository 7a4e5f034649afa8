// What frameworks refuse of their own options when they start: each fault by itself in a job that
// has none, and what is near to it and taken.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/jobs.h"
#include "tests/planner/frameworks/rl_jobs.h"

namespace qplan {
namespace {

struct Refusal {
  std::string text, rule;  // rule empty: it is taken
};

// Whether of two answers to jobs that differ by `text` the second alone has an error by `rule`.
template <class Ask>
void check_all(const std::vector<Refusal>& all, const Ask& ask) {
  const std::vector<std::string> rules{"option_needs",     "options_exclude", "refused_value",
                                       "quantized_full",   "adapter_rank",    "unknown_target",
                                       "recompute_twice",  "wrap_class",      "generation_batch",
                                       "narrow_optimizer", "bad_value",       "unknown_option"};
  for (const Refusal& refusal : all) {
    CAPTURE(refusal.text);
    const Checked checked = ask(refusal.text);
    if (!refusal.rule.empty()) {
      CHECK_MESSAGE(find(checked, refusal.rule) != nullptr, refusal.rule << " among:\n"
                                                                         << findings_text(checked));
      continue;
    }
    for (const std::string& rule : rules) {
      CHECK_MESSAGE(find(checked, rule) == nullptr, findings_text(checked));
    }
  }
}

TEST_SUITE("what frameworks refuse") {
  TEST_CASE("Megatron-LM: schedules, ranges, kernels") {
    const std::string job =
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 36 --hidden-size 2560 "
        "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
        "--micro-batch-size 1 --global-batch-size 64 --lr 1e-4 ";
    const std::string by_samples = "--train-samples 6400 ", by_steps = "--train-iters 100 ";
    check_all(
        {{by_samples + "--lr-warmup-samples 6400", "option_needs"},
         {by_samples + "--lr-warmup-samples 640", ""},
         {by_samples + "--lr-decay-samples 640 --lr-warmup-samples 640", "option_needs"},
         {by_steps + "--lr-warmup-fraction 1.0", "option_needs"},
         {by_steps + "--lr-warmup-fraction 0.1", ""},
         {by_steps + "--lr-decay-style WSD", "option_needs"},
         {by_steps + "--lr-decay-style WSD --lr-wsd-decay-iters 10", ""},
         {by_samples + "--lr-decay-style WSD --lr-wsd-decay-iters 10", "option_needs"},
         {by_steps + "--lr-warmup-init 1e-3", "option_needs"},
         {by_steps + "--min-lr -1e-5", "option_needs"},
         {by_steps + "--min-lr 1e-5", ""},
         {by_steps + "--weight-decay-incr-style linear --start-weight-decay 0.1 "
                     "--end-weight-decay 0.01",
          "option_needs"},
         {by_steps + "--weight-decay-incr-style linear --start-weight-decay 0.01 "
                     "--end-weight-decay 0.1",
          ""},
         {by_steps + "--save a --save-interval 100 --save-retain-interval 250", "option_needs"},
         {by_steps + "--save a --save-interval 100 --save-retain-interval 300", ""},
         // Whatever the folder is called, it is given.
         {by_steps + "--save $A --save-interval 100 --save-retain-interval 250", "option_needs"},
         {by_steps + "--save $A --save-interval 100 --save-retain-interval 300", ""},
         {by_steps + "$SAVE_ARGS --save-interval 100 --save-retain-interval 250", ""},
         {by_steps + "--log-interval 0", "option_needs"},
         {by_steps + "--log-interval 10 --log-memory-interval 15", "option_needs"},
         {by_steps + "--eval-interval 0", "option_needs"},
         {by_steps + "--eval-interval 0 --skip-train", ""},
         {by_steps + "--attention-dropout 2", "option_needs"},
         {by_steps + "--hidden-dropout -0.1", "option_needs"},
         {by_steps + "--hidden-dropout 0.1", ""},
         {by_steps + "--adam-beta2 95", "option_needs"},
         {by_steps + "--adam-beta2 0.95", ""},
         {by_steps + "--swiglu --quick-geglu", "options_exclude"},
         {by_steps + "--num-experts 8 --moe-router-load-balancing-type sinkhorn "
                     "--moe-aux-loss-coeff 0.01",
          "option_needs"}},
        [&](const std::string& more) {
          return ask_text("train.sh", job + more + "\n", "qwen3-4b", 8);
        });
    const Checked warmup =
        ask_text("train.sh", job + by_samples + "--lr-warmup-samples 9999\n", "qwen3-4b", 8);
    CHECK(findings_text(warmup).find("--lr-warmup-samples must be below --train-samples:") !=
          std::string::npos);
  }

  TEST_CASE("slime's own loop takes what Megatron's does not") {
    const std::string job =
        "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-batch-size 32 "
        "--n-samples-per-prompt 8 --num-layers 36 --hidden-size 2560 --log-interval 0\n";
    const std::string said = findings_text(ask_text("run.sh", job, "qwen3-4b", 8));
    CHECK_MESSAGE(said.find("--log-interval") == std::string::npos, said);
  }

  TEST_CASE("Megatron-Bridge and NeMo-RL: schedules") {
    const auto bridge = [](const std::string& lines) {
      return ask_text("job.py",
                      "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\n"
                      "from megatron.bridge.training.pretrain import pretrain\n"
                      "cfg = llama3_8b_pretrain_config()\n" +
                          lines + "pretrain(cfg)\n",
                      "llama3-8b", 16);
    };
    check_all({{"cfg.optimizer.lr = 1e-5\ncfg.optimizer.min_lr = 1e-4\n", "option_needs"},
               {"cfg.optimizer.lr = 1e-4\ncfg.optimizer.min_lr = 1e-5\n", ""},
               {"cfg.train.train_iters = 10\ncfg.train.train_samples = 640\n", "options_exclude"},
               {"cfg.train.train_iters = None\ncfg.train.train_samples = 5120\n", ""},
               {"cfg.scheduler.lr_warmup_fraction = 0.1\ncfg.scheduler.lr_warmup_iters = 10\n",
                "options_exclude"},
               // Bridge cuts such a warm-up short.
               {"cfg.train.train_iters = 10\ncfg.scheduler.lr_warmup_iters = 20\n", ""}},
              bridge);
    const auto nemo = [](const std::string& rates) {
      return ask_texts({{"configs/nemo_async.yaml",
                         with_words(rl_fixture("nemo_async.yaml"), "  megatron_cfg:\n",
                                    "  megatron_cfg:\n    optimizer: {" + rates + "}\n")},
                        {"configs/nemo_base.yaml", rl_fixture("nemo_base.yaml")}},
                       "qwen3-30b-a3b", 32);
    };
    check_all({{"lr: 1e-6, min_lr: 1e-5", "option_needs"}, {"lr: 1e-5, min_lr: 1e-6", ""}}, nemo);
  }

  TEST_CASE("ms-swift: schedules, adapters, weights of 4 bits") {
    check_all({{"--lr 1e-5 --min_lr 1e-4", "option_needs"},
               {"--lr 1e-4 --min_lr 1e-5", ""},
               {"--lr_warmup_fraction 1", "option_needs"},
               {"--train_iters 100 --lr_warmup_iters 100", "option_needs"},
               {"--train_iters 100 --lr_warmup_iters 10", ""},
               {"--lr 1e-5 --lr_warmup_init 1e-4", "option_needs"},
               {"--lr_decay_style WSD", "option_needs"}},
              [](const std::string& more) {
                return ask_text("run.sh",
                                "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --dataset x "
                                "--micro_batch_size 1 --global_batch_size 64 " +
                                    more + "\n",
                                "qwen3-8b", 8);
              });
    check_all({{"--tuner_type full --quant_method bnb --quant_bits 4", "quantized_full"},
               {"--tuner_type lora --quant_method bnb --quant_bits 4", ""},
               {"--tuner_type lora --lora_rank 0", "adapter_rank"},
               {"--tuner_type lora --target_modules query_key_value dense", "unknown_target"},
               {"--tuner_type lora --target_modules query_key_value q_proj", ""}},
              [](const std::string& more) {
                return ask_text("run.sh",
                                "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --dataset x "
                                "--torch_dtype bfloat16 --max_length 2048 " +
                                    more + "\n",
                                "qwen3-8b", 8);
              });
  }

  TEST_CASE("verl: adapters of modules that the model has") {
    const auto ask = [](const std::string& targets) {
      const std::string key = "actor_rollout_ref.actor.strategy=";
      return ask_texts({{"run.sh", with_words(rl_fixture("verl_grpo.sh"), key,
                                              "actor_rollout_ref.model.lora_rank=8 "
                                              "actor_rollout_ref.model.target_modules=" +
                                                  targets + " " + key)}},
                       "qwen3-8b", 16);
    };
    check_all({{"[query_key_value]", "unknown_target"}, {"[q_proj]", ""}, {"all-linear", ""}}, ask);
  }

  TEST_CASE("LLaMA-Factory: data, adapters") {
    const std::string job =
        "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\ndo_train: true\n"
        "finetuning_type: lora\ndataset: a,b\ncutoff_len: 2048\nbf16: true\n"
        "output_dir: o\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n";
    check_all(
        {{"streaming: true\nmax_steps: 100\nval_size: 0.1\n", "option_needs"},
         {"streaming: true\nmax_steps: 100\nval_size: 100\n", ""},
         {"mix_strategy: interleave_over\ninterleave_probs: 0.5,0.3,0.2\n", "option_needs"},
         {"mix_strategy: interleave_over\ninterleave_probs: 0.5,0.5\n", ""},
         {"eval_strategy: steps\neval_steps: 100\n", "option_needs"},
         {"eval_strategy: steps\neval_steps: 100\nval_size: 0.1\n", ""},
         {"load_best_model_at_end: true\nval_size: 0.1\neval_strategy: steps\neval_steps: 300\n"
          "save_steps: 500\n",
          "option_needs"},
         {"load_best_model_at_end: true\nval_size: 0.1\neval_strategy: steps\neval_steps: 250\n"
          "save_steps: 500\n",
          ""},
         {"template: qwenn\n", "refused_value"},
         {"template: qwen\n", ""},
         {"lora_rank: 0\n", "adapter_rank"},
         {"lora_target: query_key_value\n", "unknown_target"},
         {"lora_target: all\n", ""},
         {"lora_target: q_proj,v_proj\n", ""},
         {"lora_target: q_proj,v_prj\n", "unknown_target"},
         {"lora_target: q_proj,c_proj\n", ""},
         {"lora_target: q_proj,query_key_value\n", ""},
         {"evaluation_strategy: steps\neval_steps: 100\nval_size: 0.1\n", "unknown_option"},
         {"warmup_ratio: 0.1\n", ""},
         {"quantization_bit: 4\npissa_init: true\n", "options_exclude"},
         {"pissa_init: true\n", ""},
         {"quantization_bit: 4\nresize_vocab: true\n", "options_exclude"},
         {"resize_vocab: true\n", ""},
         {"quantization_bit: 4\nadapter_name_or_path: a,b\n", "options_exclude"},
         {"quantization_bit: 4\nadapter_name_or_path: a\n", ""},
         {"quantization_bit: 4\nadapter_name_or_path: a\ncreate_new_adapter: true\n",
          "options_exclude"},
         {"dpo_label_smoothing: 0.1\n", ""},
         {"compute_accuracy: true\npredict_with_generate: true\n", "options_exclude"},
         {"quantization_bit: 4\nquantization_method: awq\n", "idle_option"},
         {"quantization_bit: 4\nquantization_method: hqq\n", ""}},
        [&](const std::string& more) { return ask_text("job.yaml", job + more, "llama3-8b", 8); });
  }

  TEST_CASE("LLaMA-Factory: preferences, whole weights") {
    const std::string job =
        "model_name_or_path: meta-llama/Meta-Llama-3-8B\ndo_train: true\n"
        "dataset: a,b\ncutoff_len: 2048\nbf16: true\noutput_dir: o\n"
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n";
    const auto ask = [&](const std::string& more) {
      return ask_text("job.yaml", job + more, "llama3-8b", 8);
    };
    const std::string pairs = "stage: dpo\nfinetuning_type: lora\n";
    const std::string whole = "stage: sft\nfinetuning_type: full\n";
    check_all({{pairs + "pref_loss: ipo\ndpo_label_smoothing: 0.1\n", "option_needs"},
               {pairs + "pref_loss: sigmoid\ndpo_label_smoothing: 0.1\n", ""},
               {pairs + "pref_loss: ipo\n", ""},
               {pairs + "pissa_init: true\n", "options_exclude"},
               {pairs + "pref_loss: orpo\npissa_init: true\n", ""},
               {whole + "use_llama_pro: true\n", "options_exclude"},
               {whole + "use_galore: true\nuse_apollo: true\n", "options_exclude"},
               {whole + "use_galore: true\ngalore_layerwise: true\n", "options_exclude"},
               {whole + "use_galore: true\n", ""},
               {"stage: rm\nfinetuning_type: lora\nload_best_model_at_end: true\nval_size: 0.1\n"
                "eval_strategy: steps\neval_steps: 500\n",
                "options_exclude"}},
              ask);
    // Weights that nothing quantises are in 16 bits.
    const Checked sixteen =
        ask("stage: sft\nfinetuning_type: lora\nquantization_bit: 4\nquantization_method: awq\n");
    CHECK(sixteen.plan.frozen_weights ==
          ask("stage: sft\nfinetuning_type: lora\n").plan.frozen_weights);
  }

  TEST_CASE("axolotl's validators") {
    const std::string job =
        "base_model: NousResearch/Meta-Llama-3-8B\nsequence_len: 4096\nmicro_batch_size: 1\n"
        "gradient_accumulation_steps: 8\nlearning_rate: 2e-5\noutput_dir: o\nnum_epochs: 1\n";
    const std::string data = "datasets:\n  - path: x\n    type: alpaca\n";
    const std::string shards =
        "fsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
        "  transformer_layer_cls_to_wrap: ";
    const auto with_data = [&](const std::string& more) { return data + more; };
    std::vector<Refusal> all{
        {"save_strategy: epoch\nsave_steps: 100\n", "options_exclude"},
        {"save_strategy: steps\nsave_steps: 100\n", ""},
        {"eval_strategy: epoch\neval_steps: 100\n", "options_exclude"},
        {"eval_strategy: epoch\nevals_per_epoch: 2\n", "options_exclude"},
        {"val_set_size: 0\neval_steps: 100\n", "option_needs"},
        {"val_set_size: 0.1\neval_steps: 100\n", ""},
        {"val_set_size: 0.1\nstreaming: true\nmax_steps: 9\n", "options_exclude"},
        {"streaming: true\n", "option_needs"},
        {"early_stopping_patience: 3\n", "option_needs"},
        {"early_stopping_patience: 3\nsave_steps: 100\neval_steps: 30\n", "option_needs"},
        {"early_stopping_patience: 3\nsave_steps: 90\neval_steps: 30\n", ""},
        {"optimizer: muon\ndeepspeed: zero2.json\n", "narrow_optimizer"},
        {"optimizer: muon\n" + shards + "LlamaDecoderLayer\n", "narrow_optimizer"},
        {"optimizer: muon\nfsdp_version: 2\n" + shards + "LlamaDecoderLayer\n", ""},
        {"optimizer: adamw_8bit\ntensor_parallel_size: 2\n", "narrow_optimizer"},
        {"context_parallel_size: 2\nattn_implementation: sdpa\n", "option_needs"},
        {"context_parallel_size: 2\nattn_implementation: flash_attention_2\n", ""},
        {"rl: simpo\nwarmup_ratio: 0.1\n", "options_exclude"},
        {"rl: grpo\ntrl:\n  num_generations: 1\n", "option_needs"},
        {"rl: grpo\ntrl:\n  num_generations: 3\n", "generation_batch"},
        {"rl: grpo\ntrl:\n  num_generations: 4\n", ""},
        {"neftune_noise_alpha: 0\n", "refused_value"},
        {"gpu_memory_limit: 20\nmax_memory:\n  0: 20GiB\n", "options_exclude"},
        {"adapter: lora\nload_in_8bit: true\nlora_mlp_kernel: true\n", "options_exclude"},
        {"adapter: lora\nlora_qkv_kernel: true\ntrust_remote_code: true\n", "options_exclude"},
        {"adapter: lora\npeft_layers_pattern: layers\n", "option_needs"},
        {"adapter: lora\nrelora: true\n", "option_needs"},
        {"adapter: lora\nrelora: true\njagged_restart_steps: 9\ndeepspeed: z.json\n",
         "options_exclude"},
        {"chunked_cross_entropy: true\ncut_cross_entropy: true\n", "options_exclude"},
        {"chat_template: lama3\n", "refused_value"},
        {"chat_template: llama3\n", ""},
        {"adapter: lora\nlora_r: 0\nlora_target_linear: true\n", "adapter_rank"},
        {"adapter: lora\nlora_r: 8\nlora_target_modules: [c_attn]\n", "unknown_target"},
        {"adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: [q_proj, c_attn]\n", ""},
        {"fsdp_version: 2\n" + shards + "Qwen3DecoderLayer\n", "wrap_class"},
        {"fsdp_version: 2\ngradient_checkpointing: true\n" + shards +
             "LlamaDecoderLayer\n  activation_checkpointing: true\n",
         "recompute_twice"}};
    for (Refusal& refusal : all) refusal.text = with_data(refusal.text);
    all.push_back({"", "option_needs"});  // no data at all
    all.push_back({data, ""});
    check_all(all, [&](const std::string& more) {
      return ask_text("job.yml", job + more, "llama3-8b", 8);
    });
  }

  TEST_CASE("TRL and accelerate's FSDP") {
    const auto ask = [](const std::string& more, const std::string& of_fsdp) {
      return ask_texts(
          {{"run.sh", "trl sft --config train.yaml --accelerate_config acc.yaml\n"},
           {"train.yaml",
            "model_name_or_path: Qwen/Qwen3-8B\ndataset_name: x\noutput_dir: o\nbf16: true\n"
            "per_device_train_batch_size: 1\nmax_length: 2048\npacking: false\n" +
                more},
           {"acc.yaml",
            "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
            "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n" +
                of_fsdp}},
          "qwen3-8b", 8);
    };
    check_all({{"load_in_4bit: true\n", "quantized_full"},
               {"use_peft: true\nload_in_4bit: true\n", ""},
               {"use_peft: true\nlora_r: 0\n", "adapter_rank"},
               {"use_peft: true\nlora_target_modules: [query_key_value]\n", "unknown_target"},
               {"use_peft: true\nlora_target_modules: [q_proj]\n", ""}},
              [&](const std::string& more) { return ask(more, ""); });
    check_all({{"  fsdp_activation_checkpointing: true\n", "recompute_twice"},
               {"  fsdp_state_dict_type: LOCAL_STATE_DICT\n", "refused_value"},
               {"  fsdp_state_dict_type: SHARDED_STATE_DICT\n", ""},
               {"  fsdp_transformer_layer_cls_to_wrap: Qwen3DecoderLayer\n", ""}},
              [&](const std::string& more) { return ask("gradient_checkpointing: true\n", more); });
    CHECK(find(ask("gradient_checkpointing: false\n", "  fsdp_activation_checkpointing: true\n"),
               "recompute_twice") == nullptr);
    // accelerate 1.15, src/accelerate/utils/dataclasses.py:1969.
    const auto on_host = [](const std::string& version) {
      return ask_text("acc.yaml",
                      "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\n"
                      "num_processes: 8\nfsdp_config:\n  fsdp_version: " +
                          version +
                          "\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                          "  fsdp_activation_checkpointing: true\n"
                          "  fsdp_activation_checkpointing_offload: true\n",
                      "qwen3-8b", 8);
    };
    CHECK(find(on_host("1"), "option_needs") != nullptr);
    CHECK(find(on_host("2"), "option_needs") == nullptr);
    const std::string steps = "gradient_accumulation_steps: 8\n";
    const Checked told = ask(steps, "");
    const Finding* const whole = find(told, "whole_gradients");
    REQUIRE(whole != nullptr);
    CHECK(whole->severity == Severity::note);
    CHECK(whole->message.find("8 microbatches") != std::string::npos);
    CHECK(whole->message.find("30.5 GiB") != std::string::npos);  // 8.19e9 numbers in fp32
    CHECK_FALSE(told.plan.sync_each_batch);
    for (const char* other :
         {"gradient_accumulation_steps: 1\n", "gradient_accumulation_steps: 8\nuse_peft: true\n",
          "gradient_accumulation_steps: 8\naccelerator_config:\n"
          "  gradient_accumulation_kwargs:\n    sync_each_batch: true\n"}) {
      CAPTURE(other);
      CHECK(find(ask(other, ""), "whole_gradients") == nullptr);
    }
  }

  TEST_CASE("NeMo AutoModel: values") {
    const std::string job =
        "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
        "step_scheduler:\n  global_batch_size: 64\n  local_batch_size: 2\n"
        "dataset:\n  _target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset\n"
        "model:\n  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained\n"
        "  pretrained_model_name_or_path: meta-llama/Meta-Llama-3-8B\n";
    const std::string mesh = "distributed:\n  strategy: fsdp2\n  pp_size: 2\n  pipeline:\n";
    check_all(
        {{mesh + "    pp_schedule: 1F1B2\n", "refused_value"},
         {mesh + "    pp_schedule: Interleaved1F1B\n", ""},
         {"checkpoint:\n  model_save_format: safetensor\n", "refused_value"},
         {"checkpoint:\n  model_save_format: torch_save\n", ""},
         {"  backend:\n    dispatcher: deep_ep\n", "refused_value"},
         {"  backend:\n    dispatcher: deepep\n", ""}},
        [&](const std::string& more) { return ask_text("job.yaml", job + more, "llama3-8b", 8); });
  }
}

// ---- programs around a Trainer ----

Checked ask_program(const std::string& arguments, const std::string& setup = "",
                    const std::string& trainer = "train_dataset=data") {
  return ask_texts({{"run.sh", "torchrun --nproc_per_node 8 train.py\n"},
                    {"train.py",
                     "import torch\n"
                     "from peft import LoraConfig, get_peft_model\n"
                     "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
                     "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B')\n" +
                         setup +
                         "args = TrainingArguments(output_dir='o', bf16=True, "
                         "per_device_train_batch_size=1, " +
                         arguments +
                         ")\n"
                         "Trainer(model=model, args=args, " +
                         trainer + ").train()\n"}},
                   "qwen3-8b", 8);
}

TEST_SUITE("what transformers refuses of a program") {
  TEST_CASE("keywords and values of TrainingArguments") {
    const auto ask = [](const std::string& arguments) { return ask_program(arguments); };
    check_all({{"gradient_accumulate_steps=8", "unknown_option"},
               {"gradient_accumulation_steps=8", ""},
               {"learning_rate=\"2e-4\"", "bad_value"},
               {"learning_rate=2e-4", ""},
               {"fsdp=\"full_shard autowrap\"", "refused_value"},
               {"fsdp=\"full_shard auto_wrap\"", ""},
               {"eval_strategy=\"steps\"", "option_needs"},
               {"fsdp=True, fsdp_config={\"transformer_layer_cls_to_wrap\": "
                "[\"LlamaDecoderLayer\"]}",
                "wrap_class"},
               {"fsdp=True, fsdp_config={\"transformer_layer_cls_to_wrap\": "
                "[\"Qwen3DecoderLayer\"]}",
                ""},
               {"fsdp=True, gradient_checkpointing=True, "
                "fsdp_config={\"activation_checkpointing\": True}",
                "recompute_twice"}},
              ask);
    CHECK(find(ask_program("eval_strategy=\"steps\"", "", "eval_dataset=data"), "option_needs") ==
          nullptr);
    const Checked dropped = ask_program("evaluation_strategy=\"no\"");
    REQUIRE(find(dropped, "dropped_option") != nullptr);
    CHECK(find(dropped, "dropped_option")->instead == "eval_strategy");
    CHECK_FALSE(dropped.has(Severity::error));
  }

  TEST_CASE("text in a number's place is made a number") {
    const Checked text = ask_program("learning_rate=\"2e-4\"");
    const Finding* const found = find(text, "bad_value");
    REQUIRE(found != nullptr);
    REQUIRE(found->fix.size() == 1);
    CHECK(found->fix.front().text == "2e-4");
  }

  TEST_CASE("adapters of none, and of modules that are not there") {
    const auto ask = [](const std::string& lora) {
      return ask_program("seed=1", "model = get_peft_model(model, LoraConfig(" + lora + "))\n");
    };
    check_all({{"r=0, target_modules=[\"q_proj\"]", "adapter_rank"},
               {"r=8, target_modules=[\"query_key_value\"]", "unknown_target"},
               {"r=8, target_modules=[\"query_key_value\"], target_parameters=[\"experts.w\"]", ""},
               {"r=8, target_modules=[\"q_proj\", \"query_key_value\"]", ""}},
              ask);
  }

  TEST_CASE("weights of 4 bits without adapters") {
    const auto ask = [](const std::string& more) {
      return ask_texts(
          {{"run.sh", "torchrun --nproc_per_node 8 train.py\n"},
           {"train.py",
            "from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer\n"
            "from transformers import TrainingArguments\n" +
                more +
                "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B', "
                "quantization_config=BitsAndBytesConfig(load_in_4bit=True))\n"
                "args = TrainingArguments(output_dir='o', per_device_train_batch_size=1)\n"
                "Trainer(model=model, args=args, train_dataset=data).train()\n"}},
          "qwen3-8b", 8);
    };
    check_all({{"", "quantized_full"}, {"import peft\n", ""}}, ask);
  }
}

}  // namespace
}  // namespace qplan
