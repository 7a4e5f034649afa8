#pragma once
// What a training log says of its steps, whoever wrote it: one line at a time, so that a live log
// is read as one that ended.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/units.h"
#include "models/words.h"

namespace qplan {

enum class LogKind : std::uint8_t {
  megatron,
  megatron_bridge,
  nemo,
  torchtitan,
  deepspeed,
  trainer,
  mllog
};

template <>
struct Words<LogKind> {
  static constexpr std::string_view what = "log";
  static constexpr auto table = std::to_array<std::pair<LogKind, std::string_view>>(
      {{LogKind::megatron, "megatron"},
       {LogKind::megatron_bridge, "megatron-bridge"},
       {LogKind::nemo, "nemo"},
       {LogKind::torchtitan, "torchtitan"},
       {LogKind::deepspeed, "deepspeed"},
       {LogKind::trainer, "trainer"},
       {LogKind::mllog, "mllog"}});
};

// What a line says; what it does not is absent.
struct LogLine {
  LogKind kind = LogKind::megatron;
  std::optional<std::int64_t> step{};
  std::optional<double> step_s{};         // one of these three says how fast it is
  std::optional<double> samples_per_s{};  // of the whole job
  std::optional<double> tokens_per_s_per_gpu{};
  std::optional<Bytes> allocated{}, reserved{};  // peaks of the GPU that logs
  // Of the run: beside a step, or once, before the first.
  std::optional<std::int64_t> global_batch_size{}, seq_len{}, gpus{};
  bool of_run = false;  // the speed is the mean of all steps, said at the end
  [[nodiscard]] bool says_speed() const { return step_s || samples_per_s || tokens_per_s_per_gpu; }
};

// Nothing: the line speaks of no step and of no run's sizes. A terminal's sequences are ignored.
std::optional<LogLine> read_log_line(std::string_view line);

// A whole log, line by line; a JSON file of a Trainer (trainer_state.json, all_results.json) is
// one.
std::vector<LogLine> read_log(std::string_view text);

// Seconds a step, where the line says how fast it is.
std::optional<double> step_seconds(const LogLine& line, std::int64_t global_batch_size,
                                   std::int64_t seq_len, std::int64_t gpus);

// A step that no line before told of.
struct LoggedStep {
  std::int64_t number = 0;
  bool restarts = false;  // the run has gone back to a checkpoint, or begun anew
  bool replaces = false;  // what was told so far, without numbers, were these same steps
};

// One step is one step, however many lines tell of it: those of several ranks, or of two loggers
// (Megatron-Bridge's rank 0 says "Step Time" and its last rank "elapsed time per iteration",
// Megatron-DeepSpeed has Megatron's line and DeepSpeed's timer). Of loggers the first one counts
// that numbers its steps, or the first where none does.
class LoggedSteps {
 public:
  // Nothing: the line tells of no step, or of one that was told.
  std::optional<LoggedStep> read(const LogLine& line);

 private:
  struct Logger {
    LogKind kind;
    int measure;  // which of LogLine's three
    bool numbers;
    bool operator==(const Logger&) const = default;
  };
  std::optional<Logger> logger_;
  std::int64_t told_ = 0;            // of a logger without numbers
  std::deque<std::int64_t> latest_;  // numbers, ascending
};

// The mean of a run, of one line or of several: a Trainer's JSON has a key on each.
class LoggedMean {
 public:
  void read(const LogLine& line);
  // Nothing: no line said it, or it is of another batch.
  [[nodiscard]] std::optional<double> seconds(std::int64_t global_batch_size) const;

 private:
  std::optional<LogLine> said_;
};

// The sizes of a run's steps, as the log has said them so far.
class LoggedSizes {
 public:
  void read(const LogLine& line);
  // What is another plan's: "a global batch of 128, and the plan has 64"; empty: nothing.
  [[nodiscard]] std::string other_than(std::int64_t global_batch_size, std::int64_t seq_len,
                                       std::int64_t gpus) const;

 private:
  std::optional<std::int64_t> batch_{}, length_{}, gpus_{};
};

// The median of those after warm-up, which is a tenth of the steps and two at least, where more
// than four were logged; none: no line says how fast a step is.
std::optional<double> typical_step_seconds(std::vector<double> seconds);

}  // namespace qplan
