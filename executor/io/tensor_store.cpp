#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "executor/io/safetensors.h"
#include "models/error.h"
#include "models/json.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
// DeepSeek-V3's index has 9 MB and 91,991 tensors.
constexpr JsonLimits kIndexLimits{.bytes = std::size_t{100} << 20U, .values = 2'000'000};

}  // namespace

TensorStore::TensorStore(const std::string& path) : path_(path) {
  std::error_code ignored;
  const fs::path folder(path);
  if (!fs::is_directory(folder, ignored)) {
    add_file(path);
  } else if (fs::exists(folder / kIndex, ignored)) {
    open_index((folder / kIndex).string());
  } else if (fs::exists(folder / kSingle, ignored)) {
    add_file((folder / kSingle).string());
  } else {
    throw Error(fmt::format("'{}' holds neither {} nor {}; name a folder of Hugging Face weights",
                            path, kSingle, kIndex));
  }
}

void TensorStore::add_file(const std::string& path) {
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const auto& [name, info] : file.tensors()) {
    const auto [known, fresh] = file_of_.emplace(name, files_.size() - 1);
    if (!fresh) {
      throw Error(fmt::format("tensor '{}' is both in '{}' and in '{}'; keep one", shown(name),
                              files_[known->second].path(), path));
    }
  }
}

void TensorStore::open_index(const std::string& index) {
  const Json content = read_json_file(index, kIndexLimits);
  JsonReader in(content, index + ":");
  const Json& map = in.value("weight_map");
  if (!map.is_object()) in.fail("weight_map", "must be an object of tensors and their files");
  std::map<std::string, std::string> file_named;
  std::set<std::string> names;
  for (const auto& [tensor, value] : map.items()) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    if (name.empty() || fs::path(name).filename() != name) {
      in.fail("weight_map", fmt::format("gives {} for '{}'; it must name a file beside the index",
                                        shown(value.dump()), shown(tensor)));
    }
    file_named.emplace(tensor, name);
    names.insert(name);
  }
  const fs::path folder = fs::path(index).parent_path();
  for (const std::string& name : names) add_file((folder / name).string());
  for (const auto& [tensor, name] : file_named) {
    const auto found = file_of_.find(tensor);
    if (found == file_of_.end() || fs::path(files_[found->second].path()).filename() != name) {
      throw Error(fmt::format("'{}' says that tensor '{}' is in {}, which does not hold it", index,
                              shown(tensor), name));
    }
  }
}

std::vector<std::string> TensorStore::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const TensorInfo* TensorStore::find(const std::string& name) const {
  const auto found = file_of_.find(name);
  return found == file_of_.end() ? nullptr : &files_[found->second].tensors().at(name);
}

void TensorStore::read(const std::string& name, std::int64_t first, std::span<float> out) const {
  files_[file_of_.at(name)].read(name, first, out);
}

}  // namespace qplan
