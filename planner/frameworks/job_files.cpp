#include "planner/frameworks/job_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "models/error.h"
#include "planner/frameworks/arguments.h"
#include "planner/frameworks/bridge.h"

namespace qplan {
namespace {

std::string extension(const std::string& name) {
  return std::filesystem::path(name).extension().string();
}

std::string base_name(const std::string& name) {
  return std::filesystem::path(name).filename().string();
}

void check_is_text(const ConfigText& file) {
  if (file.text.find('\0') == std::string::npos) return;
  throw Error(fmt::format("{} is not a text file; give a configuration or a script", file.name));
}

// "--flag" under any of the names a list knows.
bool knows_any(const Settings& settings, std::initializer_list<std::string_view> flags) {
  return std::any_of(flags.begin(), flags.end(),
                     [&](std::string_view flag) { return settings.has(flag); });
}

bool is_slime(const Settings& settings) {
  return knows_any(settings, {"--rollout-batch-size", "--actor-num-nodes", "--colocate",
                              "--n-samples-per-prompt", "--rollout-num-gpus-per-engine",
                              "--max-tokens-per-gpu"});
}

bool is_trainer(const Settings& settings) {
  return knows_any(settings, {"--per_device_train_batch_size", "--model_name_or_path",
                              "--per-device-train-batch-size", "--gradient_checkpointing"});
}

bool is_megatron(const Settings& settings) {
  return knows_any(
      settings, {"--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--num-layers",
                 "--hidden-size", "--micro-batch-size", "--expert-model-parallel-size",
                 "--use-distributed-optimizer", "--recompute-granularity", "--moe-router-topk",
                 "--context-parallel-size"});
}

bool is_megatron_deepspeed(const Settings& settings) {
  const bool fork = knows_any(settings, {"--ds-sequence-parallel-size", "--no-pipeline-parallel",
                                         "--deepspeed-activation-checkpointing", "--zero-stage"});
  return fork || (is_megatron(settings) &&
                  knows_any(settings, {"--deepspeed", "--deepspeed_config", "--deepspeed-config"}));
}

class JobReader {
 public:
  explicit JobReader(std::span<const ConfigText> files) {
    for (const ConfigText& file : files) job_.texts.push_back(file);
  }

  JobFiles read() {
    // Scripts that start something first: what they source is not read a second time.
    for (const ConfigText& file : job_.texts) check_is_text(file);
    for (std::size_t i = 0; i < job_.texts.size(); ++i) {
      const ConfigText file = job_.texts[i];
      read_file(file);
    }
    for (const Arrays& arrays : arrays_) {
      if (sourced_.count(arrays.name) == 0) add_arguments(arrays.words, {arrays.name, 1}, "");
    }
    return std::move(job_);
  }

 private:
  struct Arrays {
    std::string name;
    std::vector<ShellWord> words;
  };

  void read_file(const ConfigText& file) {
    const std::string kind = extension(file.name);
    const std::size_t start = file.text.find_first_not_of(" \t\r\n");
    const char first = start == std::string::npos ? '\0' : file.text[start];
    if (first == '\0') {
      note("empty_file", {file.name, 0}, "the file is empty", "");
    } else if (kind == ".md") {
      note("prose", {file.name, 0}, "prose is not read: no framework reads it", "");
    } else if (kind == ".json" || first == '{') {
      read_json(file.text, file.name, 1);
    } else if (kind == ".yaml" || kind == ".yml") {
      read_yaml(file);
    } else if (kind == ".py") {
      read_python_file(file);
    } else if (kind == ".toml") {
      read_toml(file);
    } else if (is_hostfile(file.text)) {
      read_hostfile(file);
    } else {
      read_script(file);
    }
  }

  void note(std::string rule, Place place, std::string message, std::string instead) {
    job_.findings.push_back({Severity::note, std::move(rule), std::move(place), std::move(message),
                             std::move(instead), ""});
  }

  void add(Dialect dialect, Settings settings, Place place) {
    job_.parts.push_back({dialect, std::move(settings), std::move(place)});
  }

  // ---- files of keys ----

