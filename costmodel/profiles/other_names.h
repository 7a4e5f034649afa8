#pragma once
// Names that people give machines and that no profile has: of a family with one plain member
// ("h100"), of several machines ("hopper"), and of machines that are refused ("tpu-v5p").

#include <string>
#include <string_view>
#include <vector>

namespace qplan {

struct OtherName {
  std::string name;                   // one that ends in '*' stands for all that begin so
  std::vector<std::string> machines;  // built-in ones; none: refused
  std::string why;                    // they are refused for this reason
};

const std::vector<OtherName>& other_names();

// One name for all that a machine is called: the built-in one's in small letters, where a name
// means it; any other text, a file's path or a name of several machines, is its own.
std::string plain_machine_name(const std::string& name);

// The built-in machine that a name in small letters means; empty for names that are not among them.
// Throws Error with the choices where it means several, and with the reason where it is refused.
std::string machine_meant(std::string_view name);

}  // namespace qplan
