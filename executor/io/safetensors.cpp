#include "executor/io/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>

#include "executor/math/rounding.h"
#include "models/error.h"
#include "models/json.h"

namespace qplan {
namespace {

// The reference implementation's limit on headers (safetensors, tensor.rs). A tensor takes about 90
// bytes and ten values of it.
constexpr std::uint64_t kLargestHeader = 100'000'000;
constexpr JsonLimits kHeaderLimits{.bytes = kLargestHeader, .values = kLargestHeader / 9};
constexpr std::int64_t kPrefix = 8;  // bytes of the header's length
// Floats converted at a time: 256 KiB stay in the cache.
constexpr std::int64_t kChunk = std::int64_t{1} << 16;

struct Format {
  std::string_view word;
  std::int64_t bits;
  std::optional<DType> dtype;  // what read() can convert
};
constexpr std::array kFormats{
    Format{"F32", 32, DType::fp32},     Format{"BF16", 16, DType::bf16},
    Format{"F16", 16, DType::fp16},     Format{"F64", 64, std::nullopt},
    Format{"F8_E4M3", 8, std::nullopt}, Format{"F8_E5M2", 8, std::nullopt},
    Format{"F8_E8M0", 8, std::nullopt}, Format{"F4", 4, std::nullopt},
    Format{"I64", 64, std::nullopt},    Format{"U64", 64, std::nullopt},
    Format{"I32", 32, std::nullopt},    Format{"U32", 32, std::nullopt},
    Format{"I16", 16, std::nullopt},    Format{"U16", 16, std::nullopt},
    Format{"I8", 8, std::nullopt},      Format{"U8", 8, std::nullopt},
    Format{"BOOL", 8, std::nullopt}};

const Format* find_format(std::string_view word) {
  const auto* found = std::find_if(kFormats.begin(), kFormats.end(),
                                   [&](const Format& format) { return format.word == word; });
  return found == kFormats.end() ? nullptr : found;
}

std::string_view word_of(DType dtype) {
  for (const Format& format : kFormats) {
    if (format.dtype == dtype) return format.word;
  }
  QPLAN_CHECK(false, "tensors are written as fp32, bf16 or fp16");
  return "";
}

// The product of the sizes; nullopt if one is negative or the product does not fit.
std::optional<std::int64_t> product(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || (size > 0 && n > std::numeric_limits<std::int64_t>::max() / 64 / size)) {
      return std::nullopt;
    }
    n *= size;
  }
  return n;
}

void read_at(const Descriptor& file, std::int64_t offset, std::span<std::byte> out,
             const std::string& path) {
  while (!out.empty()) {
    const ssize_t got = ::pread(file.get(), out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(fmt::format("cannot read '{}': {}", path, system_reason()));
    if (got == 0) throw Error(fmt::format("'{}' became shorter while it was read", path));
    out = out.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

std::vector<std::int64_t> integers(JsonReader& in, std::string_view key) {
  const Json& list = in.value(key);
  if (!list.is_array()) in.fail(key, fmt::format("must be a list, is {}", type_name(list)));
  std::vector<std::int64_t> result;
  for (const Json& item : list) {
    // Beyond 2^62 no size or offset can be right, and sums of two still fit.
    const bool whole = item.is_number_unsigned() && item.get<std::uint64_t>() < (1ULL << 62U);
    if (!whole) in.fail(key, fmt::format("holds {}, which is no size", shown(item.dump())));
    result.push_back(item.get<std::int64_t>());
  }
  return result;
}

TensorInfo read_tensor_info(const Json& entry, const std::string& where, std::int64_t data_begin) {
  JsonReader in(entry, where);
  TensorInfo info{in.string("dtype"), integers(in, "shape")};
  const std::vector<std::int64_t> offsets = integers(in, "data_offsets");
  in.finish();
  const Format* format = find_format(info.format);
  if (format == nullptr) {
    in.fail("dtype", fmt::format("is '{}', which is no type of safetensors", shown(info.format)));
  }
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    in.fail("data_offsets", "must be where the tensor begins and ends");
  }
  const auto elements = product(info.shape);
  if (!elements) in.fail("shape", "has more elements than a file can hold");
  info.begin = data_begin + offsets[0];
  info.bytes = offsets[1] - offsets[0];
  if (info.bytes * 8 != *elements * format->bits) {
    in.fail("data_offsets",
            fmt::format("span {} bytes; {} of {} take {}", info.bytes, shape_text(info.shape),
                        info.format, *elements * format->bits / 8));
  }
  return info;
}

}  // namespace

std::int64_t TensorInfo::elements() const {
  return product(shape).value_or(0);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

SafetensorsFile::SafetensorsFile(std::string path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat status {};
  if (file_.get() < 0 || ::fstat(file_.get(), &status) != 0) {
    throw Error(fmt::format("cannot open '{}': {}", path_, system_reason()));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(fmt::format("'{}' is not a regular file; name a safetensors file", path_));
  }
  size_ = status.st_size;
  read_header();
}

void SafetensorsFile::read_header() {
  std::array<std::byte, kPrefix> prefix{};
  if (size_ < kPrefix) {
    throw Error(fmt::format("'{}' has {} bytes; a safetensors file begins with 8 of header length",
                            path_, size_));
  }
  read_at(file_, 0, prefix, path_);
  std::uint64_t length = 0;
  std::memcpy(&length, prefix.data(), sizeof length);
  if (length > kLargestHeader) {
    throw Error(
        fmt::format("'{}' is no safetensors file: its header would have {} bytes", path_, length));
  }
  if (static_cast<std::int64_t>(length) > size_ - kPrefix) {
    throw Error(fmt::format("'{}' is cut off: its header has {} bytes and the file {}", path_,
                            length, size_));
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  read_at(file_, kPrefix, std::as_writable_bytes(std::span(text)), path_);
  const Json header = parse_json(text, path_, kHeaderLimits);
  if (!header.is_object()) {
    throw Error(fmt::format("'{}': the header must be an object, is {}", path_, type_name(header)));
  }
  const std::int64_t data_begin = kPrefix + static_cast<std::int64_t>(length);
  for (const auto& [name, entry] : header.items()) {
    const std::string where = fmt::format("{}: {}", path_, shown(name));
    if (name != "__metadata__") {
      tensors_.emplace(name, read_tensor_info(entry, where, data_begin));
      continue;
    }
    if (!entry.is_object()) {
      throw Error(fmt::format("{} must be an object, is {}", where, type_name(entry)));
    }
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) {
        throw Error(
            fmt::format("{}.{} must be a string, is {}", where, shown(key), type_name(value)));
      }
      metadata_.emplace(key, value.get<std::string>());
    }
  }
  check_layout(data_begin);
}

void SafetensorsFile::check_layout(std::int64_t data_begin) const {
  using Entry = std::pair<const std::string, TensorInfo>;
  std::vector<const Entry*> order;
  for (const Entry& entry : tensors_) order.push_back(&entry);
  // Empty tensors begin where their neighbour does.
  std::stable_sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->second.begin, a->second.bytes) <
           std::pair(b->second.begin, b->second.bytes);
  });
  std::int64_t end = data_begin;
  for (const Entry* entry : order) {
    const auto& [name, info] = *entry;
    if (info.begin != end) {
      throw Error(
          fmt::format("'{}': tensor '{}' begins at byte {}, {} the one before it ends at {}", path_,
                      shown(name), info.begin, info.begin < end ? "though" : "a hole after", end));
    }
    end += info.bytes;
    if (end > size_) {
      throw Error(fmt::format("'{}' is cut off: tensor '{}' ends at byte {} and the file at {}",
                              path_, shown(name), end, size_));
    }
  }
  if (end != size_) {
    throw Error(
        fmt::format("'{}' has {} bytes behind its last tensor; it is damaged", path_, size_ - end));
  }
}