  void read_json(const std::string& text, const std::string& name, int first_line) {
    FormatText read = read_json_settings(text, name, first_line);
    const Settings& s = read.settings;
    job_.findings.insert(job_.findings.end(), read.findings.begin(), read.findings.end());
    if (s.has("fingerprint") && s.has_section("plan.")) {
      throw Error(
          fmt::format("{} is a plan file of qplan's; `qplan predict --plan` reads it", name));
    }
    if (s.has("architectures") || s.has("model_type")) {
      note("model_config", {name, 0}, "this is the model's config.json, which --model reads",
           fmt::format("--model {}", name));
      return;
    }
    const bool deepspeed = s.has_section("zero_optimization") || s.has("train_batch_size") ||
                           s.has("train_micro_batch_size_per_gpu") || s.has_section("fp16.") ||
                           s.has_section("bf16.") || s.has("gradient_accumulation_steps");
    if (!deepspeed) {
      job_.findings.push_back({Severity::error,
                               "unknown_file",
                               {name, 0},
                               "this JSON has none of ds_config.json's keys (train_batch_size, "
                               "zero_optimization, ...)",
                               "give a ds_config.json",
                               ""});
      return;
    }
    add(Dialect::ds_config, std::move(read.settings), {name, 0});
  }

  void read_yaml(const ConfigText& file) {
    FormatText read = read_yaml_settings(file.text, file.name);
    const Settings& s = read.settings;
    const Setting* const type = s.find("distributed_type");
    if (type != nullptr && text_of(type->value) == "DEEPSPEED") {
      return add(Dialect::ds_config, deepspeed_of(s), {file.name, 0});
    }
    if (s.has("distributed_type") || s.has("compute_environment") ||
        s.has_section("fsdp_config.")) {
      return add(Dialect::accelerate, std::move(read.settings), {file.name, 0});
    }
    // The convention of Megatron's functional tests: MODEL_ARGS maps flags to values.
    Settings flags;
    for (const Setting& setting : s) {
      const std::size_t dashes = setting.key.find("--");
      if (dashes == std::string::npos) continue;
      Setting flag = setting;
      flag.key = setting.key.substr(dashes);
      // A switch that is off is not passed.
      const bool off = flag.value.is_boolean() && !flag.value.get<bool>();
      if (!off) flags.add(std::move(flag));
    }
    if (!flags.empty()) return add(dialect_of(flags, ""), std::move(flags), {file.name, 0});
    add(Dialect::megatron_yaml, std::move(read.settings), {file.name, 0});
  }

  // accelerate's own words for what ds_config.json says.
  static Settings deepspeed_of(const Settings& yaml) {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kNames{
        {{"zero_stage", "zero_optimization.stage"},
         {"gradient_accumulation_steps", "gradient_accumulation_steps"},
         {"gradient_clipping", "gradient_clipping"},
         {"offload_optimizer_device", "zero_optimization.offload_optimizer.device"},
         {"offload_param_device", "zero_optimization.offload_param.device"},
         {"zero3_save_16bit_model",
          "zero_optimization.stage3_gather_16bit_weights_on_model_save"}}};
    Settings result;
    for (const auto& [name, key] : kNames) {
      const Setting* const found = yaml.find("deepspeed_config." + std::string(name));
      if (found == nullptr) continue;
      Setting setting = *found;
      setting.key = key;
      result.add(std::move(setting));
    }
    if (const Setting* const mixed = yaml.find("mixed_precision")) {
      Setting setting = *mixed;
      setting.key = text_of(mixed->value) + ".enabled";
      setting.value = true;
      if (text_of(mixed->value) != "no") result.add(std::move(setting));
    }
    return result;
  }

  void read_toml(const ConfigText& file) {
    job_.findings.push_back(
        {Severity::error,
         "torchtitan_toml",
         {file.name, 0},
         "torchtitan reads Python functions that return Trainer.Config; its TOML files are gone "
         "since 0.2.2",
         "write a configuration function, as `qplan emit --framework torchtitan` does",
         "torchtitan/config/manager.py"});
  }

