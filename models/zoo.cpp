// load_model(): built-in names, files and folders.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "models/embedded.h"
#include "models/error.h"
#include "models/json.h"
#include "models/model_spec.h"

namespace qplan {

extern const EmbeddedFile zoo_files[];
extern const std::size_t zoo_files_count;

namespace {

namespace fs = std::filesystem;

struct Found {
  std::string name, where;
  Json config;
};

// Other names of the same sizes. The zoo's Llama 3 is 3.1, whose files hold the longer positions.
constexpr std::array<std::pair<std::string_view, std::string_view>, 23> kAliases{
    {{"deepseek-v3.2-exp", "deepseek-v3.2"},
     {"gemma-3-27b", "gemma3-27b"},
     {"gemma-3-27b-it", "gemma3-27b"},
     {"gemma-3-27b-pt", "gemma3-27b"},
     {"llama3.1-8b", "llama3-8b"},
     {"llama3.1-70b", "llama3-70b"},
     {"llama3.1-405b", "llama3-405b"},
     {"llama-3.1-8b", "llama3-8b"},
     {"llama-3.1-70b", "llama3-70b"},
     {"llama-3.1-405b", "llama3-405b"},
     {"llama-4-maverick-17b-128e", "llama4-maverick-17b-128e"},
     {"llama-4-maverick-17b-128e-instruct", "llama4-maverick-17b-128e"},
     {"llama-4-scout-17b-16e", "llama4-scout-17b-16e"},
     {"llama-4-scout-17b-16e-instruct", "llama4-scout-17b-16e"},
     {"nemotron-3-ultra-550b", "nemotron-3-ultra-550b-a55b"},
     {"glm-4.5", "glm4.5"},
     {"glm-4.5-air", "glm4.5-air"},
     {"olmo-2-32b", "olmo2-32b"},
     {"olmo-2-0325-32b", "olmo2-32b"},
     {"olmo-2-0325-32b-instruct", "olmo2-32b"},
     {"phi4", "phi-4"},
     {"qwen2.5-vl-7b-instruct", "qwen2.5-vl-7b"},
     {"qwen3-next-80b-a3b-instruct", "qwen3-next-80b-a3b"}}};

// "Qwen/Qwen3-30B_A3B" is "qwen3-30b-a3b".
std::string canonical_name(std::string_view name) {
  if (const auto slash = name.rfind('/'); slash != std::string_view::npos) {
    name.remove_prefix(slash + 1);
  }
  std::string result(name);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '_') c = '-';
  }
  for (const auto& [alias, real] : kAliases) {
    if (result == alias) return std::string(real);
  }
  return result;
}

std::optional<Found> find_in_zoo(const std::string& name) {
  for (std::size_t i = 0; i < zoo_files_count; ++i) {
    const EmbeddedFile& file = zoo_files[i];
    if (file.name != name) continue;
    return Found{name, name, parse_json(file.text(), name)};
  }
  return std::nullopt;
}

// A config.json is named by its folder, for all of them are called so.
Found read_path(fs::path path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) path /= "config.json";
  Json config = read_json_file(path.string());
  // What `qplan models show` prints holds the config beside its counts.
  if (config.is_object() && config.contains("parameters") && config.contains("config")) {
    config = Json(config["config"]);
  }
  fs::path stem = path.stem();
  if (path.filename() == "config.json") {
    const fs::path folder = fs::absolute(path, ignored).lexically_normal().parent_path().filename();
    if (!folder.empty()) stem = folder;
  }
  return {stem.string(), path.string(), std::move(config)};
}

Found find_config(const std::string& name_or_path) {
  if (name_or_path.empty()) {
    throw Error("the model's name is empty; give a built-in name or the path of a config.json");
  }
  if (name_or_path.find('/') == std::string::npos) {
    if (auto found = find_in_zoo(canonical_name(name_or_path))) return *std::move(found);
  }
  std::error_code ignored;
  if (fs::exists(name_or_path, ignored)) return read_path(name_or_path);
  // A Hugging Face name ("Qwen/Qwen3-8B") is no path here.
  const std::string name = canonical_name(name_or_path);
  if (auto found = find_in_zoo(name)) return *std::move(found);
  const std::string hint = did_you_mean(name, model_names());
  throw Error(fmt::format("model '{}' is neither built in nor a file or folder{}",
                          shown(name_or_path),
                          hint.empty() ? "; `qplan models` lists the built-in ones" : hint));
}

}  // namespace

ModelSpec load_model(const std::string& name_or_path, std::string_view as) {
  Found found = find_config(name_or_path);
  ModelSpec model = read_model(found.config, found.where, as);
  model.name = std::move(found.name);
  return model;
}

bool is_built_in(std::string_view name) {
  return find_in_zoo(canonical_name(name)).has_value();
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < zoo_files_count; ++i) names.emplace_back(zoo_files[i].name);
  std::sort(names.begin(), names.end());
  return names;
}

Json model_config(const std::string& name_or_path) {
  return find_config(name_or_path).config;
}

}  // namespace qplan
