#include "planner/runs/run_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "models/error.h"
#include "models/json.h"
#include "models/text.h"

namespace qplan {
namespace {

// Without control sequences of a terminal (ECMA-48, 5.4): "\x1b[32m" of colours, "\x1b[K" of
// `grep --color`. One ends at the first byte from '@' to '~'.
std::string without_colours(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\x1b') {
      text += line[i];
    } else if (++i < line.size() && line[i] == '[') {
      ++i;
      while (i < line.size() && (line[i] < '@' || line[i] > '~')) ++i;
    }
  }
  return text;
}

// The number after `mark`, blanks between; thousands may be set apart by commas ("7,123").
std::optional<double> number_after(std::string_view line, std::string_view mark) {
  const std::size_t at = line.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  std::string digits;
  for (const char c : trimmed(line.substr(at + mark.size()))) {
    const bool part =
        (c >= '0' && c <= '9') || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-';
    if (c == ',' && !digits.empty()) continue;
    if (!part) break;
    digits += c;
  }
  double value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code != std::errc{} || end == digits.data()) return std::nullopt;
  return value;
}

std::optional<double> above_zero(std::optional<double> value) {
  return value && *value > 0 ? value : std::nullopt;
}

std::optional<std::int64_t> whole_after(std::string_view line, std::string_view mark) {
  const auto value = number_after(line, mark);
  if (!value || *value < 0 || *value > 1e15) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

std::optional<Bytes> bytes_after(std::string_view line, std::string_view mark, double unit) {
  const auto value = above_zero(number_after(line, mark));
  return value ? std::optional(Bytes(*value * unit)) : std::nullopt;
}

std::optional<std::int64_t> size_after(std::string_view line, std::string_view mark) {
  const auto value = whole_after(line, mark);
  return value && *value > 0 ? value : std::nullopt;
}

// "  seq_length ....... 4096": a key of a list of settings, dots, its value. No other key that ends
// so ("encoder_seq_length").
std::optional<std::int64_t> setting(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == std::string_view::npos || (at > 0 && line[at - 1] != ' ')) return std::nullopt;
  std::string_view rest = line.substr(at + key.size());
  const std::size_t dots = rest.find_first_not_of(' ');
  if (dots == std::string_view::npos || rest[dots] != '.') return std::nullopt;
  rest.remove_prefix(std::min(rest.find_first_not_of('.', dots), rest.size()));
  return size_after(rest, "");
}

// A line that says sizes and no step.
std::optional<LogLine> sizes(LogKind kind, std::optional<std::int64_t> batch,
                             std::optional<std::int64_t> length) {
  if (!batch && !length) return std::nullopt;
  return LogLine{.kind = kind, .step = {}, .global_batch_size = batch, .seq_len = length};
}

constexpr double kMiB = 1 << 20, kGiB = 1 << 30;

// Megatron-LM d98e8a64, megatron/training/training.py (training_log) and utils.py (report_memory,
// in MiB): "iteration 5/ 100 | ... | elapsed time per iteration (ms): 1234.5 | ... | global batch
// size: 128 | ...". Its arguments stand before: "  seq_length ...... 4096" (arguments.py,
// _print_args). Megatron-Bridge's lines are the same.
std::optional<LogLine> read_megatron(std::string_view line) {
  LogLine said{.kind = LogKind::megatron};
  if (const auto ms = above_zero(number_after(line, "elapsed time per iteration (ms):"))) {
    said.step = whole_after(line, "iteration");
    said.step_s = *ms / 1000;
    said.global_batch_size = size_after(line, "global batch size:");
    return said;
  }
  if (auto stated = sizes(LogKind::megatron, setting(line, "global_batch_size"),
                          setting(line, "seq_length"))) {
    return stated;
  }
  // "using world size: 32, data-parallel size: 16, ..." (arguments.py:567).
  said.gpus = size_after(line, "using world size:");
  if (!said.gpus) said.gpus = setting(line, "world_size");
  if (said.gpus) return said;
  if (line.find("memory (MB)") == std::string_view::npos) return std::nullopt;
  said.allocated = bytes_after(line, "max allocated:", kMiB);
  said.reserved = bytes_after(line, "max reserved:", kMiB);
  if (!said.allocated && !said.reserved) return std::nullopt;
  return said;
}

// Megatron-Bridge, src/megatron/bridge/training/utils/train_utils.py: "Step Time : 3.51s GPU
// utilization: ...".
std::optional<LogLine> read_bridge(std::string_view line) {
  const auto seconds = above_zero(number_after(line, "Step Time :"));
  if (!seconds) return std::nullopt;
  return LogLine{.kind = LogKind::megatron_bridge, .step = {}, .step_s = seconds};
}

// NeMo 2's progress printer: "... | global_batch_size: 128 | global_step: 5 | ... |
// train_step_timing in s: 12.3 | ...".
std::optional<LogLine> read_nemo(std::string_view line) {
  const auto seconds = above_zero(number_after(line, "train_step_timing in s:"));
  if (!seconds) return std::nullopt;
  LogLine said{.kind = LogKind::nemo, .step = whole_after(line, "global_step:"), .step_s = seconds};
  said.global_batch_size = size_after(line, "global_batch_size:");
  return said;
}

