#include "costmodel/profiles/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "models/embedded.h"
#include "models/error.h"
#include "models/schema_id.h"

namespace qplan {

// Compiled in from profiles/ and profiles/generations/ (CMakeLists.txt).
extern const EmbeddedFile profile_files[];
extern const std::size_t profile_files_count;
extern const EmbeddedFile generation_files[];
extern const std::size_t generation_files_count;

namespace {

namespace fs = std::filesystem;

// Longer chains are a mistake: the built-in ones have three profiles.
constexpr std::size_t kDeepest = 8;

std::span<const EmbeddedFile> embedded_profiles() {
  return {profile_files, profile_files_count};
}
std::span<const EmbeddedFile> generations() {
  return {generation_files, generation_files_count};
}

const EmbeddedFile* find(std::span<const EmbeddedFile> files, std::string_view name) {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const EmbeddedFile& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

Json parsed(const EmbeddedFile& file) {
  return parse_json({reinterpret_cast<const char*>(file.bytes), file.size}, file.name);
}

// The value at a path of keys, or null where there is none.
const Json* at(const Json& json, std::initializer_list<const char*> keys) {
  const Json* value = &json;
  for (const char* key : keys) {
    if (!value->is_object()) return nullptr;
    const auto found = value->find(std::string(key));
    if (found == value->end() || found->is_null()) return nullptr;
    value = &*found;
  }
  return value;
}

Json laid_over(Json below, const Json& own) {
  for (const auto& [key, value] : own.items()) {
    if (value.is_null()) {
      below.erase(key);
    } else if (value.is_object() && below.contains(key) && below[key].is_object()) {
      below[key] = laid_over(std::move(below[key]), value);
    } else {
      below[key] = value;
    }
  }
  return below;
}

// Adds what lies below where `own` has nothing, and keeps the order of what it has. A section says
// itself where its figures come from.
void fill(Json& own, const Json& below) {
  for (const auto& [key, value] : below.items()) {
    if (key == "source" && !own.contains(key)) continue;
    if (!own.contains(key) || own[key].is_null()) {
      own[key] = value;
    } else if (own[key].is_object() && value.is_object()) {
      fill(own[key], value);
    }
  }
}

// ---- generations ----

// A generation laid over those that it extends.
Json generation(std::string_view name) {
  const EmbeddedFile* file = find(generations(), name);
  QPLAN_CHECK(file != nullptr, "a generation extends one that there is");
  Json own = parsed(*file);
  if (!own.contains("extends")) return own;
  return laid_over(generation(own["extends"].get<std::string>()), own);
}

// By the compute capability that each begins with.
std::map<double, Json> read_generations() {
  std::map<double, Json> found;
  for (const EmbeddedFile& file : generations()) {
    Json json = generation(file.name);
    const Json* first = at(json, {"from_compute_capability"});
    if (first == nullptr) continue;  // what they have in common
    const double from = first->get<double>();
    json.erase("from_compute_capability");
    json.erase("extends");
    found.emplace(from, std::move(json));
  }
  return found;
}

// The latest that is not later than the GPU; the earliest for what came before.
const Json& generation_of(const Json& profile) {
  static const std::map<double, Json> all = read_generations();
  const Json* capability = at(profile, {"gpu", "compute_capability"});
  const bool known = capability != nullptr && capability->is_number();
  const auto after = all.upper_bound(known ? capability->get<double>() : 0);
  return after == all.begin() ? after->second : std::prev(after)->second;
}

// ---- what a profile takes over from another GPU's ----

bool same(const Json& a, const Json& b, std::initializer_list<const char*> keys) {
  const Json *in_a = at(a, keys), *in_b = at(b, keys);
  if (in_a == nullptr || in_b == nullptr) return in_a == in_b;
  return *in_a == *in_b;
}

// The facts that rates of kernels follow from.
bool same_gpu(const Json& a, const Json& b) {
  for (const char* key :
       {"name", "memory_gb_per_s", "multiprocessors", "compute_capability", "tdp_watt"}) {
    if (!same(a, b, {"gpu", key})) return false;
  }
  for (const Json* profile : {&a, &b}) {
    const Json* gpu = at(*profile, {"gpu"});
    if (gpu == nullptr || !gpu->is_object()) continue;
    for (const auto& [key, peak] : gpu->items()) {
      if (key.rfind("matmul_", 0) == 0 && !same(a, b, {"gpu", key.c_str()})) return false;
    }
  }
  return true;
}

void assume(Json& fit) {
  if (fit.is_object()) fit["assumed"] = true;
}

// Of a fit below `own`: its own if it says how efficient it is.
void take_over(Json& merged, const Json& own, std::initializer_list<const char*> keys) {
  Json* fit = &merged;
  const Json* said = &own;
  for (const char* key : keys) {
    if (!fit->is_object() || !fit->contains(key)) return;
    fit = &(*fit)[key];
    said = said == nullptr ? nullptr : at(*said, {key});
  }
  if (said == nullptr || !said->is_object() || !said->contains("efficiency")) return assume(*fit);
  if (!said->contains("assumed") && fit->is_object()) fit->erase("assumed");
}

// ... and of a list of fits, which takes another's place as a whole.
void take_over_list(Json& merged, const Json& own, const char* section, const char* key) {
  if (at(own, {section, key}) != nullptr || at(merged, {section, key}) == nullptr) return;
  for (Json& fit : merged[section][key]) assume(fit);
}

bool has_gemm_table(const Json& profile, std::string_view dtype) {
  if (at(profile, {"gemm_table"}) != nullptr) return true;
  const Json* tables = at(profile, {"tables", "gemm"});
  return tables != nullptr && tables->is_array() &&
         std::any_of(tables->begin(), tables->end(), [&](const Json& table) {
           const Json* of = at(table, {"dtype"});
           return of != nullptr && of->is_string() && of->get_ref<const std::string&>() == dtype;
         });
}

bool has_collectives(const Json& profile) {
  return at(profile, {"collectives", "fits"}) != nullptr ||
         at(profile, {"tables", "collectives"}) != nullptr ||
         at(profile, {"collective_table"}) != nullptr;
}

// Marks fits that a file takes over from the profile of another GPU.
void mark_assumed(Json& merged, const Json& base, const Json& own) {
  const bool gpu = same_gpu(merged, base);
  if ((!gpu || !same(merged, base, {"link", "nvlink_gb_per_s"})) && !has_collectives(own)) {
    take_over_list(merged, own, "collectives", "fits");
  }
  if (gpu) return;
  if (const Json* gemm = at(merged, {"gemm"}); gemm != nullptr && gemm->is_object()) {
    std::vector<std::string> precisions;
    for (const auto& [precision, fit] : gemm->items()) precisions.push_back(precision);
    for (const std::string& precision : precisions) {
      if (!has_gemm_table(own, precision)) take_over(merged, own, {"gemm", precision.c_str()});
    }
  }
  for (const char* section : {"grouped_gemm", "delta_rule", "scan"}) {
    take_over(merged, own, {section});
  }
  for (const char* kernel : kAttentionKernels) {
    take_over_list(merged, own, "attention", kernel);
  }
}

// Erases what the profile below says at a path, unless `own` says it.
void drop(Json& merged, const Json& own, const char* section, const char* key) {
  if (at(own, {section, key}) == nullptr && at(merged, {section, key}) != nullptr) {
    merged[section].erase(key);
  }
}
void drop(Json& merged, const Json& own, const char* key) {
  if (at(own, {key}) == nullptr) merged.erase(key);
}

// Tables of one kind are written into a profile or named: a profile's take the place of those
// below, whichever they are.
void replace_tables(Json& merged, const Json& own) {
  for (const auto& [kind, named] :
       {std::pair{"gemm", "gemm_table"}, std::pair{"collectives", "collective_table"}}) {
    if (at(own, {"tables", kind}) != nullptr) drop(merged, own, named);
    if (at(own, {named}) != nullptr) drop(merged, own, "tables", kind);
  }
}

void drop_tables(Json& merged, const Json& own, const char* kind, const char* named) {
  drop(merged, own, named);
  drop(merged, own, "tables", kind);
}

bool has_gemm_fit(const Json& profile) {
  const Json* gemm = at(profile, {"gemm"});
  if (gemm == nullptr || !gemm->is_object()) return false;
  return std::any_of(gemm->begin(), gemm->end(),
                     [](const Json& fit) { return fit.is_object() && fit.contains("efficiency"); });
}

// Tables come before fits: those below would be read in place of the fits that a file itself has.
void prefer_own_fits(Json& merged, const Json& own) {
  if (has_gemm_fit(own)) drop_tables(merged, own, "gemm", "gemm_table");
  if (at(own, {"collectives", "fits"}) != nullptr) {
    drop_tables(merged, own, "collectives", "collective_table");
  }
}

// The rate that a profile states, 0 without NVLink; nothing where it states none.
std::optional<double> nvlink_of(const Json& profile) {
  const Json* rate = at(profile, {"link", "nvlink_gb_per_s"});
  if (rate == nullptr || !rate->is_number() || rate->get<double>() < 0) return std::nullopt;
  return rate->get<double>();
}

// What was measured over NVLink does not hold over PCIe, nor the reverse.
void drop_other_links(Json& merged, const Json& own) {
  drop(merged, own, "collectives");
  drop_tables(merged, own, "collectives", "collective_table");
  drop(merged, own, "link", "message_gb_per_s");
  drop(merged, own, "link", "message_start_us");
  drop(merged, own, "link", "nvls");
}

// Over a faster or slower NVLink bytes go by its rate, and latencies stay: so H800's fits follow
// from H100's, and end at what DeepEP reaches on it, 153 to 158 GB/s. Tables hold times of the old
// rate.
void scale_nvlink(Json& merged, const Json& own, double ratio) {
  const auto scale = [&](Json& of, const char* key) {
    if (of.is_object() && of.contains(key) && of[key].is_number()) {
      of[key] = of[key].get<double>() * ratio;
    }
  };
  if (at(own, {"link", "message_gb_per_s"}) == nullptr) scale(merged["link"], "message_gb_per_s");
  if (has_collectives(own) || at(merged, {"collectives", "fits"}) == nullptr) return;
  Json& fits = merged["collectives"]["fits"];
  if (!fits.is_array() || fits.empty()) return;
  for (Json& fit : fits) scale(fit, "gb_per_s");
  drop_tables(merged, own, "collectives", "collective_table");
}

// Collectives and messages that a profile takes over from one with another NVLink.
void follow_nvlink(Json& merged, const Json& base, const Json& own) {
  const std::optional<double> now = nvlink_of(merged), before = nvlink_of(base);
  if (!now || !before || *now == *before) return;
  if (*now == 0 || *before == 0) return drop_other_links(merged, own);
  scale_nvlink(merged, own, *now / *before);
}

// A GPU with more or less memory leaves the same share of it to programs.
void follow_memory(Json& merged, const Json& base, const Json& own) {
  const Json *now = at(merged, {"gpu", "memory_gb"}), *before = at(base, {"gpu", "memory_gb"});
  const Json* usable = at(merged, {"gpu", "usable_memory_gib"});
  if (at(own, {"gpu", "memory_gb"}) == nullptr ||
      at(own, {"gpu", "usable_memory_gib"}) != nullptr) {
    return;
  }
  for (const Json* figure : {now, before, usable}) {
    if (figure == nullptr || !figure->is_number() || figure->get<double>() <= 0) return;
  }
  if (*now == *before) return;
  const double share = usable->get<double>() / before->get<double>();
  merged["gpu"]["usable_memory_gib"] = now->get<double>() * share;
}

// ---- extends ----

// The profiles that extend each other, from the one that was asked for down.
struct Chain {
  std::vector<std::string> names;  // as their files have them, for messages
  std::vector<std::string> ids;    // to tell them apart
};

std::string id_of(const ProfileOrigin& origin) {
  if (origin.file.empty()) return origin.built_in ? origin.where : "";
  std::error_code ignored;
  const fs::path whole = fs::weakly_canonical(origin.file, ignored);
  return whole.empty() ? origin.file : whole.string();
}

[[noreturn]] void fail(const ProfileOrigin& origin, const std::string& sentence) {
  const bool file = origin.where.ends_with(':');
  throw Error(fmt::format("{}{}extends {}", origin.where, file ? " " : ".", sentence));
}

Json extended(const Json& own, const ProfileOrigin& origin, Chain chain);

// The profile that `origin` extends by `name`, with all that it extends itself.
Json base_of(const std::string& name, const ProfileOrigin& origin, const Chain& chain) {
  const auto known = built_in_profile_names();
  if (const EmbeddedFile* file = find(embedded_profiles(), name)) {
    return extended(parsed(*file), {.where = name + ":", .file = "", .built_in = true}, chain);
  }
  const bool is_path = name.find('/') != std::string::npos || name.ends_with(".json");
  if (!is_path) {
    fail(origin,
         fmt::format("names no built-in machine, nor a .json file: '{}'; choose one of {}{}",
                     shown(name), fmt::join(known, ", "), did_you_mean(name, known)));
  }
  if (origin.file.empty()) {
    fail(origin, fmt::format("names a file, '{}', which only a profile in a file can do; name a "
                             "built-in machine",
                             shown(name)));
  }
  const std::string path = (fs::path(origin.file).parent_path() / name).string();
  const Json json = read_json_file(path);
  if (!json.is_object()) {
    throw Error(fmt::format("{}: the file must be an object, is {}", path, type_name(json)));
  }
  return extended(json, {.where = path + ":", .file = path, .built_in = false}, chain);
}

// `own` over what it extends, without its generation.
Json extended(const Json& file, const ProfileOrigin& origin, Chain chain) {
  check_schema(file, "profile", origin.where);
  Json own = file;
  if (own.is_object()) own.erase("schema");  // of the file, not of the machine
  if (!own.is_object() || !own.contains("extends")) return own;
  const Json& extends = own["extends"];
  if (!extends.is_string()) {
    fail(origin,
         fmt::format("must be a built-in machine's name or a file's, is {}", type_name(extends)));
  }
  const std::string name = extends.get<std::string>();
  chain.names.push_back(shown(origin.file.empty() ? origin.where : origin.file));
  const std::string id = id_of(origin);
  const bool again =
      !id.empty() && std::find(chain.ids.begin(), chain.ids.end(), id) != chain.ids.end();
  if (again) {
    throw Error(
        fmt::format("{}: a profile cannot extend itself; let one of them extend a built-in "
                    "machine or nothing",
                    fmt::join(chain.names, " extends ")));
  }
  chain.ids.push_back(id);
  if (chain.names.size() > kDeepest) {
    throw Error(
        fmt::format("{}: more than {} profiles extend each other; write some of them in one",
                    chain.names.front(), kDeepest));
  }
  const Json base = base_of(name, origin, chain);
  Json merged = laid_over(base, own);
  merged.erase("extends");
  replace_tables(merged, own);
  follow_nvlink(merged, base, own);
  if (!origin.built_in) {
    prefer_own_fits(merged, own);
    follow_memory(merged, base, own);
    mark_assumed(merged, base, own);
  }
  if (!origin.file.empty()) {
    const std::string stem = fs::path(origin.file).stem().string();
    if (at(own, {"name"}) == nullptr) merged["name"] = stem;
    if (at(own, {"description"}) == nullptr) {
      merged["description"] = fmt::format("{} as {} has it", shown(name), stem);
    }
  }
  return merged;
}

}  // namespace

std::vector<std::string> files_of_profile(const std::string& name_or_path) {
  std::vector<std::string> files;
  fs::path path = name_or_path;
  std::error_code ignored;
  while (files.size() <= kDeepest && fs::is_regular_file(path, ignored)) {
    files.push_back(path.string());
    const Json own = read_json_file(path.string());
    if (!own.is_object() || !own.contains("extends") || !own["extends"].is_string()) break;
    const std::string below = own["extends"].get<std::string>();
    if (find(embedded_profiles(), below) != nullptr) break;
    path = path.parent_path() / below;
  }
  return files;
}

Json layered_profile(const Json& own, const ProfileOrigin& origin) {
  Json profile = extended(own, origin, {});
  if (!profile.is_object()) return profile;
  // These it has to write itself, if only in part: their `source` is not filled in.
  for (const char* section : {"gpu", "link", "host", "contention", "attention"}) {
    if (at(profile, {section}) == nullptr) profile[section] = Json::object();
  }
  fill(profile, generation_of(profile));
  return profile;
}

const Json* built_in_profile(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, Json> known;  // searches and tables of runs ask for the same again
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(name); found != known.end()) return &found->second;
  const EmbeddedFile* file = find(embedded_profiles(), name);
  if (file == nullptr) return nullptr;
  Json whole = layered_profile(parsed(*file), {.where = name + ":", .file = "", .built_in = true});
  return &known.emplace(name, std::move(whole)).first->second;
}

std::vector<std::string> built_in_profile_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded_profiles()) names.emplace_back(file.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace qplan