  void read_python_file(const ConfigText& file) {
    PythonText text = read_python(file.text, file.name);
    Settings titan, fsdp;
    const auto add_keywords = [](Settings& to, const std::string& section, const PythonCall& call) {
      for (const PythonArgument& a : call.arguments) {
        if (a.name.empty()) continue;
        to.add({section + a.name, a.value, a.place, a.span, a.span, a.resolved});
      }
    };
    for (const PythonCall& call : text.calls) {
      const std::string callee = call.callee.substr(call.callee.rfind('.') + 1);
      if (callee == "TrainingConfig") add_keywords(titan, "training.", call);
      if (callee == "ParallelismConfig") add_keywords(titan, "parallelism.", call);
      if (callee == "CompileConfig") add_keywords(titan, "compile.", call);
      if (callee == "gradient_checkpointing_enable" && !fsdp.empty()) {
        fsdp.add({"FSDP.gradient_checkpointing", true, call.place, {}, {}, true});
      }
      if (callee == "FSDP" || callee == "FullyShardedDataParallel") {
        fsdp.add({"FSDP", true, call.place, {}, {}, true});
        for (const PythonArgument& a : call.arguments) {
          if (a.name.empty()) continue;
          Json value = a.resolved ? a.value : Json(a.text);
          fsdp.add({"FSDP." + a.name, std::move(value), a.place, a.span, a.span, true});
        }
      }
    }
    for (const PythonCall& call : text.calls) {
      for (const PythonArgument& a : call.arguments) {
        if (a.name == "activation_checkpoint" && !titan.empty()) {
          const std::string name = a.text.substr(0, a.text.find('.'));
          titan.add({a.name, name, a.place, a.span, a.span, true});
        }
        if (a.name == "moe_comm_backend" && !titan.empty() && a.resolved) {
          titan.add({a.name, a.value, a.place, a.span, a.span, true});
        }
      }
    }
    // Assignments to a torchtitan configuration, or to a ConfigContainer.
    const bool bridge = file.text.find("megatron.bridge") != std::string::npos;
    for (const PythonAssignment& assignment : text.assignments) {
      for (const std::string_view section : {".parallelism.", ".training.", ".compile."}) {
        const std::size_t at = assignment.target.find(section);
        if (bridge || at == std::string::npos) continue;
        const PythonArgument& a = assignment.value;
        titan.add({assignment.target.substr(at + 1), a.value, a.place, a.span, a.span, a.resolved});
      }
    }
    const Place place{file.name, 0};
    if (bridge) add(Dialect::bridge, bridge_settings(text), place);
    if (!titan.empty() && !bridge) add(Dialect::torchtitan, std::move(titan), place);
    // A dictionary of keywords (fsdp_kwargs = {"sharding_strategy": ...}) is read by its keys.
    if (!fsdp.empty()) {
      read_keyword_dictionary(file, fsdp);
      add(Dialect::fsdp_module, std::move(fsdp), place);
    }
    job_.python.push_back(std::move(text));
  }

  // `"name": value` lines of a script that calls FSDP(model, **kwargs).
  static void read_keyword_dictionary(const ConfigText& file, Settings& fsdp) {
    for (const std::string_view key :
         {"sharding_strategy", "auto_wrap_policy", "cpu_offload", "mixed_precision"}) {
      const std::string quoted = fmt::format("\"{}\":", key);
      const std::size_t at = file.text.find(quoted);
      if (at == std::string::npos) continue;
      std::size_t from = at + quoted.size();
      while (from < file.text.size() && file.text[from] == ' ') ++from;
      std::size_t end = std::min(file.text.find('\n', from), file.text.size());
      std::string value = file.text.substr(from, end - from);
      value = value.substr(0, value.find('#'));
      while (!value.empty() && (value.back() == ' ' || value.back() == ',')) value.pop_back();
      const Span span{from, from + value.size()};
      fsdp.add({"FSDP." + std::string(key),
                value,
                {file.name, line_of(file.text, at)},
                span,
                span,
                true});
    }
  }

  // ---- hostfiles ----

  static bool is_hostfile(const std::string& text) {
    return text.find(" slots=") != std::string::npos && text.find("--") == std::string::npos;
  }

