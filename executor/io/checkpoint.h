#pragma once
// Checkpoints: a folder ROOT/step-00000020 with checkpoint.json, plan.json and one safetensors file
// a rank. Each file holds parts of parameters and of AdamW's moments in the model's own numbering,
// so a run may go on under any other plan.

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "executor/io/safetensors.h"
#include "executor/io/weights.h"
#include "models/files.h"
#include "models/json_fwd.h"
#include "models/trained.h"

namespace qplan {

// What is kept of a parameter: itself (the main copy, where the working one is narrower) and two
// moments. The words are torch.optim.AdamW's.
enum class StateKind : std::uint8_t { main, moment1, moment2 };
template <>
struct Words<StateKind> {
  static constexpr std::string_view what = "state";
  static constexpr auto table =
      std::to_array<std::pair<StateKind, std::string_view>>({{StateKind::main, "main"},
                                                             {StateKind::moment1, "exp_avg"},
                                                             {StateKind::moment2, "exp_avg_sq"}});
};

// Elements of one parameter: `times` runs of `count`, run t from element begin + t * stride of the
// whole, row-major. A share of the columns is one such; so is a share of the rows.
struct ElementRuns {
  std::int64_t index = 0;  // in model_parameters()
  std::int64_t begin = 0, count = 0, stride = 0, times = 1;
  [[nodiscard]] std::int64_t elements() const { return count * times; }
  auto operator<=>(const ElementRuns&) const = default;
};

// Elements to be saved; `values` gives the first .. first + out.size() - 1 of them.
struct SavedState {
  StateKind kind = StateKind::main;
  ElementRuns runs;
  DType dtype = DType::fp32;
  std::function<void(std::int64_t first, std::span<float> out)> values;
};

struct CheckpointFacts {
  std::int64_t step = 0;       // steps done
  std::int64_t sequences = 0;  // of the data that they read; the next step reads on from here
  std::string plan;            // short form, for people
};

// One run's claim on the folder it saves to, which is made; no two runs of one machine have it.
// Held by a lock on the folder, so it ends with the process, whatever ends that. Throws Error
// naming the folder where another run has it.
class SaveClaim {
 public:
  explicit SaveClaim(const std::string& root);

 private:
  Descriptor folder_;
};

// Writes one checkpoint; vanishes unless finished. Ranks of several processes each make one of
// these, and one of them finishes after all have written.
class CheckpointWriter {
 public:
  CheckpointWriter(const std::string& root, const ModelSpec& model, const CheckpointFacts& facts,
                   const Trained& trained = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();

  // Safe from several threads, each for another rank.
  void write_rank(std::int64_t rank, const std::vector<SavedState>& states) const;
  // The folder gets its name; an older checkpoint of that step is replaced. `plan_file`: what
  // plan.json shall hold. Throws Error where a rank's file is not there.
  void finish(std::int64_t ranks, const Json& plan_file);

 private:
  std::string folder_, partial_;
  const ModelSpec model_;
  CheckpointFacts facts_;
  Trained trained_;
  std::vector<ModelParameter> parameters_;
  bool finished_ = false;
};

// A checkpoint that is being read. Reading is safe from several threads.
class Checkpoint {
 public:
  // `path`: a checkpoint's folder, or a ROOT, whose latest is taken. What `trained` leaves frozen
  // is not in it. Throws Error for a folder without one, a checkpoint of another model or of other
  // adapters, files that are missing, damaged or incomplete.
  Checkpoint(const std::string& path, const ModelSpec& model, const Trained& trained = {});

  [[nodiscard]] const CheckpointFacts& facts() const { return facts_; }
  [[nodiscard]] const std::string& path() const { return path_; }

  // Elements first .. first + out.size() - 1 of a parameter, row-major.
  void read(StateKind kind, std::int64_t index, std::int64_t first, std::span<float> out) const;
  [[nodiscard]] bool holds(const ModelParameter& parameter) const {
    return !trained_.leaves_frozen(parameter.parameter);
  }

 private:
  struct Stored {
    ElementRuns runs;
    std::size_t file = 0;
    std::string tensor;
  };

  void read_facts(const ModelSpec& model);
  void add_file(const std::string& path, const std::vector<ModelParameter>& parameters);
  void check_complete(const std::vector<ModelParameter>& parameters) const;

  std::string path_;
  Trained trained_;
  CheckpointFacts facts_;
  std::int64_t ranks_ = 0;
  std::vector<SafetensorsFile> files_;
  std::map<std::pair<StateKind, std::int64_t>, std::vector<Stored>> stored_;
};

// The checkpoint's main parameters as what a run starts from, `frozen` for those that it does not
// hold; the checkpoint must outlive it.
WeightSource weights_of(const Checkpoint& checkpoint, const WeightSource& frozen = {});

}  // namespace qplan
