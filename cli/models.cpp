// `qplan models`: what is built in, and what one of them is.

#include <fmt/format.h>

#include "cli/catalog.h"
#include "cli/commands.h"
#include "cli/page.h"
#include "cli/report.h"
#include "models/json.h"
#include "models/model_spec.h"
#include "models/text.h"

namespace qplan {
namespace {

Json counts_json(const ParameterCount& count) {
  return {{"total", count.total()}, {"active", count.active()}, {"embedding", count.embedding},
          {"head", count.head},     {"layers", count.layers},   {"mtp", count.mtp},
          {"vision", count.vision}};
}

Json model_json(const std::string& name, const std::string& as) {
  const ModelSpec model = load_model(name, as);
  Json object{{"name", model.name},
              {"parameters", counts_json(count_parameters(model))},
              {"notes", model_notes(model)}};
  if (model.read_as) object["read_as"] = read_as_json(model);
  object["config"] = model_config(name);
  return object;
}

std::string heads(const ModelSpec& model) {
  if (model.mla) return fmt::format("{}/mla", model.num_attention_heads);
  return fmt::format("{}/{}", model.num_attention_heads, model.num_key_value_heads);
}

std::string experts(const ModelSpec& model) {
  if (!model.moe) return "-";
  return fmt::format("{} of {}", model.moe->top_k, model.moe->num_experts);
}

std::string models_text() {
  Table table({{"model", "", Align::left},
               {"parameters", ""},
               {"active", ""},
               {"layers", ""},
               {"hidden", ""},
               {"heads/kv", ""},
               {"experts", ""},
               {"context", "tokens"}});
  for (const std::string& name : model_names()) {
    const ModelSpec model = load_model(name);
    const ParameterCount count = count_parameters(model);
    table.row({name, human_count(static_cast<double>(count.total())),
               human_count(static_cast<double>(count.active())),
               fmt::format("{}", model.num_layers), fmt::format("{}", model.hidden_size),
               heads(model), experts(model), fmt::format("{}", model.max_position_embeddings)});
  }
  return table.text(page().table);
}

Json models_json() {
  Json list = Json::array();
  for (const std::string& name : model_names()) {
    const ModelSpec model = load_model(name);
    list.push_back({{"name", name},
                    {"parameters", counts_json(count_parameters(model))},
                    {"num_layers", model.num_layers},
                    {"hidden_size", model.hidden_size},
                    {"num_attention_heads", model.num_attention_heads},
                    {"num_key_value_heads", model.num_key_value_heads},
                    {"num_experts", model.moe ? model.moe->num_experts : 0},
                    {"max_position_embeddings", model.max_position_embeddings}});
  }
  return {{"models", std::move(list)}};
}

}  // namespace

Exit run_models(const Args& args, const Console& console) {
  return run_catalog({.verb = "models",
                      .summary = "The built-in models, and `models show NAME` for one in full.",
                      .example = "qplan models show qwen3-30b-a3b",
                      .shown = "model",
                      .shows = "`show` prints one model's config.json and parameter counts",
                      .names = "built-in name, or path of a config.json",
                      .list_text = models_text,
                      .list_json = models_json,
                      .built_in = model_names,
                      .one = model_json,
                      .reads_as = true},
                     args, console);
}

}  // namespace qplan
