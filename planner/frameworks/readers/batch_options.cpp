#include "planner/frameworks/readers/batch_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "models/edit_distance.h"

namespace qplan {
namespace {

// Slurm 24.11, sbatch(1); it takes a beginning that no other has for the whole.
constexpr auto kBatchOptions = std::to_array<std::string_view>({
    "--account",
    "--acctg-freq",
    "--array",
    "--batch",
    "--bb",
    "--bbf",
    "--begin",
    "--chdir",
    "--cluster-constraint",
    "--clusters",
    "--comment",
    "--constraint",
    "--container",
    "--container-id",
    "--contiguous",
    "--core-spec",
    "--cores-per-socket",
    "--cpu-freq",
    "--cpus-per-gpu",
    "--cpus-per-task",
    "--deadline",
    "--delay-boot",
    "--dependency",
    "--distribution",
    "--error",
    "--exclude",
    "--exclusive",
    "--export",
    "--export-file",
    "--extra-node-info",
    "--get-user-env",
    "--gid",
    "--gpu-bind",
    "--gpu-freq",
    "--gpus",
    "--gpus-per-node",
    "--gpus-per-socket",
    "--gpus-per-task",
    "--gres",
    "--gres-flags",
    "--help",
    "--hint",
    "--hold",
    "--ignore-pbs",
    "--input",
    "--job-name",
    "--kill-on-invalid-dep",
    "--licenses",
    "--mail-type",
    "--mail-user",
    "--mcs-label",
    "--mem",
    "--mem-bind",
    "--mem-per-cpu",
    "--mem-per-gpu",
    "--mincpus",
    "--network",
    "--nice",
    "--no-kill",
    "--no-requeue",
    "--nodefile",
    "--nodelist",
    "--nodes",
    "--ntasks",
    "--ntasks-per-core",
    "--ntasks-per-gpu",
    "--ntasks-per-node",
    "--ntasks-per-socket",
    "--open-mode",
    "--output",
    "--overcommit",
    "--oversubscribe",
    "--parsable",
    "--partition",
    "--power",
    "--prefer",
    "--priority",
    "--profile",
    "--propagate",
    "--qos",
    "--quiet",
    "--reboot",
    "--requeue",
    "--reservation",
    "--segment",
    "--signal",
    "--sockets-per-node",
    "--spread-job",
    "--stepmgr",
    "--switches",
    "--test-only",
    "--thread-spec",
    "--threads-per-core",
    "--time",
    "--time-min",
    "--tmp",
    "--tres-bind",
    "--tres-per-task",
    "--uid",
    "--usage",
    "--use-min-nodes",
    "--verbose",
    "--version",
    "--wait",
    "--wait-all-nodes",
    "--wckey",
    "--wrap",
});

bool is_option_of_batch(std::string_view name) {
  return std::any_of(kBatchOptions.begin(), kBatchOptions.end(),
                     [&](std::string_view known) { return known.starts_with(name); });
}

// Empty: none is one letter away, or several are.
std::string_view meant_option(std::string_view name) {
  std::string_view found;
  for (const std::string_view known : kBatchOptions) {
    if (edit_distance(name, known) > 1) continue;
    if (!found.empty()) return {};
    found = known;
  }
  return found;
}

}  // namespace

std::vector<Finding> misspelt_directives(std::span<const ShellWord> directives) {
  std::vector<Finding> findings;
  int remark = 0;  // the line whose words are a remark from here on
  for (const ShellWord& word : directives) {
    if (word.text.starts_with('#')) remark = word.place.line;
    if (word.place.line == remark || !word.text.starts_with("--") || word.text.size() < 5) continue;
    const std::string name = word.text.substr(0, word.text.find('='));
    const std::string_view meant = meant_option(name);
    if (is_option_of_batch(name) || meant.empty()) continue;
    Finding finding{Severity::error,
                    "unknown_option",
                    word.place,
                    fmt::format("{}: sbatch has no such option and refuses the script", name),
                    fmt::format("did you mean {}?", meant),
                    "launcher: Slurm, sbatch(1)",
                    {}};
    if (word.span.end - word.span.begin == word.text.size()) {
      finding.fix = Correction{
          {word.place.file, word.span.begin, word.span.begin + name.size(), std::string(meant)}};
      finding.fix.renames = true;
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace qplan
