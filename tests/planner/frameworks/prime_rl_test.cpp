// prime-rl's TOML: the job of torchtitan's kind that it asks for, and what its classes refuse.

#include "planner/frameworks/finetuning/prime_rl.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/frameworks/model_of_files.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kSft =
    "max_steps = 100\n\n[ckpt]\n\n[model]\nname = \"Qwen/Qwen3-30B-A3B\"\nimpl = \"custom\"\n"
    "cp = 2\n\n[model.ac]\nfreq = 1\n\n[data]\nname = \"x\"\nseq_len = 8192\nbatch_size = 64\n"
    "micro_batch_size = 1\n\n[optim]\nlr = 2e-5\n\n[scheduler]\ntype = \"cosine\"\n"
    "warmup_steps = 10\n\n[deployment]\ntype = \"single_node\"\nnum_train_gpus = 8\n";
const std::string kRl =
    "seq_len = 32768\n\n[model]\nname = \"Qwen/Qwen3-30B-A3B\"\n\n[weight_broadcast]\n"
    "type = \"nccl\"\n\n[deployment]\ntype = \"multi_node\"\nnum_train_nodes = 2\n"
    "num_infer_nodes = 2\n\n[slurm]\njob_name = \"x\"\n\n[trainer.model]\nep = 8\n"
    "optim_cpu_offload = false\n\n[trainer.optim]\ntype = \"muon\"\n\n[orchestrator]\n"
    "batch_size = 512\n\n[[orchestrator.train.source]]\nname = \"a\"\n\n"
    "[orchestrator.train.source.env]\nid = \"a\"\n\n[[orchestrator.train.source]]\nname = \"b\"\n\n"
    "[orchestrator.train.source.env]\nid = \"b\"\n\n[inference.vllm]\n"
    "tensor_parallel_size = 8\n";

Checked ask(const std::string& text, std::int64_t gpus = 8) {
  return ask_text("job.toml", text, "qwen3-30b-a3b", gpus);
}

TEST_SUITE("prime-rl's TOML") {
  TEST_CASE("of fine-tuning is a job of FSDP2 with torchtitan's meshes") {
    const Checked sft = ask(kSft);
    CHECK_MESSAGE(sft.count(Severity::error) == 0, findings_text(sft));
    CHECK(sft.says_plan);
    CHECK(sft.recipe == RecipeKind::fsdp2_compile);
    CHECK(sft.plan.cp == 2);
    CHECK(sft.plan.dp == 4);
    CHECK(sft.plan.ep == 8);  // "auto", of a model with experts
    CHECK(sft.plan.zero == 3);
    CHECK(sft.plan.seq_len == 8192);
    CHECK(sft.plan.global_batch_size == 64);
    CHECK(sft.plan.recompute.kind == RecomputeKind::full);
    CHECK(sft.takes_less);  // states and inputs of layers go to the host by themselves
    const std::vector<ConfigText> files{{"job.toml", kSft}};
    CHECK(model_id_of_files(read_job_files(files)) == "Qwen/Qwen3-30B-A3B");
  }

  TEST_CASE("states are as wide as the weights are stored") {
    const std::string wide = with_words(kSft, "cp = 2", "cp = 2\noptim_cpu_offload = false");
    CHECK(ask(wide).plan.moment_dtype == DType::fp32);
    const Checked narrow =
        ask(with_words(wide, "cp = 2", "cp = 2\noptimization_dtype = \"bfloat16\""));
    CHECK(narrow.plan.moment_dtype == DType::bf16);
    CHECK(narrow.plan.main_params_dtype == DType::bf16);
  }

  TEST_CASE("of answers is its trainer's job, on the trainer's GPUs") {
    const Checked rl = ask(kRl, 16);
    CHECK_MESSAGE(rl.count(Severity::error) == 0, findings_text(rl));
    CHECK(rl.plan.dp == 16);
    CHECK(rl.plan.ep == 8);
    CHECK(rl.plan.seq_len == 32768);
    CHECK(rl.plan.global_batch_size == 512);
    CHECK(find(ask(kRl, 32), "launched_world") != nullptr);  // of which half make answers
  }

  TEST_CASE("what its classes refuse is found at its line") {
    struct Fault {
      std::string text, from, to, rule;
      int line;
    };
    const std::vector<Fault> faults{
        {kSft, "batch_size = 64", "batchsize = 64", "unknown_option", 16},
        {kSft, "batch_size = 64", "batch_size = 63", "batch_divisibility", 16},
        {kSft, "micro_batch_size = 1", "micro_batch_size = 2", "options_exclude", 17},
        {kSft, "seq_len = 8192", "seq_len = 8191", "sequence_parts", 15},
        {kSft, "cp = 2", "cp = 2\nfsdp_cpu_offload = true", "options_exclude", 9},
        {kSft, "impl = \"custom\"", "impl = \"hf\"", "options_exclude", 7},
        {kSft, "impl = \"custom\"", "impl = \"costum\"", "refused_value", 7},
        {kSft, "max_steps = 100\n", "", "option_needs", 22},
        {kSft, "warmup_steps = 10", "warmup_steps = 100", "options_exclude", 24},
        {kSft, "type = \"single_node\"", "type = \"multi_node\"", "option_needs", 27},
        {kSft, "num_train_gpus = 8", "num_train_gpus = 9", "node_gpus", 28},
        {kSft, "cp = 2", "cp = 2\nep = 1\nep_comm_backend = \"deepep\"", "option_needs", 10},
        {kRl, "ep = 8", "ep = 8\nfsdp_cpu_offload = true", "options_exclude", 23},
        {kRl, "ep = 8", "epp = 8", "unknown_option", 18},
        {kRl, "tensor_parallel_size = 8", "tensor_parallel_size = 3", "engines_divide", 40},
        {kRl, "ep = 8", "ep = 8\nlora = { rank = 8 }", "options_exclude", 19},
    };
    for (const Fault& fault : faults) {
      CAPTURE(fault.to);
      const Checked checked = ask(with_words(fault.text, fault.from, fault.to), 16);
      const Finding* const found = find(checked, fault.rule);
      REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
      CHECK_MESSAGE(found->place.line == fault.line, findings_text(checked));
    }
  }

  TEST_CASE("engines alone train nothing") {
    const Checked engines =
        ask("[model]\nname = \"x\"\n\n[server]\nport = 8000\n\n[vllm]\nseed = 1\n");
    CHECK(find(engines, "unknown_file") != nullptr);
    CHECK_FALSE(engines.says_plan);
  }
}

}  // namespace
}  // namespace qplan
