#include "cli/mcp_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <utility>

#include "cli/answer_schema.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "models/error.h"
#include "models/json.h"
#include "models/text.h"

namespace qplan {
namespace {

const Verb* verb_named(std::string_view name) {
  for (const Verb& verb : verbs()) {
    if (verb.name == name && verb.is_tool) return &verb;
  }
  return nullptr;
}

std::vector<std::string> split_at_spaces(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// An option that a caller may give: the rows of `--help=json`.
struct Argument {
  std::string name, value, help;
  Holds holds = Holds::text;
  bool positional = false, list = false, repeatable = false;
  Json row;
  [[nodiscard]] bool is_flag() const { return !positional && value.empty(); }
};

// A server neither writes files nor prints tables: answers are JSON, and what files would hold is
// in them.
bool is_of_output_alone(const Json& row) {
  constexpr std::array<std::string_view, 4> kForms{"--json", "--format", "--force", "--columns"};
  const auto name = row["name"].get<std::string>();
  if (row["group"] != "Output") return false;
  if (row["value"] == "FILE" || row["value"] == "DIR") return true;
  return std::find(kForms.begin(), kForms.end(), name) != kForms.end();
}

// "global_batch_size" of "--global-batch-size", "file" of FILE.
std::string key_of(const std::string& name) {
  std::string key = lower_case(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

struct Tool {
  std::string summary, example;
  std::map<std::string, Argument> arguments;  // by key
  std::vector<std::string> order;             // keys, as help has them
};

Tool read_tool(const Verb& verb) {
  std::ostringstream out, err;
  run_cli({std::string(verb.name), "--help=json"}, {out, err, {}});
  const Json table = parse_json(out.str(), verb.name);
  Tool tool{table["summary"], table["example"], {}, {}};
  for (const Json& row : table["options"]) {
    if (is_of_output_alone(row)) continue;
    Argument argument{
        row["name"],       row["value"].is_null() ? "" : row["value"].get<std::string>(),
        row["help"],       from_word<Holds>(row["type"].get<std::string>()),
        row["positional"], row["list"],
        row["repeatable"], row};
    const std::string key = key_of(argument.name);
    // PLAN is the same as --plan.
    const auto [at, is_new] = tool.arguments.try_emplace(key, argument);
    if (is_new) {
      tool.order.push_back(key);
    } else if (!argument.positional) {
      at->second = argument;
    }
  }
  return tool;
}

const Tool& tool_of(const Verb& verb) {
  static const auto all = [] {
    std::map<std::string_view, Tool> tools;
    for (const Verb& each : verbs()) {
      if (each.is_tool) tools.emplace(each.name, read_tool(each));
    }
    return tools;
  }();
  return all.at(verb.name);
}

// ---- schemas ----

Json types_of(const Argument& argument) {
  switch (argument.holds) {
    case Holds::whole:
      return Json::array({"integer"});
    case Holds::number:
      return Json::array({"number"});
    case Holds::count:
      return Json::array({"number", "string"});  // 3e11, or "300B"
    case Holds::truth:
      return Json::array({"boolean"});
    case Holds::text:
      break;
  }
  return Json::array({"string"});
}

Json schema_of(const Argument& argument) {
  const Json &row = argument.row, types = types_of(argument);
  Json schema = Json::object();
  const bool several = argument.list || argument.repeatable;
  if (several) {
    // A list as text has commas, of whole numbers also ranges: "1..4".
    Json any = types;
    if (types.front() != "string") any.push_back("string");
    any.push_back("array");
    schema["type"] = any;
    schema["items"] = {{"type", types.size() == 1 ? types.front() : types}};
  } else {
    schema["type"] = types.size() == 1 ? types.front() : types;
    if (!row["low"].is_null()) {
      schema["minimum"] = row["low"];
      schema["maximum"] = row["high"];
    }
    if (!row["words"].empty()) schema["enum"] = row["words"];
  }
  std::string help = argument.help;
  if (!row["default"].is_null()) {
    help += fmt::format(" [default: {}]", row["default"].get<std::string>());
  }
  schema["description"] = help;
  return schema;
}

Json input_schema(const Tool& tool) {
  Json properties = Json::object();
  for (const std::string& key : tool.order) properties[key] = schema_of(tool.arguments.at(key));
  return {
      {"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
}

// ---- arguments ----

std::string text_of_value(const std::string& key, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number_integer()) return fmt::format("{}", value.get<std::int64_t>());
  if (value.is_number()) {
    const auto number = value.get<double>();
    const bool whole = number == static_cast<double>(static_cast<std::int64_t>(number));
    return whole ? fmt::format("{}", static_cast<std::int64_t>(number)) : fmt::format("{}", number);
  }
  throw Error(
      fmt::format("{} must be a text, a number or a list of them, not {}", key, type_name(value)));
}

std::vector<std::string> texts_of(const std::string& key, const Argument& argument,
                                  const Json& value) {
  if (!value.is_array()) return {text_of_value(key, value)};
  if (!argument.list && !argument.repeatable) {
    throw Error(fmt::format("{} takes one value, not a list", key));
  }
  std::vector<std::string> texts;
  for (const Json& item : value) texts.push_back(text_of_value(key, item));
  return texts;
}

void add_words(std::vector<std::string>& words, const std::string& key, const Argument& argument,
               const Json& value) {
  if (value.is_null()) return;
  if (argument.is_flag()) {
    if (!value.is_boolean()) throw Error(fmt::format("{} must be true or false", key));
    if (value.get<bool>()) words.push_back(argument.name);
    return;
  }
  const std::vector<std::string> texts = texts_of(key, argument, value);
  if (argument.positional) {
    for (const std::string& text : texts) {
      if (text.starts_with('-')) {
        throw Error(fmt::format("{} must not begin with '-': '{}'", key, shown(text)));
      }
      words.push_back(text);
    }
  } else if (argument.list) {
    words.push_back(fmt::format("{}={}", argument.name, fmt::join(texts, ",")));
  } else {
    for (const std::string& text : texts) {
      words.push_back(fmt::format("{}={}", argument.name, text));
    }
  }
}

Json text_content(const std::string& text) {
  return {{"type", "text"}, {"text", text}};
}

Json error_result(const std::string& sentence) {
  return {{"content", Json::array({text_content(sentence)})}, {"isError", true}};
}

// "qplan: --gpus is missing ...\n" without what a terminal needs.
std::string sentence_of(std::string text) {
  constexpr std::string_view kProgram = "qplan: ";
  if (text.starts_with(kProgram)) text.erase(0, kProgram.size());
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

bool is_mcp_tool(std::string_view name) {
  return verb_named(name) != nullptr;
}

std::vector<std::string> mcp_tool_names() {
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) {
    if (verb.is_tool) names.emplace_back(verb.name);
  }
  return names;
}

const Json& mcp_tools() {
  static const Json all = [] {
    Json list = Json::array();
    for (const Verb& verb : verbs()) {
      if (!verb.is_tool) continue;
      const Tool& tool = tool_of(verb);
      list.push_back({{"name", verb.name},
                      {"title", "qplan " + std::string(verb.name)},
                      {"description", tool.summary},
                      {"inputSchema", input_schema(tool)},
                      {"outputSchema", whole_schema(split_at_spaces(verb.answers))},
                      {"annotations", {{"readOnlyHint", true}, {"openWorldHint", false}}}});
    }
    return list;
  }();
  return all;
}

std::vector<std::string> words_of_arguments(std::string_view tool, const Json& arguments) {
  const Verb* const verb = verb_named(tool);
  QPLAN_CHECK(verb != nullptr, "a tool that is called is one of the list");
  const Tool& known = tool_of(*verb);
  for (const auto& [key, value] : arguments.items()) {
    if (known.arguments.contains(key)) continue;
    throw Error(
        fmt::format("{} has no argument '{}'{}", tool, shown(key), did_you_mean(key, known.order)));
  }
  std::vector<std::string> words{std::string(tool)};
  // In the order of help, for words without an option stand in theirs.
  for (const std::string& key : known.order) {
    if (const auto at = arguments.find(key); at != arguments.end()) {
      add_words(words, key, known.arguments.at(key), *at);
    }
  }
  words.emplace_back("--json");
  return words;
}

Json call_mcp_tool(std::string_view tool, const Json& arguments,
                   std::function<void(double)> progress) {
  std::vector<std::string> words;
  try {
    words = words_of_arguments(tool, arguments);
  } catch (const Error& error) {
    return error_result(error.what());
  }
  std::ostringstream out, err;
  const int code = run_cli(words, {out, err, {}, std::move(progress)});
  const std::string said = sentence_of(err.str());
  const bool answered = code == static_cast<int>(Exit::done) ||
                        (code == static_cast<int>(Exit::nothing_fits) && !out.str().empty());
  if (!answered) return error_result(said);
  // Our own answers may be longer than what is taken from others.
  Json answer = Json::parse(out.str());
  Json content = Json::array({text_content(answer.dump())});
  if (!said.empty()) content.push_back(text_content(said));
  return {{"content", std::move(content)},
          {"structuredContent", std::move(answer)},
          {"isError", false}};
}

}  // namespace qplan
