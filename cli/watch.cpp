// `qplan watch`: a live log beside what was predicted; alerts as JSON lines.

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <utility>

#include "cli/answer.h"
#include "cli/asked_plan.h"
#include "cli/commands.h"
#include "cli/print.h"
#include "cli/report.h"
#include "models/error.h"
#include "models/files.h"
#include "planner/runs/run_log.h"
#include "planner/runs/step_watch.h"

namespace qplan {
namespace {

struct WatchQuestion : PlanQuestion {
  std::string log;
  std::vector<std::string> command;  // after --
  double hang_after = 0;             // seconds; 0: as steps take
  bool follow = false;
};

// Reads lines, and says what is wrong as soon as it is.
class LogWatcher {
 public:
  LogWatcher(const AskedPlan& asked, const Estimate& estimate, double hang_after, std::ostream& out)
      : asked_(asked),
        estimate_(estimate),
        hang_after_(hang_after),
        expected_{estimate.step_time_low, estimate.step_time_high, estimate.peak_high},
        watch_(expected_),
        out_(out) {}

  // False: the log is another plan's, as other_plan() says.
  bool read(std::string_view text) {
    const std::optional<LogLine> line = read_log_line(text);
    if (!line || !other_.empty()) return other_.empty();
    const ParallelPlan& plan = asked_.plan;
    sizes_.read(*line);
    if (line->says_speed())
      other_ = sizes_.other_than(plan.global_batch_size, plan.seq_len, asked_.job->gpus);
    if (!other_.empty()) return false;
    const auto seconds =
        step_seconds(*line, plan.global_batch_size, plan.seq_len, asked_.job->gpus);
    mean_.read(*line);
    if (const auto step = steps_.read(*line)) {
      if (step->replaces) watch_ = StepWatch(expected_);
      if (step->restarts) watch_.restart();
      // A run that goes on from a checkpoint begins at whatever number.
      if (told_ > 0) steps_a_line_ = std::max<std::int64_t>(1, step->number - step_);
      step_ = step->number;
      told_at_ = Clock::now();
      told_ = step->replaces ? 1 : told_ + 1;
      say(watch_.add_step(step_, *seconds));
    }
    if (line->allocated) say(watch_.add_memory(step_, *line->allocated));
    return true;
  }

  // Nothing new is in the log. How long a job takes to start, or to start again, nobody knows.
  void wait() {
    if (told_ == 0 || !told_at_ || !other_.empty()) return;
    const std::chrono::duration<double> waited = Clock::now() - *told_at_;
    say(watch_.wait(step_, waited.count(), steps_a_line_, hang_after_));
  }

  // Another run's log stands where the last one stood.
  void begin_anew() {
    told_at_.reset();
    sizes_ = {};
    steps_ = {};
    mean_ = {};
    watch_.restart();
  }

  // The log has ended; of a run that told of no step its mean is judged. What cannot be judged at
  // all is said by why_nothing().
  void end() {
    const auto mean = mean_.seconds(asked_.plan.global_batch_size);
    if (told_ == 0 && mean && other_.empty()) say(watch_.add_mean(*mean));
  }

  // What was seen, in one line.
  void finish() {
    const auto typical = typical_step_seconds(watch_.seconds());
    const Json interval{estimate_.step_time_low.value(), estimate_.step_time_high.value()};
    const bool inside = typical && Seconds(*typical) >= estimate_.step_time_low &&
                        Seconds(*typical) <= estimate_.step_time_high;
    out_ << answer_line("watch", {{"summary", "end of log"},
                                  {"steps", watch_.seconds().size()},
                                  {"step_time_s", typical ? Json(*typical) : Json(nullptr)},
                                  {"predicted_step_time_s", estimate_.step_time.value()},
                                  {"interval_s", interval},
                                  {"inside", typical ? Json(inside) : Json(nullptr)},
                                  {"alerts", alerts_}});
    out_.flush();
  }

  [[nodiscard]] bool saw_alert() const { return alerts_ > 0; }
  // Why nothing was judged; empty: something was.
  [[nodiscard]] std::string why_nothing(const std::string& log) const {
    if (!watch_.seconds().empty() || saw_alert()) return "";
    if (told_ == 0) return no_step_text(log);
    return fmt::format(
        "{} tells of {} step{}, and a run's first two are warm-up: there is "
        "nothing to judge",
        log, told_, told_ == 1 ? "" : "s");
  }
  [[nodiscard]] const std::string& other_plan() const { return other_; }

