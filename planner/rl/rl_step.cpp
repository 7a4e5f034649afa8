#include "planner/rl/rl_step.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "models/error.h"

namespace qplan {
namespace {

constexpr double kMost = 1 << 30;  // of any count here

// Members of an object by their type, each of which may be missing.
class Members {
 public:
  Members(const Json& object, std::string_view path) : object_(object), path_(path) {
    if (!object.is_object()) throw Error(fmt::format("{} must be an object", path));
  }

  template <class Whole>
  void whole(std::string_view key, Whole& to, double low = 0) const {
    double number = static_cast<double>(to);
    read(key, number, low);
    to = static_cast<Whole>(number);
    if (static_cast<double>(to) != number) fail(key, "a whole number");
  }
  void number(std::string_view key, double& to, double low) const { read(key, to, low); }
  void truth(std::string_view key, bool& to) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return;
    if (!found->is_boolean()) fail(key, "true or false");
    to = found->get<bool>();
  }
  void wholes(std::string_view key, std::vector<std::int64_t>& to, std::int64_t low) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return;
    if (!found->is_array()) fail(key, "a list of whole numbers");
    for (const Json& one : *found) {
      const bool whole = one.is_number_integer();
      if (!whole || one.get<double>() < static_cast<double>(low) || one.get<double>() > kMost) {
        fail(key, fmt::format("a list of whole numbers from {} to {}", low, kMost));
      }
      to.push_back(one.get<std::int64_t>());
    }
  }
  [[nodiscard]] std::string text(std::string_view key) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return "";
    if (!found->is_string()) fail(key, "a text");
    return found->get<std::string>();
  }

 private:
  [[noreturn]] void fail(std::string_view key, std::string_view what) const {
    throw Error(fmt::format("{}.{} must be {}", path_, key, what));
  }
  void read(std::string_view key, double& to, double low) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return;
    if (!found->is_number()) fail(key, "a number");
    const auto value = found->get<double>();
    if (!(value >= low && value <= kMost)) fail(key, fmt::format("from {} to {}", low, kMost));
    to = value;
  }

  const Json& object_;
  std::string_view path_;
};

}  // namespace

Json rl_step_json(const RlStep& step) {
  const RlJob& job = step.job;
  Json rollout = nullptr;
  if (job.generates()) {
    rollout = {{"layout", to_string(step.layout)}, {"gpus", job.rollout_gpus}};
  }
  return {{"algorithm", to_word(job.algorithm)},
          {"prompts", job.prompts},
          {"samples", job.samples},
          {"prompt_len", job.prompt_len},
          {"response_len", job.response.mean},
          {"max_response_len", job.response.max},
          {"response_spread", job.response.spread},
          {"train_batch", job.batch()},
          {"epochs", job.epochs},
          {"reference", job.reference},
          {"old_logprobs", job.old_logprobs},
          {"packed", job.packed},
          {"balanced", job.balanced},
          {"offload_trainer", job.offload_trainer},
          {"sleep_level", job.sleep_level},
          {"staleness", job.staleness},
          {"rollout", std::move(rollout)}};
}

Json rl_file_json(const RlStep& step, Json said) {
  if (!step.job.response.stated.empty()) said["response_lengths"] = step.job.response.stated;
  return said;
}

RlStep rl_step_from_json(const Json& object, std::string_view path) {
  const Members members(object, path);
  RlStep step;
  RlJob& job = step.job;
  job.algorithm = from_word<Algorithm>(members.text("algorithm"));
  members.whole("prompts", job.prompts, 1);
  members.whole("samples", job.samples, 1);
  members.whole("prompt_len", job.prompt_len);
  members.number("response_len", job.response.mean, 1);
  members.whole("max_response_len", job.response.max, 1);
  members.number("response_spread", job.response.spread, 0);
  members.wholes("response_lengths", job.response.stated, 1);
  members.whole("train_batch", job.train_batch);
  members.whole("epochs", job.epochs, 1);
  members.truth("reference", job.reference);
  members.truth("old_logprobs", job.old_logprobs);
  members.truth("packed", job.packed);
  members.truth("balanced", job.balanced);
  members.truth("offload_trainer", job.offload_trainer);
  members.whole("sleep_level", job.sleep_level);
  members.whole("staleness", job.staleness);
  const auto rollout = object.find("rollout");
  if (rollout == object.end() || rollout->is_null()) return step;
  const std::string inner = fmt::format("{}.rollout", path);
  const Members engine(*rollout, inner);
  step.layout = parse_rollout_layout(engine.text("layout"));
  engine.whole("gpus", job.rollout_gpus);  // 0: the same as train
  return step;
}

}  // namespace qplan
