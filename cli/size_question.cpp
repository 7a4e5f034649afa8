#include "cli/size_question.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "models/error.h"

namespace qplan {

void add_size_options(CommandLine& line, SizeQuestion& question) {
  line.group("Question (one of them)");
  line.flag("--fewest-gpus", "the least GPUs that train the model (the default)", question.fewest);
  line.flag("--longest", "the longest sequence that fits --gpus", question.longest);
  line.flag("--largest-micro-batch", "the most sequences that a rank handles at once",
            question.micro);
  line.option(
      {"--prices", "FILE",
       "the cheapest cluster by this list: a CSV of hardware, usd_per_gpu_hour, source", ""},
      set_text(question.prices));
  line.flag("--largest-model", "the largest built-in model that fits --gpus",
            question.largest_model);
  line.option({"--tokens", "COUNT", "tokens of the run that --prices prices", "1T"},
              set_given(question.tokens, [](double& of) { return set_count(of, 1, 1e18); }));
  line.option({"--days", "DAYS", "within which that run has to end", "however long it takes"},
              set_given(question.days, [](double& of) { return set_number(of, 0.001, 1e6); }));
  add_model_options(line, question.choices);
  add_job_words(line, question.words);
  add_cluster_options(line, question.choices);
  add_constraints(line, question.space);
  line.group("Output");
  line.option({"--threads", "COUNT", "threads that search", "all cores"},
              set_whole(question.threads, 1, 1024));
  line.flag("--tried", "also every point that was searched, and how they were chosen",
            question.tried);
  line.flag("--json", "the same as JSON", question.json);
}

void settle_size_question(SizeQuestion& question) {
  const std::array asked{std::pair{question.fewest, SizeOf::gpus},
                         std::pair{question.longest, SizeOf::sequence},
                         std::pair{question.micro, SizeOf::micro_batch},
                         std::pair{!question.prices.empty(), SizeOf::cost},
                         std::pair{question.largest_model, SizeOf::model}};
  int count = 0;
  for (const auto& [wanted, of] : asked) {
    if (!wanted) continue;
    question.of = of;
    ++count;
  }
  if (count > 1) {
    throw Error(
        "size answers one question at a time: --fewest-gpus, --longest, "
        "--largest-micro-batch, --prices or --largest-model");
  }
  const bool on_cluster = question.of != SizeOf::gpus && question.of != SizeOf::cost;
  const std::string hardware = question.choices.hardware.value_or("");
  const bool mixed = names_cluster(hardware);
  if (on_cluster && !question.choices.gpus && !mixed) throw Error(kGpusMissing);
  if (mixed && question.of == SizeOf::gpus) {
    throw Error(fmt::format("size counts GPUs of one kind, not of {}; `qplan search` plans on it",
                            hardware));
  }
  if (question.of == SizeOf::cost && (question.choices.hardware || question.choices.price)) {
    throw Error("--prices has hardware and prices already; leave --hardware and --price out");
  }
  if (question.of != SizeOf::cost && (question.days || question.tokens)) {
    throw Error(fmt::format(
        "{} is of the run that --prices prices; without prices `qplan sweep --gpus 64..1024 "
        "--tokens COUNT` says the days of each size",
        question.days ? "--days" : "--tokens"));
  }
  if (question.of == SizeOf::model && question.choices.model) {
    throw Error("--largest-model looks at all built-in models; leave --model out");
  }
  if (question.of == SizeOf::sequence && question.words.contains("seq_len")) {
    throw Error("--longest looks for the length; leave --seq-len out");
  }
}

}  // namespace qplan
