#include "planner/frameworks/fix.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/planner/frameworks/faults.h"
#include "tests/planner/frameworks/fix_jobs.h"
#include "tests/planner/frameworks/fixed.h"
#include "tests/planner/frameworks/jobs.h"
#include "tests/properties/random_plans.h"

namespace qplan {
namespace {

struct Asker {
  ModelSpec model;
  Json config;
  std::int64_t gpus;
  explicit Asker(const Case& c)
      : model(load_model(c.model)), config(model_config(c.model)), gpus(c.gpus) {}
  Checked operator()(std::span<const ConfigText> files) const {
    return check(files, question_of(model, config, gpus));
  }
};

std::map<std::string, int> kinds_of(const Checked& checked) {
  std::map<std::string, int> kinds;
  for (const Finding& f : checked.findings) ++kinds[f.rule];
  return kinds;
}

std::int64_t errors_of(const Checked& checked) {
  return std::count_if(checked.findings.begin(), checked.findings.end(),
                       [](const Finding& f) { return f.severity == Severity::error; });
}

std::string all_of(const std::vector<ConfigText>& files) {
  std::string text;
  for (const ConfigText& file : files) text += "==== " + file.name + "\n" + file.text;
  return text;
}

// Remarks, which a correction keeps. One that breaks a command goes above it, behind a name.
std::multiset<std::string> remarks_of(const std::string& text) {
  std::multiset<std::string> remarks;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find("# ");
    if (at == std::string::npos) continue;
    const std::size_t colon =
        line.find(": ", at) == std::string::npos ? std::string::npos : line.rfind(": ");
    remarks.insert(line.substr(colon == std::string::npos ? at + 2 : colon + 2));
  }
  return remarks;
}

std::int64_t count(const std::string& text, std::string_view part) {
  std::int64_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// What holds of every correction, whatever was wrong.
void holds(const std::vector<ConfigText>& files, const Judge& judge, const FixedFiles& fixed) {
  CAPTURE(findings_text(fixed.before));
  CAPTURE(findings_text(fixed.checked));
  CAPTURE(all_of(files));
  CAPTURE(all_of(fixed.files));
  REQUIRE(fixed.files.size() == files.size());
  // It is read, and what is said of it is what was said to be.
  Checked again;
  REQUIRE_NOTHROW(again = judge(fixed.files));
  CHECK(findings_text(again) == findings_text(fixed.checked));
  CHECK(again.framework == fixed.before.framework);
  // Fewer findings, of no other kind; what a misspelt name hid may come up once it is spelled
  // right.
  const auto before = kinds_of(fixed.before), after = kinds_of(again);
  const auto number_of = [](const auto& kinds, const std::string& rule) {
    const auto found = kinds.find(rule);
    return found == kinds.end() ? 0 : found->second;
  };
  const bool renamed = number_of(after, "unknown_option") < number_of(before, "unknown_option");
  // A value that is read again shows what is to be known of it.
  const auto refused = [&](const auto& kinds) {
    return number_of(kinds, "refused_value") + number_of(kinds, "bad_value");
  };
  const bool valued = refused(after) < refused(before);
  for (const Finding& finding : again.findings) {
    if (renamed || (valued && finding.severity != Severity::error)) continue;
    CHECK_MESSAGE(number_of(after, finding.rule) <= number_of(before, finding.rule), finding.rule);
  }
  const bool changed = all_of(fixed.files) != all_of(files);
  CHECK(changed == !fixed.steps.empty());
  CHECK(errors_of(again) <= errors_of(fixed.before));
  if (changed && !renamed && !valued) CHECK(again.findings.size() < fixed.before.findings.size());
  // Bytes outside the corrections are as they were.
  std::vector<ConfigText> replayed = files;
  for (const std::vector<Edit>& step : fixed.steps) {
    for (ConfigText& file : replayed) file.text = with_edits(file.text, file.name, step);
  }
  CHECK(all_of(replayed) == all_of(fixed.files));
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string &was = files[i].text, &is = fixed.files[i].text;
    if (before.count("json_remark") == 0) CHECK(remarks_of(was) == remarks_of(is));
    const bool windows = count(was, "\r\n") == count(was, "\n");
    if (windows) CHECK(count(is, "\r\n") == count(is, "\n"));
    if (count(was, "\r") == 0) CHECK(count(is, "\r") == 0);
    const bool strict = Json::accept(was);
    if (strict) CHECK(Json::accept(is));
  }
  // A second time changes nothing.
  const FixedFiles twice = fix(fixed.files, judge);
  CHECK(twice.steps.empty());
  CHECK(all_of(twice.files) == all_of(fixed.files));
  // What stands has its reason.
  for (const Finding& finding : fixed.before.findings) {
    const bool stands =
        std::any_of(again.findings.begin(), again.findings.end(), [&](const Finding& f) {
          return f.rule == finding.rule && f.message == finding.message &&
                 f.place.file == finding.place.file;
        });
    if (stands) CHECK_FALSE(why_left(fixed, finding).empty());
  }
  for (const LeftFinding& left : fixed.left) CHECK_FALSE(left.why.empty());
}

std::string fixed_text(const std::string& name, const std::string& text,
                       const std::string& model = "qwen3-30b-a3b", std::int64_t gpus = 8) {
  const Case c{name, model, gpus, {{name, text}}};
  const Asker asker(c);
  const FixedFiles fixed = fix(c.files, asker);
  holds(c.files, asker, fixed);
  return fixed.files[0].text;
}

struct Figures {
  std::map<std::string, int> reasons;                  // of what is left, without their details
  std::map<std::string, std::array<int, 4>> by_fault;  // drawn, found, fixed whole, in part
  int jobs = 0, drawn = 0, unread = 0, findings = 0, corrected = 0, left = 0, restored = 0;
};

void keep(const std::string& name, int round, const std::vector<ConfigText>& files,
          const std::vector<ConfigText>& fixed) {
  const char* const folder = std::getenv("QPLAN_TEST_KEEP");
  if (folder == nullptr) return;
  namespace fs = std::filesystem;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].text == fixed[i].text) continue;
    for (const auto& [kind, text] :
         {std::pair{"before", &files[i].text}, {"after", &fixed[i].text}}) {
      const fs::path path = fs::path(folder) / kind / name / std::to_string(round);
      fs::create_directories(path);
      std::ofstream(path / fs::path(files[i].name).filename()) << *text;
    }
  }
}

