#include "planner/frameworks/model_of_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "models/ascii.h"
#include "models/edit_distance.h"
#include "models/error.h"
#include "models/model_spec.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuners.h"
#include "planner/frameworks/finetuning/prime_rl.h"
#include "planner/frameworks/megatron/bridge_keys.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/megatron/shape_sizes.h"
#include "planner/frameworks/pretraining/nanotron.h"
#include "planner/frameworks/pretraining/titan_toml.h"
#include "planner/frameworks/rl/rl.h"

namespace qplan {
namespace {

// Wanted where the tokenizer decides: Llama 3's, in the middle of what is in use.
constexpr std::int64_t kUnsaidVocabulary = 128256;

// The fork's "--num-experts 1", its default, makes a layer of none (Megatron-DeepSpeed 4efb479d,
// megatron/model/transformer.py, ParallelTransformerLayer).
bool is_one_expert(const ConfigPart& part, const Setting& setting) {
  return part.dialect == Dialect::megatron_deepspeed && setting.key == "--num-experts" &&
         text_of(setting.value) == "1";
}

// The job's arguments, whichever of its files have them.
class Arguments {
 public:
  explicit Arguments(const JobFiles& files) {
    all_.append(bridge_shapes(files.bridge));
    for (const ConfigPart& part : files.parts) {
      if (!takes_megatrons(part.dialect)) continue;
      for (const Setting& setting : part.settings) {
        if (!is_one_expert(part, setting)) all_.add(setting);
      }
    }
  }

  [[nodiscard]] bool has(std::string_view key) const {
    const Setting* const found = all_.find(key);
    return found != nullptr && !same_value(found->value, Json(false));
  }
  [[nodiscard]] std::string text(std::string_view key) const {
    const Setting* const found = all_.find(key);
    return found == nullptr ? "" : text_of(found->value);
  }
  // Of a size that is said and refused, which is found by the arguments (shape_traps.cpp), one that
  // stands in for it.
  [[nodiscard]] std::optional<std::int64_t> size(std::string_view key,
                                                 std::int64_t stand_in) const {
    const Setting* const found = all_.find(key);
    const auto said = whole(key);
    return said || found == nullptr || !found->resolved ? said : std::optional(stand_in);
  }
  // Nothing: not said, known only when it runs, or no number.
  [[nodiscard]] std::optional<std::int64_t> whole(std::string_view key) const {
    const Setting* const found = all_.find(key);
    if (found == nullptr || !found->resolved) return std::nullopt;
    try {
      return whole_of(found->value, 1, most_of_shape(key));
    } catch (const Error&) {
      return std::nullopt;
    }
  }

