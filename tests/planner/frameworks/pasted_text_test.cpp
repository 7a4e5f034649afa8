// Arguments that are missing, and text that lost its line breaks on the way.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "tests/complaint.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

TEST_SUITE("arguments that Megatron has no default of") {
  struct Required {
    std::string argument, rule;
  };
  const std::vector<Required> kRequired{
      {"--num-layers 36", "no_shape"},          {"--hidden-size 4096", "no_shape"},
      {"--num-attention-heads 32", "no_shape"}, {"--max-position-embeddings 40960", "no_positions"},
      {"--seq-length 4096", "no_seq_length"},   {"--micro-batch-size 1", "no_micro_batch"}};

  // All of them but one, and what else stands behind the script.
  std::string script_without(const std::string& left_out, const std::string& more = "") {
    std::string text = "torchrun --nproc_per_node 8 pretrain_gpt.py --bf16";
    for (const Required& required : kRequired) {
      if (required.argument != left_out) text += " " + required.argument;
    }
    return text + more + "\n";
  }

  std::int64_t missing(const Checked& checked) {
    std::int64_t count = 0;
    for (const Finding& f : checked.findings) {
      const bool one = f.rule == "no_shape" || f.rule == "no_positions" ||
                       f.rule == "no_seq_length" || f.rule == "no_micro_batch";
      if (one && f.severity == Severity::error) ++count;
    }
    return count;
  }

  TEST_CASE("each is asked for by itself, and all that are missing are said") {
    CHECK(missing(ask_text("train.sh", script_without(""), "qwen3-8b", 8)) == 0);
    for (const Required& required : kRequired) {
      CAPTURE(required.argument);
      const Checked checked =
          ask_text("train.sh", script_without(required.argument), "qwen3-8b", 8);
      CHECK_MESSAGE(missing(checked) == 1, findings_text(checked));
      REQUIRE(find(checked, required.rule) != nullptr);
      const std::string flag = required.argument.substr(0, required.argument.find(' '));
      CHECK(find(checked, required.rule)->message.starts_with(flag + " "));
    }
    const Checked bare = ask_text(
        "train.sh", "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 36\n", "qwen3-8b", 8);
    CHECK(missing(bare) == 5);
  }

  TEST_CASE("not where what nobody can read here may say them") {
    for (const std::string more :
         {" $GPT_ARGS", " ${GPT_ARGS[@]}", " \"${GPT_ARGS[@]}\"", " $@", " --swiglu $GPT_ARGS",
          " $(cat args.txt)", " --lr 1e-4 $GPT_ARGS", " --mine 4 $GPT_ARGS",
          " --yaml-cfg model.yaml", " --use-checkpoint-args --load ckpt"}) {
      CAPTURE(more);
      for (const Required& required : kRequired) {
        const Checked checked =
            ask_text("train.sh", script_without(required.argument, more), "qwen3-8b", 8);
        CHECK_MESSAGE(missing(checked) == 0, findings_text(checked));
      }
    }
    // A value that is not known is no argument.
    const Checked value =
        ask_text("train.sh", script_without("--seq-length 4096", " --lr $LR --save \"$DIR\""),
                 "qwen3-8b", 8);
    CHECK(missing(value) == 1);
    // Nor is one among the numbers of a list.
    for (const std::string list : {" --profile-ranks 0 $(ls)", " --sglang-bs 1 2 $(ls) 8"}) {
      CAPTURE(list);
      CHECK(missing(ask_text("train.sh", script_without("--seq-length 4096", list), "qwen3-8b",
                             8)) == 1);
    }
    // Of a model's file, or of no script and without the model's shapes, they are a part, as are
    // those that say nothing of the model.
    const std::string shapes = "--num-layers 36 --hidden-size 4096 --num-attention-heads 32";
    CHECK(missing(ask_text("args.txt", "--num-layers 36 --seq-length 4096\n", "qwen3-8b", 8)) == 0);
    // Another script's parser has defaults of its own, and a pattern counts layers.
    CHECK(missing(ask_text("train.sh", "torchrun finetune.py " + shapes + " --seq-length 4096\n",
                           "qwen3-8b", 8)) == 0);
    CHECK(missing(ask_text("train.sh",
                           script_without("--num-layers 36", " --hybrid-layer-pattern M*-"),
                           "qwen3-8b", 8)) == 0);
    CHECK(missing(ask_text("model.sh", "MODEL_ARGS=(" + shapes + ")\n", "qwen3-8b", 8)) == 0);
    CHECK(missing(ask_text("args.txt", shapes + " --micro-batch-size 1\n", "qwen3-8b", 8)) == 2);
    CHECK(missing(ask_text("train.sh", "torchrun pretrain_gpt.py --micro-batch-size 1\n",
                           "qwen3-8b", 8)) == 0);
  }

  TEST_CASE("nor where another file of the job says them") {
    const std::vector<ConfigText> texts{
        {"train.sh",
         "source model.sh\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 36 "
         "--micro-batch-size 1 --seq-length 4096 ${MODEL_ARGS[@]}\n"},
        {"model.sh",
         "MODEL_ARGS=(--hidden-size 4096 --num-attention-heads 32 "
         "--max-position-embeddings 40960)\n"}};
    const ModelSpec model = load_model("qwen3-8b");
    const Json config = model_config("qwen3-8b");
    const Checked checked = check_cited(texts, question_of(model, config, 8));
    CHECK_MESSAGE(missing(checked) == 0, findings_text(checked));
  }
}