void corrects(const std::vector<Case>& cases, int rounds, unsigned seed, Figures& figures) {
  Faults faults(seed);
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const Asker asker(c);
    const std::string clean = all_of(c.files);
    holds(c.files, asker, fix(c.files, asker));
    ++figures.jobs;
    for (int round = 0; round < test_rounds(rounds); ++round) {
      CAPTURE(round);
      std::vector<ConfigText> files = c.files;
      const std::size_t wanted = 1 + faults.below(3);
      std::vector<Fault> put;
      for (int tries = 0; put.size() < wanted && tries < 50; ++tries) {
        if (const auto fault = faults.put_into(files)) put.push_back(*fault);
      }
      try {
        asker(files);
      } catch (const Error&) {
        ++figures.unread;  // which check says; there is nothing to correct in it
        continue;
      }
      const FixedFiles fixed = fix(files, asker);
      holds(files, asker, fixed);
      keep(c.name, round, files, fixed.files);
      figures.drawn += static_cast<int>(put.size());
      const int before = static_cast<int>(fixed.before.findings.size());
      const int after = static_cast<int>(fixed.checked.findings.size());
      figures.findings += before;
      figures.corrected += before - after;
      figures.left += after;
      for (const LeftFinding& l : fixed.left) ++figures.reasons[l.why.substr(0, l.why.find(':'))];
      figures.restored += all_of(fixed.files) == clean && all_of(files) != clean ? 1 : 0;
      if (put.size() > 1) continue;
      auto& of_kind = figures.by_fault[std::string(kFaultNames[static_cast<std::size_t>(put[0])])];
      ++of_kind[0];
      if (before > 0) ++of_kind[1];
      if (before > 0 && after == 0) ++of_kind[2];
      if (after > 0 && after < before) ++of_kind[3];
    }
  }
}

