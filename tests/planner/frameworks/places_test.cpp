// Where findings of a plan stand: in the line that says what they are about.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/planner/frameworks/jobs.h"
#include "tests/planner/frameworks/rl_jobs.h"

namespace qplan {
namespace {

TEST_SUITE("places of findings") {
  int line_told(const Checked& checked, const std::string& rule) {
    const Finding* const found = find(checked, rule);
    CHECK_MESSAGE(found != nullptr, findings_text(checked));
    return found == nullptr ? -1 : found->place.line;
  }

  TEST_CASE("errors of a batch stand where the batch is said") {
    const std::string shapes = "--num-layers 36 \\\n  --micro-batch-size 2 \\\n";
    const Checked script = ask_text("train.sh",
                                    "torchrun --nproc_per_node 8 pretrain_gpt.py \\\n  " + shapes +
                                        "  --global-batch-size 15\n",
                                    "qwen3-8b", 8);
    CHECK(line_told(script, "batch_divisibility") == 4);
    // Too few microbatches for the stages: where those are said.
    const Checked few = ask_text("train.sh",
                                 "torchrun --nproc_per_node 8 pretrain_gpt.py \\\n  " + shapes +
                                     "  --pipeline-model-parallel-size 4 "
                                     "--num-layers-per-virtual-pipeline-stage 3 \\\n"
                                     "  --global-batch-size 8\n",
                                 "qwen3-8b", 8);
    CHECK(line_told(few, "schedule_microbatches") == 4);
    const Checked sections = ask_text(
        "args.yaml",
        "num_layers: 36\nhidden_size: 4096\nnum_attention_heads: 32\nmicro_batch_size: 2\n"
        "global_batch_size: 15\ntensor_model_parallel_size: 1\npipeline_model_parallel_size: 1\n",
        "qwen3-8b", 8);
    CHECK(line_told(sections, "batch_divisibility") == 5);
    const Checked tests = ask_text(
        "model_config.yaml",
        "MODEL_ARGS:\n  --num-layers: 36\n  --micro-batch-size: 2\n  --global-batch-size: 15\n",
        "qwen3-8b", 8);
    CHECK(line_told(tests, "batch_divisibility") == 4);
    const Checked automodel = ask_text(
        "job.yaml",
        "recipe: TrainFinetuneRecipeForNextTokenPrediction\nstep_scheduler:\n"
        "  global_batch_size: 63\n  local_batch_size: 2\nmodel:\n"
        "  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained\n"
        "  pretrained_model_name_or_path: Qwen/Qwen3-8B\ndistributed:\n  strategy: fsdp2\n",
        "qwen3-8b", 8);
    CHECK(line_told(automodel, "batch_divisibility") == 3);
  }

  TEST_CASE("of NeMo-RL's trainer, and not of its engines") {
    std::string text = rl_fixture("nemo_base.yaml");
    const std::string key = "tensor_parallel_size: 1";
    const std::size_t at = text.find(key, text.find("dtensor_cfg:"));
    REQUIRE(at != std::string::npos);
    text.replace(at, key.size(), "tensor_parallel_size: 3");
    const Checked split = ask_text("nemo_base.yaml", text, "qwen3-8b", 8);
    CHECK(line_told(split, "attention_heads") == line_of(text, at));
  }

  TEST_CASE("what a quote without an end holds is told in one line") {
    const Checked open = ask_text("train.sh",
                                  "torchrun --nproc_per_node 8 pretrain_gpt.py \\\n"
                                  "  --num-layers \"36 \\\n  --micro-batch-size 1\n",
                                  "qwen3-8b", 8);
    CHECK(line_told(open, "unclosed_quote") == 2);
    for (const Finding& f : open.findings) {
      CAPTURE(f.rule);
      CHECK((f.message + f.instead).find('\n') == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace qplan
