#pragma once
// The verbs as tools of `qplan mcp`: what each takes, from its own options, and what it answers,
// from the schemas of docs/reference.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/json_fwd.h"

namespace qplan {

// All tools, as the protocol lists them: name, description, inputSchema, outputSchema, annotations.
const Json& mcp_tools();

// False: there is no such tool.
bool is_mcp_tool(std::string_view name);
std::vector<std::string> mcp_tool_names();

// The words of the command line that a tool's arguments are: {"gpus": 8} is "--gpus=8". Throws
// Error for an argument that the tool has not, or that is no text, number or list.
std::vector<std::string> words_of_arguments(std::string_view tool, const Json& arguments);

// What a tool answers, as the protocol has it: content, structuredContent, isError. `progress` as
// in Console; what it throws passes through.
Json call_mcp_tool(std::string_view tool, const Json& arguments,
                   std::function<void(double)> progress);

}  // namespace qplan
