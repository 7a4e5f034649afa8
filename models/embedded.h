#pragma once
// Text files compiled into the program (scripts/cmake/embed.cmake).

#include <cstddef>
#include <string>
#include <string_view>

namespace qplan {

struct EmbeddedFile {
  std::string_view name;  // file name without its ending
  const unsigned char* bytes;
  std::size_t size;

  [[nodiscard]] std::string text() const { return {bytes, bytes + size}; }
};

}  // namespace qplan
