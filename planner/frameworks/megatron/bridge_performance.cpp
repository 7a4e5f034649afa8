#include "planner/frameworks/megatron/bridge_performance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/ascii.h"
#include "models/edit_distance.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/megatron/bridge_program.h"
#include "planner/frameworks/megatron/bridge_set.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/rl/omega_config.h"

namespace qplan {
namespace {

constexpr std::string_view kLayout = "model.pipeline_model_parallel_layout";
constexpr std::string_view kParser =
    "Megatron-Bridge 067f987d, scripts/performance/argument_parser.py";

// Options that say a plan or choose the recipe, and a field that is set as it is said (empty: see
// read_word). What stands behind no other is its value.
struct RunnerWord {
  std::string_view brief, name, field;
};
constexpr auto kWords = std::to_array<RunnerWord>({
    {"-m", "--model_family_name", ""},
    {"-mr", "--model_recipe_name", ""},
    // Of its releases of 2025.
    {"", "--model_name", ""},
    {"", "--model_size", ""},
    {"-ng", "--num_gpus", ""},
    {"-gn", "--gpus_per_node", ""},
    {"-g", "--gpu", ""},
    {"-c", "--compute_dtype", ""},
    {"-cv", "--config_variant", ""},
    {"", "--task", ""},
    {"-ms", "--max_steps", "train.train_iters"},
    {"-gb", "--global_batch_size", "train.global_batch_size"},
    {"-mb", "--micro_batch_size", "train.micro_batch_size"},
    {"-sl", "--seq_length", "model.seq_length"},
    {"-tp", "--tensor_model_parallel_size", "model.tensor_model_parallel_size"},
    {"-pp", "--pipeline_model_parallel_size", "model.pipeline_model_parallel_size"},
    {"-cp", "--context_parallel_size", "model.context_parallel_size"},
    {"-vp", "--virtual_pipeline_model_parallel_size", "model.virtual_pipeline_model_parallel_size"},
    {"-ep", "--expert_model_parallel_size", "model.expert_model_parallel_size"},
    {"-et", "--expert_tensor_parallel_size", "model.expert_tensor_parallel_size"},
    {"", "--pipeline_model_parallel_layout", "model.pipeline_model_parallel_layout"},
    {"", "--lr", "optimizer.lr"},
    {"", "--min_lr", "optimizer.min_lr"},
    {"", "--warmup_iters", "scheduler.lr_warmup_iters"},
    {"", "--use_megatron_fsdp", "ddp.use_megatron_fsdp"},
    {"", "--cuda_graph_impl", "model.cuda_graph_impl"},
    {"", "--cuda_graph_scope", "model.cuda_graph_scope"},
    {"", "--moe_a2a_overlap", "comm_overlap.overlap_moe_expert_parallel_comm"},
    {"-rl", "--recompute_num_layers", "model.recompute_num_layers"},
    {"-ol", "--activation_offload_layers", "model.cpu_offloading_num_layers"},
    {"", "--recompute_modules", "model.recompute_modules"},
    {"", "--moe_flex_dispatcher_backend", "model.moe_flex_dispatcher_backend"},
});

// Values of argparse's "choices".
struct Choices {
  std::string_view name;
  std::vector<std::string_view> words;
};
const std::vector<Choices> kChoices{
    {"--gpu", {"h100", "b200", "b300", "gb200", "gb300", "vr200", "r100"}},
    {"--compute_dtype", {"bf16", "fp8_cs", "fp8_mx", "fp8_sc", "nvfp4"}},
    {"--task", {"pretrain", "sft", "peft"}},
};

const RunnerWord* option_called(std::string_view word) {
  const auto* const found = std::find_if(kWords.begin(), kWords.end(), [&](const RunnerWord& o) {
    return word == o.name || (!o.brief.empty() && word == o.brief);
  });
  if (found != kWords.end()) return found;
  // argparse takes a beginning for the whole, where one name has it.
  const auto begins = [&](const RunnerWord& o) {
    return word.size() > 4 && word.starts_with("--") && o.name.starts_with(word);
  };
  const auto* const whole = std::find_if(kWords.begin(), kWords.end(), begins);
  return std::count_if(kWords.begin(), kWords.end(), begins) == 1 ? whole : nullptr;
}

std::string name_in(const ShellWord& word) {
  return word.text.substr(0, word.text.find('='));
}

// utils/utils.py, _normalize_precision_name.
std::string bare(std::string format) {
  std::erase(format, '_');
  return lower_case(format);
}

// Recipes of this model, task, GPU and format, by how many GPUs they are for.
using Sizes = std::map<std::int64_t, std::string>;
Sizes recipes_of(const std::string& model, const std::string& task, const std::string& rest) {
  Sizes sizes;
  const std::string begin = fmt::format("{}_{}_", model, task);
  for (const std::string& name : known_options("bridge_perf_recipes").names()) {
    if (!name.starts_with(begin) || !name.ends_with(rest)) continue;
    const std::string count =
        name.substr(begin.size(), name.size() - begin.size() - std::min(rest.size(), name.size()));
    const bool number =
        !count.empty() && count.size() < 7 && std::all_of(count.begin(), count.end(), is_digit);
    if (number) sizes.emplace(std::stoll(count), name);
  }
  return sizes;
}

class PerformanceReader {
 public:
  explicit PerformanceReader(std::span<const ShellWord> words) : words_(words) {}

