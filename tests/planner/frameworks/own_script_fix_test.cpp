// What --fix corrects in training programs of one's own, and beside them, with one answer.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/frameworks/fix.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

// The files as --fix leaves them, and what is found in them then.
FixedFiles mend(const std::vector<ConfigText>& files, const std::string& model_name,
                std::int64_t gpus) {
  const ModelSpec model = load_model(model_name);
  const Json config = model_config(model_name);
  return fix(files, [&](std::span<const ConfigText> texts) {
    return check(texts, question_of(model, config, gpus));
  });
}

TEST_SUITE("corrections with one answer") {
  TEST_CASE("a wrap policy has the class of the model's layers, with its imports") {
    for (const auto& [model, layer, module] :
         {std::tuple("qwen3-8b", "Qwen3DecoderLayer", "qwen3"),
          std::tuple("llama3-8b", "LlamaDecoderLayer", "llama"),
          std::tuple("qwen3-vl-30b-a3b", "Qwen3VLMoeTextDecoderLayer, Qwen3VLMoeVisionBlock",
                     "qwen3_vl_moe")}) {
      CAPTURE(model);
      for (const std::string call : {"FSDP(model)", "FSDP(model, use_orig_params=True)",
                                     "FSDP(module=model)", "FSDP(model, **kw)"}) {
        const std::string text =
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
            "kw = {}\nmodel = " +
            call + "\n";
        const FixedFiles fixed = mend({{"train.py", text}}, model, 8);
        const std::string& mended = fixed.files.front().text;
        CAPTURE(mended);
        CHECK(find(fixed.before, "no_wrap_policy") != nullptr);
        CHECK(find(fixed.checked, "no_wrap_policy") == nullptr);
        CHECK(mended.find(fmt::format("transformer_layer_cls={{{}}})", layer)) !=
              std::string::npos);
        CHECK(mended.find(fmt::format("from transformers.models.{0}.modeling_{0} import {1}\n",
                                      module, layer)) != std::string::npos);
        CHECK(mended.starts_with("import functools\n"));
        CHECK(find(fixed.checked, "python_syntax") == nullptr);
      }
    }
    const FixedFiles bare = mend({{"train.py", "model = FSDP(model)\n"}}, "qwen3-8b", 8);
    CHECK(find(bare.checked, "no_wrap_policy") != nullptr);  // nothing is imported
    CHECK(why_left(bare, *find(bare.checked, "no_wrap_policy")).find("imports") !=
          std::string::npos);
  }

  TEST_CASE("a class that transformers has not is the model's own") {
    const FixedFiles fixed = mend(
        {{"train.py", "import torch\nmodel = Qwen38B.from_pretrained(name)\nm = DDP(model)\n"}},
        "qwen3-8b", 8);
    CHECK(find(fixed.before, "model_class") != nullptr);
    CHECK(fixed.files.front().text ==
          "from transformers import Qwen3ForCausalLM\nimport torch\n"
          "model = Qwen3ForCausalLM.from_pretrained(name)\nm = DDP(model)\n");
  }

  TEST_CASE("another library's class is none of transformers'") {
    for (const char* text :
         {"from transformers import PretrainedConfig\nc = "
          "PretrainedConfig.from_pretrained(name)\nm = DDP(model)\n",
          "from diffusers import DiffusionPipeline\nc = DiffusionPipeline.from_pretrained(name)\nm "
          "= DDP(model)\n",
          "class Reward:\n  pass\nc = Reward.from_pretrained(name)\nm = DDP(model)\n"}) {
      CAPTURE(text);
      CHECK(find(mend({{"train.py", text}}, "qwen3-8b", 8).before, "model_class") == nullptr);
    }
  }

  TEST_CASE("formats by the names that an option has") {
    for (const auto& [written, meant] :
         {std::pair("float16", "fp16"), std::pair("bfloat16", "bf16"), std::pair("half", "fp16"),
          std::pair("torch.float32", "fp32")}) {
      CAPTURE(written);
      const FixedFiles ds = mend({{"ds.json", fmt::format("{{\"train_batch_size\": 8, "
                                                          "\"communication_data_type\": \"{}\"}}",
                                                          written)}},
                                 "qwen3-8b", 8);
      CHECK(ds.files.front().text.find(fmt::format("\"{}\"", meant)) != std::string::npos);
      CHECK_FALSE(ds.checked.has(Severity::error));
    }
    const FixedFiles other =
        mend({{"ds.json", "{\"train_batch_size\": 8, \"communication_data_type\": \"int4\"}"}},
             "qwen3-8b", 8);
    CHECK(other.checked.has(Severity::error));
    const FixedFiles yaml =
        mend({{"a.yaml",
               "distributed_type: FSDP\nmixed_precision: bfloat16\nfsdp_config:\n"
               "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_version: 2\n"}},
             "qwen3-8b", 8);
    CHECK(yaml.files.front().text.find("mixed_precision: bf16\n") != std::string::npos);
  }

  TEST_CASE("WORLD_SIZE that is set by hand goes, and nothing else of its line") {
    const std::string launch = "torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 1\n";
    const auto mended = [&](const std::string& before, const std::string& prefix = "") {
      return mend({{"train.sh", before + prefix + launch}}, "qwen3-8b", 8).files.front().text;
    };
    CHECK(mended("export WORLD_SIZE=32\nexport A=1\n") == "export A=1\n" + launch);
    CHECK(mended("  export WORLD_SIZE=32  # all\n") == "  # all\n" + launch);
    CHECK(mended("export A=1 WORLD_SIZE=32 B=2\n") == "export A=1 B=2\n" + launch);
    CHECK(mended("", "WORLD_SIZE=32 A=1 ") == "A=1 " + launch);
    for (const std::string kept :
         {"export WORLD_SIZE=32\necho $WORLD_SIZE\n", "export WORLD_SIZE=32; echo a\n",
          "export WORLD_SIZE=16\nexport WORLD_SIZE=32\n"}) {
      CAPTURE(kept);
      CHECK(mended(kept) == kept + launch);
    }
  }
}

}  // namespace
}  // namespace qplan
