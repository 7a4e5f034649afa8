#include "planner/runs/run_log.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace qplan;

namespace {

LogLine line_of(const std::string& text) {
  const auto line = read_log_line(text);
  REQUIRE(line.has_value());
  return *line;
}

}  // namespace

TEST_CASE("Megatron's line says the step and its milliseconds") {
  const LogLine line = line_of(
      " [2026-11-26 10:00:00.123] iteration        7/     100 | consumed samples: 896 | elapsed "
      "time "
      "per iteration (ms): 1520.4 | throughput per GPU (TFLOP/s/GPU): 412.0 | learning rate: 3e-4 "
      "|");
  CHECK(line.kind == LogKind::megatron);
  CHECK(line.step == 7);
  CHECK(*line.step_s == doctest::Approx(1.5204));
  const LogLine memory = line_of(
      "[Rank 0] (after 2 iterations) memory (MB) | allocated: 100.0 | max allocated: 2048.0 | "
      "reserved: 3000.0 | max reserved: 3072.0");
  CHECK_FALSE(memory.says_speed());
  CHECK(memory.allocated->value() == 2147483648.0);
  CHECK(memory.reserved->value() == 3221225472.0);
}

TEST_CASE("torchtitan's tokens a second are one GPU's, colours and commas aside") {
  const LogLine line = line_of(
      "[titan] \x1b[31mstep: 10  \x1b[32mloss:  8.1  \x1b[33mgrad_norm: 1.2  memory: "
      "40.00GiB(50.6%)  \x1b[34mtps: 7,123  \x1b[36mtflops: 412.3  mfu: 41.7%\x1b[39m");
  CHECK(line.kind == LogKind::torchtitan);
  CHECK(line.step == 10);
  CHECK(*line.tokens_per_s_per_gpu == 7123);
  CHECK(line.reserved->value() == 40 * 1073741824.0);
  // 16 sequences of 4096 tokens on 8 GPUs.
  CHECK(*step_seconds(line, 16, 4096, 8) == doctest::Approx(16.0 * 4096 / 7123 / 8));
}

TEST_CASE("DeepSpeed, Bridge, NeMo, a Trainer and MLPerf are told apart") {
  const LogLine speed = line_of(
      "[2026-11-26] [INFO] [timer.py:264:stop] epoch=0/micro_step=20/global_step=20, "
      "RunningAvgSamplesPerSec=60.1, CurrSamplesPerSec=64.0, MemAllocated=3.26GB, "
      "MaxMemAllocated=21.5GB");
  CHECK(speed.kind == LogKind::deepspeed);
  CHECK(speed.step == 20);
  CHECK(*step_seconds(speed, 128, 4096, 8) == doctest::Approx(2));
  CHECK(line_of("Step Time : 3.51s GPU utilization: 402.1MODEL_TFLOP/s/GPU").kind ==
        LogKind::megatron_bridge);
  const LogLine nemo = line_of(
      "Training epoch 0, iteration 5/99 | lr: 1e-5 | global_step: 5 | "
      "train_step_timing in s: 12.5 | consumed_samples: 768");
  CHECK(nemo.kind == LogKind::nemo);
  CHECK(nemo.step == 5);
  CHECK(*nemo.step_s == 12.5);
  CHECK(*line_of("{'train_runtime': 100.0, 'train_steps_per_second': 0.25}").step_s == 4);
  CHECK(*line_of("  \"train_steps_per_second\": 0.5,").step_s == 2);
  const LogLine mlperf = line_of(
      ":::MLLOG {\"namespace\": \"\", \"time_ms\": 1, \"event_type\": \"POINT_IN_TIME\", \"key\": "
      "\"tracked_stats\", \"value\": {\"throughput\": 32.0}, \"metadata\": {\"step\": 40}}");
  CHECK(mlperf.kind == LogKind::mllog);
  CHECK(mlperf.step == 40);
  CHECK(*step_seconds(mlperf, 64, 8192, 8) == 2);
}

TEST_CASE("lines that speak of no step are passed over") {
  for (const char* line :
       {"", "loss: 3.2", ":::MLLOG {\"key\": \"run_start\"", "tps: fast step: 1",
        "elapsed time per iteration (ms): nan", "elapsed time per iteration (ms): 0"}) {
    CAPTURE(line);
    CHECK_FALSE(read_log_line(line).has_value());
  }
}

TEST_CASE("a typical step is the median after warm-up") {
  CHECK_FALSE(typical_step_seconds({}).has_value());
  CHECK(*typical_step_seconds({3}) == 3);
  CHECK(*typical_step_seconds({90, 40, 1, 2, 3}) == 2);  // the first two are left out
  const auto lines = read_log(
      "step time\n elapsed time per iteration (ms): 1000 |\nnothing\n"
      " elapsed time per iteration (ms): 2000 |");
  CHECK(lines.size() == 2);
}

