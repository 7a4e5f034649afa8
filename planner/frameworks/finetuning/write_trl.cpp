// TRL's YAML for `trl sft` and `trl dpo`, and accelerate's beside it: DDP's, FSDP2's and
// DeepSpeed's plans (f2cd5771).

#include <fmt/format.h>

#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/torch/torch.h"
#include "planner/frameworks/writers.h"
#include "planner/rl/rl_step.h"
#include "planner/search/search.h"

namespace qplan {
namespace {

bool has_pairs(const Subject& s) {
  return s.step != nullptr && s.step->job.algorithm == Algorithm::dpo;
}

bool adapts(const Subject& s) {
  return s.plan.lora_rank > 0;
}

// What PEFT does unasked, which TRL takes back beside quantised weights (sft_trainer.py:1127).
AdapterFormat format_of_adapters(const Subject& s) {
  return default_lora_dtype(s.plan, s.recipe);
}

// What is loaded in 16 bits: what DeepSpeed or adapters make 16 bits of anyway.
bool loads_narrow(const Subject& s) {
  return s.recipe == RecipeKind::deepspeed || (s.recipe == RecipeKind::ddp && adapts(s));
}

constexpr auto kTrlLimits = std::to_array<Limit>({
    {"trl_generates", [](const Subject& s) { return s.step != nullptr && s.step->job.generates(); },
     [](const Subject&) {
       return std::string(
           "qplan writes TRL's sft and dpo; use verl or nemo-rl for answers that "
           "the policy makes");
     }},
    {"trl_pairs", [](const Subject& s) { return has_pairs(s) && s.plan.micro_batch_size % 2 != 0; },
     [](const Subject& s) {
       return fmt::format(
           "a pair of answers is two sequences of one micro-batch; use an even micro_batch_size, "
           "not {}",
           s.plan.micro_batch_size);
     }},
    {"trl_degrees",
     [](const Subject& s) { return s.plan.tp > 1 || s.plan.cp > 1 || s.plan.pp > 1; },
     [](const Subject& s) {
       return fmt::format(
           "qplan writes data parallelism alone for TRL, not tp {}, cp {} and pp {}; use 1 of each",
           s.plan.tp, s.plan.cp, s.plan.pp);
     }},
    {"trl_adapters",
     [](const Subject& s) { return adapts(s) && s.plan.lora_dtype != format_of_adapters(s); },
     [](const Subject& s) {
       return fmt::format(
           "PEFT chooses the adapters' format under TRL, fp32 but beside quantised weights and "
           "under DeepSpeed and FSDP2; use lora_dtype={}",
           to_word(format_of_adapters(s)));
     }},
    // trl/trainer/sft_trainer.py:1116.
    {"trl_reentrant",
     [](const Subject& s) {
       return adapts(s) && s.recipe == RecipeKind::deepspeed && s.plan.zero == 3 &&
              s.plan.recompute.kind == RecomputeKind::full && !s.plan.use_reentrant;
     },
     [](const Subject&) {
       return std::string(
           "TRL makes checkpoints reentrant beside adapters under ZeRO-3; use use_reentrant=true");
     }},
    // BitsAndBytesConfig of its arguments; a GPTQ checkpoint is the user's.
    {"trl_frozen",
     [](const Subject& s) {
       return s.plan.frozen_weights == FrozenFormat::int4 ||
              s.plan.frozen_weights == FrozenFormat::fp32;
     },
     [](const Subject&) {
       return std::string(
           "TRL's arguments quantise by bitsandbytes; use frozen_weights nf4 or int8");
     }},
    {"trl_vision", [](const Subject& s) { return s.model.vision.has_value(); },
     [](const Subject&) {
       return std::string("qplan writes `trl sft` of text; use fsdp2, which starts sft_vlm.py");
     },
     Asks::model},
});

constexpr auto kDdpLimits = std::to_array<Limit>({
    {"ddp_states",
     [](const Subject& s) {
       const DType sums = !loads_narrow(s)                      ? DType::fp32
                          : s.plan.precision == Precision::fp16 ? DType::fp16
                                                                : DType::bf16;
       return s.plan.main_params_dtype != DType::fp32 || s.plan.moment_dtype != DType::fp32 ||
              s.plan.grad_dtype != sums;
     },
     [](const Subject& s) {
       return fmt::format(
           "a Trainer's states are fp32 under DDP, and its gradients as {}; use grad_dtype={}",
           adapts(s) ? "the frozen weights" : "the weights", loads_narrow(s) ? "bf16" : "fp32");
     }},
    {"ddp_optimizer",
     [](const Subject& s) {
       return s.plan.optimizer != OptimizerKind::adam &&
              s.plan.optimizer != OptimizerKind::adam8bit;
     },
     [](const Subject& s) {
       return fmt::format("qplan writes a Trainer's AdamW under DDP; use adam or adam8bit, not {}",
                          to_word(s.plan.optimizer));
     }},
    {"ddp_offload", [](const Subject& s) { return s.plan.offload != Offload{}; },
     [](const Subject&) {
       return std::string("DDP keeps everything on the device; leave offload out, or use fsdp2");
     }},
    {"ddp_overlap",
     [](const Subject& s) { return s.plan.overlap != recipe_of(s.recipe).defaults.overlap; },
     [](const Subject&) {
       return std::string("DDP always reduces behind compute; use overlap=grad");
     }},
    {"dispatcher_of_modules",
     [](const Subject& s) {
       return s.model.moe && s.plan.moe_dispatcher != MoeDispatcher::alltoall;
     },
     [](const Subject&) {
       return std::string(
           "DDP has no experts to exchange tokens with; use moe_dispatcher=alltoall");
     }},
});

using Written = std::vector<WrittenOption>;

Written peft_arguments(const Subject& s) {
  if (!adapts(s)) return {};
  Written all{{"use_peft", true},
              {"lora_r", s.plan.lora_rank},
              {"lora_alpha", s.plan.lora_alpha},
              {"lora_dropout", s.plan.lora_dropout},
              {"lora_target_modules", lora_target_names(s)}};
  if (s.plan.dora) all.push_back({"use_dora", true});
  if (s.plan.lora_embeddings) {
    all.push_back({"lora_modules_to_save", Json::array({"embed_tokens", "lm_head"})});
  }
  const FrozenFormat frozen = s.plan.frozen_weights;
  if (frozen == FrozenFormat::int8) {
    all.push_back({"load_in_8bit", true});
  } else if (frozen != FrozenFormat::computed) {
    all.push_back({"load_in_4bit", true});
    if (frozen == FrozenFormat::nf4_double) all.push_back({"use_bnb_nested_quant", true});
  }
  return all;
}

Written trl_arguments(const Subject& s) {
  const bool half = s.plan.precision == Precision::fp16;
  Written all{{"max_length", s.plan.seq_len},
              {"attn_implementation", "flash_attention_2"},
              {"dtype", !loads_narrow(s) ? "float32"
                        : half           ? "float16"
                                         : "bfloat16"}};
  if (!has_pairs(s)) all.push_back({"packing", true});
  for (const WrittenOption& option : written(trainer_options(), s)) {
    if (option.key == "--block_size" || option.key == "--max_length") continue;
    if (option.key == "--gradient_checkpointing") continue;  // on unless said, so said below
    // A sample is two sequences.
    const bool halves = has_pairs(s) && option.key == "--per_device_train_batch_size";
    all.push_back(
        {option.key.substr(2), halves ? Json(option.value.get<std::int64_t>() / 2) : option.value});
  }
  if (half) all.push_back({"bf16", false});
  // Of FSDP accelerate's file says it.
  const bool recomputes =
      s.recipe != RecipeKind::fsdp2 && s.plan.recompute.kind == RecomputeKind::full;
  all.push_back({"gradient_checkpointing", recomputes});
  const Written tuner = peft_arguments(s);
  all.insert(all.end(), tuner.begin(), tuner.end());
  for (const WrittenOption& option : trainer_training()) {
    all.push_back({option.key.substr(2), option.value});
  }
  return all;
}

std::string text_of_arguments(const Subject& s, const std::vector<std::string>& remarks) {
  std::string text = remark_lines(remarks);
  text +=
      "# Replace these paths.\nmodel_name_or_path: /path/to/hugging_face_checkpoint\n"
      "dataset_name: /path/to/data\noutput_dir: /path/to/checkpoints\n\n";
  for (const auto& [key, value] : trl_arguments(s)) {
    text +=
        fmt::format("{}: {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

}  // namespace

std::span<const Limit> trl_limits() {
  return kTrlLimits;
}

std::span<const Limit> ddp_limits() {
  return kDdpLimits;
}

std::vector<EmittedFile> write_trl(const Subject& s, const std::vector<std::string>& remarks) {
  std::vector<EmittedFile> files{{"train.yaml", text_of_arguments(s, remarks), false}};
  // Its program hands what it does not know to accelerate's launcher.
  std::string launch = "--accelerate_config accelerate.yaml";
  if (s.recipe == RecipeKind::ddp) {
    const Nodes nodes = nodes_of(s);
    launch = fmt::format("--num_processes {} --num_machines {}", s.plan.world(), nodes.count);
    if (s.plan.world() > 1) launch += " --multi_gpu";
  } else {
    files.push_back({"accelerate.yaml", accelerate_text(s, remarks), false});
  }
  if (s.recipe == RecipeKind::deepspeed) {
    files.push_back({"ds_config.json", ds_config_text(written(deepspeed_options(), s), s), false});
  }
  std::string script = fmt::format(
      "#!/bin/bash\n{}# One node: bash train.sh. Several: on each of them NODE_RANK=<0, 1, ...>\n"
      "# MASTER_ADDR=<of the first> bash train.sh; under Slurm: sbatch train.sbatch.\n"
      "set -euo pipefail\ncd \"$(dirname \"$0\")\"\n"
      "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
      "trl {} --config train.yaml {} \\\n",
      remark_lines(remarks), has_pairs(s) ? "dpo" : "sft", launch);
  script +=
      "  --machine_rank \"${NODE_RANK:-0}\" --main_process_ip \"${MASTER_ADDR:-localhost}\" \\\n"
      "  --main_process_port \"${MASTER_PORT:-6000}\"\n";
  files.push_back({"train.sh", script, true});
  files.push_back(slurm_script(s, remarks, "train.sh"));
  return files;
}

}  // namespace qplan