// torchtitan b5bcd76c, torchtitan/components/metrics.py: "step: 10  loss: ...  memory:
// 40.18GiB(42.29%)  tps: 7,123  tflops: ...  mfu: ..."; tokens a second of one GPU, reserved
// memory. Before the first (torchtitan/trainer.py): "Trainer is initialized with local batch size
// 1, global batch size 8, gradient accumulation steps 1, sequence length 8192, total steps 10".
std::optional<LogLine> read_torchtitan(std::string_view line) {
  // A validation's line is a step's but for its first word: "validate step: 10  loss: ...  tps:
  // ...".
  if (line.find("validate step:") != std::string_view::npos) return std::nullopt;
  constexpr std::string_view kSetUp = "Trainer is initialized with";
  if (const std::size_t at = line.find(kSetUp); at != std::string_view::npos) {
    const std::string_view said = line.substr(at);
    return sizes(LogKind::torchtitan, size_after(said, "global batch size"),
                 size_after(said, "sequence length"));
  }
  const auto rate = above_zero(number_after(line, "tps:"));
  const auto step = whole_after(line, "step:");
  if (!rate || !step) return std::nullopt;
  LogLine said{.kind = LogKind::torchtitan, .step = step};
  said.tokens_per_s_per_gpu = rate;
  said.reserved = bytes_after(line, "memory:", kGiB);
  return said;
}

// DeepSpeed, deepspeed/utils/timer.py (ThroughputTimer.stop):
// "epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=..., CurrSamplesPerSec=...,
// MemAllocated=..GB, MaxMemAllocated=..GB", where a GB is 2^30 bytes. Its settings stand before
// (runtime/config.py): "  train_batch_size ............. 128", of all GPUs.
std::optional<LogLine> read_deepspeed(std::string_view line) {
  if (const auto batch = setting(line, "train_batch_size")) {
    return sizes(LogKind::deepspeed, batch, {});
  }
  const auto rate = above_zero(number_after(line, "CurrSamplesPerSec="));
  if (!rate) return std::nullopt;
  LogLine said{.kind = LogKind::deepspeed, .step = whole_after(line, "global_step=")};
  said.samples_per_s = rate;
  said.allocated = bytes_after(line, "MaxMemAllocated=", kGiB);
  return said;
}

// A Trainer's rate: "train_steps_per_second": 0.5, with either kind of quotes, as JSON has it and a
// console; 'train_steps_per_second': '0.5' of transformers 5 (trainer_callback.py, on_log).
std::optional<double> trainer_rate(std::string_view line, std::string_view key) {
  for (const char quote : {'"', '\''}) {
    const std::string mark = fmt::format("{0}{1}{0}:", quote, key);
    const std::size_t at = line.find(mark);
    if (at == std::string_view::npos) continue;
    std::string_view value = trimmed(line.substr(at + mark.size()));
    if (value.starts_with(quote)) value.remove_prefix(1);
    return above_zero(number_after(value, ""));
  }
  return std::nullopt;
}

// transformers' Trainer, its last line or all_results.json, where each key has a line of its own:
// steps and samples a second of the whole run. Before the first step: "  Total train batch size (w.
// parallel, distributed & accumulation) = 128".
std::optional<LogLine> read_trainer(std::string_view line) {
  if (line.find("Total train batch size") != std::string_view::npos) {
    return sizes(LogKind::trainer, size_after(line, "accumulation) ="), {});
  }
  LogLine said{.kind = LogKind::trainer, .step = {}, .of_run = true};
  if (const auto steps = trainer_rate(line, "train_steps_per_second")) said.step_s = 1 / *steps;
  said.samples_per_s = trainer_rate(line, "train_samples_per_second");
  return said.says_speed() ? std::optional(said) : std::nullopt;
}

// MLPerf's ":::MLLOG {json}": `tracked_stats` with a `throughput` in samples a second, or
// `train_step_time` in seconds; `global_batch_size` and `max_sequence_length` before them.
std::optional<LogLine> read_mllog(std::string_view line) {
  const std::size_t at = line.find(":::MLLOG");
  if (at == std::string_view::npos) return std::nullopt;
  try {
    const Json json = parse_json(trimmed(line.substr(at + 8)), "MLLOG");
    if (!json.is_object() || !json.contains("value")) return std::nullopt;
    const std::string key =
        json.contains("key") && json["key"].is_string() ? json["key"].get<std::string>() : "";
    const Json& value = json["value"];
    if (value.is_number_integer() && value.get<std::int64_t>() > 0) {
      const std::optional<std::int64_t> size = value.get<std::int64_t>(), none;
      if (key == "global_batch_size") return sizes(LogKind::mllog, size, none);
      if (key == "max_sequence_length") return sizes(LogKind::mllog, none, size);
    }
    if (key != "tracked_stats" || !value.is_object()) return std::nullopt;
    LogLine said{.kind = LogKind::mllog};
    const auto number = [&value](const char* stat) -> std::optional<double> {
      if (!value.contains(stat) || !value[stat].is_number()) return std::nullopt;
      return above_zero(value[stat].get<double>());
    };
    said.step_s = number("train_step_time");
    if (!said.step_s) said.samples_per_s = number("throughput");
    if (json.contains("metadata") && json["metadata"].is_object() &&
        json["metadata"].contains("step") && json["metadata"]["step"].is_number_integer()) {
      said.step = json["metadata"]["step"].get<std::int64_t>();
    }
    return said.says_speed() ? std::optional(said) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // a line that was cut
  }
}

}  // namespace

