#include "executor/io/safetensors.h"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "models/json.h"
#include "tests/complaint.h"
#include "tests/temporary_folder.h"

using namespace qplan;

namespace {

// Element i of a tensor is `scale` * i.
TensorToWrite counting(std::string name, DType dtype, std::vector<std::int64_t> shape,
                       float scale = 1) {
  return {std::move(name), dtype, std::move(shape), [scale](std::int64_t first, auto out) {
            for (std::size_t i = 0; i < out.size(); ++i) {
              out[i] = scale * static_cast<float>(first + static_cast<std::int64_t>(i));
            }
          }};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string with_header(const std::string& header, std::size_t data) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data, 'x');
}

std::string opening(const std::string& path) {
  return complaint_of([&] { const SafetensorsFile file(path); });
}

}  // namespace

TEST_CASE("a file gives back what was written, rounded to its type") {
  const TemporaryFolder folder;
  const std::string path = folder.file("model.safetensors");
  write_safetensors(path,
                    {counting("w", DType::fp32, {3, 4}), counting("b", DType::bf16, {400}),
                     counting("h", DType::fp16, {2}, 0.1F), counting("none", DType::fp32, {0, 4})},
                    {{"format", "pt"}});
  const SafetensorsFile file(path);
  CHECK(file.metadata().at("format") == "pt");
  REQUIRE(file.tensors().size() == 4);
  CHECK(file.tensors().at("w").shape == std::vector<std::int64_t>{3, 4});
  CHECK(file.tensors().at("w").format == "F32");
  std::vector<float> part(2);
  file.read("w", 5, part);
  CHECK(part == std::vector<float>{5, 6});
  file.read("b", 300, part);
  CHECK(part == std::vector<float>{300, 300});  // bf16 counts by twos there; 301 is a tie
  file.read("h", 0, part);
  CHECK(part[1] == doctest::Approx(0.1).epsilon(1e-3));
}