  void read_hostfile(const ConfigText& file) {
    std::int64_t slots = 0;
    for (std::size_t at = 0; (at = file.text.find("slots=", at)) != std::string::npos;) {
      at += 6;
      std::int64_t n = 0;
      while (at < file.text.size() && file.text[at] >= '0' && file.text[at] <= '9' && n < 1 << 20) {
        n = 10 * n + (file.text[at++] - '0');
      }
      slots += n;
    }
    job_.host_slots = slots;
  }

  // ---- scripts ----

  void read_script(const ConfigText& file) {
    const FindFile find_file = [&](const std::string& name) -> std::optional<FoundFile> {
      for (const ConfigText& other : job_.texts) {
        if (base_name(other.name) == name && other.name != file.name) {
          sourced_.insert(other.name);
          return FoundFile{other.name, other.text};
        }
      }
      return std::nullopt;
    };
    const ShellScript script = read_shell(file.text, file.name, find_file);
    job_.findings.insert(job_.findings.end(), script.findings.begin(), script.findings.end());
    for (const ShellFile& written : script.files) {
      const std::size_t start = written.text.find_first_not_of(" \t\r\n");
      if (start == std::string::npos || written.text[start] != '{' || !written.resolved) continue;
      read_json(written.text, file.name, written.place.line);
    }
    const std::size_t installs = job_.installs.size();
    bool started = false;
    for (const ShellCommand& command : script.commands) started |= read_command(command, script);
    if (started || job_.installs.size() > installs) return;
    Arrays arrays{file.name, {}};
    for (const auto& [name, words] : script.arrays) {
      arrays.words.insert(arrays.words.end(), words.begin(), words.end());
    }
    if (!arrays.words.empty()) {
      arrays_.push_back(std::move(arrays));
    } else {
      job_.findings.push_back({Severity::error,
                               "unknown_file",
                               {file.name, 0},
                               "nothing here starts a training job or lists its arguments",
                               "give a launch script, an argument list, ds_config.json, "
                               "accelerate's yaml or a torchtitan function",
                               ""});
    }
  }

  static bool is_launcher(const std::string& name) {
    static constexpr std::array<std::string_view, 8> kLaunchers{
        "torchrun", "deepspeed", "accelerate", "srun", "mpirun", "ray", "python", "python3"};
    return std::find(kLaunchers.begin(), kLaunchers.end(), name) != kLaunchers.end();
  }

  bool read_command(const ShellCommand& command, const ShellScript& script) {
    const auto& words = command.words;
    std::size_t at = 0;
    while (at < words.size() && (words[at].text == "exec" || words[at].text == "nohup" ||
                                 words[at].text == "env" || words[at].text == "sudo")) {
      ++at;
    }
    if (at == words.size()) return false;
    const std::string program = base_name(words[at].text);
    if (program == "pip" || program == "pip3") {
      job_.installs.insert(job_.installs.end(), words.begin() + static_cast<std::ptrdiff_t>(at),
                           words.end());
      return false;
    }
    const std::span<const ShellWord> rest(words.begin() + static_cast<std::ptrdiff_t>(at),
                                          words.end());
    // A bare argument list is a command that begins with a flag.
    if (words[at].text.starts_with("--")) {
      add_arguments({rest.begin(), rest.end()}, words[at].place, "");
      return true;
    }
    if (!is_launcher(program)) return false;
    return add_launch(program, rest, command, script);
  }

  // torchrun [options] script.py [arguments]
  bool add_launch(const std::string& program, std::span<const ShellWord> words,
                  const ShellCommand& command, const ShellScript& script) {
    std::size_t at = 1;
    const auto is_script = [&](std::size_t i) {
      const std::string& text = words[i].text;
      return text.ends_with(".py") || text.ends_with(".sh") ||
             (i > 0 && (words[i - 1].text == "-m" || words[i - 1].text == "--module") &&
              text.find('.') != std::string::npos);
    };
    while (at < words.size() && !is_script(at)) ++at;
    if (at == words.size()) return false;
    Launch launch;
    launch.program = program;
    launch.place = words[0].place;
    launch.environment = command.environment;
    launch.script = words[at].text;
    launch.script_place = words[at].place;
    launch.options = read_arguments(words.subspan(1, at - 1), {});
    set_world(launch, script);
    const std::vector<ShellWord> arguments(words.begin() + static_cast<std::ptrdiff_t>(at + 1),
                                           words.end());
    const bool single = program == "python" || program == "python3";
    if (single && arguments.empty()) return false;
    job_.launches.push_back(launch);
    add_arguments(arguments, launch.place, launch.script);
    return true;
  }

