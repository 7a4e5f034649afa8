// `qplan goodput`: what failures, saves, spares, stragglers and thin links leave of a long run.

#include "planner/search/goodput.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "cli/answer.h"
#include "cli/asked_plan.h"
#include "cli/commands.h"
#include "cli/page.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "cli/reliability_options.h"
#include "cli/report.h"
#include "models/error.h"
#include "planner/goodput/long_run.h"
#include "planner/goodput/outer_step.h"
#include "planner/search/search.h"

namespace qplan {
namespace {

struct GoodputQuestion : PlanQuestion {
  double tokens = 1e12, step_time_s = 0;
  Reliability reliability;
  double hardware_share = LongRun{}.hardware_share;
  double repair_hours = LongRun{}.repair.value() / 3600;
  std::optional<std::int64_t> spares;
  Recovery recovery = Recovery::job;
  // Together with communicators and loading about the 10 minutes of Reliability::restart, on 16 384
  // GPUs; assumed.
  double detection_s = 180, scheduling_s = 300;
  // MegaScale brought more than 10,000 GPUs' communicators up in less than 30 s (arXiv 2402.15627).
  double start_ms_per_gpu = 3;
  std::optional<double> interval_s;
  StorageRates storage;
  bool asynchronous = false;
  std::int64_t memory_every = 0;
  double mean_delay = 100 * kMeanDelay;
  Sites sites;
  double latency_ms = 30;
  std::int64_t runs = 100, threads = 0;
  bool json = false;
};

// What was asked, as seconds.
struct RunOfPlan {
  std::shared_ptr<Job> job;
  ParallelPlan plan;
  Estimate estimate;
  bool searched = false;
  std::int64_t nodes = 1;  // of all sites
  double parameters = 0;   // that are trained
  double tokens_of_step = 0, steps = 0;
  Seconds step;  // of the plan alone, predicted or given
  double slowdown = 0;
  OuterStep outer;
  Seconds step_in_run;  // with both
  Bytes checkpoint;
  Seconds persisting;  // of a checkpoint
  LongRun run;
  Seconds young{HUGE_VAL}, daly{HUGE_VAL}, simulated{HUGE_VAL};
  Seconds between_failures{HUGE_VAL};  // of the job
  PlayedRuns played;
};

// The plan that was asked for, or the best one. Returns why there is none; empty: there is.
std::string set_plan(RunOfPlan& facts, const GoodputQuestion& question, const Console& console) {
  const bool open = question.plan.empty();
  if (!open) {
    AskedPlan asked = asked_plan(question);
    refuse_answers(asked, question.plan);
    facts.job = std::move(asked.job);
    facts.plan = asked.plan;
  } else {
    facts.job = make_job(question.choices);
    Job& job = *facts.job;
    if (job.gpus == 0) throw Error(kGpusMissing);
    SearchSpace space;
    set_job_words(space, question.words, job.model, job.recipe(), job.gpus);
    SearchOptions options;
    options.top = 1;
    options.threads = static_cast<int>(question.threads);
    options.progress = progress_of(console);
    const SearchResult result = search_offered(job, space, options);
    end_progress(console);
    if (result.plans.empty()) return "no plan fits; `qplan search` says what would";
    facts.plan = result.plans.front().plan;
    facts.searched = true;
  }
  const Answer answer = ask(*facts.job, facts.plan);
  if (!answer.feasible()) {
    return fmt::format("this plan cannot run: {}", answer.infeasible.front().message);
  }
  facts.estimate = *answer.estimate;
  return "";
}

void set_step(RunOfPlan& facts, const GoodputQuestion& question) {
  const Job& job = *facts.job;
  const std::int64_t nodes = nodes_for(job.hardware, facts.plan.world());
  facts.nodes = nodes * question.sites.count;
  facts.parameters = updated_parameters(job.model, job.recipe(), facts.plan);
  facts.step = question.step_time_s > 0 ? Seconds(question.step_time_s) : facts.estimate.step_time;
  // Sites wait for each other only when they exchange.
  facts.slowdown = straggler_slowdown(nodes, question.mean_delay / 100);
  Sites sites = question.sites;
  sites.latency = Seconds(question.latency_ms / 1000);
  const Seconds own = facts.step * (1 + facts.slowdown);
  facts.outer = outer_step(sites, facts.parameters, own);
  facts.step_in_run = own + facts.outer.exposed;
  facts.tokens_of_step = as_double(facts.plan.global_batch_size * facts.plan.seq_len) *
                         as_double(question.sites.count);
  facts.steps = std::max(1.0, std::ceil(question.tokens / facts.tokens_of_step));
}

// Groups of ranks that hold all of the model and of its states, so that the others can go on
// without one of them: sharing states out over all ranks leaves one.
std::int64_t replicas_of(const Job& job, const ParallelPlan& plan) {
  const std::int64_t group = std::int64_t{plan.dp} * plan.cp;
  const std::int64_t dense = group / std::max(plan.shard_degree(), plan.cp);
  if (!job.model.moe) return dense;
  return std::min(dense, plan.zero == 0 ? plan.edp() : std::int64_t{1});
}

void set_run(RunOfPlan& facts, const GoodputQuestion& question) {
  const Job& job = *facts.job;
  const double nodes = as_double(facts.nodes), gpus = as_double(facts.plan.world());
  LongRun& run = facts.run;
  run.step = facts.step_in_run;
  run.work = facts.step_in_run * facts.steps;
  run.nodes = facts.nodes;
  run.replicas = replicas_of(job, facts.plan) * question.sites.count;
  run.recovery = question.recovery;
  if (run.recovery == Recovery::replica && run.replicas == 1) {
    throw Error(
        "no replica has all of the states, so that none can go on without the others; with "
        "--recovery replica use zero 0, or sharding in groups (fsdp_shard), or several --sites");
  }
  const double rate = question.reliability.failures_per_1000_node_days / 1000 / 86400;
  if (rate > 0) {
    run.between_failures = Seconds(1 / rate);
    facts.between_failures = Seconds(1 / rate / nodes);
  }
  run.hardware_share = question.hardware_share;
  run.repair = Seconds(3600 * question.repair_hours);
  // Each site has a copy, and all write to one storage.
  facts.checkpoint = checkpoint_bytes(job.model, job.recipe(), facts.plan);
  facts.persisting = question.storage.storage().time_of(facts.checkpoint, facts.nodes);
  run.durable = facts.persisting;
  // What is written behind the work's back is first copied to the host.
  run.save =
      !question.asynchronous
          ? facts.persisting
          : std::min(facts.persisting, facts.checkpoint / gpus / job.hardware.link.device_to_host);
  run.detection = Seconds(question.detection_s);
  const double ranks = gpus * as_double(question.sites.count);
  run.restart = Seconds(question.scheduling_s) + Seconds(1e-3 * question.start_ms_per_gpu * ranks) +
                facts.persisting;
  run.memory_interval = facts.step_in_run * as_double(question.memory_every);
  facts.young = young_interval(run.save, facts.between_failures);
  facts.daly = daly_interval(run.save, facts.between_failures);
}

// Not one by one: spares hardly change which interval is best, and few runs tell enough.
void play_through(RunOfPlan& facts, const GoodputQuestion& question) {
  LongRun& run = facts.run;
  const int runs = static_cast<int>(question.runs), few = std::min(runs, 40);
  const bool job = run.recovery == Recovery::job;
  run.spares = question.spares.value_or(facts.nodes);
  run.interval = std::max(facts.daly, run.durable - run.save);
  // A replica goes on with its neighbour's weights: saves are for when all are lost, and no run
  // here shows what they are good for.
  if (job) run.interval = facts.simulated = best_interval(run, few);
  if (question.interval_s) run.interval = Seconds(*question.interval_s);
  if (run.interval < run.durable - run.save) {
    throw Error(fmt::format(
        "a checkpoint is under way for {}, and the next one is to begin after {}; save less often, "
        "or to faster storage",
        human_seconds(run.durable), human_seconds(run.interval)));
  }
  if (!question.spares) run.spares = best_spares(run, few);
  facts.played = play_runs(run, runs);
}

std::string endless_text(const RunOfPlan& facts) {
  const LongRun& run = facts.run;
  const bool job = run.recovery == Recovery::job;
  return fmt::format(
      "the run never ends: one of its {} nodes fails every {}, coming back takes {}, and {} {}; "
      "it needs fewer failures, faster storage or quicker restarts",
      grouped(facts.nodes), human_seconds(facts.between_failures),
      human_seconds(run.detection + run.restart),
      job ? "the work to the next checkpoint and that checkpoint" : "a step",
      human_seconds(job ? run.interval + run.durable : run.step));
}

// ---- where the time goes ----

struct TimeCause {
  const char *key, *text;
  Seconds time;
};
// Of the mean run: what the plan's own steps take, and what all else does.
std::vector<TimeCause> time_causes(const RunOfPlan& facts) {
  const TimeSpent& mean = facts.played.mean;
  // Of work, once and again, shares are late nodes' and the exchange's.
  const double own = facts.step / facts.step_in_run;
  const double exchange = facts.outer.exposed / facts.step_in_run;
  return {{"steps", "the plan's own steps", mean.useful * own},
          {"stragglers", "waiting for late nodes", mean.useful * (1 - own - exchange)},
          {"exchange", "waiting for other sites", mean.useful * exchange},
          {"saving", "saving", mean.saving},
          {"lost_work", "work done again", mean.lost_work},
          {"restarting", "noticing and coming back", mean.restarting},
          {"waiting", "waiting for a node", mean.waiting},
          {"degraded", "replicas away", mean.degraded}};
}

double tokens_per_s(const RunOfPlan& facts) {
  return facts.tokens_of_step * facts.steps / facts.played.mean.total().value();
}

// ---- text ----

std::string failures_text(const RunOfPlan& facts, const GoodputQuestion& question) {
  const LongRun& run = facts.run;
  if (!std::isfinite(facts.between_failures.value())) return "failures     none\n";
  return wrapped(
      fmt::format(
          "failures     one every {} ({} per 1000 node-days, {} nodes); {}% take their node "
          "away for {}; {} to notice, {} to come back; {}",
          human_seconds(facts.between_failures),
          significant(question.reliability.failures_per_1000_node_days), grouped(facts.nodes),
          percent(run.hardware_share), human_seconds(run.repair), human_seconds(run.detection),
          human_seconds(run.restart),
          run.recovery == Recovery::job
              ? "everybody goes back to the last save"
              : fmt::format("the others of {} replicas go on", grouped(run.replicas))),
      page().text, 13);
}

std::string saves_text(const RunOfPlan& facts, const GoodputQuestion& question) {
  const LongRun& run = facts.run;
  std::string text = fmt::format("checkpoint   {}, {} to write", human_bytes(facts.checkpoint),
                                 human_seconds(facts.persisting));
  if (question.asynchronous) {
    text += fmt::format(", of which the work stops for {}", human_seconds(run.save));
  }
  const bool saves = std::isfinite(run.interval.value());
  text += saves ? fmt::format("; saved every {}", human_seconds(run.interval)) : "; never saved";
  if (!std::isfinite(facts.young.value())) {
    return wrapped(text + " (nothing fails, so that no interval pays)", page().text, 13);
  }
  std::string others =
      fmt::format("Young {}, Daly {}", human_seconds(facts.young), human_seconds(facts.daly));
  if (run.recovery == Recovery::job) {
    others = fmt::format("best when played {}, {}", human_seconds(facts.simulated), others);
  }
  return wrapped(text + fmt::format(" ({})", others), page().text, 13);
}

std::string sites_text(const RunOfPlan& facts, const GoodputQuestion& question) {
  const OuterStep& outer = facts.outer;
  const Sites& sites = question.sites;
  if (sites.count <= 1) return "";
  const double gpus = as_double(facts.plan.world());
  return wrapped(
      fmt::format("sites        {} of {} GPUs, {} Gbit/s each; {} sent by each every {} steps ({} "
                  "bits a parameter), {}, of which {} a step is waited for in the mean; exchanging "
                  "gradients every step takes {}; {} a GPU for the outer optimizer, or on its host",
                  sites.count, grouped(facts.plan.world()), significant(sites.gbit_per_s),
                  human_bytes(outer.sent), sites.every, significant(sites.bits),
                  human_seconds(outer.exchange),
                  outer.exposed > Seconds(0) ? human_seconds(outer.exposed) : "nothing",
                  human_seconds(outer.every_step), human_bytes(outer.states / gpus)),
      page().text, 13);
}

void print_text(const RunOfPlan& facts, const GoodputQuestion& question, std::ostream& out) {
  const PlayedRuns& played = facts.played;
  const auto range = [](const Spread& spread, double scale) {
    return fmt::format("{} .. {}", significant(spread.p10 * scale),
                       significant(spread.p90 * scale));
  };
  out << model_line(*facts.job)
      << wrapped(
             (facts.searched ? "best plan    " : "plan         ") + line_of(*facts.job, facts.plan),
             page().text, 13)
      << wrapped(fmt::format("step         {}{}, {} in a long run with late nodes{}",
                             human_seconds(facts.step),
                             question.step_time_s > 0 ? " (given)" : " (predicted)",
                             human_seconds(facts.step_in_run),
                             question.sites.count > 1 ? " and exchanges" : ""),
                 page().text, 13)
      << failures_text(facts, question) << saves_text(facts, question)
      << fmt::format("spares       {}{}\n", grouped(facts.run.spares),
                     question.spares ? "" : " (with which all nodes together do most)")
      << sites_text(facts, question) << '\n';
  out << wrapped(fmt::format("goodput      {}% ({} in 8 of 10 runs), {} failures in {} days ({})",
                             significant(100 * played.goodput.mean), range(played.goodput, 100),
                             grouped(std::llround(played.failures)), significant(played.days.mean),
                             range(played.days, 1)),
                 page().text, 13);
  print(out, "tokens/s     {} ({} while it runs)\n\n", grouped(std::llround(tokens_per_s(facts))),
        grouped(std::llround(facts.tokens_of_step / facts.step.value())));
  Table table({{"where the time goes", "", Align::left}, {"share", "%"}, {"days", ""}});
  const Seconds total = played.mean.total();
  for (const TimeCause& cause : time_causes(facts)) {
    if (cause.time <= Seconds(0)) continue;
    table.row({cause.text, percent(cause.time / total), significant(cause.time.value() / 86400)});
  }
  out << table.text(page().table);
  if (question.sites.count > 1) {
    out << '\n'
        << wrapped(
               "What so few exchanges do to the loss is not predicted: DiLoCo (arXiv 2311.08105) "
               "and Streaming DiLoCo (arXiv 2501.18512) measured it for their models.",
               page().text);
  }
}

// ---- JSON ----

Json seconds_json(Seconds time) {
  return std::isfinite(time.value()) ? Json(time.value()) : Json(nullptr);
}

Json spread_json(const Spread& spread) {
  return {{"mean", spread.mean}, {"p10", spread.p10}, {"p90", spread.p90}};
}

Json to_json(const RunOfPlan& facts, const GoodputQuestion& question) {
  const LongRun& run = facts.run;
  const PlayedRuns& played = facts.played;
  Json causes = Json::object();
  for (const TimeCause& cause : time_causes(facts)) {
    causes[cause.key] = cause.time / played.mean.total();
  }
  const Sites& sites = question.sites;
  Json exchange = nullptr;
  if (sites.count > 1) {
    exchange = {{"sites", sites.count},
                {"every_steps", sites.every},
                {"bits", sites.bits},
                {"sent_gib", in_gib(facts.outer.sent)},
                {"exchange_s", facts.outer.exchange.value()},
                {"exposed_s_per_step", facts.outer.exposed.value()},
                {"every_step_s", facts.outer.every_step.value()},
                {"states_gib_per_gpu", in_gib(facts.outer.states / as_double(facts.plan.world()))}};
  }
  return {{"step_time_s", facts.step.value()},
          {"step_in_run_s", facts.step_in_run.value()},
          {"straggler_slowdown", facts.slowdown},
          {"nodes", facts.nodes},
          {"recovery", to_word(run.recovery)},
          {"mean_time_between_failures_s", seconds_json(facts.between_failures)},
          {"detection_s", run.detection.value()},
          {"restart_s", run.restart.value()},
          {"checkpoint",
           {{"gib", in_gib(facts.checkpoint)},
            {"write_s", facts.persisting.value()},
            {"stops_s", run.save.value()},
            {"interval_s", seconds_json(run.interval)},
            {"played_interval_s", seconds_json(facts.simulated)},
            {"young_interval_s", seconds_json(facts.young)},
            {"daly_interval_s", seconds_json(facts.daly)}}},
          {"spares", run.spares},
          {"exchange", exchange},
          {"runs", question.runs},
          {"tokens", question.tokens},
          {"tokens_per_s", tokens_per_s(facts)},
          {"goodput", spread_json(played.goodput)},
          {"days", spread_json(played.days)},
          {"failures", played.failures},
          {"shares", causes},
          {"prediction", report(*facts.job, ask(*facts.job, facts.plan))}};
}

// ---- options ----

void add_failure_options(CommandLine& line, GoodputQuestion& question) {
  Reliability& facts = question.reliability;
  line.group("Failures");
  add_failure_rate(line, facts);
  line.option({"--hardware-share", "SHARE", "of them that take a node away until it is repaired",
               significant(question.hardware_share)},
              set_number(question.hardware_share, 0, 1));
  line.option({"--repair-hours", "HOURS", "until a node is repaired, in the mean (assumed)",
               significant(question.repair_hours)},
              set_number(question.repair_hours, 0, 1e5));
  line.option({"--spares", "COUNT", "idle nodes at hand", "with which all nodes together do most"},
              set_given(question.spares, set_whole, 0, 1 << 20));
  line.option({"--recovery", "WHO",
               "who stops when a node does: job, or replica (the others go on)", "job"},
              set_word(question.recovery));
  line.option({"--detection-s", "SECONDS", "until all know of a failure (assumed)",
               significant(question.detection_s)},
              set_number(question.detection_s, 0, 1e6));
  line.option({"--scheduling-s", "SECONDS", "until nodes are assigned and programs start (assumed)",
               significant(question.scheduling_s)},
              set_number(question.scheduling_s, 0, 1e6));
  line.option({"--start-ms-per-gpu", "MS", "of setting communicators up, for each GPU of the job",
               significant(question.start_ms_per_gpu)},
              set_number(question.start_ms_per_gpu, 0, 1e4));
  line.option({"--straggler-delay", "PERCENT",
               "of a step that a node is late in the mean; all wait for the last (assumed)",
               significant(question.mean_delay)},
              set_number(question.mean_delay, 0, 100));
}

void add_checkpoint_options(CommandLine& line, GoodputQuestion& question) {
  line.group("Checkpoints");
  line.option({"--checkpoint-interval-s", "SECONDS", "work between two checkpoints",
               "the best of those played"},
              set_given(question.interval_s, set_number, 1.0, 1e9));
  add_storage_rates(line, question.storage);
  line.flag("--asynchronous", "the work stops only while states are copied to the host",
            question.asynchronous);
  line.option({"--memory-copies-every", "STEPS",
               "copies in other nodes' memory, from which everybody comes back; 0: none", "0"},
              set_whole(question.memory_every, 0, 1 << 20));
}

void add_site_options(CommandLine& line, GoodputQuestion& question) {
  Sites& sites = question.sites;
  line.group("Sites (local SGD, DiLoCo)");
  line.option({"--sites", "COUNT", "sites that each run the plan on --gpus GPUs of their own", "1"},
              set_whole(sites.count, 1, 1000));
  line.option({"--site-gbit-per-s", "GBIT_PER_S", "of each site's link to the others",
               significant(sites.gbit_per_s)},
              set_number(sites.gbit_per_s, 0.001, 1e6));
  line.option({"--site-latency-ms", "MS", "one way between neighbours (assumed)",
               significant(question.latency_ms)},
              set_number(question.latency_ms, 0, 1e4));
  line.option({"--sync-every", "STEPS", "between two exchanges", fmt::format("{}", sites.every)},
              set_whole(sites.every, 1, 1 << 20));
  line.option({"--outer-bits", "BITS", "of a parameter's outer gradient as it is sent",
               significant(sites.bits)},
              set_number(sites.bits, 1, 32));
  line.option({"--outer-beside", "STEPS", "that go on while an exchange is under way", "0"},
              set_whole(sites.beside, 0, 1 << 20));
}

}  // namespace

Exit run_goodput(const Args& args, const Console& console) {
  GoodputQuestion question;
  CommandLine line("goodput",
                   "What failures, checkpoints, spares, stragglers and thin links leave of a run.",
                   "qplan goodput --model llama3-405b --gpus 16384 --tokens 15.6T");
  add_model_options(line, question.choices);
  add_job_words(line, question.words);
  add_cluster_options(line, question.choices);
  line.positional("PLAN", "plan file, or a line such as \"tp8 pp16\"; none: the best that is found",
                  question.plan);
  line.group("Run");
  line.option({"--tokens", "COUNT", "tokens of the training run", "1T"},
              set_count(question.tokens, 1, 1e18));
  line.option({"--step-time-s", "SECONDS", "of a step, where you have measured it", "predicted"},
              set_number(question.step_time_s, 1e-6, 1e6));
  add_failure_options(line, question);
  add_checkpoint_options(line, question);
  add_site_options(line, question);
  line.group("Output");
  line.option({"--runs", "COUNT", "runs that are played through", "100"},
              set_whole(question.runs, 1, 10000));
  line.option({"--threads", "COUNT", "threads that search", "all cores"},
              set_whole(question.threads, 1, 1024));
  line.flag("--json", "the same as JSON", question.json);
  if (!line.parse(args, console.out)) return Exit::done;

  RunOfPlan facts;
  if (const std::string why = set_plan(facts, question, console); !why.empty()) {
    print(console.err, "qplan: {}\n", why);
    return Exit::nothing_fits;
  }
  set_step(facts, question);
  set_run(facts, question);
  play_through(facts, question);
  if (facts.played.endless) {
    print(console.err, "qplan: {}\n", endless_text(facts));
    return Exit::nothing_fits;
  }
  if (question.json) {
    console.out << answer_text("goodput", to_json(facts, question));
  } else {
    print_text(facts, question, console.out);
  }
  return Exit::done;
}

}  // namespace qplan
