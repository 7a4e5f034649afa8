// What Trainers do where their files do not say: checkpoints, formats of adapters, when gradients
// are reduced.

#include "planner/frameworks/torch/trainer_habits.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/emitted.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

constexpr std::string_view kDs3 =
    "{\"zero_optimization\": {\"stage\": 3}, \"bf16\": {\"enabled\": "
    "\"auto\"}, \"train_batch_size\": \"auto\", "
    "\"train_micro_batch_size_per_gpu\": \"auto\", "
    "\"gradient_accumulation_steps\": \"auto\"}";
constexpr std::string_view kFsdp2 =
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n"
    "num_machines: 1\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";

// Beside the file that it names.
std::vector<ConfigText> with_ds3(const std::string& name, const std::string& text) {
  std::vector<ConfigText> files{{name, text}};
  if (text.find("ds3.json") != std::string::npos) files.push_back({"ds3.json", std::string(kDs3)});
  return files;
}

ParallelPlan plan_of(const std::vector<ConfigText>& files) {
  return ask_texts(files, "llama3-8b", 8).plan;
}

ParallelPlan plan_of_axolotl(const std::string& more) {
  return plan_of({{"job.yml",
                   "base_model: meta-llama/Meta-Llama-3-8B\nsequence_len: 2048\n"
                   "micro_batch_size: 1\ngradient_accumulation_steps: 4\nbf16: true\n"
                   "datasets:\n  - path: d\n    type: alpaca\n" +
                       more}});
}

ParallelPlan plan_of_factory(const std::string& more) {
  return plan_of(
      with_ds3("job.yaml",
               "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\ndo_train: true\n"
               "dataset: d\ntemplate: llama3\ncutoff_len: 2048\noutput_dir: o\nbf16: true\n"
               "per_device_train_batch_size: 1\ngradient_accumulation_steps: 4\n" +
                   more));
}

ParallelPlan plan_of_trl(const std::string& more, const std::string& accelerate = "") {
  std::vector<ConfigText> files =
      with_ds3("sft.yaml",
               "model_name_or_path: meta-llama/Meta-Llama-3-8B\ndataset_name: d\noutput_dir: o\n"
               "max_length: 2048\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 4\n"
               "dtype: bfloat16\n" +
                   more);
  if (!accelerate.empty()) files.push_back({"accelerate.yaml", accelerate});
  return plan_of(files);
}

ParallelPlan plan_of_swift(const std::string& more) {
  return plan_of({{"run.sh",
                   "NPROC_PER_NODE=8 swift sft --model meta-llama/Meta-Llama-3-8B --dataset d "
                   "--max_length 2048 --per_device_train_batch_size 1 --torch_dtype bfloat16 "
                   "--gradient_accumulation_steps 4 " +
                       more + "\n"}});
}

// A program around transformers' Trainer.
ParallelPlan plan_of_program(const std::string& more, const std::string& arguments = "") {
  return plan_of(
      {{"train.py",
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "from peft import LoraConfig, get_peft_model\nimport torch\n"
        "model = AutoModelForCausalLM.from_pretrained('m', torch_dtype=torch.bfloat16)\n" +
            more +
            "args = TrainingArguments(output_dir='o', per_device_train_batch_size=1, bf16=True,\n"
            "    gradient_accumulation_steps=4" +
            arguments + ")\nTrainer(model=model, args=args).train()\n"},
       {"run.sh", "torchrun --nproc_per_node 8 train.py\n"}});
}

}  // namespace

