// `qplan mcp`: the verbs as tools for agents.

#include "cli/mcp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "cli/commands.h"
#include "cli/mcp_tools.h"
#include "cli/options.h"
#include "models/error.h"
#include "models/json.h"
#include "models/text.h"

namespace qplan {
namespace {

// Revisions of the protocol (modelcontextprotocol.io/specification), newest first. Those of the
// first list have no handshake: each request says its revision. 2025-03-26 is left out, for it asks
// for batches.
constexpr std::array<std::string_view, 1> kStateless{"2026-07-28"};
constexpr std::array<std::string_view, 3> kHandshake{"2025-11-25", "2025-06-18", "2024-11-05"};

constexpr const char* kRevisionKey = "io.modelcontextprotocol/protocolVersion";
constexpr const char* kServerKey = "io.modelcontextprotocol/serverInfo";

// JSON-RPC 2.0, section 5.1, and the protocol's own for a revision that is not served.
enum class Code : int {
  parse = -32700,
  invalid_request = -32600,
  no_method = -32601,
  invalid_params = -32602,
  internal = -32603,
  revision = -32022,
};

struct RpcError {
  Code code;
  std::string message;
  Json data = nullptr;
};

struct Cancelled {};

Json server_info() {
  return {{"name", "qplan"}, {"version", QPLAN_VERSION}};
}

Json revisions() {
  Json list = Json::array();
  for (const std::string_view revision : kStateless) list.push_back(revision);
  for (const std::string_view revision : kHandshake) list.push_back(revision);
  return list;
}

constexpr const char* kInstructions =
    "qplan finds parallel plans for training large language models, predicts their memory and step "
    "time, checks training configurations and writes them. Plans are lines such as \"tp4 pp2 dp8 "
    "zero1 mbs1\". `models` and `hardware` list what is built in.";

// Of a request that says its revision: the new shape of results.
bool is_stateless(const Json& params) {
  const auto meta = params.find("_meta");
  return meta != params.end() && meta->is_object() && meta->contains(kRevisionKey);
}

void check_revision(const Json& params) {
  if (!is_stateless(params)) return;
  const Json& said = params["_meta"][kRevisionKey];
  if (!said.is_string()) {
    throw RpcError{Code::invalid_params, fmt::format("{} must be a text", kRevisionKey)};
  }
  const auto revision = said.get<std::string>();
  if (std::find(kStateless.begin(), kStateless.end(), revision) != kStateless.end()) return;
  throw RpcError{Code::revision,
                 fmt::format("revision '{}' is not served by request", shown(revision)),
                 {{"supported", kStateless}, {"requested", revision}}};
}

// What the newest revision wants of every result, and of those that clients may keep.
Json completed(Json result, const Json& params, bool keeps = false) {
  if (!is_stateless(params)) return result;
  constexpr std::int64_t kHour = 3'600'000;  // ms: the tools are the program's, and do not change
  result["resultType"] = "complete";
  result["_meta"] = {{kServerKey, server_info()}};
  if (keeps) {
    result["ttlMs"] = kHour;
    result["cacheScope"] = "public";
  }
  return result;
}

class Server {
 public:
  explicit Server(std::ostream& out) : out_(out), worker_([this] { work(); }) {}

  ~Server() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    more_.notify_all();
    worker_.join();  // what was asked for is answered
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void read(const std::string& line) {
    Json message;
    try {
      message = parse_json(line, "the message");
    } catch (const Error& error) {
      return refuse(nullptr, {Code::parse, error.what()});
    }
    Json id = nullptr;
    try {
      id = id_of(message);
      take(message, id);
    } catch (const RpcError& error) {
      refuse(id, error);
    }
  }

  void refuse_long_line(std::size_t most) {
    refuse(nullptr, {Code::parse, fmt::format("the message is longer than {} bytes", most)});
  }

 private:
  struct Call {
    Json id, params;
  };

  // ---- reading ----

