#include "planner/frameworks/model_of_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "models/error.h"
#include "models/model_spec.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuners.h"
#include "planner/frameworks/rl/rl.h"

namespace qplan {
namespace {

// Wanted where the tokenizer decides: Llama 3's, in the middle of what is in use.
constexpr std::int64_t kUnsaidVocabulary = 128256;

bool takes_megatrons(const ConfigPart& part) {
  return part.dialect == Dialect::megatron || part.dialect == Dialect::slime ||
         part.dialect == Dialect::megatron_deepspeed;
}

// The job's arguments, whichever of its files have them.
class Arguments {
 public:
  explicit Arguments(const JobFiles& files) {
    for (const ConfigPart& part : files.parts) {
      if (takes_megatrons(part)) all_.append(part.settings);
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
  // Nothing: not said, known only when it runs, or no number.
  [[nodiscard]] std::optional<std::int64_t> whole(std::string_view key) const {
    const Setting* const found = all_.find(key);
    if (found == nullptr || !found->resolved) return std::nullopt;
    try {
      return whole_of(found->value, 1, std::int64_t{1} << 40);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

 private:
  Settings all_;
};

bool is_of_another_kind(const Arguments& a) {
  constexpr std::array<std::string_view, 8> kOthers{"--multi-latent-attention",
                                                    "--hybrid-layer-pattern",
                                                    "--hybrid-override-pattern",
                                                    "--is-hybrid-model",
                                                    "--experimental-attention-variant",
                                                    "--squared-relu",
                                                    "--moe-latent-size",
                                                    "--spec"};
  return std::any_of(kOthers.begin(), kOthers.end(), [&](auto key) { return a.has(key); });
}

bool turns(const Arguments& a) {
  return a.has("--use-rotary-position-embeddings") || a.text("--position-embedding-type") == "rope";
}

Json gpt2(const Arguments& a, std::int64_t hidden, std::int64_t layers, std::int64_t heads) {
  return {{"model_type", "gpt2"},
          {"n_embd", hidden},
          {"n_layer", layers},
          {"n_head", heads},
          {"n_inner", a.whole("--ffn-hidden-size").value_or(4 * hidden)},
          {"n_positions", a.whole("--max-position-embeddings").value_or(2048)},
          {"activation_function", "gelu_new"},
          {"tie_word_embeddings", !a.has("--untie-embeddings-and-output-weights")}};
}

Json llama(const Arguments& a, std::int64_t hidden, std::int64_t layers, std::int64_t heads) {
  const bool experts = a.whole("--num-experts").has_value();
  const bool norms = a.has("--qk-layernorm");
  // With --swiglu two thirds of 4 h, in multiples of 64 (transformer_config.py).
  const std::int64_t wide = a.whole("--ffn-hidden-size").value_or(8 * hidden / 3 / 64 * 64);
  const bool groups = a.has("--group-query-attention") ||
                      (!a.has("--num-query-groups") && a.has("--num-key-value-heads"));
  const std::int64_t said =
      a.whole("--num-query-groups").value_or(a.whole("--num-key-value-heads").value_or(heads));
  const bool bias = !a.has("--disable-bias-linear");
  Json config{{"model_type", experts ? "qwen3_moe"
                             : norms ? "qwen3"
                                     : "llama"},
              {"hidden_size", hidden},
              {"num_hidden_layers", layers},
              {"num_attention_heads", heads},
              {"num_key_value_heads", groups ? said : heads},
              {"intermediate_size", wide},
              {"hidden_act", "silu"},
              {"max_position_embeddings", a.whole("--max-position-embeddings").value_or(4096)},
              {"rope_theta", a.whole("--rotary-base").value_or(10000)},
              {"attention_bias", bias},
              {"mlp_bias", bias},
              {"tie_word_embeddings", !a.has("--untie-embeddings-and-output-weights")}};
  if (const auto channels = a.whole("--kv-channels")) {
    config["head_dim"] = *channels;
  } else {
    config["head_dim"] = hidden / heads;
  }
  if (!experts) return config;
  config["num_experts"] = *a.whole("--num-experts");
  config["num_experts_per_tok"] = a.whole("--moe-router-topk").value_or(2);
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
    const FineTuner* const tuner = finetuner_of(part.dialect);
    if (tuner == nullptr) continue;
    for (const std::string_view key : tuner->model_keys) {
      const Setting* const id = part.settings.find(key);
      if (id != nullptr && id->value.is_string()) return id->value.get<std::string>();
    }
  }
  return "";
}

std::optional<ModelOfFiles> model_of_files(const JobFiles& files) {
  const Arguments a(files);
  const auto hidden = a.whole("--hidden-size"), layers = a.whole("--num-layers"),
             heads = a.whole("--num-attention-heads");
  if (!hidden || !layers || !heads || is_of_another_kind(a)) return std::nullopt;
  const bool gated = a.has("--swiglu");
  if (turns(a) != gated || (!gated && a.has("--num-experts"))) return std::nullopt;
  ModelOfFiles found;
  found.config = gated ? llama(a, *hidden, *layers, *heads) : gpt2(a, *hidden, *layers, *heads);
  const auto words = a.whole("--vocab-size");
  found.config["vocab_size"] = words.value_or(kUnsaidVocabulary);
  if (!words) {
    found.assumed.push_back(fmt::format(
        "a vocabulary of {} tokens: the tokenizer decides; --model or --vocab-size says it",
        kUnsaidVocabulary));
  }
  return found;
}

}  // namespace qplan
