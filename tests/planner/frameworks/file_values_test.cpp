// Files of values: one mistake by itself in a configuration that is clean, with its line, and what
// --fix makes of it.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/fixed.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

struct Row {
  std::string was, is, rule;
  int line;
  std::string repaired;  // what --fix makes of `is`; empty: it leaves it
  Severity severity = Severity::error;
};

struct CleanFile {
  std::string name, text, model;
  std::int64_t gpus;
};

void check_rows(const CleanFile& file, const std::vector<Row>& rows) {
  const Checked clean = ask_text(file.name, file.text, file.model, file.gpus);
  CHECK_MESSAGE(!clean.has(Severity::error), findings_text(clean));
  for (const Row& row : rows) {
    CAPTURE(row.is);
    const std::string text = with_words(file.text, row.was, row.is);
    const Checked checked = ask_text(file.name, text, file.model, file.gpus);
    CAPTURE(findings_text(checked));
    const bool found =
        std::any_of(checked.findings.begin(), checked.findings.end(), [&](const Finding& f) {
          return f.rule == row.rule && f.place.line == row.line && f.severity == row.severity;
        });
    CHECK(found);
    const std::string fixed = fixed_text(file.name, text, file.model, file.gpus);
    CHECK(fixed == (row.repaired.empty() ? text : with_words(text, row.is, row.repaired)));
  }
}

const CleanFile kDsConfig{
    "ds_config.json",
    "{\n"
    "  \"train_batch_size\": \"auto\",\n"
    "  \"train_micro_batch_size_per_gpu\": \"auto\",\n"
    "  \"gradient_clipping\": \"auto\",\n"
    "  \"fp16\": {\n"
    "    \"enabled\": \"auto\"\n"
    "  },\n"
    "  \"bf16\": {\"enabled\": \"auto\"},\n"
    "  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}},\n"
    "  \"zero_optimization\": {\n"
    "    \"stage\": 3,\n"
    "    \"offload_param\": {\"device\": \"cpu\"},\n"
    "    \"stage3_max_live_parameters\": 1e9\n"
    "  }\n"
    "}\n",
    "qwen3-0.6b", 8};

const CleanFile kAccelerate{"zero3.yaml",
                            "compute_environment: LOCAL_MACHINE\n"
                            "deepspeed_config:\n"
                            "  deepspeed_multinode_launcher: standard\n"
                            "  zero3_init_flag: true\n"
                            "  zero_stage: 3\n"
                            "distributed_type: DEEPSPEED\n"
                            "mixed_precision: bf16\n"
                            "num_machines: 1\n"
                            "num_processes: 8\n",
                            "qwen3-0.6b", 8};

const CleanFile kAxolotl{"lora.yaml",
                         "base_model: Qwen/Qwen3-0.6B\n"
                         "datasets:\n"
                         "  - path: tatsu-lab/alpaca\n"
                         "    type: alpaca\n"
                         "adapter: lora\n"
                         "lora_r: 16\n"
                         "lora_alpha: 16\n"
                         "lora_target_linear: true\n"
                         "sequence_len: 2048\n"
                         "micro_batch_size: 1\n"
                         "gradient_accumulation_steps: 4\n"
                         "learning_rate: 2.0e-4\n"
                         "optimizer: adamw_torch_fused\n"
                         "lr_scheduler: cosine\n"
                         "bf16: true\n"
                         "fsdp_version: 2\n"
                         "fsdp_config:\n"
                         "  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                         "  transformer_layer_cls_to_wrap: Qwen3DecoderLayer\n",
                         "qwen3-0.6b", 8};

const CleanFile kAutoModel{"squad.yaml",
                           "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
                           "step_scheduler:\n"
                           "  global_batch_size: 64\n"
                           "  local_batch_size: 8\n"
                           "dist_env:\n"
                           "  backend: nccl\n"
                           "model:\n"
                           "  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained\n"
                           "  pretrained_model_name_or_path: Qwen/Qwen3-0.6B\n"
                           "  backend:\n"
                           "    attn: te\n"
                           "distributed:\n"
                           "  strategy: fsdp2\n"
                           "  dp_size: none\n"
                           "  tp_size: 1\n"
                           "  activation_checkpointing: true\n"
                           "peft:\n"
                           "  _target_: nemo_automodel.components._peft.lora.PeftConfig\n"
                           "  target_modules: '*_proj'\n"
                           "  dim: 8\n"
                           "optimizer:\n"
                           "  _target_: torch.optim.Adam\n"
                           "  lr: 1.0e-5\n"
                           "lr_scheduler:\n"
                           "  lr_decay_style: cosine\n"
                           "  min_lr: 1.0e-6\n",
                           "qwen3-0.6b", 8};

