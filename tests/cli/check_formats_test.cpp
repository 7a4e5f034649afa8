#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "cli/check_files.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

// Two errors of a key each, on lines 2 and 3, and what is no configuration.
const std::string kBad =
    "{\n  \"train_batch_size\": 30,\n  \"train_micro_batch_sizes_per_gpu\": 1,\n"
    "  \"zero_optimization\": {\"stage\": 2}\n}\n";

struct Repository {
  TemporaryFolder folder;
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder.file(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    write_file_atomically(path, text);
    return path;
  }
};

Ran check(std::vector<std::string> args) {
  args.insert(args.begin(), {"check", "--model", "tiny", "--no-best"});
  return run(args);
}

}  // namespace

TEST_CASE("SARIF has a result for each finding, at its line, under a rule that is described") {
  const Repository repository;
  const std::string file = repository.write("ds_config.json", kBad);
  const Json findings = check({file, "--gpus", "8", "--json"}).json()["findings"];
  const Ran ran = check({file, "--gpus", "8", "--format", "sarif"});
  CHECK(ran.code == 1);
  const Json log = ran.json();
  CHECK(log["version"] == "2.1.0");
  REQUIRE(log["runs"].size() == 1);
  const Json& driver = log["runs"][0]["tool"]["driver"];
  const Json& results = log["runs"][0]["results"];
  REQUIRE(results.size() == findings.size());
  std::set<std::string> fingerprints;
  bool has_line = false;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Json &result = results[i], &finding = findings[i];
    CAPTURE(result.dump());
    CHECK(result["ruleId"] == finding["rule"]);
    CHECK(result["level"] == finding["severity"]);
    CHECK(result["message"]["text"].get<std::string>().starts_with(
        finding["message"].get<std::string>()));
    const Json& rule = driver["rules"][result["ruleIndex"].get<std::size_t>()];
    CHECK(rule["id"] == result["ruleId"]);
    if (!finding["source"].is_null()) {
      const auto help = rule["help"]["text"].get<std::string>();
      CHECK(help.find(finding["source"].get<std::string>()) != std::string::npos);
    }
    const Json& physical = result["locations"][0]["physicalLocation"];
    const auto uri = physical["artifactLocation"]["uri"].get<std::string>();
    CHECK(uri.ends_with("/ds_config.json"));
    CHECK(physical.contains("region") == !finding["line"].is_null());
    if (!finding["line"].is_null()) {
      has_line = true;
      CHECK(physical["region"]["startLine"] == finding["line"]);
    }
    fingerprints.insert(result["partialFingerprints"]["qplanFinding/v1"].get<std::string>());
  }
  CHECK(has_line);
  CHECK(fingerprints.size() == results.size());
}

TEST_CASE("fingerprints of SARIF stay while lines move") {
  const Repository repository;
  const std::string file = repository.write("ds_config.json", kBad);
  const auto fingerprints = [&] {
    std::set<std::string> all;
    const Json log = check({file, "--gpus", "8", "--format", "sarif"}).json();
    for (const Json& result : log["runs"][0]["results"]) {
      all.insert(result["partialFingerprints"].dump());
    }
    return all;
  };
  const auto before = fingerprints();
  repository.write("ds_config.json", "{\n\n\n" + kBad.substr(1));
  CHECK(fingerprints() == before);
  std::string other = kBad;
  repository.write("ds_config.json", other.replace(other.find("gpu\": 1"), 7, "gpu\": 2"));
  CHECK(fingerprints() != before);
}

TEST_CASE("a path below the working folder is relative to it in SARIF, and percent-encoded") {
  const Repository repository;
  repository.write("a b/ds_config.json", kBad);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(repository.folder.file("."));
  const Ran ran = check({"./a b/ds_config.json", "--gpus", "8", "--format", "sarif"});
  std::filesystem::current_path(before);
  const Json artifact =
      ran.json()["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"];
  CHECK(artifact["uri"] == "a%20b/ds_config.json");
  CHECK(artifact["uriBaseId"] == "%SRCROOT%");
}

