#include "executor/io/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "models/error.h"
#include "models/json.h"
#include "models/units.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFacts = "checkpoint.json";
constexpr std::string_view kPartial = ".partial", kOld = ".old";
constexpr int kFormat = 1;  // of checkpoint.json and of the names in rank files

// The folder, which is there now.
std::string made(const std::string& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw Error(fmt::format("cannot create '{}': {}", folder, failed.message()));
  return folder;
}

std::string step_name(std::int64_t step) {
  return fmt::format("step-{:08}", step);
}
std::string rank_name(std::int64_t rank) {
  return fmt::format("rank-{:05}.safetensors", rank);
}

// "exp_avg:12:0:64:128:model.layers.0.self_attn.q_proj.weight": kind, index, begin, stride, and the
// tensor of a Hugging Face checkpoint that the parameter is in, for people.
std::string tensor_name(StateKind kind, const ElementRuns& runs, const std::string& name) {
  return fmt::format("{}:{}:{}:{}:{}", to_word(kind), runs.index, runs.begin, runs.stride, name);
}

// The opposite; nullopt for other tensors.
std::optional<std::pair<StateKind, ElementRuns>> parse_name(std::string_view name) {
  const auto next = [&name]() {
    const std::size_t colon = name.find(':');
    const std::string_view field = name.substr(0, colon);
    name.remove_prefix(colon == std::string_view::npos ? name.size() : colon + 1);
    return field;
  };
  const auto kind = try_from_word<StateKind>(next());
  ElementRuns runs;
  for (std::int64_t* number : {&runs.index, &runs.begin, &runs.stride}) {
    const std::string_view field = next();
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), *number);
    if (error != std::errc() || end != field.data() + field.size() || *number < 0) return {};
  }
  if (!kind) return {};
  return std::pair(*kind, runs);
}

// What makes two models' checkpoints interchangeable: names and shapes of all parameters that are
// trained. FNV-1a.
std::string fingerprint(const ModelSpec& model, const std::vector<ModelParameter>& parameters,
                        const Trained& trained) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const ModelParameter& it : parameters) {
    if (trained.leaves_frozen(it.parameter)) continue;
    const std::string text = fmt::format("{} {} {};", tensor_place(model, it).name,
                                         it.parameter.rows, it.parameter.cols);
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return fmt::format("{:016x}", hash);
}

std::int64_t total_elements(const std::vector<ModelParameter>& parameters, const Trained& trained) {
  std::int64_t sum = 0;
  for (const ModelParameter& it : parameters) {
    if (!trained.leaves_frozen(it.parameter)) sum += it.parameter.elements();
  }
  return sum;
}

// A checkpoint's own folder, or the latest below.
std::string find_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(fs::path(path) / kFacts, ignored)) return path;
  std::string latest;
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool whole = name.starts_with("step-") && !name.ends_with(kPartial) &&
                       !name.ends_with(kOld) && fs::exists(entry.path() / kFacts, ignored);
    if (whole && name > latest) latest = name;
  }
  if (latest.empty()) {
    throw Error(fmt::format("'{}' holds no checkpoint; name a folder that --save wrote", path));
  }
  return (fs::path(path) / latest).string();
}

}  // namespace

SaveClaim::SaveClaim(const std::string& root)
    : folder_(::open(made(root).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  // File systems without locks let it pass.
  if (folder_.get() < 0 || ::flock(folder_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno != EWOULDBLOCK) return;
  throw Error(
      fmt::format("another run saves to '{}' now; give --save a folder of this run's own", root));
}

CheckpointWriter::CheckpointWriter(const std::string& root, const ModelSpec& model,
                                   const CheckpointFacts& facts, const Trained& trained)
    : folder_((fs::path(root) / step_name(facts.step)).string()),
      partial_(made(folder_ + std::string(kPartial))),
      model_(model),
      facts_(facts),
      trained_(trained),
      parameters_(model_parameters(model, trained.lora)) {}

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;
  if (!finished_) fs::remove_all(partial_, ignored);
}

void CheckpointWriter::write_rank(std::int64_t rank, const std::vector<SavedState>& states) const {
  std::vector<TensorToWrite> tensors;
  for (const SavedState& saved : states) {
    const ElementRuns& p = saved.runs;
    const ModelParameter& it = parameters_.at(static_cast<std::size_t>(p.index));
    tensors.push_back({tensor_name(saved.kind, p, tensor_place(model_, it).name),
                       saved.dtype,
                       {p.times, p.count},
                       saved.values});
  }
  write_safetensors((fs::path(partial_) / rank_name(rank)).string(), std::move(tensors));
}

void CheckpointWriter::finish(std::int64_t ranks, const Json& plan_file) {
  const Json facts{{"format", kFormat},
                   {"model", model_.name},
                   {"parameters", total_elements(parameters_, trained_)},
                   {"fingerprint", fingerprint(model_, parameters_, trained_)},
                   {"step", facts_.step},
                   {"sequences", facts_.sequences},
                   {"plan", facts_.plan},
                   {"ranks", ranks}};
  const fs::path partial(partial_);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::error_code unknown;
    if (fs::exists(partial / rank_name(rank), unknown)) continue;
    throw Error(
        fmt::format("'{}' lacks the file of rank {}; --save must name a folder that the "
                    "machines of all ranks share",
                    partial_, rank));
  }
  write_file_atomically((partial / "plan.json").string(), plan_file.dump(2) + "\n");
  write_file_atomically((partial / kFacts).string(), facts.dump(2) + "\n");
  // Until the new one is in place the old one stays.
  const std::string old = folder_ + std::string(kOld);
  std::error_code failed, ignored;
  fs::remove_all(old, ignored);
  fs::rename(folder_, old, ignored);
  fs::rename(partial_, folder_, failed);
  if (failed) throw Error(fmt::format("cannot write '{}': {}", folder_, failed.message()));
  finished_ = true;
  fs::remove_all(old, ignored);
}

