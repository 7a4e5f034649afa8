#include "models/json.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "models/error.h"
#include "tests/complaint.h"

using namespace qplan;
namespace fs = std::filesystem;

namespace {

// A folder of its own for a test, removed at the end.
struct ScratchFolder {
  fs::path path;
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "qplan-json-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  [[nodiscard]] std::string file(const std::string& name) const { return (path / name).string(); }
};

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string repeat(const std::string& piece, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += piece;
  return result;
}

std::string message_of(const std::string& text) {
  return complaint_of([&] { parse_json(text, "f.json"); });
}

std::string file_message(const std::string& path) {
  return complaint_of([&] { read_json_file(path); });
}

}  // namespace

TEST_CASE("well-formed JSON keeps its order and its values") {
  const Json value = parse_json(R"({"b": [1, -2, 2.5, true, null], "a": {"x": "\u00e9"}})", "f");
  CHECK(value.dump() == R"({"b":[1,-2,2.5,true,null],"a":{"x":"é"}})");
  CHECK(parse_json("\xEF\xBB\xBF{}", "f").is_object());  // Windows' byte-order mark
}

TEST_CASE("broken JSON is refused with its place") {
  struct Case {
    std::string text, message;
  };
  const Case cases[] = {
      {"", "f.json: the file is empty; expected a JSON object"},
      {" \n\t ", "f.json: the file is empty; expected a JSON object"},
      {"{\n  \"a\": 1,\n  \"b\": ",
       "f.json:3:7: this is not JSON: the text ends in the middle of a value; is the file cut "
       "off?"},
      {"{\"a\": \"abc",
       "f.json:1:10: this is not JSON: invalid string: missing closing quote, read '\"abc'"},
      {"{\"a\": 1e999}", "f.json:1:11: this is not JSON: a number is too large for a double"},
      {"{\"a\": [1, 100000000000000000000]}",
       "f.json: a[1] 100000000000000000000 is too large for a whole number"},
      {"{\"a\": NaN}", "f.json:1:7: this is not JSON: invalid literal, read '\"a\": N'"},
      {"{\"a\": -Infinity}",
       "f.json:1:8: this is not JSON: invalid number; expected digit after '-', read '-I'"},
      {"{\"a\": 1, \"a\": 2}", "f.json: a appears twice; keep one"},
      {"{\"a\": [{}, {\"b\": {\"c\": 1, \"c\": 1}}]}", "f.json: a[1].b.c appears twice; keep one"},
      {std::string("PK\3\4\0\0\0", 7), "f.json: this is a binary file, not JSON"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    CHECK(message_of(c.text) == c.message);
  }
  for (const char* text : {"{} {}", "{\"a\" 1}", "{a: 1}", "[1,]", "// x\n{}", "{\"a\": 01}",
                           "\"\xff\"", "{'a': 1}", "]", "nul", "{\"a\": +1}", "{,}"}) {
    CAPTURE(text);
    CHECK(message_of(text).starts_with("f.json:1:"));
  }
}

TEST_CASE("64 levels are read and the 65th is refused, however many follow") {
  const auto lists = [](int n) { return repeat("[", n) + repeat("]", n); };
  CHECK(message_of(lists(64)) == "accepted");
  const std::string refusal = "f.json: values are nested deeper than 64; flatten them";
  CHECK(message_of(lists(65)) == refusal);
  CHECK(message_of(repeat("[", 100'000)) == refusal);
  CHECK(message_of(repeat("{\"a\":", 100'000)) == refusal);
  CHECK(message_of(repeat("{\"a\":[", 5'000'000)) == refusal);
}

TEST_CASE("an object of many keys is read in linear time") {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"k" + std::to_string(i) + "\":0,";
  CHECK(parse_json(text + "\"z\":1}", "f").size() == 200'001);
  CHECK(message_of(text + "\"k7\":1}") == "f.json: k7 appears twice; keep one");
}

TEST_CASE("the value that is one too many is refused with its path, whatever it is") {
  // The list or object is a value itself.
  const std::string refusal = " is one value too many; a JSON file may hold 250000";
  CHECK(message_of("[" + repeat("0,", 249'998) + "0]") == "accepted");
  CHECK(message_of("[" + repeat("0,", 249'999) + "0]") == "f.json: [249999]" + refusal);
  CHECK(message_of("{\"a\":[" + repeat("[],", 300'000)) == "f.json: a[249998]" + refusal);
  std::string keys = "{";
  for (int i = 0; i < 300'000; ++i) keys += "\"k" + std::to_string(i) + "\":0,";
  CHECK(message_of(keys) == "f.json: k249999" + refusal);
}

TEST_CASE("hostile text as large as a file may be is answered within seconds") {
  // 8 MiB. The object is slowest, 0.5 s (2-core EPYC); without the limit on values it takes 3 s.
  constexpr int kSize = 8 << 20;
  std::string object = "{";
  for (int i = 0; object.size() < kSize; ++i) object += "\"k" + std::to_string(i) + "\":0,";
  const std::string cases[] = {object,
                               "[" + repeat("0,", kSize / 2),
                               "[" + repeat("[],", kSize / 3),
                               "{\"a\": \"" + std::string(kSize, 'x') + "\"}",
                               "{\"a\": \"" + repeat("\\u00e9", kSize / 6) + "\"}",
                               "{\"a\": " + std::string(kSize, '1') + "}",
                               "{\"a\": 0." + std::string(kSize, '1') + "}",
                               "{" + std::string(kSize, ' ') + "}",
                               std::string(kSize, '[')};
  for (const std::string& text : cases) {
    CAPTURE(text.substr(0, 20));
    const auto start = std::chrono::steady_clock::now();
    CHECK(message_of(text).size() < 300);
    // Wide, for machines that run other things and for sanitizers.
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  }
}

TEST_CASE("messages about hostile text stay short") {
  CHECK(message_of("{\"" + std::string(1'000'000, 'a')).size() < 300);
  CHECK(message_of("{\"" + std::string(1'000'000, 'a') + "\": x").size() < 300);
  const std::string key(1'000'000, 'k');
  CHECK(message_of("{\"" + key + "\":1,\"" + key + "\":1}").size() < 300);
}

TEST_CASE("files that are no JSON file are refused in one sentence") {
  const ScratchFolder folder;
  const std::string folder_path = folder.path.string();
  CHECK(file_message(folder_path) == "'" + folder_path + "' is a folder; name the file in it");
  const std::string absent = folder.file("absent.json");
  CHECK(file_message(absent) == "cannot open '" + absent + "': No such file or directory");
  const std::string binary = folder.file("model.safetensors");
  write(binary, std::string("\x40\0\0\0\0\0\0\0{}", 10));
  CHECK(file_message(binary) == binary + ": this is a binary file, not JSON");
  const std::string large = folder.file("large.json");
  write(large, "");
  fs::resize_file(large, (std::uintmax_t{8} << 20U) + 1);
  CHECK(file_message(large) ==
        "'" + large + "' is larger than 8 MiB; qplan's inputs are far smaller");
  CHECK_THROWS_AS(read_json_file("/dev/zero"), Error);
  CHECK_THROWS_AS(read_json_file("/dev/null"), Error);
  CHECK_THROWS_AS(read_json_file(""), Error);
}

TEST_CASE("a file is written whole, in place, and leaves nothing beside it") {
  const ScratchFolder folder;
  const std::string path = folder.file("plan.json");
  write_file_atomically(path, "first");
  CHECK(read(path) == "first");
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  fs::create_symlink(path, folder.file("link.json"));
  write_file_atomically(folder.file("link.json"), "second");
  CHECK(read(path) == "second");
  CHECK(fs::is_symlink(folder.file("link.json")));
  CHECK(fs::status(path).permissions() == fs::perms{0640});
  // Links to links, and to what is not there yet.
  fs::create_symlink("later.json", folder.file("next.json"));
  fs::create_symlink("next.json", folder.file("chain.json"));
  write_file_atomically(folder.file("chain.json"), "third");
  CHECK(read(folder.file("later.json")) == "third");
  CHECK(fs::is_symlink(folder.file("next.json")));
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 5);
}

TEST_CASE("a file that cannot be written is an error and changes nothing") {
  const ScratchFolder folder;
  CHECK_THROWS_AS(write_file_atomically(folder.path.string(), "x"), Error);
  CHECK_THROWS_AS(write_file_atomically(folder.file("no/such/folder.json"), "x"), Error);
  CHECK(fs::is_empty(folder.path));
  fs::create_symlink("b.json", folder.file("a.json"));
  fs::create_symlink("a.json", folder.file("b.json"));
  CHECK_THROWS_AS(write_file_atomically(folder.file("a.json"), "x"), Error);
  CHECK(fs::is_symlink(folder.file("a.json")));
  write_file_atomically("/dev/null", "a device is written, not replaced");
  CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("a reader names the path, what it found and what it wanted") {
  const Json object = parse_json(
      R"({"i": 7, "f": 2.5, "s": "word", "b": true, "n": null, "l": [],
          "big": 9223372036854775808})",
      "f");
  JsonReader reader(object, "plan.json: plan");
  CHECK(reader.integer("i", 0, 10) == 7);
  CHECK(reader.number("i", 0, 10) == 7.0);
  CHECK(reader.number("f", 0, 10) == 2.5);
  CHECK(reader.string("s") == "word");
  CHECK(reader.boolean("b"));
  CHECK(reader.value("l").is_array());
  CHECK(reader.integer_or("n", 0, 10, 3) == 3);
  CHECK(reader.string_or("absent", "x") == "x");
  CHECK(!reader.has("n"));
  CHECK(reader.has("i"));
  CHECK_THROWS_WITH_AS(reader.integer("i", 8, 10),
                       "plan.json: plan.i must be between 8 and 10, is 7", Error);
  CHECK_THROWS_WITH_AS(reader.integer("big", 0, 10),
                       "plan.json: plan.big must be between 0 and 10, is 9223372036854775808",
                       Error);
  CHECK_THROWS_WITH_AS(reader.integer("f", 0, 10),
                       "plan.json: plan.f must be a whole number, is 2.5", Error);
  CHECK_THROWS_WITH_AS(reader.integer("s", 0, 10),
                       "plan.json: plan.s must be a whole number, is a string", Error);
  CHECK_THROWS_WITH_AS(reader.number("b", 0, 1), "plan.json: plan.b must be a number, is a boolean",
                       Error);
  CHECK_THROWS_WITH_AS(reader.number("f", 0, 1),
                       "plan.json: plan.f must be between 0 and 1, is 2.5", Error);
  CHECK_THROWS_WITH_AS(reader.boolean("i"), "plan.json: plan.i must be true or false, is a number",
                       Error);
  CHECK_THROWS_WITH_AS(reader.string("l"), "plan.json: plan.l must be a string, is a list", Error);
  CHECK_THROWS_WITH_AS(reader.integer("n", 0, 1), "plan.json: plan.n is null; a value is required",
                       Error);
  CHECK_THROWS_WITH_AS(reader.integer_or("s", 0, 1, 0),
                       "plan.json: plan.s must be a whole number, is a string", Error);
  CHECK_THROWS_WITH_AS(JsonReader(object["l"], "plan"), "plan must be an object, is a list", Error);
}

TEST_CASE("a number in Json that is not finite never passes a range") {
  const Json object{{"x", std::numeric_limits<double>::quiet_NaN()}};
  CHECK_THROWS_AS(JsonReader(object, "p").number("x", -1e308, 1e308), Error);
}

TEST_CASE("a key nobody asked for is named with the nearest known one") {
  const Json object = parse_json(R"({"tp": 1, "zreo": 1})", "f");
  JsonReader reader(object, "plan");
  CHECK(reader.integer_or("tp", 1, 8, 1) == 1);
  CHECK(reader.integer_or("zero", 0, 3, 0) == 0);
  CHECK_THROWS_WITH_AS(reader.finish(), "plan.zreo is not a known key; did you mean 'zero'?",
                       Error);
  reader.ignore({"zreo"});
  CHECK_NOTHROW(reader.finish());
}

TEST_CASE("a path that ends in a colon is a file and its top object") {
  const Json object = Json::object();
  JsonReader reader(object, "config.json:");
  CHECK(reader.path_of("hidden_size") == "config.json: hidden_size");
  CHECK_THROWS_WITH_AS(reader.integer("hidden_size", 1, 2), "config.json: hidden_size is missing",
                       Error);
  CHECK_THROWS_WITH_AS(JsonReader(Json(3), "config.json:"),
                       "config.json: the file must be an object, is a number", Error);
}