 private:
  void say(const std::vector<Alert>& alerts) {
    for (const Alert& alert : alerts) {
      if (alert.over_since) {
        out_ << answer_line("watch", {{"over", to_word(alert.kind)},
                                      {"step", alert.step},
                                      {"since", *alert.over_since},
                                      {"value", alert.value}});
        out_.flush();
        continue;
      }
      out_ << answer_line("watch", {{"alert", to_word(alert.kind)},
                                    {"step", alert.step},
                                    {"value", alert.value},
                                    {"threshold", alert.threshold},
                                    {"may_be", meaning_of(alert.kind)}});
      out_.flush();
      ++alerts_;
    }
  }

  using Clock = std::chrono::steady_clock;

  const AskedPlan& asked_;
  const Estimate& estimate_;
  double hang_after_;
  Expected expected_;
  StepWatch watch_;
  LoggedSizes sizes_;
  LoggedSteps steps_;
  LoggedMean mean_;    // said at the run's end
  std::string other_;  // sizes of steps that are not the plan's
  std::ostream& out_;
  std::int64_t step_ = 0, told_ = 0, steps_a_line_ = 1;
  std::optional<Clock::time_point> told_at_;  // the last step
  int alerts_ = 0;
};

// What was sent while Signals is alive. What asks qplan to end asks the command to, if there is
// one; the terminal's SIGINT reaches both.
volatile std::sig_atomic_t interrupted = 0, watched_command = 0;

extern "C" void note_signal(int signal) {
  interrupted = 1;
  if (signal == SIGTERM && watched_command > 0) ::kill(watched_command, signal);
}

class Signals {
 public:
  Signals() {
    interrupted = 0;
    watched_command = 0;
    struct sigaction noted {};
    noted.sa_handler = note_signal;
    // Who sends a second one means it.
    noted.sa_flags = static_cast<int>(unsigned{SA_RESTART} | unsigned{SA_RESETHAND});
    for (std::size_t i = 0; i < kNoted.size(); ++i) ::sigaction(kNoted[i], &noted, &before_[i]);
  }
  ~Signals() {
    for (std::size_t i = 0; i < kNoted.size(); ++i) ::sigaction(kNoted[i], &before_[i], nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  static constexpr std::array kNoted{SIGINT, SIGTERM};
  std::array<struct sigaction, kNoted.size()> before_{};
};

// A log as somebody writes it.
class LiveLog {
 public:
  explicit LiveLog(const std::string& path) : path_(path) { open(); }
  // A line that is written to its end.
  bool next(std::string& line) {
    for (std::string part; std::getline(file_, part);) {
      begun_ += part;
      if (file_.eof()) break;
      line = std::exchange(begun_, "");
      return true;
    }
    file_.clear();
    return false;
  }
  // The last line, if nothing ended it.
  [[nodiscard]] const std::string& rest() const { return begun_; }
  // Whether the file was cut, or another has its name: it is read from its start.
  bool begins_anew() {
    struct stat now {};
    if (::stat(path_.c_str(), &now) != 0) return false;  // between two files
    const bool cut = S_ISREG(now.st_mode) && now.st_size < file_.tellg();
    if (!cut && now.st_ino == inode_) return false;
    begun_.clear();
    open();
    return true;
  }

 private:
  void open() {
    struct stat now {};
    if (::stat(path_.c_str(), &now) == 0) inode_ = now.st_ino;
    file_ = std::ifstream(path_);
    if (!file_) {
      throw Error(fmt::format("cannot open '{}': {}; name a log, or a command behind --", path_,
                              system_reason()));
    }
  }

  std::string path_, begun_;
  std::ifstream file_;
  ino_t inode_ = 0;
};

void watch_file(const WatchQuestion& question, LogWatcher& watcher) {
  std::error_code ignored;
  if (std::filesystem::is_directory(question.log, ignored)) {
    throw Error(fmt::format("'{}' is a folder; name the file in it", question.log));
  }
  LiveLog log(question.log);
  const auto signals = question.follow ? std::make_unique<Signals>() : nullptr;
  std::string line;
  for (bool ended = false; !ended;) {
    ended = !question.follow || interrupted != 0;
    while (log.next(line)) {
      if (!watcher.read(line)) return;
    }
    if (ended) break;
    ::sleep(1);  // a signal ends it
    watcher.wait();
    if (log.begins_anew()) watcher.begin_anew();
  }
  if (!question.follow) watcher.read(log.rest());
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// What a command prints, line by line.
class Pipe {
 public:
  explicit Pipe(const std::string& script) : file_(popen(script.c_str(), "r")) {}
  ~Pipe() { close(); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  [[nodiscard]] bool is_open() const { return file_ != nullptr; }

  // A line without its end; false: nothing is left. `idle` is called once a second meanwhile.
  template <class Idle>
  bool next(std::string& line, Idle idle) {
    for (;;) {
      const std::size_t end = begun_.find('\n');
      if (end != std::string::npos) {
        line = begun_.substr(0, end);
        begun_.erase(0, end + 1);
        return true;
      }
      struct pollfd ready {
        ::fileno(file_), POLLIN, 0
      };
      constexpr int kSecond = 1000;
      if (::poll(&ready, 1, kSecond) == 0) {
        idle();
        continue;
      }
      std::array<char, 4096> bytes{};
      const ssize_t count = ::read(::fileno(file_), bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      begun_.append(bytes.data(), static_cast<std::size_t>(count));
    }
    line = std::exchange(begun_, "");
    return !line.empty();
  }
  int close() { return file_ == nullptr ? 0 : pclose(std::exchange(file_, nullptr)); }

 private:
  std::FILE* file_;
  std::string begun_;
};

// The command's exit code; it runs on where its log is another plan's. What it prints goes to
// `err`, both streams, as it comes.
int watch_command(const WatchQuestion& question, LogWatcher& watcher, std::ostream& err) {
  // The shell says its number, which the command then has.
  std::string script = "echo $$; exec";
  for (const std::string& word : question.command) script += ' ' + quoted(word);
  script += " 2>&1";
  const Signals signals;
  Pipe pipe(script);
  if (!pipe.is_open()) throw Error(fmt::format("{} cannot be started", question.command.front()));
  const auto wait = [&watcher] { watcher.wait(); };
  std::string text;
  int process = 0;
  if (pipe.next(text, wait)) std::from_chars(text.data(), text.data() + text.size(), process);
  watched_command = process;
  if (interrupted != 0) ::kill(process, SIGTERM);  // sent before it had a number
  bool said = false;
  while (pipe.next(text, wait)) {
    err << text << '\n';
    err.flush();
    if (watcher.read(text) || std::exchange(said, true)) continue;
    print(err, "qplan: {}\n", other_plan_text(question.command.front(), watcher.other_plan()));
    err.flush();
  }
  const int status = pipe.close();
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

}  // namespace

Exit run_watch(const Args& args, const Console& console) {
  WatchQuestion question;
  CommandLine line("watch", "A log beside what was predicted; alerts as JSON lines.",
                   "qplan watch train.log --plan plan.json\n"
                   "         qplan watch --plan plan.json -- torchrun train.py");
  line.positional("LOG", "a run's log, of the kinds that `qplan fit` reads; or a command after --",
                  question.log);
  line.flag("--follow", "go on at the end of the log, until interrupted", question.follow);
  line.option({"--hang-after", "SECONDS", "without a step, of a live log or a command, are a hang",
               "ten times what a logged step takes, 60 s at least"},
              set_number(question.hang_after, 1e-3, 1e7));
  add_plan_question(line, question);
  const auto dashes = std::find(args.begin(), args.end(), "--");
  if (dashes != args.end()) question.command.assign(dashes + 1, args.end());
  if (!line.parse(Args(args.begin(), dashes), console.out)) return Exit::done;
  if (question.log.empty() == question.command.empty()) {
    throw Error(
        "watch needs a log or, after --, a command: qplan watch train.log --plan plan.json");
  }
  const AskedPlan asked = asked_plan(question);
  const Answer answer = ask(*asked.job, asked.plan);
  if (!answer.estimate) {
    throw Error("the plan that is run cannot run: " + answer.infeasible.front().message);
  }
  if (const std::string alone = update_alone_text(asked); !alone.empty()) {
    print(console.err, "note: {}\n", alone);
  }
  LogWatcher watcher(asked, *answer.estimate, question.hang_after, console.out);
  int code = 0;
  if (question.command.empty()) {
    watch_file(question, watcher);
  } else {
    code = watch_command(question, watcher, console.err);
  }
  const std::string log = question.command.empty() ? question.log : question.command.front();
  const bool same_plan = watcher.other_plan().empty();
  watcher.end();
  const std::string nothing = watcher.why_nothing(log);
  if (same_plan && (nothing.empty() || code != 0)) watcher.finish();
  if (code != 0) {
    print(console.err, "qplan: {} ended with exit code {}\n", question.command.front(), code);
    return Exit::device;
  }
  if (!same_plan) throw Error(other_plan_text(log, watcher.other_plan()));
  if (!nothing.empty()) throw Error(nothing);
  return watcher.saw_alert() ? Exit::nothing_fits : Exit::done;
}

}  // namespace qplan