TEST_SUITE("--fix corrects and breaks nothing") {
  TEST_CASE("whatever fault a configuration has") {
    Figures figures;
    corrects(published_cases(), 60, 1, figures);
    corrects(written_cases(), 100, 2, figures);
    corrects(emitted_cases(), 25, 3, figures);
    CHECK(figures.corrected > figures.drawn / 4);
    if (std::getenv("QPLAN_TEST_FIGURES") == nullptr) return;
    MESSAGE(figures.jobs << " jobs, " << figures.drawn << " faults, " << figures.unread
                         << " jobs unread, " << figures.findings << " findings, "
                         << figures.corrected << " corrected, " << figures.left << " left, "
                         << figures.restored << " as they were");
    for (const auto& [reason, times] : figures.reasons) MESSAGE(times << " left: " << reason);
    for (const auto& [fault, n] : figures.by_fault) {
      MESSAGE(fault << ": drawn " << n[0] << ", found " << n[1] << ", corrected whole " << n[2]
                    << ", in part " << n[3]);
    }
  }

  TEST_CASE("the articles' configurations, as a reader would write it") {
    for (const Case& c : published_cases()) {
      const Asker asker(c);
      const FixedFiles fixed = fix(c.files, asker);
      holds(c.files, asker, fixed);
    }
    const Case first = published_cases()[0];
    const std::string yaml = fix(first.files, Asker(first)).files[0].text;
    CHECK(yaml.find("  kv_channels: 128\n") != std::string::npos);
    CHECK(yaml.find("    moe_router_topk: 8\n") != std::string::npos);
    CHECK(yaml.find("type: qwen3_moe") == std::string::npos);
    CHECK(yaml.find("    moe_aux_loss_coeff: 0.001\n") != std::string::npos);
    // fp8 beside fp16 would be a contradiction.
    const Case tips = published_cases()[2];
    const Asker asker(tips);
    const FixedFiles kept = fix(tips.files, asker);
    CHECK(kept.files[1].text.find("--fp8-format hybrid") != std::string::npos);
    const auto fp8 = std::find_if(
        kept.before.findings.begin(), kept.before.findings.end(),
        [](const Finding& f) { return f.message.find("--fp8-format") != std::string::npos; });
    REQUIRE(fp8 != kept.before.findings.end());
    CHECK(why_left(kept, *fp8).find("contradiction") != std::string::npos);
  }

  TEST_CASE("each key that means nothing is taken out, and lines stay lines") {
    const auto fixed_json = [](const std::string& zero) {
      const std::string begin =
          "{\n  \"train_micro_batch_size_per_gpu\": 1,\n  \"bf16\": {\"enabled\": true},\n"
          "  \"zero_optimization\": {\n";
      const std::string text =
          fixed_text("ds_config.json", begin + zero + "  }\n}\n", "qwen3-8b", 8);
      REQUIRE(text.starts_with(begin));
      return text.substr(begin.size());
    };
    CHECK(fixed_json("    \"stage\": 2, \"stage3_max_live_parameters\": 1000000000,\n"
                     "    \"stage3_max_reuse_distance\": 1000000000,\n"
                     "    \"overlap_comm\": true,\n"
                     "    \"stage3_prefetch_bucket_size\": 50000000\n") ==
          "    \"stage\": 2,\n    \"overlap_comm\": true\n  }\n}\n");
    CHECK(fixed_json("    \"stage\": 3,\n    \"stage3_prefetch_bucket_size\": 50000000\n")
              .find("stage3_") != std::string::npos);
  }

  TEST_CASE("what an option needs is written behind it") {
    const std::string text = fixed_text(
        "train.sh",
        "MODEL_ARGS=(--num-layers 36 --hidden-size 4096)\n"
        "TRAIN_ARGS=(--optimizer-cpu-offload --bf16)\n"
        "torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAIN_ARGS[@]}\n",
        "qwen3-8b", 8);
    CHECK(text.find("--optimizer-cpu-offload --use-precision-aware-optimizer") !=
          std::string::npos);
  }

  TEST_CASE("a file of another name is meant in the folder that is written") {
    const Case job{"finetune",
                   "qwen3-8b",
                   8,
                   {{"run.sh",
                     "deepspeed --num_gpus 8 run_clm.py --model_name_or_path m --output_dir o "
                     "--deepspeed configs/ds_z3_confg.json\n"},
                    {"ds_z3_config.json",
                     "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, "
                     "\"zero_optimization\": {\"stage\": 3}}"}}};
    CHECK(
        fix(job.files, Asker(job)).files[0].text.find("--deepspeed configs/ds_z3_config.json\n") !=
        std::string::npos);
  }

  TEST_CASE("names that are a slip away, and no others") {
    const auto fixed = [](const std::string& arguments) {
      const std::string head = "pretrain_gpt.py --seed 1 ";
      const std::string text = fixed_text("train.sh", "torchrun " + head + arguments + "\n");
      return text.substr(text.find(head) + head.size());
    };
    CHECK(fixed("--train-itres 8") == "--train-iters 8\n");
    CHECK(fixed("--Train-Iters 8") == "--train-iters 8\n");
    CHECK(fixed("--save-intervall=8") == "--save-interval=8\n");
    CHECK(fixed("--lr-warmupiters 8") == "--lr-warmup-iters 8\n");
    CHECK(fixed("--train-itres eight") == "--train-itres eight\n");
    CHECK(fixed("--train-itres") == "--train-itres\n");
    CHECK(fixed("--train-itres 8 --train-iters 9") == "--train-itres 8 --train-iters 9\n");
    // Digits and other words are meant.
    CHECK(fixed("--fp6-format hybrid") == "--fp6-format hybrid\n");
    CHECK(fixed("--ls 1") == "--ls 1\n");
    // What stands beside a misspelt name is judged by what it stands for, even where that shows
    // another fault.
    const std::string job =
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --micro-batch-size 1 ";
    CHECK(fixed(job + "--tensor-model-paralel-size 4 --sequence-parallel")
              .find("--tensor-model-parallel-size 4 --sequence-parallel") != std::string::npos);
    CHECK(fixed(job + "--tensor-model-parallel-size 1 --sequence-parallel").find("--sequence") ==
          std::string::npos);
    // Nor is anything taken out beside a name that nobody knows.
    CHECK(fixed(job + "--tp-degree 4 --sequence-parallel")
              .find("--tp-degree 4 --sequence-parallel") != std::string::npos);
    // A switch for each format takes the place of a flag with its value.
    const std::string fork =
        "deepspeed pretrain_gpt.py --deepspeed --zero-stage 1 --micro-batch-size 1 ";
    CHECK(fixed_text("train.sh", fork + "--fp8-format hybrid --bf16\n", "llama3-8b") ==
          fork + "--fp8-hybrid --bf16\n");
  }

  TEST_CASE("a variable is corrected where it is set, unless others use it") {
    const std::string rest = " --hidden-size 4096 --num-attention-heads 32 --micro-batch-size 1\n";
    const std::string start = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers ";
    const auto fixed = [&](const std::string& before, const std::string& layers) {
      const std::string text = fixed_text("train.sh", before + start + layers + rest, "llama3-8b");
      return text.substr(0, text.find("torchrun"));
    };
    CHECK(fixed("N=31\n", "$N") == "N=32\n");
    CHECK(fixed("N=\"31\" # all\n", "\"${N}\"") == "N=\"32\" # all\n");
    CHECK(fixed("N=${N:-31}\n", "$N") == "N=${N:-32}\n");
    CHECK(fixed("N=31\necho $N\n", "$N") == "N=31\necho $N\n");
    CHECK(fixed("export N=31\n", "$N") == "export N=31\n");
    CHECK(fixed("N=31\nM=$N\n", "$M") == "N=31\nM=$N\n");
    CHECK(fixed("N=1\n", "3$N") == "N=1\n");
  }

  TEST_CASE("remarks that break a command go above it") {
    const std::string text =
        "# top\r\n  torchrun pretrain_gpt.py --seed 1 \\  # one\r\n  --lr=1 \\ # two: 2\r\n"
        "  --swiglu # three\r\n";
    CHECK(fixed_text("train.sh", text, "llama3-8b") ==
          "# top\r\n  # torchrun: one\r\n  # --lr: two: 2\r\n  torchrun pretrain_gpt.py --seed 1 "
          "\\\r\n  --lr=1 \\\r\n  --swiglu # three\r\n");
    // JSON has none.
    const std::string json =
        "{\n  // all\n  \"train_batch_size\": 8,  # a step\n  /* one */ \"bf16\": {\"enabled\": "
        "true},\n  \"zero_optimization\": {\"stage\": 1}\n}\n";
    CHECK(fixed_text("ds_config.json", json, "llama3-8b") ==
          "{\n  \"train_batch_size\": 8,\n   \"bf16\": {\"enabled\": true},\n  "
          "\"zero_optimization\": {\"stage\": 1}\n}\n");
  }

  TEST_CASE("keys of a file are keys of it then") {
    const std::string yaml =
        "language_model:\r\n  num_layers: 32\r\n  hidden_size: '4095'  # wide\r\n  type: x # "
        "gone\r\n"
        "  num_attention_heads: 32\r\n  \"head_size\": 128\r\n"
        "model_parallel: {tensor_model_parallel_size: 2, zero_stage: 1, "
        "pipeline_model_parallel_size: "
        "1}\r\n";
    const std::string fixed = fixed_text("config.yaml", yaml, "llama3-8b");
    CHECK(fixed ==
          "language_model:\r\n  num_layers: 32\r\n  hidden_size: '4096'  # wide\r\n  # gone\r\n"
          "  num_attention_heads: 32\r\n  \"kv_channels\": 128\r\n"
          "model_parallel: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1}\r\n");
    // A value that an anchor shares is nobody's own.
    const std::string shared =
        "a: &n 31\nlanguage_model:\n  num_layers: *n\n  hidden_size: &h 4095\n  ffn_hidden_size: "
        "*h\n";
    CHECK(fixed_text("config.yaml", shared, "llama3-8b").find("&n 31") != std::string::npos);
    CHECK(fixed_text("config.yaml", shared, "llama3-8b").find("&h 4095") != std::string::npos);
  }

  TEST_CASE("Python gets the names that its corrections use") {
    const std::string call =
        "model = FSDP(model, auto_wrap_policy=p, sharding_strategy=\"SHARD_GRAD_OP\")\n";
    const std::string import =
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP";
    const auto fixed = [](const std::string& text) {
      return fixed_text("train.py", text, "llama3-8b");
    };
    const std::string corrected = "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n";
    CHECK(fixed(import + "\n" + call) ==
          import +
              "\nfrom torch.distributed.fsdp import ShardingStrategy\nmodel = FSDP(model, "
              "auto_wrap_policy=p, " +
              corrected);
    CHECK(fixed(import + ", ShardingStrategy\n" + call) ==
          import + ", ShardingStrategy\nmodel = FSDP(model, auto_wrap_policy=p, " + corrected);
    const std::string dotted =
        "import torch.distributed.fsdp as fsdp\nmodel = "
        "fsdp.FullyShardedDataParallel(model, sharding_strategy='";
    CHECK(fixed(dotted + "FULL_SHARD')\n").find("=fsdp.ShardingStrategy.FULL_SHARD)\n") !=
          std::string::npos);
    CHECK(fixed(call) == call);  // nothing says where FSDP comes from
    const std::string other =
        import + "\nmodel = FSDP(model, auto_wrap_policy=p, sharding_strategy=\"most\")\n";
    CHECK(fixed(other) == other);
    CHECK(fixed("import torch\nimport torch.distributed as dist\n"
                "dist.init_process_group(rank=local_rank)\n" +
                import + "\nmodel = FSDP(model, auto_wrap_policy=p)\n") ==
          "import os\nimport torch\nimport torch.distributed as dist\n"
          "dist.init_process_group(rank=int(os.environ[\"RANK\"]))\n" +
              import + "\nmodel = FSDP(model, auto_wrap_policy=p)\n");
  }

  TEST_CASE("what would not be better is left, and why is said") {
    // The judge refuses what it does not like, whatever check says.
    const Case c{"list",
                 "llama3-8b",
                 8,
                 {{"args.txt", "--num-layers 31 --hidden-size 4096 --num-attention-heads 32\n"}}};
    const Asker asker(c);
    const Judge judge = [&](std::span<const ConfigText> files) {
      Checked checked = asker(files);
      if (files[0].text.find("--swiglu") != std::string::npos) {
        checked.findings.push_back({Severity::note, "no_swiglu", {"args.txt", 1}, "none", "", ""});
      }
      if (files[0].text.find("rope") != std::string::npos) throw Error("rope is not read");
      return checked;
    };
    const FixedFiles fixed = fix(c.files, judge);
    holds(c.files, judge, fixed);
    CHECK(fixed.files[0].text.find("--num-layers 32") != std::string::npos);
    CHECK(fixed.files[0].text.find("--swiglu") == std::string::npos);
    CHECK(fixed.files[0].text.find("rope") == std::string::npos);
    std::string why;
    for (const LeftFinding& left : fixed.left) why += left.why + "\n";
    CHECK(why.find("[no_swiglu]") != std::string::npos);
    CHECK(why.find("could not be read any more: rope is not read") != std::string::npos);
  }
}

}  // namespace
}  // namespace qplan