  static Json id_of(const Json& message) {
    if (!message.is_object()) {
      throw RpcError{
          Code::invalid_request,
          fmt::format("a message is an object, not {}; batches are not taken", type_name(message))};
    }
    const auto id = message.find("id");
    if (id == message.end()) return nullptr;
    if (!id->is_string() && !id->is_number_integer()) {
      throw RpcError{Code::invalid_request, "an id is a text or a whole number"};
    }
    return *id;
  }

  void take(const Json& message, const Json& id) {
    // An answer to a question that nobody asked.
    if (message.contains("result") || message.contains("error")) return;
    const auto version = message.find("jsonrpc"), named = message.find("method");
    if (version == message.end() || *version != "2.0") {
      throw RpcError{Code::invalid_request, "\"jsonrpc\" must be \"2.0\""};
    }
    if (named == message.end() || !named->is_string()) {
      throw RpcError{Code::invalid_request, "\"method\" must be a text"};
    }
    const auto method = named->get<std::string>();
    const bool notifies = !message.contains("id");
    Json params = Json::object();
    if (const auto said = message.find("params"); said != message.end()) params = *said;
    if (!params.is_object()) {
      if (notifies) return;  // which are never answered
      throw RpcError{Code::invalid_params, "\"params\" must be an object"};
    }
    if (notifies) {
      if (method == "notifications/cancelled") cancel(params);
      return;
    }
    check_revision(params);
    if (method == "tools/call") return enqueue(id, std::move(params));
    send({{"jsonrpc", "2.0"}, {"id", id}, {"result", answer(method, params)}});
  }

  static Json answer(const std::string& method, const Json& params) {
    if (method == "ping") return completed(Json::object(), params);
    if (method == "initialize") return initialize(params);
    if (method == "server/discover") {
      return completed({{"supportedVersions", revisions()},
                        {"capabilities", {{"tools", Json::object()}}},
                        {"serverInfo", server_info()},
                        {"instructions", kInstructions}},
                       params, true);
    }
    if (method == "tools/list") {
      if (params.contains("cursor")) {
        throw RpcError{Code::invalid_params, "the list has one page; there is no such cursor"};
      }
      return completed({{"tools", mcp_tools()}}, params, true);
    }
    throw RpcError{Code::no_method, fmt::format("method '{}' is unknown", shown(method))};
  }

  static Json initialize(const Json& params) {
    std::string revision(kHandshake.front());
    if (const auto asked = params.find("protocolVersion");
        asked != params.end() && asked->is_string()) {
      const auto said = asked->get<std::string>();
      const bool served = std::find(kHandshake.begin(), kHandshake.end(), said) != kHandshake.end();
      if (served) revision = said;
    }
    return {{"protocolVersion", revision},
            {"capabilities", {{"tools", {{"listChanged", false}}}}},
            {"serverInfo", server_info()},
            {"instructions", kInstructions}};
  }

  // ---- calls ----

  void enqueue(const Json& id, Json params) {
    const auto name = params.find("name");
    if (name == params.end() || !name->is_string()) {
      throw RpcError{Code::invalid_params, "\"name\" must be a tool's name"};
    }
    const auto tool = name->get<std::string>();
    if (!is_mcp_tool(tool)) {
      const auto names = mcp_tool_names();
      const std::string hint = did_you_mean(tool, names);
      throw RpcError{
          Code::invalid_params,
          fmt::format(
              "tool '{}' is unknown{}", shown(tool),
              hint.empty() ? fmt::format("; choose one of {}", fmt::join(names, ", ")) : hint)};
    }
    if (const auto arguments = params.find("arguments");
        arguments != params.end() && !arguments->is_object()) {
      throw RpcError{Code::invalid_params, "\"arguments\" must be an object"};
    }
    constexpr std::size_t kMostWaiting = 1000;  // a client that asks and never reads
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.size() >= kMostWaiting) {
        throw RpcError{Code::internal, fmt::format("{} calls wait already", kMostWaiting)};
      }
      waiting_.push_back({id, std::move(params)});
    }
    more_.notify_one();
  }

