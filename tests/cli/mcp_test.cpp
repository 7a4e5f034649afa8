#include "cli/mcp.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "cli/mcp_tools.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

// What the server writes to what is asked, a message a line.
std::vector<Json> replies(const std::string& asked) {
  std::istringstream in(asked);
  std::ostringstream out;
  serve_mcp(in, out);
  std::vector<Json> messages;
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);)
    messages.push_back(parse_json(line, "a reply"));
  return messages;
}

std::string request(int id, const std::string& method, const Json& params = Json::object()) {
  return Json{{"jsonrpc", "2.0"}, {"id", id}, {"method", method}, {"params", params}}.dump() + '\n';
}

std::string call(int id, const std::string& tool, const Json& arguments) {
  return request(id, "tools/call", {{"name", tool}, {"arguments", arguments}});
}

Json reply(const std::string& asked) {
  const std::vector<Json> all = replies(asked);
  REQUIRE(all.size() == 1);
  return all.front();
}

const Json kPredict{{"model", "tiny"}, {"gpus", 8}, {"plan", "tp2"}};

}  // namespace

TEST_CASE("a handshake agrees on the client's revision, or offers the newest with one") {
  for (const char* revision : {"2025-11-25", "2025-06-18", "2024-11-05"}) {
    const Json result = reply(request(1, "initialize", {{"protocolVersion", revision}}))["result"];
    CHECK(result["protocolVersion"] == revision);
    CHECK(result["serverInfo"]["name"] == "qplan");
    CHECK(result["capabilities"].contains("tools"));
  }
  for (const char* other : {"2025-03-26", "1999-01-01"}) {
    CHECK(reply(request(1, "initialize",
                        {{"protocolVersion", other}}))["result"]["protocolVersion"] ==
          "2025-11-25");
  }
}

TEST_CASE("a request that says its revision gets results of that revision's shape") {
  const Json meta{{"io.modelcontextprotocol/protocolVersion", "2026-07-28"}};
  const Json found = reply(request(1, "server/discover", {{"_meta", meta}}))["result"];
  CHECK(found["resultType"] == "complete");
  CHECK(found["supportedVersions"][0] == "2026-07-28");
  CHECK(found["ttlMs"].get<int>() > 0);
  const Json list = reply(request(1, "tools/list", {{"_meta", meta}}))["result"];
  CHECK(list["resultType"] == "complete");
  CHECK_FALSE(reply(request(1, "tools/list"))["result"].contains("resultType"));
  const Json strange{{"io.modelcontextprotocol/protocolVersion", "2030-01-01"}};
  const Json error = reply(request(1, "tools/list", {{"_meta", strange}}))["error"];
  CHECK(error["code"] == -32022);
  CHECK(error["data"]["supported"] == Json::array({"2026-07-28"}));
}

TEST_CASE("a tool answers what its verb prints as JSON, as structure and as text") {
  const Json result = reply(call(7, "predict", kPredict))["result"];
  CHECK(result["isError"] == false);
  const Json verb = run("predict --model tiny --gpus 8 --plan tp2 --json").json();
  CHECK(result["structuredContent"] == verb);
  CHECK(parse_json(result["content"][0]["text"].get<std::string>(), "text") == verb);
}

TEST_CASE("nothing fits is an answer of a tool, and bad input its error") {
  const Json nothing = reply(call(1, "search", {{"model", "llama3-405b"}, {"gpus", 8}}))["result"];
  CHECK(nothing["isError"] == false);
  CHECK(nothing["structuredContent"]["plans"].empty());
  const std::vector<std::pair<Json, std::string>> bad{
      {{{"model", "tiny"}}, "--gpus is missing"},
      {{{"model", "nosuch"}, {"gpus", 8}}, "nosuch"},
      {{{"model", "tiny"}, {"gpsu", 8}}, "did you mean 'gpus'"},
      {{{"model", "tiny"}, {"gpus", Json::object()}}, "gpus must be"},
      {{{"model", "tiny"}, {"gpus", Json::array({1, 2})}}, "one value"},
      {{{"model", "tiny"}, {"gpus", "8 --json"}}, "--gpus must be"},
      {{{"model", "tiny"}, {"gpus", 8}, {"output", "plan.json"}}, "no argument 'output'"}};
  for (const auto& [arguments, says] : bad) {
    CAPTURE(arguments.dump());
    const Json result = reply(call(1, "predict", arguments))["result"];
    CHECK(result["isError"] == true);
    CHECK_FALSE(result.contains("structuredContent"));
    const auto text = result["content"][0]["text"].get<std::string>();
    CHECK_MESSAGE(text.find(says) != std::string::npos, text);
    CHECK_FALSE(text.starts_with("qplan: "));
  }
}