Checkpoint::Checkpoint(const std::string& path, const ModelSpec& model, const Trained& trained)
    : path_(find_checkpoint(path)), trained_(trained) {
  read_facts(model);
  const std::vector<ModelParameter> parameters = model_parameters(model, trained.lora);
  for (std::int64_t rank = 0; rank < ranks_; ++rank) {
    add_file((fs::path(path_) / rank_name(rank)).string(), parameters);
  }
  check_complete(parameters);
}

void Checkpoint::read_facts(const ModelSpec& model) {
  const std::string file = (fs::path(path_) / kFacts).string();
  const Json facts = read_json_file(file);
  JsonReader in(facts, file + ":");
  if (in.integer("format", 1, 1 << 20) != kFormat) {
    in.fail("format", fmt::format("must be {}; the file is another version's", kFormat));
  }
  const std::string name = in.string("model");
  const std::int64_t count = in.integer("parameters", 1, std::int64_t{1} << 60);
  const std::vector<ModelParameter> parameters = model_parameters(model, trained_.lora);
  if (in.string("fingerprint") != fingerprint(model, parameters, trained_)) {
    throw Error(
        fmt::format("'{}' is a checkpoint of {} ({} parameters), not of {}{} ({} "
                    "parameters)",
                    path_, shown(name), count, trained_.lora.rank > 0 ? "these adapters of " : "",
                    model.name, total_elements(parameters, trained_)));
  }
  facts_.step = in.integer("step", 0, std::int64_t{1} << 40);
  facts_.sequences = in.integer("sequences", 0, std::int64_t{1} << 60);
  facts_.plan = in.string("plan");
  ranks_ = in.integer("ranks", 1, 1 << 20);
  in.finish();
}

void Checkpoint::add_file(const std::string& path, const std::vector<ModelParameter>& parameters) {
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const auto& [name, info] : file.tensors()) {
    auto parsed = parse_name(name);
    const bool known =
        parsed && info.shape.size() == 2 && parsed->second.index < std::ssize(parameters);
    if (!known) {
      throw Error(fmt::format("'{}': tensor '{}' is no part of a checkpoint", path, shown(name)));
    }
    auto& [kind, runs] = *parsed;
    runs.times = info.shape[0];
    runs.count = info.shape[1];
    const std::int64_t elements =
        parameters[static_cast<std::size_t>(runs.index)].parameter.elements();
    const bool fits = runs.elements() <= elements && runs.begin <= elements &&
                      (runs.times < 2 ||
                       (runs.stride >= runs.count && runs.stride <= elements / (runs.times - 1))) &&
                      runs.begin + (runs.times - 1) * runs.stride + runs.count <= elements;
    if (!fits) {
      throw Error(fmt::format("'{}': tensor '{}' reaches beyond its parameter", path, shown(name)));
    }
    stored_[{kind, runs.index}].push_back({runs, files_.size() - 1, name});
  }
}

void Checkpoint::check_complete(const std::vector<ModelParameter>& parameters) const {
  for (const ModelParameter& it : parameters) {
    if (!holds(it)) continue;
    for (const auto& [kind, word] : Words<StateKind>::table) {
      const auto found = stored_.find({kind, it.index});
      std::int64_t sum = 0;
      if (found != stored_.end()) {
        for (const Stored& stored : found->second) sum += stored.runs.elements();
      }
      if (sum == it.parameter.elements()) continue;
      throw Error(fmt::format(
          "'{}' holds {} of the {} elements of {} of parameter {} ({}); it is "
          "damaged",
          path_, sum, it.parameter.elements(), word, it.index, to_word(it.parameter.role)));
    }
  }
}

void Checkpoint::read(StateKind kind, std::int64_t index, std::int64_t first,
                      std::span<float> out) const {
  const std::int64_t end = first + std::ssize(out);
  std::int64_t done = 0;
  for (const Stored& stored : stored_.at({kind, index})) {
    const ElementRuns& p = stored.runs;
    // The first run that ends behind `first`.
    const std::int64_t reach = first - p.begin - p.count + 1;
    std::int64_t t = reach <= 0 || p.times == 1 ? 0 : ceil_div(reach, p.stride);
    for (; t < p.times && p.begin + t * p.stride < end; ++t) {
      const std::int64_t begin = p.begin + t * p.stride;
      const std::int64_t from = std::max(begin, first), to = std::min(begin + p.count, end);
      if (from >= to) continue;
      files_[stored.file].read(
          stored.tensor, t * p.count + from - begin,
          out.subspan(static_cast<std::size_t>(from - first), static_cast<std::size_t>(to - from)));
      done += to - from;
    }
  }
  if (done != std::ssize(out)) {
    throw Error(
        fmt::format("'{}' holds {} of elements {} to {} of {} of parameter {}; it is "
                    "damaged",
                    path_, done, first, end - 1, to_word(kind), index));
  }
}

WeightSource weights_of(const Checkpoint& checkpoint, const WeightSource& frozen) {
  return [&checkpoint, frozen](const ModelParameter& it, std::int64_t first_row,
                               std::int64_t first_col, math::Matrix out) {
    if (!checkpoint.holds(it)) return frozen(it, first_row, first_col, out);
    for (std::int64_t r = 0; r < out.rows; ++r) {
      checkpoint.read(StateKind::main, it.index, (first_row + r) * it.parameter.cols + first_col,
                      out.row(r));
    }
  };
}

}  // namespace qplan
