#pragma once
// Where `-o` puts what it writes: a file, or standard output where it says '-'.

#include <string>
#include <string_view>

#include "cli/commands.h"

namespace qplan {

// Throws Error where what `--json` prints and what `-o -` writes would be one stream.
void refuse_one_stream(const std::string& path, bool json);

void write_output(const std::string& path, std::string_view text, const Console& console);

// The console for all else that the verb says: on standard error, where its output is standard
// output, which is that alone.
Console beside_output(const std::string& path, const Console& console);

// "standard output", or the path.
std::string output_name(const std::string& path);

// Throws Error where a folder, or one file of several, would be called '-'.
void refuse_standard_output(const std::string& option, const std::string& path);

}  // namespace qplan
