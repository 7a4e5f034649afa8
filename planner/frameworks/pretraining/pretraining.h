#pragma once
// What is asked of the files of this folder. Private to it and to check().

#include <functional>
#include <string>
#include <string_view>

#include "planner/frameworks/scene.h"

namespace qplan {

// One note of all keys that older releases had and `today` stops at; `now` tells what took a key's
// place, nothing: "".
void note_older(const ConfigPart& part, const OptionList& older, std::string_view today,
                const std::function<std::string(const std::string&)>& now, Findings& out);

void check_titan_toml(const Scene& scene, Findings& out);
void check_nanotron(const Scene& scene, Findings& out);

}  // namespace qplan