  BridgeWords read() {
    for (std::size_t at = 0; at < words_.size(); ++at) {
      const ShellWord& word = words_[at];
      const RunnerWord* const option = option_called(name_in(word));
      if (option == nullptr) {
        if (word.text.starts_with("--")) refuse_slip(word);
        continue;
      }
      ShellWord value;
      if (const std::size_t equals = word.text.find('='); equals != std::string::npos) {
        value = word;
        value.text.erase(0, equals + 1);
        if (word.span.end - word.span.begin == word.text.size()) value.span.begin += equals + 1;
      } else if (at + 1 < words_.size() && option_called(name_in(words_[at + 1])) == nullptr) {
        value = words_[++at];
      } else {
        continue;
      }
      said_.insert_or_assign(option->name, std::move(value));
    }
    if (find("--model_recipe_name") == nullptr && find("--model_name") != nullptr &&
        find("--model_size") != nullptr) {
      ShellWord both = *find("--model_name");
      both.text += "_" + find("--model_size")->text;
      both.resolved = both.resolved && find("--model_size")->resolved;
      said_.insert_or_assign("--model_recipe_name", std::move(both));
    }
    for (const Choices& choices : kChoices) check_choice(choices);
    name_recipe();
    set_fields();
    return std::move(result_);
  }

 private:
  [[nodiscard]] const ShellWord* find(std::string_view name) const {
    const auto found = said_.find(name);
    return found == said_.end() ? nullptr : &found->second;
  }

  // Empty: only a run can tell.
  [[nodiscard]] std::string text(std::string_view name, std::string unsaid = "") const {
    const ShellWord* const said = find(name);
    if (said == nullptr) return unsaid;
    return said->resolved ? lower_case(said->text) : "";
  }

  [[nodiscard]] std::optional<std::int64_t> number(std::string_view name) const {
    const std::string written = text(name);
    const Json value = hydra_value(written);
    return value.is_number_integer() ? std::optional(value.get<std::int64_t>()) : std::nullopt;
  }

  // "--tensor-model-parallel-size", or a letter away: what is no option goes to Hydra, which stops.
  void refuse_slip(const ShellWord& word) {
    const std::string written = name_in(word);
    std::string name = written;
    std::replace(name.begin() + 2, name.end(), '-', '_');
    const auto* const near =
        std::find_if(kWords.begin(), kWords.end(), [&](const RunnerWord& option) {
          return option.name == name || edit_distance(name, std::string(option.name)) <= 1;
        });
    if (near == kWords.end()) return;
    Correction fix;
    if (word.span.end - word.span.begin == word.text.size()) {
      fix = Correction{{word.place.file, word.span.begin, word.span.begin + written.size(),
                        std::string(near->name)}};
      fix.renames = true;
    }
    result_.findings.push_back({Severity::error, "unknown_option", word.place,
                                fmt::format("{}: scripts/performance has no such option, and Hydra "
                                            "stops at it",
                                            written),
                                fmt::format("did you mean {}?", near->name), std::string(kParser),
                                std::move(fix)});
  }

