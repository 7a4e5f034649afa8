#include "planner/frameworks/readers/formats.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/error.h"
#include "tests/complaint.h"

namespace qplan {
namespace {

Settings json(std::string_view text) {
  return read_json_settings(text, "ds.json").settings;
}

std::string json_complaint(std::string_view text) {
  return complaint_of([&] { read_json_settings(text, "ds.json"); });
}

TEST_SUITE("JSON with places") {
  TEST_CASE("values are found by their path, with line and bytes") {
    const std::string text =
        "{\n  \"zero\": {\n    \"stage\": 3, \"big\": 5e8\n  },\n  \"list\": [1, \"b\"]\n}\n";
    const Settings s = json(text);
    const Setting& stage = *s.find("zero.stage");
    CHECK(stage.value == 3);
    CHECK(stage.place.line == 3);
    CHECK(text.substr(stage.text.begin, stage.text.end - stage.text.begin) == "3");
    CHECK(text.substr(stage.whole.begin, stage.whole.end - stage.whole.begin) == "\"stage\": 3");
    CHECK(whole_of(s.find("zero.big")->value) == 500000000);
    CHECK(text_of(s.find("list")->value) == "1 b");
  }

  TEST_CASE("remarks and trailing commas are read, and found once") {
    const std::string text = "{\n  # one\n  \"a\": 1, // two\n  /* 3\n */ \"b\": 2/**/,\n}\n";
    const FormatText read = read_json_settings(text, "ds.json");
    CHECK(read.settings.find("b")->value == 2);
    REQUIRE(read.findings.size() == 2);
    CHECK(read.findings[0].rule == "json_remark");
    CHECK(read.findings[1].rule == "json_trailing_comma");
    std::vector<Edit> edits;
    for (const Finding& f : read.findings) edits.insert(edits.end(), f.fix.begin(), f.fix.end());
    CHECK(read_json_settings(with_edits(text, "ds.json", edits), "x").findings.empty());
  }

  TEST_CASE("what is no JSON is said with its line") {
    CHECK(json_complaint("{\"a\": {\"b\": 1,").find("cut off") != std::string::npos);
    CHECK(json_complaint("{\"a\": \"x").find("cut off") != std::string::npos);
    CHECK(json_complaint("{\n\"a\" 1}").find("ds.json:2") != std::string::npos);
    CHECK(json_complaint("{\"a\": yes}").find("quotes") != std::string::npos);
    CHECK(json_complaint("{} {}").find("follows") != std::string::npos);
    CHECK(json_complaint("{\n/* a").find("ds.json:2") != std::string::npos);
    CHECK(json_complaint("{a: 1}").find("quotes") != std::string::npos);
    CHECK(json_complaint(std::string(100000, '[')).find("deeper") != std::string::npos);
    std::string many = "[1";
    for (int i = 0; i < 200000; ++i) many += ",1";
    CHECK(json_complaint(many + "]").find("more values") != std::string::npos);
  }
}

TEST_SUITE("TOML") {
  TEST_CASE("tables, names and values of every kind, with their bytes") {
    const std::string text =
        "top = 1\n[a.b]\n  c.\"d e\" = 'x\\n' # said\n\"f\" = \"\\u00e9\\\"\"\n"
        "g = [1, # one\n  2.5,\n]\nh = { i = true, j = {} }\r\n[[l]]\nm = -0x10\n[[l]]\n"
        "m = 1_000\nn = \"\"\"\ntwo\nlines\"\"\"\no = 1979-05-27 07:32:00\np = 1e-5\n";
    const Settings s = read_toml_settings(text, "a.toml").settings;
    const auto value = [&](std::string_view key) {
      REQUIRE_MESSAGE(s.has(key), key);
      return s.find(key)->value;
    };
    CHECK(value("top") == 1);
    CHECK(value("a.b").is_object());
    CHECK(value("a.b.c.d e") == "x\\n");
    CHECK(value("a.b.f") == "\u00e9\"");
    CHECK(value("a.b.g") == Json::array({1, 2.5}));
    CHECK(value("a.b.h.i") == true);
    CHECK(value("l.0.m") == -16);
    CHECK(value("l.1.m") == 1000);
    CHECK(value("l.1.n") == "two\nlines");
    CHECK(value("l.1.o") == "1979-05-27 07:32:00");
    CHECK(value("l.1.p") == 1e-5);
    CHECK(s.find("a.b.g")->place.line == 5);
    const Setting& f = *s.find("a.b.f");
    CHECK(text.substr(f.name.begin, f.name.end - f.name.begin) == "f");
    CHECK(text.substr(f.text.begin, f.text.end - f.text.begin) == "\"\\u00e9\\\"\"");
    const Setting& table = *s.find("a.b");
    CHECK(text.substr(table.name.begin, table.name.end - table.name.begin) == "b");
  }

  TEST_CASE("what tomllib stops at is told with its line") {
    const auto complaint = [](const std::string& text) {
      return complaint_of([&] { read_toml_settings(text, "a.toml"); });
    };
    for (const std::string text :
         {"a = True", "a = 1 b = 2", "a: 1", "a = \"x", "[a", "a = [1, 2", "a = 010", "a = 1__0",
          "a = .5", "a = \"C:\\path\"", "= 1", "a =", "a = {b = 1,}", "a = nul"}) {
      CAPTURE(text);
      CHECK(complaint("x = 1\n" + text + "\n").starts_with("a.toml:"));
    }
    CHECK(complaint("x = 1\na = True\n").starts_with("a.toml:2: this is not TOML: True"));
    CHECK(complaint("a = " + std::string(100, '[')).find("nested deeper") != std::string::npos);
    CHECK(complaint("\xef\xbb\xbf"
                    "a = 1")
              .find("byte order mark") != std::string::npos);
  }

  TEST_CASE("what stands twice is found, and the last counts") {
    const FormatText read = read_toml_settings("[a]\nb = 1\nb = 2\n[a]\nc = 3\n", "a.toml");
    REQUIRE(read.findings.size() == 2);
    CHECK(read.findings[0].rule == "said_twice");
    CHECK(read.findings[0].place.line == 3);
    CHECK(read.findings[1].place.line == 4);
    CHECK(read.settings.find("a.b")->value == 2);
  }
}

TEST_SUITE("YAML") {
  TEST_CASE("mappings, lists, quotes and remarks") {
    const std::string text =
        "# top\ncompute_environment: LOCAL_MACHINE\nfsdp_config:\n  fsdp_version: 2   # remark\n"
        "  names: [a, 'b c']\n  list:\n  - 1\n  - 2\nlast: \"x: y # z\"\nempty:\n";
    const Settings s = read_yaml_settings(text, "a.yaml").settings;
    CHECK(text_of(s.find("compute_environment")->value) == "LOCAL_MACHINE");
    CHECK(s.find("fsdp_config.fsdp_version")->value == 2);
    CHECK(s.find("fsdp_config.fsdp_version")->place.line == 4);
    CHECK(text_of(s.find("fsdp_config.names")->value) == "a b c");
    CHECK(text_of(s.find("fsdp_config.list")->value) == "1 2");
    CHECK(text_of(s.find("last")->value) == "x: y # z");
    const Span span = s.find("fsdp_config.fsdp_version")->text;
    CHECK(text.substr(span.begin, span.end - span.begin) == "2");
  }

  TEST_CASE("anchors, merged mappings, blocks and values on the next line") {
    const std::string text =
        "BASE: &base\n  --a: 1\n  --b: 2\nSCRIPT: |\n  x: y\n  - [no, YAML\nMODEL_ARGS:\n  --b: 3\n"
        "  <<: *base\n  --c:\n    true\n  --d: &d {e: 'it''s'}\n  --f: \"\\u00e9\" # é\n  --g: 4\n"
        "again: *d\nlist:\n  - {a: 1}\n  - 2\n";
    const Settings s = read_yaml_settings(text, "a.yaml").settings;
    CHECK(s.find("MODEL_ARGS.--a")->value == 1);
    CHECK(s.find("MODEL_ARGS.--a")->place.line == 2);  // where it is written
    CHECK(s.find("MODEL_ARGS.--b")->value == 3);       // what the mapping says itself counts
    CHECK(s.find("BASE.--b")->value == 2);
    CHECK(s.find("SCRIPT")->value == "x: y\n- [no, YAML\n");
    CHECK(s.find("MODEL_ARGS.--c")->value == true);
    CHECK(s.find("MODEL_ARGS.--c")->place.line == 10);
    CHECK(s.find("MODEL_ARGS.--d.e")->value == "it's");
    CHECK(s.find("again.e")->value == "it's");
    CHECK(s.find("MODEL_ARGS.--f")->value == "é");
    CHECK(s.find("list.0.a")->value == 1);
    CHECK(s.find("list")->value == Json::array({nullptr, 2}));
    const Span span = s.find("MODEL_ARGS.--g")->whole;  // in bytes, behind a letter of two
    CHECK(text.substr(span.begin, span.end - span.begin) == "--g: 4");
  }

  TEST_CASE("a byte-order mark is no part of the text, and places count it") {
    const std::string text =
        "\xef\xbb\xbf"
        "a: é\nb: 2\nc: 3\n";
    const Settings s = read_yaml_settings(text, "a.yaml").settings;
    CHECK(s.find("a")->value == "é");
    CHECK(s.find("c")->place.line == 3);
    const Span span = s.find("c")->whole;
    CHECK(text.substr(span.begin, span.end - span.begin) == "c: 3");
    CHECK(complaint_of([] {
            read_yaml_settings(
                "\xef\xbb\xbf"
                "a: 1\nb: \xff\n",
                "a.yaml");
          }).find("a.yaml:2") != std::string::npos);
  }

  TEST_CASE("an exponent makes a number by its reader's rule") {
    const std::string text = "a: 2e3\nb: 1e-5\nc: 1.0e5\nd: 5.0e-6\ne: 1.5E+2\nf: [1e3]\n";
    const Settings py = read_yaml_settings(text, "a.yaml").settings;
    CHECK(py.find("a")->value == "2e3");
    CHECK(py.find("b")->value == "1e-5");
    CHECK(py.find("c")->value == "1.0e5");
    CHECK(py.find("d")->value == 5e-6);
    CHECK(py.find("e")->value == 150);
    CHECK(py.find("f")->value == Json::array({"1e3"}));
    const Settings omega = read_yaml_settings(text, "a.yaml", YamlLoader::omegaconf).settings;
    CHECK(omega.find("a")->value == 2000);
    CHECK(omega.find("b")->value == 1e-5);
    CHECK(omega.find("c")->value == 1e5);
  }

  TEST_CASE("an alias has no place of its own to correct") {
    const Settings s = read_yaml_settings("a: &x 8\nb: *x\n", "a.yaml").settings;
    CHECK(s.find("b")->value == 8);
    CHECK(s.find("b")->place.line == 2);
    CHECK(s.find("b")->text.end == 0);
    CHECK(s.find("b")->whole.end == 0);
  }

  TEST_CASE("what is not read is refused by its line") {
    const auto complaint = [](std::string_view text) {
      return complaint_of([&] { read_yaml_settings(text, "a.yaml"); });
    };
    CHECK(complaint("a: 1\nb: *x\n").find("a.yaml:2: this is not YAML: found undefined alias") !=
          std::string::npos);
    CHECK(complaint("a: 1\nb: \xff\n").find("a.yaml:2") != std::string::npos);
    CHECK(complaint("a: {b: 1\n").find("a.yaml:2") != std::string::npos);
    CHECK(complaint("[1, 2]: 3\n").find("a key must be a word") != std::string::npos);
    CHECK(complaint("<<: 3\n").find("'<<' takes") != std::string::npos);
    CHECK(complaint("a: 1\n\tb: 1\n").find("a.yaml:2: YAML indents by spaces") !=
          std::string::npos);
    CHECK(complaint("words\n").find("key: value") != std::string::npos);
    CHECK(complaint("- a\n").find("list") != std::string::npos);
    CHECK(complaint("&a\nb: *a\n").find("deeper") != std::string::npos);
    std::string bomb = "x0: &x0 {}\n";
    for (int i = 0; i < 40; ++i) {
      bomb += fmt::format("x{0}: &x{0} {{<<: [*x{1}, *x{1}]}}\n", i + 1, i);
    }
    CHECK(complaint(bomb).find("more values") != std::string::npos);
  }
}

TEST_SUITE("Python without running it") {
  TEST_CASE("keywords of calls, nested, with arithmetic") {
    const PythonText text = read_python(
        "def f():\n  \"\"\"doc (x=1)\"\"\"\n  return Trainer.Config(\n"
        "    training=TrainingConfig(tokens=2 * 4096, steps=3000),  # a, b\n"
        "    parallelism=ParallelismConfig(\n      shard=-1, tp=tp_degree, on=True, off=None),\n"
        "    names=[[\"a\", \"b\"], [\"c\"]],\n  )\n",
        "c.py");
    REQUIRE(text.calls.size() >= 3);
    const auto find = [&](const std::string& callee) -> const PythonCall& {
      for (const PythonCall& call : text.calls) {
        if (call.callee == callee) return call;
      }
      FAIL("no call of " << callee);
      return text.calls.front();
    };
    CHECK(find("TrainingConfig").find("tokens")->value == 8192);
    CHECK(find("TrainingConfig").find("tokens")->place.line == 4);
    const PythonCall& parallel = find("ParallelismConfig");
    CHECK(parallel.find("shard")->value == -1);
    CHECK(parallel.find("on")->value == true);
    CHECK_FALSE(parallel.find("tp")->resolved);
    CHECK(parallel.find("tp")->text == "tp_degree");
    CHECK(parallel.find("off")->resolved);
    CHECK(find("Trainer.Config").find("names")->value.size() == 2);
  }

  TEST_CASE("assignments to attributes") {
    const PythonText text = read_python("cfg.model.tp = 4\nif x == 2: cfg.y = \"a\"\n", "c.py");
    REQUIRE(text.assignments.size() == 2);
    CHECK(text.assignments[0].target == "cfg.model.tp");
    CHECK(text.assignments[0].value.value == 4);
    CHECK(text.assignments[1].value.value == "a");
  }

  TEST_CASE("anything is read to its end") {
    for (const std::string text : {"f(", "f(a=", "\"", "'''", "[", "f(a=[", "((((", ")))", "a.b.",
                                   "1e", "f(x=-", "\\", "f(a=1**2, b=3)", "x = = ="}) {
      CAPTURE(text);
      CHECK_NOTHROW(read_python(text, "c.py"));
    }
    std::string deep;
    for (int i = 0; i < 100000; ++i) deep += "f(";
    CHECK_NOTHROW(read_python(deep, "c.py"));
    CHECK_NOTHROW(read_python(std::string(100000, '['), "c.py"));
    CHECK_NOTHROW(read_python("f(a=" + std::string(100000, '-') + "1)", "c.py"));
  }
}

}  // namespace
}  // namespace qplan
