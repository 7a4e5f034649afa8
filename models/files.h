#pragma once
// Files at the level of the operating system: a descriptor that closes itself, and a file that
// appears whole or not at all. Text and JSON: models/json.h.

#include <string>
#include <string_view>

namespace qplan {

// What the last system call failed with: "No such file or directory".
std::string system_reason();

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept : value_(other.value_) { other.value_ = -1; }
  Descriptor& operator=(Descriptor&& other) = delete;
  ~Descriptor();
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

// Writes everything or throws Error naming the path.
void write_all(int descriptor, std::string_view bytes, const std::string& path);

// A temporary file beside `path` that takes its place at commit(), and vanishes without one. A link
// keeps pointing where it did; the file it names is replaced, with its mode. Throws Error naming
// the path, also for a folder.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::string_view bytes) { write_all(file_.get(), bytes, path_); }
  void commit();

 private:
  std::string path_, target_, temporary_;
  Descriptor file_;
  bool committed_ = false;
};

}  // namespace qplan
