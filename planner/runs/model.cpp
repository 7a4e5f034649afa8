#include "planner/runs/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "models/error.h"
#include "planner/runs/phrases.h"

namespace qplan {
namespace {

// Far above any model, so that products still fit 63 bits.
constexpr std::int64_t kMostLayers = 1 << 14, kWidest = 1 << 20, kMostWords = 1 << 28;

constexpr std::array<std::pair<Norm, std::string_view>, 2> kNorms{
    {{Norm::rms_norm, "rmsnorm"}, {Norm::layer_norm, "layernorm"}}};

// Sizes of a decoder without a zoo entry. GPT-2's vocabulary, padded as Megatron pads it to 128
// rows a rank at tp 8, is the tokenizer of every GPT recipe that names none.
constexpr std::int64_t kGpt2Vocabulary = 51200;

void require_sizes(const RunRow& row) {
  std::vector<std::string_view> missing;
  if (row.text("layers").empty() && row.text("params_b").empty()) missing.push_back("layers");
  if (row.text("hidden").empty()) missing.push_back("hidden");
  if (row.text("vocab").empty() && row.text("mlp") != "gelu") missing.push_back("vocab");
  if (missing.empty()) return;
  throw Error(
      fmt::format("no base_model, and the architecture columns lack {}", fmt::join(missing, ", ")));
}

ModelSpec blank_model(const RunRow& row, RecipeKind recipe) {
  require_sizes(row);
  ModelSpec m;
  m.name = row.text("model");
  if (row.text("mlp") == "gelu") {
    m.architecture = "gpt2";
    m.position = PositionEmbedding::learned;
    m.tie_word_embeddings = true;
    m.norm = Norm::layer_norm;
    m.vocab_size = kGpt2Vocabulary;
    // The GELU models of the FSDP1 recipe are llm-foundry's MPT, whose no_bias is true.
    m.qkv_bias = m.attention_output_bias = m.mlp_bias = recipe != RecipeKind::fsdp1;
  } else {
    m.architecture = "llama";
  }
  return m;
}

// More or fewer layers of the same model: the leading dense layers stay where they are, and what
// alternates goes on alternating.
void set_layers(ModelSpec& m, std::int64_t count) {
  const std::vector<LayerKind> before = m.layers;
  m.num_layers = count;
  m.num_mtp_layers = 0;  // a reduced model ends with its decoder
  m.layers.assign(static_cast<std::size_t>(count), LayerKind{});
  if (before.empty()) return;
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    // The last two layers repeat: enough for windows on every other layer.
    std::size_t from = i;
    if (from >= before.size() && before.size() >= 2)
      from = before.size() - 2 + (i - before.size()) % 2;
    m.layers[i] = before[std::min(from, before.size() - 1)];
  }
}

// In doubles, for the count itself must not overflow.
void check_size(const ModelSpec& m) {
  constexpr double kMostParameters = 1e15;
  const double experts =
      m.moe ? as_double(m.moe->num_experts) * as_double(m.moe->moe_intermediate_size) : 0;
  const double heads = as_double(m.num_attention_heads) * as_double(m.head_dim);
  const double mlps = as_double(m.intermediate_size) + experts;
  const double layer = as_double(m.hidden_size) * (4 * heads + 3 * mlps);
  const double words = as_double(m.vocab_size) * as_double(m.hidden_size);
  if (as_double(m.num_layers) * layer + words > kMostParameters) {
    throw Error("the architecture columns describe more than 1e15 parameters");
  }
}

// The layers that make the stated total, where nobody counts them.
std::int64_t layers_of_total(const RunRow& row, const ModelSpec& m) {
  const ParameterCount ends = count_parameters(m);
  const double rest = *row.number("params_b") * 1e9 - static_cast<double>(ends.total());
  const auto each = static_cast<double>(layer_parameters(m, LayerKind{}));
  return std::clamp<std::int64_t>(std::llround(rest / each), 1, kMostLayers);
}

// Where nobody says: heads as near to 128 wide as divides the width and splits over tp.
std::int64_t usual_heads(const RunRow& row, const ModelSpec& m) {
  constexpr double kUsualWidth = 128;
  const std::int64_t tp = row.whole("tp", 1, kMostLayers).value_or(1);
  const double wanted = static_cast<double>(m.hidden_size) / kUsualWidth;
  std::int64_t best = tp;
  for (std::int64_t heads = tp; heads <= m.hidden_size; heads += tp) {
    const auto distance = [&](std::int64_t n) { return std::abs(static_cast<double>(n) - wanted); };
    if (m.hidden_size % heads == 0 && distance(heads) < distance(best)) best = heads;
  }
  return best;
}

void set_heads(const RunRow& row, ModelSpec& m) {
  auto heads = row.whole("heads", 1, kWidest);
  if (!heads && m.num_attention_heads == 0) heads = usual_heads(row, m);
  const auto kv = row.whole("kv_heads", 1, kWidest);
  if (heads) {
    if (*heads != m.num_attention_heads) m.num_key_value_heads = *heads;
    m.num_attention_heads = *heads;
  }
  if (kv && !m.mla) m.num_key_value_heads = *kv;
  if (m.num_attention_heads % m.num_key_value_heads != 0) {
    throw Error(fmt::format("{} heads are no multiple of {} key-value heads", m.num_attention_heads,
                            m.num_key_value_heads));
  }
  const auto head_dim = row.whole("head_dim", 1, kWidest);
  if (head_dim && !m.mla) m.head_dim = *head_dim;
  if (m.head_dim == 0) m.head_dim = m.hidden_size / m.num_attention_heads;
  if (m.head_dim == 0) throw Error("hidden is smaller than heads");
}

void set_experts(const RunRow& row, ModelSpec& m) {
  const auto experts = row.whole("experts", 1, kMostLayers);
  if (!experts && !m.moe) return;
  if (!m.moe) {
    m.moe.emplace();
    for (LayerKind& layer : m.layers) layer.moe = true;
  }
  m.moe->num_experts = experts.value_or(m.moe->num_experts);
  m.moe->top_k = row.whole("topk", 1, kMostLayers).value_or(m.moe->top_k);
  m.moe->moe_intermediate_size =
      row.whole("moe_ffn", 1, kWidest).value_or(m.moe->moe_intermediate_size);
  if (m.moe->moe_intermediate_size == 0) m.moe->moe_intermediate_size = m.intermediate_size;
  if (m.moe->top_k < 1 || m.moe->top_k > m.moe->num_experts) {
    throw Error("experts without a topk that they allow");
  }
}

// Where neither base_model nor the columns say what the model is, its name does if it is a built-in
// model's.
std::string base_of_run(const RunRow& row) {
  const std::string& base = row.text("base_model");
  const bool described = !row.text("layers").empty() || !row.text("hidden").empty();
  if (!base.empty() || described || !is_built_in(row.text("model"))) return base;
  return row.text("model");
}

constexpr double kRoughly = 0.1;  // params_b and active_params_b are rounded to a name ("5B")

// Dense layers between those with experts have no column (Llama 4's interleave_moe_layer_step,
// Qwen's decoder_sparse_step); the total tells. Every step-th layer has experts.
void space_experts(const RunRow& row, ModelSpec& m) {
  const auto stated = row.number("params_b");
  if (!stated || !m.moe) return;
  constexpr std::size_t kWidestStep = 4;
  const auto off = [&] {
    const double counted = static_cast<double>(count_parameters(m).total()) / 1e9;
    return std::abs(counted / *stated - 1) > kRoughly;
  };
  for (std::size_t step = 1; off() && step <= kWidestStep; ++step) {
    for (std::size_t i = 0; i < m.layers.size(); ++i) m.layers[i].moe = (i + 1) % step == 0;
  }
  if (off()) {
    throw Error(
        fmt::format("no base_model, and the architecture columns do not add up to "
                    "params_b: {:.3g}B",
                    *stated));
  }
}

// Neither have shared experts a column; what a token uses besides its routed experts tells. Each is
// as wide as a routed one (DeepSeek's n_shared_experts, Llama 4's shared_expert).
void add_shared_experts(const RunRow& row, ModelSpec& m) {
  const auto stated = row.number("active_params_b");
  if (!stated || !m.moe || m.moe->shared_expert_intermediate_size > 0) return;
  const auto counted = [&] { return static_cast<double>(count_parameters(m).active()) / 1e9; };
  const double routed = counted();
  if (*stated < routed * (1 + kRoughly)) return;
  std::int64_t& width = m.moe->shared_expert_intermediate_size;
  width = m.moe->moe_intermediate_size;
  const double experts = std::round((*stated - routed) / (counted() - routed));
  width *= static_cast<std::int64_t>(std::min(experts, as_double(kMostLayers)));
  if (std::abs(counted() / *stated - 1) > kRoughly) width = 0;
}

}  // namespace