void SafetensorsFile::read(const std::string& name, std::int64_t first,
                           std::span<float> out) const {
  const TensorInfo& info = tensors_.at(name);
  const Format* format = find_format(info.format);
  if (!format->dtype) {
    throw Error(fmt::format("'{}': tensor '{}' is kept as {}; convert it to F32, BF16 or F16",
                            path_, shown(name), info.format));
  }
  const auto count = static_cast<std::int64_t>(out.size());
  QPLAN_CHECK(first >= 0 && first + count <= info.elements(), "elements lie within the tensor");
  const std::int64_t width = format->bits / 8;
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(count, kChunk) * width));
  for (std::int64_t done = 0; done < count; done += kChunk) {
    const auto n = static_cast<std::size_t>(std::min(kChunk, count - done));
    const std::span<std::byte> chunk(bytes.data(), n * static_cast<std::size_t>(width));
    read_at(file_, info.begin + (first + done) * width, chunk, path_);
    math::decode(*format->dtype, chunk, out.subspan(static_cast<std::size_t>(done), n));
  }
}

void write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorToWrite& a, const TensorToWrite& b) { return a.name < b.name; });
  std::vector<std::string> entries;
  if (!metadata.empty()) {
    entries.push_back(fmt::format("\"__metadata__\":{}", Json(metadata).dump()));
  }
  std::int64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::int64_t bytes =
        product(tensor.shape).value() * static_cast<std::int64_t>(size_of(tensor.dtype));
    const Json entry{{"dtype", word_of(tensor.dtype)},
                     {"shape", tensor.shape},
                     {"data_offsets", {offset, offset + bytes}}};
    entries.push_back(fmt::format("{}:{}", Json(tensor.name).dump(), entry.dump()));
    offset += bytes;
  }
  std::string text = fmt::format("{{{}}}", fmt::join(entries, ","));
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors begin at a multiple of 8
  const std::uint64_t length = text.size();
  std::array<char, kPrefix> prefix{};
  std::memcpy(prefix.data(), &length, sizeof length);

  AtomicFile file(path);
  file.write({prefix.data(), prefix.size()});
  file.write(text);
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (const TensorToWrite& tensor : tensors) {
    const std::int64_t elements = product(tensor.shape).value();
    for (std::int64_t first = 0; first < elements; first += kChunk) {
      values.resize(static_cast<std::size_t>(std::min(kChunk, elements - first)));
      bytes.resize(values.size() * static_cast<std::size_t>(size_of(tensor.dtype)));
      tensor.values(first, values);
      math::encode(tensor.dtype, values, bytes);
      file.write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
  }
  file.commit();
}

}  // namespace qplan