TEST_SUITE("what Trainers do unasked") {
  TEST_CASE("axolotl asks for reentrant checkpoints where nothing speaks against them") {
    const std::string on = "gradient_checkpointing: true\n";
    CHECK(plan_of_axolotl(on).use_reentrant);
    CHECK_FALSE(plan_of_axolotl("").use_reentrant);
    CHECK_FALSE(plan_of_axolotl(on + "rl: dpo\n").use_reentrant);
    CHECK_FALSE(plan_of_axolotl(on + "gradient_checkpointing_kwargs:\n  use_reentrant: false\n")
                    .use_reentrant);
    CHECK(plan_of_axolotl(on + "rl: dpo\ngradient_checkpointing_kwargs:\n  use_reentrant: true\n")
              .use_reentrant);
    CHECK_FALSE(plan_of_axolotl(on + "unfrozen_parameters:\n  - lm_head\n").use_reentrant);
  }

  TEST_CASE("LLaMA-Factory does but under FSDP2, TRL beside adapters under ZeRO-3 alone") {
    const std::string full = "finetuning_type: full\n", lora = "finetuning_type: lora\n";
    CHECK(plan_of_factory(full + "deepspeed: ds3.json\n").use_reentrant);
    CHECK_FALSE(
        plan_of_factory(full + "deepspeed: ds3.json\nuse_reentrant_gc: false\n").use_reentrant);
    CHECK_FALSE(plan_of_factory(lora + "disable_gradient_checkpointing: true\n").use_reentrant);
    CHECK_FALSE(plan_of_trl("deepspeed: ds3.json\n").use_reentrant);
    CHECK(plan_of_trl("deepspeed: ds3.json\nuse_peft: true\n").use_reentrant);
    CHECK(plan_of_trl("deepspeed: ds3.json\nuse_peft: true\ngradient_checkpointing_kwargs:\n"
                      "  use_reentrant: false\n")
              .use_reentrant);  // which TRL overrules
    CHECK(plan_of_trl("gradient_checkpointing_kwargs:\n  use_reentrant: true\n").use_reentrant);
    // accelerate's own are not, whatever the Trainer's would be.
    CHECK_FALSE(plan_of_trl("gradient_checkpointing: false\n",
                            std::string(kFsdp2) + "  fsdp_activation_checkpointing: true\n")
                    .use_reentrant);
  }

  TEST_CASE("ms-swift does but of DDP's several processes, transformers 5 does not") {
    CHECK(plan_of_swift("--deepspeed zero3 --tuner_type full").use_reentrant);
    CHECK_FALSE(plan_of_swift("").use_reentrant);
    CHECK_FALSE(plan_of_swift("--deepspeed zero3 --gradient_checkpointing_kwargs "
                              "'{\"use_reentrant\": false}'")
                    .use_reentrant);
    CHECK_FALSE(plan_of_swift("--fsdp fsdp2 --tuner_type full").use_reentrant);
    CHECK_FALSE(plan_of_program("", ", gradient_checkpointing=True").use_reentrant);
    CHECK(plan_of_program("",
                          ", gradient_checkpointing=True, gradient_checkpointing_kwargs={"
                          "'use_reentrant': True}")
              .use_reentrant);
    CHECK(plan_of_program("model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"
                          "\"use_reentrant\": True})\n")
              .use_reentrant);
  }

  TEST_CASE("PEFT keeps adapters in fp32, unless it or a trainer is told otherwise") {
    const auto wide = [](const ParallelPlan& plan) {
      return plan.lora_dtype == AdapterFormat::fp32;
    };
    const std::string lora = "adapter: lora\nlora_r: 16\nlora_target_linear: true\n";
    CHECK(wide(plan_of_axolotl(lora)));
    CHECK_FALSE(wide(plan_of_axolotl(lora + "peft_autocast_adapter_dtype: false\n")));
    CHECK_FALSE(wide(plan_of_axolotl("")));
    CHECK(wide(plan_of_factory("finetuning_type: lora\n")));
    CHECK(wide(plan_of_factory("finetuning_type: lora\nquantization_bit: 4\n")));
    CHECK_FALSE(wide(plan_of_factory("finetuning_type: lora\ndeepspeed: ds3.json\n")));
    CHECK(wide(plan_of_trl("use_peft: true\n")));
    CHECK_FALSE(wide(plan_of_trl("use_peft: true\nload_in_4bit: true\n")));
    CHECK(wide(plan_of_swift("")));
    CHECK_FALSE(wide(plan_of_swift("--lora_dtype bfloat16")));
    const std::string call = "model = get_peft_model(model, LoraConfig(r=8))\n";
    CHECK(wide(plan_of_program(call)));
    CHECK_FALSE(wide(plan_of_program(
        "model = get_peft_model(model, LoraConfig(r=8), autocast_adapter_dtype=False)\n")));
  }

  TEST_CASE("a Trainer under FSDP reduces gradients once a step, unless it is told to at each") {
    const std::string each =
        "accelerator_config:\n  gradient_accumulation_kwargs:\n    sync_each_batch: true\n";
    CHECK_FALSE(plan_of_trl("", std::string(kFsdp2)).sync_each_batch);
    CHECK(plan_of_trl(each, std::string(kFsdp2)).sync_each_batch);
    CHECK(plan_of_trl("").sync_each_batch);  // DDP has no sums but whole ones
    CHECK_FALSE(plan_of_axolotl("fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n")
                    .sync_each_batch);
    CHECK_FALSE(plan_of_program("", ", fsdp='full_shard auto_wrap'").sync_each_batch);
    CHECK(plan_of_program("",
                          ", fsdp='full_shard auto_wrap', accelerator_config={"
                          "'gradient_accumulation_kwargs': {'sync_each_batch': True}}")
              .sync_each_batch);
  }

  TEST_CASE("checkpoints go to the host where a Trainer, accelerate or a trainer's word says so") {
    const auto on_host = [](const ParallelPlan& plan) {
      return plan.offload.activation_layers != 0;
    };
    const std::string kwargs = "gradient_checkpointing_kwargs:\n  offload: true\n";
    CHECK(on_host(plan_of_trl("gradient_checkpointing: true\n" + kwargs)));
    CHECK_FALSE(on_host(plan_of_trl("gradient_checkpointing: false\n" + kwargs)));
    CHECK_FALSE(on_host(plan_of_trl("gradient_checkpointing: true\n")));
    CHECK(on_host(plan_of_trl("gradient_checkpointing: true\nactivation_offloading: true\n")));
    CHECK(on_host(plan_of_axolotl("gradient_checkpointing: true\nactivation_offloading: true\n")));
    CHECK(on_host(plan_of_axolotl("gradient_checkpointing: offload\n")));
    CHECK_FALSE(on_host(plan_of_axolotl("gradient_checkpointing: true\n")));
    CHECK(on_host(plan_of_factory("finetuning_type: full\nuse_unsloth_gc: true\n")));
    CHECK(on_host(plan_of_program("",
                                  ", gradient_checkpointing=True, gradient_checkpointing_kwargs={"
                                  "'offload': True}")));
    const std::string own = std::string(kFsdp2) + "  fsdp_activation_checkpointing: true\n";
    CHECK(on_host(plan_of_trl("gradient_checkpointing: false\n",
                              own + "  fsdp_activation_checkpointing_offload: true\n")));
    CHECK_FALSE(on_host(plan_of_trl("gradient_checkpointing: false\n", own)));
  }

  TEST_CASE("words within a block are found as keys, JSON and Python") {
    const auto within = [](const std::string& key, const Json& value) {
      Settings settings;
      settings.add({key, value, {"f", 1}});
      const auto said = said_within(settings, "accelerator_config", "sync_each_batch");
      return said ? (said->value ? "true" : "false") : "";
    };
    CHECK(within("accelerator_config.gradient_accumulation_kwargs.sync_each_batch", true) ==
          std::string("true"));
    CHECK(within("--accelerator_config", "{\"sync_each_batch\": false}") == std::string("false"));
    CHECK(within("--accelerator_config", "dict(sync_each_batch=True)") == std::string("true"));
    CHECK(within("--accelerator_config", "config.json") == std::string());
    CHECK(within("--accelerator_configs", "{\"sync_each_batch\": false}") == std::string());
    CHECK(within("--other", "{\"sync_each_batch\": false}") == std::string());
  }
}