void set_model(const RunRow& row, RunInputs& in) {
  const std::string base = base_of_run(row);
  if (base.find('/') != std::string::npos) throw Error("base_model is no built-in model");
  in.model = base.empty() ? blank_model(row, in.recipe) : load_model(base);
  ModelSpec& m = in.model;
  // Known by its name alone, a model is what its config says; these columns hold what most are.
  const bool by_name = base != row.text("base_model");
  if (const auto kind = try_from_word<MlpKind>(row.text("mlp")); kind && !by_name) m.mlp = *kind;
  for (const auto& [norm, word] : kNorms) {
    if (row.text("norm") == word && !by_name) m.norm = norm;
  }
  m.hidden_size = row.whole("hidden", 1, kWidest).value_or(m.hidden_size);
  m.vocab_size = row.whole("vocab", 1, kMostWords).value_or(m.vocab_size);
  m.intermediate_size = row.whole("ffn", 1, 4 * kWidest).value_or(m.intermediate_size);
  if (m.intermediate_size == 0) m.intermediate_size = 4 * m.hidden_size;
  const auto layers = row.whole("layers", 1, kMostLayers);
  if (layers && *layers != m.num_layers) set_layers(m, *layers);
  set_heads(row, m);
  check_size(m);
  if (m.num_layers == 0) set_layers(m, layers_of_total(row, m));
  set_experts(row, m);
  check_size(m);
  for (const char* column : {"framework", "notes"}) {
    known_phrases().apply_to_model(column, row.text(column), row, in);
  }
  m.tie_word_embeddings = row.yes("tied_embeddings").value_or(m.tie_word_embeddings);
  m.max_position_embeddings = std::max(m.max_position_embeddings,
                                       row.whole("seq_len", 1, std::int64_t{1} << 30).value_or(0));
  if (!base.empty()) return;
  space_experts(row, m);
  add_shared_experts(row, m);
}

}  // namespace qplan