TEST_CASE("a run's sizes are read where its log states them") {
  struct Stated {
    const char* line;
    LogKind kind;
    std::int64_t batch, length;  // 0: not stated
  };
  for (
      const Stated& stated : std::initializer_list<Stated>{
          {" iteration 7/ 100 | elapsed time per iteration (ms): 1520.4 | learning rate: 3e-4 | "
           "global batch size:   128 | lm loss: 2.1 |",
           LogKind::megatron, 128, 0},
          {"  global_batch_size ............................... 128", LogKind::megatron, 128, 0},
          {"  seq_length ...................................... 8192", LogKind::megatron, 0, 8192},
          {"Training epoch 0, iteration 5/99 | lr: 1e-5 | global_batch_size: 64 | global_step: 5 | "
           "train_step_timing in s: 12.5",
           LogKind::nemo, 64, 0},
          {"[titan] Trainer is initialized with local batch size 2, global batch size 48, gradient "
           "accumulation steps 1, sequence length 2048, total steps 10 (warmup 2)",
           LogKind::torchtitan, 48, 2048},
          {"[INFO] [config.py:1003:print]   train_batch_size ............. 16", LogKind::deepspeed,
           16, 0},
          {"  Total train batch size (w. parallel, distributed & accumulation) = 1,024",
           LogKind::trainer, 1024, 0},
          {":::MLLOG {\"key\": \"global_batch_size\", \"value\": 32, \"metadata\": {}}",
           LogKind::mllog, 32, 0},
          {":::MLLOG {\"key\": \"max_sequence_length\", \"value\": 8192, \"metadata\": {}}",
           LogKind::mllog, 0, 8192}}) {
    CAPTURE(stated.line);
    const LogLine line = line_of(stated.line);
    CHECK(line.kind == stated.kind);
    CHECK(line.global_batch_size.value_or(0) == stated.batch);
    CHECK(line.seq_len.value_or(0) == stated.length);
  }
  for (const char* line :
       {"  encoder_seq_length .............................. 4096", "  seq_length ........ None",
        "  train_micro_batch_size_per_gpu  4", "  global_batch_size: 128"}) {
    CAPTURE(line);
    CHECK_FALSE(read_log_line(line).has_value());
  }
}

TEST_CASE("what a log last said of its sizes is held against the plan's") {
  LoggedSizes sizes;
  CHECK(sizes.other_than(64, 4096, 16).empty());
  sizes.read({.step = 1, .global_batch_size = 128});
  CHECK(sizes.other_than(128, 4096, 16).empty());
  CHECK(sizes.other_than(64, 4096, 16) == "a global batch of 128, and the plan has 64");
  sizes.read({.step = 2, .seq_len = 8192});
  CHECK(sizes.other_than(64, 4096, 16) ==
        "a global batch of 128, and the plan has 64; sequences of 8192 tokens, and the plan has "
        "4096");
  sizes.read({.step = 3, .global_batch_size = 64});  // a batch that grew
  CHECK(sizes.other_than(64, 8192, 16).empty());
}

TEST_CASE("a log of another number of GPUs is another plan's") {
  for (const char* said :
       {"using world size: 32, data-parallel size: 16, context-parallel size: 1, "
        "tensor-model-parallel size: 2, pipeline-model-parallel size: 1",
        "  world_size ...................................... 32"}) {
    CAPTURE(said);
    LoggedSizes sizes;
    sizes.read(line_of(said));
    CHECK(sizes.other_than(64, 4096, 32).empty());
    CHECK(sizes.other_than(64, 4096, 16) == "32 GPUs, and the plan has 16");
  }
  CHECK_FALSE(read_log_line("  context_parallel_world_size ....... 32").has_value());
}

namespace {

// The numbers of the steps that lines tell of, "!" before one where the run starts again, "=" where
// what was told before were the same.
std::string steps_of(const std::vector<std::string>& lines) {
  LoggedSteps steps;
  std::string told;
  for (const std::string& text : lines) {
    const auto line = read_log_line(text);
    const auto step = line ? steps.read(*line) : std::nullopt;
    if (!step) continue;
    told += (told.empty() ? "" : " ") + std::string(step->restarts ? "!" : "") +
            (step->replaces ? "=" : "") + std::to_string(step->number);
  }
  return told;
}

std::string megatron(int i) {
  return " iteration " + std::to_string(i) + "/ 99 | elapsed time per iteration (ms): 1000.0 |";
}
std::string deepspeed(int i) {
  return "epoch=0/micro_step=1/global_step=" + std::to_string(i) + ", CurrSamplesPerSec=64.0, ";
}
std::string torchtitan(int i) {
  return "step: " + std::to_string(i) + "  loss: 8.1  memory: 40.00GiB(50.6%)  tps: 7,123";
}
std::string nemo(int i) {
  return "iteration 5/99 | global_step: " + std::to_string(i) + " | train_step_timing in s: 12.5 |";
}
std::string mlperf(int i) {
  return ":::MLLOG {\"key\": \"tracked_stats\", \"value\": {\"throughput\": 32.0}, \"metadata\": "
         "{\"step\": " +
         std::to_string(i) + "}}";
}

}  // namespace

