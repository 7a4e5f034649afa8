#pragma once
// A server of the Model Context Protocol: one JSON-RPC message a line.

#include <iosfwd>

namespace qplan {

// Answers what `in` asks until it ends, one tool call at a time; pings, lists and cancellations are
// answered while a call runs.
void serve_mcp(std::istream& in, std::ostream& out);

}  // namespace qplan