  // A call that is cancelled is not answered.
  void cancel(const Json& params) {
    const auto id = params.find("requestId");
    if (id == params.end()) return;
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](const Call& call) { return call.id == *id; });
    if (running_ && *running_ == *id) give_up_ = true;
  }

  void work() {
    for (;;) {
      Call call;
      {
        std::unique_lock lock(mutex_);
        more_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        call = std::move(waiting_.front());
        waiting_.pop_front();
        running_ = call.id;
        give_up_ = false;
      }
      const std::optional<Json> message = answer_of(call);
      bool cancelled = false;
      {
        const std::lock_guard lock(mutex_);
        running_.reset();
        cancelled = give_up_;
      }
      if (message && !cancelled) send(*message);
    }
  }

  std::optional<Json> answer_of(const Call& call) {
    try {
      const auto arguments = call.params.find("arguments");
      Json result = call_mcp_tool(call.params["name"].get<std::string>(),
                                  arguments == call.params.end() ? Json::object() : *arguments,
                                  [&, told = 0.0](double done) mutable {
                                    if (give_up_) throw Cancelled{};
                                    if (done > told) tell_progress(call, told = done);
                                  });
      return Json{{"jsonrpc", "2.0"},
                  {"id", call.id},
                  {"result", completed(std::move(result), call.params)}};
    } catch (const Cancelled&) {
      return std::nullopt;
    } catch (const std::exception& error) {
      return failure(call.id, {Code::internal, error.what()});
    }
  }

  void tell_progress(const Call& call, double done) {
    const auto meta = call.params.find("_meta");
    if (meta == call.params.end() || !meta->is_object()) return;
    const auto token = meta->find("progressToken");
    if (token == meta->end()) return;
    send({{"jsonrpc", "2.0"},
          {"method", "notifications/progress"},
          {"params", {{"progressToken", *token}, {"progress", done}, {"total", 1}}}});
  }

  // ---- writing ----

  static Json failure(const Json& id, const RpcError& error) {
    Json said{{"code", static_cast<int>(error.code)}, {"message", error.message}};
    if (!error.data.is_null()) said["data"] = error.data;
    return {{"jsonrpc", "2.0"}, {"id", id}, {"error", std::move(said)}};
  }

  void refuse(const Json& id, const RpcError& error) { send(failure(id, error)); }

  void send(const Json& message) {
    const std::lock_guard lock(out_mutex_);
    out_ << message.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    out_.flush();
  }

  std::ostream& out_;
  std::mutex out_mutex_;
  std::mutex mutex_;  // of what follows
  std::condition_variable more_;
  std::deque<Call> waiting_;
  std::optional<Json> running_;  // its id
  std::atomic<bool> give_up_ = false;
  bool ended_ = false;
  std::thread worker_;  // last: it uses the others
};

// The next line, as far as it is read; false: there is none.
bool next_line(std::istream& in, std::string& line, std::size_t most) {
  line.clear();
  bool any = false;
  for (int c = in.get(); c != std::istream::traits_type::eof(); c = in.get()) {
    any = true;
    if (c == '\n') return true;
    if (line.size() <= most) line += static_cast<char>(c);
  }
  return any;
}

}  // namespace

void serve_mcp(std::istream& in, std::ostream& out) {
  const std::size_t most = JsonLimits{}.bytes;
  Server server(out);
  for (std::string line; next_line(in, line, most);) {
    if (line.size() > most) {
      server.refuse_long_line(most);
    } else if (line.find_first_not_of(" \t\r") != std::string::npos) {
      server.read(line);
    }
  }
}

Exit run_mcp(const Args& args, const Console& console) {
  CommandLine line("mcp",
                   "A server of the Model Context Protocol over standard input and output: the "
                   "verbs that only read and compute, as tools for agents. It writes no files.",
                   "qplan mcp < requests.jsonl");
  line.group("Output");
  if (!line.parse(args, console.out)) return Exit::done;
  serve_mcp(std::cin, console.out);
  return Exit::done;
}

}  // namespace qplan