TEST_CASE("a correction in SARIF is the edit that --fix makes") {
  const Repository repository;
  const std::string file = repository.write("ds_config.json", kBad);
  const Json log = check({file, "--gpus", "8", "--format", "sarif"}).json();
  int fixes = 0;
  for (const Json& result : log["runs"][0]["results"]) {
    if (!result.contains("fixes")) continue;
    ++fixes;
    const Json& replacement = result["fixes"][0]["artifactChanges"][0]["replacements"][0];
    const auto begin = replacement["deletedRegion"]["byteOffset"].get<std::size_t>();
    const auto size = replacement["deletedRegion"]["byteLength"].get<std::size_t>();
    CHECK(kBad.substr(begin, size).find("train_micro_batch_sizes_per_gpu") != std::string::npos);
    CHECK(replacement["insertedContent"]["text"].get<std::string>().find(
              "train_micro_batch_size_per_gpu") != std::string::npos);
  }
  CHECK(fixes == 1);
}

TEST_CASE("GitHub's annotations name file and line, and keep to one line each") {
  const Repository repository;
  const std::string file = repository.write("c,d/ds_config.json", kBad);
  const Json findings = check({file, "--gpus", "8", "--json"}).json()["findings"];
  const Ran ran = check({file, "--gpus", "8", "--format", "github"});
  CHECK(ran.code == 1);
  std::istringstream lines(ran.out);
  std::size_t commands = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("::")) continue;
    const Json& finding = findings[commands++];
    CHECK(line.starts_with("::" +
                           std::string(finding["severity"] == "note"    ? "notice"
                                       : finding["severity"] == "error" ? "error"
                                                                        : "warning") +
                           " file="));
    CHECK(line.find("c%2Cd/ds_config.json") != std::string::npos);
    CHECK(line.find(",title=" + finding["rule"].get<std::string>() + "::") != std::string::npos);
    if (!finding["line"].is_null()) {
      CHECK(line.find(",line=" + finding["line"].dump() + ",") != std::string::npos);
    }
  }
  CHECK(commands == findings.size());
}

TEST_CASE("SARIF in a file stands beside any other format") {
  const Repository repository;
  const std::string file = repository.write("ds_config.json", kBad);
  const std::string sarif = repository.folder.file("out.sarif");
  const Ran both = check({file, "--gpus", "8", "--json", "--sarif", sarif});
  CHECK(both.json()["errors"].get<int>() > 0);
  CHECK(read_text_file(sarif) == check({file, "--gpus", "8", "--format", "sarif"}).out);
}

TEST_CASE("files that no framework reads are left out without a word, and are no error") {
  const Repository repository;
  const std::string yaml = repository.write("values.yaml", "replicas: 3\nimage: nginx\n");
  const std::string broken = repository.write("chart.yaml", "a: {{ .Values.x }}\n");
  const std::string script = repository.write("install.sh", "#!/bin/sh\nset -e\napt-get update\n");
  const std::string prose = repository.write("notes.md", "# Notes\n");
  const std::string bytes = repository.write("data.json", std::string("\0\1\2", 3));
  CHECK(check({yaml, "--gpus", "8"}).code == 1);  // named as a configuration, it is none
  const Ran quiet = check({yaml, broken, script, prose, bytes, "--skip-unknown", "--each"});
  CHECK(quiet.code == 0);
  CHECK(quiet.out.empty());
  CHECK(quiet.err.empty());
  const Json said =
      check({yaml, broken, script, prose, bytes, "--skip-unknown", "--each", "--json"}).json();
  CHECK(said["jobs"].empty());
  REQUIRE(said["skipped"].size() == 5);
  for (const Json& skipped : said["skipped"])
    CHECK_FALSE(skipped["reason"].get<std::string>().empty());
  const std::string bad = repository.write("ds_config.json", kBad);
  const Ran mixed = check({yaml, bad, prose, "--skip-unknown", "--each", "--gpus", "8"});
  CHECK(mixed.code == 1);
  CHECK(mixed.says(bad + ":3"));
  CHECK_FALSE(mixed.says("values.yaml"));
  CHECK(check({repository.folder.file("nosuch.json"), "--skip-unknown", "--gpus", "8"}).code == 2);
}