  static std::optional<std::int64_t> number(const Setting* setting) {
    if (setting == nullptr || !setting->resolved) return std::nullopt;
    try {
      return whole_of(setting->value, 1, 1 << 20);
    } catch (const Error&) {
      return std::nullopt;  // "auto", "gpu", "1:4"
    }
  }

  static const Setting* first_of(const Settings& settings,
                                 std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
      if (const Setting* const found = settings.find(key)) return found;
    }
    return nullptr;
  }

  static void set_world(Launch& launch, const ShellScript& script) {
    const Settings& o = launch.options;
    launch.nodes =
        number(first_of(o, {"--nnodes", "--num_nodes", "--num_machines", "-N", "--nodes"}));
    launch.gpus_per_node =
        number(first_of(o, {"--nproc-per-node", "--nproc_per_node", "--num_gpus"}));
    if (launch.program == "deepspeed" && launch.gpus_per_node && !launch.nodes &&
        !o.has("--hostfile") && !o.has("-H")) {
      launch.nodes = 1;
    }
    if (launch.program != "srun") return;
    Settings batch;
    batch.append(read_arguments(script.directives, {}));
    if (!launch.nodes) launch.nodes = number(first_of(batch, {"--nodes", "-N"}));
    // One task a node may start a process for each of its GPUs.
    launch.gpus_per_node =
        number(first_of(batch, {"--gpus-per-node", "--gres", "--ntasks-per-node"}));
  }

  [[nodiscard]] Dialect dialect_of(const Settings& settings, const std::string& script) const {
    if (is_slime(settings)) return Dialect::slime;
    if (is_megatron_deepspeed(settings)) return Dialect::megatron_deepspeed;
    if (script.find("torchtitan") != std::string::npos) return Dialect::torchtitan;
    if (is_trainer(settings) && !is_megatron(settings)) return Dialect::trainer;
    return Dialect::megatron;
  }

  void add_arguments(const std::vector<ShellWord>& words, Place place, const std::string& script) {
    static const std::array<const OptionList*, 3> kLists{
        &known_options("megatron"), &known_options("slime"), &known_options("megatron_deepspeed")};
    Settings settings = read_arguments(words, kLists);
    if (settings.empty()) return;
    const Dialect dialect = dialect_of(settings, script);
    if (dialect == Dialect::megatron_deepspeed) {
      // Two flags take several values in the one and one in the other.
      static const std::array<const OptionList*, 1> kFork{&known_options("megatron_deepspeed")};
      settings = read_arguments(words, kFork);
    }
    if (dialect == Dialect::torchtitan) {
      Settings keys;
      for (Setting setting : settings) {
        const std::string key = setting.key.substr(2);
        if (key.find('.') == std::string::npos) continue;
        setting.key = key;
        keys.add(std::move(setting));
      }
      settings = std::move(keys);
      if (settings.empty()) return;
    }
    // A script of the user's own: its arguments are its own too.
    const bool own = dialect == Dialect::megatron && !is_megatron(settings) && !script.empty() &&
                     base_name(script).find("pretrain") == std::string::npos;
    if (own) settings = known_only(settings);
    if (!settings.empty())
      add(own ? Dialect::trainer : dialect, std::move(settings), std::move(place));
  }

  // What launchers and Trainers share; the rest is not judged.
  static Settings known_only(const Settings& settings) {
    Settings result;
    for (const Setting& setting : settings) {
      if (setting.key.starts_with("--deepspeed") || setting.key == "--megatron_config") {
        result.add(setting);
      }
    }
    return result;
  }

  JobFiles job_;
  std::vector<Arrays> arrays_;
  std::set<std::string> sourced_;
};

}  // namespace

const ConfigPart* JobFiles::find(Dialect dialect) const {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const ConfigPart& part) { return part.dialect == dialect; });
  return found == parts.end() ? nullptr : &*found;
}

JobFiles read_job_files(std::span<const ConfigText> files) {
  return JobReader(files).read();
}

}  // namespace qplan
