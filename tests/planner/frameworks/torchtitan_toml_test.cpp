// torchtitan's TOML job files, of releases before its functions in Python.

#include <doctest/doctest.h>

#include <string>

#include "planner/frameworks/check.h"
#include "planner/frameworks/model_of_files.h"
#include "planner/frameworks/pretraining/titan_toml.h"
#include "tests/planner/frameworks/fixed.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kTomlJob =
    "# 8 GPUs\n"
    "[model]\nname = \"llama3\"\nflavor = \"8B\"\n\n"
    "[optimizer]\nname = \"AdamW\"\nlr = 3e-4\n\n"
    "[training]\nlocal_batch_size = 1\nseq_len = 8192\nsteps = 1_000  # of them\n\n"
    "[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n\n"
    "[compile]\nenable = true\n\n"
    "[activation_checkpoint]\nmode = \"selective\"\nselective_ac_option = \"op\"\n";

Checked ask_toml(const std::string& from = "", const std::string& to = "",
                 const std::string& model = "llama3-8b", std::int64_t gpus = 8) {
  return ask_text("job.toml", from.empty() ? kTomlJob : with_words(kTomlJob, from, to), model,
                  gpus);
}

void refuses(const Checked& checked, std::string_view rule, int line) {
  const Finding* const found = find(checked, std::string(rule));
  REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
  CHECK(found->severity == Severity::error);
  CHECK_MESSAGE(found->place.line == line, findings_text(checked));
}