 private:
  Settings all_;
};

bool is_of_another_kind(const Arguments& a) {
  constexpr std::array<std::string_view, 7> kOthers{"--multi-latent-attention",
                                                    "--hybrid-layer-pattern",
                                                    "--hybrid-override-pattern",
                                                    "--is-hybrid-model",
                                                    "--experimental-attention-variant",
                                                    "--moe-latent-size",
                                                    "--spec"};
  const std::string position = a.text("--position-embedding-type");
  return position == "mrope" || position == "relative" ||
         std::any_of(kOthers.begin(), kOthers.end(), [&](auto key) { return a.has(key); });
}

// A gate beside the first product, of whichever function.
bool is_gated(const Arguments& a) {
  return a.has("--swiglu") || a.has("--quick-geglu");
}

bool turns(const Arguments& a) {
  return a.has("--use-rotary-position-embeddings") || a.text("--position-embedding-type") == "rope";
}

// With --swiglu two thirds of 4 h, in multiples of 64 (transformer_config.py).
std::int64_t mlp_width(const Arguments& a, std::int64_t hidden, bool gated) {
  const std::int64_t usual =
      gated ? std::max<std::int64_t>(64, 8 * hidden / 3 / 64 * 64) : 4 * hidden;
  return a.whole("--ffn-hidden-size").value_or(usual);
}

std::int64_t key_value_heads(const Arguments& a, std::int64_t heads) {
  const bool groups = a.has("--group-query-attention") ||
                      (!a.has("--num-query-groups") && a.has("--num-key-value-heads"));
  const std::int64_t said =
      a.whole("--num-query-groups").value_or(a.whole("--num-key-value-heads").value_or(heads));
  return groups ? said : heads;
}

std::int64_t divisor_up_to(std::int64_t number, std::int64_t most) {
  std::int64_t divisor = std::max<std::int64_t>(1, std::min(number, most));
  while (number % divisor != 0) --divisor;
  return divisor;
}

// Those that Megatron refuses are judged as the next fewer that it takes: what is wrong with them
// is found by the arguments (megatron/shape_traps.cpp).
struct Heads {
  std::int64_t queries, key_values, width;
};
Heads heads_of(const Arguments& a, std::int64_t hidden, std::int64_t said) {
  const auto channels = a.whole("--kv-channels");
  Heads heads{};
  heads.queries = channels ? said : divisor_up_to(hidden, said);
  heads.key_values = divisor_up_to(heads.queries, key_value_heads(a, heads.queries));
  heads.width = channels.value_or(hidden / heads.queries);
  return heads;
}

Json gpt2(const Arguments& a, std::int64_t hidden, std::int64_t layers, std::int64_t heads) {
  return {{"model_type", "gpt2"},
          {"n_embd", hidden},
          {"n_layer", layers},
          {"n_head", divisor_up_to(hidden, heads)},
          {"n_inner", mlp_width(a, hidden, /*gated=*/false)},
          {"n_positions", a.whole("--max-position-embeddings").value_or(2048)},
          {"activation_function", "gelu_new"},
          {"tie_word_embeddings", !a.has("--untie-embeddings-and-output-weights")}};
}

// Experts that are chosen for a token: of those that there are.
std::int64_t chosen_experts(const Arguments& a, std::int64_t experts) {
  return std::min(experts, a.whole("--moe-router-topk").value_or(2));
}

Json llama(const Arguments& a, std::int64_t hidden, std::int64_t layers, std::int64_t said_heads) {
  const Heads heads = heads_of(a, hidden, said_heads);
  const bool experts = a.whole("--num-experts").has_value();
  const bool norms = a.has("--qk-layernorm");
  const std::int64_t wide = mlp_width(a, hidden, /*gated=*/true);
  const bool bias = !a.has("--disable-bias-linear");
  Json config{{"model_type", experts ? "qwen3_moe"
                             : norms ? "qwen3"
                                     : "llama"},
              {"hidden_size", hidden},
              {"num_hidden_layers", layers},
              {"num_attention_heads", heads.queries},
              {"num_key_value_heads", heads.key_values},
              {"intermediate_size", wide},
              {"hidden_act", "silu"},
              {"max_position_embeddings", a.whole("--max-position-embeddings").value_or(4096)},
              {"rope_theta", a.whole("--rotary-base").value_or(10000)},
              {"attention_bias", bias},
              {"mlp_bias", bias},
              {"tie_word_embeddings", !a.has("--untie-embeddings-and-output-weights")}};
  config["head_dim"] = heads.width;
  if (!experts) return config;
  config["num_experts"] = *a.whole("--num-experts");
  config["num_experts_per_tok"] = chosen_experts(a, *a.whole("--num-experts"));
  config["moe_intermediate_size"] = a.whole("--moe-ffn-hidden-size").value_or(wide);
  config["norm_topk_prob"] = true;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = Json::array();
  if (norms) return config;
  // Without norms of queries and keys it is Mixtral's layer, whose experts are as wide as its MLP.
  config["model_type"] = "mixtral";
  config["num_local_experts"] = config["num_experts"];
  config["intermediate_size"] = config["moe_intermediate_size"];
  return config;
}

// What no class of Hugging Face's is: by names of qplan's own (models/config/megatron_gpt.cpp).
Json megatron_gpt(const Arguments& a, std::int64_t hidden, std::int64_t layers,
                  std::int64_t said_heads) {
  const Heads heads = heads_of(a, hidden, said_heads);
  const bool gated = is_gated(a), bias = !a.has("--disable-bias-linear");
  const std::int64_t wide = mlp_width(a, hidden, a.has("--swiglu"));
  const std::string position = a.text("--position-embedding-type");
  Json config{{"model_type", "megatron_gpt"},
              {"hidden_size", hidden},
              {"num_hidden_layers", layers},
              {"num_attention_heads", heads.queries},
              {"num_key_value_heads", heads.key_values},
              {"head_dim", heads.width},
              {"intermediate_size", wide},
              {"hidden_act", gated                     ? "silu"
                             : a.has("--squared-relu") ? "relu2"
                                                       : "gelu"},
              {"max_position_embeddings", a.whole("--max-position-embeddings").value_or(2048)},
              {"position_embedding", turns(a) || position == "yarn" ? "rope"
                                     : position == "none"           ? "none"
                                                                    : "learned"},
              {"rope_theta", a.whole("--rotary-base").value_or(10000)},
              {"normalization", a.text("--normalization") == "RMSNorm" ? "RMSNorm" : "LayerNorm"},
              {"qk_norm", a.has("--qk-layernorm")},
              {"qkv_bias", bias || a.has("--add-qkv-bias")},
              {"attention_bias", bias},
              {"mlp_bias", bias},
              {"tie_word_embeddings", !a.has("--untie-embeddings-and-output-weights")}};
  const auto experts = a.whole("--num-experts");
  if (!experts) return config;
  config["num_experts"] = *experts;
  config["num_experts_per_tok"] = chosen_experts(a, *experts);
  config["moe_intermediate_size"] = a.whole("--moe-ffn-hidden-size").value_or(wide);
  config["shared_expert_intermediate_size"] =
      a.whole("--moe-shared-expert-intermediate-size").value_or(0);
  return config;
}

// Whether what no class of Hugging Face's has is all there: parts of Llama's layer and of GPT-2's.
bool is_mixed(const Arguments& a) {
  return (is_gated(a) ? !turns(a) || !a.has("--swiglu") : turns(a) || a.has("--num-experts")) ||
         a.has("--squared-relu") || a.text("--position-embedding-type") == "yarn";
}

// Whether the arguments alone make the model: another script may make one of its own, as an odd
// mixture of them tells.
bool makes_model(const JobFiles& files) {
  return std::all_of(files.parts.begin(), files.parts.end(), [](const ConfigPart& part) {
    return !takes_megatrons(part.dialect) || part.script.empty() || is_of_megatron(part.script) ||
           base_name(part.script).starts_with("pretrain");
  });
}

// ---- shapes ----

// Tokens that the tokenizer knows; those of a file's own vocabulary are in no argument.
std::int64_t vocabulary_of(const Arguments& a) {
  if (const auto said = a.whole("--vocab-size")) return *said;
  const std::string tokenizer = a.text("--tokenizer-type");
  // Byte pairs of two files are GPT-2's, whose vocabulary the rank's files spell out
  // (examples/gpt3 of Megatron-LM d98e8a64 name gpt2-vocab.json and gpt2-merges.txt).
  if (a.has("--merge-file") && (tokenizer.empty() || tokenizer == "GPT2BPETokenizer")) return 50257;
  if (tokenizer == "Llama2Tokenizer") return 32000;
  // A file that is named for its size, "nemotron_2_256k.model", in thousands.
  const std::string file = a.text("--tokenizer-model");
  const std::size_t end = file.find("k.model");
  std::size_t begin = end;
  while (end != std::string::npos && begin > 0 && is_digit(file[begin - 1])) --begin;
  if (begin != end) return 1000 * std::stoll(file.substr(begin, end - begin));
  throw Error("the vocabulary is not stated: the tokenizer decides; --vocab-size says it");
}

// In whole rows for each rank (_vocab_size_with_padding in Megatron-LM's tokenizers).
std::int64_t padded_vocabulary(const Arguments& a) {
  const std::int64_t unit = a.whole("--make-vocab-size-divisible-by").value_or(128) *
                            a.whole("--tensor-model-parallel-size").value_or(1);
  return ceil_div(vocabulary_of(a), unit) * unit;
}

std::vector<LayerKind> layers_of_pattern(const std::string& pattern) {
  std::vector<LayerKind> layers;
  for (const char c : pattern.substr(0, pattern.find('/'))) {
    if (c == '|') continue;
    LayerKind kind{.mixer = Mixer::none};
    if (c == 'M' || c == '*') {
      kind = {.mixer = c == 'M' ? Mixer::mamba : Mixer::attention, .mlp = false};
    } else if (c == 'E') {
      kind.moe = true;
    } else if (c != '-') {
      throw Error(fmt::format("the pattern of layers holds '{}'; only M, *, - and E are modelled",
                              shown(std::string(1, c))));
    }
    layers.push_back(kind);
  }
  return layers;
}

MambaSpec mamba_of(const Arguments& a, std::int64_t hidden) {
  MambaSpec s;
  s.head_dim = a.whole("--mamba-head-dim").value_or(64);
  s.num_heads = a.whole("--mamba-num-heads").value_or(2 * hidden / s.head_dim);
  s.num_groups = a.whole("--mamba-num-groups").value_or(8);
  s.state_size = a.whole("--mamba-state-dim").value_or(128);
  return s;
}

MoeSpec experts_of(const Arguments& a, std::int64_t wide) {
  MoeSpec moe;
  moe.num_experts = *a.whole("--num-experts");
  moe.top_k = a.whole("--moe-router-topk").value_or(2);
  moe.moe_intermediate_size = a.whole("--moe-ffn-hidden-size").value_or(wide);
  moe.shared_expert_intermediate_size =
      a.whole("--moe-shared-expert-intermediate-size").value_or(0);
  moe.latent_size = a.whole("--moe-latent-size").value_or(0);
  moe.router_bias = a.has("--moe-router-enable-expert-bias");
  moe.expert_bias = !a.has("--disable-bias-linear");
  moe.sigmoid_scores = a.text("--moe-router-score-function") == "sigmoid";
  moe.num_groups = a.whole("--moe-router-num-groups").value_or(1);
  moe.topk_group = a.whole("--moe-router-group-topk").value_or(1);
  return moe;
}

MlaSpec latent_attention_of(const Arguments& a) {
  return {.q_lora_rank = a.whole("--q-lora-rank").value_or(0),
          .kv_lora_rank = a.whole("--kv-lora-rank").value_or(512),
          .qk_nope_head_dim = a.whole("--qk-head-dim").value_or(128),
          .qk_rope_head_dim = a.whole("--qk-pos-emb-head-dim").value_or(64),
          .v_head_dim = a.whole("--v-head-dim").value_or(128)};
}

void refuse_other_kinds(const Arguments& a) {
  if (a.whole("--encoder-num-layers")) throw Error("an encoder beside a decoder is not modelled");
  if (a.text("--tokenizer-type").starts_with("BertWordPiece")) {
    throw Error("an encoder that learns from words left out is not modelled");
  }
  if (a.has("--perform-rl-step")) throw Error("a step of reinforcement learning has other phases");
  if (a.has("--export-kd-teacher-load")) throw Error("a teacher's forward is not modelled");
  if (a.has("--is-hybrid-model") && a.text("--hybrid-layer-pattern").empty() &&
      a.text("--hybrid-override-pattern").empty()) {
    throw Error("the pattern of a hybrid model's layers is not stated");
  }
}

// Ends of a checkpoint's name that say how it was trained or stored, not of what size it is.
constexpr std::array<std::string_view, 30> kEnds{
    "-instruct", "-chat", "-hf",      "-base", "-it",   "-thinking",  "-2507",    "-fp16",
    "-bf16",     "-fp8",  "-4bit",    "-8bit", "-bnb",  "-unsloth",   "-dynamic", "-gptq",
    "-awq",      "-int4", "-int8",    "-v0.1", "-v0.2", "-v0.3",      "-v1",      "-aqlm",
    "-2bit",     "-1x16", "-preview", "-text", "-nf4",  "-linearized"};

}  // namespace

std::string built_in_of_id(const std::string& id) {
  std::string name = lower_case(id.substr(id.rfind('/') + 1));  // npos + 1: it has no owner
  if (name.starts_with("meta-")) name.erase(0, 5);
  for (;;) {
    const auto end = std::find_if(kEnds.begin(), kEnds.end(),
                                  [&](std::string_view word) { return name.ends_with(word); });
    if (is_built_in(name)) return name;
    if (end == kEnds.end()) break;
    name.resize(name.size() - end->size());
  }
  // "llama-3-8b" is the size of "llama3-8b".
  if (name.starts_with("llama-")) name.erase(5, 1);
  return is_built_in(name) ? name : "";
}

std::string model_id_of_files(const JobFiles& files) {
  for (const ConfigPart& part : files.parts) {
    if (part.dialect == Dialect::verl) return model_of_verl(part.settings);
    if (part.dialect == Dialect::nemo_rl) return model_of_nemo_rl(part.settings);
    if (part.dialect == Dialect::torchtitan_toml) return model_of_titan_toml(part.settings);
    if (part.dialect == Dialect::torchtune) return model_of_torchtune(part.settings);
    if (part.dialect == Dialect::bridge) {
      std::string model = model_of_bridge(files.bridge);
      for (const PythonText& text : files.python) {
        if (model.empty()) model = model_of_bridge(text);
      }
      if (!model.empty()) return model;
    }
    if (const Setting* const id = part.settings.find(kPrimeRlModel)) return text_of(id->value);
    const FineTuner* const tuner = finetuner_of(part.dialect);
    if (tuner == nullptr) continue;
    for (const std::string_view key : tuner->model_keys) {
      const Setting* const id = part.settings.find(key);
      if (id != nullptr && id->value.is_string()) return id->value.get<std::string>();
    }
  }
  return "";
}

ModelSpec shapes_of_files(const JobFiles& files) {
  const Arguments a(files);
  refuse_other_kinds(a);
  const std::string pattern =
      a.text("--hybrid-layer-pattern") + a.text("--hybrid-override-pattern");
  ModelSpec m;
  m.name = m.architecture = "arguments";
  const auto needed = [&a](std::string_view key) {
    const auto value = a.whole(key);
    if (!value) throw Error(fmt::format("{} is not stated", key));
    return *value;
  };
  m.hidden_size = needed("--hidden-size");
  m.num_attention_heads = needed("--num-attention-heads");
  m.num_key_value_heads = key_value_heads(a, m.num_attention_heads);
  m.head_dim = a.whole("--kv-channels").value_or(m.hidden_size / m.num_attention_heads);
  if (m.head_dim == 0 || m.num_attention_heads % m.num_key_value_heads != 0) {
    throw Error(
        fmt::format("{} query heads, {} key-value heads and a width of {} do not go together",
                    m.num_attention_heads, m.num_key_value_heads, m.hidden_size));
  }
  m.max_position_embeddings = a.whole("--max-position-embeddings").value_or(4096);
  m.vocab_size = padded_vocabulary(a);
  const bool gated = a.has("--swiglu");
  m.intermediate_size = mlp_width(a, m.hidden_size, gated);
  m.mlp = gated ? MlpKind::swiglu : a.has("--squared-relu") ? MlpKind::relu2 : MlpKind::gelu;
  m.norm = a.text("--normalization") == "RMSNorm" ? Norm::rms_norm : Norm::layer_norm;
  const std::string position = a.text("--position-embedding-type");
  m.position = turns(a) || position == "yarn" || a.has("--multi-latent-attention")
                   ? PositionEmbedding::rope
               : position == "none" || !pattern.empty() ? PositionEmbedding::none
                                                        : PositionEmbedding::learned;
  const bool bias = !a.has("--disable-bias-linear");
  m.qkv_bias = bias || a.has("--add-qkv-bias");
  m.attention_output_bias = m.mlp_bias = bias;
  m.tie_word_embeddings = !a.has("--untie-embeddings-and-output-weights");
  m.num_mtp_layers = a.whole("--mtp-num-layers").value_or(0);
  if (a.has("--multi-latent-attention")) {
    m.mla = latent_attention_of(a);
  } else {
    m.qk_norm = a.has("--qk-layernorm");
  }
  if (a.whole("--num-experts")) m.moe = experts_of(a, m.intermediate_size);
  if (!pattern.empty()) {
    m.layers = layers_of_pattern(pattern);
    m.mamba = mamba_of(a, m.hidden_size);
  } else {
    m.layers.assign(static_cast<std::size_t>(needed("--num-layers")), LayerKind{});
    const std::string every = a.text("--moe-layer-freq");
    const std::vector<bool> sparse = moe_layers(every.empty() ? "1" : every, m.layers.size());
    if (sparse.size() != m.layers.size()) {
      throw Error(
          fmt::format("--moe-layer-freq lists {} layers of {}", sparse.size(), m.layers.size()));
    }
    for (std::size_t i = 0; m.moe && i < sparse.size(); ++i) m.layers[i].moe = sparse[i];
  }
  m.num_layers = static_cast<std::int64_t>(m.layers.size());
  return m;
}

std::optional<ModelOfFiles> model_of_files(const JobFiles& files) {
  if (const ConfigPart* const nanotron = files.find(Dialect::nanotron)) {
    Json config = config_of_nanotron(nanotron->settings);
    if (config.is_null()) return std::nullopt;
    return ModelOfFiles{std::move(config), {}};
  }
  const Arguments a(files);
  const auto hidden = a.size("--hidden-size", 4096), layers = a.size("--num-layers", 32),
             heads = a.size("--num-attention-heads", 32);
  if (!hidden || !layers || !heads || is_of_another_kind(a)) return std::nullopt;
  const bool mixed = is_mixed(a), grouped = key_value_heads(a, *heads) != *heads;
  if (mixed && !makes_model(files)) return std::nullopt;
  ModelOfFiles found;
  found.config = mixed         ? megatron_gpt(a, *hidden, *layers, *heads)
                 : is_gated(a) ? llama(a, *hidden, *layers, *heads)
                 : grouped     ? megatron_gpt(a, *hidden, *layers, *heads)
                               : gpt2(a, *hidden, *layers, *heads);
  const auto words = a.whole("--vocab-size");
  found.config["vocab_size"] = words.value_or(kUnsaidVocabulary);
  if (!words) {
    found.assumed.push_back(fmt::format(
        "a vocabulary of {} tokens: the tokenizer decides; --model or --vocab-size says it",
        kUnsaidVocabulary));
  }
  return found;
}

std::string why_no_model(const JobFiles& files) {
  if (files.find(Dialect::nanotron) != nullptr) {
    return "shapes are read of LlamaConfig and Qwen2Config without experts alone";
  }
  const Arguments a(files);
  std::vector<std::string> missing;
  constexpr std::array<std::string_view, 3> kShapes{"--hidden-size", "--num-layers",
                                                    "--num-attention-heads"};
  for (const std::string_view key : kShapes) {
    if (!a.size(key, 1)) missing.emplace_back(key);
  }
  for (const ConfigPart& part : files.parts) {
    if (!takes_megatrons(part.dialect)) continue;
    for (const Setting& setting : part.settings) {
      for (const std::string& key : missing) {
        if (setting.key == key || edit_distance(setting.key, key) > 2) continue;
        return fmt::format("{}: {} is no argument; did you mean {}?", to_string(setting.place),
                           shown(setting.key), key);
      }
    }
  }
  if (missing.size() == kShapes.size()) return "";
  if (!missing.empty()) return fmt::format("{} is not said", fmt::join(missing, " and "));
  if (is_of_another_kind(a)) {
    return "layers of their kind have shapes that arguments alone do not tell";
  }
  return "layers of these kinds are none of a known model, and the script may make others";
}

}  // namespace qplan