TEST_CASE("no tool writes a file") {
  for (const Json& tool : mcp_tools()) {
    CAPTURE(tool["name"].get<std::string>());
    CHECK(tool["annotations"]["readOnlyHint"] == true);
    for (const char* key : {"output", "out", "fix", "sarif", "trace", "force", "json", "format"}) {
      CHECK_FALSE(tool["inputSchema"]["properties"].contains(key));
    }
  }
  for (const char* verb : {"run", "validate", "calibrate", "watch", "trace", "mcp"}) {
    CHECK_FALSE(is_mcp_tool(verb));
  }
}

TEST_CASE("a tool's arguments are the options of its verb") {
  for (const Json& tool : mcp_tools()) {
    const auto name = tool["name"].get<std::string>();
    CAPTURE(name);
    const Json table = run({name, "--help=json"}).json();
    std::size_t offered = 0;
    for (const auto& [key, schema] : tool["inputSchema"]["properties"].items()) {
      CAPTURE(key);
      CHECK(std::any_of(table["options"].begin(), table["options"].end(), [&](const Json& row) {
        return schema["description"].get<std::string>().starts_with(row["help"].get<std::string>());
      }));
      ++offered;
    }
    CHECK(offered + 12 > table["options"].size());  // all but files, formats and doubles
    CHECK(tool["outputSchema"]["type"] == "object");
  }
  const Json search = *std::find_if(mcp_tools().begin(), mcp_tools().end(),
                                    [](const Json& tool) { return tool["name"] == "search"; });
  const Json& properties = search["inputSchema"]["properties"];
  CHECK(properties["gpus"]["type"] == "integer");
  CHECK(properties["gpus"]["minimum"] == 1);
  CHECK(properties["tp"]["type"] == Json::array({"integer", "string", "array"}));
  CHECK(properties["objective"]["enum"] == Json::array({"tokens", "cost", "gpus"}));
  CHECK(properties["pareto"]["type"] == "boolean");
}

TEST_CASE("references of an output schema stay within it") {
  for (const Json& tool : mcp_tools()) {
    const Json& schema = tool["outputSchema"];
    const std::string text = schema.dump();
    CHECK(text.find(".schema.json#") == std::string::npos);
    for (std::size_t at = text.find("\"$ref\":\"#"); at != std::string::npos;
         at = text.find("\"$ref\":\"#", at + 1)) {
      const std::size_t begin = at + 9;
      const std::string pointer = text.substr(begin, text.find('"', begin) - begin);
      CAPTURE(pointer);
      CHECK(schema.contains(Json::json_pointer(pointer)));
    }
  }
}

TEST_CASE("arguments become words of the command line") {
  using Words = std::vector<std::string>;
  CHECK(words_of_arguments("search", {{"gpus", 8}, {"tp", {1, 2}}, {"pareto", true}}) ==
        Words{"search", "--gpus=8", "--tp=1,2", "--pareto", "--json"});
  CHECK(words_of_arguments("search", {{"overlap", {"tp", "none"}}, {"pareto", false}}) ==
        Words{"search", "--overlap=tp", "--overlap=none", "--json"});
  CHECK(words_of_arguments("check", {{"file", {"a.sh", "b.json"}}, {"gpus", 8.0}}) ==
        Words{"check", "a.sh", "b.json", "--gpus=8", "--json"});
  CHECK(words_of_arguments("models", {{"name", "tiny"}, {"show", "show"}}) ==
        Words{"models", "show", "tiny", "--json"});
  CHECK(words_of_arguments("predict", {{"plan", "--out=/tmp"}, {"gpus", nullptr}}) ==
        Words{"predict", "--plan=--out=/tmp", "--json"});
  CHECK_THROWS_WITH(words_of_arguments("check", {{"file", "--fix=/tmp"}}),
                    "file must not begin with '-': '--fix=/tmp'");
}