const CleanFile kTrlGrpo{"grpo.yaml",
                         "model_name_or_path: Qwen/Qwen3-0.6B\n"
                         "dataset_name: trl-lib/tldr\n"
                         "dtype: bfloat16\n"
                         "bf16: true\n"
                         "use_peft: true\n"
                         "lora_r: 16\n"
                         "lora_dropout: 0.05\n"
                         "lora_target_modules:\n"
                         "- q_proj\n"
                         "- v_proj\n"
                         "gradient_checkpointing: true\n"
                         "gradient_checkpointing_kwargs:\n"
                         "  use_reentrant: false\n"
                         "num_generations: 8\n"
                         "per_device_train_batch_size: 8\n"
                         "max_completion_length: 512\n"
                         "warmup_ratio: 0.1\n",
                         "qwen3-0.6b", 8};

TEST_SUITE("values of files") {
  TEST_CASE("ds_config.json") {
    check_rows(kDsConfig,
               {{"\"gradient_clipping\"", "\"gradient_clip\"", "unknown_option", 4,
                 "\"gradient_clipping\""},
                {"\"gradient_clipping\": \"auto\"", "\"of_a_program\": 1", "unknown_option", 4, "",
                 Severity::warning},
                {"\"gradient_clipping\": \"auto\"", "\"stage3_max_reuse_distance\": 1",
                 "unknown_option", 4, ""},
                {"\"fp16\": {", "\"fp61\": {", "unknown_option", 5, ""},
                {"{\"enabled\": \"auto\"}", "{\"enable\": \"auto\"}", "unknown_option", 8,
                 "{\"enabled\": \"auto\"}"},
                {"\"type\": \"AdamW\", ", "", "option_needs", 9, ""},
                {"\"lr\": \"auto\"", "\"lr\": \"low\"", "refused_value", 9, ""},
                {"\"lr\": \"auto\"", "\"betas\": [0.9, 1.5]", "refused_value", 9, ""},
                {"\"stage3_max_live_parameters\"", "\"stage3_max_live_params\"", "unknown_option",
                 13, "\"stage3_max_live_parameters\""},
                {"\"gradient_clipping\"", "\"amp\": {\"enabled\": true},\n  \"gradient_clipping\"",
                 "amp_with_zero", 4, ""},
                // What fills in "auto" reads strict JSON.
                {"1e9\n", "1e9,\n", "json_trailing_comma", 13, "1e9\n"}});
  }

  TEST_CASE("what only stage 3 reads is not taken out where stage 3 may be meant") {
    const std::string text = with_words(kDsConfig.text, "\"stage\": 3", "\"stage\": 2");
    CHECK(fixed_text(kDsConfig.name, text, kDsConfig.model, 8) == text);
  }

  TEST_CASE("accelerate's yaml") {
    check_rows(
        kAccelerate,
        {{"num_processes: 8", "num_processes: 6", "launched_world", 9, "num_processes: 8"},
         {"launcher: standard", "launcher: standart", "refused_value", 3, "launcher: standard"},
         {"mixed_precision", "fsdp_config:\n  fsdp_version: 2\nmixed_precision", "idle_section", 8,
          "", Severity::warning}});
  }

  TEST_CASE("axolotl's yaml") {
    check_rows(
        kAxolotl,
        {{"2.0e-4", "fast", "refused_value", 12, ""},
         {"  - path: tatsu-lab/alpaca\n    type", "  path: tatsu-lab/alpaca\n  type",
          "refused_value", 3, ""},
         {"    type: alpaca", "    tpye: alpaca", "unknown_option", 4, "    type: alpaca"},
         {"sequence_len: 2048", "sequence_len: [2048]", "refused_value", 9, ""},
         {"fsdp_version: 2", "fsdp_version: 3", "refused_value", 16, ""},
         {"fsdp_config:", "fsdp_conf:", "unknown_option", 17, "fsdp_config:"},
         {"adapter: lora", "adapter: loras", "refused_value", 5, "adapter: lora"},
         {"adamw_torch_fused", "adamw_torch_fussed", "refused_value", 13, "adamw_torch_fused"},
         {"bf16: true", "bf16: true\nfp8_enable_fsdp_float8_all_gather: true\nfsdp_version: 1",
          "said_twice", 17, "", Severity::warning},
         {"lora_r: 16", "lora_r: 16\nlora_dropout: 1.5", "lora_dropout_share", 7, ""}});
    // A template that another tool fills in.
    const Checked open = ask_text(
        "lora.yaml", with_words(kAxolotl.text, "2.0e-4", "${LEARNING_RATE}"), "qwen3-0.6b", 8);
    CHECK_MESSAGE(!open.has(Severity::error), findings_text(open));
  }

  TEST_CASE("NeMo AutoModel's yaml") {
    check_rows(
        kAutoModel,
        {{"step_scheduler:", "step_schedular:", "unknown_option", 2, "step_scheduler:"},
         {"backend: nccl", "backend: ncll", "refused_value", 6, "backend: nccl"},
         {"pretrained_model_name", "pretrained_name", "option_needs", 8, ""},
         {"attn: te", "attn: flash", "refused_value", 11, "", Severity::warning},
         {"dp_size: none", "dp_size: 6", "world_size", 14, ""},
         {"checkpointing: true", "checkpointing: tru", "refused_value", 16, ""},
         {"lora.PeftConfig", "lora.PeftConfigs", "refused_value", 18, "lora.PeftConfig"},
         {"dim: 8", "dim: 0", "adapter_rank", 20, ""},
         {"torch.optim.Adam", "torch.optim.AdamWW", "refused_value", 22, "torch.optim.AdamW"},
         {"lr: 1.0e-5", "learning_rate: 1.0e-5", "unknown_option", 23, ""},
         {"global_batch_size: 64", "global_batch_size: abc", "refused_value", 3, ""},
         {"  lr: 1.0e-5", "  weight_deacy: 0.1", "unknown_option", 23, "  weight_decay: 0.1"},
         {"cosine", "cosin", "refused_value", 25, "cosine"},
         {"min_lr: 1.0e-6", "min_lr: 1.0e-4", "refused_value", 26, ""}});
  }

  TEST_CASE("TRL's yaml") {
    check_rows(
        kTrlGrpo,
        {{"bf16: true", "bf16: true\nfp16: true", "options_exclude", 5, ""},
         {"bf16: true", "bf16: ture", "refused_value", 4, "bf16: true"},
         {"bf16: true", "bf16: [true]", "refused_value", 4, ""},
         {"dtype: bfloat16", "torch_dtype: bf16", "refused_value", 3, "torch_dtype: bfloat16"},
         {"lora_r: 16", "lora_rank: 16", "unknown_option", 6, "lora_r: 16", Severity::warning},
         {"lora_dropout: 0.05", "lora_dropout: 5", "lora_dropout_share", 7, ""},
         {"- q_proj", "- query_proj", "unknown_target", 8, "", Severity::warning},
         {"  use_reentrant", "use_reentrant", "unknown_option", 13, ""},
         {"gradient_checkpointing_kwargs", "gradient_checkpointing_kwarg", "unknown_option", 12,
          ""},
         {"gradient_checkpointing: true", "gradient_checkpoint: true", "unknown_option", 11,
          "gradient_checkpointing: true"},
         // A program's own, though it begins another's.
         {"dtype: bfloat16", "chat_template: x", "unknown_option", 3, "", Severity::note},
         {"warmup_ratio: 0.1", "warmup_ratio: 10", "refused_value", 17, ""}});
  }
}

