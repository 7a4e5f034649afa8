// read_model(): which architecture a config.json is of, and what holds of all of them. The sizes
// that make the model have no default and are required.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/config/architectures.h"
#include "models/error.h"
#include "models/json.h"
#include "models/model_spec.h"

namespace qplan {
namespace {

constexpr double kMostParameters = 1e15;

struct Architecture {
  std::string_view model_type;
  void (*read)(JsonReader&, ModelSpec&);
  bool offered = true;  // to be named as what a config.json is
};

constexpr std::array kArchitectures{
    Architecture{"cohere", config::read_cohere},
    Architecture{"cohere2", config::read_cohere2},
    Architecture{"deepseek_v2", config::read_deepseek_v2},
    Architecture{"deepseek_v3", config::read_deepseek_v3},
    Architecture{"deepseek_v32", config::read_deepseek_v32},
    Architecture{"ernie4_5", config::read_ernie4_5},
    Architecture{"ernie4_5_moe", config::read_ernie4_5_moe},
    Architecture{"gemma3", config::read_gemma3},
    Architecture{"gemma3_text", config::read_gemma3_text},
    Architecture{"glm4", config::read_glm4},
    Architecture{"glm4_moe", config::read_glm4_moe},
    Architecture{"gpt2", config::read_gpt2},
    Architecture{"gpt_oss", config::read_gpt_oss},
    Architecture{"hunyuan_v1_dense", config::read_hunyuan_v1_dense},
    Architecture{"hunyuan_v1_moe", config::read_hunyuan_v1_moe},
    Architecture{"internlm3", config::read_internlm3},
    Architecture{"kimi_k2", config::read_deepseek_v3},  // as its own code reads it
    Architecture{"llama", config::read_llama},
    Architecture{"llama4", config::read_llama4},
    Architecture{"llama4_text", config::read_llama4_text},
    Architecture{"megatron_gpt", config::read_megatron_gpt, false},  // qplan's own, of arguments
    Architecture{"mimo", config::read_mimo},
    Architecture{"minimax_m2", config::read_minimax_m2},
    Architecture{"mistral", config::read_mistral},
    Architecture{"mixtral", config::read_mixtral},
    Architecture{"nemotron", config::read_nemotron},
    Architecture{"nemotron_h", config::read_nemotron_h},
    Architecture{"olmo2", config::read_olmo2},
    Architecture{"olmo3", config::read_olmo3},
    Architecture{"phi3", config::read_phi3},
    Architecture{"qwen2", config::read_qwen2},
    Architecture{"qwen2_5_vl", config::read_qwen2_5_vl},
    Architecture{"qwen2_5_vl_text", config::read_qwen2_5_vl_text},
    Architecture{"qwen2_moe", config::read_qwen2_moe},
    Architecture{"qwen3", config::read_qwen3},
    Architecture{"qwen3_5", config::read_qwen3_5},
    Architecture{"qwen3_5_moe", config::read_qwen3_5_moe},
    Architecture{"qwen3_5_moe_text", config::read_qwen3_5_moe_text},
    Architecture{"qwen3_5_text", config::read_qwen3_5_text},
    Architecture{"qwen3_moe", config::read_qwen3_moe},
    Architecture{"qwen3_next", config::read_qwen3_next},
    Architecture{"qwen3_vl", config::read_qwen3_vl},
    Architecture{"qwen3_vl_moe", config::read_qwen3_vl_moe},
    Architecture{"qwen3_vl_moe_text", config::read_qwen3_vl_moe_text},
    Architecture{"qwen3_vl_text", config::read_qwen3_vl_text},
    Architecture{"seed_oss", config::read_seed_oss},
};

// What people train and qplan cannot price: said by name, for a kin's figures would mislead.
struct Unmodelled {
  std::string_view model_type, why, kin;
};

constexpr std::array kUnmodelled{
    Unmodelled{"deepseek_v4", "attends to compressed keys and keeps several residual streams",
               "deepseek_v32"},
    Unmodelled{"gemma2", "caps attention's scores and logits", "gemma3_text"},
    Unmodelled{"glm_moe_dsa", "shares what an indexer chooses between layers", "deepseek_v32"},
    Unmodelled{"kimi_linear",
               "has Kimi Delta Attention in three layers of four, whose states forget each channel "
               "at a rate of its own",
               "qwen3_next"},
    Unmodelled{"mimo_v2_flash", "has values narrower than keys", "mimo"},
    Unmodelled{"minimax", "mixes lightning attention layers with attention", "minimax_m2"},
    Unmodelled{"minimax_m1", "mixes lightning attention layers with attention", "minimax_m2"},
    Unmodelled{"minimax_text_01", "mixes lightning attention layers with attention", "minimax_m2"},
};

std::vector<std::string> known_architectures() {
  std::vector<std::string> known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.offered) known.emplace_back(architecture.model_type);
  }
  return known;
}

