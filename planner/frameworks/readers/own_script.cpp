#include "planner/frameworks/readers/own_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "models/ascii.h"
#include "models/text.h"
#include "planner/frameworks/optimizer_names.h"
#include "planner/frameworks/readers/python_dicts.h"
#include "planner/frameworks/readers/python_settings.h"

namespace qplan {
namespace {

// The words by which a file calls a class or a function: its own, and what an import renames it to.
std::vector<std::string> names_of(const std::string& text, std::string_view name) {
  std::vector<std::string> names{std::string(name)};
  const std::string renamed = fmt::format("{} as ", name);
  for (std::size_t at = 0; (at = text.find(renamed, at)) != std::string::npos;) {
    at += renamed.size();
    std::size_t end = at;
    while (end < text.size() && is_name(text[end])) ++end;
    names.push_back(text.substr(at, end - at));
  }
  return names;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Without the blanks that indent it, and what ends it.
std::string_view stripped(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = std::min(line.find_first_not_of(kBlanks), line.size());
  line.remove_prefix(begin);
  return line.substr(0, line.find_last_not_of(kBlanks) + 1);  // npos + 1: none is left
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (;;) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

class OwnScript {
 public:
  OwnScript(const PythonText& text, const ConfigText& file)
      : text_(text),
        file_(file),
        lines_(lines_of(file.text)),
        fsdp_(names_of(file.text, "FullyShardedDataParallel")),
        ddp_(names_of(file.text, "DistributedDataParallel")),
        shard_(names_of(file.text, "fully_shard")) {
    fsdp_.emplace_back("FSDP");
    ddp_.emplace_back("DDP");
    // Its own classes have the same names.
    if (file.text.find("from megatron") != std::string::npos) ddp_.clear(), shard_.clear();
  }

  Settings read() {
    for (const PythonCall& call : text_.calls) {
      if (is_definition(call)) continue;
      const std::string callee = callee_of(call);
      if (has(fsdp_, callee)) read_wrapper("FSDP", call, kFsdpParameters);
      if (has(shard_, callee)) read_wrapper("fully_shard", call, kModule);
      if (has(ddp_, callee)) read_wrapper("DDP", call, kModule);
      read_formats(call, callee);
      if (callee == "LoraConfig") read_lora(call);
      read_frozen(call, callee);
      read_optimizer(call, callee);
      read_compression(call, callee);
      read_recompute(call, callee);
    }
    for (const PythonAssignment& assignment : text_.assignments) read_recompute(assignment);
    const std::string wrapper(wrapper_of(settings_));
    if (!wrapper.empty()) read_keyword_dictionary(wrapper);
    return std::move(settings_);
  }

 private:
  [[nodiscard]] std::string_view line(int number) const {
    const auto index = static_cast<std::size_t>(number) - 1;
    return index < lines_.size() ? lines_[index] : std::string_view();
  }

  // "def checkpoint_wrapper(...):" reads like a call.
  [[nodiscard]] bool is_definition(const PythonCall& call) const {
    std::string_view words = stripped(line(call.place.line));
    if (words.starts_with("async ")) words = stripped(words.substr(6));
    return (words.starts_with("def ") && stripped(words.substr(4)).starts_with(call.callee)) ||
           (words.starts_with("class ") && stripped(words.substr(6)).starts_with(call.callee));
  }

  void said(std::string key, Json value, const Place& place, bool resolved = true) {
    settings_.add({std::move(key), std::move(value), place, {}, {}, resolved});
  }

  // The innermost line around another one that begins with one of these words; empty: none does.
  [[nodiscard]] std::string_view enclosing(int number,
                                           std::initializer_list<std::string_view> words) const {
    const auto depth_of = [](std::string_view text) {
      return std::min(text.find_first_not_of(" \t"), text.size());
    };
    std::size_t depth = depth_of(line(number));
    for (int above = number - 1; above > 0 && depth > 0; --above) {
      const std::string_view text = stripped(line(above));
      if (text.empty() || text.starts_with('#') || depth_of(line(above)) >= depth) continue;
      depth = depth_of(line(above));
      const bool begins = std::any_of(words.begin(), words.end(), [&](std::string_view word) {
        return text.starts_with(word);
      });
      if (begins && text.find("__name__") == std::string_view::npos) return text;
    }
    return {};
  }

  // The condition of the innermost `if` around a line; empty: it stands under none.
  [[nodiscard]] std::string condition_of(int number) const {
    const std::string_view branch = enclosing(number, {"if ", "elif ", "else:"});
    if (branch.empty() || branch.starts_with("else")) return std::string(branch.substr(0, 4));
    const std::string_view condition = branch.substr(branch.find(' ') + 1);
    return std::string(condition.substr(0, condition.rfind(':')));
  }

  // Whether a line is run for each of several things.
  [[nodiscard]] bool is_repeated(int number) const {
    const std::string_view code = line(number).substr(0, line(number).find('#'));
    if (code.find(" for ") != std::string_view::npos) return true;
    return !enclosing(number, {"for ", "while "}).empty();
  }

  // ---- what wraps the model ----

  // Of the signatures, in order: what is given without a keyword.
  static constexpr std::array<std::string_view, 1> kModule{"module"};
  static constexpr std::array<std::string_view, 7> kFsdpParameters{
      "module",           "process_group",     "sharding_strategy", "cpu_offload",
      "auto_wrap_policy", "backward_prefetch", "mixed_precision"};

  void read_wrapper(const std::string& wrapper, const PythonCall& call,
                    std::span<const std::string_view> parameters) {
    // The last call wraps the whole; those before it, and those in a loop, a part.
    const bool repeated = is_repeated(call.place.line);
    if (repeated || settings_.has(wrapper)) said(wrapper + ".layer", true, call.place);
    said(wrapper, call.callee, call.place);
    std::size_t position = 0;
    for (const PythonArgument& a : call.arguments) {
      std::string name = a.name;
      if (a.text.starts_with("**") && !is_assigned(a.text.substr(2))) name = "*";
      const bool starred = a.text.starts_with('*');
      if (name.empty() && !starred && position < parameters.size()) name = parameters[position++];
      if (name.empty()) continue;
      Setting setting =
          setting_of(fmt::format("{}.{}{}", wrapper, repeated ? "layer." : "", name), a);
      if (!a.resolved) setting.value = text_behind(a);
      setting.resolved = true;
      settings_.add(std::move(setting));
    }
  }

  [[nodiscard]] bool is_assigned(const std::string& name) const {
    return std::any_of(text_.assignments.begin(), text_.assignments.end(),
                       [&](const PythonAssignment& a) { return a.target == name; });
  }

  // As it is written; of a name, what the file gives it.
  [[nodiscard]] std::string text_behind(const PythonArgument& a) const {
    for (const PythonAssignment& assignment : text_.assignments) {
      if (assignment.target == a.text) return assignment.value.text;
    }
    return a.text;
  }

  // ---- formats, and the mesh ----

  // "bf16" of "torch.bfloat16"; empty: none alone, or another one.
  [[nodiscard]] std::string format_of(const PythonArgument& a) const {
    const std::string text = a.value.is_string() ? a.value.get<std::string>() : text_behind(a);
    const auto names = [&](std::string_view word) { return text.find(word) != std::string::npos; };
    if (text == "auto") return text;
    if (names(" if ") || names(" else ")) return "";
    if (names("bfloat16") || names("bf16")) return "bf16";
    if (names("float16") || names("half") || names("fp16")) return "fp16";
    return names("float32") || names("fp32") || text == "torch.float" ? "fp32" : "";
  }

  static bool is_of_model(const std::string& callee) {
    const std::size_t dot = callee.rfind('.');
    return dot != std::string::npos &&
           lower_case(callee.substr(0, dot)).find("model") != std::string::npos;
  }

  void read_formats(const PythonCall& call, const std::string& callee) {
    if (callee == "MixedPrecision" || callee == "MixedPrecisionPolicy") {
      for (const PythonArgument& a : call.arguments) {
        if (a.name.empty()) continue;
        Setting setting = setting_of("mixed_precision." + a.name, a);
        setting.value = format_of(a);
        setting.resolved = true;
        settings_.add(std::move(setting));
      }
    }
    // Below it, wrap(layer) makes a unit.
    if (callee == "enable_wrap") said("wraps_by_hand", true, call.place);
    if (callee == "autocast") said("autocast", true, call.place);
    if (callee == "CPUOffloadPolicy") {
      said("fully_shard.offload", condition_of(call.place.line).empty(), call.place);
    }
    if (callee == "init_device_mesh") read_mesh(call);
    if (callee == "parallelize_module") said("tensor_parallel", true, call.place);
    read_weights(call, callee);
  }

  void read_weights(const PythonCall& call, const std::string& callee) {
    const auto weights = [&](const std::string& format) {
      if (!format.empty()) said("weights", format, call.place);
    };
    const bool loads = callee == "from_pretrained" || callee == "from_config";
    if (loads && call.callee.find("Tokenizer") == std::string::npos &&
        call.callee.find("Processor") == std::string::npos && call.callee != callee) {
      const PythonArgument* format = call.find("torch_dtype");
      if (format == nullptr) format = call.find("dtype");
      if (format != nullptr) return weights(format_of(*format));
      if (call.callee.find("Model") != std::string::npos) said("loads", true, call.place);
    }
    if (callee == "set_default_dtype" && !call.arguments.empty()) {
      weights(format_of(call.arguments.front()));
    }
    if (!is_of_model(call.callee)) return;
    if (callee == "bfloat16") weights("bf16");
    if (callee == "half") weights("fp16");
    if (callee == "float") weights("fp32");
    if (callee != "to") return;
    for (const PythonArgument& a : call.arguments) {
      if (a.name.empty() || a.name == "dtype") weights(format_of(a));
    }
  }

  // init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))
  void read_mesh(const PythonCall& call) {
    const PythonArgument* shape = call.find("mesh_shape");
    if (shape == nullptr && call.arguments.size() > 1) shape = &call.arguments[1];
    if (shape == nullptr) return;
    Json sizes = Json::array();
    for (const std::string& part : parts_of(shape->text)) {
      const bool number = !part.empty() && part.size() < 7 &&
                          std::all_of(part.begin(), part.end(), [](char c) { return is_digit(c); });
      sizes.push_back(number ? Json(std::stoll(part)) : Json(nullptr));
    }
    said("mesh", std::move(sizes), call.place);
    const PythonArgument* const names = call.find("mesh_dim_names");
    if (names == nullptr) return;
    Json words = Json::array();
    for (std::string part : parts_of(names->text)) {
      std::erase_if(part, [](char c) { return c == '"' || c == '\''; });
      words.push_back(part);
    }
    said("mesh.names", std::move(words), call.place);
  }

  // Of "(a, b // c)": what stands between commas of its own level, without blanks.
  static std::vector<std::string> parts_of(std::string_view tuple) {
    std::vector<std::string> parts;
    if (!tuple.starts_with('(') && !tuple.starts_with('[')) return parts;
    int depth = 0;
    std::string part;
    for (const char c : tuple) {
      const bool opens = c == '(' || c == '[', closes = c == ')' || c == ']';
      if (closes) --depth;
      if ((c == ',' && depth == 1) || (closes && depth == 0)) {
        if (!part.empty()) parts.push_back(part);
        part.clear();
      } else if (depth > 0 && c != ' ' && c != '\n') {
        part += c;
      }
      if (opens) ++depth;
    }
    return parts;
  }

  // `"name": value` lines of a script that calls FSDP(model, **kwargs).
  void read_keyword_dictionary(const std::string& wrapper) {
    for (const PythonCall& call : text_.calls) {
      if (call.callee != "dict") continue;
      for (const PythonArgument& a : call.arguments) {
        if (a.name.empty()) continue;
        Setting setting = setting_of(fmt::format("{}.{}", wrapper, a.name), a);
        if (!a.resolved) setting.value = text_behind(a);
        setting.resolved = true;
        if (!settings_.has(setting.key)) settings_.add(std::move(setting));
      }
    }
    for (const std::string_view key : {"sharding_strategy", "auto_wrap_policy", "cpu_offload",
                                       "mixed_precision", "reshard_after_forward"}) {
      const std::string quoted = fmt::format("\"{}\":", key);
      const std::size_t at = file_.text.find(quoted);
      if (at == std::string::npos) continue;
      std::size_t from = at + quoted.size();
      while (from < file_.text.size() && file_.text[from] == ' ') ++from;
      const std::size_t end = std::min(file_.text.find('\n', from), file_.text.size());
      std::string value = file_.text.substr(from, end - from);
      value = value.substr(0, value.find('#'));
      while (!value.empty() && (value.back() == ' ' || value.back() == ',')) value.pop_back();
      const Span span{from, from + value.size()};
      const Span name{at + 1, at + 1 + key.size()};
      const Place place{file_.name, line_of(file_.text, at)};
      settings_.add({fmt::format("{}.{}", wrapper, key),
                     value,
                     place,
                     {at, span.end},
                     span,
                     true,
                     name,
                     Syntax::python});
    }
  }

  // ---- adapters ----

  void read_lora(const PythonCall& call) {
    const bool used = file_.text.find("get_peft_model") != std::string::npos ||
                      file_.text.find("peft_config=") != std::string::npos ||
                      file_.text.find("add_adapter") != std::string::npos;
    if (!used) return;
    said("lora", true, call.place);
    for (const PythonArgument& a : call.arguments) {
      if (a.name.empty() || (a.resolved && a.value.is_null())) continue;
      settings_.add(setting_of("lora." + a.name, a));
    }
  }

  // Weights of 4 or 8 bits: BitsAndBytesConfig(load_in_4bit=True), GPTQConfig(bits=4), and what
  // from_pretrained took by itself before.
  void read_frozen(const PythonCall& call, const std::string& callee) {
    if (callee == "prepare_model_for_kbit_training") said("kbit", true, call.place);
    const auto on = [&](std::string_view name) {
      const PythonArgument* const a = call.find(name);
      return a != nullptr && a->resolved && a->value.is_boolean() && a->value.get<bool>();
    };
    const auto text = [&](std::string_view name) {
      const PythonArgument* const a = call.find(name);
      return a == nullptr ? std::string() : text_of(a->value);
    };
    if (on("load_in_8bit")) said("frozen", "int8", call.place);
    if (on("load_in_4bit")) {
      said("frozen", on("bnb_4bit_use_double_quant") ? "nf4-double" : "nf4", call.place);
      // bitsandbytes takes fp4 unless it is told otherwise, which has as many bytes.
      if (text("bnb_4bit_quant_type") != "nf4") said("frozen.fp4", true, call.place);
    }
    if (callee == "GPTQConfig" && (text("bits") == "4" || text("bits") == "8")) {
      said("frozen", text("bits") == "4" ? "int4" : "int8", call.place);
    }
  }

  // An optimizer that is not Adam in 32 bits.
  void read_optimizer(const PythonCall& call, const std::string& callee) {
    constexpr std::array<std::string_view, 12> kClasses{
        "Adafactor", "Adam8bit", "AdamW8bit", "PagedAdam8bit", "PagedAdamW8bit", "AdamW4bit",
        "SGD",       "Lion",     "Lion8bit",  "Muon",          "AdEMAMix",       "Adagrad"};
    if (std::find(kClasses.begin(), kClasses.end(), callee) == kClasses.end()) return;
    const bool momentum = callee == "SGD" && call.find("momentum") != nullptr;
    said("optimizer", momentum ? std::string(kSgdWithMomentum) : callee, call.place);
  }

  // DDP's communication hooks, which send gradients otherwise than they are; accelerate's name of
  // one.
  void read_compression(const PythonCall& call, const std::string& callee) {
    const bool registers = callee == "register_comm_hook";
    if (!registers && callee != "DistributedDataParallelKwargs") return;
    for (const PythonArgument& a : call.arguments) {
      const std::string text = lower_case(a.text);
      const bool low_rank =
          text.find("powersgd") != std::string::npos || text.find("power_sgd") != std::string::npos;
      const bool narrow = text.find("_compress_hook") != std::string::npos ||
                          text.find("communicationhooktype.fp16") != std::string::npos ||
                          text.find("communicationhooktype.bf16") != std::string::npos;
      if (low_rank || narrow) return said("compression", low_rank ? "PowerSGD" : a.text, a.place);
    }
  }

  // ---- activations that are recomputed ----

  void recompute(Json value, const Place& place, bool resolved = true) {
    const std::string condition = condition_of(place.line);
    said("recompute", std::move(value), place, resolved);
    if (!condition.empty()) said("recompute.if", condition, place);
  }

  // Whole layers, or what a policy of operators chooses (torch's selective checkpoints).
  [[nodiscard]] Json whole_or_selective() const {
    const bool chooses =
        file_.text.find("create_selective_checkpoint_contexts") != std::string::npos;
    return chooses ? Json("selective") : Json(true);
  }

  [[nodiscard]] bool is_checkpoint(const PythonCall& call, const std::string& callee) const {
    if (callee != "checkpoint" && callee != "checkpoint_sequential") return false;
    if (call.callee.find("checkpoint") < call.callee.rfind('.')) return true;  // utils.checkpoint.x
    return call.callee == callee &&
           file_.text.find("torch.utils.checkpoint import") != std::string::npos;
  }

  void read_recompute(const PythonCall& call, const std::string& callee) {
    if (callee == "gradient_checkpointing_enable") return recompute(true, call.place);
    if (callee == "gradient_checkpointing_disable") return recompute(false, call.place);
    const bool wraps = callee == "apply_activation_checkpointing" ||
                       callee == "checkpoint_wrapper" || callee == "ptd_checkpoint_wrapper";
    if (wraps || is_checkpoint(call, callee)) recompute(whole_or_selective(), call.place);
    if (is_training_arguments(call)) return;
    for (const std::string_view name :
         {"gradient_checkpointing", "use_gradient_checkpointing", "activation_checkpointing"}) {
      if (const PythonArgument* const a = call.find(name)) read_switch(*a);
    }
  }

  void read_recompute(const PythonAssignment& assignment) {
    const std::string name = assignment.target.substr(assignment.target.rfind('.') + 1);
    const bool is_field = assignment.target.find('.') != std::string::npos;
    if (is_field && name == "gradient_checkpointing") read_switch(assignment.value);
  }

  void read_switch(const PythonArgument& a) {
    if (a.resolved && a.value.is_null()) return;
    const bool on = a.value.is_boolean() ? a.value.get<bool>() : a.value.is_string();
    recompute(a.resolved ? Json(on) : Json(a.text), a.place, a.resolved);
  }

 public:
  // TrainingArguments, Seq2SeqTrainingArguments, and trl's SFTConfig and its like, which have a
  // folder or a batch as it does.
  static bool is_training_arguments(const PythonCall& call) {
    const std::string callee = callee_of(call);
    if (callee.ends_with("TrainingArguments")) return true;
    return callee.ends_with("Config") && (call.find("output_dir") != nullptr ||
                                          call.find("per_device_train_batch_size") != nullptr);
  }

 private:
  const PythonText& text_;
  const ConfigText& file_;
  std::vector<std::string_view> lines_;
  std::vector<std::string> fsdp_, ddp_, shard_;
  Settings settings_;
};

}  // namespace

Settings own_script_settings(const PythonText& text, const ConfigText& file) {
  return OwnScript(text, file).read();
}

std::string_view wrapper_of(const Settings& own_script) {
  // DDP beside one of the others is what a program does where it does not shard.
  for (const std::string_view wrapper : {"fully_shard", "FSDP", "DDP"}) {
    if (own_script.has(wrapper)) return wrapper;
  }
  return {};
}

bool is_one_unit(const Settings& own_script) {
  const std::string wrapper(wrapper_of(own_script));
  if (wrapper.empty() || wrapper == "DDP") return false;
  const Setting* const policy = own_script.find("FSDP.auto_wrap_policy");
  // Nothing is gathered of what is not sharded.
  const Setting* const strategy = own_script.find("FSDP.sharding_strategy");
  const bool whole =
      strategy != nullptr && text_of(strategy->value).find("NO_SHARD") != std::string::npos;
  if (whole && wrapper == "FSDP") return false;
  const bool none =
      policy == nullptr || text_of(policy->value) == "None" || policy->value.is_null();
  return none && !own_script.has(wrapper + ".layer") && !own_script.has(wrapper + ".*") &&
         !own_script.has("wraps_by_hand");
}

Settings training_arguments(const PythonText& text, const ConfigText& file) {
  Settings arguments;
  // Experiments of TRL's have classes of the same names, with words of their own.
  const bool experiments = file.text.find("trl.experimental") != std::string::npos;
  for (const PythonCall& call : text.calls) {
    if (!OwnScript::is_training_arguments(call)) continue;
    // TRL's class says what it trains by.
    constexpr std::array<std::array<std::string_view, 2>, 6> kVerbs{{{"SFTConfig", "sft"},
                                                                     {"GRPOConfig", "grpo"},
                                                                     {"RLOOConfig", "rloo"},
                                                                     {"DPOConfig", "dpo"},
                                                                     {"KTOConfig", "kto"},
                                                                     {"RewardConfig", "reward"}}};
    for (const auto& [name, verb] : kVerbs) {
      if (callee_of(call) == name && !experiments) arguments.add({"verb", verb, call.place});
    }
    for (const PythonArgument& a : call.arguments) {
      if (a.name.empty() || (a.resolved && a.value.is_null())) continue;
      arguments.add(setting_of("--" + a.name, a));
      if (a.name == "fsdp_config") arguments.append(dictionary_settings(a, "fsdp_config."));
    }
  }
  return arguments;
}

}  // namespace qplan
