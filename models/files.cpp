#include "models/files.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "models/error.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

// The mode that open() would have given a new file. Asked once: asking changes it for a moment,
// which threads that write shards must not see.
mode_t new_file_mode() {
  static const mode_t mode = [] {
    const mode_t mask = ::umask(0);
    ::umask(mask);
    return 0666U & ~mask;
  }();
  return mode;
}

// Where a chain of links ends, whether or not a file is there yet.
std::string target_of(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    throw Error(fmt::format("cannot write '{}': it is a folder; name a file", path));
  }
  constexpr int kMostLinks = 40;  // that Linux follows (path_resolution(7))
  fs::path target = path;
  for (int links = 0; fs::is_symlink(target, ignored); ++links) {
    if (links == kMostLinks) {
      throw Error(fmt::format("cannot write '{}': its links lead in a circle", path));
    }
    target = target.parent_path() / fs::read_symlink(target, ignored);
  }
  return target.string();
}

}  // namespace

std::string system_reason() {
  return std::strerror(errno);
}

Descriptor::~Descriptor() {
  if (value_ >= 0) ::close(value_);
}

void write_all(int descriptor, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(descriptor, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw Error(fmt::format("cannot write '{}': {}", path, system_reason()));
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)),
      target_(target_of(path_)),
      temporary_((fs::path(target_).parent_path() / ".qplan-XXXXXX").string()),
      file_(::mkstemp(temporary_.data())) {
  if (file_.get() < 0) {
    throw Error(fmt::format("cannot create '{}': {}", path_, system_reason()));
  }
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::commit() {
  struct stat old {};
  const bool exists = ::stat(target_.c_str(), &old) == 0;
  if (::fchmod(file_.get(), exists ? old.st_mode & 0777U : new_file_mode()) != 0 ||
      ::fsync(file_.get()) != 0 || std::rename(temporary_.c_str(), target_.c_str()) != 0) {
    throw Error(fmt::format("cannot write '{}': {}", path_, system_reason()));
  }
  committed_ = true;
}

}  // namespace qplan
