// Training programs of one's own: what they ask of torch and transformers.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

// Of several files, on one node's GPUs unless said.
Checked ask(const std::vector<ConfigText>& texts, std::int64_t gpus = 8,
            const std::string& model_name = "qwen3-8b") {
  const ModelSpec model = load_model(model_name);
  const Json config = model_config(model_name);
  return check_cited(texts, question_of(model, config, gpus));
}

Checked ask_program(const std::string& text, std::int64_t gpus = 8) {
  return ask({{"train.py", text}}, gpus);
}

const std::string kWrap =
    "model = FSDP(model, auto_wrap_policy=policy, mixed_precision=MixedPrecision(\n"
    "    param_dtype=torch.bfloat16, reduce_dtype=torch.float32))\n";

TEST_SUITE("activations that a program recomputes") {
  // Each by itself makes every layer be computed again.
  const std::vector<std::string> kWays{
      "model.gradient_checkpointing_enable()\n",
      "model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': "
      "False})\n",
      "apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrapper, check_fn=is_layer)\n",
      "for i, layer in enumerate(model.layers):\n    model.layers[i] = checkpoint_wrapper(layer)\n",
      "args = TrainingArguments(output_dir='o', gradient_checkpointing=True)\n",
      "args = trl.SFTConfig(output_dir='o', gradient_checkpointing=True)\n",
      "model.config.gradient_checkpointing = True\n",
      "model = AutoModelForCausalLM.from_pretrained(name, gradient_checkpointing=True)\n",
      "from torch.utils.checkpoint import checkpoint\nx = checkpoint(layer, x)\n",
      "x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)\n",
      "plugin = FullyShardedDataParallelPlugin(activation_checkpointing=True)\n"};

  TEST_CASE("wherever it stands, and in whichever file") {
    for (const std::string& way : kWays) {
      CAPTURE(way);
      for (const std::string& text : {way + kWrap, kWrap + way}) {
        const Checked checked = ask_program(text);
        CHECK(checked.plan.recompute.kind == RecomputeKind::full);
        CHECK_MESSAGE(find(checked, "not_resolved") == nullptr, findings_text(checked));
      }
      const Checked apart = ask({{"model.py", way}, {"train.py", kWrap}});
      CHECK(apart.plan.recompute.kind == RecomputeKind::full);
      const std::string config = "{\"train_batch_size\": 8, \"bf16\": {\"enabled\": true}}";
      const Checked deepspeed = ask({{"train.py", way}, {"ds.json", config}});
      CHECK(deepspeed.framework == Framework::deepspeed);
      CHECK(deepspeed.plan.recompute.kind == RecomputeKind::full);
    }
  }

  TEST_CASE("what is switched off, only defined, or another's checkpoint is none") {
    for (const std::string text :
         {"model.gradient_checkpointing_enable()\nmodel.gradient_checkpointing_disable()\n",
          "args = TrainingArguments(output_dir='o', gradient_checkpointing=False)\n",
          "model.config.gradient_checkpointing = False\n",
          "def checkpoint_wrapper(layer):\n    return layer\n", "saver.checkpoint(model)\n",
          "# model.gradient_checkpointing_enable()\n",
          "note = 'model.gradient_checkpointing_enable()'\n"}) {
      CAPTURE(text);
      CHECK(ask_program(text + kWrap).plan.recompute.kind == RecomputeKind::none);
    }
  }

  TEST_CASE("torch's selective checkpoints choose operators") {
    const Checked checked = ask_program(
        "from torch.utils.checkpoint import create_selective_checkpoint_contexts\n"
        "layer = checkpoint_wrapper(layer, context_fn=chosen)\n" +
        kWrap);
    CHECK(checked.plan.recompute.kind == RecomputeKind::selective);
  }

  TEST_CASE("what only a run can tell is said to be so") {
    const Checked guarded =
        ask_program("if args.save_memory:\n    model.gradient_checkpointing_enable()\n" + kWrap);
    CHECK(guarded.plan.recompute.kind == RecomputeKind::full);
    REQUIRE(find(guarded, "not_resolved") != nullptr);
    CHECK(find(guarded, "not_resolved")->message.find("where args.save_memory holds") !=
          std::string::npos);
    const Checked passed =
        ask_program("model = build(gradient_checkpointing=args.save_memory)\n" + kWrap);
    CHECK(passed.plan.recompute.kind == RecomputeKind::none);
    REQUIRE(find(passed, "not_resolved") != nullptr);
    CHECK(find(passed, "not_resolved")->place.line == 1);
    const Checked main = ask_program(
        "if __name__ == '__main__':\n    model.gradient_checkpointing_enable()\n" + kWrap);
    CHECK(find(main, "not_resolved") == nullptr);
  }
}

TEST_SUITE("a Trainer's arguments in Python") {
  TEST_CASE("are those of its command line") {
    const Checked checked = ask({{"train.py",
                                  "args = TrainingArguments(output_dir='o', bf16=True,\n"
                                  "    per_device_train_batch_size=2, max_grad_norm=0.5,\n"
                                  "    gradient_accumulation_steps=4, deepspeed='ds.json')\n"},
                                 {"ds.json",
                                  "{\"zero_optimization\": {\"stage\": 3}, \"bf16\": {\"enabled\": "
                                  "true}, \"gradient_clipping\": 1.0}"}});
    CHECK(checked.framework == Framework::deepspeed);
    CHECK(checked.plan.micro_batch_size == 2);
    CHECK(checked.plan.global_batch_size == 64);
    REQUIRE(find(checked, "trainer_mismatch") != nullptr);
    CHECK(find(checked, "trainer_mismatch")->place.line == 2);
  }
}

}  // namespace
}  // namespace qplan
