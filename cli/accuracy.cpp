// `qplan accuracy`: predicts measured runs and says how far off it is.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <ostream>

#include "cli/accuracy_json.h"
#include "cli/accuracy_text.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report.h"
#include "models/error.h"
#include "planner/runs/golden_runs.h"
#include "planner/runs/run_columns.h"

namespace qplan {
namespace {

struct AccuracyWords : AccuracyQuestion {
  std::optional<std::int64_t> gpus;  // of golden values
  bool json = false, markdown = false, wants_template = false;
  std::optional<double> max_error;
  std::int64_t threads = 0;
  std::string output;
};

SetOption set_by(std::vector<std::string>& by) {
  std::vector<std::string> known;
  for (const GroupKey& key : group_keys()) known.emplace_back(key.name);
  const auto set = [&by, known](const std::string& option, const std::string& text) {
    by = split_list(text);
    for (const std::string& word : by) {
      if (std::find(known.begin(), known.end(), word) != known.end()) continue;
      unknown_word(option + " word", word, known);
    }
  };
  return {{.known = known}, set};
}

SetOption set_grades(std::vector<std::string>& grades) {
  const std::vector<std::string> known{"A", "B", "C"};
  const auto set = [&grades, known](const std::string& option, const std::string& text) {
    grades.clear();
    for (std::string grade : split_list(text)) {
      for (char& c : grade) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      if (std::find(known.begin(), known.end(), grade) == known.end()) {
        unknown_word(option + " word", grade, known);
      }
      grades.push_back(std::move(grade));
    }
  };
  return {{.known = known}, set};
}

// Of a CSV file, of a file of golden values, or of those in a folder.
std::vector<MeasuredRun> runs_in(const std::string& name, const std::optional<std::int64_t>& gpus) {
  std::vector<std::string> golden;
  if (std::filesystem::is_directory(name)) {
    golden = golden_files_below(name);
    if (golden.empty()) {
      throw Error(fmt::format("{} holds no golden_values_*.json, nor do folders below it", name));
    }
  } else if (name.ends_with(".json")) {
    golden = {name};
  } else {
    return read_measured_runs(read_csv_file(name));
  }
  std::vector<MeasuredRun> runs;
  for (const std::string& file : golden) runs.push_back(read_golden_run(file, gpus));
  return runs;
}

std::vector<MeasuredRun> read_runs(AccuracyWords& question) {
  std::vector<MeasuredRun> runs;
  for (const std::string& file : question.files) {
    for (MeasuredRun& run : runs_in(file, question.gpus)) {
      const auto& grades = question.grades;
      const bool wanted = std::find(grades.begin(), grades.end(), run.grade) != grades.end();
      if (wanted) {
        runs.push_back(std::move(run));
      } else {
        ++question.left_out;
      }
    }
  }
  return runs;
}

std::vector<JudgedRun> judge_all(std::vector<MeasuredRun> runs, int threads) {
  std::vector<RunPrediction> predictions = predict_runs(runs, threads);
  std::vector<JudgedRun> judged;
  judged.reserve(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    judged.push_back(judge(std::move(runs[i]), std::move(predictions[i])));
  }
  return judged;
}

void add_options(CommandLine& line, AccuracyWords& question) {
  line.positionals("RUNS",
                   "CSV files of measured runs, or Megatron-LM's golden_values_*.json, each beside "
                   "its model_config.yaml, or folders of those",
                   question.files);
  line.group("Runs");
  line.option({"--gpus", "COUNT", "GPUs of golden values whose recipe is not there", ""},
              set_given(question.gpus, set_whole, std::int64_t{1}, std::int64_t{1} << 20));
  line.option({"--by", "WORD,...", "what the groups share: recipe, hardware, model, source",
               "recipe,hardware"},
              set_by(question.by));
  line.option(
      {"--grade", "GRADE,...", "which rows count: A fully stated, B nearly, C do not judge", "A,B"},
      set_grades(question.grades));
  line.option(
      {"--max-error", "RATIO", "exit 1 above this median error of step time (0.1: 10%)", ""},
      set_given(question.max_error, set_number, 0.0, 1e6));
  line.option({"--threads", "COUNT", "threads that predict", "all cores"},
              set_whole(question.threads, 1, 1024));
  line.flag("--template", "print a file of runs to begin with: header and an example",
            question.wants_template);
  line.group("Output");
  line.flag("--rows", "every run too", question.rows);
  line.flag("--json", "the same as JSON, with every run", question.json);
  line.flag("--markdown", "the tables as Markdown", question.markdown);
  line.option({"-o,--output", "FILE", "file for the answer instead of the terminal", ""},
              set_text(question.output));
}

void answer(const std::string& text, const AccuracyWords& question, const Console& console) {
  if (question.output.empty()) {
    console.out << text;
  } else {
    write_output(question.output, text, console);
  }
}

}  // namespace

Exit run_accuracy(const Args& args, const Console& console) {
  AccuracyWords question;
  question.by = {"recipe", "hardware"};
  question.grades = {"A", "B"};
  CommandLine line("accuracy", "Predicts measured training runs and reports the errors.",
                   "qplan accuracy runs.csv --by recipe,source --max-error 0.1");
  add_options(line, question);
  if (!line.parse(args, console.out)) return Exit::done;
  if (question.wants_template) {
    if (!question.files.empty()) throw Error("--template takes no files of measured runs");
    answer(run_template(), question, console);
    return Exit::done;
  }
  if (question.files.empty()) {
    throw Error(
        "accuracy needs at least one CSV file of measured runs; --template prints one to begin "
        "with");
  }
  if (question.json && question.markdown) throw Error("--json and --markdown exclude each other");

  const std::vector<JudgedRun> runs =
      judge_all(read_runs(question), static_cast<int>(question.threads));
  const Accuracy accuracy = summarise(runs, question);
  answer(question.json       ? answer_text("accuracy", accuracy_json(runs, accuracy, question))
         : question.markdown ? accuracy_markdown(accuracy, question)
                             : accuracy_text(runs, accuracy, question),
         question, console);
  // No timed row is no proof.
  const std::optional<double> median = accuracy.all.step_time.median_abs;
  const bool short_of = question.max_error && !(median && *median <= *question.max_error);
  return short_of ? Exit::nothing_fits : Exit::done;
}

}  // namespace qplan
