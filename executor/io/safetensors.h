#pragma once
// Safetensors files (github.com/huggingface/safetensors, "Format"): eight bytes of header length,
// a JSON header {name: {dtype, shape, data_offsets}}, and the tensors' bytes without holes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "models/dtype.h"
#include "models/files.h"

namespace qplan {

struct TensorInfo {
  std::string format;  // as written: "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, bytes = 0;  // within the file
  [[nodiscard]] std::int64_t elements() const;
};

// "(3, 4)".
std::string shape_text(const std::vector<std::int64_t>& shape);

// One file, open for reading. Opening checks the whole header: length, names, types, sizes, that
// tensors neither overlap nor leave holes, and that the file ends where they do. Throws Error
// naming the file and the tensor. Reading is safe from several threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Elements first .. first + out.size() - 1 of a tensor of F32, BF16 or F16, as floats.
  void read(const std::string& name, std::int64_t first, std::span<float> out) const;

 private:
  void read_header();
  void add_tensor(const std::string& name, const TensorInfo& info);
  void check_layout(std::int64_t data_begin) const;

  std::string path_;
  Descriptor file_;
  std::int64_t size_ = 0;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A tensor to be written; `values` writes element first .. first + out.size() - 1 into `out`.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::fp32;  // fp32, bf16 or fp16: values are rounded to it
  std::vector<std::int64_t> shape;
  std::function<void(std::int64_t first, std::span<float> out)> values;
};

// Writes the tensors in the order of their names, whole or not at all.
void write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata = {});

// The tensors of a model: one .safetensors file, or a folder with model.safetensors or with
// model.safetensors.index.json and the files it names.
class TensorStore {
 public:
  // Throws Error for a folder without either, an index that disagrees with its files, a tensor that
  // two files hold.
  explicit TensorStore(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::vector<std::string> names() const;  // sorted
  // Null if there is no such tensor.
  [[nodiscard]] const TensorInfo* find(const std::string& name) const;
  // Elements of a tensor that find() knows.
  void read(const std::string& name, std::int64_t first, std::span<float> out) const;

 private:
  void open_index(const std::string& index);
  void add_file(const std::string& path);

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t> file_of_;
};

}  // namespace qplan
