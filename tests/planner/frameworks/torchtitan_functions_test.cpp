// Functions of torchtitan's configurations: which of a file's is the job.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

constexpr std::string_view kTwo =
    "from torchtitan.models.llama3.config_registry import llama3_8b\n\n\n"
    "def small():\n"
    "    config = llama3_8b()\n"
    "    config.parallelism.tensor_parallel_degree = 2\n"
    "    config.training.max_context_length = 4096\n"
    "    return config\n\n\n"
    "def large():\n"
    "    config = llama3_8b()\n"
    "    config.parallelism.tensor_parallel_degree = 8\n"
    "    config.training.max_context_length = 8192\n"
    "    return config\n";

Checked started(const std::string& program, const std::string& function) {
  const std::string script =
      "torchrun --nproc_per_node=8 --nnodes 1 -m torchtitan.train --module two --config " +
      function + "\n";
  return ask_texts({{"run.sh", script}, {"two.py", program}}, "llama3-8b", 8);
}

}  // namespace

TEST_SUITE("torchtitan's functions") {
  TEST_CASE("the one that --config names is the job") {
    const Checked small = started(std::string(kTwo), "small");
    CHECK(small.plan.tp == 2);
    CHECK(small.plan.seq_len == 4096);
    CHECK(find(small, "several_configurations") == nullptr);
    const Checked large = started(std::string(kTwo), "large");
    CHECK(large.plan.tp == 8);
    CHECK(large.plan.seq_len == 8192);
  }

  TEST_CASE("where none is named the first is judged, and a note says so") {
    const Checked first = ask_texts({{"two.py", std::string(kTwo)}}, "llama3-8b", 8);
    CHECK(first.plan.tp == 2);
    const Finding* const note = find(first, "several_configurations");
    REQUIRE(note != nullptr);
    CHECK(note->message.find("small") != std::string::npos);
  }

  TEST_CASE("functions that it calls say first what it changes, wherever they stand") {
    const std::string program =
        "from torchtitan.config import ParallelismConfig, TrainingConfig\n"
        "from torchtitan.models.llama3 import model_registry\n"
        "from torchtitan.trainer import Trainer\n\n\n"
        "def wide():\n"
        "    config = base()\n"
        "    config.parallelism.tensor_parallel_degree = 4\n"
        "    config.model_spec = model_registry(\"8B\")\n"
        "    return config\n\n\n"
        "def narrow():\n"
        "    return base()\n\n\n"
        "def split(ways):\n"
        "    return ParallelismConfig(tensor_parallel_degree=2, context_parallel_degree=2)\n\n\n"
        "def base():\n"
        "    return Trainer.Config(\n"
        "        model_spec=model_registry(\"debugmodel\"),\n"
        "        training=TrainingConfig(max_context_length=2048),\n"
        "        parallelism=split(2),\n"
        "    )\n";
    const Checked wide = started(program, "wide");
    CHECK(wide.plan.tp == 4);
    CHECK(wide.plan.cp == 2);
    CHECK(wide.plan.seq_len == 2048);
    CHECK(find(wide, "other_model") == nullptr);  // it has a model of its own
    const Checked narrow = started(program, "narrow");
    CHECK(narrow.plan.tp == 2);
    CHECK(narrow.plan.cp == 2);
    CHECK(find(narrow, "other_model") != nullptr);
  }

  TEST_CASE("variables of the file are values, and schedules are named in any case") {
    const std::string program =
        "from torchtitan.config import ParallelismConfig, TrainingConfig\n"
        "from torchtitan.models.llama3 import model_registry\n"
        "from torchtitan.trainer import Trainer\n\n"
        "SEQ = 8192\nTP, PP = 2, 2\n\n\n"
        "def job():\n"
        "    config = Trainer.Config(\n"
        "        model_spec=model_registry(\"8B\"),\n"
        "        training=TrainingConfig(max_context_length=SEQ),\n"
        "        parallelism=ParallelismConfig(tensor_parallel_degree=TP),\n"
        "    )\n"
        "    p = config.parallelism\n"
        "    p.pipeline_parallel_degree = PP\n"
        "    p.pipeline_parallel_schedule = \"interleaved1f1b\"\n"
        "    return config\n";
    const Checked job = started(program, "job");
    CHECK_MESSAGE(find(job, "bad_value") == nullptr, findings_text(job));
    CHECK(job.undecided.empty());
    CHECK(job.plan.seq_len == 8192);
    CHECK(job.plan.tp == 2);
    CHECK(job.plan.pp == 2);
    CHECK(job.plan.schedule == ScheduleKind::interleaved);
    // Who calls a function may say otherwise.
    const Checked open = started(with_words(program, "def job():", "def job(SEQ=4096):"), "job");
    CHECK_FALSE(open.undecided.empty());
  }

  TEST_CASE("a slip of Config is found, and corrected where it stands") {
    const std::string program =
        with_words(std::string(kTwo), "max_context_length = 4096\n",
                   "max_context_length = 4096\n"
                   "    config.checkpoint = CheckpointManager.Confiig(interval=500)\n");
    const Checked checked = started(program, "small");
    const Finding* const found = find(checked, "unknown_option");
    REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
    CHECK(found->message.find("CheckpointManager has no ") != std::string::npos);
    REQUIRE(found->fix.size() == 1);
    CHECK(program.substr(found->fix[0].begin, found->fix[0].end - found->fix[0].begin) ==
          "Confiig");
    for (const std::string name : {"CheckpointManager.Config", "Mine.Confiig", "config.copy"}) {
      CAPTURE(name);
      CHECK(find(started(with_words(program, "CheckpointManager.Confiig", name), "small"),
                 "unknown_option") == nullptr);
    }
  }

  TEST_CASE("recomputation that is assigned counts") {
    std::string program(kTwo);
    program = with_words(program, "max_context_length = 4096\n",
                         "max_context_length = 4096\n"
                         "    config.activation_checkpoint = FullAC.Config()\n");
    CHECK(started(program, "small").plan.recompute.kind == RecomputeKind::full);
    CHECK(started(program, "large").plan.recompute.kind != RecomputeKind::full);
  }

  TEST_CASE("every backend of experts' exchanges is taken") {
    const auto with = [](const std::string& backend) {
      const std::string program =
          "from torchtitan.config import ParallelismConfig, TrainingConfig\n"
          "from torchtitan.models.qwen3 import model_registry\n"
          "from torchtitan.trainer import Trainer\n\n\n"
          "def config():\n"
          "    return Trainer.Config(\n"
          "        model_spec=model_registry(\"30B-A3B\", moe_comm_backend=\"" +
          backend +
          "\"),\n"
          "        training=TrainingConfig(max_context_length=4096),\n"
          "        parallelism=ParallelismConfig(expert_parallel_degree=8),\n"
          "    )\n";
      return ask_texts({{"run.py", program}}, "qwen3-30b-a3b", 8);
    };
    for (const std::string backend : {"standard", "deepep", "hybridep", "minimal_async_ep"}) {
      CAPTURE(backend);
      CHECK(find(with(backend), "bad_value") == nullptr);
    }
    CHECK(find(with("minimal_async"), "bad_value") != nullptr);
    CHECK(with("minimal_async_ep").plan.moe_dispatcher == MoeDispatcher::alltoall);
  }

  TEST_CASE("a registry beside the file has its module's flavors, or ones of its own") {
    const auto with = [](const std::string& file, const std::string& more,
                         const std::string& flavor) {
      const std::string program =
          "from torchtitan.config import ParallelismConfig, TrainingConfig\n"
          "from torchtitan.trainer import Trainer\n"
          "from . import model_registry\n" +
          more +
          "\n\ndef config():\n"
          "    return Trainer.Config(\n"
          "        model_spec=model_registry(\"" +
          flavor +
          "\"),\n"
          "        training=TrainingConfig(max_context_length=4096),\n"
          "        parallelism=ParallelismConfig(tensor_parallel_degree=2),\n"
          "    )\n";
      const Checked checked = ask_texts({{file, program}}, "llama3-8b", 8);
      return find(checked, "unknown_flavor") != nullptr;
    };
    const std::string llama = "from .model import Llama3Model\n";
    CHECK(with("config_registry.py", llama, "8b"));
    CHECK(with("torchtitan/models/llama3/config_registry.py", "", "8b"));
    CHECK_FALSE(with("config_registry.py", llama, "8B"));
    CHECK_FALSE(with("config_registry.py", llama, "8B_mine"));
    CHECK_FALSE(with("config_registry.py", "", "8b"));  // of a module that is not known
  }
}

}  // namespace qplan
