#pragma once
// Jobs that --fix is tried on: published ones, what emit() writes, and the ways in which people
// write the same.

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/planner/frameworks/jobs.h"
#include "tests/properties/random_plans.h"

namespace qplan {

// A job's files, and the question that they answer.
struct Case {
  std::string name, model;
  std::int64_t gpus = 8;
  std::vector<ConfigText> files;
};

inline std::string data_text(const std::string& path) {
  return read_text_file(std::string(QPLAN_TEST_DATA) + "/configs/" + path);
}

inline Case of_data(const std::string& folder, const std::string& model, std::int64_t gpus,
                    const std::vector<std::string>& names) {
  Case c{folder, model, gpus, {}};
  for (const std::string& name : names) c.files.push_back({name, data_text(folder + "/" + name)});
  return c;
}

inline std::vector<Case> published_cases() {
  return {
      of_data("megatron_yaml_and_deepspeed", "qwen3-30b-a3b", 64,
              {"megatron_config.yaml", "deepspeed_config.json", "train.sh"}),
      of_data("megatron_deepspeed", "gpt-1.3t", 32, {"ds_config.json", "train.sh"}),
      of_data("megatron_deepspeed", "gpt-1.3t", 32, {"ds_config.json", "tips.sh"}),
      of_data("slime_qwen3_30b_a3b", "qwen3-30b-a3b", 8, {"run.sh"}),
      of_data("fsdp_qwen3_32b", "qwen3-32b", 16, {"train_qwen3_32b.py", "launch.sh"}),
      of_data("fsdp_qwen3_32b", "qwen3-32b", 16, {"train_wrapped.py"}),
      of_data("fsdp_qwen3_vl", "qwen3-vl-30b-a3b", 32, {"train.py", "launch.sh"}),
      of_data("slurm_nested", "qwen3-30b-a3b", 64, {"job.sbatch"}),
  };
}

// What emit() writes for a few plans of each framework.
inline std::vector<Case> emitted_cases() {
  std::vector<Case> cases;
  RandomPlans random(5);
  for (const std::string name : {"qwen3-30b-a3b", "llama3-8b"}) {
    const ModelSpec model = load_model(name);
    const Json config = model_config(name);
    for (const auto& [framework, word] : Words<Framework>::table) {
      if (!is_written(framework)) continue;
      for (int i = 0; i < 3; ++i) {
        ParallelPlan plan = random.next(model, recipe_of(RecipeKind::megatron));
        const RecipeKind recipe = recipe_for(framework, RecipeKind::megatron);
        plan = canonical(plan, model, recipe);
        ParallelPlan nearest = plan;
        const ClusterLimits limits{plan.world(), 90};
        const Subject subject{model, config, plan, recipe, 8};
        if (!why_inexpressible(framework, subject, limits).empty() &&
            !nearest_expressible(framework, subject, limits, nearest)) {
          continue;
        }
        const Subject again{model, config, nearest, recipe, 8};
        cases.push_back({std::string(word), name, nearest.world(),
                         texts_of(emit(framework, again, {"a remark"}))});
      }
    }
  }
  return cases;
}

// The ways in which people write the same.
inline std::vector<Case> written_cases() {
  const std::string arguments =
      "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
      "--group-query-attention --num-query-groups 8 --position-embedding-type rope "
      "--rotary-base 500000 --normalization RMSNorm --swiglu --disable-bias-linear "
      "--untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 "
      "--seq-length 4096 --max-position-embeddings 8192 --micro-batch-size 1 "
      "--global-batch-size 64 --bf16 --tensor-model-parallel-size 2 "
      "--use-distributed-optimizer --vocab-size 128256 ";
  std::string lines, keys = "model:\r\n", flags = "MODEL_ARGS:\n";
  std::istringstream words(arguments);
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::string word; words >> word;) {
    if (word.starts_with("--")) {
      pairs.push_back({word, ""});
    } else {
      pairs.back().second = word;
    }
  }
  for (const auto& [flag, value] : pairs) {
    lines += " \\\r\n    " + flag + (value.empty() ? "" : " \"" + value + "\"");
    std::string key = flag.substr(2);
    std::replace(key.begin(), key.end(), '-', '_');
    keys += "  " + key + ": " + (value.empty() ? "true" : value) + "  # " + key + "\r\n";
    flags += "  " + flag + ": " + (value.empty() ? "true" : value) + "\n";
  }
  const std::string variables =
      "#!/bin/bash\n# of a script\nTP=2\nexport MBS=1\nLAYERS=${LAYERS:-32}\nSEQ=4096\n"
      "MORE=\"--bf16 --swiglu\"\n"
      "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers $LAYERS --hidden-size "
      "4096 --ffn-hidden-size 14336 --num-attention-heads 32 --seq-length $SEQ "
      "--max-position-embeddings $SEQ --micro-batch-size $MBS --global-batch-size 64 "
      "--tensor-model-parallel-size ${TP} $MORE  # the end\n";
  const std::string accelerate =
      "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP  # two\nmixed_precision: bf16\n"
      "fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_reshard_after_forward: true\n  fsdp_state_dict_type: \"SHARDED_STATE_DICT\"\n"
      "num_machines: 1\nnum_processes: 8\n";
  const std::string fsdp =
      "import torch\nfrom torch.distributed.fsdp import (\n    FullyShardedDataParallel as FSDP,\n"
      ")\nfrom torch.distributed.fsdp.wrap import transformer_auto_wrap_policy\n\n"
      "def build(model):\n    \"\"\"Sharded.\n\n    import nothing\n    \"\"\"\n"
      "    return FSDP(\n        model,\n        sharding_strategy=\"FULL_SHARD\",  # ZeRO-3\n"
      "        auto_wrap_policy=transformer_auto_wrap_policy,\n    )\n";
  const std::string trainer =
      "deepspeed --num_gpus 8 train.py --model_name_or_path x --per_device_train_batch_size 1 \\\n"
      "  --gradient_accumulation_steps 4 --bf16 True --deepspeed ds.json\n";
  const std::string ds =
      "{\n  \"train_micro_batch_size_per_gpu\": 1, // each\n  \"gradient_accumulation_steps\": 4,\n"
      "  \"bf16\": {\"enabled\": true},\n  \"zero_optimization\": {\n    \"stage\": 3,\n"
      "    \"overlap_comm\": true,\n    \"reduce_bucket_size\": 5e8\n  }\n}\n";
  return {{"list", "llama3-8b", 8, {{"args.txt", arguments + "\n"}}},
          {"windows", "llama3-8b", 8, {{"train.sh", "torchrun pretrain_gpt.py" + lines + "\r\n"}}},
          {"yaml", "llama3-8b", 8, {{"config.yaml", keys}}},
          {"flags in yaml", "llama3-8b", 8, {{"model_config.yaml", flags}}},
          {"variables", "llama3-8b", 8, {{"train.sh", variables}}},
          {"accelerate", "llama3-8b", 8, {{"accelerate.yaml", accelerate}}},
          {"fsdp", "llama3-8b", 8, {{"train.py", fsdp}}},
          {"trainer", "llama3-8b", 8, {{"train.sh", trainer}, {"ds.json", ds}}}};
}

}  // namespace qplan
