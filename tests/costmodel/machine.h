// Built-in machines for tests, each read once.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "costmodel/profiles/hardware.h"

namespace qplan {

// The name is a string_view because gcc 13 and 14 call a reference dangling (-Wdangling-reference)
// that a function makes from a temporary std::string.
inline const HardwareProfile& machine(std::string_view name) {
  static std::map<std::string, HardwareProfile, std::less<>> loaded;
  const auto found = loaded.find(name);
  if (found != loaded.end()) return found->second;
  return loaded.emplace(name, load_hardware(std::string(name))).first->second;
}

}  // namespace qplan