  void check_choice(const Choices& choices) {
    const ShellWord* const said = find(choices.name);
    if (said == nullptr || !said->resolved) return;
    const auto& words = choices.words;
    if (std::find(words.begin(), words.end(), said->text) != words.end()) return;
    result_.findings.push_back({Severity::error, "refused_value", said->place,
                                fmt::format("{} is {}, and must be one of {}", choices.name,
                                            shown(said->text), fmt::join(words, ", ")),
                                "", std::string(kParser)});
  }

  void name_recipe() {
    result_.gpus = number("--num_gpus");
    const std::string model = text("--model_recipe_name"), task = text("--task", "pretrain"),
                      gpu = text("--gpu"), format = bare(text("--compute_dtype", "bf16"));
    std::string variant = text("--config_variant", "v2");
    if (model.empty() || task.empty() || gpu.empty() || format.empty() || variant.empty()) return;
    variant = variant == "v1" || variant == "v2" ? "" : "_" + variant;
    const Sizes sizes =
        recipes_of(model, task, fmt::format("gpu_{}_{}{}_config", gpu, format, variant));
    const ShellWord& named = *find("--model_recipe_name");
    if (sizes.empty()) return refuse_recipe(named, model, task, gpu, format);
    const auto exact = result_.gpus ? sizes.find(*result_.gpus) : sizes.end();
    const auto& [size, recipe] = exact != sizes.end() ? *exact : *sizes.rbegin();
    result_.recipe = recipe;
    result_.text.calls.push_back({std::string(kPerfRecipes) + recipe, {}, named.place, {}});
    if (exact == sizes.end() && result_.gpus) base_gpus_ = size;
  }

  void refuse_recipe(const ShellWord& named, const std::string& model, const std::string& task,
                     const std::string& gpu, const std::string& format) {
    const std::string begin = fmt::format("{}_{}_", model, task);
    const auto& names = known_options("bridge_perf_recipes").names();
    const bool known = std::any_of(names.begin(), names.end(),
                                   [&](const auto& name) { return name.starts_with(begin); });
    result_.findings.push_back(
        {known ? Severity::warning : Severity::note, "unknown_recipe", named.place,
         fmt::format("perf_recipes of Megatron-Bridge 067f987d have no {} of {} for {} in {}: what "
                     "the recipe sets by itself is not known",
                     task, shown(model), shown(gpu), shown(format)),
         "", std::string(kParser)});
  }

  void set(std::string field, const ShellWord& word, Json value) {
    Setting setting{std::move(field), std::move(value), word.place, {}, word.span};
    setting.resolved = word.resolved;
    PythonArgument argument = bridge_argument(setting.key, setting);
    if (setting.value == Json(std::string(kByRecipe))) argument.text = kByRecipe;
    set_bridge_field(setting.key, std::move(argument), result_.text);
  }

  // What the words set besides their own fields (utils/overrides.py).
  void set_beside(const RunnerWord& option, const ShellWord& word, const Json& value) {
    if (option.name == "--tensor_model_parallel_size" && value.is_number_integer()) {
      set("model.sequence_parallel", word, value.get<std::int64_t>() > 1);
    } else if (option.name == "--seq_length") {
      set("dataset.seq_length", word, value);
    } else if (option.name == "--recompute_num_layers") {
      set("model.recompute_granularity", word, "full");
      set("model.recompute_method", word, "block");
    } else if (option.name == "--recompute_modules") {
      set("model.recompute_granularity", word, "selective");
    } else if (option.name == "--use_megatron_fsdp" && value == Json(true)) {
      set("ddp.data_parallel_sharding_strategy", word, "optim_grads_params");
    } else if (option.name == "--moe_flex_dispatcher_backend") {
      set("model.moe_token_dispatcher_type", word, value.is_null() ? "alltoall" : "flex");
    }
  }