TEST_SUITE("what torchtitan and Megatron-Bridge make a configuration of") {
  const CleanFile kTitan{
      "config.py",
      "from torchtitan.components.checkpointer import CheckpointManager\n"
      "from torchtitan.components.optimizer import default_adamw, LRSchedulersContainer\n"
      "from torchtitan.config import TrainingConfig\n"
      "from torchtitan.distributed.activation_checkpoint import FullAC\n"
      "from torchtitan.models.llama3 import model_registry\n"
      "from torchtitan.trainer import Trainer\n"
      "\n\n"
      "def llama3_8b() -> Trainer.Config:\n"
      "    return Trainer.Config(\n"
      "        model_spec=model_registry(\"8B\", attn_backend=\"flex\"),\n"
      "        optimizer=default_adamw(lr=3e-4),\n"
      "        lr_scheduler=LRSchedulersContainer.Config(decay_type=\"cosine\", warmup_steps=9),\n"
      "        training=TrainingConfig(max_context_length=8192, steps=1000),\n"
      "        checkpoint=CheckpointManager.Config(interval=500),\n"
      "        activation_checkpoint=FullAC.Config(),\n"
      "    )\n",
      "llama3-8b", 64};

  TEST_CASE("torchtitan's parts") {
    check_rows(kTitan, {{"lr=3e-4", "learning_rate=3e-4", "unknown_option", 12, "lr=3e-4"},
                        {"\"flex\"", "\"flexx\"", "refused_value", 11, ""},
                        {"\"cosine\"", "\"cosin\"", "refused_value", 13, "\"cosine\""},
                        {"warmup_steps=9", "warmup_steps=\"9\"", "refused_value", 13, ""},
                        {"interval=500", "intervals=500", "unknown_option", 15, "interval=500"},
                        {"checkpoint=FullAC.Config()", "checkpoint=FullAC", "refused_value", 16,
                         "checkpoint=FullAC.Config()"}});
  }

  const CleanFile kBridge{"pretrain.py",
                          "from megatron.bridge.recipes.qwen import qwen3_30b_a3b_pretrain_config\n"
                          "from megatron.bridge.training.gpt_step import forward_step\n"
                          "from megatron.bridge.training.pretrain import pretrain\n"
                          "cfg = qwen3_30b_a3b_pretrain_config()\n"
                          "cfg.train.global_batch_size = 512\n"
                          "cfg.train.micro_batch_size = 1\n"
                          "pretrain(config=cfg, forward_step_func=forward_step)\n",
                          "qwen3-30b-a3b", 64};

  TEST_CASE("Megatron-Bridge's programs") {
    const std::string size = "micro_batch_size = 1";
    check_rows(kBridge, {{"bridge.recipes.", "bridge.recipe.", "unknown_import", 1, ""},
                         {size, size + "\ncfg.model.moe_router_topk = 200", "option_needs", 7, ""},
                         {size, size + "\ncfg.train.rampup_batch_size = [32, 31, 100000]",
                          "option_needs", 7, ""},
                         {size, size + "\ncfg.train.step_batch_size_schedule = \"0:384\"",
                          "idle_option", 7, "", Severity::warning},
                         {size, size + "\ncfg.ddp.overlap_grad_reduce = true", "undefined_name", 7,
                          size + "\ncfg.ddp.overlap_grad_reduce = True"}});
    const Checked ramp = ask_text(
        "pretrain.py",
        with_words(kBridge.text, size, size + "\ncfg.train.rampup_batch_size = [32, 32, 100000]"),
        kBridge.model, kBridge.gpus);
    CHECK_MESSAGE(find(ramp, "option_needs") == nullptr, findings_text(ramp));
  }
}

TEST_SUITE("files of programs that are not read") {
  TEST_CASE("GPT-NeoX's, with either sign") {
    for (const std::string& text :
         {std::string("{\"pipe-parallel-size\": 1, \"num-layers\": 12, \"train_batch_size\": 8}"),
          std::string("{\"model_parallel_size\": 1, \"hidden_size\": 12, \"fp16\": {}}")}) {
      CAPTURE(text);
      const Checked checked = ask_text("neox.json", text);
      CHECK(find(checked, "unknown_file") != nullptr);
      CHECK_FALSE(checked.framework.has_value());
    }
  }
}

}  // namespace
}  // namespace qplan
