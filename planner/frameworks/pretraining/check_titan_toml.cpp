// torchtitan's TOML: names of older releases, words that it looks up when it starts, and what it
// asks of several keys together and the job's GPUs.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/edit_distance.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/trap.h"
#include "planner/frameworks/pretraining/pretraining.h"
#include "planner/frameworks/pretraining/titan_toml.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;

constexpr std::string_view kTitanCommit = "torchtitan 81af8833d, torchtitan/";

void note_format(const ConfigPart& part, Findings& out) {
  out.push_back({note, "torchtitan_toml", part.place,
                 "torchtitan reads TOML up to release 0.2.1, whose words it is judged by; since "
                 "0.2.2 a job is a Python function that returns Trainer.Config",
                 "`qplan emit --framework torchtitan` writes such a function",
                 "torchtitan b5bcd76c, torchtitan/config/manager.py"});
}

// Fields of releases before 0.2.1, of which a file may be.
void note_old_names(const ConfigPart& part, Findings& out) {
  note_older(
      part, known_options("torchtitan_toml_older"), "torchtitan 0.2.1",
      [](const std::string& key) -> std::string {
        const auto names = old_titan_names();
        const auto found = std::find_if(names.begin(), names.end(), [&](const OldTitanName& name) {
          return name.written == key;
        });
        return found == names.end() ? "" : std::string(found->now);
      },
      out);
}

// A name of an older release beside one, or a table, that took its place: no release has both.
void check_mixed_releases(const ConfigPart& part, Findings& out) {
  constexpr std::array<std::string_view, 4> kLater{"parallelism.", "compile.", "debug.",
                                                   "quantize."};
  for (const Setting& setting : part.settings) {
    const auto names = old_titan_names();
    const auto old = std::find_if(names.begin(), names.end(), [&](const OldTitanName& name) {
      return name.written == setting.key;
    });
    if (old == names.end()) continue;
    const std::string table(old->now.substr(0, old->now.find('.') + 1));
    const bool later = std::find(kLater.begin(), kLater.end(), table) != kLater.end() &&
                       setting.key.substr(0, table.size()) != table &&
                       part.settings.has_section(table);
    const bool beside = part.settings.has(old->now);
    if (!later && !beside) continue;
    out.push_back(
        {error, "unknown_option", setting.place,
         fmt::format("{}: no release of torchtitan has this field beside {}, and all stop",
                     setting.key,
                     beside ? std::string(old->now)
                            : fmt::format("[{}]", table.substr(0, table.size() - 1))),
         fmt::format("write {}", old->now),
         "qplan: planner/frameworks/options/torchtitan_toml_older.tsv, the fields of "
         "older releases"});
  }
}

// A word of a few, where the file brings no code of its own that adds others.
struct LookedUp {
  std::string_view key;
  std::string_view words;  // separated by commas
  std::string_view fate;
  std::string_view source;
};
constexpr auto kLookedUp = std::to_array<LookedUp>({
    {"model.name",
     "llama2,llama3,llama3_ft,llama4,qwen3,deepseek_v3,flux,gpt_oss,vlm,"
     "transformers_modeling_backend,llama3_simple_fsdp,deepseek_v3_simple_fsdp,"
     "simple_fsdp.llama3,simple_fsdp.deepseek_v3,compiler_toolkit.llama3,"
     "compiler_toolkit.deepseek_v3,autoparallel.llama3,autoparallel.deepseek_v3,"
     "autoparallel.local_map_deepseek_v3",
     "no model of that name is registered, and torchtitan stops", "protocols/train_spec.py:87"},
    {"optimizer.name", "Adam,AdamW", "torchtitan stops", "components/optimizer.py:315"},
    {"parallelism.pipeline_parallel_schedule",
     "1F1B,Interleaved1F1B,GPipe,LoopedBFS,InterleavedZeroBubble,PipelineScheduleSingle,"
     "PipelineScheduleMulti,ZBVZeroBubble,DualPipeV,flexible_interleaved_1f1b,1f1b,gpipe,"
     "interleaved_1f1b,FlexibleInterleaved1F1B",
     "PyTorch has no such schedule, and torchtitan stops with stages",
     "distributed/pipeline_parallel.py (get_schedule_class)"},
});

bool brings_code(const Case& c) {
  // Modules of torchtitan's own experiments add fields, and no models.
  for (const std::string_view key :
       {"experimental.custom_import", "experimental.custom_args_module", "job.custom_config_module",
        "experimental.custom_model_path"}) {
    const std::string module = c.word(key);
    if (!module.empty() && !module.starts_with("torchtitan.")) return true;
  }
  return false;
}

