#pragma once
// config.json files in short, for tests of what is read from them.

#include <string>

#include "models/json.h"
#include "models/model_spec.h"

namespace qplan {

// Sizes that a test leaves out.
inline Json with_sizes(Json config) {
  Json& decoder = config.contains("text_config") ? config["text_config"] : config;
  if (config["model_type"] == "gpt2") return config;
  const Json sizes = Json::parse(R"({"hidden_size": 64, "num_hidden_layers": 4,
      "num_attention_heads": 8, "intermediate_size": 96, "vocab_size": 100})");
  for (const auto& [key, value] : sizes.items()) {
    if (!decoder.contains(key)) decoder[key] = value;
  }
  return config;
}

inline ModelSpec read_short(const std::string& text) {
  return read_model(with_sizes(parse_json(text, "config.json")), "config.json");
}

}  // namespace qplan