const Architecture* find_architecture(std::string_view type) {
  const auto* const found =
      std::find_if(kArchitectures.begin(), kArchitectures.end(),
                   [type](const Architecture& known) { return known.model_type == type; });
  return found == kArchitectures.end() ? nullptr : found;
}

const Architecture& architecture_of(JsonReader& in) {
  const std::string type = in.string("model_type");
  if (const Architecture* known = find_architecture(type)) return *known;
  for (const Unmodelled& unmodelled : kUnmodelled) {
    if (type != unmodelled.model_type) continue;
    in.fail("model_type",
            fmt::format("'{}' {}, which is not modelled; its nearest kin that is has --as {}", type,
                        unmodelled.why, unmodelled.kin));
  }
  // A wrapper of a text model that is known: LLaVA's, Mistral 3's.
  if (const auto inner = in.object().find("text_config"); inner != in.object().end()) {
    const Json of_text = inner->is_object() ? inner->value("model_type", Json()) : Json();
    if (of_text.is_string() && find_architecture(of_text.get<std::string>()) != nullptr) {
      in.fail("model_type",
              fmt::format(
                  "'{}' is unknown, and its text_config is a {}; give that alone as a config.json, "
                  "without the towers beside it",
                  shown(type), of_text.get<std::string>()));
    }
  }
  const std::vector<std::string> known = known_architectures();
  in.fail("model_type",
          fmt::format("'{}' is unknown; choose one of {}, or --as one of them{}", shown(type),
                      fmt::join(known, ", "), did_you_mean(type, known)));
}

// The architecture that a config.json of an unknown one is to be read as.
const Architecture& architecture_asked_for(JsonReader& in, std::string_view as) {
  const Architecture* const asked = find_architecture(as);
  if (asked == nullptr) {
    const std::vector<std::string> known = known_architectures();
    throw Error(fmt::format("--as: '{}' is unknown; choose one of {}{}", shown(as),
                            fmt::join(known, ", "), did_you_mean(as, known)));
  }
  const std::string own = in.string_or("model_type", "");
  if (find_architecture(own) != nullptr) {
    in.fail("model_type", fmt::format("is '{}', which is read as what it is; leave --as out", own));
  }
  return *asked;
}

// Keys of a config.json that say nothing about a step, whatever the architecture.
bool is_of_no_interest(std::string_view key) {
  constexpr std::array<std::string_view, 18> keys{"model_type",
                                                  "architectures",
                                                  "auto_map",
                                                  "torch_dtype",
                                                  "dtype",
                                                  "transformers_version",
                                                  "use_cache",
                                                  "initializer_range",
                                                  "_name_or_path",
                                                  "pretraining_tp",
                                                  "id2label",
                                                  "label2id",
                                                  "tokenizer_class",
                                                  "return_dict",
                                                  "output_attentions",
                                                  "output_hidden_states",
                                                  "output_router_logits",
                                                  "generation_config"};
  return key.ends_with("_token_id") || key.ends_with("_token_index") ||
         std::find(keys.begin(), keys.end(), key) != keys.end();
}

// What the config says and nobody read. A switch that is off, a zero and a null say nothing.
std::vector<std::string> ignored_keys(const JsonReader& in) {
  std::vector<std::string> ignored;
  for (const std::string& key : in.never_asked_for()) {
    const Json& value = in.object().at(key);
    const bool off = value.is_null() || value == false || (value.is_number() && value == 0);
    if (!off && !is_of_no_interest(key)) ignored.push_back(key);
  }
  return ignored;
}

// In doubles, for the count itself must not overflow.
void check_total(const JsonReader& in, const ModelSpec& m) {
  double total = 0;
  std::optional<LayerKind> last;
  double last_parameters = 0;
  for (const LayerKind& kind : m.layers) {
    if (kind != last) last_parameters = static_cast<double>(layer_parameters(m, kind));
    last = kind;
    total += last_parameters;
  }
  if (total > kMostParameters) {
    in.fail("model_type",
            fmt::format("'{}' with these sizes has {:.1e} parameters, more than {:.0e}; check them",
                        m.architecture, total, kMostParameters));
  }
}