TEST_SUITE("backslashes that continue nothing") {
  TEST_CASE("the blank behind one begins an argument, and the command is read as it was meant") {
    const std::string rest = "torchrun --nproc_per_node=8 \\ --nnodes=2 \\ pretrain_gpt.py";
    for (const std::string& text : std::vector<std::string>{
             rest + " --micro-batch-size 1\n", rest + " \\ --micro-batch-size 1\n",
             "torchrun --nproc_per_node=8 \\  --nnodes=2 pretrain_gpt.py --micro-batch-size 1\n",
             "torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py \\\t--micro-batch-size 1\n",
             "A=(--micro-batch-size 1 \\ --bf16)\n"
             "torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py \"${A[@]}\"\n",
             "A=\"--bf16 \\ --micro-batch-size 1\"\n"
             "torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py $A\n"}) {
      CAPTURE(text);
      const Checked checked = ask_text("train.sh", text, "qwen3-8b", 32);
      const Finding* const found = find(checked, "stray_backslash");
      REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
      CHECK(found->severity == Severity::error);
      CHECK(checked.plan.micro_batch_size == 1);
      REQUIRE(find(checked, "launched_world") != nullptr);  // 2 x 8 for 32 GPUs
      CHECK(find(checked, "launched_world")->message.find("2 x 8") != std::string::npos);
      const std::string mended = with_edits(text, "train.sh", found->fix);
      CHECK(mended.find('\\') == std::string::npos);
      CHECK(find(ask_text("train.sh", mended, "qwen3-8b", 32), "stray_backslash") == nullptr);
    }
  }

  TEST_CASE("not those of a path, a quote, another command, or the end of a line") {
    for (const std::string text :
         {"torchrun --nproc_per_node=8 pretrain_gpt.py --save /my\\ disk --micro-batch-size 1\n",
          "torchrun --nproc_per_node=8 \\\n  pretrain_gpt.py --micro-batch-size 1\n",
          "echo \\ ready\ntorchrun --nproc_per_node=8 pretrain_gpt.py --micro-batch-size 1\n",
          "torchrun --nproc_per_node=8 pretrain_gpt.py --save ' x' --micro-batch-size 1\n"}) {
      CAPTURE(text);
      CHECK(find(ask_text("train.sh", text, "qwen3-8b", 8), "stray_backslash") == nullptr);
    }
  }
}

TEST_SUITE("lines of a hostfile") {
  Checked ask_hosts(const std::string& hosts) {
    const std::vector<ConfigText> texts{
        {"train.sh", "deepspeed --hostfile hostfile train.py --deepspeed ds.json\n"},
        {"hostfile", hosts},
        {"ds.json", "{\"train_batch_size\": 16, \"bf16\": {\"enabled\": true}}"}};
    const ModelSpec model = load_model("llama3-8b");
    const Json config = model_config("llama3-8b");
    return check_cited(texts, question_of(model, config, 16));
  }

  TEST_CASE("those that DeepSpeed's parser refuses are errors") {
    for (const std::string bad :
         {"...", "host3", "host3 slots", "host3 slots=", "host3 slots=eight", "host3:8",
          "host3 gpus=8", "host3 slots =8", "host1 slots=8", "slots=8"}) {
      CAPTURE(bad);
      const Checked checked = ask_hosts("host1 slots=8\nhost2 slots=8\n" + bad + "\n");
      REQUIRE_MESSAGE(find(checked, "hostfile_line") != nullptr, findings_text(checked));
      CHECK(find(checked, "hostfile_line")->severity == Severity::error);
      CHECK(find(checked, "hostfile_line")->place.line == 3);
      CHECK(find(checked, "launched_world") == nullptr);
    }
    CHECK(find(ask_hosts("host1\nhost2\n"), "hostfile_line") != nullptr);
    CHECK(find(ask_hosts("# none yet\n"), "hostfile_line") != nullptr);
  }

  TEST_CASE("those that it takes are none") {
    for (const std::string good :
         {"host1 slots=8\nhost2 slots=8\n", "# two\n\nhost1\tslots=8\r\nhost2   slots=8 # big\r\n",
          "  host1 slots=8\n10.0.0.2 slots=8 rack=1"}) {
      CAPTURE(good);
      const Checked checked = ask_hosts(good);
      CHECK_MESSAGE(find(checked, "hostfile_line") == nullptr, findings_text(checked));
      CHECK(find(checked, "launched_world") == nullptr);
    }
  }
}