TEST_SUITE("torchtitan's TOML") {
  TEST_CASE("is what its function in Python says") {
    const Checked toml = ask_toml();
    CHECK_MESSAGE(!toml.has(Severity::error), findings_text(toml));
    CHECK_MESSAGE(!toml.has(Severity::warning), findings_text(toml));
    CHECK(toml.framework == Framework::torchtitan);
    CHECK(toml.recipe == RecipeKind::fsdp2_compile);
    CHECK(find(toml, "torchtitan_toml")->severity == Severity::note);
    const Checked python =
        ask_text("config.py",
                 "def f():\n  return Trainer.Config(\n"
                 "    loss=CrossEntropyLoss.Config(),\n"
                 "    activation_checkpoint=SelectiveAC.Config(),\n"
                 "    compile=CompileConfig(enable=True),\n"
                 "    training=TrainingConfig(max_context_length=8192,\n"
                 "      disable_cuda_graphs=True,\n"
                 "      num_tokens_per_microbatch_per_dp_rank=8192),\n"
                 "    parallelism=ParallelismConfig(tensor_parallel_degree=2))\n",
                 "llama3-8b", 8);
    CHECK(plan_to_json(toml.plan) == plan_to_json(python.plan));
    CHECK(toml.plan.tp == 2);
    CHECK(toml.plan.dp == 4);
    CHECK(toml.plan.micro_batch_size == 1);
    CHECK(toml.plan.global_batch_size == 4);
  }

  TEST_CASE("names the model by its flavor") {
    const auto model = [](const std::string& name, const std::string& flavor) {
      return model_id_of_files(read_job_files(std::vector<ConfigText>{
          {"job.toml", with_words(with_words(kTomlJob, "llama3", name), "8B", flavor)}}));
    };
    CHECK(model("llama3", "8B") == "llama3-8b");
    CHECK(model("simple_fsdp.llama3", "70B") == "llama3-70b");
    CHECK(model("qwen3", "30B-A3B") == "qwen3-30b-a3b");
    CHECK(model("gpt_oss", "20b") == "gpt-oss-20b");
    CHECK(model("llama3", "debugmodel") == "llama3 of flavor debugmodel");
  }

  TEST_CASE("stages split a local batch into microbatches") {
    const Checked checked = ask_toml("tensor_parallel_degree = 2",
                                     "pipeline_parallel_degree = 2\n"
                                     "pipeline_parallel_schedule = \"Interleaved1F1B\"\n"
                                     "pipeline_parallel_microbatch_size = 2");
    CHECK(checked.plan.pp == 2);
    refuses(checked, "batch_divisibility", 11);
    const Checked even = ask_text(
        "job.toml",
        with_words(
            with_words(kTomlJob, "tensor_parallel_degree = 2", "pipeline_parallel_degree = 2"),
            "local_batch_size = 1", "local_batch_size = 8\nglobal_batch_size = 32"),
        "llama3-8b", 8);
    CHECK_MESSAGE(!even.has(Severity::error), findings_text(even));
    CHECK(even.plan.micro_batch_size == 1);
    CHECK(even.plan.num_microbatches() == 8);
    CHECK(even.plan.zero == 2);
  }

  TEST_CASE("is held against the fields and types of release 0.2.1") {
    refuses(ask_toml("seq_len", "seq_lenn"), "unknown_option", 12);
    refuses(ask_toml("[optimizer]", "[optimiser]"), "unknown_option", 6);
    refuses(ask_toml("[optimizer]", "[trainer]"), "unknown_option", 6);
    refuses(ask_toml("tensor_parallel_degree = 2", "tensor_parallel_degree = \"2\""),
            "refused_value", 17);
    refuses(ask_toml("mode = \"selective\"", "mode = \"selectiv\""), "refused_value", 23);
    refuses(ask_toml("\"op\"", "\"ops\""), "refused_value", 24);
    refuses(ask_toml("local_batch_size = 1", "local_batch_size = 0"), "refused_value", 11);
    refuses(ask_toml("\"AdamW\"", "\"adamw\""), "refused_value", 7);
    refuses(ask_toml("\"8B\"", "\"8b\""), "unknown_flavor", 4);
    // What a fork may have.
    CHECK(find(ask_toml("\"8B\"", "\"1B\""), "unknown_flavor")->severity == Severity::warning);
    CHECK(find(ask_toml("\"AdamW\"", "\"Muon\""), "refused_value")->severity == Severity::warning);
    refuses(ask_toml("\"llama3\"", "\"lama3\""), "refused_value", 3);
    // A field of a module of one's own.
    const Checked own = ask_toml("# 8 GPUs", "[job]\ncustom_config_module = \"mine\"\nrank = 4");
    CHECK(find(own, "unknown_option")->severity == Severity::note);
  }

  TEST_CASE("is held against the job's GPUs, heads and batch") {
    refuses(ask_toml("tensor_parallel_degree = 2", "tensor_parallel_degree = 3"), "mesh_product",
            17);
    CHECK(find(ask_toml("tensor_parallel_degree = 2", "tensor_parallel_degree = 3"),
               "world_size") == nullptr);
    refuses(ask_toml("shard_degree = -1", "shard_degree = 3"), "mesh_product", 16);
    refuses(ask_toml("steps", "global_batch_size = 6\nsteps"), "batch_divisibility", 13);
    refuses(ask_toml("seq_len = 8192", "seq_len = 8191"), "sequence_parts", 12);
    refuses(ask_toml("enable = true", "enable = false\n[parallelism_]"), "unknown_option", 21);
    refuses(ask_toml("tensor_parallel_degree = 2\n\n[compile]\nenable = true",
                     "tensor_parallel_degree = 2\nenable_async_tensor_parallel = true"),
            "option_needs", 18);
  }

  TEST_CASE("of older releases are read by their names") {
    const std::string old =
        "[model]\nname = \"llama3\"\nflavor = \"8B\"\n"
        "[training]\nbatch_size = 2\nseq_len = 4096\ntensor_parallel_degree = 2\n"
        "compile = true\n[experimental]\npipeline_parallel_degree = 2\n"
        "[float8]\nenable_float8_linear = true\n"
        "[activation_checkpoint]\nmode = 'full'\n";
    const Checked checked = ask_text("job.toml", old, "llama3-8b", 8);
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
    CHECK(find(checked, "dropped_option") != nullptr);
    CHECK(checked.plan.tp == 2);
    CHECK(checked.plan.pp == 2);
    CHECK(checked.plan.compile);
    CHECK(checked.plan.precision == Precision::fp8);
    CHECK(checked.plan.recompute.kind == RecomputeKind::full);
    // No release has both names, or a table beside the names that went there.
    refuses(ask_toml("seq_len", "batch_size = 2\nseq_len"), "unknown_option", 12);
    refuses(ask_toml("seq_len", "tensor_parallel_degree = 2\nseq_len"), "unknown_option", 12);
  }

  TEST_CASE("of other programs are none") {
    const Checked checked = ask_text("pyproject.toml", "[project]\nname = \"x\"\n", "llama3-8b", 8);
    CHECK(find(checked, "unknown_file") != nullptr);
    CHECK(find(ask_toml("\"llama3\"", "\"flux\""), "unknown_file") != nullptr);
  }

  TEST_CASE("a command's words come on top of it") {
    const std::vector<ConfigText> files{
        {"run.sh",
         "torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file ./job.toml \\\n"
         "  --training.seq_len 4096 --parallelism.tensor-parallel-degree=4 --compile.no-enable\n"},
        {"job.toml", kTomlJob}};
    const Checked checked = ask_texts(files, "llama3-8b", 8);
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
    CHECK_MESSAGE(!checked.has(Severity::warning), findings_text(checked));
    CHECK(checked.plan.seq_len == 4096);
    CHECK(checked.plan.tp == 4);
    CHECK_FALSE(checked.plan.compile);
    const Checked wrong = ask_texts(
        {{"run.sh", with_words(files[0].text, "seq_len 4096", "seq_lenn 4096")}, files[1]},
        "llama3-8b", 8);
    CHECK(find(wrong, "unknown_option")->place.file == "run.sh");
  }

  TEST_CASE("says how many GPUs its degrees are") {
    const auto ranks = [](const std::string& shards) {
      const auto files = read_job_files(std::vector<ConfigText>{
          {"job.toml", with_words(kTomlJob, "shard_degree = -1", "shard_degree = " + shards)}});
      return ranks_of_titan_toml(files.parts.front().settings);
    };
    CHECK(ranks("4") == 8);
    CHECK(ranks("-1") == std::nullopt);
  }

  TEST_CASE("is corrected in place") {
    const auto fixed = [](const std::string& from, const std::string& to) {
      return fixed_text("job.toml", with_words(kTomlJob, from, to), "llama3-8b", 8);
    };
    CHECK(fixed("seq_len", "seq_lenn") == kTomlJob);
    CHECK(fixed("[optimizer]", "[optimiser]") == kTomlJob);
    CHECK(fixed("[compile]", "[qantize.linear.float8]\nemulate = false\n\n[compile]") ==
          with_words(kTomlJob, "[compile]",
                     "[quantize.linear.float8]\nemulate = false\n\n[compile]"));
    CHECK(fixed("1_000  # of them", "\"1000\"  # of them") ==
          with_words(kTomlJob, "1_000", "1000"));
    CHECK(fixed("\"selective\"", "\"selectiv\"") == kTomlJob);
    CHECK(fixed("\"AdamW\"", "\"adamw\"") == kTomlJob);
    CHECK(fixed("selective_ac_option = \"op\"", "selective_ac_option = 2") ==
          with_words(kTomlJob, "\"op\"", "\"2\""));
  }
}

}  // namespace
}  // namespace qplan