TEST_CASE("large tensors are written and read in pieces") {
  const TemporaryFolder folder;
  const std::string path = folder.file("big.safetensors");
  write_safetensors(path, {counting("x", DType::fp32, {200'000})});
  std::vector<float> all(200'000);
  SafetensorsFile(path).read("x", 0, all);
  for (std::size_t i = 0; i < all.size(); i += 777) REQUIRE(all[i] == static_cast<float>(i));
}

TEST_CASE("the same tensors make the same bytes, whatever their order") {
  const TemporaryFolder folder;
  const auto a = counting("a", DType::fp32, {2}), b = counting("b", DType::fp32, {3});
  write_safetensors(folder.file("1"), {a, b});
  write_safetensors(folder.file("2"), {b, a});
  CHECK(bytes_of(folder.file("1")) == bytes_of(folder.file("2")));
}

TEST_CASE("a file of the reference implementation is read") {
  // safetensors 0.8.0: save_file({"x": tensor([[1., 2.], [3., 4.]], bfloat16)}).
  const TemporaryFolder folder;
  const std::string path = folder.file("x.safetensors");
  std::string bytes =
      with_header(R"({"x":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}       )", 0);
  bytes += std::string("\x80\x3f\x00\x40\x40\x40\x80\x40", 8);
  write_bytes(path, bytes);
  std::vector<float> x(4);
  SafetensorsFile(path).read("x", 0, x);
  CHECK(x == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("a file cut off anywhere is refused and named") {
  const TemporaryFolder folder;
  const std::string path = folder.file("model.safetensors");
  write_safetensors(path, {counting("w", DType::fp32, {3, 4}), counting("v", DType::bf16, {5})});
  const std::string whole = bytes_of(path);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_bytes(path, whole.substr(0, length));
    const std::string message = opening(path);
    CAPTURE(length);
    CHECK(message.find(path) != std::string::npos);
  }
  write_bytes(path, whole + "x");
  CHECK(opening(path).find("1 bytes behind its last tensor") != std::string::npos);
}

TEST_CASE("a damaged header is refused or harmless, never a crash") {
  const TemporaryFolder folder;
  const std::string path = folder.file("model.safetensors");
  write_safetensors(path, {counting("w", DType::fp32, {3, 4}), counting("v", DType::bf16, {5})});
  const std::string whole = bytes_of(path);
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = whole;
    damaged[random() % 130] = static_cast<char>(random());
    write_bytes(path, damaged);
    refused += opening(path) == "accepted" ? 0 : 1;
  }
  CHECK(refused > 1000);  // the rest changed a letter of a name, or nothing
}

TEST_CASE("what is wrong with a header is said, with file and tensor") {
  const TemporaryFolder folder;
  const std::string path = folder.file("f.safetensors");
  const auto complaint = [&](const std::string& header, std::size_t data) {
    write_bytes(path, with_header(header, data));
    const std::string message = opening(path);
    CHECK(message.find(path) != std::string::npos);
    return message;
  };
  const auto says = [](const std::string& message, const std::string& words) {
    CAPTURE(message);
    CHECK(message.find(words) != std::string::npos);
  };
  says(complaint(R"({"x":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4),
       "x.dtype is 'F31'");
  says(complaint(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
       "span 4 bytes; (2) of F32 take 8");
  says(complaint(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 2),
       "is cut off: tensor 'x' ends at byte");
  says(complaint(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8), "a hole after");
  says(complaint(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                     "y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                 8),
       "tensor 'y' begins at byte");
  says(complaint(R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4), "no size");
  says(complaint(R"({"x":{"dtype":"F32","shape":[4611686018427387903,4611686018427387903],
                     "data_offsets":[0,4]}})",
                 4),
       "more elements than a file can hold");
  says(complaint(R"({"x":{"dtype":"F32","data_offsets":[0,4]}})", 4), "x.shape is missing");
  says(complaint("[1]", 0), "the header must be an object");
  says(complaint(R"({"x":3})", 0), "must be an object");
  says(complaint(R"({"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},
                     "x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
                 0),
       "appears twice");
  write_bytes(path, std::string(8, '\x7f'));
  says(opening(path), "no safetensors file");
  says(opening(folder.file("absent")), "cannot open");
  says(opening(folder.path()), "not a regular file");
}

TEST_CASE("types that are no floats can be listed but not read") {
  const TemporaryFolder folder;
  const std::string path = folder.file("f.safetensors");
  write_bytes(path,
              with_header(R"({"x":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})", 4));
  const SafetensorsFile file(path);
  std::vector<float> out(4);
  CHECK(complaint_of([&] { file.read("x", 0, out); }) ==
        "'" + path + "': tensor 'x' is kept as F8_E4M3; convert it to F32, BF16 or F16");
}

TEST_CASE("nothing is left behind when writing fails") {
  const TemporaryFolder folder;
  TensorToWrite broken = counting("x", DType::fp32, {4});
  broken.values = [](std::int64_t, std::span<float>) { throw Error("no values"); };
  CHECK(complaint_of([&] { write_safetensors(folder.file("f"), {broken}); }) == "no values");
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a folder is read through its index or its single file") {
  const TemporaryFolder folder;
  const auto opened = [&] { return complaint_of([&] { const TensorStore s(folder.path()); }); };
  CHECK(opened().find("holds neither model.safetensors nor") != std::string::npos);
  write_safetensors(folder.file("a.safetensors"), {counting("x", DType::fp32, {2})});
  write_safetensors(folder.file("b.safetensors"), {counting("y", DType::fp32, {3}, 2)});
  const std::string index = folder.file("model.safetensors.index.json");
  const auto with_map = [&](const std::string& map) {
    write_file_atomically(index, R"({"metadata": {"total_size": 20}, "weight_map": )" + map + "}");
    return opened();
  };
  CHECK(with_map(R"({"x": "a.safetensors", "y": "b.safetensors"})") == "accepted");
  const TensorStore store(folder.path());
  CHECK(store.names() == std::vector<std::string>{"x", "y"});
  CHECK(store.find("z") == nullptr);
  std::vector<float> y(3);
  store.read("y", 0, y);
  CHECK(y == std::vector<float>{0, 2, 4});

  CHECK(with_map(R"({"x": "b.safetensors"})").find("does not hold it") != std::string::npos);
  CHECK(with_map(R"({"x": "../a.safetensors"})").find("beside the index") != std::string::npos);
  CHECK(with_map(R"({"x": "c.safetensors"})").find("cannot open") != std::string::npos);
  CHECK(with_map("3").find("must be an object") != std::string::npos);
  write_safetensors(folder.file("b.safetensors"), {counting("x", DType::fp32, {3})});
  CHECK(with_map(R"({"x": "a.safetensors", "y": "b.safetensors"})").find("keep one") !=
        std::string::npos);
}