std::optional<LogLine> read_log_line(std::string_view line) {
  const std::string plain = without_colours(line);
  for (const auto read : {read_mllog, read_megatron, read_bridge, read_nemo, read_deepspeed,
                          read_torchtitan, read_trainer}) {
    if (auto said = read(plain)) return said;
  }
  return std::nullopt;
}

std::vector<LogLine> read_log(std::string_view text) {
  std::vector<LogLine> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (const auto said = read_log_line(text.substr(0, end))) lines.push_back(*said);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::optional<double> step_seconds(const LogLine& line, std::int64_t global_batch_size,
                                   std::int64_t seq_len, std::int64_t gpus) {
  const auto samples = static_cast<double>(global_batch_size);
  // A Trainer rounds both rates to thousandths (transformers, trainer_utils.py, speed_metrics), so
  // that the larger one is the surer, if it is of this batch. A step of half an hour is 0.000 a
  // second, which is said as none.
  constexpr double kRounding = 0.0005 * 1.01;
  if (line.of_run && line.samples_per_s) {
    const double steps_per_s = line.step_s ? 1 / *line.step_s : 0;
    if (std::abs(*line.samples_per_s / samples - steps_per_s) < kRounding) {
      return samples / *line.samples_per_s;
    }
    return line.step_s;
  }
  if (line.step_s) return line.step_s;
  if (line.samples_per_s) return samples / *line.samples_per_s;
  if (!line.tokens_per_s_per_gpu) return std::nullopt;
  return samples * static_cast<double>(seq_len) /
         (*line.tokens_per_s_per_gpu * static_cast<double>(gpus));
}

void LoggedMean::read(const LogLine& line) {
  if (!line.of_run) return;
  // Samples a second come first, wherever both stand.
  if (line.samples_per_s) {
    said_ = line;
  } else if (said_) {
    said_->step_s = line.step_s;
  } else {
    said_ = line;
  }
}

std::optional<double> LoggedMean::seconds(std::int64_t global_batch_size) const {
  return said_ ? step_seconds(*said_, global_batch_size, 0, 0) : std::nullopt;
}

std::optional<LoggedStep> LoggedSteps::read(const LogLine& line) {
  if (!line.says_speed() || line.of_run) return std::nullopt;
  const int measure = line.step_s ? 0 : line.samples_per_s ? 1 : 2;
  const Logger logger{line.kind, measure, line.step.has_value()};
  LoggedStep step;
  if (logger_ && logger != *logger_) {
    if (logger_->numbers || !logger.numbers) return std::nullopt;
    step.replaces = true;
  }
  logger_ = logger;
  step.number = line.step ? *line.step : ++told_;
  if (!line.step) return step;
  // Ranks that log wait for each other in every step: none is further behind than this.
  constexpr std::size_t kBehind = 8;
  if (!latest_.empty() && step.number <= latest_.back()) {
    if (step.number >= latest_.front()) return std::nullopt;
    step.restarts = true;
    latest_.clear();
  }
  latest_.push_back(step.number);
  if (latest_.size() > kBehind) latest_.pop_front();
  return step;
}

void LoggedSizes::read(const LogLine& line) {
  if (line.global_batch_size) batch_ = line.global_batch_size;
  if (line.seq_len) length_ = line.seq_len;
  if (line.gpus) gpus_ = line.gpus;
}

std::string LoggedSizes::other_than(std::int64_t global_batch_size, std::int64_t seq_len,
                                    std::int64_t gpus) const {
  std::vector<std::string> other;
  if (batch_ && *batch_ != global_batch_size) {
    other.push_back(
        fmt::format("a global batch of {}, and the plan has {}", *batch_, global_batch_size));
  }
  if (length_ && *length_ != seq_len) {
    other.push_back(fmt::format("sequences of {} tokens, and the plan has {}", *length_, seq_len));
  }
  if (gpus_ && *gpus_ != gpus) {
    other.push_back(fmt::format("{} GPUs, and the plan has {}", *gpus_, gpus));
  }
  return fmt::format("{}", fmt::join(other, "; "));
}

std::optional<double> typical_step_seconds(std::vector<double> seconds) {
  if (seconds.empty()) return std::nullopt;
  constexpr std::size_t kFew = 4;
  if (seconds.size() > kFew) {
    const std::size_t warm_up = std::max<std::size_t>(2, seconds.size() / 10);
    seconds.erase(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(warm_up));
  }
  std::sort(seconds.begin(), seconds.end());
  const std::size_t half = seconds.size() / 2;
  return seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2;
}

}  // namespace qplan