TEST_CASE("each file is a job of its own, but for those that another one reads") {
  const Repository repository;
  const std::string good =
      "{\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 2, "
      "\"gradient_accumulation_steps\": 1, \"zero_optimization\": {\"stage\": 2}, "
      "\"bf16\": {\"enabled\": true}}\n";
  const std::string config = repository.write("a/ds_config.json", good);
  const std::string script = repository.write(
      "a/train.sh", "deepspeed --num_nodes 1 --num_gpus 8 train.py --deepspeed ds_config.json\n");
  const std::string other = repository.write("b/ds_config.json", kBad);
  const Json said = check({config, script, other, "--each", "--gpus", "8", "--json"}).json();
  REQUIRE(said["jobs"].size() == 2);
  CHECK(said["jobs"][0]["files"] == Json({script, config}));
  CHECK(said["jobs"][1]["files"] == Json({other}));
  CHECK(said["jobs"][0]["answer"]["errors"] == 0);
  CHECK(said["errors"] == said["jobs"][1]["answer"]["errors"]);
  CHECK(said["jobs"][1]["answer"]["findings"] ==
        check({other, "--gpus", "8", "--json"}).json()["findings"]);
}

TEST_CASE("GPUs that nobody gives are the launcher's, or a remark's, or the job is not judged") {
  const Repository repository;
  const std::string launch =
      "torchrun --nnodes 2 --nproc-per-node 4 pretrain_gpt.py --num-layers 2 --hidden-size 64 "
      "--num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 "
      "--global-batch-size 8 --tensor-model-parallel-size 2\n";
  const std::string script = repository.write("train.sh", launch);
  CHECK(
      run({"check", script, "--model", "tiny", "--no-best", "--json"}).json()["this_job"]["gpus"] ==
      8);
  const std::string config = repository.write("ds_config.json", kBad);
  const Ran unsaid = run({"check", config, "--each", "--skip-unknown", "--no-best", "--json"});
  CHECK(unsaid.code == 0);
  const Json finding = unsaid.json()["jobs"][0]["answer"]["findings"][0];
  CHECK(finding["rule"] == "not_judged");
  CHECK(finding["severity"] == "note");
  CHECK(run({"check", config, "--no-best"}).code == 2);

  const std::string remarked =
      repository.write("remarked.sh", "#!/bin/bash\n# qplan: --model tiny --gpus 16\n" + launch);
  const Json job = run({"check", remarked, "--no-best", "--json"}).json();
  CHECK(job["this_job"]["gpus"] == 16);
  const Json& found = job["findings"];  // 8 processes are started
  CHECK(std::any_of(found.begin(), found.end(),
                    [](const Json& f) { return f["rule"] == "launched_world"; }));
  const std::string wrong = repository.write("wrong.sh", "# qplan: --gpsu 16\n" + launch);
  const Ran slip = run({"check", wrong, "--no-best"});
  CHECK(slip.code == 2);
  CHECK(slip.says("wrong.sh:1: check has no option '--gpsu'"));
}

TEST_CASE("a remark is one only where it is written as such") {
  const auto words = [](const std::string& text) { return job_remark({{"a.sh", text}}).words; };
  CHECK(words("// qplan: --gpus 8\n") == std::vector<std::string>{"--gpus", "8"});
  CHECK(words("x: 1  # qplan: --gpus 8\n") == std::vector<std::string>{"--gpus", "8"});
  CHECK(words("echo qplan: --gpus 8\n").empty());
  CHECK(words("# see qplan: --gpus 8\n").empty());
  CHECK(words("# qplan:\n").empty());
}