// An error where another word is plainly meant; else a fork may have it: people train by forks.
void refuse_word_of(const Scene& scene, const Setting& said, const std::string& word,
                    const std::vector<std::string>& words, std::string_view rule,
                    std::string_view fate, std::string_view source, Findings& out) {
  const auto in_other_case =
      std::find_if(words.begin(), words.end(),
                   [&](const std::string& other) { return lower_case(other) == lower_case(word); });
  const std::string meant =
      in_other_case != words.end() ? *in_other_case : certain_choice(word, words);
  constexpr std::size_t kShort = 4;  // "1B" is near to "8B", and another size
  const std::string near =
      meant.empty() && word.size() > kShort ? nearest_name(word, words) : meant;
  out.push_back(
      {near.empty() ? warning : error, std::string(rule), said.place,
       fmt::format("{} is {}: {}{}", said.key, shown(word), fate,
                   near.empty() ? ", unless its code was changed" : ""),
       near.empty() ? fmt::format("one of {}", fmt::join(words, ", "))
                    : fmt::format("did you mean {}?", near),
       std::string(kTitanCommit) + std::string(source),
       meant.empty() || said.value.is_array() ? Correction{} : with_value(scene, said, meant)});
}

void check_looked_up(const Case& c, Findings& out) {
  for (const LookedUp& row : kLookedUp) {
    const Setting* const said = c.part.settings.find(row.key);
    if (said == nullptr || !said->value.is_string()) continue;
    if (row.key == "model.name" && brings_code(c)) continue;
    const std::vector<std::string> words = words_at_commas(row.words);
    const std::string word = text_of(said->value);
    const bool known = std::any_of(words.begin(), words.end(), [&](const std::string& other) {
      return row.key.ends_with("schedule") ? same_value(Json(other), Json(word)) : other == word;
    });
    if (!known)
      refuse_word_of(c.scene, *said, word, words, "refused_value", row.fate, row.source, out);
  }
}

// models/*/__init__.py.
constexpr auto kFlavorsOf = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"llama2", "debugmodel,271M,1B,7B,13B,26B,70B"},
    {"llama3",
     "debugmodel,debugmodel_flex_attn,debugmodel_varlen_attn,8B,8B_flex,8B_varlen,70B,405B"},
    {"llama4", "debugmodel,17bx16e,17bx128e,debugmodel_irope,17bx16e_irope,17bx128e_irope"},
    {"qwen3", "debugmodel,0.6B,1.7B,4B,8B,14B,32B,debugmodel_moe,30B-A3B,235B-A22B"},
    {"deepseek_v3", "debugmodel,debugmodel_flex_attn,16B,236B,671B"},
    {"gpt_oss", "debugmodel,20b,120b"},
});

void check_flavor(const Case& c, Findings& out) {
  const Setting* const said = c.part.settings.find("model.flavor");
  if (said == nullptr || !said->value.is_string() || brings_code(c)) return;
  const std::string name = [&] {
    const Setting* const model = c.part.settings.find("model.name");
    return model == nullptr ? std::string("llama3") : text_of(model->value);
  }();
  const auto* const of = std::find_if(kFlavorsOf.begin(), kFlavorsOf.end(),
                                      [&](const auto& flavors) { return flavors.first == name; });
  if (of == kFlavorsOf.end()) return;
  const std::vector<std::string> words = words_at_commas(of->second);
  const std::string word = text_of(said->value);
  if (std::find(words.begin(), words.end(), word) != words.end()) return;
  refuse_word_of(c.scene, *said, word, words, "unknown_flavor",
                 fmt::format("{} has no such flavor, and torchtitan stops", name),
                 fmt::format("models/{}/__init__.py", name), out);
}

void check_converters(const Case& c, Findings& out) {
  const Setting* const said = c.part.settings.find("model.converters");
  if (said == nullptr || !said->value.is_array() || brings_code(c)) return;
  const std::vector<std::string> words{"quantize.linear.float8",
                                       "quantize.grouped_mm.float8",
                                       "quantize.linear.mx",
                                       "quantize.grouped_mm.mx",
                                       "float8",
                                       "mx"};
  for (const std::string& word : list_of(said->value)) {
    if (std::find(words.begin(), words.end(), word) != words.end()) continue;
    refuse_word_of(c.scene, *said, word, words, "refused_value",
                   "no converter of that name is registered, and torchtitan stops",
                   "protocols/model_converter.py:47", out);
  }
}

// What the plan's own rules do not ask, for no plan can say it otherwise.
class TitanBatch {
 public:
  explicit TitanBatch(const Case& c) : c_(c), gpus_(c.scene.question.limits.gpus) {}

  void check(Findings& out) const {
    if (!check_mesh(out)) return;
    check_batch(out);
    check_length(out);
    check_experts(out);
  }

 private:
  [[nodiscard]] std::int64_t whole(std::string_view key, std::int64_t otherwise) const {
    return static_cast<std::int64_t>(c_.figure(key, static_cast<double>(otherwise)));
  }
  [[nodiscard]] std::int64_t degree(std::string_view name) const {
    for (const std::string_view section : {"parallelism", "experimental", "training"}) {
      const std::string key = fmt::format("{}.{}", section, name);
      if (c_.has(key)) return whole(key, 1);
    }
    return name == "data_parallel_shard_degree" ? whole("training.data_parallel_degree", -1) : 1;
  }
  [[nodiscard]] std::int64_t others() const {
    return degree("data_parallel_replicate_degree") * degree("tensor_parallel_degree") *
           degree("context_parallel_degree") * degree("pipeline_parallel_degree");
  }
  [[nodiscard]] const Setting* said_of(std::string_view name) const {
    for (const std::string_view section : {"parallelism", "experimental", "training"}) {
      const Setting* const found = c_.part.settings.find(fmt::format("{}.{}", section, name));
      if (found != nullptr) return found;
    }
    return nullptr;
  }
  // The line of the last degree that is not 1.
  [[nodiscard]] Place place_of_degrees() const {
    Place place = c_.part.place;
    for (const std::string_view name :
         {"tensor_parallel_degree", "context_parallel_degree", "pipeline_parallel_degree",
          "data_parallel_replicate_degree", "data_parallel_shard_degree"}) {
      const Setting* const said = said_of(name);
      if (said != nullptr && degree(name) > 1) place = said->place;
    }
    return place;
  }

