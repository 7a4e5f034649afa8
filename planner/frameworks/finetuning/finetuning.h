#pragma once
// What fine-tuners' own files and arguments say: LLaMA-Factory's (ff6d4d12) and axolotl's
// (067b021c) YAML, ms-swift's and TRL's arguments, NeMo AutoModel's and torchtune's YAML. Each but
// the last two makes a Hugging Face Trainer's job of it, so it is handed to the readers of such
// jobs in their words; what only a fine-tuner checks is found by check_finetuning (scene.h).

#include <span>
#include <string>
#include <vector>

#include "planner/frameworks/option.h"
#include "planner/frameworks/setting.h"

namespace qplan {

// A YAML in the words of a Trainer's command line, of a program's calls (readers/own_script.h, and
// "pairs": a sample is two sequences), of ds_config.json and of accelerate's yaml. All empty: it
// trains nothing.
struct TrainerJob {
  Settings trainer, own_script, ds_config, accelerate;
  Settings megatron{};               // flags of Megatron's, where its code is what trains
  Settings torchtitan{};             // its configuration's keys, of stages and experts on torch
  std::vector<std::string> assumed;  // what it is judged as where no plan says it, in sentences
  bool takes_less = false;           // memory than what it is judged as
  bool shorter = false;              // its sequences may be, than those of the plan
};

TrainerJob job_of_llama_factory(const Settings& yaml, const Place& place);
TrainerJob job_of_axolotl(const Settings& yaml, const Place& place);
TrainerJob job_of_swift(const Settings& arguments, const Place& place);  // `swift sft`

TrainerJob job_of_automodel(const Settings& yaml, const Place& place);  // NeMo AutoModel

TrainerJob job_of_torchtune(const Settings& yaml, const Place& place);
// "torchtune.models.qwen3.lora_qwen3_0_6b_instruct" builds "qwen3-0.6b": which of its underscores
// is a point a built-in model's name tells.
std::string model_of_torchtune(const Settings& yaml);

TrainerJob job_of_trl(const Settings& arguments, const Place& place);  // `trl sft`

TrainerJob job_of_openrlhf(const Settings& arguments, const Place& place);  // train_sft, ...

std::span<const Limit> automodel_limits();
// Whether it has experts of its own for a model, which alone are spread.
bool automodel_has_experts(const Json& config);
std::span<const Limit> automodel_spread_limits();  // of plans with stages or spread experts
std::span<const Limit> swift_limits();             // of `swift sft`
std::span<const Limit> trl_limits();
std::span<const Limit> ddp_limits();  // of a Trainer that nobody tells to shard

// ---- values of a YAML, of which none is refused: what is none of these is no such value ----

// Whether a switch is on; a word that is no "false" is ("full", "offload").
bool is_switched_on(const Settings& yaml, std::string_view key);
// As an argument spells it; empty: not said.
std::string word_of(const Settings& yaml, std::string_view key, std::string_view otherwise = "");
double figure_of(const Settings& yaml, std::string_view key, double otherwise);

// What LLaMA-Factory quantises weights to when it loads them: "bnb", "hqq", ...; empty: nothing.
std::string quantizer_of(const Settings& llama_factory);
// Whether a checkpoint's name says that its weights are quantised ("...-GPTQ-Int4").
bool is_quantized_checkpoint(std::string_view model);

}  // namespace qplan