TEST_CASE("a step is one step, however many ranks tell of it") {
  for (const auto line : {megatron, deepspeed, torchtitan, nemo, mlperf}) {
    CAPTURE(line(1));
    CHECK(steps_of({line(1), line(1), line(2), line(1), line(2), line(3), line(3)}) == "1 2 3");
    // Every tenth is logged.
    CHECK(steps_of({line(10), line(10), line(20), line(20)}) == "10 20");
  }
  CHECK(steps_of({"[rank0]: " + megatron(1), "[rank1]: " + megatron(1)}) == "1");
}

TEST_CASE("of two loggers that tell of the same steps one counts, the one with numbers") {
  const std::string bridge = "Step Time : 1.00s GPU utilization: 402.1MODEL_TFLOP/s/GPU";
  CHECK(steps_of({bridge, bridge}) == "1 2");
  CHECK(steps_of({bridge, megatron(1), bridge, megatron(2)}) == "1 =1 2");
  CHECK(steps_of({megatron(1), bridge, megatron(2), bridge}) == "1 2");
  CHECK(steps_of({bridge, bridge, megatron(1), megatron(2), bridge}) == "1 2 =1 2");
  CHECK(steps_of({deepspeed(1), megatron(1), deepspeed(2), megatron(2)}) == "1 2");
}

TEST_CASE("a run that goes back to a checkpoint tells of new steps") {
  std::vector<std::string> lines;
  for (int i = 1; i <= 20; ++i) lines.push_back(megatron(i));
  lines.push_back(megatron(10));
  lines.push_back(megatron(10));
  lines.push_back(megatron(11));
  CHECK(steps_of(lines).ends_with("19 20 !10 11"));
}

TEST_CASE("a Trainer's mean is of the run, and as exact as its batch makes it") {
  const LogLine mean = line_of(
      "{'train_runtime': 10000.0, 'train_samples_per_second': 10.2, 'train_steps_per_second': "
      "0.01, 'train_loss': 2.0, 'epoch': 1.0}");
  CHECK(mean.of_run);
  CHECK_FALSE(LoggedSteps().read(mean).has_value());
  CHECK(*step_seconds(mean, 1024, 4096, 8) == doctest::Approx(1024 / 10.2));
  // Of another batch: a step is what the log says.
  CHECK(*step_seconds(mean, 64, 4096, 8) == doctest::Approx(100));
}

TEST_CASE("torchtitan's validation is no training step") {
  CHECK_FALSE(
      read_log_line("[titan] \x1b[33mvalidate step: 10  \x1b[32mloss:  9.1  \x1b[36mmemory: "
                    "40.10GiB(50.20%)  \x1b[34mtps: 24,614\x1b[39m")
          .has_value());
  CHECK(steps_of({torchtitan(10), "validate " + torchtitan(10), "validate " + torchtitan(15),
                  torchtitan(20)}) == "10 20");
}

TEST_CASE("a terminal's sequences are ignored, whatever they end in") {
  // As `grep --color` marks what it found.
  const LogLine line = line_of(
      " iteration 7/ 100 | \x1b[01;31m\x1b[Kelapsed time\x1b[m\x1b[K per iteration (ms): 1520.4 | "
      "global batch size:   128 |");
  CHECK(line.step == 7);
  CHECK(*line.step_s == doctest::Approx(1.5204));
  CHECK(line.global_batch_size == 128);
}

TEST_CASE("a Trainer's JSON says the same with a key on each line") {
  const auto mean_of = [](const std::string& text) {
    LoggedMean mean;
    for (const LogLine& line : read_log(text)) mean.read(line);
    return mean.seconds(128);
  };
  const std::string whole =
      R"({"train_runtime": 6000, "train_samples_per_second": 0.427, "train_steps_per_second": 0.003})";
  std::string lines = whole;
  for (std::size_t at = 0; (at = lines.find_first_of("{,", at)) != std::string::npos; at += 2) {
    lines.insert(at + 1, "\n");
  }
  CHECK(*mean_of(whole) == doctest::Approx(128 / 0.427));
  CHECK(*mean_of(lines) == *mean_of(whole));
  // A step of 42 minutes is 0.000 a second; of another batch nothing is known then.
  const std::string slow =
      "\"train_samples_per_second\": 0.051,\n\"train_steps_per_second\": 0.0\n";
  CHECK(*mean_of(slow) == doctest::Approx(128 / 0.051));
  CHECK_FALSE(mean_of("\"train_samples_per_second\": 0.51,\n\"train_steps_per_second\": 0.0\n"));
  CHECK(*mean_of("\"train_steps_per_second\": 0.5\n") == 2);
}

TEST_CASE("transformers 5 puts figures in quotes, and says the same") {
  const LogLine quoted = line_of(
      "{'train_runtime': '260', 'train_samples_per_second': '98.46', 'train_steps_per_second': "
      "'0.769', 'train_loss': '2.1', 'epoch': '1'}");
  CHECK(quoted.of_run);
  CHECK(*quoted.samples_per_s == 98.46);
  CHECK(*step_seconds(quoted, 128, 4096, 8) == doctest::Approx(128 / 98.46));
}
