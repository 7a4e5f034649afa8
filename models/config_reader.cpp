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
};

constexpr std::array kArchitectures{
    Architecture{"deepseek_v2", config::read_deepseek_v2},
    Architecture{"deepseek_v3", config::read_deepseek_v3},
    Architecture{"glm4_moe", config::read_glm4_moe},
    Architecture{"gpt2", config::read_gpt2},
    Architecture{"gpt_oss", config::read_gpt_oss},
    Architecture{"kimi_k2", config::read_deepseek_v3},  // as its own code reads it
    Architecture{"llama", config::read_llama},
    Architecture{"llama4", config::read_llama4},
    Architecture{"llama4_text", config::read_llama4_text},
    Architecture{"minimax_m2", config::read_minimax_m2},
    Architecture{"mistral", config::read_mistral},
    Architecture{"mixtral", config::read_mixtral},
    Architecture{"nemotron", config::read_nemotron},
    Architecture{"nemotron_h", config::read_nemotron_h},
    Architecture{"qwen2", config::read_qwen2},
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
    Unmodelled{"deepseek_v32", "attends to keys that an indexer chooses", "deepseek_v3"},
    Unmodelled{"glm_moe_dsa", "attends to keys that an indexer chooses", "glm4_moe"},
    Unmodelled{"minimax", "mixes lightning attention layers with attention", "minimax_m2"},
};

const Architecture& find_architecture(JsonReader& in) {
  const std::string type = in.string("model_type");
  std::vector<std::string> known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.model_type == type) return architecture;
    known.emplace_back(architecture.model_type);
  }
  for (const Unmodelled& unmodelled : kUnmodelled) {
    if (type != unmodelled.model_type) continue;
    in.fail("model_type",
            fmt::format("'{}' {}, which is not modelled; {} is its nearest kin that is", type,
                        unmodelled.why, unmodelled.kin));
  }
  in.fail("model_type", fmt::format("'{}' is unknown; choose one of {}{}", shown(type),
                                    fmt::join(known, ", "), did_you_mean(type, known)));
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

}  // namespace

ModelSpec read_model(const Json& config, std::string_view where) {
  JsonReader in(config, std::string(where) + ":");
  const Architecture& architecture = find_architecture(in);
  ModelSpec model;
  model.name = std::filesystem::path(where).stem().string();
  model.architecture = architecture.model_type;
  architecture.read(in, model);
  check_total(in, model);
  const bool sparse = std::any_of(model.layers.begin(), model.layers.end(),
                                  [](const LayerKind& layer) { return layer.moe; });
  if (!sparse && model.num_mtp_layers == 0) model.moe.reset();  // experts described, none used
  return model;
}

}  // namespace qplan