  void set_fields() {
    for (const RunnerWord& option : kWords) {
      const ShellWord* const word = find(option.name);
      if (word == nullptr || option.field.empty()) continue;
      const bool list = option.name == "--recompute_modules" || option.name == "--cuda_graph_scope";
      const bool truth = option.name == "--use_megatron_fsdp" || option.name == "--moe_a2a_overlap";
      Json value = word->text == "None" ? Json(nullptr)
                   : truth              ? truth_of_word(*word)
                                        : hydra_value(word->text);
      if (list && word->text != "full_iteration") value = split(word->text);
      set(std::string(option.field), *word, value);
      set_beside(option, *word, value);
    }
    if (const ShellWord* const gpu = find("--gpu")) result_.gpu = *gpu;
    open_layout();
    scale_batch();
  }

  // A layout that the recipe makes for its own stages is made anew for others.
  void open_layout() {
    const ShellWord* stages = find("--pipeline_model_parallel_size");
    if (stages == nullptr) stages = find("--virtual_pipeline_model_parallel_size");
    if (stages == nullptr || find("--pipeline_model_parallel_layout") != nullptr ||
        !sets(kLayout)) {
      return;
    }
    ShellWord open = *stages;
    open.resolved = false;
    set(std::string(kLayout), open, std::string(kByRecipe));
  }

  [[nodiscard]] bool sets(std::string_view field) const {
    const KnownOption* const recipe = known_options("bridge_perf_recipes").find(result_.recipe);
    return recipe != nullptr &&
           recipe->otherwise.find(fmt::format("{}=", field)) != std::string::npos;
  }

  // A number that the recipe sets by itself; 1: it does not say.
  [[nodiscard]] std::int64_t of_recipe(std::string_view field) const {
    const KnownOption* const recipe = known_options("bridge_perf_recipes").find(result_.recipe);
    const std::string key = fmt::format("{}=", field);
    const std::size_t at = recipe == nullptr ? std::string::npos : recipe->otherwise.find(key);
    if (at == std::string::npos) return 1;
    const std::string_view rest = std::string_view(recipe->otherwise).substr(at + key.size());
    const Json value = hydra_value(rest.substr(0, rest.find(';')));
    return value.is_number_integer() ? std::max<std::int64_t>(1, value.get<std::int64_t>()) : 1;
  }

  // A recipe for another number of GPUs keeps its batch on each (set_post_overrides).
  void scale_batch() {
    if (!base_gpus_ || !result_.gpus || find("--global_batch_size") != nullptr) return;
    std::int64_t before = *base_gpus_, now = *result_.gpus;
    for (const std::string_view name :
         {"--tensor_model_parallel_size", "--pipeline_model_parallel_size",
          "--context_parallel_size"}) {
      const std::int64_t degree = of_recipe(option_called(name)->field);
      before /= degree;
      now /= std::max<std::int64_t>(1, number(name).value_or(degree));
    }
    const std::int64_t batch = of_recipe("train.global_batch_size") * now;
    if (before < 1 || batch % before != 0 || batch == 0) return;
    set("train.global_batch_size", *find("--num_gpus"), batch / before);
  }

  // bool_arg() of its parser.
  static Json truth_of_word(const ShellWord& word) {
    const std::string text = lower_case(word.text);
    for (const std::string_view yes : {"true", "1", "t", "yes", "y"}) {
      if (text == yes) return true;
    }
    for (const std::string_view no : {"false", "0", "f", "no", "n"}) {
      if (text == no) return false;
    }
    return word.text;
  }

  static Json split(const std::string& text) {
    Json items = Json::array();
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t end = std::min(text.find(',', at), text.size());
      items.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    return items;
  }

  std::span<const ShellWord> words_;
  std::map<std::string_view, ShellWord> said_;
  std::optional<std::int64_t> base_gpus_;
  BridgeWords result_;
};

}  // namespace

bool is_of_performance(std::span<const ShellWord> words) {
  const auto says = [&](std::string_view name) {
    return std::any_of(words.begin(), words.end(), [&](const ShellWord& word) {
      const RunnerWord* const option = option_called(name_in(word));
      return option != nullptr && option->name == name;
    });
  };
  const bool model = says("--model_recipe_name") || (says("--model_name") && says("--model_size"));
  return model && says("--num_gpus") && says("--gpu");
}

BridgeWords performance_words(std::span<const ShellWord> words) {
  return PerformanceReader(words).read();
}

}  // namespace qplan