ModelSpec read_once(const Json& config, std::string_view where, std::string_view as) {
  JsonReader in(config, std::string(where) + ":");
  const Architecture& architecture =
      as.empty() ? architecture_of(in) : architecture_asked_for(in, as);
  ModelSpec model;
  model.name = std::filesystem::path(where).stem().string();
  model.architecture = architecture.model_type;
  architecture.read(in, model);
  if (!as.empty()) model.read_as = ReadAs{in.string_or("model_type", ""), ignored_keys(in)};
  check_total(in, model);
  const bool sparse = std::any_of(model.layers.begin(), model.layers.end(),
                                  [](const LayerKind& layer) { return layer.moe; });
  if (!sparse && model.num_mtp_layers == 0) model.moe.reset();  // experts described, none used
  return model;
}

// A value for a key that is missing, with which the others can be looked for: one that passes the
// readers' own checks of how sizes fit each other.
Json stand_in(std::string_view key, const Json& object) {
  const auto known = [&](std::string_view other, std::int64_t fallback) {
    const auto found = object.find(std::string(other));
    return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>()
                                                               : fallback;
  };
  if (key.ends_with("_config")) return Json::object();
  constexpr std::int64_t kHeads = 128;  // a multiple of every class's key-value heads
  if (key == "hidden_size") return 2 * known("num_attention_heads", kHeads);
  if (key == "n_embd") return 2 * known("n_head", 64);
  if (key == "num_attention_heads") {
    const bool divides = known("hidden_size", kHeads) % kHeads == 0;
    return known("num_key_value_heads", divides ? kHeads : 1);
  }
  const bool experts =
      key.ends_with("num_experts") || key == "n_routed_experts" || key == "num_local_experts";
  return experts ? known("num_experts_per_tok", known("moe_k", 1)) * known("n_group", 1) : 1;
}

// The object that a path below `prefix` ("text_config.hidden_size") lies in, and its key there.
Json& object_of(Json& config, std::string_view path, std::string& key) {
  Json* object = &config;
  for (std::size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
    object = &(*object)[std::string(path.substr(0, dot))];
    path.remove_prefix(dot + 1);
  }
  key = path;
  return *object;
}

// Every key that is missing beside the first. What else is wrong is said once they are there.
Error all_missing(Json config, std::string_view where, std::string_view as, MissingKey missing) {
  constexpr std::size_t kMost = 32;
  const std::string prefix = std::string(where) + ": ";
  std::vector<std::string> keys, hints;
  const std::string alone = missing.what();
  while (keys.size() < kMost && missing.path().starts_with(prefix)) {
    const std::string path = missing.path().substr(prefix.size());
    if (std::find(keys.begin(), keys.end(), path) != keys.end()) break;
    keys.push_back(path);
    // A near name may be a stand-in of ours.
    const std::string parent = path.substr(0, path.find_last_of('.') + 1);
    const bool own = std::find(keys.begin(), keys.end(), parent + missing.hint()) == keys.end();
    if (own && !missing.hint().empty()) {
      hints.push_back(fmt::format("'{}' for {}", missing.hint(), path));
    }
    std::string key;
    Json& object = object_of(config, path, key);
    if (!object.is_object()) break;
    object[key] = stand_in(key, object);
    try {
      read_once(config, where, as);
      break;
    } catch (const MissingKey& next) {
      missing = next;
    } catch (const Error&) {
      break;
    }
  }
  if (keys.size() < 2) return Error(alone);
  const std::string last = keys.back();
  keys.pop_back();
  return Error(
      fmt::format("{}{} and {} are missing{}", prefix, fmt::join(keys, ", "), last,
                  hints.empty() ? "" : fmt::format("; did you mean {}?", fmt::join(hints, ", "))));
}

}  // namespace

ModelSpec read_model(const Json& config, std::string_view where, std::string_view as) {
  try {
    return read_once(config, where, as);
  } catch (const MissingKey& first) {
    // Without its type nothing else is known to be missing.
    if (first.path().ends_with(": model_type")) throw;
    throw all_missing(config, where, as, first);
  }
}

std::vector<std::string> model_notes(const ModelSpec& m) {
  std::vector<std::string> notes;
  if (m.read_as) {
    const std::vector<std::string>& ignored = m.read_as->ignored_keys;
    notes.push_back(fmt::format("model_type '{}' is unknown and read as {}; {}",
                                shown(m.read_as->model_type), m.architecture,
                                ignored.empty()
                                    ? "it has no key that this ignores"
                                    : fmt::format("ignored of it: {}", fmt::join(ignored, ", "))));
  }
  for (const std::string& part : m.left_out) {
    notes.push_back(fmt::format("the model's {} is left out: a step of text alone", part));
  }
  if (!m.unmodelled.empty()) {
    notes.push_back(fmt::format("the model has {}, which is not modelled: no time, no memory",
                                fmt::join(m.unmodelled, " and ")));
  }
  return notes;
}

}  // namespace qplan
