#include "cli/job_defaults.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/page.h"
#include "models/error.h"
#include "models/json.h"
#include "models/text.h"
#include "planner/rules/feasible.h"
#include "planner/search/default_batch.h"

namespace qplan {
namespace {

// "96 GPUs", "24, 48 and 96 GPUs", "each of the 11 worlds (8 to 4096 GPUs)".
std::string worlds_text(std::span<const std::int64_t> worlds) {
  constexpr std::size_t kFew = 4;
  const auto [least, most] = std::minmax_element(worlds.begin(), worlds.end());
  if (worlds.size() > kFew) {
    return fmt::format("the {} worlds of {} to {} GPUs", worlds.size(), *least, *most);
  }
  std::string text;
  for (std::size_t i = 0; i < worlds.size(); ++i) {
    if (i > 0) text += i + 1 == worlds.size() ? " and " : ", ";
    text += fmt::format("{}", worlds[i]);
  }
  return text + (worlds.size() == 1 && worlds[0] == 1 ? " GPU" : " GPUs");
}

std::string tokens_text(std::span<const std::int64_t> worlds) {
  const std::int64_t most = *std::max_element(worlds.begin(), worlds.end());
  const std::int64_t tokens = default_tokens(most);
  const std::string text = human_count(static_cast<double>(tokens));
  if (tokens == default_tokens(1)) return text + " tokens";
  return fmt::format("{} tokens ({} a GPU)", text, tokens / most);
}

}  // namespace

JobDefaults set_defaults(ParallelPlan& job, SaidOfJob said, const ModelSpec& model,
                         std::span<const std::int64_t> worlds) {
  JobDefaults defaults;
  if (!said.length) {
    job.seq_len = default_seq_len(model);
    const bool fewer = job.seq_len < ParallelPlan{}.seq_len;
    defaults.length = fewer ? fmt::format(
                                  "{} tokens, for the model has no more positions "
                                  "(max_position_embeddings)",
                                  job.seq_len)
                            : fmt::format("{} tokens, as is usual", job.seq_len);
  }
  if (!said.batch) {
    job.global_batch_size = default_global_batch_size(worlds, job.seq_len);
    if (job.global_batch_size > kMostSequences) {
      throw Error(
          fmt::format("about {} a step are {} sequences of {}, and at most {} are simulated; give "
                      "--global-batch-size",
                      tokens_text(worlds), job.global_batch_size, job.seq_len, kMostSequences));
    }
    defaults.batch = fmt::format(
        "{} {}: of the batches near {} a step, the one that divides among most layouts of "
        "{}; --global-batch-size gives another",
        job.global_batch_size, job.global_batch_size == 1 ? "sequence" : "sequences",
        tokens_text(worlds), worlds_text(worlds));
  }
  return defaults;
}

std::string defaults_text(const JobDefaults& defaults) {
  std::string text;
  const bool usual = defaults.length.ends_with("usual");
  if (!defaults.length.empty() && !usual) {
    text += wrapped("default length: " + defaults.length, page().text, 16);
  }
  if (!defaults.batch.empty()) text += wrapped("default batch: " + defaults.batch, page().text, 15);
  return text;
}

Json defaults_json(const JobDefaults& defaults) {
  const auto sentence = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"global_batch_size", sentence(defaults.batch)}, {"seq_len", sentence(defaults.length)}};
}

}  // namespace qplan