  // Whether the degrees make a mesh of the job's GPUs.
  bool check_mesh(Findings& out) const {
    const std::int64_t shards = degree("data_parallel_shard_degree"), all = others();
    if (gpus_ <= 0 || all <= 0 || shards == 0) return false;
    const bool fills = shards < 0;
    const std::int64_t product = fills ? all * (gpus_ / all) : all * shards;
    if (product == gpus_) return true;
    out.push_back(
        {error, "mesh_product", place_of_degrees(),
         fmt::format("data_parallel_replicate_degree {} x data_parallel_shard_degree {} x "
                     "context_parallel_degree {} x tensor_parallel_degree {} x "
                     "pipeline_parallel_degree {} are not the job's {} GPUs, and torchtitan stops",
                     degree("data_parallel_replicate_degree"), fills ? gpus_ / all : shards,
                     degree("context_parallel_degree"), degree("tensor_parallel_degree"),
                     degree("pipeline_parallel_degree"), gpus_),
         fills ? fmt::format("degrees that divide {}", gpus_)
               : "data_parallel_shard_degree = -1, which takes what the others leave",
         fmt::format("{}distributed/parallel_dims.py:53", kTitanCommit)});
    return false;
  }

  void check_batch(Findings& out) const {
    const std::int64_t all = whole("training.global_batch_size", -1);
    const Setting* const said = c_.part.settings.find("training.global_batch_size");
    if (said == nullptr || all < 0) return;
    const std::int64_t local = whole("training.local_batch_size", 8);
    const std::int64_t ranks =
        gpus_ / (degree("tensor_parallel_degree") * degree("context_parallel_degree") *
                 degree("pipeline_parallel_degree"));
    if (local <= 0 || ranks <= 0 || (all > 0 && all % (local * ranks) == 0)) return;
    out.push_back({error, "batch_divisibility", said->place,
                   fmt::format("global_batch_size {} is no multiple of local_batch_size {} x {} "
                               "data-parallel ranks = {}, and torchtitan stops",
                               all, local, ranks, local * ranks),
                   fmt::format("a multiple of {}", local * ranks),
                   fmt::format("{}train.py:199", kTitanCommit)});
  }

  void check_length(Findings& out) const {
    const std::int64_t cp = degree("context_parallel_degree");
    const std::int64_t parts = degree("tensor_parallel_degree") * (cp > 1 ? 2 * cp : 1);
    const std::int64_t length = whole("training.seq_len", 2048);
    if (parts <= 0 || length % parts == 0) return;
    const Setting* const said = c_.part.settings.find("training.seq_len");
    out.push_back({error, "sequence_parts", said == nullptr ? place_of_degrees() : said->place,
                   fmt::format("seq_len {} is no multiple of tensor_parallel_degree {}{}, and "
                               "torchtitan stops",
                               length, degree("tensor_parallel_degree"),
                               cp > 1 ? fmt::format(" x 2 x context_parallel_degree {}", cp) : ""),
                   fmt::format("a multiple of {}", parts),
                   fmt::format("{}models/llama3/infra/parallelize.py:67", kTitanCommit)});
  }

  void check_experts(Findings& out) const {
    const std::int64_t ep = degree("expert_parallel_degree");
    const std::int64_t etp = whole("parallelism.expert_tensor_parallel_degree", 1);
    const std::int64_t tp = degree("tensor_parallel_degree");
    const Setting* const said = said_of("expert_tensor_parallel_degree");
    if (said == nullptr || ep <= 1 || etp == 1 || etp == tp) return;
    out.push_back({error, "expert_tensor_degree", said->place,
                   fmt::format("expert_tensor_parallel_degree {} is neither 1 nor "
                               "tensor_parallel_degree {}, and torchtitan stops",
                               etp, tp),
                   "1, or tensor_parallel_degree",
                   fmt::format("{}distributed/parallel_dims.py:59", kTitanCommit)});
  }

  const Case& c_;
  std::int64_t gpus_;
};

}  // namespace

void check_titan_toml(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect != Dialect::torchtitan_toml) continue;
    const Case c{scene, part};
    note_format(part, out);
    note_old_names(part, out);
    check_mixed_releases(part, out);
    check_looked_up(c, out);
    check_flavor(c, out);
    check_converters(c, out);
    TitanBatch(c).check(out);
  }
}

}  // namespace qplan
