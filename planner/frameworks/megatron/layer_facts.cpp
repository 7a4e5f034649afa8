// Which layer is what, as Megatron's flags have it.

#include "planner/frameworks/megatron/layer_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "models/error.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/megatron/shared.h"

namespace qplan::megatron {
namespace {

// Layers after which everything is so again.
template <class Is>
std::size_t period(const std::vector<LayerKind>& layers, Is so) {
  for (std::size_t n = 1; n < layers.size(); ++n) {
    const auto end = layers.end() - static_cast<std::ptrdiff_t>(n);
    const bool again =
        std::equal(layers.begin(), end, layers.begin() + static_cast<std::ptrdiff_t>(n),
                   [&](const LayerKind& a, const LayerKind& b) { return so(a) == so(b); });
    if (layers.size() % n == 0 && again) return n;
  }
  return layers.size();
}

// "([0]*3+[1]*58)", or "([0]*1+[1]*1)*24": which layers are so.
template <class Is>
std::string layer_list(const std::vector<LayerKind>& layers, Is so) {
  const std::size_t once = period(layers, so);
  std::string text;
  for (std::size_t from = 0; from < once;) {
    std::size_t to = from;
    while (to < once && so(layers[to]) == so(layers[from])) ++to;
    text += fmt::format("{}[{}]*{}", text.empty() ? "" : "+", so(layers[from]) ? 1 : 0, to - from);
    from = to;
  }
  const std::size_t times = layers.size() / once;
  return times == 1 || once == 1 ? fmt::format("({})", text) : fmt::format("({})*{}", text, times);
}

// n where the last of every n layers is so, and no other; 0: there is none.
template <class Is>
std::int64_t last_of_each(const std::vector<LayerKind>& layers, Is so) {
  const auto n = std::find_if(layers.begin(), layers.end(), so) - layers.begin() + 1;
  for (std::ptrdiff_t i = 0; i < std::ssize(layers); ++i) {
    if (so(layers[static_cast<std::size_t>(i)]) != ((i + 1) % n == 0)) return 0;
  }
  return n;
}

// A number n, or a list: do both say the same? The list's ones are the last of every n layers, or
// the others.
bool same_by_last(const Json& a, const Json& b, bool ones_are_last) {
  const std::string x = text_of(a), y = text_of(b);
  const auto is_list = [](const std::string& text) { return text.find('[') != std::string::npos; };
  if (!is_list(x) && !is_list(y)) return x == y;
  try {
    const std::size_t count = moe_layers(is_list(x) ? x : y, 1).size();
    const auto read = [&](const std::string& text) {
      if (is_list(text)) return moe_layers(text, count);
      // Megatron counts experts' layers from the first of n, these from the last.
      std::vector<bool> last = moe_layers(text, count + 1);
      last.erase(last.begin());
      if (!ones_are_last) last.flip();
      return last;
    };
    return read(x) == read(y);
  } catch (const Error&) {
    return false;
  }
}

char symbol_of(const LayerKind& layer) {
  if (layer.mixer == Mixer::mamba) return 'M';
  if (layer.mixer == Mixer::attention) return '*';
  return layer.moe ? 'E' : '-';
}

// "MEM*|EME/*E" without its bars, which are of the plan: the decoder's symbols and one predictor's.
std::pair<std::string, std::string> parts_of_pattern(const Json& value) {
  std::string text = text_of(value);
  std::erase(text, '|');
  const std::size_t end = text.find('/');
  if (end == std::string::npos) return {text, ""};
  const std::string rest = text.substr(end + 1);
  return {text.substr(0, end), rest.substr(0, rest.find('/'))};
}

}  // namespace

// Null where every layer has experts, which is the default, or a pattern says what layers are.
Json layer_frequency(const Subject& s) {
  const auto& layers = s.model.layers;
  const auto sparse = [](const LayerKind& layer) { return layer.moe; };
  if (!s.model.moe || s.model.mamba || std::all_of(layers.begin(), layers.end(), sparse))
    return nullptr;
  return layer_list(layers, sparse);
}

// "4": every fourth layer attends; or which have Gated DeltaNet.
Json delta_net_frequency(const Subject& s) {
  if (!s.model.delta_net) return nullptr;
  const auto& layers = s.model.layers;
  const auto recurs = [](const LayerKind& layer) { return layer.mixer == Mixer::delta_net; };
  const auto attends = [&](const LayerKind& layer) { return !recurs(layer); };
  if (const std::int64_t n = last_of_each(layers, attends); n > 0) return Json(n);
  return layer_list(layers, recurs);
}

bool rotates_by_yarn(const ModelSpec& model) {
  return model.rope_scaling && model.rope_scaling->kind == RopeScalingKind::yarn && !model.mla;
}

Json position_word(const Subject& s) {
  switch (s.model.position) {
    case PositionEmbedding::rope:
      return rotates_by_yarn(s.model) ? "yarn" : "rope";
    case PositionEmbedding::learned:
      return "learned_absolute";
    case PositionEmbedding::none:
      break;
  }
  return "none";
}

// A number must divide the layers, which a list need not (TransformerConfig.__post_init__).
Json rope_frequency(const Subject& s) {
  const auto& layers = s.model.layers;
  const auto skips = [](const LayerKind& layer) { return !layer.rotates; };
  if (std::none_of(layers.begin(), layers.end(), skips)) return nullptr;
  const std::int64_t n = last_of_each(layers, skips);
  if (n > 0 && s.model.num_layers % n == 0) return Json(n);
  return layer_list(layers, skips);
}

// A window of Hugging Face's counts the token itself, Megatron's those before it
// (Megatron-Bridge 067f987d, models/gpt_oss/gpt_oss_bridge.py).
Json window_size(const Subject& s) {
  const auto& layers = s.model.layers;
  const auto slides = std::find_if(layers.begin(), layers.end(),
                                   [](const LayerKind& layer) { return layer.window > 0; });
  return slides == layers.end() ? Json(nullptr) : Json(fmt::format("{},0", slides->window - 1));
}

bool same_window(const Json& a, const Json& b) {
  const auto bare = [](const Json& value) {
    std::string text = text_of(value);
    std::erase_if(text, [](char c) { return c == '(' || c == ')' || c == ' '; });
    return text;
  };
  return bare(a) == bare(b);
}

// "2": every second layer attends to everything; or which do not. Null: none does.
Json window_frequency(const Subject& s) {
  const auto& layers = s.model.layers;
  const auto slides = [](const LayerKind& layer) { return layer.window > 0; };
  const auto whole = [&](const LayerKind& layer) { return !slides(layer); };
  if (std::none_of(layers.begin(), layers.end(), slides)) return nullptr;
  if (std::none_of(layers.begin(), layers.end(), whole)) return nullptr;
  if (const std::int64_t n = last_of_each(layers, whole); n > 0) return Json(n);
  return layer_list(layers, slides);
}

bool same_layers(const Json& a, const Json& b) {
  try {
    // "1" and a list of ones are the same for any number of layers; take the list's.
    const std::string x = text_of(a), y = text_of(b);
    const auto listed = moe_layers(x.find('[') == std::string::npos ? y : x, 1);
    return moe_layers(x, listed.size()) == moe_layers(y, listed.size());
  } catch (const Error&) {
    return false;
  }
}

bool same_mixers(const Json& a, const Json& b) {
  return same_by_last(a, b, /*ones_are_last=*/false);
}

bool same_rotation(const Json& a, const Json& b) {
  return same_by_last(a, b, /*ones_are_last=*/true);
}

// Bars where stages begin that are not as long as each other, or several a rank; layers that such
// stages leave over are one more, which Megatron refuses as the rules do. The prediction's block is
// attention, then experts.
Json hybrid_pattern(const Subject& s) {
  if (!s.model.mamba) return nullptr;
  std::vector<int> stages = s.plan.pipeline_layout;
  const int chunks = s.plan.pp * s.plan.vpp;
  if (stages.empty() && s.plan.vpp > 1) {
    const auto layers = static_cast<int>(s.model.num_layers);
    stages.assign(static_cast<std::size_t>(chunks), layers / chunks);
    if (layers % chunks != 0) stages.push_back(layers % chunks);
  }
  std::string text;
  std::size_t stage = 0;
  int left = stages.empty() ? static_cast<int>(s.model.num_layers) : stages.front();
  for (const LayerKind& layer : s.model.layers) {
    for (; left == 0 && stage + 1 < stages.size(); left = stages[++stage]) text += '|';
    text += symbol_of(layer);
    --left;
  }
  if (!stages.empty()) text.append(stages.size() - 1 - stage, '|');
  for (std::int64_t i = 0; i < s.model.num_mtp_layers; ++i) text += "/*E";
  return text;
}

void set_pattern_stages(Draft& draft, const Json& value) {
  const std::string text = text_of(value);
  std::vector<int> stages{0};
  for (const char c : text.substr(0, text.find('/'))) {
    if (c == '|') {
      stages.push_back(0);
    } else {
      ++stages.back();
    }
  }
  if (stages.size() == 1) return;
  draft.plan.vpp = std::max(1, static_cast<int>(stages.size()) / draft.plan.pp);
  // Stages of one length are what there is without a layout.
  const bool alike =
      std::adjacent_find(stages.begin(), stages.end(), std::not_equal_to<>()) == stages.end();
  draft.plan.pipeline_layout = alike ? std::vector<int>{} : std::move(stages);
}

// What predicts may be said by flags of its own.
bool same_pattern(const Json& a, const Json& b) {
  const auto [x, of_x] = parts_of_pattern(a);
  const auto [y, of_y] = parts_of_pattern(b);
  return x == y && (of_x.empty() || of_y.empty() || of_x == of_y);
}

// Whole layers but the routed experts, whose shapes change; or only what leads to those.
Json graph_modules(const Subject& s) {
  if (!s.plan.cuda_graph || s.plan.cuda_graph_scope == CudaGraphScope::full) return nullptr;
  if (s.plan.cuda_graph_scope == CudaGraphScope::mamba) return Json::array({"mamba"});
  Json modules = Json::array();
  if (s.plan.cuda_graph_scope == CudaGraphScope::layer) {
    modules.push_back("attn");
    if (s.model.mamba) modules.push_back("mamba");
    if (!s.model.moe) modules.push_back("mlp");
  }
  if (s.model.moe) {
    modules.push_back("moe_router");
    modules.push_back("moe_preprocess");
  }
  return modules;
}

void set_graph_modules(Draft& draft, const Json& value) {
  const std::vector<std::string> modules = list_of(value);
  const auto has = [&modules](std::string_view name) {
    return std::find(modules.begin(), modules.end(), name) != modules.end();
  };
  // Graphs of attention beside Mamba's are not counted: no word says both and leaves experts out.
  if (has("mamba") && !has("moe") && !has("moe_router")) {
    draft.plan.cuda_graph_scope = CudaGraphScope::mamba;
  }
  if (has("moe_router") && !has("attn")) draft.plan.cuda_graph_scope = CudaGraphScope::router;
}

}  // namespace qplan::megatron