TEST_CASE("what trainers do unasked is written out where a plan is otherwise") {
  using namespace emitted;
  const Job whole =
      job("llama3-8b", "dp8 zero3 gbs32 seq2048 overlap=grad+param sync_each_batch=false",
          Framework::fsdp2);
  const auto text = [](const Job& j, Framework framework, const std::string& name) {
    return file(emit(framework, j.subject(), {}), name);
  };
  CHECK(has_text(text(whole, Framework::fsdp2, "train.sh"), "\"sync_each_batch\": false"));
  const Job each = job("llama3-8b", "dp8 zero3 gbs32 seq2048 overlap=grad+param", Framework::fsdp2);
  CHECK(has_text(text(each, Framework::fsdp2, "train.sh"), "\"sync_each_batch\": true"));
  const Job once = job("llama3-8b", "dp8 zero3 gbs8 seq2048 overlap=grad+param", Framework::fsdp2);
  CHECK_FALSE(has_text(text(once, Framework::fsdp2, "train.sh"), "accelerator_config"));
  const Job again = job("llama3-8b",
                        "dp8 zero3 gbs32 seq2048 recompute=full use_reentrant grad_dtype=bf16 "
                        "overlap=grad",
                        Framework::deepspeed);
  CHECK(has_text(text(again, Framework::deepspeed, "train.sh"), "\"use_reentrant\": true"));
  const Job host = job("llama3-8b",
                       "dp8 zero3 gbs32 seq2048 recompute=full offload=activations grad_dtype=bf16 "
                       "overlap=grad",
                       Framework::deepspeed);
  CHECK(has_text(text(host, Framework::deepspeed, "train.sh"), "{\"offload\": true}"));
  const Job sharded = job("llama3-8b",
                          "dp8 zero3 gbs8 seq2048 recompute=full offload=activations "
                          "overlap=grad+param",
                          Framework::fsdp2);
  CHECK(has_text(text(sharded, Framework::fsdp2, "accelerate.yaml"),
                 "fsdp_activation_checkpointing_offload: true"));
}

}  // namespace qplan