TEST_SUITE("remarks that take what stands behind them") {
  std::string taken(const std::string& name, const std::string& text) {
    const Checked checked = ask_text(name, text);
    const Finding* const found = find(checked, "swallowed_by_remark");
    return found == nullptr ? std::string() : found->message;
  }

  TEST_CASE("keys of YAML") {
    CHECK(taken("a.yaml",
                "distributed_type: FSDP # sharded mixed_precision: bf16\nnum_processes: 64\n")
              .find("takes mixed_precision ") != std::string::npos);
    CHECK(taken("a.yaml",
                "# accelerate mixed_precision: bf16 num_machines: 8\ndistributed_type: FSDP\n")
              .find("mixed_precision, num_machines") != std::string::npos);
    for (const std::string text :
         {"distributed_type: FSDP  # see: the manual\n",
          "distributed_type: FSDP\n# mixed_precision: fp16\n",
          "distributed_type: FSDP  # with mixed_precision: fp16 it overflows\n"
          "mixed_precision: bf16\n",
          "distributed_type: 'FSDP # mixed_precision: bf16'\n"}) {
      CAPTURE(text);
      CHECK(taken("a.yaml", text).empty());
    }
  }

  TEST_CASE("keys of JSON, and with them its end") {
    CHECK(taken("ds.json",
                "{\"train_batch_size\": 64, # all \"bf16\": {\"enabled\": true},\n"
                "\"gradient_clipping\": 1.0}")
              .find("bf16, enabled") != std::string::npos);
    const std::string cut_off = complaint_of([] {
      ask_text("ds.json", "{\"train_batch_size\": 64, # all \"bf16\": {\"enabled\": true}}\n");
    });
    CHECK(cut_off.find("cut off") != std::string::npos);
    CHECK(cut_off.find("takes bf16, enabled with it") != std::string::npos);
    CHECK(taken("ds.json",
                "{\"train_batch_size\": 64, # \"all\" of them\n"
                "# \"bf16\": {\"enabled\": true},\n"
                "\"gradient_clipping\": 1.0}")
              .empty());
    CHECK(taken("ds.json", "{\"train_batch_size\": 64, \"a\": \"# \\\"bf16\\\": 1\"}").empty());
  }

  TEST_CASE("statements of Python") {
    CHECK(taken("train.py",
                "model = FSDP(model, # wrap it mixed_precision=policy, use_orig_params=True)\n")
              .find("mixed_precision, use_orig_params") != std::string::npos);
    CHECK(taken("train.py", "model = FSDP(model, # wrap auto_wrap_policy=policy)\n")
              .find("auto_wrap_policy") != std::string::npos);
    CHECK(
        taken("train.py",
              "# train.py import torch from transformers import AutoModelForCausalLM model = "
              "AutoModelForCausalLM.from_pretrained(name) optimizer = AdamW(model.parameters())\n")
            .find("model, optimizer") != std::string::npos);
    for (const std::string text :
         {"model = FSDP(model)  # lr=1e-4\n",
          "# optimizer = AdamW(model.parameters(), lr=1e-4, eps=1e-8)\nmodel = FSDP(model)\n",
          "model = FSDP(model)  # if a == b and c != d\n",
          "text = '# a=1, b=2, c=3'\nmodel = FSDP(model)\n"}) {
      CAPTURE(text);
      CHECK(taken("train.py", text).empty());
    }
  }
}

}  // namespace
}  // namespace qplan