TEST_CASE("what is no message gets one error, and the server goes on") {
  const std::vector<std::pair<std::string, int>> bad{
      {"{", -32700},
      {"nonsense", -32700},
      {std::string(100, '['), -32700},
      {"{\"jsonrpc\": \"2.0\", \"id\": 1, \"id\": 2, \"method\": \"ping\"}", -32700},
      {"\xff\xfe", -32700},
      {"[]", -32600},
      {"[{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}]", -32600},
      {"1", -32600},
      {"{}", -32600},
      {"{\"id\": 1, \"method\": \"ping\"}", -32600},
      {"{\"jsonrpc\": \"1.0\", \"id\": 1, \"method\": \"ping\"}", -32600},
      {"{\"jsonrpc\": \"2.0\", \"id\": 1}", -32600},
      {"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": 7}", -32600},
      {"{\"jsonrpc\": \"2.0\", \"id\": {}, \"method\": \"ping\"}", -32600},
      {"{\"jsonrpc\": \"2.0\", \"id\": null, \"method\": \"ping\"}", -32600},
      {"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\", \"params\": []}", -32602},
      {"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"nosuch\"}", -32601},
      {"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\"}", -32602},
      {"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": 1}}",
       -32602},
      {"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": "
       "\"serach\"}}",
       -32602},
      {"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": "
       "\"search\", \"arguments\": 1}}",
       -32602},
      {"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/list\", \"params\": {\"cursor\": "
       "\"x\"}}",
       -32602}};
  for (const auto& [line, code] : bad) {
    CAPTURE(line);
    const std::vector<Json> all = replies(line + "\n" + request(99, "ping"));
    REQUIRE(all.size() == 2);
    CHECK(all[0]["error"]["code"] == code);
    CHECK_FALSE(all[0]["error"]["message"].get<std::string>().empty());
    CHECK(all[1] == Json{{"jsonrpc", "2.0"}, {"id", 99}, {"result", Json::object()}});
  }
}

TEST_CASE("notifications, answers and empty lines are not answered") {
  CHECK(replies("\n  \n{\"jsonrpc\": \"2.0\", \"method\": \"notifications/initialized\"}\n"
                "{\"jsonrpc\": \"2.0\", \"method\": \"nosuch\"}\n"
                "{\"jsonrpc\": \"2.0\", \"id\": 4, \"result\": {}}\n"
                "{\"jsonrpc\": \"2.0\", \"method\": \"notifications/cancelled\", \"params\": []}\n")
            .empty());
}

TEST_CASE("a line that is too long is refused, and the next one answered") {
  const std::vector<Json> all =
      replies(std::string(JsonLimits{}.bytes + 10, ' ') + "x\n" + request(1, "ping"));
  REQUIRE(all.size() == 2);
  CHECK(all[0]["error"]["code"] == -32700);
  CHECK(all[1]["id"] == 1);
}

TEST_CASE("calls are answered in their order, and what waits can be cancelled") {
  std::string asked = call(1, "search", {{"model", "llama3-70b"}, {"gpus", 64}, {"top", 1}});
  for (int id = 2; id < 6; ++id) asked += call(id, "predict", kPredict);
  // Five are asked for at once; the last cannot have begun.
  asked +=
      "{\"jsonrpc\": \"2.0\", \"method\": \"notifications/cancelled\", \"params\": "
      "{\"requestId\": 5}}\n";
  std::vector<Json> ids;
  for (const Json& message : replies(asked)) ids.push_back(message["id"]);
  CHECK(ids == std::vector<Json>{1, 2, 3, 4});
}

TEST_CASE("a search tells its progress where the client asks for it, ever more") {
  const Json params{{"name", "search"},
                    {"arguments", {{"model", "tiny"}, {"gpus", 8}, {"top", 1}}},
                    {"_meta", {{"progressToken", "t"}}}};
  const std::vector<Json> all = replies(request(1, "tools/call", params));
  REQUIRE(all.size() > 1);
  double last = 0;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    CHECK(all[i]["method"] == "notifications/progress");
    CHECK(all[i]["params"]["progressToken"] == "t");
    CHECK(all[i]["params"]["progress"].get<double>() > last);
    last = all[i]["params"]["progress"].get<double>();
  }
  CHECK(last <= 1);
  CHECK(all.back()["id"] == 1);
}

TEST_CASE("what ends an answer's progress ends the answer") {
  struct Enough {};
  CHECK_THROWS_AS(
      call_mcp_tool("search", {{"model", "tiny"}, {"gpus", 8}}, [](double) { throw Enough{}; }),
      Enough);
}
